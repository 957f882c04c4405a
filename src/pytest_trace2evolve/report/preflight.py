"""Renders what a planned run costs and can show."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pytest_trace2evolve.gate.intervals import POWER
from pytest_trace2evolve.gate.power import TARGET_GAIN, Design
from pytest_trace2evolve.gate.stages import Preflight
from pytest_trace2evolve.records.completion import Usage
from pytest_trace2evolve.report.formatting import (
    FigureColumn,
    WordColumn,
    format_dollars,
    format_points,
    make_grid,
    make_terminal_console,
    rendered_text,
)
from pytest_trace2evolve.report.progress import format_short_count

if TYPE_CHECKING:
    from pytest_trace2evolve.session.preflight import SplitPreflight


def preflight_text(splits: Iterable["SplitPreflight"]) -> str:
    """Render what a run costs and can show on each of its splits."""
    parts = []
    for found in splits:
        name = f"{found.suite}::{found.split}"
        if found.obstacle:
            parts.append(f"{name} cannot decide: {found.obstacle}\n")
        elif found.result is None:
            parts.append(f"{name}: {found.note}\n")
        else:
            parts.append(f"{name}, baseline {found.baseline}\n{stages_text(found.result, found.usage)}")
    return "\n".join(parts)


def stages_text(result: Preflight, usage: Usage | None = None) -> str:
    """Render simulated runs in stages. `usage` is that of one simulation, if it is known."""
    design, schedule = result.design, result.schedule
    ends = [WordColumn("true gain"), FigureColumn("promoted"), FigureColumn("simulations")]
    ends += [FigureColumn("tokens"), FigureColumn("cost")] if usage else []
    ends += [FigureColumn(f"end at {trials}") for trials in schedule if len(schedule) > 1]
    table = make_grid(*ends)
    for forecast in result.forecasts:
        count = forecast.simulations
        cells = ["none" if forecast.effect == 0 else f"{format_points(forecast.effect)} points"]
        cells += [f"{forecast.promoted:.0%}", f"{count:,.0f}"]
        if usage:
            cost = "–" if usage.cost is None else format_dollars(count * usage.cost)
            cells += [format_short_count(round(count * usage.tokens)), cost]
        table.add_row(*cells, *(f"{share:.0%}" for share in forecast.ended if len(schedule) > 1))
    console = make_terminal_console()
    stages = f"stages of {', '.join(map(str, schedule))}" if len(schedule) > 1 else str(schedule[0])
    console.print(
        f"{design.tasks} tasks × {stages} trials of the candidate, against {design.baseline_trials} of the "
        "baseline; means of simulated runs, with confirmation",
        soft_wrap=True,
    )
    console.print(table)
    smallest = result.smallest_gain
    points = "none" if smallest is None else f"about {format_points(smallest, '.2g')} points"
    console.print(f"smallest gain promoted with {POWER:.0%}: {points}")
    if result.alternatives:
        texts = [f"{_design_text(other, design)} {share:.0%}" for other, share in result.alternatives]
        gain = format_points(TARGET_GAIN)
        console.print(f"{gain} points with as many simulations: {'; '.join(texts)}", soft_wrap=True)
    return rendered_text(console)


def _design_text(other: Design, planned: Design) -> str:
    """Describe a design, and the simulations that it takes once for the baseline."""
    planned_baseline, other_baseline = (
        design.tasks * (design.baseline_trials or 0) for design in (planned, other)
    )
    further = f"({other_baseline - planned_baseline:,} simulations once):"
    if other.tasks == planned.tasks:
        return f"with {other.baseline_trials} trials of the baseline {further}"
    trials = "trial" if other.trials == 1 else "trials"
    return f"with {other.tasks} tasks of up to {other.trials} {trials} {further}"
