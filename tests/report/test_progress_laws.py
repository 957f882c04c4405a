"""Laws of the progress line."""

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from pytest_trace2evolve.report.progress import Progress, progress_line

COUNTS = st.integers(0, 10_000)
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
