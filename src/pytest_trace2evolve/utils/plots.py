"""Draws plots. Only this module uses matplotlib, and equal data give equal files."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_trace2evolve.utils.optional import require

PLOT_FORMATS = ("svg", "png")

SMOOTHED_STEPS = 5
"""Number of steps that the smoothed line of a training curve averages."""

_BLUE, _GREY, _RED = "#3f76b5", "#8a8a8a", "#c0504d"
_OUTCOME_COLORS = (_RED, "#d9d9d9", "#5b8fc9")
_MIN_LABELLED_SHARE = 0.05
"""The smallest share that gets a label in its bar."""

_POINT_WIDTH, _POINT_HEIGHT = 0.04, 0.06
"""The horizontal and vertical distances below which one point would hide another."""


def draw_picture(
    draw: Callable[[Any], None], *, width: float, height: float, file_format: str = "svg"
) -> bytes:
    """Return the content of a picture file; `draw` fills a matplotlib figure of `width` by `height` inches.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    require("matplotlib", extra="plot")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # No date and fixed ids, so the same data give the same file.
    with rc_context({"svg.hashsalt": "trace2evolve", "font.size": 9}):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        file = io.BytesIO()
        metadata = {"Date": None} if file_format == "svg" else {"Software": None}
        figure.savefig(file, format=file_format, dpi=150, metadata=metadata)
    return file.getvalue()


@dataclass(frozen=True)
class OutcomeBars:
    """One panel of bars: for each label, the shares of three outcomes, from bad to good."""

    title: str
    labels: Sequence[str]
    shares: Mapping[str, Sequence[float]]


def draw_outcome_bars(
    panels: Sequence[Sequence[OutcomeBars]], *, title: str, x_label: str, file_format: str
) -> bytes:
    """Draw panels of stacked bars, in rows and columns."""

    def draw(figure: Any) -> None:
        axes = figure.subplots(len(panels), len(panels[0]), squeeze=False, sharex=True, sharey=True)
        for row, row_bars in zip(axes, panels, strict=True):
            for axis, bars in zip(row, row_bars, strict=True):
                _draw_outcome_panel(axis, bars)
        for axis in axes[-1]:
            axis.set_xlabel(x_label)
        figure.suptitle(title, fontsize=10)
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)

    return draw_picture(draw, width=8.4, height=1.3 + 2.0 * len(panels), file_format=file_format)


def _draw_outcome_panel(axis: Any, bars: OutcomeBars) -> None:
    bottoms = [0.0] * len(bars.labels)
    for (outcome, shares), color in zip(bars.shares.items(), _OUTCOME_COLORS, strict=True):
        container = axis.bar(range(len(shares)), shares, bottom=bottoms, color=color, label=outcome)
        percentages = [f"{100 * share:.0f} %" if share >= _MIN_LABELLED_SHARE else "" for share in shares]
        axis.bar_label(container, percentages, label_type="center", fontsize=8)
        bottoms = [bottom + share for bottom, share in zip(bottoms, shares, strict=True)]
    axis.set_xticks(range(len(bars.labels)), bars.labels)
    axis.set_ylim(0, 1)
    axis.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    axis.set_title(bars.title, fontsize=9, loc="left")
    axis.spines[["top", "right"]].set_visible(False)


@dataclass(frozen=True)
class ContrastPoint:
    """One capability: its coverage, its Δ with an interval, its Δ per run, and whether it was selected."""

    name: str
    coverage: float
    delta: float
    low: float | None
    high: float | None
    by_run: Sequence[float]
    is_selected: bool


def draw_contrast_points(
    points: Sequence[ContrastPoint],
    *,
    title: str,
    runs_title: str,
    coverage_threshold: float,
    delta_threshold: float,
    file_format: str,
) -> bytes:
    """Draw a point per capability with Δ's interval (left), and Δ per run (right)."""

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        _draw_contrast_panel(left, points)
        left.axhline(delta_threshold, color=_RED, linewidth=0.8, linestyle="--")
        left.axvline(coverage_threshold, color=_RED, linewidth=0.8, linestyle="--")
        left.axhline(0, color="black", linewidth=0.5)
        _draw_runs_panel(right, points)
        right.axvline(delta_threshold, color=_RED, linewidth=0.8, linestyle="--")
        right.set_title(runs_title, fontsize=9, loc="left")
        for axis in (left, right):
            axis.spines[["top", "right"]].set_visible(False)
        figure.suptitle(title, fontsize=10)

    return draw_picture(draw, width=9.6, height=4.6, file_format=file_format)


