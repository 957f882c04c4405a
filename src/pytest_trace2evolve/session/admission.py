"""Checks synthetic cases and written tasks for admission, and freezes the cases on which an agent failed.

An agent can solve each admitted case or task, but not by doing nothing. Frozen cases are stored in a file of
the project, and every later agent is tested on them.
"""

import asyncio
import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pytest_trace2evolve.agents.reference import CaseOracle, NopAgent, OracleAgent
from pytest_trace2evolve.cases.case import Case, format_case_line, read_cases
from pytest_trace2evolve.cases.content import find_foreign_mark
from pytest_trace2evolve.cases.written import ExpectedCall, WrittenTask, read_written_tasks
from pytest_trace2evolve.errors import (
    CaseError,
    SuiteError,
    Trace2EvolveError,
    WorldError,
    name_suggestion,
)
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.suites import Suite
from pytest_trace2evolve.records.protocols import Agent, ToolSchema, User, World
from pytest_trace2evolve.records.score import Score, Status, ToolType
from pytest_trace2evolve.records.task import Content, RewardBasis, SlotScript, Task, slot_script_of
from pytest_trace2evolve.records.trace import Simulation, TerminationReason
from pytest_trace2evolve.scoring.invariants import breaches_in
from pytest_trace2evolve.scoring.metrics import SUCCESS
from pytest_trace2evolve.scoring.reward import open_session, score
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.users.slots import SlotUser
from pytest_trace2evolve.utils.canonical import texts_in
from pytest_trace2evolve.utils.files import folder_lock, real_path, write_atomic
from pytest_trace2evolve.utils.import_path import is_import_path
from pytest_trace2evolve.utils.reading import MAX_RESULTS_BYTES, read_lines, read_text
from pytest_trace2evolve.worlds.plain import PlainSession
from pytest_trace2evolve.worlds.registry import Worlds

MAX_STEPS = 100
"""Maximum number of steps of the simulations that check a case or a task for admission."""

FROZEN_CASES_FILE = "synthetic/pressure.jsonl"
"""The file of frozen cases, relative to the project's root."""


TaskT = TypeVar("TaskT", Case, WrittenTask)

Admission = tuple[TaskT, tuple[str, ...]]
"""A case or a written task, and its problems; it is admitted if it has none."""


def admit(cases: Iterable[Case], world: World) -> Iterator[Admission[Case]]:
    """Check cases. An exception while a case runs is reported as a problem of that case."""
    for case in cases:
        try:
            problems = tuple(asyncio.run(_find_problems(case, world)))
        except Exception as error:  # a damaged store can fail at any read
            problems = (f"it cannot be run: {' '.join(f'{type(error).__name__}: {error}'.split())}",)
        yield case, problems


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
    return await _converse(case.task, world, agent, ScriptedUser(case.script))


async def _converse(task: Task, world: World, agent: Agent, user: User) -> Simulation:
    from pytest_trace2evolve.engine.conversation import Limits, converse  # which takes time to import

    return await converse(task, world, agent, user, limits=Limits(max_steps=MAX_STEPS))


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
            for case, problems in admit(cases, worlds.open("trace2evolve", "support")):
                if problem := _conflict_reason(case, ids) or next(iter(problems), ""):
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


# Written tasks.


def world_of_file(project: Project, path: Path, worlds: Worlds) -> World:
    """Return the world of the suite that uses a file of written tasks, or else the project's default world.

    Raises:
        CaseError: no suite uses the file, and the project has no default world, nor one world of its own.
    """
    own_worlds: dict[tuple[str, str], None] = {}
    for name in project.suite_names:
        try:
            suite = project.suite(name)
        except SuiteError:
            continue  # `trace2evolve check` reports it; this file may belong to another suite
        if any(
            real_path(project.root / spec.tasks) == real_path(path) for spec in suite.task_splits.values()
        ):
            return worlds.open(suite.provider, suite.domain)
        if is_import_path(suite.provider):
            own_worlds[suite.provider, suite.domain] = None
    world = project.settings.world
    if world is None and len(own_worlds) == 1:
        return worlds.open(*next(iter(own_worlds)))
    if world is None:
        raise CaseError(
            f"{path}: no suite has this file; name it in a suite with tasks = \"FILE\", or set 'world' in "
            "[tool.trace2evolve] of pyproject.toml"
        )
    return worlds.open(world, world.rpartition(":")[2])


