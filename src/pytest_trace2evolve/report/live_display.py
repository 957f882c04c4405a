"""A live run's progress, drawn next to pytest's own output.

On a terminal a live line is painted below the line that pytest is writing. Pytest writes through a wrapper of
its file: the live line is wiped before each write and painted again after it. It is painted with relative
moves alone, and the terminal itself keeps pytest's place, so neither scrolling nor a killed process leaves a
trace. Everywhere else progress is printed in lines of its own, now and then.
"""

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TextIO, cast

import pytest
from rich.cells import cell_len

from pytest_trace2evolve.report.progress import Progress, progress_line

INTERVAL = 30.0
"""Seconds between plain lines."""

_TICK = 0.25
"""Seconds between two paintings of the live line."""

_QUIET = 0.05
"""Seconds of silence after which pytest is not amid a line that it writes in parts."""

_STREAM_WIDTH = 200
"""Columns of a plain line if nothing wraps: every part fits."""

_SEQUENCE = re.compile(r"\x1b(?:\[[\d;?]*[A-Za-z]|\].*?(?:\x07|\x1b\\))")
_WIPE = "\x1b[J"
_MAKE_ROOM = "\x1bD\x1b[A"  # one row down, which scrolls at the bottom, and up again: the column stays
_KEEP_PLACE, _RETURN = "\x1b7", "\x1b8"
_PLAIN = "\x1b[0m"


class _Output:
    """The descriptor of pytest's file, kept while an item is captured and pytest's own leads elsewhere."""

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
        """Columns and rows; 80 and 24 if the terminal does not tell."""
        columns, rows = 0, 0
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                columns, rows = os.get_terminal_size(self._descriptor)
        return columns or 80, rows or 24

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class _Line:
    """The line that is being written.

    Attributes:
        width: Columns up to the cursor, those of lines that it has wrapped over included.
        returned: Whether the cursor went back to the line's start, so that there may be text to its right.
    """

    def __init__(self) -> None:
        self.width = 0
        self.returned = False

    def follow(self, text: str) -> None:
        """Take a written text into account."""
        _, newline, rest = text.rpartition("\n")
        if newline:
            self.width, self.returned = 0, False
        _, back, rest = _SEQUENCE.sub("", rest).rpartition("\r")
        if back:
            self.width, self.returned = 0, True
        self.width += cell_len(rest)


