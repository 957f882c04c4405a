"""Renders traces, explanations of failed trials, and a run's failed tasks for the terminal."""

import json
import re
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from pytest_trace2evolve.evidence.results import OWN_BLOCK_KEY
from pytest_trace2evolve.records.failure import ABSENT, DatabasePath, Difference, Failure
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.task import RewardBasis
from pytest_trace2evolve.records.trace import AgentError, Simulation
from pytest_trace2evolve.records.trace_check import CheckOutcome
from pytest_trace2evolve.records.verdict import Decision, RunSummary
from pytest_trace2evolve.report.formatting import (
    NOT_MEASURED,
    FigureColumn,
    escape,
    format_count,
    format_number,
    make_grid,
    make_terminal_console,
    print_line,
    render_parts,
    rendered_text,
    shorten_middle,
)
from pytest_trace2evolve.scoring.failures import call_text
from pytest_trace2evolve.utils.sanitize import sanitize, sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.session.traces import FailedTasks, OpenedTrace


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


MAX_SHOWN_CHARACTERS, MAX_SHOWN_LINES = 1_600, 30
"""Maximum characters and lines of a message or a tool result without `--full`."""

_STYLES = {"system": "dim", "assistant": "bold cyan", "user": "bold magenta", "tool": "bold blue"}
_INDENT = "    "

_RECORDED_CHECKS = (
    ("env_assertions", "met", "env_assertion", RewardBasis.ENV_ASSERTION),
    ("action_checks", "action_match", "action", RewardBasis.ACTION),
    ("forbidden_calls", "met", "call", RewardBasis.ACTION),
    ("communicate_checks", "met", "info", RewardBasis.COMMUNICATE),
    ("nl_assertions", "met", "nl_assertion", RewardBasis.NL_ASSERTION),
)
"""Lists of recorded checks: the key, the fields with the outcome and the requirement, and the component."""


_CHECK_TEXTS = {
    CheckOutcome.KEPT.value: ("is kept", ""),
    CheckOutcome.BROKEN.value: ("is broken", "red"),
    CheckOutcome.ERROR.value: ("has no result", "yellow"),
}
"""Texts and styles for the outcomes of the project's own checks."""


def trace_text(trace: "OpenedTrace", *, is_full: bool = False) -> str:
    """Render a trace, shortened unless `is_full` is set. Its content cannot control the terminal."""
    console = make_terminal_console()
    simulation, origin = trace.simulation, trace.origin
    for suite, split in trace.recorded_splits:
        print_line(console, f"recorded in the ledger: this access to {suite}::{split}", "yellow")
    if trace.note:
        print_line(console, trace.note, "dim")
    candidate = f", candidate {origin.candidate.id}" if origin.candidate else ""
    model = origin.agent.model or origin.agent.implementation or "not recorded"
    print_line(console, f"{trace.run} · task {simulation.task_id}{candidate}, agent {model}", "bold")
    trials = ", ".join(map(str, trace.trials))
    trial = simulation.trial if simulation.trial is not None else trace.trials[0]
    print_line(console, f"trial {trial}" + (f" of {trials} (--trial N)" if len(trace.trials) > 1 else ""))
    call_names = {call.id: call.name for message in simulation.trace for call in message.tool_calls or []}
    for position, message in enumerate(simulation.trace):
        _print_message(console, position, message, call_names, is_full=is_full)
        for finding in trace.findings:
            if finding.message == position:
                text = f"{_INDENT}! breaks {finding.invariant.value}: {finding.why}"
                print_line(console, text, "bold red")
    console.print()
    explanation = [] if trace.failure is None else list(failure_lines(trace.failure))
    for text, style in _outcome_lines(simulation, is_explained=bool(explanation)):
        print_line(console, text, style)
    for line in explanation:
        console.print(Text(line), soft_wrap=True)
    return rendered_text(console)


def failed_text(run: "FailedTasks") -> str:
    """Render the failed tasks of a run as a table, with the command that opens a trace."""
    candidate_note = f" · candidate {run.candidate}" if run.candidate else ""
    unmeasured_note = f", {run.unmeasured_tasks} not measured" if run.unmeasured_tasks else ""
    count_text = f"{len(run.failed_tasks)} of {format_count(run.task_count, 'task')} failed{unmeasured_note}"
    title = f"{run.run}{candidate_note} · {count_text}", "bold"
    if not run.failed_tasks:
        return render_parts(title)
    table = make_grid("suite", "split", "task", FigureColumn("failed trials"), FigureColumn("reward"))
    for task in run.failed_tasks:
        names = [split if suite == task.suite else f"{suite}::{split}" for suite, split in task.splits]
        table.add_row(
            escape(task.suite),
            escape((", ".join(names) or NOT_MEASURED) + (" !" if task.is_sealed else "")),
            escape(task.task),
            f"{task.failed_trials} of {task.measured_trials}",
            format_number(task.reward),
        )
    note = "! sealed: the ledger records each access, which can end clean evidence"
    is_any_sealed = any(task.is_sealed for task in run.failed_tasks)
    task = min(run.failed_tasks, key=lambda task: task.is_sealed)
    command = shlex.join(["trace2evolve", "show", run.run, task.task, "--suite", task.suite])
    return render_parts(title, table, *([note] if is_any_sealed else []), f"open a trace: {command}")