def task_files(project: Project) -> list[Path]:
    """Return the files of written tasks that the project's suites name."""
    files = {
        project.root / spec.tasks: None
        for name in project.suite_names
        for spec in project.suite(name).task_splits.values()
    }
    return list(files)


def check_written_tasks(tasks: Iterable[WrittenTask], world: World) -> Iterator[Admission[WrittenTask]]:
    """Check tasks. An exception while a task runs is reported as a problem of that task."""
    for task in tasks:
        try:
            problems = tuple(dict.fromkeys(_task_problems(task, world)))
        except Exception as error:  # from the project's own tools
            text = " ".join(f"{error}".split())
            kind = "" if isinstance(error, Trace2EvolveError) else f"{type(error).__name__}: "
            problems = (f"it cannot be run: {kind}{text}",)
        yield task, problems


def _task_problems(written_task: WrittenTask, world: World) -> Iterator[str]:
    problems = [*call_problems(written_task, world)]
    yield from problems
    task = written_task.to_task()
    try:
        is_complete = _is_complete(written_task, world)
        data_problems = [*_data_problems(written_task, task, world, is_complete=is_complete)]
    except WorldError as error:
        yield str(error)
        return
    yield from data_problems
    # The judge is not asked, so judged statements do not count here.
    unjudged_task = _without_judge(task)
    if not problems and not data_problems and is_complete:
        yield from _task_oracle_problems(unjudged_task, world)
    yield from _idle_problems(written_task, unjudged_task, world)


def _data_problems(
    written_task: WrittenTask, task: Task, world: World, *, is_complete: bool
) -> Iterator[str]:
    """Yield the problems of a task's data, of its expected data, and of its calls, which are made here.

    Raises:
        WorldError: the data of the task do not fit the database.
    """
    expected = written_task.expect.data
    with contextlib.ExitStack() as stack:
        session = open_session(world, stack)
        session.initialise(task.initial_state)
        for message in task.history:
            for call in message.tool_calls or ():
                session.call(call.name, dict(call.arguments), "assistant")
        if expected and isinstance(session, PlainSession) and not session.data_differences(expected):
            yield "data: the database is as expected from the start; expect a change, or write data: {}"
        if not is_complete:
            return
        for action in task.actions:
            result = session.call(action.name, dict(action.arguments), "assistant")
            if result.error:
                yield f"calls: {action.name} fails: {result.content[:200]}"
                return


def _is_complete(written_task: WrittenTask, world: World) -> bool:
    """Whether the expected calls are complete, so that making them leads to the expected data."""
    calls = written_task.expect.calls
    if calls is None:
        return not written_task.expect.data  # data alone say what is right, but not which calls lead there
    tools = tools_of(world)
    return all(
        call.is_exact and call.name in tools and not missing_arguments(call, tools[call.name])
        for call in calls
    )


def _task_oracle_problems(task: Task, world: World) -> Iterator[str]:
    """Yield a problem if an agent that makes the expected calls and says the expected texts fails."""
    simulation, result = _simulate_task(task, world, OracleAgent(task))
    if simulation.termination_reason != TerminationReason.USER_STOP:
        ending = ending_text(simulation)
        yield f"the user does not end the conversation with an agent that does it all ({ending})"
    elif not passes(result):
        yield f"an agent that does all of it fails: {failure_text(result)}"


