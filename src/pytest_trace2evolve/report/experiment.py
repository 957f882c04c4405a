"""An experiment in the terminal, as Markdown, and as pictures."""

import io
from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from pytest_trace2evolve._optional import require
from pytest_trace2evolve.report.markdown import code, fenced, table
from pytest_trace2evolve.report.score import terminal
from pytest_trace2evolve.report.terminal import rendered
from pytest_trace2evolve.workflow.experiments.arms import ARMS, MERGES, candidates_of, pieces_of, trained_for
from pytest_trace2evolve.workflow.experiments.figures import Arm, Figures, Point, Results
from pytest_trace2evolve.workflow.experiments.intervals import Mean
from pytest_trace2evolve.workflow.experiments.plan import Plan

CURVE, ADAPTERS, REPORT, RESULTS = "rollouts.svg", "adapters.svg", "report.md", "results.json"
"""The files that are written beside the pieces."""

METHOD = (
    "Means over seeds and tasks. Intervals are 95 %: seeds and tasks within their cell are two crossed "
    "random factors (analysis of variance, Satterthwaite's degrees of freedom); where all rewards are equal, "
    "Wilson's over tasks. They hold one at a time."
)
"""How intervals are made."""

RULES = (
    "`gepa` draws its sentences from the rulebook in `training/pocket/rules.toml`: the embedded model cannot "
    "write prompts. Its training has seen these very sentences, and it says nothing of GEPA with a model "
    "that reflects."
)
"""What must be known of the arm `gepa`."""


def plan_text(plan: Plan) -> str:
    """Rollouts of every arm, before anything begins."""
    target = terminal()
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    shown.add_column("arm", no_wrap=True)
    for heading in ("training", "other adapters", "choosing"):
        shown.add_column(heading, justify="right", no_wrap=True)
    shown.add_column("what it is", overflow="fold")
    choosing = {arm: len(names) for arm, names in candidates_of(plan).items()}
    others = plan.rollouts * (len(plan.capabilities) - 1)
    for arm, told in ARMS.items():
        trained = sum(plan.rollouts_of(one) for one in trained_for(plan, arm, plan.capabilities[0]))
        trained = plan.rollouts if arm == "gepa" else trained
        chosen = choosing.get(arm, 0) * plan.validation * len(plan.cells)
        row = (trained, others if arm == "single-whole" else 0, chosen)
        shown.add_row(Text(arm), *map(str, row), Text(told))
    target.print(shown)
    tasks = plan.tasks * len(plan.cells)
    target.print(
        f"Rollouts for each of {plan.seeds} seeds; {len(plan.trainings())} adapters a seed. Evaluation, in "
        f"no budget: {len(pieces_of(plan))} × {tasks} held-out tasks a seed, and {len(ARMS)} × "
        f"{plan.scenarios * plan.repeats * len(plan.capabilities)} rollouts in environments.\n"
        f"Selected: {', '.join(plan.capabilities)}. Control: {plan.control}.",
        soft_wrap=True,
        highlight=False,
    )
    return rendered(target)


def results_text(results: Results) -> str:
    """A row an arm."""
    target = terminal()
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for place in _SHOWN:
        shown.add_column(_HEADINGS[place], justify="right" if place else "left", no_wrap=True)
    for arm in results.arms:
        row = _row(arm)
        shown.add_row(*(Text(row[place]) for place in _SHOWN))
    target.print(shown)
    target.print(f"[dim]{METHOD} {RULES}[/]", soft_wrap=True, highlight=False)
    return rendered(target)


_HEADINGS = (
    "arm",
    "rollouts",
    "one capability, %",
    "two, %",
    "all, %",
    "change, points",
    "wishes, %",
    "environments",
)
_SHOWN = (0, 1, 2, 3, 5, 6, 7)
"""Columns for which a terminal has room."""


def _row(arm: Arm) -> tuple[str, ...]:
    return (
        arm.name,
        str(arm.trained),
        percent(arm.rewards.one),
        percent(arm.rewards.two),
        percent(arm.rewards.every),
        points(arm.change.every) if arm.trained else "",
        percent(arm.wishes.every),
        share(arm.environments),
    )


def percent(mean: Mean) -> str:
    """A mean in per cent with its interval."""
    return _told(mean, lambda one: f"{100 * one:.1f}")


def points(mean: Mean) -> str:
    """A difference in points with its interval."""
    return _told(mean, lambda one: f"{100 * one:+.1f}".replace("-", "−"))


def share(mean: Mean) -> str:
    """A mean reward with its interval."""
    return _told(mean, lambda one: f"{one:.2f}")


def _told(mean: Mean, number: Callable[[float], str]) -> str:
    if mean.low is None or mean.high is None:
        return number(mean.mean)
    return f"{number(mean.mean)} ({number(mean.low)} to {number(mean.high)})"


def results_markdown(results: Results) -> str:
    """All of it, to be taken into a page of the docs."""
    plan = results.plan
    cells = [cell.name for cell in plan.cells]
    parts = [
        (
            f"{plan.seeds} seeds, {plan.rollouts} training rollouts an arm and seed, {plan.tasks} held-out "
            f"tasks a cell ({len(cells)} cells), {plan.scenarios} held-out scenarios × {plan.repeats} "
            f"rollouts an environment. {METHOD}"
        ),
        table(_HEADINGS, [(code(arm.name), *_row(arm)[1:]) for arm in results.arms]),
        _besides(results),
        "### By cell, %",
        table(
            ("arm", *(code(name) for name in cells)),
            [(code(arm.name), *(percent(arm.cells[name]) for name in cells)) for arm in results.arms],
        ),
        "### Change against the base, points",
        table(
            ("arm", "one capability", "two", "all"),
            [(code(arm.name), *_each(arm.change, points)) for arm in results.arms if arm.trained],
        ),
        "### By training rollouts, %",
        f"![Reward by training rollouts]({CURVE})",
        _points(results.curve, "rollouts"),
        "### By number of adapters, %",
        f"![Reward by number of adapters]({ADAPTERS})",
        _points(results.adapters, "adapters"),
        "### The router",
        _router(results),
        "### What was chosen",
        _choices(results),
        RULES,
    ]
    return "\n\n".join(parts) + "\n"


