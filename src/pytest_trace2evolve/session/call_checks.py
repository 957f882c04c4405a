"""Checks the calls that written tasks expect or forbid against the tools of their world, without a run."""

from collections.abc import Iterator
from pathlib import Path

from pytest_trace2evolve.cases.written import ExpectedCall, WrittenTask, read_written_tasks
from pytest_trace2evolve.errors import name_suggestion
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.suites import Suite
from pytest_trace2evolve.records.protocols import ToolSchema, World
from pytest_trace2evolve.scoring.matchers import satisfies
from pytest_trace2evolve.worlds.plain_data import is_same
from pytest_trace2evolve.worlds.registry import Worlds


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
    for call in expect.calls or ():
        for forbidden in expect.not_calls:
            given = call.arguments or {}
            is_forbidden = all(
                name in given and satisfies(value, given[name], is_same)
                for name, value in (forbidden.arguments or {}).items()
            )
            if forbidden.name == call.name and is_forbidden:
                yield f"{call.name!r} is expected and forbidden; remove one of the two"


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
