"""Render Markdown for GitHub, with untrusted texts as code.

Task ids, names and notes may come from a model or from a stranger's pull request. Each becomes a code span
or a fenced block, in which GitHub renders no link, image, mention, reference or HTML.
"""

import re
from collections.abc import Iterable, Sequence

from pytest_trace2evolve.utils.sanitize import sanitize, sanitize_file

MAX_NAME_LENGTH, MAX_TEXT_LENGTH = 240, 400
"""Maximum lengths of an untrusted name and of an untrusted sentence, in characters."""

_NON_SPACE_BLANK = re.compile(r"[^\S ]")
"""White space other than the plain space, such as newlines, tabs and wide spaces."""


def code_span(text: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """Render an untrusted text as a code span of one line, cut to `max_length` characters."""
    # Cut first, because a text may be megabytes long. Collapsing white space then shortens it only a little.
    clipped = _clip(" ".join(_escape_invisible(text[: 2 * max_length]).split()), max_length)
    if not clipped:
        return "*(empty)*"
    fence = _fence(clipped, 1)
    # A backtick at either end would join the fence; CommonMark strips one space from both ends.
    padding = " " if clipped[0] == "`" or clipped[-1] == "`" else ""
    return f"{fence}{padding}{clipped}{padding}{fence}"


def table_cell(text: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """Render an untrusted text as a code span that does not split a table cell."""
    return code_span(text.replace("|", "¦"), max_length)


def fenced_block(text: str) -> str:
    """Render an untrusted text as a fenced code block that keeps its lines."""
    lines = [sanitize_file(_escape_invisible(line)) for line in text.replace("\r\n", "\n").split("\n")]
    fence = _fence("\n".join(lines), 3)
    return "\n".join([f"{fence}text", *lines, fence])


def render_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: int = 1) -> str:
    """Render a table without its empty columns, and with a dash in each empty cell.

    Args:
        headings: The heading of each column.
        rows: Rows of cells from `code_span` or `table_cell`, or written by this package.
        text_columns: The number of leading columns that are aligned to the left. The others contain figures.
    """
    body = [list(row) for row in rows]
    column_indices = [index for index in range(len(headings)) if any(row[index] for row in body)]
    rule_cells = ["---" if index < text_columns else "---:" for index in column_indices]
    lines = [[headings[index] for index in column_indices], rule_cells]
    lines += [[row[index] or "–" for index in column_indices] for row in body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def name_list(title: str, entries: Sequence[str], max_names: int, max_length: int = MAX_NAME_LENGTH) -> str:
    """List the first `max_names` untrusted names in one line, with the total and the number left out."""
    heading = f"**{title} ({len(entries)})**"
    if not max_names:
        return heading
    n_omitted = len(entries) - max_names
    code_spans = ", ".join(code_span(entry, max_length) for entry in entries[:max_names])
    return f"{heading}: {code_spans}" + (f" and {n_omitted} more" if n_omitted > 0 else "")


def format_figure(value: float | None) -> str:
    """Format a figure with three decimals; whole numbers above 1 have none, and None becomes empty."""
    if value is None:
        return ""
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    return f"{value:z.3f}" if value != int(value) or abs(value) <= 1 else str(int(value))


def _escape_invisible(text: str) -> str:
    """Escape the control, format, private and unassigned characters of a text."""
    return sanitize(_NON_SPACE_BLANK.sub(" ", text))


def _clip(text: str, max_length: int) -> str:
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def _fence(text: str, min_length: int) -> str:
    """Return a run of backticks longer than any in the text."""
    longest_run = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(min_length, longest_run + 1)
