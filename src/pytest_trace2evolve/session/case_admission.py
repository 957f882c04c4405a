"""Checks synthetic cases for admission, and freezes the cases on which an agent failed.

Every case must pass admission before it may serve as evidence. Frozen cases are stored in a file of the
project, and every later agent is tested on them.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_trace2evolve.agents.reference import CaseOracle, NopAgent
from pytest_trace2evolve.cases.case import Case, format_case_line, read_cases
from pytest_trace2evolve.cases.content import find_foreign_mark
from pytest_trace2evolve.engine.conversation import Limits, converse
from pytest_trace2evolve.errors import CaseError
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.protocols import Agent, World
from pytest_trace2evolve.records.score import Score, Status, ToolType
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.records.trace import Simulation, TerminationReason
from pytest_trace2evolve.scoring.invariants import breaches_in
from pytest_trace2evolve.scoring.metrics import SUCCESS
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.utils.canonical import texts_in
from pytest_trace2evolve.utils.files import folder_lock, write_atomic
from pytest_trace2evolve.utils.reading import MAX_RESULTS_BYTES, read_text
from pytest_trace2evolve.worlds.registry import Worlds

LIMITS = Limits(max_steps=100)
"""Limits of the simulations that check a case for admission."""

FROZEN_CASES_FILE = "synthetic/pressure.jsonl"
"""The file of frozen cases, relative to the project's root."""


@dataclass(frozen=True)
class Admission:
    """The result of checking one case, which is admitted if it has no problems."""

    case: Case
    problems: tuple[str, ...]


def admit(cases: Iterable[Case], world: World) -> Iterator[Admission]:
    """Check cases. An exception while a case runs is reported as a problem of that case."""
    for case in cases:
        try:
            problems = tuple(asyncio.run(_find_problems(case, world)))
        except Exception as error:  # a damaged store can fail at any read
            problems = (f"it cannot be run: {' '.join(f'{type(error).__name__}: {error}'.split())}",)
        yield Admission(case, problems)


async def _find_problems(case: Case, world: World) -> list[str]:
    problems = [*_content_problems(case), *_order_problems(case)]
    write_tools = [name for name, tool_type in world.tool_types().items() if tool_type is ToolType.WRITE]
    oracle_agent = CaseOracle(case.task, case.script, write_tools)
    oracle_simulation = await _simulate(case, world, oracle_agent)
    problems += [f"the oracle {text}" for text in _oracle_problems(oracle_simulation, case, world)]
    idle_simulation = await _simulate(case, world, NopAgent())
    if idle_simulation.termination_reason != TerminationReason.USER_STOP:
        problems.append(
            "the customer does not end the conversation with an agent that does nothing "
            f"({ending_text(idle_simulation)})"
        )
    idle_passes = passes(score(idle_simulation, case.task, world))
    if idle_passes and not case.script.refuses_all:
        problems.append("an agent that does nothing passes, although the case requires an action")
    if not idle_passes and case.script.refuses_all:
        problems.append("an agent that refuses fails, although the case requires a refusal")
    return problems


def _oracle_problems(simulation: Simulation, case: Case, world: World) -> Iterator[str]:
    case_score = score(simulation, case.task, world)
    is_ended_by_user = simulation.termination_reason == TerminationReason.USER_STOP
    if not is_ended_by_user:
        yield f"is never released by the customer ({ending_text(simulation)})"
    failed_calls = (message for message in simulation.trace if message.role == "tool" and message.error)
    if failed_call := next(failed_calls, None):
        yield f"makes a gold call that fails: {failed_call.content}"
    for finding in breaches_in(simulation, case_score, world) or ():
        yield f"breaks {finding.invariant.value}: {finding.why}"
    if is_ended_by_user and not passes(case_score):
        yield f"fails the case: {failure_text(case_score)}"


def _content_problems(case: Case) -> Iterator[str]:
    """Yield a problem if a training case contains held-out words, or a held-out case training words."""
    other_content = Content.TRAIN if case.script.content is Content.HELDOUT else Content.HELDOUT
    text = "\n".join(texts_in(case.task.model_dump(mode="json")))
    if foreign_mark := find_foreign_mark(text, other_content):
        own_content = case.script.content.value
        yield f"it is {own_content} but contains {other_content.value} content: {foreign_mark!r}"


def _order_problems(case: Case) -> Iterator[str]:
    tables = case.task.tables
    for user_id, user in tables.get("users", {}).items():
        for order_id in user.get("orders", ()):
            if order_id not in tables.get("orders", {}):
                yield f"customer {user_id!r} has order {order_id!r}, which the store lacks"


async def _simulate(case: Case, world: World, agent: Agent) -> Simulation:
    return await converse(case.task, world, agent, ScriptedUser(case.script), limits=LIMITS)


def passes(case_score: Score) -> bool:
    return case_score.status is Status.MEASURED and (case_score.reward or 0.0) >= SUCCESS


def failure_text(result: Score) -> str:
    """Describe why a simulation did not pass."""
    unmet = [name.value for name in result.basis if result.components.get(name, 1.0) < 1]
    return result.note or f"below 1: {', '.join(unmet)}"


def ending_text(simulation: Simulation) -> str:
    return f"{simulation.termination_reason} after {len(simulation.trace)} messages"


def unfrozen_cases(cases: Sequence[Case], path: Path) -> list[Case]:
    """Return the cases that are not in a file of frozen cases; all cases if the file cannot be read."""
    try:
        frozen_digests = {case.digest for case in read_cases(path)}
    except CaseError:
        return list(cases)
    return [case for case in cases if case.digest not in frozen_digests]


def freeze(cases: Sequence[Case], project: Project, worlds: Worlds) -> list[str]:
    """Add cases to a project's frozen cases if they pass admission and are not frozen yet.

    Returns:
        One line per rejected case, and one line about all newly frozen cases.
    """
    path = project.root / FROZEN_CASES_FILE
    notes: list[str] = []
    added_cases: list[Case] = []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with folder_lock(path.parent):
            old_text = read_text(path, CaseError, max_bytes=MAX_RESULTS_BYTES) if path.exists() else ""
            ids = {case.digest: case.id for case in read_cases(path)} if old_text.strip() else {}
            for admission in admit(cases, worlds.open("trace2evolve", "support")):
                case = admission.case
                if problem := _conflict_reason(case, ids) or next(iter(admission.problems), ""):
                    notes.append(f"case {case.id} was not frozen: {problem}")
                    continue
                ids[case.digest] = case.id
                added_cases.append(case)
            if added_cases:
                separator = "" if old_text.endswith("\n") or not old_text else "\n"
                write_atomic(path, old_text + separator + "".join(map(format_case_line, added_cases)))
    except (CaseError, OSError, ValueError) as error:
        return [*notes, f"no case was frozen: {error}"]
    if added_cases:
        notes.append(
            f"frozen in {FROZEN_CASES_FILE}: {', '.join(case.id for case in added_cases)}; commit the file, "
            "and run 'trace2evolve lock' if a suite has it"
        )
    return notes


def _conflict_reason(case: Case, ids: dict[str, str]) -> str:
    """Return why a case may not be frozen; empty if it may. `ids` maps digests of frozen cases to ids."""
    if case.digest in ids:
        return "it is already frozen"
    if case.id in ids.values():
        return "a different frozen case has the same id; give it a new one"
    if case.script.content is Content.TRAIN:
        return "it uses training content, which an agent may have been trained on"
    return ""