class _SharedFile:
    """A file of pytest's whose writes pass through the display."""

    def __init__(self, file: TextIO, write: Callable[[TextIO, str], int]) -> None:
        self._file = file
        self._write = write

    def write(self, text: str) -> int:
        return self._write(self._file, text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class Display:
    """Shows progress from a thread of its own, from `start` to `stop`; under `-q` it shows nothing.

    Args:
        reporter: Pytest's reporter, if there is one.
        read: Returns how far the run is. The display's thread calls it four times a second at most.
        interval: Seconds between the plain lines of an output that is no terminal.

    Attributes:
        trouble: Why the display stopped early, in one line; empty if it did not. The run continues.
    """

    def __init__(
        self,
        reporter: pytest.TerminalReporter | None,
        read: Callable[[], Progress],
        *,
        interval: float = INTERVAL,
    ) -> None:
        self.trouble = ""
        self._reporter = reporter
        self._read = read
        self._interval = interval
        self._lock = threading.RLock()  # a signal handler may write while the main thread is writing
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._output: _Output | None = None
        self._restore = contextlib.ExitStack()
        self._status: str | None = None  # the live line; None if plain lines are printed instead
        self._captures = self._painted = self._paused = False
        self._written = 0.0
        self._process = os.getpid()
        self._line = _Line()

    def start(self) -> None:
        """Begin to show. Call it in the process that reports, while pytest is not capturing an item."""
        if self._reporter is None or self._reporter.config.get_verbosity() < 0:
            return
        if self._thread is not None or self._ended.is_set():
            return
        config, writer = self._reporter.config, self._reporter._tw
        file = writer._file
        capture = config.pluginmanager.getplugin("capturemanager")
        try:
            with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
                file.flush()
                self._output = _Output(file)
            self._line.follow(writer._current_line)
        except OSError as error:
            self._give_up(error)
            return
        self._status = "" if _can_paint(config, file) else None
        self._share(writer, "_file")
        self._captures = config.getoption("capture", "no") != "no"
        if self._status is not None and not self._captures:
            # What items print reaches the terminal too, and would run into the live line. The output of a
            # program that an item starts still may, until the next painting.
            for name in ("stdout", "stderr"):
                stream = getattr(sys, name)
                if stream is not None and stream.isatty():
                    self._share(sys, name)
        config.pluginmanager.register(self)  # for the debugger's hooks
        self._restore.callback(config.pluginmanager.unregister, self)
        self._thread = threading.Thread(target=self._run, name="trace2evolve-progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wipe the live line and leave the terminal to pytest alone. It may be called more than once."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=1)  # no longer: `read` may hang, and its answer is not shown
        with self._lock:
            self._wipe()
            self._restore.close()
            if self._output is not None:
                self._output.close()
                self._output = None

    def pytest_enter_pdb(self) -> None:
        """Leave the terminal to the debugger."""
        with self._lock:
            self._wipe()
            self._paused = True

    def pytest_leave_pdb(self) -> None:
        """Show again."""
        with self._lock:
            self._paused = False

    def _share(self, owner: Any, name: str) -> None:
        file = getattr(owner, name)
        shared = _SharedFile(file, self._write)
        setattr(owner, name, cast(TextIO, shared))

        def restore() -> None:
            if getattr(owner, name) is shared:
                setattr(owner, name, file)

        self._restore.callback(restore)

    def show(self, progress: Progress) -> bool:
        """Paint the live line, or print a plain line; returns whether anything was shown."""
        with self._lock:
            if self._output is None:
                return False
            if self._status is None:
                return self._print(progress)
            self._status = progress_line(progress, self._output.size()[0] - 1)
            self._paint()
            return self._painted

    def _run(self) -> None:
        due = time.monotonic() + self._interval
        printed: Progress | None = None
        while not self._ended.wait(min(_TICK, self._interval)):
            try:
                if self._status is not None:
                    self.show(self._read())
                elif time.monotonic() >= due:
                    progress = self._read()
                    if printed is not None and replace(progress, seconds=printed.seconds) == printed:
                        due = time.monotonic() + self._interval
                    elif self.show(progress):
                        due, printed = time.monotonic() + self._interval, progress
            except Exception as error:
                self._give_up(error)
                return

    def _give_up(self, error: Exception) -> None:
        self._ended.set()
        with self._lock:
            self._wipe()
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            self.trouble = self.trouble or f"progress was no longer shown ({reason}); the run went on without"

    def _write(self, file: TextIO, text: str) -> int:
        """A write of pytest's, or of an item under `-s`; or a plain line of this display itself."""
        if os.getpid() != self._process:
            return file.write(text)  # a fork has neither the thread nor, perhaps, a lock that opens
        with self._lock:
            if self._output is None:
                return file.write(text)
            if threading.current_thread() is self._thread:
                if not self._captures:
                    file.flush()  # what an item printed before
                self._output.write(text)  # pytest's own way leads elsewhere while an item is captured
                return len(text)
            self._wipe()
            count = file.write(text)
            file.flush()  # in order with what is painted, which goes another way
            self._written = time.monotonic()
            self._line.follow(text)
            self._paint()
            return count

    def _paint(self) -> None:
        silent = self._paused or self._ended.is_set()
        if silent or not self._status or self._output is None or self._reporter is None:
            return
        columns, rows = self._output.size()
        # With a full line the next letter wraps by itself. That state is lost by any move: better no line.
        if rows < 2 or (self._line.width > 0 and self._line.width % columns == 0):
            return
        before = "" if self._line.returned else _WIPE
        below = f"{_KEEP_PLACE}{_PLAIN}\r\n{_WIPE}{self._status[: columns - 1]}{_RETURN}"
        self._draw(f"{before}{_MAKE_ROOM}{below}", painted=True)

    def _wipe(self) -> None:
        if self._painted:
            below = f"{_KEEP_PLACE}\r\n{_WIPE}{_RETURN}"
            self._draw(below if self._line.returned else _WIPE, painted=False)

    def _draw(self, text: str, *, painted: bool) -> None:
        self._painted = painted
        try:
            if self._output is not None:
                self._output.write(text)
        except OSError as error:
            self._painted = False
            self._give_up(error)

    def _print(self, progress: Progress) -> bool:
        """Print a plain line, unless pytest is writing one."""
        if self._output is None or self._reporter is None or self._paused:
            return False
        if time.monotonic() - self._written < _QUIET:
            return False
        writer = self._reporter._tw
        width = writer.fullwidth - 1 if self._output.isatty else _STREAM_WIDTH
        text = f"trace2evolve: {progress_line(progress, width - len('trace2evolve: '))}"
        if writer.width_of_current_line:
            writer.line()
        if self._reporter.showlongtestinfo:
            # Verbose, pytest ends a line where it begins the next, and repeats the item's name then.
            writer.write(text)
            self._reporter.currentfspath = -2
        else:
            writer.line(text)
        return True


def _can_paint(config: pytest.Config, file: TextIO) -> bool:
    """Whether a live line can be painted: on a terminal that a person watches and no one else writes to."""
    return (
        file.isatty()
        and sys.platform != "win32"
        and os.environ.get("TERM", "") not in ("", "dumb", "unknown")
        and not any(os.environ.get(name) for name in ("CI", "BUILD_NUMBER"))
        and config.getoption("capture", "no") != "tee-sys"  # it prints past every wrapper
    )
