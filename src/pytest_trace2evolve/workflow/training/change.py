"""How much better a model became, with an interval: scenarios are compared with themselves."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, stdev

from pytest_trace2evolve.records.environment import TOP
from pytest_trace2evolve.records.heldout import HeldOut

LEVEL = 0.95
"""Of the intervals."""

ALIKE = 1e-9
"""Standard deviation below which differences are equal but for rounding."""


@dataclass(frozen=True)
class Change:
    """A figure before and after, and the difference with its interval; None where nothing can be said."""

    before: float
    after: float
    low: float | None
    high: float | None

    @property
    def difference(self) -> float:
        """After less before."""
        return self.after - self.before


def reward_change(before: HeldOut, after: HeldOut) -> Change:
    """The change of the mean reward; see `_change`."""
    return _change(before, after, float)


def top_change(before: HeldOut, after: HeldOut) -> Change:
    """The change of the share of rollouts with the top reward; see `_change`."""
    return _change(before, after, lambda reward: float(reward == TOP))


def _change(before: HeldOut, after: HeldOut, figure: Callable[[float], float]) -> Change:
    """The mean over scenarios of what each gained.

    Student's interval for paired differences: rollouts of one scenario resemble each other, so a scenario
    counts once, whatever the number of its rollouts. Where all gained alike it is as wide as Wilson's
    interval of so many scenarios of which none differs: one without a width would claim what two scenarios
    cannot show.
    """
    pairs = [
        (fmean(map(figure, one)), fmean(map(figure, other)))
        for one, other in zip(before.rewards, after.rewards, strict=True)
        if one and other
    ]
    if not pairs:
        raise ValueError("no scenario was played on both sides")
    gains = [other - one for one, other in pairs]
    mean_before, mean_after = (fmean(side) for side in zip(*pairs, strict=True))
    if len(gains) < 2:
        return Change(mean_before, mean_after, None, None)
    from scipy.stats import norm, t

    if stdev(gains) < ALIKE:
        share = float(norm.ppf((1 + LEVEL) / 2)) ** 2 / len(gains)
        reach = share / (1 + share)
    else:
        reach = float(t.ppf((1 + LEVEL) / 2, len(gains) - 1)) * stdev(gains) / math.sqrt(len(gains))
    middle = fmean(gains)
    return Change(mean_before, mean_after, max(-1.0, middle - reach), min(1.0, middle + reach))
