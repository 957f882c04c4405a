"""Newcombe's interval for a difference of two shares, with trials clustered by task."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

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
