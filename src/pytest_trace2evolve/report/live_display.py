"""Show the progress of a live run as plain lines between pytest's own output."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TextIO

import pytest

from pytest_trace2evolve.report.progress import Progress, progress_line

PRINT_INTERVAL_SECONDS = 30.0
"""Seconds between two lines."""

_PLAIN_LINE_COLUMNS = 200
"""Width of a line on an output that does not wrap; wide enough for every part."""


class ProgressDisplay:
    """Prints progress in its own thread, from `start` to `stop`. With `-q`, it prints nothing.

    Args:
        reporter: Pytest's terminal reporter, if there is one.
        read_progress: Returns the progress of the run.
        interval: Seconds between two lines.

    Attributes:
        trouble: The reason why the display stopped early, in one line; empty if it did not.
    """

    def __init__(
        self,
        reporter: pytest.TerminalReporter | None,
        read_progress: Callable[[], Progress],
        *,
        interval: float = PRINT_INTERVAL_SECONDS,
    ) -> None:
        self.trouble = ""
        self._reporter = reporter
        self._read_progress = read_progress
        self._interval = interval
        self._stop_event = threading.Event()
        self._thread: threading.Thread | None = None
        self._output: TextIO | None = None
        self._copy: TextIO | None = None
        self._is_paused = False
        self._follows_line = False  # whether pytest wrote nothing since the last line of progress

    def start(self) -> None:
        """Start showing progress. Call this in the reporting process, while no item is captured."""
        if self._reporter is None or self._reporter.config.get_verbosity() < 0 or self._thread is not None:
            return
        config = self._reporter.config
        capture = config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            try:  # a copy, because pytest redirects the original while it captures an item
                self._copy = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding=sys.stdout.encoding)
                self._output = self._copy
            except ValueError:  # a file in memory; io.UnsupportedOperation is a ValueError
                self._output = sys.stdout
        config.pluginmanager.register(self)  # for the hooks below
        self._thread = threading.Thread(target=self._run, name="trace2evolve-progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop showing progress. Repeated calls are allowed."""
        self._stop_event.set()
        if self._thread is not None:
            self._thread.join(timeout=1)  # no longer, because `read_progress` may hang
            if self._copy is not None:
                self._copy.close()

    def pytest_enter_pdb(self) -> None:
        """Print nothing while the debugger uses the terminal."""
        self._is_paused = True

    def pytest_leave_pdb(self) -> None:
        """Resume showing progress after the debugger."""
        self._is_paused = False

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logstart(self) -> None:
        """Note that pytest wrote something."""
        self._follows_line = False

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self) -> None:
        """Note that pytest wrote something."""
        self._follows_line = False

    def _run(self) -> None:
        last_printed: Progress | None = None
        try:
            while not self._stop_event.wait(self._interval):
                progress = self._read_progress()
                is_known = last_printed is not None and (
                    replace(progress, seconds=last_printed.seconds) == last_printed
                )
                if not is_known and not self._stop_event.is_set() and self.show(progress):
                    last_printed = progress
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            self.trouble = f"the progress display stopped ({reason}); the run continued without it"

    def show(self, progress: Progress) -> bool:
        """Print a line, and return whether it was printed. An `OSError` means that the output was closed."""
        assert self._output is not None
        assert self._reporter is not None
        if self._is_paused:
            return False
        writer = self._reporter._tw
        columns = writer.fullwidth - 1 if self._output.isatty() else _PLAIN_LINE_COLUMNS
        line = f"trace2evolve: {progress_line(progress, columns - len('trace2evolve: '))}"
        if self._reporter.config.getoption("capture", "no") == "no":
            sys.stdout.flush()  # writes the earlier output of an item first
        is_within_line = writer.width_of_current_line > 0 and not self._follows_line
        self._output.write(("\n" if is_within_line else "") + line + "\n")
        self._output.flush()
        self._follows_line = True
        return True
