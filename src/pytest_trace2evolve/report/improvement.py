"""Renders searches, environments, training runs and routers for the terminal."""

import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from pytest_trace2evolve.improve.arena import SearchResult
from pytest_trace2evolve.improve.routing import accuracy
from pytest_trace2evolve.improve.search import Row, Status
from pytest_trace2evolve.improve.search_sessions import SearchPlan
from pytest_trace2evolve.records.adapter import ConfusionMatrix, HeldOutRewards, RewardChange
from pytest_trace2evolve.records.environment import (
    AdmissionReport,
    Calibration,
    CalibrationOutcome,
    DifficultyResult,
)
from pytest_trace2evolve.report.charts import ClimbPoint, climb_chart
from pytest_trace2evolve.report.formatting import (
    NOT_MEASURED,
    FigureColumn,
    FoldColumn,
    WordColumn,
    fits,
    format_points,
    make_grid,
    make_terminal_console,
    render_parts,
    table_text,
)
from pytest_trace2evolve.report.view import view_page
from pytest_trace2evolve.training.heldout import reward_change, top_change
from pytest_trace2evolve.utils.sanitize import sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.environments.calibration import EnvironmentStatus


def plan_text(plan: SearchPlan) -> str:
    """Return one line about a search before it starts."""
    limits = {
        "proposals": plan.budgets.proposals,
        "simulations": plan.budgets.simulations,
        "minutes": plan.budgets.minutes,
        "US dollars": plan.budgets.cost,
    }
    budget = ", ".join(f"{limit:g} {name}" for name, limit in limits.items() if limit is not None)
    return (
        f"improve {plan.root} on {plan.suite}: {len(plan.groups)} discovery tasks screen, "
        f"{len(plan.gated_tasks)} tasks gate, {plan.trials} trial{'' if plan.trials == 1 else 's'} each; "
        f"budget: {budget or 'none'}, or {plan.rules.plateau} proposals without a promotion"
    )


def search_text(plan: SearchPlan, result: SearchResult) -> str:
    """Render the outcome of each proposal, both controls, the usage and the next step."""
    columns = [*map(FoldColumn, ("candidate", "parent", "gain", "tasks", "status"))]
    columns += [Column(heading, overflow="fold") for heading in ("verdict", "hypothesis")]
    hypotheses = {proposal.id: proposal.hypothesis for proposal in result.state.proposals}
    cells = (
        (row.candidate, row.parent, _gain_text(row), str(row.tasks), row.status.value, row.verdict)
        for row in result.rows
    )
    rows = (map(Text, (*row, hypotheses.get(row[0], ""))) for row in cells)
    table = table_text(columns, rows)
    return "\n".join([table.rstrip("\n"), *_lines(plan, result)])


def search_page(plan: SearchPlan, result: SearchResult) -> str:
    """Render a search as a page: the climb with each proposal's parent and cost, and the outcomes."""
    at = {plan.root: (0, 0.0)}
    used = sum(map(result.state.simulations_of, (plan.root, plan.null_arm)))
    points, rows = [], []
    hypotheses = {proposal.id: proposal.hypothesis for proposal in result.state.proposals}
    for row in result.rows:
        simulations = result.state.simulations_of(row.candidate)
        used += simulations
        if row.gain is not None and row.error is not None:
            origin = at[row.parent]
            at[row.candidate] = used, origin[1] + row.gain
            points.append(
                ClimbPoint(row.candidate, row.status.value, used, origin, at[row.candidate][1], row.error)
            )
        rows.append((row, hypotheses.get(row.candidate, ""), _gain_text(row), simulations))
    return view_page(
        "search",
        f"improve {plan.root} on {plan.suite}",
        climb=climb_chart(points),
        rows=rows,
        lines=_lines(plan, result),
    )


def _gain_text(row: Row) -> str:
    return "" if row.gain is None or row.error is None else f"{100 * row.gain:+.1f} ± {100 * row.error:.1f}"


