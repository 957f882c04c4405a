"""The terminal report of a run and of a comparison: figures, the gate's tables, the verdicts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Column, Table

from pytest_trace2evolve.records.verdict import (
    CheckResult,
    CheckStatus,
    Decision,
    Interval,
    Obstacle,
    RunSummary,
    Settling,
    SuiteSummary,
    Verdict,
)
from pytest_trace2evolve.report.formatting import (
    NARROW,
    NOTHING,
    Figure,
    Word,
    console,
    dollars,
    escape,
    grid,
    listed,
    number,
    rendered,
    terminal,
)
from pytest_trace2evolve.scoring.metrics import Metrics

if TYPE_CHECKING:
    from pytest_trace2evolve.session.compare import Comparison

_COLOURS = {
    CheckStatus.PASS: "green",
    CheckStatus.FAIL: "red",
    CheckStatus.UNDECIDED: "yellow",
    CheckStatus.NOT_APPLICABLE: "dim",
    Decision.PROMOTE: "bold green",
    Decision.DISCARD: "bold red",
    Decision.INCONCLUSIVE: "bold yellow",
}
OBSTACLES: Mapping[Obstacle | None, str] = {
    Obstacle.WRONG_DIRECTION: "the change points the wrong way",
    Obstacle.TOO_SMALL: "the effect is too small to detect with these tasks",
    None: "neither more trials nor more tasks would settle it",
}
"""Why nothing would settle a check; None: the file is older than the record of the cause."""


def comparison_text(comparison: "Comparison") -> str:
    """What `trace2evolve compare` prints: figures of both sides, the gate's table and the verdict."""
    target = terminal()
    rows = [
        (f"baseline {comparison.baseline_name}", comparison.baseline),
        (f"candidate {comparison.candidate_name}", comparison.candidate),
    ]
    target.print(figures_table(rows))
    for line in comparison.compared.lines:
        target.print(escape(line), soft_wrap=True)
    target.print()
    _print_checks(target, comparison.verdict)
    for note in comparison.notes:
        target.print(f"note: {escape(note)}", soft_wrap=True)
    target.print(decision_line(comparison.verdict), soft_wrap=True)
    return rendered(target)


def run_report(
    summary: RunSummary,
    figures: Sequence[tuple[str, Metrics]],
    *,
    width: int,
    colour: bool,
    quiet: bool = False,
) -> str:
    """The report of a whole run as text.

    Args:
        summary: The run.
        figures: Figures of each split, with its title.
        width: Columns of the terminal.
        colour: Whether the terminal shows colours.
        quiet: Print the verdicts alone.
    """
    target = console(width=width, colour=colour)
    if not quiet:
        target.print(figures_table(figures))
        for title, found in figures:
            if line := invariants_line(found):
                target.print(f"{escape(title)}: {line}", soft_wrap=True)
    for suite in summary.suites:
        _print_suite(target, suite, summary.candidate, quiet=quiet)
    if not quiet:
        for suite in summary.suites:
            if suite.left_out:
                text = listed(suite.left_out, separator="; ")
                target.print(
                    f"{escape(suite.name)}: left out ({len(suite.left_out)}): {escape(text)}", soft_wrap=True
                )
        for note in summary.notes:
            target.print(f"note: {escape(note)}", soft_wrap=True)
        if summary.used:
            target.print(f"used: {escape(summary.used)}", soft_wrap=True)
        target.print(f"evidence: {escape(summary.evidence)}", soft_wrap=True)
    if summary.trouble:
        target.print(f"[bold red]{escape(summary.trouble)}[/]", soft_wrap=True)
    elif len(summary.suites) > 1 and summary.decision is not None:
        target.print(f"verdict over all suites: [bold]{summary.decision.value.upper()}[/]")
    return rendered(target)


def _print_suite(target: Console, suite: SuiteSummary, candidate: str, *, quiet: bool) -> None:
    if suite.reason and not suite.verdicts:
        target.print(f"{escape(suite.name)}: no verdict: {escape(suite.reason)}", soft_wrap=True)
        return
    for verdict in suite.verdicts:
        if not quiet:
            target.print()
            title = f"{suite.name} · {verdict.split} · {candidate} against {suite.baseline or ''}"
            target.print(f"[bold]{escape(title)}[/]", soft_wrap=True)
            for line in suite.compared.lines if suite.compared is not None else ():
                target.print(escape(line), soft_wrap=True)
            _print_checks(target, verdict)
        target.print(f"{escape(suite.name)} · {verdict.split}: {decision_line(verdict)}", soft_wrap=True)


def _print_checks(target: Console, verdict: Verdict) -> None:
    target.print(checks_table(verdict.checks))
    for line in verdict_lines(verdict):
        target.print(line, soft_wrap=True)


