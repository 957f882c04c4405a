"""Newcombe's interval for a difference of two shares, with trials clustered by task.

Intervals of a mean over tasks, guarded against agents that hardly vary; and detectable effects.

Student's t alone lets a true loss of five points through far too often where nearly all tasks agree: no task
that broke happens to be among those drawn, and the variance looks like nothing. One added pseudo-task with an
effect of a half keeps the bound honest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

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


LEVEL = 0.95
"""At which an interval, or all intervals of one report together, hold."""


@dataclass(frozen=True)
class Cluster:
    """The traces of one task: how many lack the capability, of how many that show it or lack it.

    Both are averages over runs of the labeller, so they need not be whole.
    """

    lacking: float
    shown: float


def difference_interval(
    first: Sequence[Cluster], second: Sequence[Cluster], *, comparisons: int = 1, level: float = LEVEL
) -> tuple[float, float] | None:
    """The interval of the first share less the second.

    Newcombe (1998), "Interval estimation for the difference between independent proportions", method 10:
    two Wilson intervals put together. Trials of one task resemble each other, so each side counts as many
    traces as would tell as much if they were independent: n divided by the design effect (Rao and Scott,
    1992, "A simple method for the analysis of clustered binary data"), from one correlation of both sides:
    each side's own would jump where its last trace that differs comes or goes. Tasks that stand on both sides
    make the two shares alike; that is left out, which makes the interval wider.

    Args:
        first, second: One cluster a task.
        comparisons: How many intervals shall hold together (Bonferroni).
        level: At which they do.

    Returns:
        Lower and upper end; None where a side has no trace.
    """
    sides = [[one for one in side if one.shown > 0] for side in (first, second)]
    if not all(sides):
        return None
    alike = correlation(sides)
    (p, n), (q, m) = (_share(side, alike) for side in sides)
    z = NormalDist().inv_cdf(1 - (1 - level) / (2 * max(comparisons, 1)))
    low_p, high_p = _wilson(p, n, z)
    low_q, high_q = _wilson(q, m, z)
    low = p - q - math.hypot(p - low_p, high_q - q)
    high = p - q + math.hypot(high_p - p, q - low_q)
    return max(low, -1.0), min(high, 1.0)


def correlation(sides: Sequence[Sequence[Cluster]]) -> float:
    """How much trials of one task resemble each other, from 0 to 1, of both sides together.

    By moments: the squares of clusters' residuals lie between those of independent traces and those of
    clusters that agree within themselves. A side whose traces all agree tells nothing of it, so it borrows
    the other's; where neither does, each task counts as a single trace.
    """
    found = least = most = 0.0
    for side in sides:
        total = sum(one.shown for one in side)
        share = min(sum(one.lacking for one in side) / total, 1.0)
        spread, count = share * (1 - share), len(side)
        if count > 1:
            found += count / (count - 1) * sum((one.lacking - share * one.shown) ** 2 for one in side)
            least += spread * total
            most += spread * sum(one.shown**2 for one in side)
    if not least:
        return 1.0
    return min(max((found - least) / (most - least), 0.0), 1.0) if most > least else 0.0


def _share(side: Sequence[Cluster], alike: float) -> tuple[float, float]:
    """A share, and of how many independent traces it is worth: n / (1 + (m − 1)ρ), m a trace's cluster."""
    total = sum(one.shown for one in side)
    mean = sum(one.shown**2 for one in side) / total
    return min(sum(one.lacking for one in side) / total, 1.0), total / (1 + max(mean - 1, 0.0) * alike)


def _wilson(share: float, count: float, z: float) -> tuple[float, float]:
    """Wilson's score interval (1927)."""
    scale = 1 + z * z / count
    centre = (share + z * z / (2 * count)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(centre - half, 0.0), min(centre + half, 1.0)
