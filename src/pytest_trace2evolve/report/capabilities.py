"""What `trace2evolve capabilities` prints."""

from typing import Any

from rich.table import Table
from rich.text import Text

from pytest_trace2evolve.records.capability import Assessment, CapabilityReport, FailureKind, Shown
from pytest_trace2evolve.report.markdown import escape
from pytest_trace2evolve.report.score import terminal
from pytest_trace2evolve.report.terminal import rendered
from pytest_trace2evolve.utils.sanitize import sanitize_line

SHOWN_EXAMPLES = 2
"""Places in traces that are shown of a selected capability."""


def capabilities_json(found: CapabilityReport) -> dict[str, Any]:
    """The documented JSON form."""
    return found.model_dump(mode="json")


def capabilities_text(found: CapabilityReport) -> str:
    """The table of capabilities, the failure taxonomy beside it, and where to look."""
    target = terminal()
    for note in found.notes:
        _line(target, note, "dim")
    passed = found.traces - found.failed
    runs = "one run" if found.runs == 1 else f"{found.runs} runs"
    _line(
        target,
        f"{found.traces} traces, {found.failed} failed and {passed} passed; "
        f"labelled by {found.labeller} in {runs}",
        "bold",
    )
    target.print()
    target.print(_capabilities(found))
    _line(
        target,
        "coverage: share of all failures that lack it · ER⁻, ER⁺: share lacking of the failed, of the passed "
        "traces that call for it · Δ: ER⁻ − ER⁺; all intervals hold together at 95 %",
        "dim",
    )
    target.print()
    target.print(_taxonomy(found))
    share = len(found.unexplained) / found.failed if found.failed else 0.0
    _line(target, f"unexplained: {len(found.unexplained)} of {found.failed} failures ({share:.1%})")
    for one in found.capabilities:
        if one.selected:
            _examples(target, one)
    selected = [one.name for one in found.capabilities if one.selected]
    target.print()
    _line(target, f"selected: {', '.join(selected) or 'none'}", "bold")
    return rendered(target)


def _capabilities(found: CapabilityReport) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("capability", no_wrap=True)
    several = found.runs > 1
    for heading in ("coverage", "ER⁻", "ER⁺", "Δ", "interval", *(("runs",) if several else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for one in found.capabilities:
        told = "selected" if one.selected else one.reason
        if one.lost:
            told += f"; {one.lost} labels lost"
        table.add_row(
            escape(one.name),
            _spread(one.coverage, one.coverage_std),
            _share(one.error_rate_failed),
            _share(one.error_rate_passed),
            _spread(one.delta, one.delta_std, signed=True),
            _interval(one),
            *((f"{one.runs_passed}/{found.runs}",) if several else ()),
            Text(told, style="bold green" if one.selected else "dim"),
        )
    return table


def _taxonomy(found: CapabilityReport) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("kind of failure", no_wrap=True)
    table.add_column("failures", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("for instance")  # the one that wraps: where room is short, the figures stay
    for kind in found.taxonomy:
        table.add_row(kind.name, str(kind.count), _share(kind.share), Text(_first(kind), style="dim"))
    return table


def _first(kind: FailureKind) -> str:
    return _place(kind.examples[0]) if kind.examples else ""


def _examples(target: Any, one: Assessment) -> None:
    target.print()
    _line(target, one.name, "bold")
    _line(target, f"  {one.description}", "dim")
    for shown in one.examples[:SHOWN_EXAMPLES]:
        _line(target, f"  {_place(shown)}")
    if one.examples:
        first = one.examples[0]
        trial = f" --trial {first.trial}" if first.trial else ""
        _line(target, f"  trace2evolve show {first.run} '{first.task}'{trial}", "dim")
    for name in one.merged:
        _line(target, f"  also proposed as {name}", "dim")


def _place(shown: Shown) -> str:
    where = f", message {shown.message}" if shown.message is not None else ""
    return f"task {shown.task}{where}: {shown.why}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _spread(value: float | None, deviation: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "–"
    text = f"{value:+.3f}" if signed else f"{value:.3f}"
    return text if deviation is None else f"{text} ± {deviation:.3f}"


def _interval(one: Assessment) -> str:
    if one.delta_low is None or one.delta_high is None:
        return "–"
    return f"{one.delta_low:+.3f} … {one.delta_high:+.3f}"


def _line(target: Any, text: str, style: str = "") -> None:
    indent = text[: len(text) - len(text.lstrip())]
    target.print(Text(indent + sanitize_line(text.strip()), style=style), soft_wrap=True)
