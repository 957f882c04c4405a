"""Terminal pages as text: consoles, tables, and figures in words. Foreign text cannot style or steer."""

import io
import shutil
import sys
from collections.abc import Sequence
from functools import partial

from rich import markup
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from pytest_trace2evolve.utils.sanitize import sanitize_line

STREAM_WIDTH = 160
"""Columns of an output that is no terminal: wide enough that no figure is cut."""

WIDE, NARROW, BOTH_SIDES = (0, 2, 0, 0), (0, 1, 0, 0), (0, 1, 0, 1)
"""Padding of a table's cells: above, right, below, left."""

NOTHING = "–"
"""Stands for a figure that was not measured."""

SHOWN_TASKS, SHOWN_LETTERS = 12, 240
"""Task names, and letters of them, that are listed before the rest is counted."""

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


def terminal() -> Console:
    """A console as wide and as colourful as standard output."""
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else STREAM_WIDTH
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


def fits(table: Table, target: Console) -> bool:
    """Whether a console has room for a table without cutting a cell."""
    unbounded = target.options.update(width=10_000)
    return Measurement.get(target, unbounded, table).maximum <= target.width


def print_line(target: Console, text: str, style: str = "") -> None:
    """Print a foreign text in one line that keeps its indentation."""
    indent = text[: len(text) - len(text.lstrip())]
    target.print(Text(indent + sanitize_line(text), style=style), soft_wrap=True)


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
