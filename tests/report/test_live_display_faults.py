"""The progress display where something is missing, stuck or gone: the session goes on."""

import threading

import pytest

from pytest_trace2evolve.report.live_display import ProgressDisplay
from pytest_trace2evolve.report.progress import Progress
from tests.patience import HANG_SECONDS, until
from tests.screen import Painted, terminal_config

__all__ = ["terminal_config"]

MOMENT = Progress(9, 3, 0, 0, 2, None, None, 0, None, 5.0)
LINE = "3 of 9 done, 2 running, 4 waiting · 0:07 left"


def painted(file: Painted) -> None:
    """Wait for the first painting."""
    until(lambda: file.screen.last == LINE, "nothing is painted")


def test_without_a_reporter_there_is_nothing_to_show() -> None:
    display = ProgressDisplay(None, lambda: MOMENT)
    display.start()
    display.stop()
    assert display.trouble == ""


def test_a_reading_that_is_stuck_does_not_hold_up_the_end(terminal_config: pytest.Config) -> None:
    file, asked, answer = Painted(), threading.Event(), threading.Event()

    def read() -> Progress:
        asked.set()
        answer.wait()
        return MOMENT

    reporter = pytest.TerminalReporter(terminal_config, file)
    display = ProgressDisplay(reporter, read, file=file)
    display.start()
    assert asked.wait(HANG_SECONDS)
    display.stop()  # it returns, though the reading does not
    assert not answer.is_set()
    (thread,) = (one for one in threading.enumerate() if one.name == "trace2evolve-progress")
    answer.set()
    thread.join()
    assert file.screen.everything == [""]


def test_it_starts_once_and_may_be_stopped_more_than_once(terminal_config: pytest.Config) -> None:
    file = Painted()
    reporter = pytest.TerminalReporter(terminal_config, file)
    display = ProgressDisplay(reporter, lambda: MOMENT, file=file)
    display.start()
    display.start()
    assert [one.name for one in threading.enumerate()].count("trace2evolve-progress") == 1
    painted(file)
    display.stop()
    display.stop()
    display.start()
    reporter.write("after")
    assert file.screen.everything == ["after"]


def test_once_reading_fails_nothing_is_painted_any_more(terminal_config: pytest.Config) -> None:
    file = Painted()

    def read() -> Progress:
        if file.screen.last == LINE:
            raise ValueError("no count")
        return MOMENT

    reporter = pytest.TerminalReporter(terminal_config, file)
    display = ProgressDisplay(reporter, read, file=file)
    display.start()
    painted(file)
    until(lambda: display.trouble)
    reporter.write(".")
    assert file.screen.everything == ["."]
    display.stop()
    assert (
        display.trouble == "the progress display stopped (ValueError: no count); the run continued without it"
    )


class Gone(Painted):
    """A terminal that is lost in the middle, to paintings alone."""

    lost = False

    def write(self, text: str) -> int:
        if self.lost and "\x1b" in text:
            raise OSError(5, "Input/output error")
        return super().write(text)


def test_a_lost_terminal_is_told_and_costs_pytest_nothing(terminal_config: pytest.Config) -> None:
    file = Gone()
    reporter = pytest.TerminalReporter(terminal_config, file)
    display = ProgressDisplay(reporter, lambda: MOMENT, file=file)
    display.start()
    painted(file)
    file.lost = True
    for letter in "...F":
        reporter.write(letter)
    until(lambda: display.trouble)
    display.stop()
    assert display.trouble == (
        "the progress display stopped (OSError: [Errno 5] Input/output error); the run continued without it"
    )
    assert file.screen.shown[0] == "...F"
