"""The levels of tests: the share of α that each test of a sealed split and each stage of a run may spend.

Every claim of an improvement on the same sealed tasks is a further chance to be wrong. The k-th test of a
split may spend α_k = α·6/(π²k²) in total, so all tests together err with probability at most α (Bonferroni's
inequality with the weights of the Basel series, which add up to 1).

More trials of the same claim continue its test. Analysis j of test k has level α_k·¾·(¼)^(j-1); these levels
add up to α_k. The number of analyses need not be known beforehand (as in Lan and DeMets, Biometrika 1983). A
later analysis may include the data of an earlier analysis or use fresh data alone, because Bonferroni's
inequality holds for any dependence. Decision page 0006 gives the reasons for these weights.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

FIRST_SHARE = 0.75
"""The first analysis' share of its test's level. Each later analysis has a quarter of the previous share."""


def share(number: int, analysis: int | None = None) -> float:
    """The share of α that a test, or one of its analyses, may spend.

    Args:
        number: The test's number k, from 1. The test's share is 6/(π²k²).
        analysis: The analysis' number j, from 1, with ¾·(¼)^(j-1) of the test's share; None for the whole.
    """
    whole = 6.0 / (math.pi * number) ** 2
    return whole if analysis is None else whole * FIRST_SHARE * (1.0 - FIRST_SHARE) ** (analysis - 1)


def uncounted_share(abandoned: int) -> float:
    """The share of α of a claim without a test number: the whole α, unless draws were abandoned before it."""
    return FIRST_SHARE * (1.0 - FIRST_SHARE) ** abandoned if abandoned else 1.0


@dataclass(frozen=True)
class Stage:
    """One stage of a staged run, which may stop after any stage.

    Attributes:
        number: The number of the stage, from 1.
        of: The number of stages.
        trials: Trials per task and side, up to and including this stage.
        alpha: The level of the test at this stage.
        most: Trials per task and side, up to and including the last stage.
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
    """The nominal level for each stage that gives a one-sided test over all stages the level `alpha`.

    Args:
        alpha: The overall level, between 0 and 1.
        schedule: Trials at each stage, rising.

    The statistics of the stages are jointly normal. Stages with n and m ≥ n trials have correlation
    sqrt(n/m), since the later stage includes the trials of the earlier stage (Pocock, Biometrika 1977;
    unequal steps as in Lan and DeMets, 1983). If tasks differ in their gain, which more trials do not average
    out, stages correlate more, and the actual level is below `alpha`.
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
    """A function of a bound: the probability that any stage's statistic exceeds it if nothing differs.

    Computed by recursion over the stages (Armitage, McPherson and Rowe, 1969). The density of the sum so far,
    truncated at the bound where the run stops, is convolved with the independent increment of the next stage.
    """
    import numpy as np  # imported here, since most commands do not need it
    from scipy.special import ndtr

    nodes, node_weights = np.polynomial.legendre.leggauss(200)  # exact to eight decimals
    far = 8.0  # standard deviations at which the integration is cut off

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
