"""A trace in the terminal: its messages by role, its tool calls with their results, and what it came to."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from pytest_trace2evolve.evidence.results import OWN_BLOCK
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.report.score import terminal
from pytest_trace2evolve.report.terminal import rendered
from pytest_trace2evolve.session.traces import Opened
from pytest_trace2evolve.utils.sanitize import sanitize, sanitize_line

SHOWN_LETTERS, SHOWN_LINES = 1_600, 30
"""How much of a message, or of a result, is shown without `--full`."""

_STYLES = {"system": "dim", "assistant": "bold cyan", "user": "bold magenta", "tool": "bold blue"}
_INDENT = "    "


def trace_text(opened: Opened, *, full: bool = False) -> str:
    """A trace to be read by people. Nothing in it can steer the terminal.

    Args:
        opened: The trace, whose look is recorded.
        full: Leave nothing out.
    """
    target = terminal()
    simulation, origin = opened.simulation, opened.origin
    for suite, split in opened.recorded:
        _line(target, f"recorded in the ledger: this look at {suite}::{split}", "yellow")
    if opened.note:
        _line(target, opened.note, "dim")
    candidate = f", candidate {origin.candidate.id}" if origin.candidate else ""
    model = origin.agent.model or origin.agent.implementation or "not recorded"
    _line(target, f"{opened.run} · task {simulation.task_id}{candidate}, agent {model}", "bold")
    others = ", ".join(str(one) for one in opened.trials)
    shown = simulation.trial if simulation.trial is not None else opened.trials[0]
    _line(target, f"trial {shown}" + (f" of {others} (--trial N)" if len(opened.trials) > 1 else ""))
    names = {call.id: call.name for message in simulation.trace for call in message.tool_calls or []}
    for number, message in enumerate(simulation.trace):
        _message(target, number, message, names, full=full)
        for one in opened.found:
            if one.message == number:
                _line(target, f"{_INDENT}! breaks {one.invariant.value}: {one.why}", "bold red")
    target.print()
    for text, style in _outcome(simulation):
        _line(target, text, style)
    return rendered(target)


def _message(target: Console, number: int, message: Message, names: Mapping[str, str], *, full: bool) -> None:
    target.print()
    title, style = str(message.role), _STYLES[message.role]
    if message.role == "tool":
        asked = " for the user" if message.requestor == "user" else ""
        title = f"result of {names.get(message.id or '', 'an unknown call')}{asked}"
        style = "bold red" if message.error else style
        title += " (error)" if message.error else ""
    _line(target, f"[{number}] {title}", style)
    if message.text is not None:
        text = _readable(message.content or "") if message.role == "tool" else message.content or ""
        _block(target, text, full=full)
    for call in message.tool_calls or []:
        _block(target, _call(call), full=full)


def _call(call: ToolCall) -> str:
    arguments = ", ".join(f"{name}={_json(value)}" for name, value in call.arguments.items())
    return f"→ {call.name}({arguments})"


def _readable(text: str) -> str:
    """A tool's answer, indented where it is JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return json.dumps(value, indent=1, ensure_ascii=False) if isinstance(value, dict | list) else text


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _block(target: Console, text: str, *, full: bool) -> None:
    shown = text if full else "\n".join(text[:SHOWN_LETTERS].split("\n")[:SHOWN_LINES])
    for line in sanitize(shown).split("\n"):
        target.print(Text(_INDENT + line), soft_wrap=True)
    if len(shown) < len(text):
        _line(target, f"{_INDENT}… {len(text) - len(shown):,} more characters (--full)", "dim")


def _line(target: Console, text: str, style: str = "") -> None:
    indent = text[: len(text) - len(text.lstrip())]
    target.print(Text(indent + sanitize_line(text), style=style), soft_wrap=True)


def _outcome(simulation: Simulation) -> Iterator[tuple[str, str]]:
    """What the simulation came to, as it was recorded: lines with their styles."""
    info = simulation.reward_info or {}
    extra = getattr(simulation, "info", None)
    own = _mapping(extra.get(OWN_BLOCK)) if isinstance(extra, dict) else {}
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
    failed = list(_failed(info))
    for text in failed:
        yield f"failed: {text}", "red"
    if not failed and info:
        yield "every recorded check is met", ""


def _failed(info: Mapping[str, Any]) -> Iterator[str]:
    if _mapping(info.get("db_check")).get("db_match") is False:
        yield "the database is not in the wanted end state"
    for key, met, wanted in (
        ("env_assertions", "met", "env_assertion"),
        ("action_checks", "action_match", "action"),
        ("communicate_checks", "met", "info"),
        ("nl_assertions", "met", "nl_assertion"),
    ):
        for check in _records(info.get(key)):
            if check.get(met) is False:
                why = check.get("justification")
                told = f" ({why})" if isinstance(why, str) and why else ""
                yield f"{key.rstrip('s').replace('_', ' ')} {_wanted(check.get(wanted))}{told}"


def _wanted(value: object) -> str:
    """What a check asks for, in a line."""
    if isinstance(value, str):
        return value
    record = _mapping(value)
    name = record.get("name") or record.get("func_name")
    return f"{name} {_json(record.get('arguments'))}" if isinstance(name, str) else _json(value)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _records(value: object) -> Iterable[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
