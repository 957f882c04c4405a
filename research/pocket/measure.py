"""Measures the pocket model on held-out content: what it can do, and what a rule in its prompt changes."""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist

from pydantic import Field

from pytest_trace2evolve.agents.chat import ChatAgent, system_prompt
from pytest_trace2evolve.cases.case import FAMILIES, Case, generate
from pytest_trace2evolve.cases.teacher import rulebook
from pytest_trace2evolve.engine.conversation import converse
from pytest_trace2evolve.errors import InfrastructureError
from pytest_trace2evolve.gate.intervals import CONFIDENCE_LEVEL, wilson
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.protocols import Model, World
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.records.trace import Simulation, TerminationReason
from pytest_trace2evolve.scoring.metrics import SUCCESS
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.users.scripted import ScriptedUser
from research.common import OnProgress
from research.pocket.behavior import BEHAVIORS
from research.pocket.lessons import LIMITS, draw_instruction, draw_rules
from research.pocket.recipe import Stage

ALL_RULES = Stage(0, (0.0, 0.0), without_rules=0.0, with_all_rules=1.0)
"""The kind of prompts that state all rules."""

AT_ONCE = 48
"""Simulations at once."""

CASES = 60
"""Cases of a capability, and of an arm of a rule."""


class Share(Record):
    """How often something was the case."""

    hits: int = Field(ge=0)
    total: int = Field(ge=0)

    @property
    def estimate(self) -> float | None:
        """The share; None of nothing."""
        return self.hits / self.total if self.total else None

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval at 95 %; from 0 to 1 for a share of nothing."""
        if not self.total:
            return 0.0, 1.0
        return wilson(self.hits / self.total, self.total, NormalDist().inv_cdf((1 + CONFIDENCE_LEVEL) / 2))


def difference(new: Share, old: Share) -> tuple[float, float, float]:
    """Difference of two shares with Newcombe's interval at 95 % (method 10 of Newcombe, 1998).

    Raises:
        ValueError: one of them is of nothing.
    """
    if new.estimate is None or old.estimate is None:
        raise ValueError("a share of nothing has no difference")
    (low_new, high_new), (low_old, high_old) = new.interval, old.interval
    found = new.estimate - old.estimate
    down = ((new.estimate - low_new) ** 2 + (high_old - old.estimate) ** 2) ** 0.5
    up = ((high_new - new.estimate) ** 2 + (old.estimate - low_old) ** 2) ** 0.5
    return found, max(-1.0, found - down), min(1.0, found + up)


class Arms(Record):
    """Shares without a rule, with it in a wording of training, and in a wording that was never trained on."""

    without: Share
    seen: Share
    unseen: Share


class RuleEffect(Record):
    """What a rule in the prompt changes, on cases of the kinds that it concerns.

    Attributes:
        shown: How often the behavior shows that the rule asks for, of simulations with an occasion for it.
        passed: How often the case is passed.
    """

    rule: str
    shown: Arms
    passed: Arms


class Measurements(Record):
    """What a model does on held-out content.

    Attributes:
        capabilities: Share of cases passed under the policy alone, by kind of case.
        with_rules: Share of cases passed with all rules stated, by kind of case.
        candidates: Share of cases passed under the policy alone and under each candidate's instruction.
        habits: How often the behavior of a rule shows under the policy alone and under each candidate.
    """

    capabilities: dict[str, Share]
    with_rules: dict[str, Share]
    rules: tuple[RuleEffect, ...]
    candidates: dict[str, Share]
    habits: dict[str, dict[str, Share]]


POLICY_ALONE = "policy alone"
"""The name of the prompt without an instruction."""

Arm = tuple[str, str]
"""A kind and a name: `capability` or `with_rules` and a family, `seen` or `unseen` and a rule, or `candidate`
and a candidate."""


@dataclass(frozen=True)
class _Job:
    case: Case
    instruction: str
    seed: int


async def measure(
    model: Model,
    world: World,
    candidates: Mapping[str, str],
    *,
    cases: int = CASES,
    on_progress: OnProgress = lambda done, total: None,
) -> Measurements:
    """Measure a model.

    Args:
        model: The model.
        world: The support world.
        candidates: Instructions to compare, by candidate.
        cases: Held-out cases of a capability, and of an arm of a rule.
        on_progress: Called after each simulation.

    Raises:
        InfrastructureError: a simulation was lost, so nothing is reported.
    """
    arms = dict(_arms(cases, candidates))
    total = sum(map(len, arms.values()))
    done = 0
    slots = asyncio.Semaphore(AT_ONCE)

    async def simulate(job: _Job) -> Simulation:
        nonlocal done
        async with slots:
            prompt = system_prompt(world.policy(), job.instruction)
            agent = ChatAgent(model, prompt, world.tools("assistant"), trial=job.seed)
            user = ScriptedUser(job.case.script, seed=job.seed)
            simulation = await converse(job.case.task, world, agent, user, limits=LIMITS)
        if simulation.termination_reason == TerminationReason.INFRASTRUCTURE_ERROR:
            cause = simulation.error_text or "no reason is known"
            raise InfrastructureError(f"case {job.case.id!r} was lost, and with it the card: {cause}")
        done += 1
        on_progress(done, total)
        return simulation

    async def simulate_all(jobs: Sequence[_Job]) -> list[Simulation]:
        return await asyncio.gather(*map(simulate, jobs))

    simulations = await asyncio.gather(*map(simulate_all, arms.values()))
    played = {
        arm: list(zip(arms[arm], made, strict=True)) for arm, made in zip(arms, simulations, strict=True)
    }

    def share(holds: Callable[[Case, Simulation], bool | None], *names: Arm) -> Share:
        pairs = [pair for name in names for pair in played[name]]
        answers = [answer for job, made in pairs if (answer := holds(job.case, made)) is not None]
        return Share(hits=sum(answers), total=len(answers))

    def passes(case: Case, simulation: Simulation) -> bool | None:
        reward = score(simulation, case.task, world).reward
        return None if reward is None else reward >= SUCCESS

    def follows(rule: str) -> Callable[[Case, Simulation], bool | None]:
        return lambda case, simulation: BEHAVIORS[rule].followed(case, simulation.trace)

    def alone(families: Iterable[str]) -> list[Arm]:
        return [("capability", family) for family in families]

    def effect(rule: str) -> RuleEffect:
        without = alone(BEHAVIORS[rule].families)
        shown, passed = (
            Arms(
                without=share(holds, *without),
                seen=share(holds, ("seen", rule)),
                unseen=share(holds, ("unseen", rule)),
            )
            for holds in (follows(rule), passes)
        )
        return RuleEffect(rule=rule, shown=shown, passed=passed)

    prompts = {POLICY_ALONE: alone(FAMILIES), **{name: [("candidate", name)] for name in candidates}}
    return Measurements(
        capabilities={name: share(passes, ("capability", name)) for name in FAMILIES},
        with_rules={name: share(passes, ("with_rules", name)) for name in FAMILIES},
        rules=tuple(map(effect, rulebook().rules)),
        candidates={name: share(passes, *names) for name, names in prompts.items()},
        habits={
            rule: {name: share(follows(rule), *names) for name, names in prompts.items()}
            for rule in rulebook().rules
        },
    )


def _arms(cases: int, candidates: Mapping[str, str]) -> Iterator[tuple[Arm, list[_Job]]]:
    draws = random.Random("card")

    def all_rules() -> str:
        return draw_instruction(draw_rules(draws, ALL_RULES, without=("at_once",)), draws)

    for family in FAMILIES:
        yield ("capability", family), _jobs(f"card/{family}", cases, (family,), lambda: "")
        yield ("with_rules", family), _jobs(f"card/{family}", cases, (family,), all_rules)
    for name, rule in rulebook().rules.items():
        for arm, wordings in (("seen", rule.wordings), ("unseen", rule.unseen)):
            wording = partial(draws.choice, wordings)
            yield (arm, name), _jobs(f"card/{name}", cases, BEHAVIORS[name].families, wording)
    for name, instruction in candidates.items():
        yield ("candidate", name), _jobs("card/candidates", 2 * cases, (), partial(str, instruction))


def _jobs(seed: str, count: int, families: Sequence[str], instruction: Callable[[], str]) -> list[_Job]:
    cases = generate(seed, count, Content.HELDOUT, families)
    return [_Job(case, instruction(), place) for place, case in enumerate(cases)]
