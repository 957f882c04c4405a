"""The picture of a capability report: coverage against Δ with intervals, and how both hold over runs.

The picture of a calibration: what each policy decides, from a large loss to a large gain.
"""

import io
from typing import Any

from pytest_trace2evolve.diagnose.contrast import STANDARD, Thresholds
from pytest_trace2evolve.gate.calibration import Calibration
from pytest_trace2evolve.records.capability import Assessment, CapabilityReport
from pytest_trace2evolve.records.verdict import Decision, Goal
from pytest_trace2evolve.report.calibration import points
from pytest_trace2evolve.utils.optional import require

FORMATS = ("svg", "png")

_SHADES = {Decision.DISCARD: "#c0504d", Decision.INCONCLUSIVE: "#d9d9d9", Decision.PROMOTE: "#5b8fc9"}
_TOLD = 0.05
"""Shares from here on are written into their bar."""


def calibration_picture(found: Calibration, *, title: str, file_format: str) -> bytes:
    """A bar for every planted effect, policies in rows and goals in columns.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    require("matplotlib", extra="plot")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    names = list(found.margins)
    # No date and fixed ids: the same figures give the same file.
    with rc_context({"svg.hashsalt": "trace2evolve", "font.size": 9}):
        figure = Figure(figsize=(8.4, 1.3 + 2.0 * len(names)), layout="constrained")
        axes = figure.subplots(len(names), 2, squeeze=False, sharex=True, sharey=True)
        for row, name in zip(axes, names, strict=True):
            for axis, goal in zip(row, (Goal.IMPROVE, Goal.HOLD), strict=True):
                _bars(axis, found, name, goal)
        for axis in axes[-1]:
            axis.set_xlabel("true difference, points")
        drawn = f"{found.resamples} resamples of {found.pool.tasks} tasks × {found.draw.trials} trials a side"
        figure.suptitle(f"{title}\n{drawn}", fontsize=10)
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(_SHADES), frameon=False)
        held = io.BytesIO()
        metadata = {"Date": None} if file_format == "svg" else {"Software": None}
        figure.savefig(held, format=file_format, dpi=150, metadata=metadata)
    return held.getvalue()


def _bars(axis: Any, found: Calibration, name: str, goal: Goal) -> None:
    effects = sorted(effect for policy, one, effect in found.decisions if (policy, one) == (name, goal))
    decided = [found.decisions[name, goal, effect] for effect in effects]
    below = [0.0] * len(effects)
    for decision, shade in _SHADES.items():
        shares = [one.rate(decision).estimate for one in decided]
        drawn = axis.bar(range(len(effects)), shares, bottom=below, color=shade, label=decision.value)
        told = [f"{100 * share:.0f} %" if share >= _TOLD else "" for share in shares]
        axis.bar_label(drawn, told, label_type="center", fontsize=8)
        below = [low + share for low, share in zip(below, shares, strict=True)]
    axis.set_xticks(range(len(effects)), [points(effect) if effect else "0" for effect in effects])
    axis.set_ylim(0, 1)
    axis.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    axis.set_title(f"{name}, goal {goal.value}", fontsize=9, loc="left")
    axis.spines[["top", "right"]].set_visible(False)


_SELECTED, _OTHER = "#3f76b5", "#8a8a8a"
_WIDTH, _HEIGHT = 0.04, 0.06
"""Of a point: of two that stand closer to each other, one would hide the other."""


def capability_picture(
    found: CapabilityReport, *, file_format: str, thresholds: Thresholds = STANDARD
) -> bytes:
    """Left: a point a capability with Δ's interval. Right: coverage and Δ run by run.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    require("matplotlib", extra="plot")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    measured = [one for one in found.capabilities if one.delta is not None and one.coverage is not None]
    # No date and fixed ids: the same figures give the same file.
    with rc_context({"svg.hashsalt": "trace2evolve", "font.size": 9}):
        figure = Figure(figsize=(9.6, 4.6), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        _contrast(left, measured, thresholds)
        _stability(right, measured, found.runs, thresholds)
        passed = found.traces - found.failed
        figure.suptitle(
            f"{found.failed} failed and {passed} passed traces, labelled by {found.labeller}", fontsize=10
        )
        held = io.BytesIO()
        metadata = {"Date": None} if file_format == "svg" else {"Software": None}
        figure.savefig(held, format=file_format, dpi=150, metadata=metadata)
    return held.getvalue()


def _contrast(axis: Any, measured: list[Assessment], thresholds: Thresholds) -> None:
    for number, (one, place) in enumerate(zip(measured, _apart(measured), strict=True), start=1):
        assert one.delta is not None
        colour = _SELECTED if one.selected else _OTHER
        low = one.delta if one.delta_low is None else one.delta_low
        high = one.delta if one.delta_high is None else one.delta_high
        spread = [[max(one.delta - low, 0.0)], [max(high - one.delta, 0.0)]]
        axis.errorbar([place], [one.delta], yerr=spread, fmt="o", markersize=12, color=colour, capsize=3)
        axis.text(
            place, one.delta, str(number), ha="center", va="center", fontsize=7.5, color="white", zorder=9
        )
    axis.axhline(thresholds.delta, color="#c0504d", linewidth=0.8, linestyle="--")
    axis.axvline(thresholds.coverage, color="#c0504d", linewidth=0.8, linestyle="--")
    axis.axhline(0, color="black", linewidth=0.5)
    lowest = min((one.delta_low for one in measured if one.delta_low is not None), default=0.0)
    axis.set_xlim(-0.05, 1.05)
    axis.set_ylim(min(lowest, -0.2) - 0.05, 1.1)
    axis.set_xlabel("coverage: share of failures that lack it")
    axis.set_ylabel("Δ: how much more often failures lack it")
    axis.set_title("blue: selected; dashed: the thresholds", fontsize=9, loc="left")
    axis.spines[["top", "right"]].set_visible(False)


def _apart(measured: list[Assessment]) -> list[float]:
    """Where each stands from left to right: at its coverage, moved a little where it would hide another."""
    places: list[tuple[float, float]] = []
    for one in measured:
        place, height = one.coverage or 0.0, one.delta or 0.0
        while any(abs(place - x) < _WIDTH and abs(height - y) < _HEIGHT for x, y in places):
            place += _WIDTH
        places.append((place, height))
    return [place for place, _ in places]


def _stability(axis: Any, measured: list[Assessment], runs: int, thresholds: Thresholds) -> None:
    names = [f"{one.name.replace('_', ' ')}  {number}" for number, one in enumerate(measured, start=1)]
    for place, one in enumerate(measured):
        values = [run.delta for run in one.by_run if run.delta is not None]
        colour = _SELECTED if one.selected else _OTHER
        axis.plot(values, [place] * len(values), "|", color=colour, markersize=14)
    axis.axvline(thresholds.delta, color="#c0504d", linewidth=0.8, linestyle="--")
    axis.set_yticks(range(len(names)), names, fontsize=7.5)
    axis.invert_yaxis()
    axis.set_xlim(-1.05, 1.05)
    axis.set_xlabel("Δ, run by run")
    told = "one run: the labeller agrees with itself" if runs == 1 else f"{runs} runs of the labeller"
    axis.set_title(told, fontsize=9, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
