"""Compares cost, tokens, turns and latency of both sides: ratios of means with their intervals, and limits.

A ratio divides the candidate's mean over tasks by the baseline's, so it says how a bill changes. Its interval
inverts a t-test: it holds every ratio r for which the mean of (candidate − r · baseline) does not differ from
0. So it agrees with the test of a limit, and it allows zeros, which logarithms do not.
Source: Fieller, "Some problems in interval estimation", Journal of the Royal Statistical Society B 16 (1954).
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import scipy

from pytest_trace2evolve.gate.columns import COST, LATENCY, TOKENS, TURNS
from pytest_trace2evolve.gate.intervals import student_quantile
from pytest_trace2evolve.gate.pairs import Pairs
from pytest_trace2evolve.gate.tallies import MIN_MEASURED
from pytest_trace2evolve.records.verdict import RATIO_UNIT, CheckResult, CheckStatus, UsageRatio

_ROUNDING_ERROR = 1e-9
"""The share of the baseline's mean up to which differences and standard errors count as 0."""

_MISSING_TEXTS = {
    COST: "cost (no usage, or no price)",
    TOKENS: "usage",
    TURNS: "turns (saved by an older version)",
    LATENCY: "live latency (none recorded, or answers from a cache or a recording)",
}


@dataclass(frozen=True)
class _Means:
    """The means of both sides over the same tasks, and the variances and the covariance of these means.

    `degrees_of_freedom` is 0 if the variances are not known.
    """

    old: float
    new: float
    tasks: int
    old_variance: float = 0.0
    new_variance: float = 0.0
    covariance: float = 0.0
    degrees_of_freedom: int = 0

    def p_above(self, limit: float) -> float | None:
        """The p-value of "the ratio is at most `limit`"; None if the variances are not known.

        Without any variance it is that of a sign test, because no variance is not certainty.
        """
        if not self.degrees_of_freedom:
            return None
        excess = self.new - limit * self.old
        variance = self.new_variance - 2 * limit * self.covariance + limit**2 * self.old_variance
        error = math.sqrt(max(variance, 0.0))
        if error <= _ROUNDING_ERROR * self.old:
            return 0.5 ** (self.degrees_of_freedom + 1) if excess > _ROUNDING_ERROR * self.old else 1.0
        return float(scipy.special.stdtr(self.degrees_of_freedom, -excess / error))

    def bounds(self, alpha: float) -> tuple[float | None, float | None]:
        """The bounds of the ratio, each one-sided at level alpha; None if the evidence bounds nothing."""
        if not self.degrees_of_freedom:
            return None, None
        square = float(student_quantile(1 - alpha, self.degrees_of_freedom)) ** 2
        a = self.old**2 - square * self.old_variance
        b = self.old * self.new - square * self.covariance
        c = self.new**2 - square * self.new_variance
        if a <= 0:  # the baseline's mean is not shown to be above 0
            return None, None
        root = math.sqrt(max(b * b - a * c, 0.0))
        return max((b - root) / a, 0.0), (b + root) / a


def usage_ratio(pairs: Pairs, metric: str, alpha: float, *, has_fixed_tasks: bool) -> UsageRatio:
    """Return the ratio of a figure, or a note on why there is none.

    Args:
        pairs: The compared pairs.
        metric: A name of `USAGE_METRICS`.
        alpha: The level of each bound.
        has_fixed_tasks: Whether only trials add noise (estimand `suite`), and not the choice of the tasks.
    """
    means, note = _means_of(pairs, metric, has_fixed_tasks=has_fixed_tasks), _missing_note(pairs, metric)
    if means is None:
        return UsageRatio(metric=metric, note=note or "no task has it on both sides")
    zero_side = "baseline" if means.old <= 0 else "candidate" if means.new <= 0 else ""
    if zero_side:  # a cost of 0 is nearly always a missing price
        return UsageRatio(
            metric=metric,
            baseline=means.old,
            candidate=means.new,
            tasks=means.tasks,
            note=f"it is 0 on the {zero_side}",
        )
    low, high = means.bounds(alpha)
    return UsageRatio(
        metric=metric,
        baseline=means.old,
        candidate=means.new,
        ratio=means.new / means.old,
        low=low,
        high=high,
        tasks=means.tasks,
        note=note,
    )


