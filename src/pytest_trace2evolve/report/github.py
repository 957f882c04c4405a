"""Renders a run as Markdown for GitHub."""

import re
import shlex
from typing import Any

from pytest_trace2evolve.errors import shorten
from pytest_trace2evolve.records.verdict import Decision, RunSummary
from pytest_trace2evolve.report.conclusion import headline
from pytest_trace2evolve.report.verdict import run_report
from pytest_trace2evolve.utils.sanitize import sanitize, sanitize_file

MAX_STEP_SUMMARY_BYTES = 1 << 20
"""GitHub's limit for the summary of one step: 1 MiB."""

MIN_VERDICT_BYTES = 4_096
"""The smallest allowed limit in bytes, into which a verdict always fits."""

MAX_NAME_LENGTH, MAX_TEXT_LENGTH = 240, 400
"""Maximum lengths of an untrusted name and of an untrusted sentence, in characters."""

MAX_CLIPPED_LENGTH = 1_000
"""Maximum length of a text of the report, in characters."""

REPORT_WIDTH = 110
"""Columns of the report."""

_DECISION_SIGNS = {Decision.PROMOTE: "✅", Decision.DISCARD: "❌", Decision.INCONCLUSIVE: "⚠️"}

_NON_SPACE_BLANK = re.compile(r"[^\S ]")
"""White space other than the plain space, such as newlines, tabs and wide spaces."""


def run_markdown(summary: RunSummary, *, max_bytes: int = MAX_STEP_SUMMARY_BYTES) -> str:
    """Render a run, verdict first, as Markdown of at most `max_bytes` bytes in UTF-8.

    If the text is too long, the figures of the checks are left out, and then all but the conclusion.

    Args:
        summary: The run; its texts are shown as code.
        max_bytes: The maximum number of bytes; `MIN_VERDICT_BYTES` or more.

    Raises:
        ValueError: the verdict does not fit into the limit.
    """
    summary = RunSummary.model_validate(_clip(summary.model_dump(mode="json")))
    parts = [f"## {_headline(summary)}"]
    parts += [f"⚠️ Changes of tasks, baselines or policies: {len(summary.changes)}"] if summary.changes else []
    command = f"\n\nto reproduce: {shlex.join(summary.command)}" if summary.command else ""
    for verbosity in (1, 0, -1):
        report = run_report(summary, (), width=REPORT_WIDTH, has_colour=False, verbosity=verbosity)
        text = _join([*parts, code_block(report + command)])
        if len(text.encode()) <= max_bytes:
            return text
        command = ""
    note = "*Shortened: the rest is in the run's evidence and log.*"
    room = max_bytes - len(_join([*parts, note]).encode()) - 2
    if room < 0:
        raise ValueError(f"{max_bytes} bytes are too few for a verdict")
    block = code_block(report).encode()[:room].decode(errors="ignore")
    return _join([*parts, block, note])


def _clip(value: Any) -> Any:
    """Shorten every text in a JSON value, because a foreign one may be megabytes long."""
    if isinstance(value, dict):
        return {key: _clip(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clip(item) for item in value]
    return shorten(value, MAX_CLIPPED_LENGTH) if isinstance(value, str) else value


def _join(parts: list[str]) -> str:
    return "\n\n".join(part for part in parts if part.strip()) + "\n"


def _headline(summary: RunSummary) -> str:
    """Render the verdict in one line."""
    if summary.trouble:
        return (
            f"⚠️ No verdict on {code_span(summary.candidate)}: {code_span(summary.trouble, MAX_TEXT_LENGTH)}"
        )
    if summary.decision is None:
        return f"No verdict on {code_span(summary.candidate)}"
    decision = f"{_DECISION_SIGNS[summary.decision]} {summary.decision.value.capitalize()}"
    return f"{decision}: {headline(summary, code_span, 'its baseline')}"


def code_span(text: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """Render an untrusted text as a code span of one line, cut to `max_length` characters."""
    # Cut first, because a text may be megabytes long. Collapsing white space then shortens it only a little.
    line = " ".join(_escape_invisible(text[: 2 * max_length]).split())
    clipped = line if len(line) <= max_length else line[: max_length - 1] + "…"
    if not clipped:
        return "*(empty)*"
    fence = "`" * (max((len(run) for run in re.findall("`+", clipped)), default=0) + 1)
    # A backtick at either end would join the fence; CommonMark strips one space from both ends.
    padding = " " if clipped[0] == "`" or clipped[-1] == "`" else ""
    return f"{fence}{padding}{clipped}{padding}{fence}"


def code_block(text: str) -> str:
    """Render an untrusted text as an indented code block that keeps its lines."""
    return "\n".join(f"    {sanitize_file(_escape_invisible(line))}".rstrip() for line in text.split("\n"))


def _escape_invisible(text: str) -> str:
    """Escape the control, format, private and unassigned characters of a text."""
    return sanitize(_NON_SPACE_BLANK.sub(" ", text))
