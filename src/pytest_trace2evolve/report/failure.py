"""Renders the explanation of a failed trial as lines without colours or control characters."""

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from pydantic import BaseModel
from rich.cells import cell_len, set_cell_size

from pytest_trace2evolve.records.failure import ABSENT, DatabasePath, Difference, Failure
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.trace import AgentError
from pytest_trace2evolve.records.verdict import Decision, RunSummary
from pytest_trace2evolve.report.formatting import format_count, shorten_middle
from pytest_trace2evolve.scoring.failures import call_text
from pytest_trace2evolve.utils.sanitize import sanitize_line

MAX_COLUMNS = 100
"""Maximum width of a line."""

MAX_AGENT_ERROR_LENGTH = 500
"""Maximum number of characters of the error of an agent."""

MAX_PATH_COLUMNS = 44
"""Maximum width of the path of a value, if its line does not fit."""

MAX_CHECK_LINES = 3
"""Maximum number of lines of a failed check."""

MAX_ERROR_LINES = 8
"""Maximum number of lines of the reason why a check has no result, whose end names the place."""

_MARK = "E   "
"""The beginning of a line that describes a problem, as in pytest's own failures."""

_CONTEXT_LENGTH = 6
"""Number of characters that are kept before the first difference of two long texts."""

_STATE_TEXTS = {
    "regressions": "regressed, confirmed",
    "suspected": "regressed, suspected",
    "broken": "regressed",
}
"""Texts for the tasks of a verdict's lists."""

_PLAIN_KEY = re.compile(r"[\w#@+-]+")


def failure_lines(failure: Failure) -> Iterator[str]:
    """Yield the differences of the databases and the failed checks of a trial."""
    yield from _wrap(_MARK, failure.reason)
    if failure.differences:
        yield "database (expected != actual):"
        yield from map(_difference_line, failure.differences)
        if failure.difference_count > len(failure.differences):
            yield f"{_MARK}and {failure.difference_count - len(failure.differences)} more"
    if failure.failed_checks:
        yield "failed checks:"
        for check in failure.failed_checks:
            yield from _wrap(_MARK, check.text)
            yield from _wrap(f"{_MARK}  ", check.detail)
    for text in failure.check_errors:
        yield from _wrap(_MARK, text, MAX_ERROR_LINES)
    yield from _wrap(_MARK, failure.problem)
    if failure.divergence is not None:
        yield "first difference from a passed trial of the baseline:"
        for side in ("baseline", "candidate"):
            yield _make_line(_MARK, f"{side}: {getattr(failure.divergence, side)}")


def broken_task_lines(
    summary: RunSummary, explanations: Mapping[tuple[str, str], str], max_tasks: int | None = None
) -> list[str]:
    """Explain the tasks that regressed or fail newly: confirmed regressions first, then suspected ones.

    Args:
        summary: The run. A promoted run explains nothing.
        explanations: The explanations by suite and task. Other tasks are left out.
        max_tasks: Maximum number of explained tasks; None explains all.
    """
    states: dict[tuple[str, str], str] = {}
    for suite in summary.suites:
        for state in ("regressions", "suspected", "broken"):
            for verdict in suite.verdicts:
                for task in getattr(verdict, state):
                    states.setdefault((suite.name, task), _STATE_TEXTS[state])
    names = [name for name in dict.fromkeys([*states, *explanations]) if name in explanations]
    if summary.decision in (None, Decision.PROMOTE):
        return []
    lines = []
    for suite_name, task in names[:max_tasks]:
        lines.append(sanitize_line(f"{suite_name} · {task}: {states.get((suite_name, task), 'fails newly')}"))
        lines += [f"    {line}" for line in explanations[suite_name, task].split("\n")]
    if max_tasks is not None and names[max_tasks:]:
        lines.append(f"and {format_count(len(names[max_tasks:]), 'more task')} (-v)")
    return lines


def agent_error_line(error: AgentError, *, is_sealed: bool) -> str:
    """Describe the error of an agent; for a sealed split, without anything that may quote the trace."""
    text = sanitize_line(error.shown_text(is_sealed=is_sealed), MAX_AGENT_ERROR_LENGTH)
    return f"the agent raised {text}" if error.frames else f"the agent failed: {text}"


