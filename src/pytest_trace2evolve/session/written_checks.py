"""Checks written tasks against their world: an agent can solve each task, but not by doing nothing."""

import asyncio
import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_trace2evolve.agents.reference import NopAgent, OracleAgent
from pytest_trace2evolve.cases.written import WrittenTask
from pytest_trace2evolve.engine.conversation import converse
from pytest_trace2evolve.errors import (
    CaseError,
    SuiteError,
    Trace2EvolveError,
    WorldError,
    shorten,
)
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.failure import ABSENT, Difference
from pytest_trace2evolve.records.protocols import Agent, World
from pytest_trace2evolve.records.score import Score, Status
from pytest_trace2evolve.records.task import RewardBasis, SlotScript, Task, slot_script_of
from pytest_trace2evolve.records.trace import Simulation, TerminationReason
from pytest_trace2evolve.scoring.reward import open_session, score
from pytest_trace2evolve.session.call_checks import call_problems, missing_arguments, tools_of
from pytest_trace2evolve.session.case_admission import LIMITS, ending_text, failure_text, passes
from pytest_trace2evolve.users.slots import SlotUser
from pytest_trace2evolve.utils.files import real_path
from pytest_trace2evolve.utils.import_path import is_import_path
from pytest_trace2evolve.utils.reading import read_lines
from pytest_trace2evolve.worlds.plain import PlainSession
from pytest_trace2evolve.worlds.registry import Worlds


@dataclass(frozen=True)
class TaskCheck:
    """The result of checking one written task, which is admitted if it has no problems."""

    task: WrittenTask
    problems: tuple[str, ...]


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


def check_written_tasks(tasks: Iterable[WrittenTask], world: World) -> Iterator[TaskCheck]:
    """Check tasks. An exception while a task runs is reported as a problem of that task."""
    for task in tasks:
        try:
            problems = tuple(dict.fromkeys(_find_problems(task, world)))
        except Exception as error:  # from the project's own tools
            text = " ".join(f"{error}".split())
            kind = "" if isinstance(error, Trace2EvolveError) else f"{type(error).__name__}: "
            problems = (f"it cannot be run: {kind}{text}",)
        yield TaskCheck(task, problems)


def _find_problems(written_task: WrittenTask, world: World) -> Iterator[str]:
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
        yield from _oracle_problems(unjudged_task, world)
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
        if not written_task.expect.calls or expected is None or not isinstance(session, PlainSession):
            return
        if differences := session.data_differences(expected):
            yield f"data: after the expected calls, {_describe(differences[0])}; correct one of the two"


def _describe(difference: Difference) -> str:
    """Describe a difference with its place and both values."""
    place = ".".join(map(str, difference.path)) or "the database"
    expected, actual = (
        "" if value is ABSENT else shorten(json.dumps(value, ensure_ascii=False, default=str), 80)
        for value in (difference.expected, difference.actual)
    )
    if not actual:
        return f"{place} is missing, expected {expected}"
    return f"{place} is {actual}, expected {expected or 'nothing'}"


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


def _oracle_problems(task: Task, world: World) -> Iterator[str]:
    """Yield a problem if an agent that makes the expected calls and says the expected texts fails."""
    simulation, result = _simulate(task, world, OracleAgent(task))
    if simulation.termination_reason != TerminationReason.USER_STOP:
        ending = ending_text(simulation)
        yield f"the user does not end the conversation with an agent that does it all ({ending})"
    elif not passes(result):
        yield f"an agent that does all of it fails: {failure_text(result)}"


def _idle_problems(written_task: WrittenTask, task: Task, world: World) -> Iterator[str]:
    """Yield a problem if an agent that does nothing is scored wrongly."""
    simulation, result = _simulate(task, world, NopAgent())
    if simulation.termination_reason != TerminationReason.USER_STOP:
        yield f"the user does not end a conversation in which nothing is done ({ending_text(simulation)})"
        return
    if result.status is not Status.MEASURED:
        yield f"it is not measured: {result.note}"
    elif passes(result) and not written_task.expect.wants_nothing and not _only_judged(written_task):
        yield "an agent that does nothing passes; expect something that only the right agent does"
    elif not passes(result) and written_task.expect.wants_nothing:
        yield "an agent that does nothing fails, although nothing is expected"


def _only_judged(written_task: WrittenTask) -> bool:
    expect = written_task.expect
    return bool(expect.judged) and not (expect.data or expect.calls or expect.says)


def _without_judge(task: Task) -> Task:
    criteria = task.evaluation_criteria
    if criteria is None:
        return task
    basis = [part for part in criteria.basis if part is not RewardBasis.NL_ASSERTION]
    # A basis that would be empty means DB and COMMUNICATE, which a task without calls and texts passes.
    return task.model_copy(
        update={"evaluation_criteria": criteria.model_copy(update={"reward_basis": basis})}
    )


def _simulate(task: Task, world: World, agent: Agent) -> tuple[Simulation, Score]:
    script = slot_script_of(task) or SlotScript(goal="I need help.", opening="I need help.")
    user = SlotUser(script, history=len(task.history))
    simulation = asyncio.run(converse(task, world, agent, user, limits=LIMITS))
    return simulation, score(simulation, task, world)


def is_written(path: Path) -> bool:
    """Whether a file holds written tasks, and not synthetic cases."""
    if path.suffix in (".yaml", ".yml"):
        return True
    with contextlib.suppress(CaseError, ValueError, RecursionError):
        first: Any = json.loads(next((line for line in read_lines(path, CaseError) if line.strip()), ""))
        return isinstance(first, dict) and "user" in first
    return False
