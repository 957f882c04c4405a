"""Terminal pages as text: consoles, tables, and figures in words.

Foreign text cannot change the style or control the terminal.
"""

import io
import shutil
import sys
from collections.abc import Sequence
from functools import partial

from rich import markup
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from pytest_trace2evolve.utils.sanitize import sanitize_line

STREAM_WIDTH = 160
"""Columns of a table if the output is not a terminal; enough for all figures."""

COLUMNS = 80
"""Columns of a report if the output is not a terminal, the same as pytest's own."""

WIDE, NARROW, BOTH_SIDES = (0, 2, 0, 0), (0, 1, 0, 0), (0, 1, 0, 1)
"""Padding of a table's cells: above, right, below, left."""

NOTHING = "–"
"""Stands for a figure that was not measured."""

SHOWN_TASKS, SHOWN_LETTERS = 12, 240
"""The most task names, and the most characters of their list, that are shown before the rest is counted."""

READABLE = 100
"""The most columns from a line's start to the end of the words at its right."""

GAP, LEAST_NAME = 2, 12
"""The width of the gaps between a table's columns, and the least width of a long name."""

Word = partial(Column, no_wrap=True)
"""A column of short words."""

Figure = partial(Column, justify="right", no_wrap=True)
"""A column of figures."""


def console(*, width: int, colour: bool) -> Console:
    """A console that renders into its own text buffer."""
    return Console(
        file=io.StringIO(),
        width=max(width, 60),
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
        soft_wrap=False,
    )


def terminal(*, stream_width: int = STREAM_WIDTH) -> Console:
    """A console with the width and colours of standard output, or `stream_width` if it is not a terminal."""
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else stream_width
    return console(width=width, colour=is_terminal)


def rendered(target: Console) -> str:
    """The text that was printed on a console made by `console`, without trailing blanks."""
    assert isinstance(target.file, io.StringIO)
    return "\n".join(line.rstrip() for line in target.file.getvalue().splitlines())


def grid(
    *columns: Column | str, padding: tuple[int, int, int, int] = WIDE, title: str | None = None
) -> Table:
    """A table without lines."""
    return Table(
        *columns,
        title=title,
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
        padding=padding,
    )


class Page:
    """Lines of at most `width` columns. Foreign texts are sanitized, so they cannot control the terminal."""

    def __init__(self, *, width: int, colour: bool) -> None:
        self._target = console(width=width, colour=colour)
        self.width = self._target.width

    @property
    def text(self) -> str:
        """The printed text, without trailing blanks."""
        return rendered(self._target)

    def line(
        self, text: str = "", style: str = "", *, label: str = "", label_style: str = "", end: str = ""
    ) -> None:
        """Print a text that is wrapped between words, with a label before it and a few words at the right.

        The text is sanitized here. The label is not, because it keeps its blanks; callers must sanitize
        foreign names in it.
        """
        label = in_middle(label, self.width // 2)
        parts = list(Text(sanitize_line(text), style).wrap(self._target, self.width - cell_len(label)))
        for part in parts:
            part.rstrip()
        room = min(self.width, READABLE) - len(end)
        if end and cell_len(label) + parts[-1].cell_len >= room:
            parts.append(Text())
        for number, part in enumerate(parts or [Text()]):
            before = Text(label, label_style or style) if number == 0 else Text(" " * cell_len(label))
            line = Text.assemble(before, part)
            if end and number == len(parts) - 1:
                line.append(" " * (room - line.cell_len) + end, style)
            self._target.print(line, soft_wrap=True)

    def rule(self, title: str) -> None:
        """Print a heading across the page."""
        title = f" {in_middle(sanitize_line(title), self.width - 6)} "
        left = (self.width - cell_len(title)) // 2
        self._target.print(Text("=" * left + title, "bold").append("=" * left), soft_wrap=True)

    def table(self, rows: Sequence[tuple[Sequence[str], str]], notes: Sequence[str] = ()) -> None:
        """Print rows of cells, each with its style. The first row has the headings.

        The first column is left-aligned. A narrow page shortens this column in the middle, and then drops
        columns from the right. No cell is wrapped. A note follows its row, or stands below the row if there
        is no room.
        """
        columns = [
            [_visible(cell) for cell in column] for column in zip(*(cells for cells, _ in rows), strict=True)
        ]
        widths = [max(map(cell_len, column)) for column in columns]
        while (room := self.width - sum(widths[1:]) - GAP * len(widths[1:])) < min(widths[0], LEAST_NAME):
            columns.pop(), widths.pop()
        widths[0] = min(widths[0], room)
        for number, (_, style) in enumerate(rows):
            first, *others = (
                in_middle(column[number], size) for column, size in zip(columns, widths, strict=True)
            )
            cells = [first + " " * (widths[0] - cell_len(first))]
            cells += [
                " " * (size - cell_len(cell)) + cell for cell, size in zip(others, widths[1:], strict=True)
            ]
            line = (" " * GAP).join(cells)
            note = sanitize_line(notes[number]) if notes else ""
            if cell_len(line) + GAP + cell_len(note) <= self.width:
                line, note = f"{line}{' ' * GAP}{note}", ""
            self._target.print(Text(line.rstrip(), style), soft_wrap=True)
            if note:
                self.line(note, style, label=" " * 2 * GAP)


def _visible(text: str) -> str:
    """A sanitized text that keeps its indentation."""
    return text[: len(text) - len(text.lstrip(" "))] + sanitize_line(text)


def in_middle(text: str, width: int) -> str:
    """Shorten a text to at most `width` columns by cutting its middle."""
    if cell_len(text) <= width:
        return text
    end = (width - 1) // 2
    tail = text[len(text) - end :] if end else ""
    while cell_len(tail) > end:
        tail = tail[1:]
    return set_cell_size(text, width - 1 - end).rstrip() + "…" + tail


def fits(table: Table, target: Console) -> bool:
    """Whether a console has room for a table without cutting a cell."""
    unbounded = target.options.update(width=10_000)
    return Measurement.get(target, unbounded, table).maximum <= target.width


def print_line(target: Console, text: str, style: str = "") -> None:
    """Print a foreign text in one line that keeps its indentation."""
    target.print(Text(_visible(text), style=style), soft_wrap=True)


def escape(text: str) -> str:
    """A foreign text as rich's markup that shows it in one line."""
    return markup.escape(sanitize_line(text))


def number(value: float | None) -> str:
    """A figure with three decimals; whole numbers beyond ±1 have no decimals."""
    if value is None:
        return NOTHING
    return f"{value:z.3f}" if value != int(value) or abs(value) <= 1 else str(int(value))


def points(difference: float, digits: str = ".3g") -> str:
    """A difference of shares in percentage points, with its sign."""
    return f"{100 * difference:+{digits}}".replace("-", "−")


def counted(count: int, noun: str) -> str:
    """A number with its noun: 1 call, 2 calls."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def dollars(cost: float) -> str:
    """An amount of US dollars, with cents from one dollar on and with four decimals below."""
    return f"${cost:,.2f}" if cost >= 1 or cost == 0 else f"${cost:.4f}"


def listed(names: Sequence[str], separator: str = ", ") -> str:
    """The first names that fit, and the number of further names."""
    shown: list[str] = []
    for name in names:
        if len(shown) == SHOWN_TASKS or (shown and len(separator.join([*shown, name])) > SHOWN_LETTERS):
            break
        shown.append(name)
    rest = len(names) - len(shown)
    return separator.join(shown) + (f" and {rest} more" if rest else "")
