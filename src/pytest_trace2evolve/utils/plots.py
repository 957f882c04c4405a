"""Draws plots. Only this module uses matplotlib, and equal data give equal files."""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_trace2evolve.utils.optional import require

SMOOTHED_STEPS = 5
"""Number of steps that the smoothed line of a training curve averages."""


def draw_picture(draw: Callable[[Any], None], *, width: float, height: float) -> bytes:
    """Return a picture as SVG; `draw` fills a matplotlib figure of `width` by `height` inches.

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
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


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
