"""Render environments, training runs and routers for the terminal."""

import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from pytest_trace2evolve.improve.routing import accuracy
from pytest_trace2evolve.records.adapter import ConfusionMatrix, HeldOutRewards, RewardChange
from pytest_trace2evolve.records.environment import (
    AdmissionReport,
    Calibration,
    CalibrationOutcome,
    DifficultyResult,
)
from pytest_trace2evolve.report.formatting import (
    NOT_MEASURED,
    FigureColumn,
    WordColumn,
    fits,
    format_points,
    make_grid,
    make_terminal_console,
    rendered_text,
)
from pytest_trace2evolve.training.heldout import reward_change, top_change
from pytest_trace2evolve.utils.plots import SMOOTHED_STEPS
from pytest_trace2evolve.utils.sanitize import sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.environments.calibration import EnvironmentStatus


def environments_text(environments: "Sequence[EnvironmentStatus]") -> str:
    """Render environments as a table."""
    console = make_terminal_console()
    table = make_grid(
        Column("environment", overflow="fold", no_wrap=True),
        Column("digest", overflow="fold", no_wrap=True),
        Column("calibrated", overflow="fold"),
        Column("pays", overflow="fold"),
    )
    for environment in environments:
        state = _calibration_state(environment)
        table.add_row(Text(environment.name), environment.digest[:12], Text(state), Text(environment.pays))
    console.print(table)
    return rendered_text(console)


def _calibration_state(environment: "EnvironmentStatus") -> str:
    if not environment.calibrations:
        return "no"
    states = []
    for calibration in environment.calibrations:
        is_fitting = calibration.outcome is CalibrationOutcome.FITS
        state = f"difficulty {calibration.difficulty}" if is_fitting else "nothing fits"
        states.append(f"{calibration.model}: {state}")
    return "; ".join(states) + (" (of a different version)" if environment.is_stale else "")


def admission_text(report: AdmissionReport) -> str:
    """Render the checks of an admission as a table."""
    console = make_terminal_console()
    verdict = "admitted" if report.passed else "rejected"
    table = make_grid(
        Column("check", overflow="fold", no_wrap=True),
        Column("passed", overflow="fold", no_wrap=True),
        Column("detail", overflow="fold"),
        title=f"{report.capability}: {verdict}, {report.seeds} seeds in {report.seconds:.1f} s",
    )
    for line in report.checks:
        table.add_row(Text(line.check), "yes" if line.passed else "NO", Text(line.detail))
    console.print(table)
    return rendered_text(console)


def calibrations_text(calibrations: Sequence[Calibration]) -> str:
    """Render calibrations, one row per measured difficulty, with advice if no difficulty fits."""
    console = make_terminal_console()
    headings = (
        "environment",
        "difficulty",
        "mean",
        "std",
        "top",
        "zero",
        "differ",
        "pass@k",
        "lost",
        "tokens",
    )
    columns = [Column(heading, overflow="fold", no_wrap=True) for heading in headings]
    table = make_grid(*columns, Column("outside", overflow="fold"))
    for calibration in calibrations:
        for result in calibration.tried:
            table.add_row(*map(Text, _calibration_row(calibration.capability, result)))
    console.print(table)
    for calibration in calibrations:
        if calibration.advice:
            console.print(Text(f"{calibration.capability}: {calibration.advice}"))
    return rendered_text(console)


def _calibration_row(capability: str, result: DifficultyResult) -> list[str]:
    figures = result.figures
    return [
        capability,
        str(result.difficulty),
        f"{figures.mean:.2f}",
        f"{figures.std:.2f}",
        f"{figures.all_top:.0%}",
        f"{figures.all_zero:.0%}",
        f"{figures.informative:.0%}",
        " ".join(f"{k}:{value:.2f}" for k, value in figures.pass_at.items()),
        str(figures.lost),
        "?" if result.tokens is None else f"{result.tokens:.0f}",
        "; ".join(result.outside) or "fits",
    ]


_HELDOUT_HEADINGS = ("held-out environment", "mean reward", "change (95 %)", "top share", "change (95 %)")


