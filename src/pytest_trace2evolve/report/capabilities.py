"""Render the output and the picture of `trace2evolve capabilities`."""

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from pytest_trace2evolve.diagnose.contrast import Thresholds
from pytest_trace2evolve.records.capability import CapabilityAssessment, CapabilityReport, TraceExample
from pytest_trace2evolve.report.formatting import (
    NARROW_PADDING,
    NOT_MEASURED,
    FigureColumn,
    WordColumn,
    escape,
    make_grid,
    render_parts,
)

MAX_SHOWN_EXAMPLES = 2
"""The maximum number of examples shown for a selected capability."""

_LEGEND = (
    "coverage: share of all failures that lack the capability · ER⁻, ER⁺: of the failed and of the passed "
    "traces that call for it, the share that lacks it · Δ: ER⁻ − ER⁺ · TRACE: whether coverage and Δ alone "
    "select it, and in how many runs; all intervals hold together at 95 %"
)


def capabilities_text(report: CapabilityReport) -> str:
    """Render the capabilities, the kinds of failures and examples."""
    traces_text = f"{report.traces} traces, {report.failed} failed and {report.traces - report.failed} passed"
    runs_text = "one run" if report.runs == 1 else f"{report.runs} runs"
    n_unexplained = len(report.unexplained)
    share = n_unexplained / report.failed if report.failed else 0.0
    useless_text = "the rules explain no failure; let a model label the traces: --judge MODEL"
    selected = [capability for capability in report.capabilities if capability.selected]
    return render_parts(
        *((note, "dim") for note in report.notes),
        (f"{traces_text}; labelled by {report.labeller} in {runs_text}", "bold"),
        "",
        _capabilities_table(report),
        (_LEGEND, "dim"),
        "",
        _taxonomy_table(report),
        f"unexplained: {n_unexplained} of {report.failed} failures ({share:.1%})",
        *([useless_text] if share == 1.0 and report.labeller == "rules" else []),
        *(line for capability in selected for line in _example_lines(capability)),
        "",
        (f"selected: {', '.join(capability.name for capability in selected) or 'none'}", "bold"),
    )


def _capabilities_table(report: CapabilityReport) -> Table:
    headings = ("coverage", "ER⁻", "ER⁺", "Δ", "interval", "TRACE")
    min_runs = Thresholds().min_runs(report.runs)
    table = make_grid(
        WordColumn("capability"), *(FigureColumn(heading) for heading in headings), "", padding=NARROW_PADDING
    )
    for capability in report.capabilities:
        decision_text = "selected" if capability.selected else capability.reason
        if capability.lost:
            decision_text += f"; {capability.lost} labels lost"
        low, high = capability.delta_low, capability.delta_high
        interval = NOT_MEASURED if low is None or high is None else f"{low:+.3f} … {high:+.3f}"
        table.add_row(
            escape(capability.name),
            _mean_text(capability.coverage, capability.coverage_std),
            _share_text(capability.error_rate_failed),
            _share_text(capability.error_rate_passed),
            _mean_text(capability.delta, capability.delta_std, is_signed=True),
            interval,
            f"{'yes' if capability.runs_passed >= min_runs else 'no'} {capability.runs_passed}/{report.runs}",
            Text(decision_text, style="bold green" if capability.selected else "dim"),
        )
    return table


def _taxonomy_table(report: CapabilityReport) -> Table:
    # Only the examples wrap, so a narrow terminal still shows all figures.
    table = make_grid(
        WordColumn("kind of failure"),
        FigureColumn("failures"),
        FigureColumn("share"),
        "for instance",
        padding=NARROW_PADDING,
    )
    for category in report.taxonomy:
        example = _example_text(category.examples[0]) if category.examples else ""
        table.add_row(
            category.name, str(category.count), _share_text(category.share), Text(example, style="dim")
        )
    return table


def _example_lines(capability: CapabilityAssessment) -> Iterator[tuple[str, str]]:
    yield "", ""
    yield capability.name, "bold"
    yield f"  {capability.description}", "dim"
    for example in capability.examples[:MAX_SHOWN_EXAMPLES]:
        yield f"  {_example_text(example)}", ""
    for example in capability.examples[:1]:
        trial = f" --trial {example.trial}" if example.trial else ""
        yield f"  trace2evolve show {example.run} '{example.task}'{trial}", "dim"
    for name in capability.merged:
        yield f"  also proposed as {name}", "dim"


def _example_text(example: TraceExample) -> str:
    message_text = f", message {example.message}" if example.message is not None else ""
    return f"task {example.task}{message_text}: {example.why}"


def _share_text(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.3f}"


def _mean_text(value: float | None, deviation: float | None, *, is_signed: bool = False) -> str:
    if value is None:
        return NOT_MEASURED
    text = f"{value:+.3f}" if is_signed else f"{value:.3f}"
    return text if deviation is None else f"{text} ± {deviation:.3f}"