def message_lines(failure: Failure) -> Iterator[str]:
    """Yield the last messages of a failed trial, a line for each text and each call."""
    if failure.last_messages:
        yield "last messages:" if len(failure.last_messages) > 1 else "last message:"
    for message in failure.last_messages:
        for text in _message_texts(message):
            yield _make_line("    ", f"{message.role}: {text}")


def fit_lines(lines: Iterable[str], max_bytes: int) -> str:
    """Join the first lines to a text of about `max_bytes` bytes as JSON, and add the number of cut lines."""
    all_lines = list(lines)
    sizes = accumulate(len(json.dumps(line)) for line in all_lines)
    fitting_count = sum(size <= max_bytes for size in sizes)
    cut_count = len(all_lines) - fitting_count
    return "\n".join(
        all_lines[:fitting_count] + [f"… {format_count(cut_count, 'more line')}"] * (cut_count > 0)
    )


def path_text(path: DatabasePath) -> str:
    """Write a path as `bookings.B17.dates[0]`; an unusual key is quoted in brackets."""
    parts = (
        f".{key}" if isinstance(key, str) and _PLAIN_KEY.fullmatch(key) else f"[{key!r}]" for key in path
    )
    return sanitize_line("".join(parts).removeprefix("."))


def _difference_line(difference: Difference) -> str:
    prefix = f"{_MARK}{_shorten(sanitize_line(difference.side), 12)}: " if difference.side else _MARK
    path = path_text(difference.path) or "(the database)"
    expected, actual = _value_text(difference.expected), _value_text(difference.actual)
    available_width = MAX_COLUMNS - cell_len(f"{prefix}{path}:  != ")
    if cell_len(expected) + cell_len(actual) > available_width:
        path = shorten_middle(path, MAX_PATH_COLUMNS)
        available_width = MAX_COLUMNS - cell_len(f"{prefix}{path}:  != ")
        expected, actual = _shorten_pair(expected, actual, available_width)
    return f"{prefix}{path}: {expected} != {actual}"


def _shorten_pair(expected: str, actual: str, available_width: int) -> tuple[str, str]:
    """Shorten two texts to a common width, so that the shortened texts still differ."""
    expected_width = max(available_width // 2, available_width - cell_len(actual))
    actual_width = available_width - min(expected_width, cell_len(expected))
    pairs = enumerate(zip(expected, actual, strict=False))
    common_length = next((index for index, (left, right) in pairs if left != right), 0)
    if common_length >= min(expected_width, actual_width) - 1:
        start = max(0, common_length - _CONTEXT_LENGTH)
        expected, actual = f"…{expected[start:]}", f"…{actual[start:]}"
    return _shorten(expected, expected_width), _shorten(actual, actual_width)


def _shorten(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def _make_line(prefix: str, text: str) -> str:
    """Make a line of an untrusted text. The prefix is not sanitized, because its blanks must remain."""
    return prefix + _shorten(sanitize_line(text, 10 * MAX_COLUMNS), MAX_COLUMNS - len(prefix))


def _wrap(prefix: str, text: str, max_lines: int = MAX_CHECK_LINES) -> Iterator[str]:
    """Make lines of a text that may be longer than one line."""
    width = MAX_COLUMNS - len(prefix)
    lines = textwrap.wrap(sanitize_line(text), width - 2, max_lines=max_lines, placeholder=" …")
    for index, line in enumerate(lines):
        yield prefix + _shorten(f"  {line}" if index else line, width)


def _value_text(value: object) -> str:
    """Write a value in one line, with quoted texts and with models as their fields."""
    return "(absent)" if value is ABSENT else sanitize_line(_literal(value))


def _literal(value: object) -> str:
    if isinstance(value, BaseModel):
        value = value.model_dump(warnings=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return repr(str.__str__(value)) if isinstance(value, str) else str(value)


def _message_texts(message: Message) -> Iterator[str]:
    """Yield the text of a message and its tool calls."""
    if message.text is not None:
        yield f"(error) {message.text}" if message.error else message.text
    for call in message.tool_calls or []:
        yield f"→ {call_text(call.name, call.arguments)}"
