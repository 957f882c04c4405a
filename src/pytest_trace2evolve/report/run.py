"""The report of a whole run.

What `trace2evolve compare` prints.
"""

from dataclasses import dataclass

from rich.console import Console

from pytest_trace2evolve.records.verdict import Decision
from pytest_trace2evolve.report.markdown import escape
from pytest_trace2evolve.report.score import terminal
from pytest_trace2evolve.report.terminal import (
    alarms_line,
    checks_table,
    console,
    decision_line,
    figures_table,
    listed,
    rendered,
    verdict_lines,
)
from pytest_trace2evolve.session.compare import Comparison
from pytest_trace2evolve.session.plan import Plan
from pytest_trace2evolve.session.verdicts import SuiteOutcome, compared


def comparison_text(comparison: Comparison) -> str:
    """Figures of both sides, the gate's table and the verdict."""
    target = terminal()
    target.print(
        figures_table(
            [
                (f"baseline {comparison.baseline_name}", comparison.baseline),
                (f"candidate {comparison.candidate_name}", comparison.candidate),
            ]
        )
    )
    for line in comparison.compared.lines:
        target.print(escape(line), soft_wrap=True)
    target.print()
    target.print(checks_table(comparison.verdict.checks))
    for line in verdict_lines(comparison.verdict):
        target.print(line, soft_wrap=True)
    for note in comparison.notes:
        target.print(f"note: {escape(note)}", soft_wrap=True)
    target.print(decision_line(comparison.verdict), soft_wrap=True)
    return rendered(target)


@dataclass(frozen=True)
class RunReport:
    """Everything a run has to tell at its end."""

    plan: Plan
    outcomes: tuple[SuiteOutcome, ...]
    notes: tuple[str, ...]
    decision: Decision | None
    trouble: str = ""
    used: str = ""


def run_report(report: RunReport, *, width: int, colour: bool, quiet: bool = False) -> str:
    """The report as text.

    Args:
        report: What to tell.
        width: Columns of the terminal.
        colour: Whether the terminal shows colours.
        quiet: Verdicts alone.
    """
    target = console(width=width, colour=colour)
    if not quiet:
        rows = [
            (f"{one.name} {split}", figures)
            for one in report.outcomes
            for split, figures in one.metrics.items()
        ]
        target.print(figures_table(rows))
        for title, figures in rows:
            if line := alarms_line(figures):
                target.print(f"{escape(title)}: {line}", soft_wrap=True)
    for one in report.outcomes:
        _suite(target, report.plan, one, quiet=quiet)
    if not quiet:
        for one in report.outcomes:
            if one.left_out:
                text = listed(one.left_out, separator="; ")
                target.print(
                    f"{escape(one.name)}: left out ({len(one.left_out)}): {escape(text)}", soft_wrap=True
                )
        for note in report.notes:
            target.print(f"note: {escape(note)}", soft_wrap=True)
        if report.used:
            target.print(f"used: {escape(report.used)}", soft_wrap=True)
        target.print(f"evidence: {escape(shown_folder(report.plan))}", soft_wrap=True)
    if report.trouble:
        target.print(f"[bold red]{escape(report.trouble)}[/]", soft_wrap=True)
    elif len(report.outcomes) > 1 and report.decision is not None:
        target.print(f"verdict over all suites: [bold]{report.decision.value.upper()}[/]")
    return rendered(target)


def _suite(target: Console, plan: Plan, one: SuiteOutcome, *, quiet: bool) -> None:
    planned = plan.suites[one.name]
    if one.reason and not one.verdicts:
        target.print(f"{escape(one.name)}: no verdict: {escape(one.reason)}", soft_wrap=True)
        return
    against = planned.baseline.name if planned.baseline else ""
    sides = compared(plan, planned)
    for verdict in one.verdicts:
        if not quiet:
            target.print()
            title = f"{one.name} · {verdict.split} · {plan.candidate.id} against {against}"
            target.print(f"[bold]{escape(title)}[/]", soft_wrap=True)
            for line in sides.lines if sides is not None else ():
                target.print(escape(line), soft_wrap=True)
            target.print(checks_table(verdict.checks))
            for line in verdict_lines(verdict):
                target.print(line, soft_wrap=True)
        target.print(f"{escape(one.name)} · {verdict.split}: {decision_line(verdict)}", soft_wrap=True)


def shown_folder(plan: Plan) -> str:
    """Where the run's evidence lies: relative to the project where it lies in it."""
    try:
        return str(plan.run_folder.relative_to(plan.project.root))
    except ValueError:
        return str(plan.run_folder)