def figures_table(rows: Iterable[tuple[str, Metrics]]) -> Table:
    """Figures of each side or split, a row each: (title, metrics)."""
    headings = ("tasks", "runs", "reward", "pass^k", "actions", "read", "write", "max steps", "lost")
    columns = [Column(name, justify="right", no_wrap=name == "pass^k") for name in headings]
    table = grid(Word(""), *columns, padding=NARROW)
    for title, figures in rows:
        table.add_row(
            escape(title),
            str(figures.tasks),
            str(figures.simulations),
            number(figures.reward),
            pass_hat(figures),
            number(figures.action_match),
            number(figures.read_action_match),
            number(figures.write_action_match),
            str(figures.terminations.get("max_steps", 0)),
            str(figures.simulations - figures.measured),
        )
    return table


def checks_table(checks: Sequence[CheckResult]) -> Table:
    """The gate's table: every check with its answer and its figures.

    A column is left out if no check has such a figure; `shows` is the smallest effect that so many tasks and
    trials would have shown in four of five comparisons.
    """
    columns = [column for column in _FIGURES if any(column[1](check) != NOTHING for check in checks)]
    table = grid(
        Word("check"),
        Word("answer"),
        *(Figure(heading) for heading, _ in columns),
        Column("detail", overflow="fold"),
        padding=NARROW,
    )
    for check in checks:
        answer = "n/a" if check.status is CheckStatus.NOT_APPLICABLE else check.status.value
        cells = [text(check) for _, text in columns]
        table.add_row(check.id, f"[{_COLOURS[check.status]}]{answer}[/]", *cells, escape(check.detail))
    return table


def _interval(check: CheckResult) -> str:
    if check.low is None or check.high is None:
        return NOTHING
    return f"{number(check.low)} … {number(check.high)}"


def _p_value(check: CheckResult) -> str:
    if check.p is None:
        return NOTHING
    return "<.001" if check.p < 0.0005 else f"{check.p:.3f}"


_FIGURES: tuple[tuple[str, Callable[[CheckResult], str]], ...] = (
    ("estimate", lambda check: number(check.estimate)),
    ("interval", _interval),
    ("threshold", lambda check: number(check.threshold)),
    ("p", _p_value),
    ("shows", lambda check: number(check.detectable)),
)


def verdict_lines(verdict: Verdict) -> list[str]:
    """The lines below the table of one verdict, in rich's markup."""
    old, new = verdict.baseline.pass_hat, verdict.candidate.pass_hat
    lines = [f"pass^{k}: {_estimate(old[k])} → {_estimate(new[k])}" for k in sorted(old.keys() & new.keys())]
    for title, names, separator in (
        ("fixed", verdict.fixed, ", "),
        ("broken", verdict.broken, ", "),
        ("regressions", verdict.regressions, ", "),
        ("suspected", verdict.suspected, ", "),
        ("left out", verdict.left_out, "; "),
    ):
        if names:
            lines.append(f"{title} ({len(names)}): {escape(listed(names, separator))}")
    if verdict.reason:
        lines.append(escape(verdict.reason))
    return [*lines, *map(settling_line, verdict.settling)]


def _estimate(interval: Interval) -> str:
    return f"{interval.estimate:.3f} ({interval.low:.3f} … {interval.high:.3f})"


def settling_line(settling: Settling) -> str:
    """What would settle an open check."""
    ways = []
    if settling.trials is not None:
        costs = [f"{settling.simulations:,} more simulations" if settling.simulations else ""]
        costs.append("" if settling.cost is None else f"about {dollars(settling.cost)}")
        costs.append("" if settling.tokens is None else f"{settling.tokens / 1e6:.1f} M tokens")
        ways.append(f"{settling.trials} trials of each task ({', '.join(filter(None, costs))})")
    if settling.tasks is not None:
        ways.append(f"{settling.tasks:,} tasks of as many trials")
    if not ways:
        return f"{settling.check}: {OBSTACLES[settling.obstacle]}"
    return f"{settling.check}: an effect like this one would be settled by {' or by '.join(ways)}"


def decision_line(verdict: Verdict) -> str:
    """The verdict in one line of rich's markup."""
    facts = (
        f"policy {verdict.policy}, goal {verdict.goal.value}, {verdict.label.value} evidence, "
        f"{verdict.tasks} task{'' if verdict.tasks == 1 else 's'} compared"
    )
    if verdict.look is not None and verdict.alpha is not None:  # a policy without a level spends none of it
        facts += f", {verdict.test}, level {verdict.alpha:.4f}"
    if verdict.decision is None:
        return f"[bold]no harm detected[/] (a guard can only block or discard) · {facts}"
    return f"[{_COLOURS[verdict.decision]}]{verdict.decision.value.upper()}[/] · {facts}"


def invariants_line(figures: Metrics) -> str:
    """How many simulations broke which invariant; empty if none did, or if none was checked."""
    found = figures.invariants
    if found is None or not found.broke:
        return ""
    by_name = ", ".join(f"{name.value} {count}" for name, count in found.by_invariant.items())
    return f"invariants: {found.broke} of {found.simulations} simulations broke at least one: {by_name}"


def pass_hat(figures: Metrics) -> str:
    """pass^k for k = 1, 2, 4, … as far as the trials go."""
    return " ".join(number(figures.pass_hat[k]) for k in (1, 2, 4, 8, 16) if k in figures.pass_hat) or NOTHING
