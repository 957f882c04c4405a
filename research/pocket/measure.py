"""Measuring the pocket model on held-out content: what it can, and what a rule in its prompt changes."""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pytest_trace2evolve.agents.chat import ChatAgent, system_prompt
from pytest_trace2evolve.cases.case import FAMILIES, Case, generate
from pytest_trace2evolve.cases.teacher import rulebook
from pytest_trace2evolve.engine.conversation import converse
from pytest_trace2evolve.errors import InfrastructureError
from pytest_trace2evolve.records.model_card import RuleEffect, Share
from pytest_trace2evolve.records.protocols import Model, World
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.records.trace import Simulation, TerminationReason
from pytest_trace2evolve.scoring.metrics import SUCCESS
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.users.scripted import ScriptedUser
from research.pocket.behaviour import BEHAVIOURS
from research.pocket.lessons import LIMITS

AT_ONCE = 48
"""Simulations at once."""

CASES = 60
"""Cases a capability, and an arm of a rule."""


@dataclass(frozen=True)
class Measured:
    """All that a card says of what a model does; candidates by their ids, capabilities by family.

    Attributes:
        habits: How often the behaviour of a rule shows under each candidate.
    """

    capabilities: Mapping[str, Share]
    rules: Sequence[RuleEffect]
    candidates: Mapping[str, Share]
    habits: Mapping[str, Mapping[str, Share]]


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
    told: Callable[[int, int], None] = lambda done, total: None,
) -> Measured:
    """Measure a model.

    Args:
        model: The model.
        world: The support world.
        candidates: Instructions to compare, by candidate.
        cases: Held-out cases a capability, and an arm of a rule.
        told: Hears how many simulations of how many are done.

    Raises:
        InfrastructureError: a simulation was lost: of the others alone nothing is said.
    """
    arms = dict(_arms(cases, candidates))
    total = sum(len(jobs) for jobs in arms.values())
    done = 0
    room = asyncio.Semaphore(AT_ONCE)

    async def simulated(job: _Job) -> Simulation:
        nonlocal done
        async with room:
            prompt = system_prompt(world.policy(), job.instruction)
            agent = ChatAgent(model, prompt, world.tools("assistant"), trial=job.seed)
            user = ScriptedUser(job.case.script, seed=job.seed)
            found = await converse(job.case.task, world, agent, user, limits=LIMITS)
        if found.termination_reason == TerminationReason.INFRASTRUCTURE_ERROR:
            raise InfrastructureError(
                f"case {job.case.id!r} was lost, and with it the card: "
                f"{found.trouble or 'no reason is known'}"
            )
        done += 1
        told(done, total)
        return found

    async def of(jobs: Sequence[_Job]) -> list[Simulation]:
        return await asyncio.gather(*map(simulated, jobs))

    found = dict(zip(arms, await asyncio.gather(*map(of, arms.values())), strict=True))

    def passes(case: Case, simulation: Simulation) -> bool | None:
        reward = score(simulation, case.task, world).reward
        return None if reward is None else reward >= SUCCESS

    return Measured(
        capabilities={
            name: _share(passes, arms["capability", name], found["capability", name]) for name in FAMILIES
        },
        rules=[
            RuleEffect(
                rule=rule,
                **{
                    arm: _share(partial(_shows, rule), arms[arm, rule], found[arm, rule])
                    for arm in ("without", "seen", "unseen")
                },
            )
            for rule in rulebook().rules
        ],
        candidates={
            name: _share(passes, arms["candidate", name], found["candidate", name]) for name in candidates
        },
        habits={
            rule: {
                name: _share(partial(_shows, rule), arms["candidate", name], found["candidate", name])
                for name in candidates
            }
            for rule in rulebook().rules
        },
    )


def _arms(cases: int, candidates: Mapping[str, str]) -> Iterator[tuple[tuple[str, str], list[_Job]]]:
    drawn = random.Random("card")
    for family in FAMILIES:
        yield ("capability", family), _jobs(f"card/{family}", cases, (family,), lambda: "")
    for name, rule in rulebook().rules.items():
        families = BEHAVIOURS[name].families
        wordings: dict[str, Callable[[], str]] = {
            "without": lambda: "",
            "seen": partial(drawn.choice, rule.wordings),
            "unseen": partial(drawn.choice, rule.unseen),
        }
        for arm, wording in wordings.items():
            yield (arm, name), _jobs(f"card/{name}", cases, families, wording)
    for name, instruction in candidates.items():
        yield ("candidate", name), _jobs("card/candidates", 4 * cases, (), partial(str, instruction))


def _jobs(seed: str, count: int, families: Sequence[str], instruction: Callable[[], str]) -> list[_Job]:
    made = generate(seed, count, Content.HELDOUT, families)
    return [_Job(case, instruction(), place) for place, case in enumerate(made)]


def _shows(rule: str, case: Case, simulation: Simulation) -> bool | None:
    return BEHAVIOURS[rule].kept(case, simulation.trace)


def _share(
    kept: Callable[[Case, Simulation], bool | None],
    jobs: Sequence[_Job],
    simulations: Sequence[Simulation],
) -> Share:
    answers = [kept(job.case, one) for job, one in zip(jobs, simulations, strict=True)]
    told = [answer for answer in answers if answer is not None]
    return Share(hits=sum(told), total=len(told))
