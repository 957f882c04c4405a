"""Runs the project's own checks: their view of a trace, and the meaning of their results."""

import contextlib
import contextvars
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, overload

import pydantic_core

from pytest_trace2evolve.errors import JudgeError, Trace2EvolveError, WorldError
from pytest_trace2evolve.records.message import Message, Requestor, ToolCall
from pytest_trace2evolve.records.protocols import Judge, SupportsDatabases, World
from pytest_trace2evolve.records.score import JudgeUse
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.records.trace_check import CheckOutcome, TraceCheck
from pytest_trace2evolve.scoring.reward import calls_with_results, is_solo, open_session

MAX_REASON = 500
"""The maximum number of characters of a reason that is stored."""


@dataclass(frozen=True)
class Call:
    """A tool call in a trace.

    Attributes:
        name, arguments: The tool and the arguments of the call.
        index: The position of the message that makes the call.
        result: The tool's answer as text; None if the trace has none.
        error: Whether the tool raised.
    """

    name: str
    arguments: Mapping[str, Any]
    index: int
    result: str | None = None
    error: bool = False


class Trace(Sequence[Message]):
    """A read-only view of the messages of a simulation, in order."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self._messages = tuple(messages)

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        return self._messages[index]

    def __repr__(self) -> str:
        return f"Trace({len(self)} messages)"

    def calls(self, name: str | None = None, *, by: Requestor = "assistant") -> list[Call]:
        """The tool calls of the agent, or of the user, in order; only calls of the tool `name` if given."""
        found = []
        for index, call, position in calls_with_results(self._messages):
            if self._messages[index].role == by and name in (None, call.name):
                answer = None if position is None else self._messages[position]
                result, error = (
                    (None, False) if answer is None else (answer.content or "", bool(answer.error))
                )
                found.append(Call(call.name, call.arguments, index, result, error))
        return found

    def said(self, *texts: str, by: Literal["assistant", "user"] = "assistant") -> bool:
        """Whether a message of the agent, or of the user, contains any of the texts, ignoring case."""
        wanted = [text.casefold() for text in texts]
        return any(
            text in message.text.casefold()
            for message in self._messages
            if message.role == by and message.text is not None
            for text in wanted
        )

    def before(self, index: int) -> "Trace":
        """The messages before a position, such as `call.index`."""
        return Trace(self._messages[: max(index, 0)])


@dataclass(frozen=True)
class CheckResult:
    """The result of one check on one simulation.

    Attributes:
        reason: The reason why the check is broken or has no result.
        judge: The judge's model, tokens and cost; None if no judge was asked.
        cause: The reason why the check has no result, without texts that may quote the trace.
    """

    outcome: CheckOutcome
    reason: str = ""
    judge: JudgeUse | None = None
    cause: str = ""

    def to_json(self) -> dict[str, Any]:
        """The form in which a run's folder stores the result."""
        use = None if self.judge is None else self.judge.model_dump(mode="json")
        return {
            "outcome": self.outcome.value,
            **({"reason": self.reason} if self.reason else {}),
            **({} if use is None else {"judge": use}),
        }


def run_checks(
    checks: Iterable[TraceCheck],
    simulation: Simulation,
    task: Task,
    world: World,
    grade: "Callable[[TraceCheck, Sequence[Message]], CheckResult] | None" = None,
) -> dict[str, CheckResult]:
    """Run checks on a simulation.

    Args:
        grade: Asks the judge; if None, judged checks are left out.

    Returns:
        The results by id. A check that raises or returns an invalid value has the outcome `error`.
    """
    state = EndState(simulation, task, world)
    results = {}
    for check in checks:
        if check.is_judged:
            if grade is not None:
                results[check.id] = grade(check, simulation.trace)
        else:
            results[check.id] = run_check(check, simulation.trace, state)
    return results


def grade_with(judge: Judge, check: TraceCheck, trace: Sequence[Message]) -> CheckResult:
    """Ask a judge whether a simulation keeps a check."""
    try:
        answers, use = judge.judge([check.rubric], trace)
    except JudgeError as error:
        return CheckResult(CheckOutcome.ERROR, _shorten(str(error)), cause=_shorten(str(error)))
    outcome = CheckOutcome.KEPT if answers[0].met else CheckOutcome.BROKEN
    return CheckResult(outcome, _shorten(answers[0].note), use)


