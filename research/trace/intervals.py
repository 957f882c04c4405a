"""Means over seeds and tasks with intervals: both vary, and both are a draw from more.

All arms of a seed play the same tasks, so what is measured is a table (seeds, tasks). Its mean's variance has
three parts: of seeds, of tasks within their cell, and of what is left. They are worked out by analysis of
variance for two crossed random factors, a part that comes out negative counting as none; the interval is
Student's with Satterthwaite's degrees of freedom. Cells are fixed: nothing is said of other capabilities.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from pytest_trace2evolve.records.base import Record

LEVEL = 0.95
"""Of all intervals."""

Table = Sequence[Sequence[float]]
"""(seeds, tasks) rewards."""


class Mean(Record):
    """A mean with its interval.

    Attributes:
        low, high: Ends of the interval; None where one task alone was played.
        seeds, tasks: How many it rests on. Of one seed alone the spread over seeds is not in the interval.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int
    tasks: int


@dataclass(frozen=True)
class _Squares:
    """Mean squares with their degrees of freedom: of seeds, of tasks, and of what is left."""

    seeds: tuple[float, int]
    tasks: tuple[float, int]
    rest: tuple[float, int]


def mean_of(table: Table, cells: Sequence[str], *, least: float = 0.0) -> Mean:
    """The mean of a table of rewards.

    Args:
        table: (seeds, tasks) rewards of at most 1.
        cells: (tasks,) the cell of each; means of cells weigh as their tasks do.
        least: The lowest reward that there can be; −1 for differences.

    Raises:
        ValueError: rows are not as long as `cells`, or there is nothing.
    """
    if not table or not cells or any(len(row) != len(cells) for row in table):
        raise ValueError("a row a seed is wanted, with a reward a task")
    seeds, tasks = len(table), len(cells)
    middle = math.fsum(math.fsum(row) for row in table) / (seeds * tasks)
    found = _squares(table, cells, middle)
    if found.tasks[1] < 1:
        return Mean(mean=middle, low=None, high=None, seeds=seeds, tasks=tasks)
    spread, freedom = _variance(found, seeds * tasks)
    if spread == 0:
        low, high = _without_spread(middle, tasks, least)
    else:
        from scipy.stats import t

        reach = float(t.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(spread)
        low, high = max(least, middle - reach), min(1.0, middle + reach)
    return Mean(mean=middle, low=low, high=high, seeds=seeds, tasks=tasks)


def difference_of(one: Table, other: Table, cells: Sequence[str]) -> Mean:
    """The mean of `one` less `other`, of the same seeds and tasks: each pair is compared with itself.

    Raises:
        ValueError: the tables are not of one shape.
    """
    table = [
        [after - before for after, before in zip(row, base, strict=True)]
        for row, base in zip(one, other, strict=True)
    ]
    return mean_of(table, cells, least=-1.0)


def _squares(table: Table, cells: Sequence[str], middle: float) -> _Squares:
    seeds, tasks = len(table), len(cells)
    of_seed = [math.fsum(row) / tasks for row in table]
    of_task = [math.fsum(row[place] for row in table) / seeds for place in range(tasks)]
    members: dict[str, list[float]] = {}
    for cell, value in zip(cells, of_task, strict=True):
        members.setdefault(cell, []).append(value)
    of_cell = {cell: math.fsum(values) / len(values) for cell, values in members.items()}
    within = math.fsum((value - of_cell[cell]) ** 2 for cell, value in zip(cells, of_task, strict=True))
    left = math.fsum(
        (row[place] - of_seed[number] - of_task[place] + middle) ** 2
        for number, row in enumerate(table)
        for place in range(tasks)
    )
    between = math.fsum((value - middle) ** 2 for value in of_seed)
    free_seeds, free_tasks = seeds - 1, tasks - len(members)
    return _Squares(
        seeds=(tasks * between / free_seeds if free_seeds else 0.0, free_seeds),
        tasks=(seeds * within / free_tasks if free_tasks else 0.0, free_tasks),
        rest=(
            left / (free_seeds * (tasks - 1)) if free_seeds and tasks > 1 else 0.0,
            free_seeds * (tasks - 1),
        ),
    )


def _variance(found: _Squares, count: int) -> tuple[float, float]:
    """The mean's variance, and its degrees of freedom."""
    rest, free_rest = found.rest
    # What is left is in both larger squares, and counts once. A smaller one is a draw of nothing but it.
    parts = [(max(square, rest), free) for square, free in (found.seeds, found.tasks)]
    total = math.fsum(square for square, _ in parts) - rest
    if total <= 0:
        return 0.0, math.inf
    weight = math.fsum(square**2 / free for square, free in [*parts, (rest, free_rest)] if free)
    return total / count, total**2 / weight


def _without_spread(middle: float, tasks: int, least: float) -> tuple[float, float]:
    """Where nothing differs from its cell: Wilson's interval of so many tasks, each counted once.

    Of differences, what Wilson leaves possible where none of the tasks differs, on both sides.
    """
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    scale = 1 + z * z / tasks
    if least < 0:
        reach = z * z / tasks / scale
        return max(least, middle - reach), min(1.0, middle + reach)
    centre = (middle + z * z / (2 * tasks)) / scale
    reach = z * math.sqrt(middle * (1 - middle) / tasks + z * z / (4 * tasks * tasks)) / scale
    return max(0.0, centre - reach), min(1.0, centre + reach)
