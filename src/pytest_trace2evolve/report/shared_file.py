"""A file that pytest and the progress display both write to: where it leads, and where its cursor stands."""

import contextlib
import os
import re
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from rich.cells import cell_len

_SEQUENCE = re.compile(r"\x1b(?:\[[\d;?]*[A-Za-z]|\].*?(?:\x07|\x1b\\))")


class Output:
    """Where pytest's file leads, also while an item is captured and its descriptor leads elsewhere."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._encoding = file.encoding or "utf-8"
        self.isatty = file.isatty()
        try:
            self._descriptor: int | None = os.dup(file.fileno())
        except (AttributeError, ValueError):  # a file in memory; io.UnsupportedOperation is a ValueError
            self._descriptor = None

    def write(self, text: str) -> None:
        """Write at once.

        Raises:
            OSError: the other end is gone.
        """
        if self._descriptor is None:
            self._file.write(text)
            self._file.flush()
            return
        data = text.encode(self._encoding, errors="replace")
        while data:
            data = data[os.write(self._descriptor, data) :]

    def size(self) -> tuple[int, int]:
        """Columns and rows; 80 and 24 where the terminal does not tell."""
        columns, rows = 0, 0
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                columns, rows = os.get_terminal_size(self._descriptor)
        return columns or 80, rows or 24

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Line:
    """What is known of the line that is being written.

    Attributes:
        width: Columns up to the cursor, those of lines that it has wrapped over included.
        returned: Whether the cursor went back to the line's start, so that there may be text to its right.
    """

    def __init__(self) -> None:
        self.width = 0
        self.returned = False

    def follow(self, text: str) -> None:
        """Take in what was written."""
        _, newline, rest = text.rpartition("\n")
        if newline:
            self.width, self.returned = 0, False
        _, back, rest = _SEQUENCE.sub("", rest).rpartition("\r")
        if back:
            self.width, self.returned = 0, True
        self.width += cell_len(rest)


class SharedFile:
    """A file of pytest's whose writes go through the display."""

    def __init__(self, file: TextIO, pass_on: Callable[[TextIO, str], int]) -> None:
        self._file = file
        self._pass_on = pass_on

    def write(self, text: str) -> int:
        """Hand a text to the display, which writes it."""
        return self._pass_on(self._file, text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Hand over texts one by one."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