def _draw_contrast_panel(axis: Any, points: Sequence[ContrastPoint]) -> None:
    for number, (point, x) in enumerate(zip(points, _spread_x_positions(points), strict=True), start=1):
        color = _BLUE if point.is_selected else _GREY
        low = point.delta if point.low is None else point.low
        high = point.delta if point.high is None else point.high
        error_lengths = [[max(point.delta - low, 0.0)], [max(high - point.delta, 0.0)]]
        axis.errorbar([x], [point.delta], yerr=error_lengths, fmt="o", markersize=12, color=color, capsize=3)
        axis.text(
            x, point.delta, str(number), ha="center", va="center", fontsize=7.5, color="white", zorder=9
        )
    lowest = min((point.low for point in points if point.low is not None), default=0.0)
    axis.set_xlim(-0.05, 1.05)
    axis.set_ylim(min(lowest, -0.2) - 0.05, 1.1)
    axis.set_xlabel("coverage: share of failures that lack it")
    axis.set_ylabel("Δ: how much more often failures lack it")
    axis.set_title("blue: selected; dashed: the thresholds", fontsize=9, loc="left")


def _spread_x_positions(points: Sequence[ContrastPoint]) -> list[float]:
    """Return each point's x: its coverage, moved a little to the right if it would hide another point."""
    positions: list[tuple[float, float]] = []
    for point in points:
        x = point.coverage
        while any(
            abs(x - other_x) < _POINT_WIDTH and abs(point.delta - other_y) < _POINT_HEIGHT
            for other_x, other_y in positions
        ):
            x += _POINT_WIDTH
        positions.append((x, point.delta))
    return [x for x, _ in positions]


def _draw_runs_panel(axis: Any, points: Sequence[ContrastPoint]) -> None:
    names = [f"{point.name.replace('_', ' ')}  {number}" for number, point in enumerate(points, start=1)]
    for row, point in enumerate(points):
        color = _BLUE if point.is_selected else _GREY
        axis.plot(point.by_run, [row] * len(point.by_run), "|", color=color, markersize=14)
    axis.set_yticks(range(len(names)), names, fontsize=7.5)
    axis.invert_yaxis()
    axis.set_xlim(-1.05, 1.05)
    axis.set_xlabel("Δ, run by run")


def draw_training_curve(curve: Sequence[Mapping[str, Any]], *, title: str) -> bytes:
    """Draw the rewards and the KL divergence of a training run, step by step, as SVG."""
    steps = [step["step"] for step in curve]
    rewards = [step["reward"] for step in curve]
    smoothed_rewards = [
        sum(rewards[max(0, end - SMOOTHED_STEPS) : end]) / min(end, SMOOTHED_STEPS)
        for end in range(1, len(rewards) + 1)
    ]
    divergence = [(step["step"], step["kl"]) for step in curve if step.get("kl") is not None]

    def draw(figure: Any) -> None:
        reward_axis, divergence_axis = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        reward_axis.plot(steps, rewards, "o", markersize=2.5, color="#9dbce0", label="mean reward of a step")
        reward_axis.plot(steps, smoothed_rewards, color="#2f6fb3", label=f"mean of {SMOOTHED_STEPS} steps")
        reward_axis.plot(
            steps,
            [step["informative"] for step in curve],
            color="#c9a24f",
            linewidth=0.9,
            label="groups whose rewards differ",
        )
        reward_axis.set_ylim(0, 1.02)
        reward_axis.legend(loc="lower right", frameon=False)
        reward_axis.set_title(title, fontsize=10)
        if divergence:
            divergence_axis.plot(*zip(*divergence, strict=True), "o-", markersize=3, color="#7a7a7a")
        divergence_axis.set_ylabel("KL, nats")
        divergence_axis.set_ylim(bottom=0)
        divergence_axis.set_xlabel("step")

    return draw_picture(draw, width=7.2, height=4.2)
