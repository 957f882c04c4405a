"""A live run's progress, shown next to pytest's own output.

On a terminal the last row is set apart by a scrolling region, as apt does, and the progress stands there:
whatever pytest, items and their programs print scrolls above it, and no stream is replaced. Everywhere else
progress is printed in lines of its own, now and then.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TextIO

import pytest

from pytest_trace2evolve.report.progress import Progress, progress_line

INTERVAL = 30.0
"""Seconds between plain lines."""

_TICK = 0.25
"""Seconds between two paintings of the last row."""

_STREAM_WIDTH = 200
"""Columns of a plain line if nothing wraps: every part fits."""

_SAVE, _RESTORE = "\x1b7", "\x1b8"  # the cursor's place and colours
_MAKE_ROOM = "\x1bD\x1b[A"  # one row down, which scrolls at the bottom, and up again: the column stays


class _Output:
    """The descriptor of pytest's output, kept: while an item is captured, pytest's own leads elsewhere."""

    def __init__(self, file: TextIO) -> None:
        file.flush()
        self._file = file
        self.isatty = file.isatty()
        try:
            self._descriptor: int | None = os.dup(file.fileno())
        except ValueError:  # a file in memory; io.UnsupportedOperation is a ValueError
            self._descriptor = None

    def write(self, text: str) -> None:
        """Write at once; an `OSError` says that the other end is gone."""
        if self._descriptor is None:
            self._file.write(text)
            return
        data = text.encode(self._file.encoding or "utf-8", errors="replace")
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


class Display:
    """Shows progress from a thread of its own, from `start` to `stop`; under `-q` it shows nothing.

    Args:
        reporter: Pytest's reporter, if there is one.
        read: Returns how far the run is. The display's thread calls it four times a second at most.
        interval: Seconds between the plain lines of an output that is no terminal.
        file: Where pytest writes; the standard output, if not given.

    Attributes:
        trouble: Why the display stopped early, in one line; empty if it did not. The run continues.
    """

    def __init__(
        self,
        reporter: pytest.TerminalReporter | None,
        read: Callable[[], Progress],
        *,
        interval: float = INTERVAL,
        file: TextIO | None = None,
    ) -> None:
        self.trouble = ""
        self._reporter = reporter
        self._read = read
        self._interval = interval
        self._file = file
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._output: _Output | None = None
        self._paints = self._paused = False
        self._rows = 0  # of the terminal whose last row is set apart; 0 if none is
        self._follows_plain_line = False  # whether pytest wrote nothing since the last plain line

    def start(self) -> None:
        """Begin to show. Call it in the process that reports, while pytest is not capturing an item."""
        if self._reporter is None or self._reporter.config.get_verbosity() < 0:
            return
        if self._thread is not None or self._ended.is_set():
            return
        config = self._reporter.config
        capture = config.pluginmanager.getplugin("capturemanager")
        try:
            with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
                self._output = _Output(self._file or sys.stdout)
        except OSError as error:
            self._give_up(error)
            return
        self._paints = self._output.isatty and _can_paint()
        config.pluginmanager.register(self)  # for the debugger's hooks
        self._thread = threading.Thread(target=self._run, name="trace2evolve-progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Leave the terminal to pytest alone. It may be called more than once."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=1)  # no longer: `read` may hang, and its answer is not shown
        with self._lock:
            self._release()
            if self._output is not None and self._reporter is not None:
                self._output.close()
                self._output = None
                self._reporter.config.pluginmanager.unregister(self)

    def pytest_enter_pdb(self) -> None:
        """Leave the terminal to the debugger."""
        with self._lock:
            self._paused = True
            self._release()

    def pytest_leave_pdb(self) -> None:
        """Show again."""
        with self._lock:
            self._paused = False

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logstart(self) -> None:
        """Note that pytest wrote something."""
        self._follows_plain_line = False

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self) -> None:
        """Note that pytest wrote something."""
        self._follows_plain_line = False

    def show(self, progress: Progress) -> bool:
        """Paint the last row, or print a plain line; returns whether anything was shown."""
        with self._lock:
            if self._output is None or self._paused:
                return False
            return self._paint(progress) if self._paints else self._print(progress)

    def _run(self) -> None:
        due = time.monotonic() + self._interval
        printed: Progress | None = None
        while not self._ended.wait(min(_TICK, self._interval)):
            try:
                if self._paints:
                    self.show(self._read())
                elif time.monotonic() >= due:
                    progress = self._read()
                    is_news = printed is None or replace(progress, seconds=printed.seconds) != printed
                    if is_news and not self._ended.is_set() and self.show(progress):
                        printed = progress
                    due = time.monotonic() + self._interval
            except Exception as error:
                self._give_up(error)
                return

    def _give_up(self, error: Exception) -> None:
        self._ended.set()
        with self._lock:
            self._release()
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            self.trouble = f"progress was no longer shown ({reason}); the run went on without"

    def _paint(self, progress: Progress) -> bool:
        assert self._output is not None
        assert self._reporter is not None
        columns, rows = self._output.size()
        width = self._reporter._tw.width_of_current_line
        # After a full line the next letter wraps by itself, a state that some terminals lose when they move.
        if self._ended.is_set() or rows < 3 or (width and width % columns == 0):
            return False
        set_apart = ""
        if rows != self._rows:
            old = f"\x1b[{self._rows};1H\x1b[2K" if self._rows else ""
            set_apart = f"{_MAKE_ROOM}{_SAVE}{old}\x1b[1;{rows - 1}r{_RESTORE}"
            self._rows = rows
        line = progress_line(progress, columns - 1)
        self._output.write(f"{set_apart}{_SAVE}\x1b[{rows};1H\x1b[0m\x1b[2K{line}{_RESTORE}")
        return True

    def _release(self) -> None:
        """Give the last row back."""
        if self._rows and self._output is not None:
            with contextlib.suppress(OSError):
                self._output.write(f"{_SAVE}\x1b[r\x1b[{self._rows};1H\x1b[2K{_RESTORE}")
        self._rows = 0

    def _print(self, progress: Progress) -> bool:
        assert self._output is not None
        assert self._reporter is not None
        writer = self._reporter._tw
        columns = writer.fullwidth - 1 if self._output.isatty else _STREAM_WIDTH
        line = f"trace2evolve: {progress_line(progress, columns - len('trace2evolve: '))}"
        if self._reporter.config.getoption("capture", "no") == "no":
            sys.stdout.flush()  # what an item printed before
        is_within_line = writer.width_of_current_line > 0 and not self._follows_plain_line
        self._output.write(("\n" if is_within_line else "") + line + "\n")
        self._follows_plain_line = True
        return True


def _can_paint() -> bool:
    """Whether a terminal knows scrolling regions, and a person watches it."""
    return (
        sys.platform != "win32"
        and os.environ.get("TERM", "") not in ("", "dumb", "unknown")
        and not any(os.environ.get(name) for name in ("CI", "BUILD_NUMBER"))
    )
