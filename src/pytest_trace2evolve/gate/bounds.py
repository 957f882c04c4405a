"""Intervals of a mean over tasks, guarded against agents that hardly vary; and detectable effects.

Student's t alone lets a true loss of five points through far too often where nearly all tasks agree: no task
that broke happens to be among those drawn, and the variance looks like nothing. One added pseudo-task with an
effect of a half keeps the bound honest.
"""

from dataclasses import dataclass

import numpy as np
import scipy

from pytest_trace2evolve.gate.columns import Floats

GUARD = 0.5
"""The pseudo-task's effect: half of the range of a difference of rewards on either side."""

POWER = 0.8
"""An effect counts as detectable where four of five comparisons would show it."""

_FLAT = 1e-12


@dataclass(frozen=True)
class Bounds:
    """A mean over tasks with its one-sided bounds, a value a comparison.

    Attributes:
        tasks: How many tasks had a value (n).
        mean, low, high: NaN where no task had one.
        deviation: Standard deviation over tasks, the pseudo-task included, so that it is never 0.
    """

    tasks: Floats
    mean: Floats
    low: Floats
    high: Floats
    deviation: Floats


def bounds(values: Floats, alpha: float | Floats, *, least: float = -1.0, most: float = 1.0) -> Bounds:
    """Bounds of the mean of rows of values, each one-sided at level alpha.

    The lower bound is the smaller of Student's with and without a pseudo-task a quarter of the range above
    the lowest value (-1/2 for differences between -1 and 1); the upper bound mirrors it. Rows without
    variance get 1 - alpha^(1/n) beside their value instead: that many tasks may be otherwise when none of n
    was (the exact bound of Clopper and Pearson, 1934), and each costs 1 at most.

    Args:
        values: Shape (R, N); NaN where a task has none.
        alpha: Level, one for all rows or one a row.
        least, most: The range of a value.
    """
    known = ~np.isnan(values)
    n = known.sum(axis=1).astype(np.float64)
    clean = np.where(known, values, 0.0)
    half = GUARD * (most - least) / 2.0
    centre = (most + least) / 2.0
    level = np.broadcast_to(np.asarray(alpha, dtype=np.float64), n.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = clean.sum(axis=1) / n
        squares = np.where(known, (values - mean[:, None]) ** 2, 0.0).sum(axis=1)
        error = np.sqrt(squares / (n - 1) / n)
        flat = ~(error > _FLAT)
        reach = np.where(flat, 1.0 - level ** (1.0 / n), scipy.stats.t.ppf(1.0 - level, n - 1) * error)
        guards = [_with_task(mean, squares, n, level, centre + side * half) for side in (-1.0, 1.0)]
        low = np.minimum(mean - reach, guards[0][0])
        high = np.maximum(mean + reach, guards[1][1])
        deviation = np.sqrt((squares + half**2) / n)
    none = n == 0
    return Bounds(
        tasks=n,
        mean=np.where(none, np.nan, mean),
        low=np.where(none, np.nan, np.maximum(low, least)),
        high=np.where(none, np.nan, np.minimum(high, most)),
        deviation=np.where(none, np.nan, deviation),
    )


def _with_task(
    mean: Floats, squares: Floats, n: Floats, level: Floats, value: float
) -> tuple[Floats, Floats]:
    """Student's bounds once a task of that value is added."""
    more = n + 1
    moved = (mean * n + value) / more
    spread = squares + (value - mean) ** 2 * n / more
    reach = scipy.stats.t.ppf(1.0 - level, more - 1) * np.sqrt(spread / (more - 1) / more)
    return moved - reach, moved + reach
