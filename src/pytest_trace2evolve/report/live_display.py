"""Show the progress of a live run next to pytest's own output.

On a terminal, a scrolling region reserves the last row for progress, as apt does. All other output scrolls
above that row, and no stream is replaced. On any other output, progress is printed as plain lines at
intervals.
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

PRINT_INTERVAL_SECONDS = 30.0
"""Seconds between two plain lines."""

_UPDATE_INTERVAL_SECONDS = 0.25
"""Seconds between two updates of the last row."""

_PLAIN_LINE_COLUMNS = 200
"""Width of a plain line on an output that does not wrap; wide enough for every part."""

_SAVE_CURSOR, _RESTORE_CURSOR = "\x1b7", "\x1b8"  # the cursor's position and colours
_SCROLL_ONE_ROW = "\x1bD\x1b[A"  # one row down, which scrolls at the bottom, and up again in the same column


class _OutputCopy:
    """A copy of the output's file descriptor. Pytest redirects the original while it captures an item."""

    def __init__(self, file: TextIO) -> None:
        file.flush()
        self._file = file
        self.is_terminal = file.isatty()
        try:
            self._descriptor: int | None = os.dup(file.fileno())
        except ValueError:  # a file in memory; io.UnsupportedOperation is a ValueError
            self._descriptor = None

    def write(self, text: str) -> None:
        """Write without buffering. An `OSError` means that the output was closed."""
        if self._descriptor is None:
            self._file.write(text)
            return
        remaining_bytes = text.encode(self._file.encoding or "utf-8", errors="replace")
        while remaining_bytes:
            remaining_bytes = remaining_bytes[os.write(self._descriptor, remaining_bytes) :]

    def size(self) -> tuple[int, int]:
        """Return the columns and rows of the terminal; 80 and 24 if it does not report them."""
        columns, rows = 0, 0
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                columns, rows = os.get_terminal_size(self._descriptor)
        return columns or 80, rows or 24

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


