"""Checks that tools of a project's own worlds can be replayed, and that declared reads change nothing."""

import ast
import contextlib
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.scoring.reward import open_session

MAX_TASKS = 50
"""The maximum number of tasks whose expected calls are made."""

_REMEDY = "derive ids, times and choices from the database"

_SOURCES = frozenset(
    """
    uuid.uuid1 uuid.uuid4 datetime.now datetime.utcnow datetime.today date.today time.time time.time_ns
    random.random random.randint random.randrange random.choice random.choices random.sample random.shuffle
    random.uniform random.getrandbits secrets.token_hex secrets.token_urlsafe secrets.choice secrets.randbelow
    os.urandom
    """.split()  # noqa: SIM905 - a list of this length is unreadable
)
"""Functions whose result differs from call to call, with the module or class before them."""

_BARE_SOURCES = frozenset({"uuid1", "uuid4", "token_hex", "token_urlsafe", "urandom", "randint", "randrange"})
"""Functions of `_SOURCES` that have the same meaning without the module before them."""


@dataclass(frozen=True)
class ToolProblem:
    """A tool that scoring cannot replay, with the cause and the remedy in one line."""

    text: str
    is_certain: bool = True


def tool_problems(world: World, tasks: Iterable[Task]) -> Iterator[ToolProblem]:
    """Make the expected calls of tasks twice, and yield a problem for each tool that cannot be replayed.

    Also report each remaining tool whose source calls a function such as `uuid4`.
    """
    reported_tools: set[str] = set()
    for _, task in zip(range(MAX_TASKS), (task for task in tasks if task.actions), strict=False):
        for tool, text in _task_problems(world, task):
            if tool not in reported_tools:
                reported_tools.add(tool)
                yield ToolProblem(f"tool {tool!r} {text}")
    for tool, source in _random_sources(world):
        if tool not in reported_tools:
            reported_tools.add(tool)
            yield ToolProblem(
                f"tool {tool!r} calls {source}(), so a replay may give another database; {_REMEDY}",
                is_certain=False,
            )


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
                yield action.name, f"gives another database each time (task {task.id!r}); {_REMEDY}"
                return
            if results[0] != results[1]:
                yield action.name, f"gives another result each time (task {task.id!r}); {_REMEDY}"
                return
            if world.changes_state(action.name):
                without_reads.call(action.name, dict(action.arguments), action.requestor)
            elif is_comparable and not first.same_state(without_reads):
                problem = f"is declared as a read, but changed the database in task {task.id!r}"
                yield action.name, f"{problem}; remove it from 'reads'"
                return


def _random_sources(world: World) -> Iterator[tuple[str, str]]:
    """Yield the tools of a class that call a function with varying results, each with that function."""
    cls = getattr(world, "tools_class", None)
    for base in cls.__mro__[:-1] if inspect.isclass(cls) else ():
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):  # a class without source
            continue
        methods = [
            node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for method in methods:
            if world.has_tool(method.name) and (source := _random_call(method)):
                yield method.name, source


def _random_call(method: ast.AST) -> str:
    for node in ast.walk(method):
        if isinstance(node, ast.Call):
            name = ".".join(ast.unparse(node.func).split(".")[-2:])
            if name in _SOURCES or name in _BARE_SOURCES:
                return name
    return ""
