"""Renders pictures with matplotlib: equal figures give equal files."""

import io
from collections.abc import Callable
from typing import Any

from pytest_trace2evolve.utils.optional import require


def render(draw: Callable[[Any], None], *, width: float, height: float, file_format: str = "svg") -> bytes:
    """The picture that `draw` makes of an empty figure of so many inches.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    require("matplotlib", extra="plot")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # No date and fixed ids: the same figures give the same file.
    metadata = {"Date": None} if file_format == "svg" else {"Software": None}
    with rc_context({"svg.hashsalt": "trace2evolve", "font.size": 9}):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        content = io.BytesIO()
        figure.savefig(content, format=file_format, dpi=150, metadata=metadata)
    return content.getvalue()
