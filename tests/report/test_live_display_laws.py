"""Laws of the progress line and of its display."""

import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from pytest_trace2evolve.report.live_display import ProgressDisplay
from pytest_trace2evolve.report.progress import Progress, progress_line
from tests.screen import Painted, terminal_config

__all__ = ["terminal_config"]

COUNTS = st.integers(0, 10_000)
MOMENT = Progress(9, 3, 0, 0, 2, None, None, 0, None, 5.0)
SHARES = st.none() | st.floats(0, 1)


@st.composite
def moments(draw: st.DrawFn) -> Progress:
    """A moment of some run."""
    resumed, fresh, lost, running, waiting = (draw(COUNTS) for _ in range(5))
    return Progress(
        total=resumed + fresh + lost + running + waiting,
        done=resumed + fresh,
        resumed=resumed,
        lost=lost,
        running=running,
        reward=draw(SHARES),
        baseline_reward=draw(SHARES),
        tokens=draw(st.integers(0, 10**12)),
        cost=draw(st.none() | st.floats(0, 1e6)),
        seconds=draw(st.floats(0, 1e6)),
    )


@given(moments(), st.integers(-5, 250))
def test_a_line_is_never_wider_than_asked(progress: Progress, width: int) -> None:
    line = progress_line(progress, width)
    assert cell_len(line) <= max(0, width)
    assert line.isprintable()


@given(moments(), st.integers(0, 250), st.integers(0, 250))
def test_more_room_never_tells_less(progress: Progress, one: int, other: int) -> None:
    narrow, wide = (progress_line(progress, width) for width in sorted((one, other)))
    assert len(narrow) <= len(wide)


@given(moments())
def test_the_counts_of_a_whole_line_add_up(progress: Progress) -> None:
    counts = progress_line(progress, 500).split(" · ")[0]
    done, total = map(int, re.match(r"(\d+) of (\d+) done", counts).groups())  # type: ignore[union-attr]
    others = [int(count) for count in re.findall(r"(\d+) (?:running|waiting|lost)", counts)]
    assert done + sum(others) == total
    assert 0 not in others


@given(moments())
def test_time_left_is_of_this_run_and_grows_with_what_waits(progress: Progress) -> None:
    left = progress.seconds_left
    later = replace(progress, total=progress.total + 1).seconds_left
    if left is not None:
        assert left >= 0
        assert later is not None
        assert later >= left
    elif later is not None:
        assert progress.running == progress.waiting == 0


def test_nothing_is_painted_while_a_line_fills_the_row(terminal_config: pytest.Config) -> None:
    shown = Painted()
    reporter = pytest.TerminalReporter(terminal_config, shown)
    display = ProgressDisplay(reporter, lambda: MOMENT, file=shown)
    reporter.write("x" * 79)
    display.start()
    assert display.show(MOMENT)
    reporter.write("x")
    assert not display.show(MOMENT)
    reporter.write("x")
    assert display.show(MOMENT)
    display.stop()
    assert shown.screen.everything[:2] == ["x" * 80, "x"]


LETTERS = st.text(st.sampled_from("ab .F"), max_size=100)
RETURNS = ["\n", "\n\n", "\r", "abc\rd", "=" * 80 + "\n", "x" * 80, "\x1b[32m.\x1b[0m"]
WRITE = LETTERS | st.sampled_from(RETURNS)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(before=WRITE, writes=st.lists(WRITE, max_size=40), progress=moments())
def test_whatever_pytest_writes_the_last_row_leaves_no_trace(
    terminal_config: pytest.Config, before: str, writes: list[str], progress: Progress
) -> None:
    bare, shown = Painted(), Painted()
    reporter = pytest.TerminalReporter(terminal_config, shown)
    display = ProgressDisplay(reporter, lambda: progress, file=shown)
    bare.write(before)
    reporter.write(before)
    display.start()
    for text in writes:
        # Setting the row apart loses the state of a full line; after "\r" pytest's width does not tell it.
        painted = not bare.screen.wraps and display.show(progress)
        assert shown.screen.lines[shown.screen.row] == bare.screen.lines[bare.screen.row]
        assert not painted or shown.screen.last == progress_line(progress, 79)
        bare.write(text)
        reporter.write(text)
    display.stop()
    assert display.trouble == ""
    assert shown.screen.everything == bare.screen.everything
    assert shown.screen.column == bare.screen.column
