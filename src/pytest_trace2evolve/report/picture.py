"""The picture of a calibration: what each policy decides, from a large loss to a large gain."""

import io
from typing import Any

from pytest_trace2evolve._optional import require
from pytest_trace2evolve.gate.calibration import Calibration
from pytest_trace2evolve.records.verdict import Decision, Goal
from pytest_trace2evolve.report.calibration import points

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
