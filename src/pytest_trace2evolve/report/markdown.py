"""Markdown for GitHub, with foreign texts as code.

Task ids, names and notes may come from a model or from a stranger's pull request. Each of them is a code span
or a fence of its own, so that GitHub makes no link, image, mention, reference or HTML of it.
"""

import re
from collections.abc import Iterable, Sequence

from pytest_trace2evolve.utils.sanitize import sanitize

LONGEST_NAME, LONGEST_TEXT = 240, 400
"""Characters of a foreign name and of a foreign sentence that are shown."""

_OTHER_BLANK = re.compile(r"[^\S ]")
"""New lines, tabs, wide blanks."""


def code(text: str, longest: int = LONGEST_NAME) -> str:
    """A foreign text as a code span of one line, cut to `longest` characters."""
    # Cut first: a text may have megabytes. Joined blanks shorten it by too little to matter.
    shown = _clipped(" ".join(_visible(text[: 2 * longest]).split()), longest)
    if not shown:
        return "*(empty)*"
    fence = _fence(shown, 1)
    # A backtick at an end would join the fence, and CommonMark takes one blank off both ends.
    pad = " " if shown[0] == "`" or shown[-1] == "`" else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def cell(text: str, longest: int = LONGEST_NAME) -> str:
    """A foreign text as a code span that a table does not split into cells."""
    return code(text.replace("|", "¦"), longest)


def fenced(text: str) -> str:
    """A foreign text as a block of code; its lines stay."""
    lines = [_visible(line) for line in text.replace("\r\n", "\n").split("\n")]
    fence = _fence("\n".join(lines), 3)
    return "\n".join([f"{fence}text", *lines, fence])


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """A table; a column without any content is left out, and an empty cell is shown as a dash.

    Args:
        headings: A heading a column.
        rows: Cells made by `code`, `cell` or of our own words.
        words: Leading columns that are aligned to the left; the others are figures.
    """
    body = [list(row) for row in rows]
    kept = [place for place in range(len(headings)) if any(row[place] for row in body)]
    rule = ["---" if place < words else "---:" for place in kept]
    lines = [[headings[place] for place in kept], rule]
    lines += [[row[place] or "–" for place in kept] for row in body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def names(title: str, entries: Sequence[str], most: int, longest: int = LONGEST_NAME) -> str:
    """A counted list of foreign names in one line: the first `most`, and how many more there are."""
    head = f"**{title} ({len(entries)})**"
    if not most:
        return head
    rest = len(entries) - most
    shown = ", ".join(code(entry, longest) for entry in entries[:most])
    return f"{head}: {shown}" + (f" and {rest} more" if rest > 0 else "")


def figure(value: float | None) -> str:
    """A figure with three decimals, whole numbers above 1 bare; empty if there is none."""
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
    """A run of backticks that the text does not hold."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(shortest, longest + 1)
