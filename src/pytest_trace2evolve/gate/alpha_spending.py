"""The levels of tests: the share of α that each test of a sealed split and each stage of a run may spend.

Every claim of an improvement on the same sealed tasks is a further chance to be wrong. The k-th test of a
split may spend α_k = α·6/(π²k²) in total, so all tests together err with probability at most α (Bonferroni's
inequality with the weights of the Basel series, which add up to 1).

More trials of the same claim continue its test. Analysis j of test k has level α_k·¾·(¼)^(j-1); these levels
add up to α_k. The number of analyses need not be known beforehand (as in Lan and DeMets, Biometrika 1983). A
later analysis may include the data of an earlier analysis or use fresh data alone, because Bonferroni's
inequality holds for any dependence. `gate/claims.py` finds a run's test and analysis in the ledger.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

FIRST_SHARE = 0.75
"""The first analysis' share of its test's level. Each later analysis has a quarter of the previous share."""


def alpha_share(test_number: int, analysis: int | None = None) -> float:
    """The share of α that a test, or one of its analyses, may spend.

    Args:
        test_number: The test's number k, from 1. The test's share is 6/(π²k²).
        analysis: The analysis' number j, from 1. The analysis has ¾·(¼)^(j-1) of the test's share; None
            gives the whole share of the test.
    """
    test_share = 6.0 / (math.pi * test_number) ** 2
    return (
        test_share if analysis is None else test_share * FIRST_SHARE * (1.0 - FIRST_SHARE) ** (analysis - 1)
    )


def unnumbered_claim_share(abandoned_count: int) -> float:
    """The share of α of a claim without a test number: the whole α, unless draws were abandoned before it."""
    return FIRST_SHARE * (1.0 - FIRST_SHARE) ** abandoned_count if abandoned_count else 1.0


@dataclass(frozen=True)
class Stage:
    """One stage of a staged run, which may stop after any stage.

    Attributes:
        number: The number of the stage, from 1.
        count: The number of stages.
        trials: Trials per task and side, up to and including this stage.
        alpha: The level of the test at this stage.
        max_trials: Trials per task and side, up to and including the last stage.
        schedule: Trials per task and side, up to and including each stage.
    """

    number: int
    count: int
    trials: int
    alpha: float
    max_trials: int = 0
    schedule: tuple[int, ...] = ()

    @property
    def is_last(self) -> bool:
        """Whether no further stage follows."""
        return self.number == self.count

    def __str__(self) -> str:
        return f"stage {self.number} of {self.count}: {self.trials} trial{'' if self.trials == 1 else 's'}"


def stage_alpha(alpha: float, schedule: Sequence[int]) -> float:
    """The level of each stage at which a one-sided test over all stages has the overall level `alpha`.

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

    crossing_probability = _crossing_probability(schedule)
    nominal_level = brentq(
        lambda nominal: crossing_probability(-ndtri(nominal)) - alpha,
        alpha / len(schedule) * 0.99,
        alpha,
        xtol=1e-9,
    )
    return float(nominal_level)


def _crossing_probability(schedule: Sequence[int]) -> Callable[[float], float]:
    """Return a function that maps a bound to the chance that the statistic of any stage exceeds it.

    The chance is computed under the null hypothesis that the sides do not differ, by recursion over the
    stages (Armitage, McPherson and Rowe, 1969). The density of the sum so far,
    truncated at the bound where the run stops, is convolved with the independent increment of the next stage.
    """
    import numpy as np  # imported here, since most commands do not need it
    from scipy.special import ndtr

    nodes, node_weights = np.polynomial.legendre.leggauss(200)  # exact to eight decimals
    cutoff = 8.0  # standard deviations at which the integration is cut off

    def density(x: np.ndarray, scale: float) -> np.ndarray:
        return np.asarray(np.exp(-((x / scale) ** 2) / 2.0) / np.sqrt(2.0 * np.pi) / scale)

    def quadrature(low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
        half_width = (high - low) / 2.0
        return low + half_width * (nodes + 1.0), node_weights * half_width

    def crossing_probability(bound: float) -> float:
        probability = float(ndtr(-bound))
        deviation = math.sqrt(schedule[0])
        x, weights = quadrature(-cutoff * deviation, bound * deviation)
        densities = density(x, deviation)
        for previous_trials, trials in pairwise(schedule):
            step_deviation, limit = math.sqrt(trials - previous_trials), bound * math.sqrt(trials)
            probability += float(np.sum(weights * densities * ndtr(-(limit - x) / step_deviation)))
            next_x, next_weights = quadrature(-cutoff * math.sqrt(trials), limit)
            densities = density(next_x[:, None] - x[None, :], step_deviation) @ (weights * densities)
            x, weights = next_x, next_weights
        return probability

    return crossing_probability