class EndState:
    """The databases at the end of a simulation, computed on first use.

    The trace's answered calls are replayed, including calls whose recorded result was an error.
    """

    def __init__(self, simulation: Simulation, task: Task, world: World) -> None:
        self._trace, self._task, self._world = simulation.trace, task, world
        self._json: bytes | None = None

    def database(self) -> Any:
        """A copy of the database as dictionaries and lists.

        If the user has a database of their own, both databases are under the keys `agent` and `user`.

        Raises:
            WorldError: the task's initial state does not fit the world.
            Trace2EvolveError: the world cannot show its databases.
        """
        if self._json is None:
            with contextlib.ExitStack() as stack:
                session = open_session(self._world, stack, solo=is_solo(self._trace))
                if not isinstance(session, SupportsDatabases):
                    raise Trace2EvolveError(
                        f"the world of provider {self._world.provider!r} cannot show its database: its "
                        "sessions have no method databases(); leave out the argument 'database'"
                    )
                session.initialise(self._task.initial_state)
                for call in _answered_calls(self._trace):
                    if self._world.has_tool(call.name) and self._world.changes_state(call.name):
                        session.call(call.name, deepcopy(call.arguments), call.requestor)
                session.sync()
                databases = session.databases()
                content = databases["agent"] if databases.keys() == {"agent"} else databases
                self._json = pydantic_core.to_json(content, fallback=str, inf_nan_mode="constants")
        return pydantic_core.from_json(self._json)


def _answered_calls(trace: Sequence[Message]) -> list[ToolCall]:
    """The tool calls that have a result, in the order of their results. The rest of the trace is ignored."""
    calls = {result: call for _, call, result in calls_with_results(trace) if result is not None}
    return [call for _, call in sorted(calls.items())]


def run_check(check: TraceCheck, trace: Sequence[Message], state: EndState) -> CheckResult:
    """Call the function of a check, with copies that it may change without an effect on other checks."""
    assert check.function is not None
    try:
        values = {
            name: Trace(message.model_copy(deep=True) for message in trace)
            if name == "trace"
            else state.database()
            for name in check.arguments
        }
        result = _call_in_thread(check, check.function, values)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # including `SystemExit` and pytest's outcome exceptions
        reason, cause = (
            _describe_error(check, error, with_message=with_message) for with_message in (True, False)
        )
        return CheckResult(CheckOutcome.ERROR, reason, cause=cause)
    return _read_result(check, result)


class _CheckTimeoutError(Trace2EvolveError):
    """A check's function did not return in time."""


_stuck_functions: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()
"""Functions that did not return in time. They are not called again, so that a run ends."""


def _call_in_thread(check: TraceCheck, function: Callable[..., Any], values: Mapping[str, Any]) -> object:
    """Call a check's function in a thread that the run does not wait for after the check's timeout.

    Raises:
        _CheckTimeoutError: the function did not return, now or for an earlier simulation of this process.
        BaseException: the function raised it.
    """
    problem = f"it did not return within {check.timeout:g} seconds (check_timeout in pyproject.toml)"
    if function in _stuck_functions:
        raise _CheckTimeoutError(f"{problem} for an earlier simulation")
    outcome: Future[object] = Future()
    context = contextvars.copy_context()

    def call() -> None:
        try:
            outcome.set_result(context.run(function, **values))
        except BaseException as error:  # the caller handles it
            outcome.set_exception(error)

    threading.Thread(target=call, name=f"trace2evolve-check-{check.id}", daemon=True).start()
    if not wait([outcome], check.timeout).done:
        _stuck_functions.add(function)
        raise _CheckTimeoutError(problem)
    return outcome.result()


def _read_result(check: TraceCheck, result: object) -> CheckResult:
    if result is None:
        return CheckResult(CheckOutcome.NOT_APPLICABLE)
    if result is True:
        return CheckResult(CheckOutcome.KEPT)
    if result is False:
        return CheckResult(CheckOutcome.BROKEN)
    if isinstance(result, str) and result.strip():
        return CheckResult(CheckOutcome.BROKEN, _shorten(result))
    text = "an empty text" if isinstance(result, str) else f"{type(result).__name__}"
    reason = f"it returned {text} ({check.location}); return True, False, None, or the reason as text"
    return CheckResult(CheckOutcome.ERROR, reason, cause=reason)


def _describe_error(check: TraceCheck, error: BaseException, *, with_message: bool) -> str:
    """Describe an exception of a check with the innermost line of the check's own file."""
    assert check.function is not None
    file = check.function.__code__.co_filename
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    location = f"{file}:{lines[-1]}" if lines else check.location
    try:
        message = str(error)
    except Exception:  # the `str` of any object may raise
        message = ""
    if isinstance(error, Trace2EvolveError) and (with_message or not isinstance(error, WorldError)):
        text, location = message, check.location
    else:
        text = f"it raised {type(error).__name__}"
        text += f": {message}" if message and with_message else ""
    # A long message must not push out the place.
    place = f" ({location})"
    return _shorten(_shorten(text, max(1, MAX_REASON - len(place))) + place)


def _shorten(text: str, max_length: int = MAX_REASON) -> str:
    """Return a text as one line of limited length that JSON can hold."""
    line = " ".join(text.encode("utf-8", "backslashreplace").decode().split())
    return line if len(line) <= max_length else line[: max_length - 1] + "…"
