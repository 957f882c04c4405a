"""The line that tells how far a run is, and what a narrow terminal goes without."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from pytest_trace2evolve.report.progress import Progress, progress_line

MIDWAY = Progress(
    total=456,
    done=382,
    resumed=12,
    lost=2,
    running=32,
    reward=0.7123,
    baseline_reward=0.684,
    tokens=3_100_000,
    cost=4.2,
    seconds=601.0,
)


COUNTS = "382 of 456 done (12 from before), 32 running, 40 waiting, 2 lost"
REST = " · reward 0.712 (baseline 0.684) · 3.1 M tokens, $4.20 · 1:27 left"


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (len(COUNTS + REST), COUNTS + REST),
        (len(COUNTS + REST) - 1, COUNTS + REST.replace("3.1 M tokens, ", "")),
        (110, COUNTS.replace(" (12 from before)", "") + REST.replace("3.1 M tokens, ", "")),
        (90, "382 of 456 done, 32 running, 2 lost · reward 0.712 (baseline 0.684) · $4.20 · 1:27 left"),
        (80, "382 of 456 done, 2 lost · reward 0.712 (baseline 0.684) · $4.20 · 1:27 left"),
        (70, "382 of 456 done, 2 lost · reward 0.712 (baseline 0.684) · 1:27 left"),
        (60, "382 of 456 done, 2 lost · reward 0.712 · 1:27 left"),
        (40, "382 of 456 done, 2 lost · 1:27 left"),
        (30, "382 of 456 done, 2 lost"),
        (20, "382 of 456 done"),
        (10, "382/456"),
        (6, ""),
        (0, ""),
        (-1, ""),
    ],
)
def test_a_narrow_line_goes_without_the_least_first(width: int, line: str) -> None:
    assert progress_line(MIDWAY, width) == line


def test_the_longest_wait_for_an_answer_is_named_after_a_minute() -> None:
    waiting = replace(MIDWAY, oldest=("cancel-7", 492.4))
    assert progress_line(waiting, 200) == f"{COUNTS} (cancel-7 waits 8:12 for an answer){REST}"
    assert progress_line(replace(waiting, oldest=("cancel-7", 59.0)), 200) == COUNTS + REST
    assert "waits" not in progress_line(waiting, 120)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"tokens": 812}, "· 812 tokens, "),
        ({"tokens": 9_449}, "· 9.4 k tokens, "),
        ({"tokens": 9_960}, "· 10 k tokens, "),
        ({"tokens": 999_499}, "· 999 k tokens, "),
        ({"tokens": 999_600}, "· 1.0 M tokens, "),
        ({"tokens": 45_600_000_000}, "· 46 G tokens, "),
        ({"tokens": 0}, "(baseline 0.684) · $4.20 ·"),
        ({"cost": None}, "tokens · 1:27"),
        ({"cost": 0.0}, "tokens · 1:27"),
        ({"cost": 0.004}, ", under $0.01 ·"),
        ({"cost": 1234.5}, ", $1,234.50 ·"),
        ({"baseline_reward": None}, "reward 0.712 ·"),
        ({"reward": None}, "2 lost · 3.1 M"),
        ({"reward": 0.0}, "reward 0.000 (baseline 0.684)"),
        ({"lost": 0}, "42 waiting · reward"),
        ({"resumed": 0}, "382 of 456 done, 32 running"),
        ({"seconds": 36_000.4}, "· 1:26:36 left"),
    ],
)
def test_each_part(change: dict[str, float], part: str) -> None:
    assert part in progress_line(replace(MIDWAY, **change), 200)  # type: ignore[arg-type]


# Laws.


NUMBERS = st.integers(0, 10_000)
SHARES = st.none() | st.floats(0, 1)


@st.composite
def moments(draw: st.DrawFn) -> Progress:
    """A moment of some run."""
    resumed, fresh, lost, running, waiting = (draw(NUMBERS) for _ in range(5))
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
