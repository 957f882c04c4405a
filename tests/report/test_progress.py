"""The line that tells how far a run is: what it says, and what a narrow terminal goes without."""

from dataclasses import replace

import pytest

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