def heldout_text(
    capabilities: Sequence[str], before: Mapping[str, HeldOutRewards], after: Mapping[str, HeldOutRewards]
) -> str:
    """Render held-out rewards before and after training, with the trained environments first."""
    console = make_terminal_console()
    names = [*capabilities, *(name for name in after if name not in capabilities)]
    rows = [
        (
            Text(name, "bold" if name in capabilities else ""),
            *_change_cells(reward_change(before[name], after[name])),
            *_change_cells(top_change(before[name], after[name])),
        )
        for name in names
    ]
    table = _heldout_table(rows, _HELDOUT_HEADINGS)
    # A narrow terminal omits the share of top rewards, which is the least informative figure.
    console.print(table if fits(table, console) else _heldout_table(rows, _HELDOUT_HEADINGS[:3]))
    first_result = after[names[0]]
    sizes = sorted({len(heldout.rewards) for heldout in after.values()}, reverse=True)
    n_lost = sum(heldout.lost for side in (before, after) for heldout in side.values())
    console.print(
        f"[dim]{' or '.join(map(str, sizes))} scenarios × {max(map(len, first_result.rewards))} rollouts "
        "each, "
        f"before and after{f', {n_lost} of them lost' if n_lost else ''}; temperature "
        f"{first_result.temperature:g}; "
        "intervals by scenario.[/]",
        soft_wrap=True,
    )
    return rendered_text(console)


def _heldout_table(rows: Sequence[tuple[Text | str, ...]], headings: Sequence[str]) -> Table:
    table = make_grid(WordColumn(headings[0]), *(FigureColumn(heading) for heading in headings[1:]))
    for row in rows:
        table.add_row(*row[: len(headings)])
    return table


def _change_cells(change: RewardChange) -> tuple[str, str]:
    interval_text = ""
    if change.low is not None and change.high is not None:
        interval_text = f" ({format_points(change.low, '.1f')} to {format_points(change.high, '.1f')})"
    return f"{change.before:.2f} → {change.after:.2f}", format_points(change.change, ".1f") + interval_text


def training_progress(curve: Sequence[Mapping[str, Any]]) -> str:
    """Summarize the last steps of a training run in a few words, for its progress bar."""
    recent_steps = curve[-SMOOTHED_STEPS:]
    reward = sum(step["reward"] for step in recent_steps) / len(recent_steps)
    informative = sum(step["informative"] for step in recent_steps) / len(recent_steps)
    kl = next((step["kl"] for step in reversed(curve) if step.get("kl") is not None), None)
    text = f"reward {reward:.2f}, groups that differ {informative:.0%}"
    return text if kl is None else f"{text}, KL {kl:.3f}"


ROUTING_WIDTH = 120


def routing_text(confusion: ConfusionMatrix) -> str:
    """Render a router's choices compared with the labels: a confusion table and the accuracy."""
    columns = [Column(str(position + 1), justify="right") for position in range(len(confusion.labels))]
    table = Table("label", *columns, Column("right", justify="right"), title_justify="left", box=None)
    for position, (label, row) in enumerate(zip(confusion.labels, confusion.counts, strict=True)):
        right_share = f"{row[position] / sum(row):.0%}" if sum(row) else NOT_MEASURED
        table.add_row(f"{position + 1} {sanitize_line(label)}", *map(str, row), right_share)
    text = io.StringIO()
    Console(file=text, width=ROUTING_WIDTH, color_system=None).print(table)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    accuracy_interval = accuracy(confusion)
    if accuracy_interval is not None:
        share, low, high = accuracy_interval
        lines.append(
            f"right: {share:.0%} of {confusion.total} held-out openings ({low:.0%} … {high:.0%}), by chance "
            f"{1 / len(confusion.labels):.0%}"
        )
    return "\n".join(lines) + "\n"


def routing_json(confusion: ConfusionMatrix) -> str:
    """Return a router's choices in their documented JSON form."""
    accuracy_interval = accuracy(confusion)
    fields = {
        "confusion": confusion.model_dump(mode="json"),
        "accuracy": None
        if accuracy_interval is None
        else dict(zip(("share", "low", "high"), accuracy_interval, strict=True)),
        "chance": 1 / len(confusion.labels),
    }
    return json.dumps(fields, indent=1) + "\n"
