"""Terminal pages as text: consoles, tables, and figures in words. Foreign text cannot style or steer."""

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
"""Columns of a table in an output that is no terminal: wide enough that no figure is cut."""

COLUMNS = 80
"""Columns of a report in an output that is no terminal, as pytest's own."""

WIDE, NARROW, BOTH_SIDES = (0, 2, 0, 0), (0, 1, 0, 0), (0, 1, 0, 1)
"""Padding of a table's cells: above, right, below, left."""

NOTHING = "–"
"""Stands for a figure that was not measured."""

SHOWN_TASKS, SHOWN_LETTERS = 12, 240
"""Task names, and letters of them, that are listed before the rest is counted."""

READABLE = 100
"""Columns at most between a line's start and the words at its end."""

GAP, LEAST_NAME = 2, 12
"""Columns between those of a page's table, and those that a long name keeps."""

Word = partial(Column, no_wrap=True)
"""A column of short words."""

Figure = partial(Column, justify="right", no_wrap=True)
"""A column of figures."""


def console(*, width: int, colour: bool) -> Console:
    """A console that renders into a text of its own."""
    return Console(
        file=io.StringIO(),
        width=max(width, 60),
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
        soft_wrap=False,
    )


def terminal(*, stream_width: int = STREAM_WIDTH) -> Console:
    """A console as wide and as colourful as standard output; what is no terminal has a width of its own."""
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else stream_width
    return console(width=width, colour=is_terminal)


def rendered(target: Console) -> str:
    """What was printed on a console made by `console`, without trailing blanks."""
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
    """Lines of at most `width` columns. Foreign texts are sanitized, and cannot style or steer."""

    def __init__(self, *, width: int, colour: bool) -> None:
        self._target = console(width=width, colour=colour)
        self.width = self._target.width

    @property
    def text(self) -> str:
        """What was printed, without trailing blanks."""
        return rendered(self._target)

    def line(
        self, text: str = "", style: str = "", *, label: str = "", label_style: str = "", end: str = ""
    ) -> None:
        """Print a text that is wrapped between words, with a label before it and a few words at the right.

        The label keeps its blanks: foreign names in it must be sanitized, unlike the text.
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
        """Print rows of cells, each with its style; the first one has the headings.

        The first column is left-aligned. A narrow page shortens it in the middle, and then loses columns from
        the right: no cell is wrapped. A row's note follows it, or stands below it if there is no room.
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
    """A text of at most `width` columns: of a longer one the start and the end."""
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
    """A figure with three decimals, whole numbers above 1 bare."""
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
    """An amount of US dollars: cents from one dollar on, four decimals below."""
    return f"${cost:,.2f}" if cost >= 1 or cost == 0 else f"${cost:.4f}"


def listed(names: Sequence[str], separator: str = ", ") -> str:
    """Names as far as there is room, and how many more there are."""
    shown: list[str] = []
    for name in names:
        if len(shown) == SHOWN_TASKS or (shown and len(separator.join([*shown, name])) > SHOWN_LETTERS):
            break
        shown.append(name)
    rest = len(names) - len(shown)
    return separator.join(shown) + (f" and {rest} more" if rest else "")
