"""Render a trace for the terminal: its messages, tool calls and outcome. Also list a run's failed tasks."""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from pytest_trace2evolve.evidence.results import OWN_BLOCK_KEY
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.task import RewardBasis
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.records.trace_check import CheckOutcome
from pytest_trace2evolve.report.failure import failure_lines
from pytest_trace2evolve.report.formatting import (
    NOT_MEASURED,
    FigureColumn,
    escape,
    format_count,
    format_number,
    make_grid,
    make_terminal_console,
    print_line,
    rendered_text,
)
from pytest_trace2evolve.utils.sanitize import sanitize

if TYPE_CHECKING:
    from pytest_trace2evolve.session.traces import FailedTask, FailedTasks, OpenedTrace

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
    console = make_terminal_console()
    candidate_note = f" · candidate {run.candidate}" if run.candidate else ""
    unmeasured_note = f", {run.unmeasured_tasks} not measured" if run.unmeasured_tasks else ""
    failed_summary = (
        f"{len(run.failed_tasks)} of {format_count(run.task_count, 'task')} failed{unmeasured_note}"
    )
    print_line(console, f"{run.run}{candidate_note} · {failed_summary}", "bold")
    if not run.failed_tasks:
        return rendered_text(console)
    table = make_grid("suite", "split", "task", FigureColumn("failed trials"), FigureColumn("reward"))
    for task in run.failed_tasks:
        table.add_row(
            escape(task.suite),
            escape(_split_text(task)),
            escape(task.task),
            f"{task.failed_trials} of {task.measured_trials}",
            format_number(task.reward),
        )
    console.print(table)
    if any(task.is_sealed for task in run.failed_tasks):
        print_line(console, "! sealed: the ledger records each access, which can end clean evidence")
    task = min(run.failed_tasks, key=lambda task: task.is_sealed)
    parts = ["trace2evolve", "show", run.run, task.task, "--suite", task.suite]
    print_line(console, f"open a trace: {shlex.join(parts)}")
    return rendered_text(console)


def _split_text(task: "FailedTask") -> str:
    names = [split if suite == task.suite else f"{suite}::{split}" for suite, split in task.splits]
    return (", ".join(names) or NOT_MEASURED) + (" !" if task.is_sealed else "")


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
        _print_block(console, _call_text(call), is_full=is_full)


def _print_block(console: Console, text: str, *, is_full: bool) -> None:
    shown_text = text if is_full else "\n".join(text[:MAX_SHOWN_CHARACTERS].split("\n")[:MAX_SHOWN_LINES])
    for line in sanitize(shown_text).split("\n"):
        console.print(Text(_INDENT + line), soft_wrap=True)
    if len(shown_text) < len(text):
        print_line(console, f"{_INDENT}… {len(text) - len(shown_text):,} more characters (--full)", "dim")


def _call_text(call: ToolCall) -> str:
    arguments = ", ".join(f"{name}={_to_json(value)}" for name, value in call.arguments.items())
    return f"→ {call.name}({arguments})"


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