def _lines(plan: SearchPlan, result: SearchResult) -> list[str]:
    state, lines = result.state, []
    if (null := result.null_gain) is not None and result.best_of_two is not None:
        noise = "this difference is noise" if null.mean or null.error else "equal answers show no noise"
        lines.append(
            f"null arm ({plan.null_arm}): {100 * null.mean:+.1f} ± {100 * null.error:.1f} points on "
            f"{null.tasks} tasks; the parent under another name, so {noise}"
        )
        lines.append(
            f"best of 2 runs of {plan.root}: {max(result.means):.3f} by run, {result.best_of_two:.3f} by "
            f"task; first run {result.means[0]:.3f}"
        )
    lines += [f"{row.candidate}: {row.verdict}: {row.reason}" for row in result.rows if row.reason]
    count = len(state.proposals)
    lines.append(
        f"{count} proposal{'' if count == 1 else 's'}, {state.simulations_of():,} simulations, "
        f"{state.usage.tokens:,} tokens"
        + ("" if not state.usage.cost else f", ${state.usage.cost:.2f}")
        + f", {state.minutes:.1f} minutes"
    )
    if result.stopped:
        open_text = "" if count == len(result.rows) else f"; undecided proposals: {count - len(result.rows)}"
        lines.append(f"stopped: {result.stopped}{open_text}; rerun with a larger budget to resume")
    kept = [row for row in result.rows if row.status is Status.KEEP]
    if kept:
        lines.append(f"best: {result.best}, after {len(kept)} promotion{'' if len(kept) == 1 else 's'}")
    else:
        lines.append(f"nothing was promoted; the best candidate is still {plan.root}")
    return lines


def search_json(result: SearchResult) -> str:
    """Render the outcome as JSON."""
    null = result.null_gain
    content: dict[str, Any] = {
        "best": result.best,
        "stopped": result.stopped,
        "rows": [vars(row) for row in result.rows],
        "null_arm": None if null is None else vars(null),
        "best_of_two": result.best_of_two,
        "simulations": result.state.simulations_of(),
        "usage": result.state.usage.model_dump(mode="json"),
        "minutes": result.state.minutes,
    }
    return json.dumps(content, indent=1, ensure_ascii=False)


def environments_text(environments: "Sequence[EnvironmentStatus]") -> str:
    """Render environments as a table."""
    texts = (Column(heading, overflow="fold") for heading in ("calibrated", "pays"))
    return table_text(
        (FoldColumn("environment"), FoldColumn("digest"), *texts),
        (
            (Text(item.name), item.digest[:12], Text(_calibration_state(item)), Text(item.pays))
            for item in environments
        ),
    )


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
    verdict = "admitted" if report.passed else "rejected"
    return table_text(
        (FoldColumn("check"), FoldColumn("passed"), Column("detail", overflow="fold")),
        ((Text(line.check), "yes" if line.passed else "NO", Text(line.detail)) for line in report.checks),
        title=f"{report.capability}: {verdict}, {report.seeds} seeds in {report.seconds:.1f} s",
    )


def calibrations_text(calibrations: Sequence[Calibration]) -> str:
    """Render calibrations, one row per measured difficulty, with advice if no difficulty fits."""
    headings = [
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
    ]
    return table_text(
        (*map(FoldColumn, headings), Column("outside", overflow="fold")),
        (
            map(Text, _calibration_row(calibration.capability, result))
            for calibration in calibrations
            for result in calibration.tried
        ),
        notes=(f"{item.capability}: {item.advice}" for item in calibrations if item.advice),
    )


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
    if not fits(table, make_terminal_console()):
        table = _heldout_table(rows, _HELDOUT_HEADINGS[:3])
    first = after[names[0]]
    sizes = sorted({len(heldout.rewards) for heldout in after.values()}, reverse=True)
    n_lost = sum(heldout.lost for side in (before, after) for heldout in side.values())
    lost_text = f", {n_lost} of them lost" if n_lost else ""
    legend = (
        f"{' or '.join(map(str, sizes))} scenarios × {max(map(len, first.rewards))} rollouts each, before "
        f"and after{lost_text}; temperature {first.temperature:g}; intervals by scenario."
    )
    return render_parts(table, (legend, "dim"))


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
    recent_steps = curve[-5:]
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
