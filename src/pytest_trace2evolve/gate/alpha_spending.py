"""The levels of tests: which share of α each test of a sealed split and each stage of a run may spend.

Every claim of an improvement on the same sealed tasks is one more chance to be wrong. The k-th test of a
split may spend α_k = α·6/(π²k²) in total, so that all tests together are wrong with at most α (Bonferroni's
inequality with the weights of the Basel series, which add up to 1).

More trials of the same claim continue its test. Analysis j of test k has level α_k·¾·(¼)^(j-1); these levels
add up to α_k. The number of analyses need not be known beforehand (as in Lan and DeMets, Biometrika 1983),
and a later analysis may hold the data of an earlier one or fresh data alone: Bonferroni's inequality holds
for any dependence. Decision page 0006 gives the reasons for these weights.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

FIRST_SHARE = 0.75
"""The first analysis' share of its test's level. Each further one has a quarter of the share before it."""


def share(number: int, analysis: int | None = None) -> float:
    """The share of α that a test has, or one analysis of it.

    Args:
        number: The test's number k, from 1: its share is 6/(π²k²).
        analysis: The analysis' number j, from 1: it has ¾·(¼)^(j-1) of the test's share. None: the whole.
    """
    whole = 6.0 / (math.pi * number) ** 2
    return whole if analysis is None else whole * FIRST_SHARE * (1.0 - FIRST_SHARE) ** (analysis - 1)


def uncounted_share(abandoned: int) -> float:
    """The share of α of a claim without a test number: all of it, unless draws were abandoned before it."""
    return FIRST_SHARE * (1.0 - FIRST_SHARE) ** abandoned if abandoned else 1.0


@dataclass(frozen=True)
class Stage:
    """One stage of a staged run, which may stop at any of them.

    Attributes:
        number: Which it is, from 1.
        of: How many there are.
        trials: Trials a task and side up to and with this stage.
        alpha: The level at which it tests.
        most: Trials up to and with the last stage.
        schedule: Trials at every stage.
    """

    number: int
    of: int
    trials: int
    alpha: float
    most: int = 0
    schedule: tuple[int, ...] = ()

    @property
    def last(self) -> bool:
        """Whether no further stage follows."""
        return self.number == self.of

    def __str__(self) -> str:
        return f"stage {self.number} of {self.of}: {self.trials} trial{'' if self.trials == 1 else 's'}"


def stage_alpha(alpha: float, schedule: Sequence[int]) -> float:
    """The nominal level of every stage with which a one-sided test of them all has level `alpha`.

    Args:
        alpha: The overall level, between 0 and 1.
        schedule: Trials at each stage, rising.

    The statistics of the stages are jointly normal, and those of stages with n and m ≥ n trials correlate
    by sqrt(n/m), since the later holds the earlier's trials (Pocock, Biometrika 1977; unequal steps as in
    Lan and DeMets, 1983). If tasks differ in their gain, which more trials do not average out, stages
    correlate more, and the level is kept with something to spare.
    """
    if len(schedule) == 1:
        return alpha
    from scipy.optimize import brentq
    from scipy.special import ndtri

    crossing = _crossing_probability(schedule)
    level = brentq(
        lambda nominal: crossing(-ndtri(nominal)) - alpha, alpha / len(schedule) * 0.99, alpha, xtol=1e-9
    )
    return float(level)


def _crossing_probability(schedule: Sequence[int]) -> Callable[[float], float]:
    """The probability, by a bound, that any stage's statistic passes it although nothing differs.

    By recursion over the stages (Armitage, McPherson and Rowe, 1969): the density of the sum so far, cut off
    where the run has stopped, is carried through the independent increment of the next stage.
    """
    import numpy as np  # here, since most commands do without it
    from scipy.special import ndtr

    nodes, node_weights = np.polynomial.legendre.leggauss(200)  # exact to eight decimals
    far = 8.0  # standard deviations beyond which nothing is integrated

    def density(x: np.ndarray, scale: float) -> np.ndarray:
        return np.asarray(np.exp(-((x / scale) ** 2) / 2.0) / np.sqrt(2.0 * np.pi) / scale)

    def points(low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
        half = (high - low) / 2.0
        return low + half * (nodes + 1.0), node_weights * half

    def crossing(bound: float) -> float:
        crossed = float(ndtr(-bound))
        deviation = math.sqrt(schedule[0])
        at, weights = points(-far * deviation, bound * deviation)
        reached = density(at, deviation)
        for before, now in pairwise(schedule):
            step, limit = math.sqrt(now - before), bound * math.sqrt(now)
            crossed += float(np.sum(weights * reached * ndtr(-(limit - at) / step)))
            further, further_weights = points(-far * math.sqrt(now), limit)
            reached = density(further[:, None] - at[None, :], step) @ (weights * reached)
            at, weights = further, further_weights
        return crossed

    return crossing
