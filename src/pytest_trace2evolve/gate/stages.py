"""The level of each stage of a run that may stop at any of them, so that all stages together keep theirs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_Rule = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Points of an integral and their weights."""

_POINTS = 200
"""How many points: the level is exact to eight decimals with them."""

_FAR = 8.0
"""Standard deviations beyond which nothing is integrated."""


@dataclass(frozen=True)
class Stage:
    """One stage of a staged run.

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
    Lan and DeMets, 1983). Where tasks differ in their gain, which more trials do not average out, stages
    correlate more, and the level is kept with something to spare.
    """
    from scipy.optimize import brentq
    from scipy.stats import norm

    if len(schedule) == 1:
        return alpha

    rule = np.polynomial.legendre.leggauss(_POINTS)

    def excess(nominal: float) -> float:
        return _crossing(float(norm.isf(nominal)), schedule, rule) - alpha

    return float(brentq(excess, alpha / len(schedule) * 0.99, alpha, xtol=1e-9))


def _crossing(bound: float, schedule: Sequence[int], rule: _Rule) -> float:
    """The probability that any stage's statistic passes `bound` where nothing differs; `rule` integrates.

    By recursion over the stages (Armitage, McPherson and Rowe, 1969): the density of the sum so far, cut off
    where the run has stopped, is carried through the independent increment of the next stage.
    """
    from scipy.stats import norm

    crossed = float(norm.sf(bound))
    deviation = float(np.sqrt(schedule[0]))
    at, weights = _points(rule, -_FAR * deviation, bound * deviation)
    density = norm.pdf(at, scale=deviation)
    for before, now in pairwise(schedule):
        step, limit = float(np.sqrt(now - before)), bound * float(np.sqrt(now))
        crossed += float(np.sum(weights * density * norm.sf(limit - at, scale=step)))
        further, next_weights = _points(rule, -_FAR * float(np.sqrt(now)), limit)
        density = norm.pdf(further[:, None] - at[None, :], scale=step) @ (weights * density)
        at, weights = further, next_weights
    return crossed


def _points(rule: _Rule, low: float, high: float) -> _Rule:
    """A rule's points and weights, moved from -1 … 1 to between two limits."""
    at, weights = rule
    half = (high - low) / 2.0
    return low + half * (at + 1.0), weights * half
