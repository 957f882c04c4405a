"""The picture of a capability report: coverage against Δ with intervals, and how both hold over runs."""

import io
from typing import Any

from pytest_trace2evolve._optional import require
from pytest_trace2evolve.capabilities.select import STANDARD, Thresholds
from pytest_trace2evolve.records.capability import Assessment, CapabilityReport

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
