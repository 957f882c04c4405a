"""Markdown for GitHub, with untrusted texts as code.

Task ids, names and notes may come from a model or from a stranger's pull request. Each of these texts becomes
a code span or a fenced block, which GitHub does not turn into a link, image, mention, reference or HTML.
"""

import re
from collections.abc import Iterable, Sequence

from pytest_trace2evolve.utils.sanitize import sanitize

LONGEST_NAME, LONGEST_TEXT = 240, 400
"""Maximum number of characters shown of an untrusted name, and of an untrusted sentence."""

_OTHER_BLANK = re.compile(r"[^\S ]")
"""White space other than the plain space: newlines, tabs, wide spaces."""


def code(text: str, longest: int = LONGEST_NAME) -> str:
    """An untrusted text as a code span of one line, cut to `longest` characters."""
    # Cut first, because a text may have megabytes. Joining white space shortens it too little to matter.
    shown = _clipped(" ".join(_visible(text[: 2 * longest]).split()), longest)
    if not shown:
        return "*(empty)*"
    fence = _fence(shown, 1)
    # A backtick at either end would join the fence; CommonMark strips one space from both ends.
    pad = " " if shown[0] == "`" or shown[-1] == "`" else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def cell(text: str, longest: int = LONGEST_NAME) -> str:
    """An untrusted text as a code span that a table does not split into cells."""
    return code(text.replace("|", "¦"), longest)


def fenced(text: str) -> str:
    """An untrusted text as a fenced block of code that keeps its lines."""
    lines = [_visible(line) for line in text.replace("\r\n", "\n").split("\n")]
    fence = _fence("\n".join(lines), 3)
    return "\n".join([f"{fence}text", *lines, fence])


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """A table; a column without any content is left out, and an empty cell is shown as a dash.

    Args:
        headings: The heading of each column.
        rows: Rows of cells, made by `code` or `cell` or written by this package.
        words: Number of leading columns that hold text and are aligned to the left; the others hold figures.
    """
    body = [list(row) for row in rows]
    kept = [place for place in range(len(headings)) if any(row[place] for row in body)]
    rule = ["---" if place < words else "---:" for place in kept]
    lines = [[headings[place] for place in kept], rule]
    lines += [[row[place] or "–" for place in kept] for row in body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def names(title: str, entries: Sequence[str], most: int, longest: int = LONGEST_NAME) -> str:
    """One line with the number of untrusted names, the first `most` of them, and the number of the rest."""
    head = f"**{title} ({len(entries)})**"
    if not most:
        return head
    rest = len(entries) - most
    shown = ", ".join(code(entry, longest) for entry in entries[:most])
    return f"{head}: {shown}" + (f" and {rest} more" if rest > 0 else "")


def figure(value: float | None) -> str:
    """A figure with three decimals; whole numbers above 1 have none, and None becomes an empty text."""
    if value is None:
        return ""
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    return f"{value:z.3f}" if value != int(value) or abs(value) <= 1 else str(int(value))


def _visible(text: str) -> str:
    """A text with control, format, private and unassigned characters escaped."""
    return sanitize(_OTHER_BLANK.sub(" ", text))


def _clipped(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _fence(text: str, shortest: int) -> str:
    """A run of backticks that is longer than any in the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(shortest, longest + 1)
