"""Intervals over seeds and tasks: exact where a textbook says what comes out, and they cover."""

import math
import random
from statistics import fmean, median, stdev

import pytest
from scipy.stats import norm, t

from research.trace.intervals import difference_of, mean_of


def test_one_seed_is_students_interval_over_tasks() -> None:
    row = [0.0, 1.0, 1.0, 0.0, 0.5, 1.0]
    found = mean_of([row], ["a"] * 6)
    reach = t.ppf(0.975, 5) * stdev(row) / math.sqrt(6)
    assert (found.mean, found.seeds, found.tasks) == (fmean(row), 1, 6)
    assert found.low == pytest.approx(fmean(row) - reach)
    assert found.high == 1.0  # no reward is above


def test_tasks_that_do_not_differ_leave_students_interval_over_seeds() -> None:
    seeds = [0.2, 0.5, 0.6]
    found = mean_of([[one] * 4 for one in seeds], ["a"] * 4)
    reach = t.ppf(0.975, 2) * stdev(seeds) / math.sqrt(3)
    assert found.low == pytest.approx(max(0.0, fmean(seeds) - reach))
    assert found.high == pytest.approx(fmean(seeds) + reach)


def test_what_cells_differ_in_is_no_spread() -> None:
    table = [[0.45, 0.47, 0.53, 0.55]]
    apart, together = (mean_of(table, cells) for cells in (["a", "a", "b", "b"], ["a"] * 4))
    assert apart.high is not None
    assert together.high is not None
    assert apart.high < together.high
    assert apart.mean == together.mean


def test_equal_rewards_are_not_certain() -> None:
    none = mean_of([[0.0] * 20] * 3, ["a"] * 20)
    assert none.low == pytest.approx(0.0, abs=1e-12)
    assert none.high == pytest.approx(0.161, abs=1e-3)  # Wilson's of 0 of 20
    alone = mean_of([[1.0]], ["a"])
    assert (alone.low, alone.high) == (None, None)


def test_a_difference_compares_tasks_with_themselves() -> None:
    base = [[0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0]]
    better = [[1.0, 1.0, 0.0, 1.0], [0.5, 1.0, 1.0, 1.0]]
    found = difference_of(better, base, ["a", "a", "b", "b"])
    assert found.mean == pytest.approx(1.5 / 8)
    assert found.low is not None
    assert -1 < found.low < found.mean
    same = difference_of(base, base, ["a", "a", "b", "b"])
    assert same.high == pytest.approx(0.49, abs=1e-2)  # four tasks without a difference prove little
    assert same.low == -same.high
    with pytest.raises(ValueError, match="zip"):
        difference_of(better, base[:1], ["a"] * 4)


def test_a_difference_is_the_paired_interval_and_no_other() -> None:
    # Tasks differ much and the gain hardly: unpaired, the interval would be several times as wide.
    base = [0.0, 0.2, 0.5, 0.9, 0.1, 0.7]
    better = [0.1, 0.2, 0.7, 1.0, 0.1, 0.8]
    gains = [after - before for after, before in zip(better, base, strict=True)]
    reach = t.ppf(0.975, 5) * stdev(gains) / math.sqrt(6)  # Student's paired interval
    found = difference_of([better], [base], ["a"] * 6)
    assert found.low == pytest.approx(fmean(gains) - reach)
    assert found.high == pytest.approx(fmean(gains) + reach)


@pytest.mark.parametrize("table", [[], [[0.0, 1.0]], [[0.0], [0.0, 1.0]]])
def test_a_table_that_is_none(table: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="a row a seed is wanted"):
        mean_of(table, ["a"])


@pytest.mark.parametrize(("seeds", "tasks", "left"), [(0.0, 0.3, 0.3), (0.1, 0.2, 0.3), (0.2, 0.1, 0.2)])
def test_intervals_cover(seeds: float, tasks: float, left: float) -> None:
    drawn = random.Random(1)
    covered, reaches = 0, []
    for _ in range(500):
        of_task = [drawn.gauss(0, tasks) for _ in range(30)]
        table = [
            [of_seed + one + drawn.gauss(0, left) for one in of_task]
            for of_seed in [drawn.gauss(0, seeds) for _ in range(3)]
        ]
        found = mean_of(table, ["a", "b"] * 15, least=-9.0)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0 <= found.high
        reaches.append((found.high - found.low) / 2)
    assert covered / 500 > 0.91
    # Student's factor has between two degrees of freedom, those of three seeds, and infinitely many.
    deviation = math.sqrt(seeds**2 / 3 + tasks**2 / 30 + left**2 / 90)
    assert norm.ppf(0.975) <= median(reaches) / deviation <= t.ppf(0.975, 2)
