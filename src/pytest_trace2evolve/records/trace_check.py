"""The project's own checks on traces: their declaration by `check` and `judged_check`, and their outcomes.

The `conftest.py` of a project imports this module, so it imports only `errors` and the standard library.
"""

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar, overload

from pytest_trace2evolve.errors import ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])

REGISTRY = "__t2e_checks__"
"""The name of the list in a module's namespace that holds the checks declared in the module."""

ARGUMENTS = ("trace", "database")
"""The arguments that a check may take, by name."""

MAX_RUBRIC = 4_000
"""The maximum number of characters of a rubric."""

CHECK_TIMEOUT = 60.0
"""The default number of seconds that a check's function has for one simulation."""

_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


class CheckOutcome(StrEnum):
    """The outcome of a check on one simulation.

    `ERROR` means that the check has no result: it raised an exception or returned an invalid value, or the
    judge did not answer. Such a simulation counts as missing for this check.
    """

    KEPT = "kept"
    BROKEN = "broken"
    NOT_APPLICABLE = "not_applicable"
    ERROR = "error"


@dataclass(frozen=True)
class TraceCheck:
    """One of the project's own checks, which a function or a judge carries out on every simulation.

    Attributes:
        id: The name of the check in evidence, reports and policies.
        kind: The subject of the check, such as `consent`.
        function: The function that checks a trace; None for a judged check.
        rubric: The statement that a judge grades; empty for a function.
        location: The file and line of the declaration.
        timeout: The seconds that the function has for one simulation.
    """

    id: str
    kind: str
    function: Callable[..., Any] | None = None
    rubric: str = ""
    location: str = ""
    timeout: float = CHECK_TIMEOUT

    @property
    def is_judged(self) -> bool:
        """Whether a judge carries out the check."""
        return self.function is None

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments that the check's function takes."""
        return () if self.function is None else tuple(inspect.signature(self.function).parameters)


@overload
def check(function: Function, /) -> Function: ...
@overload
def check(*, kind: str = "", id: str | None = None) -> Callable[[Function], Function]: ...
def check(
    function: Function | None = None,
    /,
    *,
    kind: str = "",
    id: str | None = None,
) -> Function | Callable[[Function], Function]:
    """Declare a function as a check that every simulation is measured by.

    The function takes `trace` (a `Trace`), `database` (the end state as dictionaries and lists), or both. It
    returns True if the simulation keeps the check, False or the reason as text if it breaks the check, and
    None if the check does not apply to the simulation.

    Args:
        kind: The subject of the check, such as `consent`; by default the id.
        id: The check's name; by default the function's name.

    Raises:
        ConfigError: the id or the kind is invalid, or the function is async or takes other arguments.
    """

    def declare(declared_function: Function) -> Function:
        if not isinstance(declared_function, FunctionType):
            raise ConfigError(
                f"@check was applied to a {type(declared_function).__name__}; apply it to a function"
            )
        code = declared_function.__code__
        trace_check = _make_check(
            id or declared_function.__name__,
            kind,
            location=f"{code.co_filename}:{code.co_firstlineno}",
            function=declared_function,
        )
        _check_signature(trace_check)
        _register(trace_check, declared_function.__globals__)
        declared_function.t2e_check = trace_check  # type: ignore[attr-defined]  # read by `checks_in`
        return declared_function

    return declare if function is None else declare(function)


def judged_check(id: str, *, rubric: str, kind: str = "") -> TraceCheck:
    """Declare a check that the judge model (`--t2e-judge`) carries out on every simulation.

    Call it at the top level of a module. The check decides nothing until `trace2evolve judge agreement` has
    measured how well this judge agrees with hand labels.

    Args:
        id: The check's name.
        rubric: A statement about the agent that is true if a simulation keeps the check.
        kind: The subject of the check, such as `tone`; by default the id.

    Raises:
        ConfigError: the id, the kind or the rubric is invalid.
    """
    frame = sys._getframe(1)
    location = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    if not isinstance(rubric, str) or not rubric.strip() or len(rubric) > MAX_RUBRIC:
        raise ConfigError(
            f"{location}: judged check {id!r}: the rubric must be a text of 1 to {MAX_RUBRIC:,} characters"
        )
    trace_check = _make_check(id, kind, location=location, rubric=" ".join(rubric.split()))
    _register(trace_check, frame.f_globals)
    return trace_check


def _make_check(
    name: str, kind: str, *, location: str, function: Callable[..., Any] | None = None, rubric: str = ""
) -> TraceCheck:
    for label, value in (("id", name), ("kind", kind or name)):
        if not isinstance(value, str) or not _ID.fullmatch(value):
            raise ConfigError(
                f"{location}: check {label} {value!r}: must be up to 64 letters, digits, '_' and '-', and "
                "start with a letter or '_'"
            )
    return TraceCheck(name, kind or name, function, rubric, location)


def _check_signature(trace_check: TraceCheck) -> None:
    """Check that a function takes only the arguments of a check, and is not asynchronous."""
    assert trace_check.function is not None
    if inspect.iscoroutinefunction(trace_check.function) or inspect.isasyncgenfunction(trace_check.function):
        raise ConfigError(f"{trace_check.location}: check {trace_check.id!r} is async; write it as plain def")
    for parameter in inspect.signature(trace_check.function).parameters.values():
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if not is_named or parameter.name not in ARGUMENTS:
            raise ConfigError(
                f"{trace_check.location}: check {trace_check.id!r} takes {str(parameter)!r}; a check takes "
                "'trace', 'database', or both"
            )


def _register(trace_check: TraceCheck, namespace: dict[str, Any]) -> None:
    """Add a check to its module's list, in place of an earlier check with the same id and location."""
    checks: list[TraceCheck] = namespace.setdefault(REGISTRY, [])
    key = trace_check.id, trace_check.location
    checks[:] = [other for other in checks if (other.id, other.location) != key]
    checks.append(trace_check)


def checks_in(module: ModuleType) -> list[TraceCheck]:
    """Return the checks that a module declares, and then those that it imports."""
    namespace = dict(vars(module))
    checks = list(namespace.get(REGISTRY, ()))
    for value in namespace.values():
        trace_check = vars(value).get("t2e_check") if isinstance(value, FunctionType) else value
        if isinstance(trace_check, TraceCheck) and trace_check not in checks:
            checks.append(trace_check)
    return checks


def short_location(location: str, root: Path) -> str:
    """Shorten the file of a location to its path in the project."""
    path, _, line = location.rpartition(":")
    file = Path(path)
    return f"{file.relative_to(root).as_posix()}:{line}" if path and file.is_relative_to(root) else location