def _print_message(
    console: Console, position: int, message: Message, call_names: Mapping[str, str], *, is_full: bool
) -> None:
    console.print()
    title, style = str(message.role), _STYLES[message.role]
    if message.role == "tool":
        requestor_note = " for the user" if message.requestor == "user" else ""
        title = f"result of {call_names.get(message.id or '', 'an unknown call')}{requestor_note}"
        style = "bold red" if message.error else style
        title += " (error)" if message.error else ""
    print_line(console, f"[{position}] {title}", style)
    if message.text is not None:
        text = message.content or ""
        _print_block(console, _indented_json(text) if message.role == "tool" else text, is_full=is_full)
    for call in message.tool_calls or []:
        arguments = ", ".join(f"{name}={_to_json(value)}" for name, value in call.arguments.items())
        _print_block(console, f"→ {call.name}({arguments})", is_full=is_full)


def _print_block(console: Console, text: str, *, is_full: bool) -> None:
    shown_text = text if is_full else "\n".join(text[:MAX_SHOWN_CHARACTERS].split("\n")[:MAX_SHOWN_LINES])
    for line in sanitize(shown_text).split("\n"):
        console.print(Text(_INDENT + line), soft_wrap=True)
    if len(shown_text) < len(text):
        print_line(console, f"{_INDENT}… {len(text) - len(shown_text):,} more characters (--full)", "dim")


def _indented_json(text: str) -> str:
    """Indent a tool's answer if it is a JSON object or array."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return json.dumps(value, indent=1, ensure_ascii=False) if isinstance(value, dict | list) else text


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _outcome_lines(simulation: Simulation, *, is_explained: bool) -> Iterator[tuple[str, str]]:
    """Yield the recorded outcome of a simulation, as lines with styles.

    The recorded checks that failed are left out if the failure is explained after the outcome, if the trial
    passed, or if they do not count for the reward.
    """
    info = simulation.reward_info or {}
    own_info = _as_mapping(_as_mapping(getattr(simulation, "info", None)).get(OWN_BLOCK_KEY))
    status = f", {own_info['status']}" if isinstance(own_info.get("status"), str) else ""
    yield f"ended: {simulation.termination_reason}{status}", "bold"
    note = own_info.get("note") or simulation.error_text
    if isinstance(note, str) and note:
        yield f"note: {note}", ""
    reward = simulation.recorded_reward
    style = "dim" if reward is None else "bold green" if reward >= 1.0 else "bold red"
    yield f"reward: {'not recorded' if reward is None else f'{reward:g}'}", style
    components = _as_mapping(info.get("reward_breakdown"))
    if components:
        yield "components: " + ", ".join(f"{name} {value}" for name, value in components.items()), ""
    if is_explained:
        return
    failed_checks = {text: component for component, text, is_met in recorded_checks(info) if not is_met}
    if reward is None or reward < 1.0:
        for text, component in failed_checks.items():
            if not components or component in components:
                yield f"failed: {text}", "red"
    if not failed_checks and info:
        yield "all recorded checks passed", ""
    for name, result in _as_mapping(own_info.get("checks")).items():
        text, style = _CHECK_TEXTS.get(_as_mapping(result).get("outcome", ""), ("", ""))
        if text:
            reason = _as_mapping(result).get("reason")
            yield f"check {name} {text}" + (f": {reason}" if isinstance(reason, str) else ""), style


def recorded_checks(info: Mapping[str, Any]) -> Iterator[tuple[RewardBasis, str, bool]]:
    """Yield the component, the text and the outcome of each recorded check of a simulation."""
    if isinstance(is_met := _as_mapping(info.get("db_check")).get("db_match"), bool):
        yield RewardBasis.DB, f"the database is{' ' if is_met else ' not '}in the required end state", is_met
    nested_checks = {"forbidden_calls": _as_mapping(info.get("info")).get("forbidden_calls")}
    for key, outcome_field, requirement_field, component in _RECORDED_CHECKS:
        for check in _dict_items(nested_checks.get(key, info.get(key))):
            if isinstance(is_met := check.get(outcome_field), bool):
                reason = check.get("justification")
                detail = f" ({reason})" if isinstance(reason, str) and reason else ""
                kind = key.rstrip("s").replace("_", " ")
                yield component, f"{kind} {_requirement_text(check.get(requirement_field))}{detail}", is_met


def _requirement_text(value: object) -> str:
    if isinstance(value, str):
        return value
    record = _as_mapping(value)
    name = record.get("name") or record.get("func_name")
    return f"{name} {_to_json(record.get('arguments'))}" if isinstance(name, str) else _to_json(value)


def _as_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _dict_items(value: object) -> Iterable[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
