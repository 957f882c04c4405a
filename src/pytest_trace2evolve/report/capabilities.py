"""The output of `trace2evolve capabilities`, and its picture."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_trace2evolve.records.capability import Assessment, CapabilityReport, Example
from pytest_trace2evolve.report.formatting import (
    NARROW,
    NOTHING,
    Figure,
    Word,
    escape,
    grid,
    print_line,
    rendered,
    terminal,
)
from pytest_trace2evolve.utils.plots import ContrastPoint, contrast_points

SHOWN_EXAMPLES = 2
"""The most examples that are shown for a selected capability."""


def capabilities_text(found: CapabilityReport) -> str:
    """The table of capabilities, the kinds of failures, and examples."""
    target = terminal()
    for note in found.notes:
        print_line(target, note, "dim")
    passed = found.traces - found.failed
    runs = "one run" if found.runs == 1 else f"{found.runs} runs"
    print_line(
        target,
        f"{found.traces} traces, {found.failed} failed and {passed} passed; "
        f"labelled by {found.labeller} in {runs}",
        "bold",
    )
    target.print()
    target.print(_capabilities_table(found))
    print_line(
        target,
        "coverage: share of all failures that lack it · ER⁻, ER⁺: share lacking of the failed, of the passed "
        "traces that call for it · Δ: ER⁻ − ER⁺; all intervals hold together at 95 %",
        "dim",
    )
    target.print()
    target.print(_taxonomy_table(found))
    share = len(found.unexplained) / found.failed if found.failed else 0.0
    print_line(target, f"unexplained: {len(found.unexplained)} of {found.failed} failures ({share:.1%})")
    selected = [capability for capability in found.capabilities if capability.selected]
    for capability in selected:
        _print_examples(target, capability)
    target.print()
    print_line(target, f"selected: {', '.join(capability.name for capability in selected) or 'none'}", "bold")
    return rendered(target)


def _capabilities_table(found: CapabilityReport) -> Table:
    several = found.runs > 1
    headings = ("coverage", "ER⁻", "ER⁺", "Δ", "interval", *(("runs",) if several else ()))
    table = grid(Word("capability"), *(Figure(heading) for heading in headings), "", padding=NARROW)
    for capability in found.capabilities:
        decision = "selected" if capability.selected else capability.reason
        if capability.lost:
            decision += f"; {capability.lost} labels lost"
        interval = (
            NOTHING
            if capability.delta_low is None or capability.delta_high is None
            else f"{capability.delta_low:+.3f} … {capability.delta_high:+.3f}"
        )
        table.add_row(
            escape(capability.name),
            _with_deviation(capability.coverage, capability.coverage_std),
            _share(capability.error_rate_failed),
            _share(capability.error_rate_passed),
            _with_deviation(capability.delta, capability.delta_std, signed=True),
            interval,
            *((f"{capability.runs_passed}/{found.runs}",) if several else ()),
            Text(decision, style="bold green" if capability.selected else "dim"),
        )
    return table


def _taxonomy_table(found: CapabilityReport) -> Table:
    # Only the examples wrap, so the figures stay if there is little room.
    table = grid(Word("kind of failure"), Figure("failures"), Figure("share"), "for instance", padding=NARROW)
    for kind in found.taxonomy:
        example = _place(kind.examples[0]) if kind.examples else ""
        table.add_row(kind.name, str(kind.count), _share(kind.share), Text(example, style="dim"))
    return table


def _print_examples(target: Console, capability: Assessment) -> None:
    target.print()
    print_line(target, capability.name, "bold")
    print_line(target, f"  {capability.description}", "dim")
    for example in capability.examples[:SHOWN_EXAMPLES]:
        print_line(target, f"  {_place(example)}")
    if capability.examples:
        first = capability.examples[0]
        trial = f" --trial {first.trial}" if first.trial else ""
        print_line(target, f"  trace2evolve show {first.run} '{first.task}'{trial}", "dim")
    for name in capability.merged:
        print_line(target, f"  also proposed as {name}", "dim")


def _place(example: Example) -> str:
    where = f", message {example.message}" if example.message is not None else ""
    return f"task {example.task}{where}: {example.why}"


def _share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}"


def _with_deviation(value: float | None, deviation: float | None, *, signed: bool = False) -> str:
    if value is None:
        return NOTHING
    text = f"{value:+.3f}" if signed else f"{value:.3f}"
    return text if deviation is None else f"{text} ± {deviation:.3f}"


def capability_picture(
    found: CapabilityReport, *, coverage_threshold: float, delta_threshold: float, file_format: str
) -> bytes:
    """Draw one point per capability with Δ's interval on the left, and Δ of each run on the right."""
    measured = [
        ContrastPoint(
            name=capability.name,
            coverage=capability.coverage,
            delta=capability.delta,
            low=capability.delta_low,
            high=capability.delta_high,
            by_run=[run.delta for run in capability.by_run if run.delta is not None],
            selected=capability.selected,
        )
        for capability in found.capabilities
        if capability.delta is not None and capability.coverage is not None
    ]
    passed = found.traces - found.failed
    runs = (
        "one run: the labeller agrees with itself"
        if found.runs == 1
        else f"{found.runs} runs of the labeller"
    )
    return contrast_points(
        measured,
        title=f"{found.failed} failed and {passed} passed traces, labelled by {found.labeller}",
        runs_title=runs,
        coverage_threshold=coverage_threshold,
        delta_threshold=delta_threshold,
        file_format=file_format,
    )