def usage_ratios(pairs: Pairs, alpha: float, *, has_fixed_tasks: bool) -> tuple[UsageRatio, ...]:
    """Return the ratios of all figures; empty if neither side has recorded any."""
    return tuple(usage_ratio(pairs, metric, alpha, has_fixed_tasks=has_fixed_tasks) for metric in pairs.usage)


def increase_result(
    pairs: Pairs, metric: str, limit: float, alpha: float, *, has_fixed_tasks: bool, must_show: bool
) -> CheckResult:
    """Return the result of the check that a figure of the candidate is at most `limit` times the baseline's.

    It is undecided if a side has the figure for too few simulations or, if `must_show`, unless the upper
    bound is within the limit. Otherwise it passes, and the policy judges its p-value of harm.
    """
    found = usage_ratio(pairs, metric, alpha, has_fixed_tasks=has_fixed_tasks)
    if found.ratio is None or found.note:
        return CheckResult(
            id=metric, status=CheckStatus.UNDECIDED, threshold=limit, unit=RATIO_UNIT, detail=found.note
        )
    means = _means_of(pairs, metric, has_fixed_tasks=has_fixed_tasks)
    assert means is not None
    is_open = must_show and (found.high is None or found.high > limit * (1 + _ROUNDING_ERROR))
    return CheckResult(
        id=metric,
        status=CheckStatus.UNDECIDED if is_open else CheckStatus.PASS,
        estimate=found.ratio,
        low=found.low,
        high=found.high,
        threshold=limit,
        p=means.p_above(limit),
        unit=RATIO_UNIT,
        detail=f"{means.old:.4g} → {means.new:.4g} a simulation (n={means.tasks})",
    )


def _means_of(pairs: Pairs, metric: str, *, has_fixed_tasks: bool) -> _Means | None:
    """The means of a figure over the tasks that have it on both sides; None without such tasks."""
    if metric not in pairs.usage:
        return None
    old, new = pairs.usage[metric]
    is_known = (old.counts > 0) & (new.counts > 0)
    is_repeated = (old.counts > 1) & (new.counts > 1)
    if has_fixed_tasks and is_repeated.any():
        is_known = is_repeated
    n = int(is_known.sum())
    if not n:
        return None
    x, y = old.means[is_known], new.means[is_known]
    means = _Means(float(x.mean()), float(y.mean()), n)
    if has_fixed_tasks and is_repeated.any():
        return replace(
            means,
            old_variance=float(old.variances[is_known].sum()) / n**2,
            new_variance=float(new.variances[is_known].sum()) / n**2,
            degrees_of_freedom=int((old.counts + new.counts - 2)[is_known].sum()),
        )
    if has_fixed_tasks or n < 2:
        return means
    covariances = np.cov(x, y) / n
    return replace(
        means,
        old_variance=float(covariances[0, 0]),
        new_variance=float(covariances[1, 1]),
        covariance=float(covariances[0, 1]),
        degrees_of_freedom=n - 1,
    )


def _missing_note(pairs: Pairs, metric: str) -> str:
    """Name the sides that have a figure for too few of their measured simulations; empty if both have it."""
    if metric not in pairs.usage or not any(side.counts.any() for side in pairs.usage[metric]):
        return f"both sides have no {_MISSING_TEXTS[metric]}"
    parts = []
    for index, name in enumerate(("baseline", "candidate")):
        measured = int(pairs.sides[index].measured.sum())
        known = int(pairs.usage[metric][index].counts.sum())
        if not known:
            parts.append(f"the {name} has no {_MISSING_TEXTS[metric]}")
        elif known < MIN_MEASURED * measured:
            parts.append(f"only {known} of {measured} simulations of the {name} have it")
    return "; ".join(parts)
