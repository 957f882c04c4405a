"""An experiment's curves as pictures: reward by rollouts, and by number of adapters."""

import io
from collections.abc import Callable, Sequence
from typing import Any

from pytest_trace2evolve.utils.optional import require
from research.trace.arms import label_of
from research.trace.intervals import Mean
from research.trace.results import Point, Results

CURVE, ADAPTERS = "rollouts.svg", "adapters.svg"
"""The files of the pictures."""


def curve_svg(results: Results) -> bytes:
    """Reward by training rollouts as SVG; equal results give equal files.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    whole = label_of(results.plan, "single-whole")
    told = f"{_BARS} {whole}, dashed: each of its {len(results.plan.capabilities)} adapters got so many."
    return _picture(results, results.curve, "training rollouts", told)


def adapters_svg(results: Results) -> bytes:
    """Reward by the number of adapters as SVG; equal results give equal files.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    each = results.plan.rollouts // len(results.plan.capabilities)
    return _picture(results, results.adapters, f"adapters, {each} training rollouts each", _BARS)


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
_COLOURS = {
    "direct": "#2f6fb3",
    "merged": "#c9a24f",
    "routed": "#3f8f5f",
    "oracle-routed": "#7db88f",
    "control": "#7a7a7a",
    "gepa": "#8d5fa8",
    "single-whole": "#c0504d",
}
"""Of each arm, in every picture the same."""

_BARS = "Bars: 95 % intervals. At 0: the base model."


def _picture(results: Results, points: Sequence[Point], what: str, told: str) -> bytes:
    require("matplotlib", extra="plot")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    found = _from_base(results, points)
    arms = list(dict.fromkeys(one.arm for one in found))
    wide = max(one.at for one in found)
    with rc_context({"svg.hashsalt": "trace2evolve", "font.size": 9}):
        figure = Figure(figsize=(10.8, 4.2), layout="constrained")
        panels = figure.subplots(1, len(_PANELS), sharey=True)
        for axis, (title, mean_in) in zip(panels, _PANELS.items(), strict=True):
            for place, arm in enumerate(arms):
                own = sorted((one for one in found if one.arm == arm), key=lambda one: one.at)
                # Side by side: intervals on one another could not be told apart.
                at = [one.at + (place - (len(arms) - 1) / 2) * wide / 120 for one in own]
                _line(axis, at, [mean_in(one) for one in own], arm, label_of(results.plan, arm))
            axis.set_title(title, fontsize=9)
            axis.set_xlabel(what)
            axis.set_ylim(bottom=0)
            axis.set_xticks(sorted({one.at for one in found}))
            axis.tick_params(labelleft=True)
            axis.spines[["top", "right"]].set_visible(False)
        figure.suptitle(told, fontsize=8)
        handles, labels = axis.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        held = io.BytesIO()
        figure.savefig(held, format="svg", metadata={"Date": None})
    return held.getvalue()


def _line(axis: Any, at: Sequence[float], means: Sequence[Mean], arm: str, label: str) -> None:
    below = [one.mean - (one.mean if one.low is None else one.low) for one in means]
    above = [(one.mean if one.high is None else one.high) - one.mean for one in means]
    spread = [[max(0.0, one) for one in side] for side in (below, above)]
    axis.errorbar(
        at,
        [one.mean for one in means],
        yerr=spread,
        fmt="o--" if arm == "single-whole" else "o-",  # another budget than the axis says
        markersize=3,
        linewidth=1.2,
        elinewidth=0.6,
        color=_COLOURS[arm],
        label=label,
    )
