"""The checks of the `strict` policy: point estimates against thresholds, one small class each."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from pytest_trace2evolve.gate.columns import Floats
from pytest_trace2evolve.gate.pairs import Pairs
from pytest_trace2evolve.gate.tally import Tally
from pytest_trace2evolve.records.verdict import CheckResult, CheckStatus

TOLERANCE = 1e-9
"""Differences within this are rounding, not effects."""


class Check(Protocol):
    """One question that a policy asks of the pairs."""

    @property
    def id(self) -> str:
        """The name under which it is printed and configured."""

    def evaluate(self, pairs: Pairs) -> CheckResult:
        """Answer pass, fail, undecided or not applicable, with what was estimated."""


@dataclass(frozen=True)
class _Means:
    """Means over the tasks that have a figure on both sides."""

    tasks: int
    baseline: float
    candidate: float
    difference: float


def _means(pairs: Pairs, figure: Callable[[Tally], Floats]) -> _Means | None:
    old, new = figure(pairs.baseline), figure(pairs.candidate)
    known = ~np.isnan(old) & ~np.isnan(new)
    if not known.any():
        return None
    return _Means(
        tasks=int(known.sum()),
        baseline=float(old[known].mean()),
        candidate=float(new[known].mean()),
        difference=float((new[known] - old[known]).mean()),
    )


def _answer(check: str, means: _Means | None, *, passed: bool, absent: str) -> CheckResult:
    if means is None:
        return CheckResult(id=check, status=CheckStatus.NOT_APPLICABLE, detail=absent)
    return CheckResult(
        id=check,
        status=CheckStatus.PASS if passed else CheckStatus.FAIL,
        estimate=means.difference,
        threshold=0.0,
        detail=f"{means.baseline:.3f} → {means.candidate:.3f} (n={means.tasks})",
    )


class RewardImproved:
    """Mean reward is higher than the baseline's."""

    id = "reward_improved"

    def evaluate(self, pairs: Pairs) -> CheckResult:
        """Pass where the difference of mean rewards is above 0."""
        means = _means(pairs, lambda side: side.mean_reward)
        passed = means is not None and means.difference > TOLERANCE
        return _answer(self.id, means, passed=passed, absent="nothing was measured on both sides")


@dataclass(frozen=True)
class NotWorse:
    """The mean of one figure does not decline."""

    id: str
    figure: Callable[[Tally], Floats]
    absent: str = "nothing was measured on both sides"

    def evaluate(self, pairs: Pairs) -> CheckResult:
        """Pass where the difference of means is at least 0."""
        means = _means(pairs, self.figure)
        passed = means is not None and means.difference >= -TOLERANCE
        return _answer(self.id, means, passed=passed, absent=self.absent)


class NoTaskRegressions:
    """No task goes from passing to failing."""

    id = "no_task_regressions"

    def evaluate(self, pairs: Pairs) -> CheckResult:
        """Pass where no task is broken."""
        if not pairs.both.any():
            absent = "nothing was measured on both sides"
            return CheckResult(id=self.id, status=CheckStatus.NOT_APPLICABLE, detail=absent)
        broken, fixed = pairs.broken(), pairs.fixed()
        return CheckResult(
            id=self.id,
            status=CheckStatus.FAIL if broken else CheckStatus.PASS,
            estimate=float(len(broken)),
            threshold=0.0,
            detail=f"{len(broken)} broken, {len(fixed)} fixed",
        )


class NoMaxSteps:
    """No simulation of the candidate runs into the step budget."""

    id = "no_max_steps"

    def evaluate(self, pairs: Pairs) -> CheckResult:
        """Pass where the candidate has no max-step failure."""
        if not pairs.names:
            absent = "no task was compared"
            return CheckResult(id=self.id, status=CheckStatus.NOT_APPLICABLE, detail=absent)
        before, after = (int(side.max_steps.sum()) for side in pairs.sides)
        return CheckResult(
            id=self.id,
            status=CheckStatus.FAIL if after else CheckStatus.PASS,
            estimate=float(after),
            threshold=0.0,
            detail=f"{before} → {after} simulations",
        )


def _passes(side: Tally) -> Floats:
    return np.where(side.measured > 0, side.passes.astype(np.float64), np.nan)


def _share(kind: str, side: Tally) -> Floats:
    return side.share(kind)


REWARD_IMPROVED = RewardImproved()
REWARD_NOT_WORSE = NotWorse("reward_not_worse", lambda side: side.mean_reward)

WATCHED: tuple[Check, ...] = (
    NotWorse("pass_rate_not_worse", _passes),
    NotWorse("action_match_not_worse", partial(_share, "action_match"), absent="no gold actions checked"),
    NotWorse(
        "read_action_match_not_worse",
        partial(_share, "read_action_match"),
        absent="no gold read actions checked",
    ),
    NotWorse(
        "write_action_match_not_worse",
        partial(_share, "write_action_match"),
        absent="no gold write actions checked",
    ),
    NoTaskRegressions(),
    NoMaxSteps(),
)
"""What `strict` asks besides the reward."""
