"""Measures the pocket model on held-out content: what it can do, and what a rule in its prompt changes."""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from research.pocket.lessons import LIMITS

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


class RuleEffect(Record):
    """What a rule in the prompt changes: how often the behavior that it asks for shows.

    Attributes:
        without: Without the rule.
        seen: With it, in a wording of training.
        unseen: With it, in a wording that was never trained on.
    """

    rule: str
    without: Share
    seen: Share
    unseen: Share


class Measurements(Record):
    """What a model does on held-out content.

    Attributes:
        capabilities: Share of cases passed under the policy alone, by kind of case.
        candidates: Share of cases passed under a candidate's instruction, by candidate.
        habits: How often the behavior of a rule shows under each candidate, by rule and candidate.
    """

    capabilities: dict[str, Share]
    rules: tuple[RuleEffect, ...]
    candidates: dict[str, Share]
    habits: dict[str, dict[str, Share]]


Arm = tuple[str, str]
"""A kind and a name: `capability` and a family, a rule's arm and the rule, `candidate` and a candidate."""


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

    simulations = dict(zip(arms, await asyncio.gather(*map(simulate_all, arms.values())), strict=True))

    def share(kind: str, name: str, holds: Callable[[Case, Simulation], bool | None]) -> Share:
        pairs = zip(arms[kind, name], simulations[kind, name], strict=True)
        answers = [answer for job, played in pairs if (answer := holds(job.case, played)) is not None]
        return Share(hits=sum(answers), total=len(answers))

    def passes(case: Case, simulation: Simulation) -> bool | None:
        reward = score(simulation, case.task, world).reward
        return None if reward is None else reward >= SUCCESS

    def follows(rule: str) -> Callable[[Case, Simulation], bool | None]:
        return lambda case, simulation: BEHAVIORS[rule].followed(case, simulation.trace)

    return Measurements(
        capabilities={name: share("capability", name, passes) for name in FAMILIES},
        rules=tuple(
            RuleEffect(
                rule=rule, **{arm: share(arm, rule, follows(rule)) for arm in ("without", "seen", "unseen")}
            )
            for rule in rulebook().rules
        ),
        candidates={name: share("candidate", name, passes) for name in candidates},
        habits={
            rule: {name: share("candidate", name, follows(rule)) for name in candidates}
            for rule in rulebook().rules
        },
    )


def _arms(cases: int, candidates: Mapping[str, str]) -> Iterator[tuple[Arm, list[_Job]]]:
    draws = random.Random("card")
    for family in FAMILIES:
        yield ("capability", family), _jobs(f"card/{family}", cases, (family,), lambda: "")
    for name, rule in rulebook().rules.items():
        wordings: dict[str, Callable[[], str]] = {
            "without": lambda: "",
            "seen": partial(draws.choice, rule.wordings),
            "unseen": partial(draws.choice, rule.unseen),
        }
        for arm, wording in wordings.items():
            yield (arm, name), _jobs(f"card/{name}", cases, BEHAVIORS[name].families, wording)
    for name, instruction in candidates.items():
        yield ("candidate", name), _jobs("card/candidates", 4 * cases, (), partial(str, instruction))


def _jobs(seed: str, count: int, families: Sequence[str], instruction: Callable[[], str]) -> list[_Job]:
    cases = generate(seed, count, Content.HELDOUT, families)
    return [_Job(case, instruction(), place) for place, case in enumerate(cases)]
