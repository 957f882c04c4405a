"""A live run's progress, shown next to pytest's own output.

On a terminal, a scrolling region reserves the last row for the progress, as apt does. The output of pytest,
of the items and of their programs scrolls above that row, and no stream is replaced. On any other output,
progress is printed now and then as lines of its own.
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
"""Seconds between two updates of the last row."""

_STREAM_WIDTH = 200
"""Columns of a plain line on an output that does not wrap lines; every part fits."""

_SAVE, _RESTORE = "\x1b7", "\x1b8"  # the cursor's position and colours
_MAKE_ROOM = "\x1bD\x1b[A"  # one row down, which scrolls at the bottom, and up again in the same column


class _Output:
    """A copy of the descriptor of pytest's output; pytest redirects its own while it captures an item."""

    def __init__(self, file: TextIO) -> None:
        file.flush()
        self._file = file
        self.isatty = file.isatty()
        try:
            self._descriptor: int | None = os.dup(file.fileno())
        except ValueError:  # a file in memory; io.UnsupportedOperation is a ValueError
            self._descriptor = None

    def write(self, text: str) -> None:
        """Write without buffering; an `OSError` means that the other end is gone."""
        if self._descriptor is None:
            self._file.write(text)
            return
        data = text.encode(self._file.encoding or "utf-8", errors="replace")
        while data:
            data = data[os.write(self._descriptor, data) :]

    def size(self) -> tuple[int, int]:
        """The columns and rows of the terminal; 80 and 24 if it does not report them."""
        columns, rows = 0, 0
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                columns, rows = os.get_terminal_size(self._descriptor)
        return columns or 80, rows or 24

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


class Display:
    """Shows progress in its own thread, from `start` to `stop`; shows nothing under `-q`.

    Args:
        reporter: Pytest's reporter, if there is one.
        read: Returns the progress of the run. The display's thread calls it at most four times a second.
        interval: Seconds between the plain lines on an output that is not a terminal.
        file: The file that pytest writes to; the standard output by default.

    Attributes:
        trouble: The reason why the display stopped early, in one line, or empty. The run continues anyway.
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
        self._rows = 0  # rows of the terminal whose last row is reserved; 0 if no row is
        self._follows_plain_line = False  # whether pytest wrote nothing since the last plain line

    def start(self) -> None:
        """Start showing progress. To be called in the reporting process, outside the capture of an item."""
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
        """Stop showing progress and release the last row. More than one call is allowed."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=1)  # not longer: `read` may hang, and its result is not shown
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
        """Show progress again."""
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
        # After a full line, a wrap is pending, which some terminals lose when the cursor moves.
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
        """Release the reserved last row."""
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
            sys.stdout.flush()  # writes the earlier output of an item first
        is_within_line = writer.width_of_current_line > 0 and not self._follows_plain_line
        self._output.write(("\n" if is_within_line else "") + line + "\n")
        self._follows_plain_line = True
        return True


def _can_paint() -> bool:
    """Whether a terminal supports scrolling regions and is watched by a person."""
    return (
        sys.platform != "win32"
        and os.environ.get("TERM", "") not in ("", "dumb", "unknown")
        and not any(os.environ.get(name) for name in ("CI", "BUILD_NUMBER"))
    )
