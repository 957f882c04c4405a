"""What a training brought: the table of held-out rewards, and how it stands."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from pytest_trace2evolve.records.adapter import HeldOut, Measured
from pytest_trace2evolve.report.score import terminal
from pytest_trace2evolve.report.terminal import fits, rendered
from pytest_trace2evolve.training.heldout import reward_change, top_change

SMOOTH = 5
"""Steps over which its figures are averaged."""


def heldout_text(
    capabilities: Sequence[str], before: Mapping[str, HeldOut], after: Mapping[str, HeldOut]
) -> str:
    """A row an environment: those that were trained first."""
    target = terminal()
    names = [*capabilities, *(name for name in after if name not in capabilities)]
    rows = [
        (
            Text(name, "bold" if name in capabilities else ""),
            *_cells(reward_change(before[name], after[name])),
            *_cells(top_change(before[name], after[name])),
        )
        for name in names
    ]
    table = _table(rows, _HEADINGS)
    # Where a terminal is narrow, the share of top rewards is left out: it tells least.
    target.print(table if fits(table, target) else _table(rows, _HEADINGS[:3]))
    first = after[names[0]]
    sizes = sorted({len(one.rewards) for one in after.values()}, reverse=True)
    lost = sum(one.lost for side in (before, after) for one in side.values())
    target.print(
        f"[dim]{' or '.join(map(str, sizes))} scenarios × {max(map(len, first.rewards))} rollouts each, "
        f"before and after{f', {lost} of them lost' if lost else ''}; temperature {first.temperature:g}; "
        "intervals by scenario.[/]",
        soft_wrap=True,
    )
    return rendered(target)


_HEADINGS = ("held-out environment", "mean reward", "change (95 %)", "top share", "change (95 %)")


def _table(rows: Sequence[tuple[Text | str, ...]], headings: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row[: len(headings)])
    return table


def _cells(change: Measured) -> tuple[str, str]:
    points = f"{100 * change.change:+.1f}".replace("-", "−")
    if change.low is None or change.high is None:
        return f"{change.before:.2f} → {change.after:.2f}", points
    low, high = (f"{100 * one:+.1f}".replace("-", "−") for one in (change.low, change.high))
    return f"{change.before:.2f} → {change.after:.2f}", f"{points} ({low} to {high})"


def step_word(curve: Sequence[Mapping[str, Any]]) -> str:
    """How a training stands, for its progress bar."""
    recent = curve[-SMOOTH:]
    reward = sum(one["reward"] for one in recent) / len(recent)
    informative = sum(one["informative"] for one in recent) / len(recent)
    kl = next((one["kl"] for one in reversed(curve) if one.get("kl") is not None), None)
    told = f"reward {reward:.2f}, groups that differ {informative:.0%}"
    return told if kl is None else f"{told}, KL {kl:.3f}"