class ProgressDisplay:
    """Shows progress in its own thread, from `start` to `stop`. With `-q`, it shows nothing.

    Args:
        reporter: Pytest's terminal reporter, if there is one.
        read_progress: Returns the progress of the run. The thread calls it at most four times a second.
        interval: Seconds between two plain lines on an output that is not a terminal.
        file: The file that pytest writes to; the standard output by default.

    Attributes:
        trouble: The reason why the display stopped early, in one line; empty if it did not.
    """

    def __init__(
        self,
        reporter: pytest.TerminalReporter | None,
        read_progress: Callable[[], Progress],
        *,
        interval: float = PRINT_INTERVAL_SECONDS,
        file: TextIO | None = None,
    ) -> None:
        self.trouble = ""
        self._reporter = reporter
        self._read_progress = read_progress
        self._interval = interval
        self._file = file
        self._lock = threading.Lock()
        self._stop_event = threading.Event()
        self._thread: threading.Thread | None = None
        self._output: _OutputCopy | None = None
        self._is_painting = self._is_paused = False
        self._reserved_rows = 0  # rows of the terminal whose last row is reserved; 0 if no row is
        self._follows_plain_line = False  # whether pytest wrote nothing since the last plain line

    def start(self) -> None:
        """Start showing progress. Call this in the reporting process, while no item is captured."""
        if self._reporter is None or self._reporter.config.get_verbosity() < 0:
            return
        if self._thread is not None or self._stop_event.is_set():
            return
        config = self._reporter.config
        capture = config.pluginmanager.getplugin("capturemanager")
        try:
            with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
                self._output = _OutputCopy(self._file or sys.stdout)
        except OSError as error:
            self._give_up(error)
            return
        self._is_painting = self._output.is_terminal and _can_paint()
        config.pluginmanager.register(self)  # for the debugger's hooks
        self._thread = threading.Thread(target=self._run, name="trace2evolve-progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop showing progress and release the last row. Repeated calls are allowed."""
        self._stop_event.set()
        if self._thread is not None:
            self._thread.join(timeout=1)  # no longer, because `read_progress` may hang
        with self._lock:
            self._release()
            if self._output is not None and self._reporter is not None:
                self._output.close()
                self._output = None
                self._reporter.config.pluginmanager.unregister(self)

    def pytest_enter_pdb(self) -> None:
        """Stop painting while the debugger uses the terminal."""
        with self._lock:
            self._is_paused = True
            self._release()

    def pytest_leave_pdb(self) -> None:
        """Resume showing progress after the debugger."""
        with self._lock:
            self._is_paused = False

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logstart(self) -> None:
        """Note that pytest wrote something."""
        self._follows_plain_line = False

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self) -> None:
        """Note that pytest wrote something."""
        self._follows_plain_line = False

    def show(self, progress: Progress) -> bool:
        """Paint the last row or print a plain line, and return whether anything was shown."""
        with self._lock:
            if self._output is None or self._is_paused:
                return False
            return self._paint(progress) if self._is_painting else self._print(progress)

    def _run(self) -> None:
        next_print_time = time.monotonic() + self._interval
        last_printed: Progress | None = None
        while not self._stop_event.wait(min(_UPDATE_INTERVAL_SECONDS, self._interval)):
            try:
                if self._is_painting:
                    self.show(self._read_progress())
                elif time.monotonic() >= next_print_time:
                    progress = self._read_progress()
                    has_changed = (
                        last_printed is None
                        or replace(progress, seconds=last_printed.seconds) != last_printed
                    )
                    if has_changed and not self._stop_event.is_set() and self.show(progress):
                        last_printed = progress
                    next_print_time = time.monotonic() + self._interval
            except Exception as error:
                self._give_up(error)
                return

    def _give_up(self, error: Exception) -> None:
        self._stop_event.set()
        with self._lock:
            self._release()
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            self.trouble = f"the progress display stopped ({reason}); the run continued without it"

    def _paint(self, progress: Progress) -> bool:
        assert self._output is not None
        assert self._reporter is not None
        columns, rows = self._output.size()
        current_column = self._reporter._tw.width_of_current_line
        # After a full line, a wrap is pending, which some terminals lose when the cursor moves.
        if self._stop_event.is_set() or rows < 3 or (current_column and current_column % columns == 0):
            return False
        reserve_row = ""
        if rows != self._reserved_rows:
            clear_old_row = f"\x1b[{self._reserved_rows};1H\x1b[2K" if self._reserved_rows else ""
            reserve_row = f"{_SCROLL_ONE_ROW}{_SAVE_CURSOR}{clear_old_row}\x1b[1;{rows - 1}r{_RESTORE_CURSOR}"
            self._reserved_rows = rows
        line = progress_line(progress, columns - 1)
        self._output.write(f"{reserve_row}{_SAVE_CURSOR}\x1b[{rows};1H\x1b[0m\x1b[2K{line}{_RESTORE_CURSOR}")
        return True

    def _release(self) -> None:
        """Release the reserved last row."""
        if self._reserved_rows and self._output is not None:
            with contextlib.suppress(OSError):
                self._output.write(
                    f"{_SAVE_CURSOR}\x1b[r\x1b[{self._reserved_rows};1H\x1b[2K{_RESTORE_CURSOR}"
                )
        self._reserved_rows = 0

    def _print(self, progress: Progress) -> bool:
        assert self._output is not None
        assert self._reporter is not None
        writer = self._reporter._tw
        columns = writer.fullwidth - 1 if self._output.is_terminal else _PLAIN_LINE_COLUMNS
        line = f"trace2evolve: {progress_line(progress, columns - len('trace2evolve: '))}"
        if self._reporter.config.getoption("capture", "no") == "no":
            sys.stdout.flush()  # writes the earlier output of an item first
        is_within_line = writer.width_of_current_line > 0 and not self._follows_plain_line
        self._output.write(("\n" if is_within_line else "") + line + "\n")
        self._follows_plain_line = True
        return True


def _can_paint() -> bool:
    """Whether the terminal supports scrolling regions and a person probably watches it."""
    return (
        sys.platform != "win32"
        and os.environ.get("TERM", "") not in ("", "dumb", "unknown")
        and not any(os.environ.get(name) for name in ("CI", "BUILD_NUMBER"))
    )
