"""A trace in the terminal: its messages by role, its tool calls with their results, and its outcome."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from pytest_trace2evolve.evidence.results import OWN_BLOCK
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.report.formatting import (
    NOTHING,
    Figure,
    counted,
    escape,
    grid,
    number,
    print_line,
    rendered,
    terminal,
)
from pytest_trace2evolve.utils.sanitize import sanitize

if TYPE_CHECKING:
    from pytest_trace2evolve.session.traces import FailedTask, FailedTasks, OpenedTrace

SHOWN_LETTERS, SHOWN_LINES = 1_600, 30
"""Maximum numbers of characters and lines shown of a message or a result without `--full`."""

_STYLES = {"system": "dim", "assistant": "bold cyan", "user": "bold magenta", "tool": "bold blue"}
_INDENT = "    "

_CHECKS = (
    ("env_assertions", "met", "env_assertion"),
    ("action_checks", "action_match", "action"),
    ("communicate_checks", "met", "info"),
    ("nl_assertions", "met", "nl_assertion"),
)
"""Lists of recorded checks, each with the field that holds the outcome and the field of the requirement."""


def trace_text(opened: "OpenedTrace", *, full: bool = False) -> str:
    """A trace for people, shortened unless `full` is set. Its content cannot control the terminal."""
    target = terminal()
    simulation, origin = opened.simulation, opened.origin
    for suite, split in opened.recorded:
        print_line(target, f"recorded in the ledger: this access to {suite}::{split}", "yellow")
    if opened.note:
        print_line(target, opened.note, "dim")
    candidate = f", candidate {origin.candidate.id}" if origin.candidate else ""
    model = origin.agent.model or origin.agent.implementation or "not recorded"
    print_line(target, f"{opened.run} · task {simulation.task_id}{candidate}, agent {model}", "bold")
    trials = ", ".join(map(str, opened.trials))
    shown = simulation.trial if simulation.trial is not None else opened.trials[0]
    print_line(target, f"trial {shown}" + (f" of {trials} (--trial N)" if len(opened.trials) > 1 else ""))
    names = {call.id: call.name for message in simulation.trace for call in message.tool_calls or []}
    for position, message in enumerate(simulation.trace):
        _print_message(target, position, message, names, full=full)
        for finding in opened.found:
            if finding.message == position:
                text = f"{_INDENT}! breaks {finding.invariant.value}: {finding.why}"
                print_line(target, text, "bold red")
    target.print()
    for text, style in _outcome(simulation):
        print_line(target, text, style)
    return rendered(target)


def failed_text(found: "FailedTasks") -> str:
    """The failed tasks of a run, one per row, and the command that opens a trace."""
    target = terminal()
    candidate = f" · candidate {found.candidate}" if found.candidate else ""
    unmeasured = f", {found.unmeasured} not measured" if found.unmeasured else ""
    failed = f"{len(found.failed)} of {counted(found.tasks, 'task')} failed{unmeasured}"
    print_line(target, f"{found.run}{candidate} · {failed}", "bold")
    if not found.failed:
        return rendered(target)
    table = grid("suite", "split", "task", Figure("failed trials"), Figure("reward"))
    for task in found.failed:
        table.add_row(
            escape(task.suite),
            escape(_splits(task)),
            escape(task.task),
            f"{task.failed} of {task.measured}",
            number(task.reward),
        )
    target.print(table)
    if any(task.is_sealed for task in found.failed):
        print_line(target, "! sealed: the ledger records an access, which can end clean evidence")
    print_line(target, f"open a trace: trace2evolve show {found.run} TASK")
    return rendered(target)


def _splits(task: "FailedTask") -> str:
    names = [split if suite == task.suite else f"{suite}::{split}" for suite, split in task.splits]
    return (", ".join(names) or NOTHING) + (" !" if task.is_sealed else "")


def _print_message(
    target: Console, position: int, message: Message, names: Mapping[str, str], *, full: bool
) -> None:
    target.print()
    title, style = str(message.role), _STYLES[message.role]
    if message.role == "tool":
        asked = " for the user" if message.requestor == "user" else ""
        title = f"result of {names.get(message.id or '', 'an unknown call')}{asked}"
        style = "bold red" if message.error else style
        title += " (error)" if message.error else ""
    print_line(target, f"[{position}] {title}", style)
    if message.text is not None:
        text = message.content or ""
        _print_block(target, _indented_json(text) if message.role == "tool" else text, full=full)
    for call in message.tool_calls or []:
        _print_block(target, _call(call), full=full)


def _print_block(target: Console, text: str, *, full: bool) -> None:
    shown = text if full else "\n".join(text[:SHOWN_LETTERS].split("\n")[:SHOWN_LINES])
    for line in sanitize(shown).split("\n"):
        target.print(Text(_INDENT + line), soft_wrap=True)
    if len(shown) < len(text):
        print_line(target, f"{_INDENT}… {len(text) - len(shown):,} more characters (--full)", "dim")


def _call(call: ToolCall) -> str:
    arguments = ", ".join(f"{name}={_json(value)}" for name, value in call.arguments.items())
    return f"→ {call.name}({arguments})"


def _indented_json(text: str) -> str:
    """A tool's answer, indented if it is a JSON object or array."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return json.dumps(value, indent=1, ensure_ascii=False) if isinstance(value, dict | list) else text


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _outcome(simulation: Simulation) -> Iterator[tuple[str, str]]:
    """The recorded outcome of the simulation, as lines with their styles."""
    info = simulation.reward_info or {}
    own = _mapping(_mapping(getattr(simulation, "info", None)).get(OWN_BLOCK))
    status = f", {own['status']}" if isinstance(own.get("status"), str) else ""
    yield f"ended: {simulation.termination_reason}{status}", "bold"
    note = own.get("note") or simulation.trouble
    if isinstance(note, str) and note:
        yield f"note: {note}", ""
    reward = simulation.recorded_reward
    style = "dim" if reward is None else "bold green" if reward >= 1.0 else "bold red"
    yield f"reward: {'not recorded' if reward is None else f'{reward:g}'}", style
    breakdown = _mapping(info.get("reward_breakdown"))
    if breakdown:
        yield "components: " + ", ".join(f"{name} {value}" for name, value in breakdown.items()), ""
    failed = list(_failed_checks(info))
    for text in failed:
        yield f"failed: {text}", "red"
    if not failed and info:
        yield "every recorded check is met", ""


def _failed_checks(info: Mapping[str, Any]) -> Iterator[str]:
    if _mapping(info.get("db_check")).get("db_match") is False:
        yield "the database is not in the wanted end state"
    for key, met, requirement in _CHECKS:
        for check in _records(info.get(key)):
            if check.get(met) is False:
                why = check.get("justification")
                detail = f" ({why})" if isinstance(why, str) and why else ""
                yield f"{key.rstrip('s').replace('_', ' ')} {_requirement(check.get(requirement))}{detail}"


def _requirement(value: object) -> str:
    if isinstance(value, str):
        return value
    record = _mapping(value)
    name = record.get("name") or record.get("func_name")
    return f"{name} {_json(record.get('arguments'))}" if isinstance(name, str) else _json(value)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _records(value: object) -> Iterable[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