def _idle_problems(written_task: WrittenTask, task: Task, world: World) -> Iterator[str]:
    """Yield a problem if an agent that does nothing is scored wrongly."""
    simulation, result = _simulate_task(task, world, NopAgent())
    if simulation.termination_reason != TerminationReason.USER_STOP:
        yield f"the user does not end a conversation in which nothing is done ({ending_text(simulation)})"
        return
    expect = written_task.expect
    is_only_judged = expect.judged and not (expect.data or expect.calls or expect.says)
    if result.status is not Status.MEASURED:
        yield f"it is not measured: {result.note}"
    elif passes(result) and not expect.wants_nothing and not is_only_judged:
        yield "an agent that does nothing passes; expect something that only the right agent does"
    elif not passes(result) and expect.wants_nothing:
        yield "an agent that does nothing fails, although nothing is expected"


def _without_judge(task: Task) -> Task:
    criteria = task.evaluation_criteria
    if criteria is None:
        return task
    basis = [part for part in criteria.basis if part is not RewardBasis.NL_ASSERTION]
    # A basis that would be empty means DB and COMMUNICATE, which a task without calls and texts passes.
    return task.model_copy(
        update={"evaluation_criteria": criteria.model_copy(update={"reward_basis": basis})}
    )


def _simulate_task(task: Task, world: World, agent: Agent) -> tuple[Simulation, Score]:
    script = slot_script_of(task) or SlotScript(goal="I need help.", opening="I need help.")
    user = SlotUser(script, history=len(task.history))
    simulation = asyncio.run(_converse(task, world, agent, user))
    return simulation, score(simulation, task, world)


def is_written(path: Path) -> bool:
    """Whether a file holds written tasks, and not synthetic cases."""
    if path.suffix in (".yaml", ".yml"):
        return True
    with contextlib.suppress(CaseError, ValueError, RecursionError):
        first: Any = json.loads(next((line for line in read_lines(path, CaseError) if line.strip()), ""))
        return isinstance(first, dict) and "user" in first
    return False


def find_call_problems(project: Project, suite: Suite, worlds: Worlds) -> Iterator[tuple[Path, str]]:
    """Yield the problems of the calls that a suite's written tasks expect or forbid, with the tasks' file."""
    for path in dict.fromkeys(project.root / spec.tasks for spec in suite.task_splits.values()):
        world = worlds.open(suite.provider, suite.domain)
        for task in read_written_tasks(path):
            for problem in call_problems(task, world):
                yield path, f"task {task.id}: {problem}"


def call_problems(written_task: WrittenTask, world: World) -> Iterator[str]:
    expect, tools = written_task.expect, tools_of(world)
    for key, calls in (("calls", expect.calls or ()), ("not_calls", expect.not_calls)):
        for call in calls:
            if call.name not in tools:
                yield f"{key}: the agent has no tool {call.name!r}; {name_suggestion(call.name, tools)}"
            elif call.arguments is not None:
                has_known_end = expect.data is None and all(other.is_exact for other in calls)
                is_partial = key == "not_calls" or not has_known_end
                problem = _argument_problem(call, tools[call.name], world, is_partial=is_partial)
                if problem:
                    yield f"{key}: {call.name}: {problem}"


def _argument_problem(call: ExpectedCall, tool: ToolSchema, world: World, *, is_partial: bool) -> str:
    """Describe why a call's arguments cannot be right; empty if they can.

    Args:
        is_partial: Whether required arguments may be missing.
    """
    arguments = call.arguments or {}
    properties = tool.parameters.get("properties", {})
    for name in arguments:
        if name not in properties:
            return f"unknown argument {name!r}; {name_suggestion(name, properties)}"
    missing = missing_arguments(call, tool)
    if missing and not is_partial:
        return (
            f"argument {missing[0]!r} is missing, so the data after this call are not known; add it, write "
            f"{missing[0]}: {{$any: true}}, or expect data"
        )
    method = getattr(world, "methods", {}).get(call.name)
    if method is not None and not missing and call.is_exact:
        try:
            method.convert(arguments)
        except ValueError as error:
            return str(error)
    return ""


def tools_of(world: World) -> dict[str, ToolSchema]:
    return {tool.name: tool for tool in world.tools("assistant")}


def missing_arguments(call: ExpectedCall, tool: ToolSchema) -> list[str]:
    """Return the required arguments that a call lacks."""
    return [name for name in tool.parameters.get("required", ()) if name not in (call.arguments or {})]
