"""Render terminal pages to text, and format figures and names.

Untrusted text cannot change the style or control the terminal.
"""

import io
import shutil
import sys
from collections.abc import Iterable, Sequence
from functools import partial

from rich import markup
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from pytest_trace2evolve.utils.sanitize import sanitize_line

TABLE_COLUMNS = 160
"""Width of a table if the output is not a terminal; wide enough for all figures."""

REPORT_COLUMNS = 80
"""Width of a report if the output is not a terminal, the same as pytest's own."""

WIDE_PADDING, NARROW_PADDING, SYMMETRIC_PADDING = (0, 2, 0, 0), (0, 1, 0, 0), (0, 1, 0, 1)
"""Padding of a table's cells: above, right, below, left."""

NOT_MEASURED = "–"
"""Shown instead of a figure that was not measured."""

MAX_LISTED_NAMES, MAX_LIST_CHARACTERS = 12, 240
"""The maximum number of task names in a list, and of its characters; further names are only counted."""

MAX_TEXT_COLUMNS = 100
"""The maximum width of a line with text at its right end."""

COLUMN_GAP, MIN_NAME_COLUMNS = 2, 12
"""The gap between a table's columns, and the minimum width to which a long name is shortened."""

WordColumn = partial(Column, no_wrap=True)
"""A column of short words."""

FoldColumn = partial(Column, overflow="fold", no_wrap=True)
"""A column of words that are folded rather than cut, if there is too little room."""

FigureColumn = partial(Column, justify="right", no_wrap=True)
"""A column of figures."""


def make_console(*, width: int, has_colour: bool) -> Console:
    """Make a console that renders into its own text buffer."""
    return Console(
        file=io.StringIO(),
        width=max(width, 60),
        force_terminal=has_colour,
        color_system="standard" if has_colour else None,
        highlight=False,
        soft_wrap=False,
    )


def make_terminal_console(*, stream_width: int = TABLE_COLUMNS) -> Console:
    """Make a console with the width and colours of standard output, or with `stream_width` columns."""
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else stream_width
    return make_console(width=width, has_colour=is_terminal)


def rendered_text(console: Console) -> str:
    """Return the text printed on a console of `make_console`, without trailing blanks."""
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def make_grid(
    *columns: Column | str, padding: tuple[int, int, int, int] = WIDE_PADDING, title: str | None = None
) -> Table:
    """Make a table without lines."""
    return Table(
        *columns,
        title=title,
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
        padding=padding,
    )


def table_text(
    columns: Iterable[Column | str],
    rows: Iterable[Iterable[Text | str]],
    *,
    padding: tuple[int, int, int, int] = WIDE_PADDING,
    title: str | None = None,
    notes: Iterable[str] = (),
) -> str:
    """Render a table for the terminal, and untrusted notes below it, a line each."""
    table = make_grid(*columns, padding=padding, title=title)
    for row in rows:
        table.add_row(*row)
    return render_parts(table, *notes)


def render_parts(*parts: str | tuple[str, str] | Table) -> str:
    """Render tables and lines of untrusted text for the terminal; a line may come with its style."""
    console = make_terminal_console()
    for part in parts:
        if isinstance(part, Table):
            console.print(part)
        else:
            print_line(console, *((part,) if isinstance(part, str) else part))
    return rendered_text(console)


