"""Confidence intervals: means over tasks, shares, and differences of shares of clustered trials.

Student's bounds alone let a true loss of five points through far too often when nearly all tasks agree: no
task that broke happens to be among those drawn, and the variance looks like nothing. One added pseudo-task
with an effect of a half keeps them honest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import scipy

from pytest_trace2evolve.gate.columns import Floats

LEVEL = 0.95
"""The level of a two-sided interval, or of all intervals of one report together."""

PSEUDO_TASK = 0.5
"""The pseudo-task's effect: half of the range of a difference of rewards on either side."""

_FLAT = 1e-12


def student(chance: Floats | float, freedom: Floats | float) -> Floats:
    """The quantile of Student's t-distribution; NaN without degrees of freedom."""
    return np.asarray(scipy.special.stdtrit(freedom, chance))


@dataclass(frozen=True)
class Bounds:
    """A mean over tasks with its one-sided bounds, one value per comparison.

    Attributes:
        estimate, low, high: The mean and its bounds; NaN if no task had a value.
        tasks: The number of tasks with a value (n).
        deviation: Standard deviation over tasks, the pseudo-task included, so that it is never 0.
    """

    estimate: Floats
    low: Floats
    high: Floats
    tasks: Floats
    deviation: Floats


def bounds(values: Floats, alpha: float | Floats, *, minimum: float = -1.0, maximum: float = 1.0) -> Bounds:
    """Bounds of the mean of rows of values, each one-sided at level alpha.

    The lower bound is the smaller of Student's with and without a pseudo-task a quarter of the range above
    the minimum (-1/2 for differences between -1 and 1); the upper bound mirrors it. Rows without variance get
    1 - alpha^(1/n) on either side of their value instead: that many tasks may be otherwise when none of n was
    (the exact bound of Clopper and Pearson, 1934), and each costs 1 at most.

    Args:
        values: Shape (R, N); NaN if a task has none.
        alpha: Level, one for all rows or one per row.
        minimum, maximum: The range of a value.
    """
    known = ~np.isnan(values)
    n = known.sum(axis=1).astype(np.float64)
    clean = np.where(known, values, 0.0)
    half = PSEUDO_TASK * (maximum - minimum) / 2.0
    centre = (maximum + minimum) / 2.0
    level = np.broadcast_to(np.asarray(alpha, dtype=np.float64), n.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = clean.sum(axis=1) / n
        squares = np.where(known, (values - mean[:, None]) ** 2, 0.0).sum(axis=1)
        error = np.sqrt(squares / (n - 1) / n)
        flat = ~(error > _FLAT)
        reach = np.where(flat, 1.0 - level ** (1.0 / n), student(1.0 - level, n - 1) * error)
        guarded = [_with_task(mean, squares, n, level, centre + side * half) for side in (-1.0, 1.0)]
        low = np.minimum(mean - reach, guarded[0][0])
        high = np.maximum(mean + reach, guarded[1][1])
        deviation = np.sqrt((squares + half**2) / n)
    none = n == 0
    return Bounds(
        estimate=np.where(none, np.nan, mean),
        low=np.where(none, np.nan, np.maximum(low, minimum)),
        high=np.where(none, np.nan, np.minimum(high, maximum)),
        tasks=n,
        deviation=np.where(none, np.nan, deviation),
    )


def _with_task(
    mean: Floats, squares: Floats, n: Floats, level: Floats, value: float
) -> tuple[Floats, Floats]:
    """Student's bounds once a task of that value is added."""
    more = n + 1
    moved = (mean * n + value) / more
    spread = squares + (value - mean) ** 2 * n / more
    reach = student(1.0 - level, more - 1) * np.sqrt(spread / (more - 1) / more)
    return moved - reach, moved + reach


def clopper_pearson(count: int, total: int, level: float = LEVEL) -> tuple[float, float]:
    """The exact two-sided interval of a share (Clopper and Pearson, 1934)."""
    miss = (1 - level) / 2
    low = scipy.special.betaincinv(count, total - count + 1, miss) if count else 0.0
    high = scipy.special.betaincinv(count + 1, total - count, 1 - miss) if count < total else 1.0
    return float(low), float(high)


def wilson(share: float, count: float, z: float) -> tuple[float, float]:
    """Wilson's score interval (1927) of a share of so many; z is the normal quantile of its level."""
    scale = 1 + z * z / count
    centre = (share + z * z / (2 * count)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(centre - half, 0.0), min(centre + half, 1.0)


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
    """The interval of the first share minus the second.

    Newcombe (1998), "Interval estimation for the difference between independent proportions", method 10:
    two Wilson intervals combined. Trials of one task resemble each other, so each side counts as many traces
    as would carry as much information if they were independent: n divided by the design effect (Rao and
    Scott, 1992, "A simple method for the analysis of clustered binary data"), from one correlation of both
    sides: each side's own would jump when its last trace that differs is added or removed. Tasks on both
    sides make the two shares alike; that is ignored, which makes the interval wider.

    Args:
        first, second: One cluster per task.
        comparisons: How many intervals shall hold together (Bonferroni).
        level: The level at which they do.

    Returns:
        Lower and upper end; None if a side has no trace.
    """
    sides = [[cluster for cluster in side if cluster.shown > 0] for side in (first, second)]
    if not all(sides):
        return None
    alike = correlation(sides)
    (p, n), (q, m) = (_share(side, alike) for side in sides)
    z = NormalDist().inv_cdf(1 - (1 - level) / (2 * max(comparisons, 1)))
    low_p, high_p = wilson(p, n, z)
    low_q, high_q = wilson(q, m, z)
    low = p - q - math.hypot(p - low_p, high_q - q)
    high = p - q + math.hypot(high_p - p, q - low_q)
    return max(low, -1.0), min(high, 1.0)


def correlation(sides: Sequence[Sequence[Cluster]]) -> float:
    """How much trials of one task resemble each other, from 0 to 1, of both sides together.

    By moments: the squares of clusters' residuals lie between those of independent traces and those of
    clusters that agree within themselves. A side whose traces all agree says nothing about it, so it borrows
    the other's; if neither side does, each task counts as a single trace.
    """
    found = least = most = 0.0
    for side in sides:
        total = sum(cluster.shown for cluster in side)
        share = min(sum(cluster.lacking for cluster in side) / total, 1.0)
        spread, count = share * (1 - share), len(side)
        if count > 1:
            residuals = sum((cluster.lacking - share * cluster.shown) ** 2 for cluster in side)
            found += count / (count - 1) * residuals
            least += spread * total
            most += spread * sum(cluster.shown**2 for cluster in side)
    if not least:
        return 1.0
    return min(max((found - least) / (most - least), 0.0), 1.0) if most > least else 0.0


def _share(side: Sequence[Cluster], alike: float) -> tuple[float, float]:
    """A share, and of how many independent traces it is worth: n / (1 + (m − 1)ρ), m a trace's cluster."""
    total = sum(cluster.shown for cluster in side)
    mean = sum(cluster.shown**2 for cluster in side) / total
    return min(sum(cluster.lacking for cluster in side) / total, 1.0), total / (
        1 + max(mean - 1, 0.0) * alike
    )
