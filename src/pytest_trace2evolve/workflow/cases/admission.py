"""Admission of synthetic cases: what a case must show before it may be evidence."""

import asyncio
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pytest_trace2evolve._canonical import texts_in
from pytest_trace2evolve.agents.case_oracle import CaseOracle
from pytest_trace2evolve.agents.nop import NopAgent
from pytest_trace2evolve.cases.case import Case, case_of
from pytest_trace2evolve.cases.content import foreign
from pytest_trace2evolve.gate.columns import SUCCESS
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Agent, World, rules_of
from pytest_trace2evolve.records.score import Score, Status, ToolType
from pytest_trace2evolve.records.script import Content
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation, TerminationReason
from pytest_trace2evolve.rollout.conversation import Limits, converse
from pytest_trace2evolve.scoring.invariants import found_in
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.users.scripted import ScriptedUser

LIMITS = Limits(max_steps=100)
"""Budgets of a simulation that admits a case."""


@dataclass(frozen=True)
class Admission:
    """What was found of one case; no problem admits it."""

    case: Case
    problems: tuple[str, ...]


def admit(cases: Iterable[Case], world: World) -> Iterator[Admission]:
    """Check cases one by one; what a case cannot be run for is a problem of that case."""
    for case in cases:
        try:
            problems = tuple(asyncio.run(_problems(case, world)))
        except Exception as error:
            # A damaged store fails wherever it is read; the next case must still be checked.
            problems = (f"it cannot be run: {' '.join(f'{type(error).__name__}: {error}'.split())}",)
        yield Admission(case, problems)


async def _problems(case: Case, world: World) -> list[str]:
    """Everything that speaks against a case, a phrase each."""
    found = [*_format_problems(case), *_content_problems(case), *_dangling(case)]
    writes = [name for name, kind in world.tool_types().items() if kind is ToolType.WRITE]
    expert = CaseOracle(case.task, case.script, writes)
    oracle = await _simulate(case, world, expert)
    found += [f"the oracle {text}" for text in _shortcomings(oracle, case, world)]
    if _said(await _simulate(case, world, expert)) != _said(oracle):
        found.append("the same seed gives another conversation")
    idle = await _simulate(case, world, NopAgent())
    if idle.termination_reason != TerminationReason.USER_STOP:
        found.append(f"the customer does not end the talk with an agent that does nothing ({_end(idle)})")
    passes = _passes(score(idle, case.task, world))
    if passes and not case.script.refuses_all:
        found.append("an agent that does nothing passes, though there is something to do")
    if not passes and case.script.refuses_all:
        found.append("an agent that refuses fails, though refusing is right")
    return found


def _shortcomings(simulation: Simulation, case: Case, world: World) -> Iterator[str]:
    result = score(simulation, case.task, world)
    if simulation.termination_reason != TerminationReason.USER_STOP:
        yield f"is not let go by the customer ({_end(simulation)})"
    failed = next((one for one in simulation.trace if one.role == "tool" and one.error), None)
    if failed is not None:
        yield f"performs a gold action that fails: {failed.content}"
    for one in found_in(simulation, result, rules_of(world)) or ():
        yield f"breaks {one.invariant.value}: {one.why}"
    if simulation.termination_reason == TerminationReason.USER_STOP and not _passes(result):
        below = [name.value for name in result.basis if result.components.get(name, 1.0) < 1]
        yield f"fails the case: {result.note or 'below 1: ' + ', '.join(below)}"


def _format_problems(case: Case) -> Iterator[str]:
    text = json.dumps(case.task.model_dump(mode="json"))
    again = case_of(Task.model_validate(json.loads(text)))
    if again.task != case.task or again.script != case.script:
        yield "it does not survive tau2's format"


def _content_problems(case: Case) -> Iterator[str]:
    """Words of the other content: what is trained on may hold nothing that decides, and the reverse."""
    other = Content.TRAIN if case.script.content is Content.HELDOUT else Content.HELDOUT
    text = "\n".join(texts_in(case.task.model_dump(mode="json")))
    if found := foreign(text, other):
        yield f"it is {case.script.content.value} and holds {other.value} content: {found!r}"


def _dangling(case: Case) -> Iterator[str]:
    """Orders that a customer's record lists and the store does not have."""
    tables = case.task.tables
    for user_id, user in tables.get("users", {}).items():
        for order_id in user.get("orders", ()):
            if order_id not in tables.get("orders", {}):
                yield f"customer {user_id!r} has order {order_id!r}, and the store has not"


async def _simulate(case: Case, world: World, agent: Agent) -> Simulation:
    return await converse(case.task, world, agent, ScriptedUser(case.script), limits=LIMITS)


def _passes(result: Score) -> bool:
    return result.status is Status.MEASURED and (result.reward or 0.0) >= SUCCESS


def _end(simulation: Simulation) -> str:
    return f"{simulation.termination_reason} after {len(simulation.trace)} messages"


def _said(simulation: Simulation) -> list[tuple[str, str | None, object]]:
    return [(one.role, one.content, _calls(one)) for one in simulation.trace]


def _calls(message: Message) -> list[tuple[str, dict[str, object]]]:
    return [(call.name, call.arguments) for call in message.tool_calls or []]
