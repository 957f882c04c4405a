"""Packs the traces of a report page: JSON for the page's script, compressed, and sanitized text by text."""

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.records.failure import Failure
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.rules import Finding
from pytest_trace2evolve.records.task import RewardBasis
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.report.trace import failure_lines, recorded_checks
from pytest_trace2evolve.utils.sanitize import sanitize, sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.session.page_data import PageTrace

MAX_TEXT_LENGTH = 20_000
"""Maximum number of characters of a message or an argument; `trace2evolve show --full` shows all."""

MAX_LINE_LENGTH = 90
"""Maximum number of characters of arguments that are shown in one line."""

MAX_BYTES = 5_500_000
"""Maximum number of bytes that the traces of a page take. Further traces are left out, and counted."""


def pack_traces(sides: tuple[Sequence["PageTrace"], Sequence["PageTrace"]]) -> str:
    """Return the traces of a task, of the baseline and of the candidate, as compressed JSON in base64."""
    content = [
        [
            {
                **trace_view(trace.simulation, trace.findings, trace.failure),
                "trial": trace.record.trial,
                "reward": trace.record.reward,
                **({"note": _line(trace.record.note)} if trace.record.note else {}),
            }
            for trace in side
        ]
        for side in sides
    ]
    data = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    return base64.b64encode(zlib.compress(data, 6)).decode("ascii")


def start_text(traces: Sequence["PageTrace"], faults: Sequence[str]) -> str:
    """Say what went wrong first in the candidate's traces of a task; empty if nothing says it.

    Args:
        traces: The candidate's traces.
        faults: The faults that are new on the candidate, which come first.
    """
    for trace in traces:
        if trace.record.termination_reason in faults:
            return f"trial {trace.record.trial} ended by {_line(trace.record.termination_reason)}"
        for finding in trace.findings:
            if finding.invariant.value in faults:
                rule = finding.invariant.value.replace("_", " ")
                return _line(f"message {finding.message} breaks {rule}: {finding.why}")
    lines = [line for trace in traces if trace.failure for line in failure_lines(trace.failure)]
    return _line(next((line.removeprefix("E   ") for line in lines if line.startswith("E   ")), ""))


def trace_view(
    simulation: Simulation, findings: Iterable[Finding], failure: Failure | None
) -> dict[str, Any]:
    """Return what a page shows of a trace, with all texts sanitized."""
    info = simulation.reward_info or {}
    broken: dict[int, list[list[str]]] = {}
    for finding in findings:
        broken.setdefault(finding.message, []).append([finding.invariant.value, _line(finding.why)])
    call_names = {call.id: call.name for message in simulation.trace for call in message.tool_calls or []}
    breakdown = info.get("reward_breakdown")
    parts = breakdown if isinstance(breakdown, dict) else {}
    # Gold actions help to understand a trace even if the reward does not depend on them.
    shown_components = {*parts, RewardBasis.ACTION} if parts else set(RewardBasis)
    return {
        "trial": simulation.trial or 0,
        "reward": simulation.recorded_reward,
        "end": _line(simulation.termination_reason),
        "note": _line(simulation.error_text),
        "parts": {_line(name): str(value) for name, value in parts.items()},
        "checks": [
            [is_met, _line(text)]
            for component, text, is_met in recorded_checks(info)
            if component in shown_components
        ],
        "why": [] if failure is None else [sanitize(line) for line in failure_lines(failure)],
        "messages": [
            _message(message, call_names) | ({"broken": broken[index]} if index in broken else {})
            for index, message in enumerate(simulation.trace)
        ],
    }


def _message(message: Message, call_names: Mapping[str, str]) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role}
    if message.text is not None:
        fields["text"] = _text(message.content or "")
    if message.role == "tool":
        fields["of"] = _line(call_names.get(message.id or "", ""))
    if message.error:
        fields["error"] = True
    if message.tool_calls:
        fields["calls"] = [
            [_line(call.name), _text(_arguments_text(call.arguments))] for call in message.tool_calls
        ]
    return fields


def _arguments_text(arguments: Mapping[str, Any]) -> str:
    text = json.dumps(arguments, ensure_ascii=False, default=str)
    if len(text) <= MAX_LINE_LENGTH:
        return text
    # A value a line. An indent would take the encoder in Python, which takes ten times as long.
    return json.dumps(arguments, ensure_ascii=False, separators=(",\n ", ": "), default=str)


def _text(text: str) -> str:
    if len(text) <= MAX_TEXT_LENGTH:
        return sanitize(text)
    return f"{sanitize(text[:MAX_TEXT_LENGTH])}\n… {len(text) - MAX_TEXT_LENGTH:,} more characters"


def _line(text: str) -> str:
    return sanitize_line(text, 2_000)