class Page:
    """Prints lines of at most `width` columns. Untrusted text cannot control the terminal."""

    def __init__(self, *, width: int, has_colour: bool) -> None:
        self._console = make_console(width=width, has_colour=has_colour)
        self.width = self._console.width

    @property
    def text(self) -> str:
        """The printed text, without trailing blanks."""
        return rendered_text(self._console)

    def print_line(
        self, text: str = "", style: str = "", *, label: str = "", label_style: str = "", end: str = ""
    ) -> None:
        """Print a wrapped text, with a label at the left and a few words at the right end.

        This method sanitizes the text, but not the label, whose blanks must remain. Callers must sanitize
        untrusted names in a label.
        """
        label = shorten_middle(label, self.width // 2)
        parts = list(Text(sanitize_line(text), style).wrap(self._console, self.width - cell_len(label)))
        for part in parts:
            part.rstrip()
        width = min(self.width, MAX_TEXT_COLUMNS) - len(end)
        if end and cell_len(label) + parts[-1].cell_len >= width:
            parts.append(Text())
        for index, part in enumerate(parts or [Text()]):
            prefix = Text(label, label_style or style) if index == 0 else Text(" " * cell_len(label))
            line = Text.assemble(prefix, part)
            if end and index == len(parts) - 1:
                line.append(" " * (width - line.cell_len) + end, style)
            self._console.print(line, soft_wrap=True)

    def print_command(self, command: str, *, label: str) -> None:
        """Print a command on one line, so that it can be copied."""
        self._console.print(Text(label + sanitize_line(command)), soft_wrap=True)

    def print_heading(self, title: str) -> None:
        """Print a heading across the page."""
        title = f" {shorten_middle(sanitize_line(title), self.width - 6)} "
        n_fill = (self.width - cell_len(title)) // 2
        self._console.print(Text("=" * n_fill + title, "bold").append("=" * n_fill), soft_wrap=True)

    def print_table(self, rows: Sequence[tuple[Sequence[str], str]], notes: Sequence[str] = ()) -> None:
        """Print rows of cells, each with its style. The first row has the headings.

        The first column is left-aligned. On a narrow page, its cells are shortened in the middle first, and
        then columns are dropped from the right. Cells are never wrapped. A note follows its row, or is
        printed below the row if there is not enough room.
        """
        columns = [
            [_sanitize_after_indent(cell) for cell in column]
            for column in zip(*(cells for cells, _ in rows), strict=True)
        ]
        widths = [max(map(cell_len, column)) for column in columns]
        while (name_width := self.width - sum(widths[1:]) - COLUMN_GAP * len(widths[1:])) < min(
            widths[0], MIN_NAME_COLUMNS
        ):
            columns.pop(), widths.pop()
        widths[0] = min(widths[0], name_width)
        for index, (_, style) in enumerate(rows):
            name, *other_cells = (
                shorten_middle(column[index], size) for column, size in zip(columns, widths, strict=True)
            )
            cells = [name + " " * (widths[0] - cell_len(name))]
            cells += [
                " " * (size - cell_len(cell)) + cell
                for cell, size in zip(other_cells, widths[1:], strict=True)
            ]
            line = (" " * COLUMN_GAP).join(cells)
            note = sanitize_line(notes[index]) if notes else ""
            if cell_len(line) + COLUMN_GAP + cell_len(note) <= self.width:
                line, note = f"{line}{' ' * COLUMN_GAP}{note}", ""
            self._console.print(Text(line.rstrip(), style), soft_wrap=True)
            if note:
                self.print_line(note, style, label=" " * 2 * COLUMN_GAP)


def _sanitize_after_indent(text: str) -> str:
    """Sanitize a text, but keep its indentation."""
    return text[: len(text) - len(text.lstrip(" "))] + sanitize_line(text)


def shorten_middle(text: str, width: int) -> str:
    """Shorten a text to at most `width` columns by cutting its middle."""
    if cell_len(text) <= width:
        return text
    tail_width = (width - 1) // 2
    tail = text[len(text) - tail_width :] if tail_width else ""
    while cell_len(tail) > tail_width:
        tail = tail[1:]
    return set_cell_size(text, width - 1 - tail_width).rstrip() + "…" + tail


def fits(table: Table, console: Console) -> bool:
    """Whether a console has room for a table without cutting a cell."""
    wide_options = console.options.update(width=10_000)
    return Measurement.get(console, wide_options, table).maximum <= console.width


def print_line(console: Console, text: str, style: str = "") -> None:
    """Print an untrusted text in one line that keeps its indentation."""
    console.print(Text(_sanitize_after_indent(text), style=style), soft_wrap=True)


def escape(text: str) -> str:
    """Escape an untrusted text so that rich's markup shows it unchanged in one line."""
    return markup.escape(sanitize_line(text))


def format_number(x: float | None) -> str:
    """Format a figure with three decimals, but whole numbers beyond ±1 without decimals."""
    if x is None:
        return NOT_MEASURED
    return f"{x:z.3f}" if x != int(x) or abs(x) <= 1 else str(int(x))


def format_points(share_difference: float, format_spec: str = ".3g") -> str:
    """Format a difference of shares in percentage points, with its sign."""
    return f"{100 * share_difference:+{format_spec}}".replace("-", "−")


def format_count(count: int, noun: str) -> str:
    """Format a number with its noun, such as 1 call or 2 calls."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_dollars(cost: float) -> str:
    """Format US dollars with two decimals, or with four if the amount is below one dollar."""
    return f"${cost:,.2f}" if cost >= 1 or cost == 0 else f"${cost:.4f}"


def format_list(names: Sequence[str], separator: str = ", ") -> str:
    """List the first names that fit, followed by the number of further names."""
    listed_names: list[str] = []
    for name in names:
        if len(listed_names) == MAX_LISTED_NAMES or (
            listed_names and len(separator.join([*listed_names, name])) > MAX_LIST_CHARACTERS
        ):
            break
        listed_names.append(name)
    n_omitted = len(names) - len(listed_names)
    conjunction = "; and" if separator == "; " else " and"
    return separator.join(listed_names) + (f"{conjunction} {n_omitted} more" if n_omitted else "")