def _besides(results: Results) -> str:
    told = [
        f"`{arm.name}`: {arm.choosing} rollouts on validation tasks"
        + (f", and {arm.besides} of training the adapters it did not choose" if arm.besides else "")
        for arm in results.arms
        if arm.choosing
    ]
    return (
        f"In no budget, for each seed: {'; '.join(told)}. Evaluations in all: {results.evaluated} rollouts. "
        "Calibration of the environments was done before, on none of these."
    )


def _each(figures: Figures, told: Callable[[Mean], str]) -> tuple[str, str, str]:
    return told(figures.one), told(figures.two), told(figures.every)


def _points(found: Sequence[Point], what: str) -> str:
    rows = [
        (code(one.arm), str(one.at), *_each(one.rewards, percent), percent(one.wishes.every)) for one in found
    ]
    return table(("arm", what, "one capability", "two", "all", "wishes"), rows)


def _router(results: Results) -> str:
    labels = results.confusion.labels
    rows = [
        (code(label), *map(str, row)) for label, row in zip(labels, results.confusion.counts, strict=True)
    ]
    return (
        f"Right on {results.confusion.right} of {results.confusion.total} tasks of one capability; rows are "
        "what they call for, columns what was chosen.\n\n" + table(("", *(code(one) for one in labels)), rows)
    )


def _choices(results: Results) -> str:
    rows = [
        (str(place), code(one.single), code(one.whole), MERGES[one.merge])
        for place, one in enumerate(results.choices, start=1)
    ]
    chosen = table(("seed", "single", "single-whole", "weight in weight-merge"), rows)
    told = [
        f"Seed {place}, instruction of `gepa`:\n\n{fenced(text or '(none)')}"
        for place, text in enumerate(results.instructions, start=1)
    ]
    return "\n\n".join([chosen, *told])


def curve_svg(results: Results) -> bytes:
    """Reward by training rollouts as SVG; equal results give equal files.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    return _picture(_from_base(results, results.curve), "training rollouts of an arm")


def adapters_svg(results: Results) -> bytes:
    """Reward by the number of adapters as SVG; equal results give equal files.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    each = results.plan.rollouts // len(results.plan.capabilities)
    return _picture(_from_base(results, results.adapters), f"adapters, {each} training rollouts each")


def _from_base(results: Results, points: Sequence[Point]) -> list[Point]:
    """Points behind that of the base, from which each line begins."""
    base = next(arm for arm in results.arms if arm.name == "base")
    arms = dict.fromkeys(one.arm for one in points)
    return [*(Point(arm=arm, at=0, rewards=base.rewards, wishes=base.wishes) for arm in arms), *points]


_PANELS: dict[str, Callable[[Point], Mean]] = {
    "reward, one capability": lambda point: point.rewards.one,
    "reward, two capabilities": lambda point: point.rewards.two,
    "share of wishes, all tasks": lambda point: point.wishes.every,
}
_COLOURS = ("#2f6fb3", "#c9a24f", "#3f8f5f", "#7db88f", "#7a7a7a", "#8d5fa8", "#c0504d")


def _picture(found: Sequence[Point], what: str) -> bytes:
    require("matplotlib", extra="plot")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    arms = list(dict.fromkeys(one.arm for one in found))
    wide = max(one.at for one in found)
    with rc_context({"svg.hashsalt": "trace2evolve", "font.size": 9}):
        figure = Figure(figsize=(10.8, 4.0), layout="constrained")
        for axis, (title, mean_in) in zip(figure.subplots(1, len(_PANELS)), _PANELS.items(), strict=True):
            for place, arm in enumerate(arms):
                own = sorted((one for one in found if one.arm == arm), key=lambda one: one.at)
                # Side by side: intervals on one another could not be told apart.
                at = [one.at + (place - (len(arms) - 1) / 2) * wide / 120 for one in own]
                _line(axis, at, [mean_in(one) for one in own], arm, _COLOURS[place % len(_COLOURS)])
            axis.set_title(title, fontsize=9)
            axis.set_xlabel(what)
            axis.set_ylim(bottom=0)
            axis.set_xticks(sorted({one.at for one in found}))
            axis.spines[["top", "right"]].set_visible(False)
        handles, labels = axis.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        held = io.BytesIO()
        figure.savefig(held, format="svg", metadata={"Date": None})
    return held.getvalue()


def _line(axis: Any, at: Sequence[float], means: Sequence[Mean], arm: str, colour: str) -> None:
    below = [one.mean - (one.mean if one.low is None else one.low) for one in means]
    above = [(one.mean if one.high is None else one.high) - one.mean for one in means]
    spread = [[max(0.0, one) for one in side] for side in (below, above)]
    axis.errorbar(
        at,
        [one.mean for one in means],
        yerr=spread,
        fmt="o-",
        markersize=3,
        linewidth=1.2,
        elinewidth=0.6,
        color=colour,
        label=arm,
    )
