"""Detects rules of a world that can never match, and tools that scoring cannot replay.

A rule that never matches finds nothing, and no figure reveals it.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pytest_trace2evolve.errors import name_suggestion
from pytest_trace2evolve.records.protocols import ToolSchema, World
from pytest_trace2evolve.records.rules import Rules
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.scoring.reward import open_session

MAX_REPEATED_TASKS = 50
"""Maximum number of tasks whose gold actions are carried out twice."""


def rule_problems(rules: Rules, tools: Sequence[ToolSchema]) -> Iterator[str]:
    """Yield the problems of a world's rules that can never match with the agent's tools, a line each."""
    schemas = {tool.name: tool for tool in tools}
    yield from _check_tools(rules, schemas)
    yield from _check_arguments(rules, schemas)
    yield from _check_patterns(rules)


def _check_tools(rules: Rules, schemas: Mapping[str, ToolSchema]) -> Iterator[str]:
    tools_of_rule: dict[str, Iterable[str]] = {
        "identify": rules.identify,
        "reads": rules.reads,
        "writes": rules.writes,
    }
    for index, promise in enumerate(rules.promises):
        tools_of_rule[f"promises[{index}].tools"] = sorted(promise.tools)
    for rule, tools in tools_of_rule.items():
        for tool in tools:
            if tool not in schemas:
                hint = name_suggestion(tool, schemas)
                yield f"{rule}: the agent has no tool {tool!r}, so the rule never applies; {hint}"


def _rules_with_argument(rules: Rules) -> Iterator[tuple[str, str, str]]:
    """Yield each rule that identifies a record by an argument, with its tool and the argument."""
    for rule, tools in (("reads", rules.reads), ("writes", rules.writes)):
        for tool, declaration in tools.items():
            if declaration.argument:
                yield f"{rule}[{tool!r}]", tool, declaration.argument


def _check_arguments(rules: Rules, schemas: Mapping[str, ToolSchema]) -> Iterator[str]:
    for rule, tool, argument in _rules_with_argument(rules):
        schema = schemas[tool].parameters if tool in schemas else {}
        if tool not in schemas or schema.get("additionalProperties"):
            continue
        known_arguments = schema.get("properties") or {}
        if argument not in known_arguments:
            yield (
                f"{rule}: the tool has no argument {argument!r}, so the rule never applies; "
                f"{name_suggestion(argument, known_arguments)}"
            )


def _check_patterns(rules: Rules) -> Iterator[str]:
    """Yield the problems of patterns that are invalid or match the empty text."""
    for table, text in rules.ids.items():
        rule = f"ids[{table!r}]"
        try:
            pattern = re.compile(text)
        except re.error as error:
            yield f"{rule}: {text!r} is not a regular expression ({error}); correct it"
            continue
        if pattern.fullmatch(""):
            yield f"{rule}: {text!r} matches the empty text, so it finds no ids; require some character"


_REPLAY_REMEDY = "derive ids, times and choices from the database"


def tool_problems(world: World, tasks: Iterable[Task]) -> Iterator[str]:
    """Make the expected calls of tasks twice, and yield a problem for each tool that cannot be replayed."""
    reported_tools: set[str] = set()
    for _, task in zip(range(MAX_REPEATED_TASKS), (task for task in tasks if task.actions), strict=False):
        for tool, text in _task_problems(world, task):
            if tool not in reported_tools:
                reported_tools.add(tool)
                yield f"tool {tool!r} {text}"


def _task_problems(world: World, task: Task) -> Iterator[tuple[str, str]]:
    """Yield the first tool that the calls of a task show to be wrong, with the problem."""
    with contextlib.ExitStack() as stack:
        first, second, without_reads = (open_session(world, stack) for _ in range(3))
        for session in (first, second, without_reads):
            session.initialise(task.initial_state)
        is_comparable = getattr(first, "is_comparable", True)
        for action in task.actions:
            results = [
                session.call(action.name, dict(action.arguments), action.requestor)
                for session in (first, second)
            ]
            if is_comparable and not first.same_state(second):
                yield action.name, f"gives another database each time (task {task.id!r}); {_REPLAY_REMEDY}"
                return
            if results[0] != results[1]:
                yield action.name, f"gives another result each time (task {task.id!r}); {_REPLAY_REMEDY}"
                return
            if world.changes_state(action.name):
                without_reads.call(action.name, dict(action.arguments), action.requestor)
            elif is_comparable and not first.same_state(without_reads):
                problem = f"is declared as a read, but changed the database in task {task.id!r}"
                yield action.name, f"{problem}; remove it from 'reads'"
                return
