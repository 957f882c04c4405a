"""Admission of synthetic cases, and freezing of the cases that broke an agent.

Every case must pass admission before it may serve as evidence. Frozen cases are stored in a file of the
project, and every later agent is tested on them.
"""

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_trace2evolve.agents.reference import CaseOracle, NopAgent
from pytest_trace2evolve.cases.case import Case, case_line, case_of, read_cases
from pytest_trace2evolve.cases.content import find_foreign_mark
from pytest_trace2evolve.engine.conversation import Limits, converse
from pytest_trace2evolve.errors import CaseError, SuiteError
from pytest_trace2evolve.project.lock import LOCK_NAME
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.protocols import Agent, World, rules_of
from pytest_trace2evolve.records.score import Score, Status, ToolType
from pytest_trace2evolve.records.task import Content, Task
from pytest_trace2evolve.records.trace import Simulation, TerminationReason
from pytest_trace2evolve.scoring.invariants import breaches_in
from pytest_trace2evolve.scoring.metrics import SUCCESS
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.utils.canonical import texts_in
from pytest_trace2evolve.utils.files import alone_in, write_atomic
from pytest_trace2evolve.utils.reading import RESULTS, read_text
from pytest_trace2evolve.worlds.registry import Worlds

LIMITS = Limits(max_steps=100)
"""Limits of the simulations that check a case for admission."""

FROZEN = "synthetic/pressure.jsonl"
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
            problems = tuple(asyncio.run(_problems(case, world)))
        except Exception as error:  # a damaged store can fail at any read
            problems = (f"it cannot be run: {' '.join(f'{type(error).__name__}: {error}'.split())}",)
        yield Admission(case, problems)


async def _problems(case: Case, world: World) -> list[str]:
    problems = [*_format_problems(case), *_content_problems(case), *_missing_orders(case)]
    writes = [name for name, kind in world.tool_types().items() if kind is ToolType.WRITE]
    expert = CaseOracle(case.task, case.script, writes)
    oracle = await _simulate(case, world, expert)
    problems += [f"the oracle {text}" for text in _shortcomings(oracle, case, world)]
    if _contents(await _simulate(case, world, expert)) != _contents(oracle):
        problems.append("the same seed gives another conversation")
    idle = await _simulate(case, world, NopAgent())
    if idle.termination_reason != TerminationReason.USER_STOP:
        problems.append(f"the customer does not end the talk with an agent that does nothing ({_end(idle)})")
    passes = _passes(score(idle, case.task, world))
    if passes and not case.script.refuses_all:
        problems.append("an agent that does nothing passes, though there is something to do")
    if not passes and case.script.refuses_all:
        problems.append("an agent that refuses fails, though refusing is right")
    return problems


def _shortcomings(simulation: Simulation, case: Case, world: World) -> Iterator[str]:
    result = score(simulation, case.task, world)
    ended = simulation.termination_reason == TerminationReason.USER_STOP
    if not ended:
        yield f"is not let go by the customer ({_end(simulation)})"
    errors = (message for message in simulation.trace if message.role == "tool" and message.error)
    if failed := next(errors, None):
        yield f"performs a gold action that fails: {failed.content}"
    for finding in breaches_in(simulation, result, rules_of(world)) or ():
        yield f"breaks {finding.invariant.value}: {finding.why}"
    if ended and not _passes(result):
        below = [name.value for name in result.basis if result.components.get(name, 1.0) < 1]
        yield f"fails the case: {result.note or 'below 1: ' + ', '.join(below)}"


def _format_problems(case: Case) -> Iterator[str]:
    text = json.dumps(case.task.model_dump(mode="json"))
    again = case_of(Task.model_validate(json.loads(text)))
    if again.task != case.task or again.script != case.script:
        yield "it does not survive tau2's format"


def _content_problems(case: Case) -> Iterator[str]:
    """Yield a problem if a case has words of the other content; training and held-out content share none."""
    other = Content.TRAIN if case.script.content is Content.HELDOUT else Content.HELDOUT
    text = "\n".join(texts_in(case.task.model_dump(mode="json")))
    if mark := find_foreign_mark(text, other):
        yield f"it is {case.script.content.value} and holds {other.value} content: {mark!r}"


def _missing_orders(case: Case) -> Iterator[str]:
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


def _contents(simulation: Simulation) -> list[object]:
    return [
        (message.role, message.content, [(call.name, call.arguments) for call in message.tool_calls or ()])
        for message in simulation.trace
    ]


def unfrozen(cases: Sequence[Case], path: Path) -> list[Case]:
    """The cases that are not in a file of frozen cases; all cases if the file cannot be read."""
    try:
        frozen = {case.digest for case in read_cases(path)}
    except CaseError:
        return list(cases)
    return [case for case in cases if case.digest not in frozen]


def freeze(cases: Sequence[Case], project: Project, worlds: Worlds) -> list[str]:
    """Add cases to a project's frozen cases if they pass admission and are not frozen yet.

    Returns:
        One line per rejected case, and one line about all newly frozen cases.
    """
    path = project.root / FROZEN
    notes: list[str] = []
    added: list[Case] = []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone_in(path.parent):
            before = read_text(path, CaseError, limit=RESULTS) if path.exists() else ""
            ids = {case.digest: case.id for case in read_cases(path)} if before.strip() else {}
            for admission in admit(cases, worlds.open("trace2evolve", "support")):
                case = admission.case
                if problem := _conflict(case, ids) or next(iter(admission.problems), ""):
                    notes.append(f"case {case.id} was not frozen: {problem}")
                    continue
                ids[case.digest] = case.id
                added.append(case)
            if added:
                gap = "" if before.endswith("\n") or not before else "\n"
                write_atomic(path, before + gap + "".join(map(case_line, added)))
    except (CaseError, OSError, ValueError) as error:
        return [*notes, f"no case was frozen: {error}"]
    if added:
        notes.append(f"frozen in {FROZEN}: {', '.join(case.id for case in added)}; {_next_step(project)}")
    return notes


def _conflict(case: Case, ids: dict[str, str]) -> str:
    """The reason why a case may not be frozen, or empty; `ids` maps digests of frozen cases to ids."""
    if case.digest in ids:
        return "it is there already"
    if case.id in ids.values():
        return "another case there has its id; give it a new one"
    if case.script.content is Content.TRAIN:
        return "it is made of training content, on which an agent may have been trained"
    return ""


def _next_step(project: Project) -> str:
    """The user's next step after freezing, which includes a new lock if a suite uses the file."""
    for name in project.suite_names:
        try:
            suite = project.suite(name)
        except SuiteError:
            continue
        if any(spec.cases == FROZEN for spec in suite.case_splits.values()):
            return f"run 'trace2evolve lock' and commit the file and {LOCK_NAME}"
    return "commit the file"
