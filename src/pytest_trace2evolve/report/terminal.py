"""Pieces of the terminal's view: figures by split, the gate's table, the verdict in a line."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from pytest_trace2evolve.records.verdict import (
    CheckResult,
    CheckStatus,
    Decision,
    Interval,
    Obstacle,
    Settling,
    Verdict,
)
from pytest_trace2evolve.report.markdown import escape
from pytest_trace2evolve.report.progress import dollars
from pytest_trace2evolve.scoring.metrics import Metrics

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

SHOWN_TASKS, SHOWN_LETTERS = 12, 240
"""Task names, and letters of them, listed before the rest are counted."""


def figures_table(rows: Iterable[tuple[str, Metrics]]) -> Table:
    """Figures of each side or split, a row each: (title, metrics)."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for heading in ("tasks", "runs", "reward", "pass^k", "actions", "read", "write", "max steps", "lost"):
        table.add_column(heading, justify="right", no_wrap=heading == "pass^k")
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

    A column is left out where no check has such a figure; `shows` is the smallest effect that so many tasks
    and trials would have shown in four of five comparisons.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("check", no_wrap=True)
    table.add_column("answer", no_wrap=True)
    columns = [column for column in _COLUMNS if any(column[1](check) != _NOTHING for check in checks)]
    for heading, _ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("detail", overflow="fold")
    for check in checks:
        cells = [text(check) for _, text in columns]
        table.add_row(check.id, _coloured(check.status), *cells, escape(check.detail))
    return table


def verdict_lines(verdict: Verdict) -> list[str]:
    """What one verdict says below its table, in rich's markup."""
    lines = pass_hat_lines(verdict)
    for title, names in (
        ("fixed", verdict.fixed),
        ("broken", verdict.broken),
        ("regressions", verdict.regressions),
        ("suspected", verdict.suspected),
    ):
        if names:
            lines.append(f"{title} ({len(names)}): {escape(listed(names))}")
    if verdict.left_out:
        lines.append(
            f"left out ({len(verdict.left_out)}): {escape(listed(verdict.left_out, separator='; '))}"
        )
    if verdict.reason:
        lines.append(escape(verdict.reason))
    return [*lines, *(settling_line(one) for one in verdict.settling)]


def pass_hat_lines(verdict: Verdict) -> list[str]:
    """pass^k of both sides with their intervals, a line a k."""
    old, new = verdict.baseline.pass_hat, verdict.candidate.pass_hat
    return [f"pass^{k}: {_interval(old[k])} → {_interval(new[k])}" for k in sorted(old.keys() & new.keys())]


def settling_line(settling: Settling) -> str:
    """What would settle a check that is open."""
    ways = []
    if settling.trials is not None:
        costs = [f"{settling.simulations:,} more simulations" if settling.simulations else ""]
        costs.append("" if settling.cost is None else f"about {dollars(settling.cost)}")
        costs.append("" if settling.tokens is None else f"{settling.tokens / 1e6:.1f} M tokens")
        ways.append(f"{settling.trials} trials of each task ({', '.join(cost for cost in costs if cost)})")
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


def console(*, width: int, colour: bool) -> Console:
    """A console that renders into text of its own."""
    return Console(
        file=io.StringIO(),
        width=max(width, 60),
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
        soft_wrap=False,
    )


def rendered(target: Console) -> str:
    """What was printed on a console made by `console`, without trailing blanks."""
    assert isinstance(target.file, io.StringIO)
    return "\n".join(line.rstrip() for line in target.file.getvalue().splitlines())


def fits(table: Table, target: Console) -> bool:
    """Whether a console has room for a table, no cell of which may be cut."""
    unbounded = target.options.update(width=10_000)
    return Measurement.get(target, unbounded, table).maximum <= target.width


def number(value: float | None) -> str:
    """A figure with three decimals, whole numbers above 1 bare, a dash where there is none."""
    if value is None:
        return _NOTHING
    return f"{value:z.3f}" if value != int(value) or abs(value) <= 1 else str(int(value))


_NOTHING = "–"


def _p(value: float | None) -> str:
    if value is None:
        return _NOTHING
    return "<.001" if value < 0.0005 else f"{value:.3f}"


def _between(check: CheckResult) -> str:
    if check.low is None or check.high is None:
        return _NOTHING
    return f"{number(check.low)} … {number(check.high)}"


def _interval(one: Interval) -> str:
    return f"{one.estimate:.3f} ({one.low:.3f} … {one.high:.3f})"


_COLUMNS: tuple[tuple[str, Callable[[CheckResult], str]], ...] = (
    ("estimate", lambda check: number(check.estimate)),
    ("interval", _between),
    ("threshold", lambda check: number(check.threshold)),
    ("p", lambda check: _p(check.p)),
    ("shows", lambda check: number(check.detectable)),
)


def alarms_line(figures: Metrics) -> str:
    """How many simulations broke which invariant; empty where none did, or none was held against any."""
    found = figures.invariants
    if found is None or not found.broke:
        return ""
    by_name = ", ".join(f"{name.value} {count}" for name, count in found.by_invariant.items())
    return f"invariants: {found.broke} of {found.simulations} simulations broke at least one: {by_name}"


def pass_hat(figures: Metrics) -> str:
    """pass^k for k = 1, 2, 4, … as far as the trials go."""
    wanted = [k for k in (1, 2, 4, 8, 16) if k in figures.pass_hat]
    return " ".join(number(figures.pass_hat[k]) for k in wanted) or "–"


def _coloured(status: CheckStatus) -> str:
    text = "n/a" if status is CheckStatus.NOT_APPLICABLE else status.value
    return f"[{_COLOURS[status]}]{text}[/]"


def listed(names: Sequence[str], separator: str = ", ") -> str:
    """Names as far as there is room, and how many more there are."""
    shown: list[str] = []
    for name in names:
        if len(shown) == SHOWN_TASKS or (shown and len(separator.join([*shown, name])) > SHOWN_LETTERS):
            break
        shown.append(name)
    rest = len(names) - len(shown)
    return separator.join(shown) + (f" and {rest} more" if rest else "")
