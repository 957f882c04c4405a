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
    1992, "A simple method for the analysis of clustered binary data"). Tasks that stand on both sides make
    the two shares alike; that is left out, which makes the interval wider.

    Args:
        first, second: One cluster a task.
        comparisons: How many intervals shall hold together (Bonferroni).
        level: At which they do.

    Returns:
        Lower and upper end; None where a side has no trace.
    """
    one, other = _share(first), _share(second)
    if one is None or other is None:
        return None
    (p, n), (q, m) = one, other
    z = NormalDist().inv_cdf(1 - (1 - level) / (2 * max(comparisons, 1)))
    low_p, high_p = _wilson(p, n, z)
    low_q, high_q = _wilson(q, m, z)
    low = p - q - math.hypot(p - low_p, high_q - q)
    high = p - q + math.hypot(high_p - p, q - low_q)
    return max(low, -1.0), min(high, 1.0)


def _share(clusters: Sequence[Cluster]) -> tuple[float, float] | None:
    """A share, and of how many independent traces it is worth; None where there is none."""
    known = [one for one in clusters if one.shown > 0]
    total = sum(one.shown for one in known)
    if not total:
        return None
    share = min(sum(one.lacking for one in known) / total, 1.0)
    count = len(known)
    spread = share * (1 - share)
    if count < 2 or not spread:
        # One task tells nothing of how tasks differ, and neither do traces that all agree: each task
        # counts as a single trace.
        return share, float(min(count, total))
    squares = sum((one.lacking - share * one.shown) ** 2 for one in known)
    variance = count / (count - 1) * squares / total**2
    return share, total / max(variance * total / spread, 1.0)


def _wilson(share: float, count: float, z: float) -> tuple[float, float]:
    """Wilson's score interval (1927)."""
    scale = 1 + z * z / count
    centre = (share + z * z / (2 * count)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(centre - half, 0.0), min(centre + half, 1.0)
