"""Pictures of plain figures. Only this module draws with matplotlib; equal figures give equal files."""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_trace2evolve.utils.optional import require

SMOOTHED_STEPS = 5
"""Steps over which the line of a training curve averages."""


def draw_picture(
    draw: Callable[[Any], None], *, width: float, height: float, file_format: str = "svg"
) -> bytes:
    """A picture file; `draw` gets an empty figure of matplotlib, `width` by `height` inches.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    require("matplotlib", extra="plot")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # No date and fixed ids: the same figures give the same file.
    with rc_context({"svg.hashsalt": "trace2evolve", "font.size": 9}):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        file = io.BytesIO()
        metadata = {"Date": None} if file_format == "svg" else {"Software": None}
        figure.savefig(file, format=file_format, dpi=150, metadata=metadata)
    return file.getvalue()


def training_curve(curve: Sequence[Mapping[str, Any]], *, title: str) -> bytes:
    """The rewards and the KL divergence of a training, step by step, as SVG."""
    steps = [step["step"] for step in curve]
    rewards = [step["reward"] for step in curve]
    smooth = [
        sum(rewards[max(0, end - SMOOTHED_STEPS) : end]) / min(end, SMOOTHED_STEPS)
        for end in range(1, len(rewards) + 1)
    ]
    divergence = [(step["step"], step["kl"]) for step in curve if step.get("kl") is not None]

    def draw(figure: Any) -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        above.plot(steps, rewards, "o", markersize=2.5, color="#9dbce0", label="mean reward of a step")
        above.plot(steps, smooth, color="#2f6fb3", label=f"mean of {SMOOTHED_STEPS} steps")
        above.plot(
            steps,
            [step["informative"] for step in curve],
            color="#c9a24f",
            linewidth=0.9,
            label="groups whose rewards differ",
        )
        above.set_ylim(0, 1.02)
        above.legend(loc="lower right", frameon=False)
        above.set_title(title, fontsize=10)
        if divergence:
            below.plot(*zip(*divergence, strict=True), "o-", markersize=3, color="#7a7a7a")
        below.set_ylabel("KL, nats")
        below.set_ylim(bottom=0)
        below.set_xlabel("step")

    return draw_picture(draw, width=7.2, height=4.2)
