"""The checks of the `strict` policy: point estimates against thresholds, one small class each.

What decides is worked out over the last axis of arrays, so that one comparison (N tasks) and thousands of
them (R, N) are answered by the same lines.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np

from pytest_trace2evolve.errors import PolicyError
from pytest_trace2evolve.gate.columns import Counts, Flags, Floats
from pytest_trace2evolve.gate.pairs import Pairs
from pytest_trace2evolve.gate.tally import Comparisons, Tally, mean_of
from pytest_trace2evolve.gate.vectorized import FAIL, NOT_APPLICABLE, PASS
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


def ask(check: Check, pairs: Pairs) -> CheckResult:
    """The answer of a check that may be somebody else's.

    Raises:
        PolicyError: it raised something, or answered with no result, for another id, or with an impossible p.
    """
    try:
        result: object = check.evaluate(pairs)
    except Exception as error:
        first = str(error).partition("\n")[0]
        raise PolicyError(
            f"check {check.id!r} failed with {type(error).__name__}: {first!r}; mend it"
        ) from None
    if not isinstance(result, CheckResult):
        raise PolicyError(f"check {check.id!r} answered {type(result).__name__}, not a CheckResult; mend it")
    if result.id != check.id:
        raise PolicyError(f"check {check.id!r} answered for {result.id!r}; it answers for itself alone")
    if result.p is not None and not 0 <= result.p <= 1:
        raise PolicyError(f"check {check.id!r} answered p = {result.p:g}; a p-value lies between 0 and 1")
    return result


@runtime_checkable
class RowCheck(Check, Protocol):
    """A check that can also be asked of many comparisons at once."""

    def answers(self, compared: Comparisons) -> Counts:
        """`PASS`, `FAIL` or `NOT_APPLICABLE` by comparison: one less axis than the comparisons' arrays."""


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
        difference=float(_difference(old, new)),
    )


def _difference(old: Floats, new: Floats) -> Floats:
    """Mean difference over the tasks that have a figure on both sides; NaN where none has."""
    known = ~np.isnan(old) & ~np.isnan(new)
    return mean_of(np.where(known, new - old, 0.0).sum(axis=-1), known.sum(axis=-1))


def _answers(passed: Flags, absent: Flags) -> Counts:
    return np.where(absent, NOT_APPLICABLE, np.where(passed, PASS, FAIL))


def _result(check: str, answer: Counts, means: _Means | None, *, absent: str) -> CheckResult:
    if means is None:
        return CheckResult(id=check, status=CheckStatus.NOT_APPLICABLE, detail=absent)
    return CheckResult(
        id=check,
        status=_STATUS[int(answer)],
        estimate=means.difference,
        threshold=0.0,
        detail=f"{means.baseline:.3f} → {means.candidate:.3f} (n={means.tasks})",
    )


_STATUS = {NOT_APPLICABLE: CheckStatus.NOT_APPLICABLE, PASS: CheckStatus.PASS, FAIL: CheckStatus.FAIL}
_UNMEASURED = "nothing was measured on both sides"


class RewardImproved:
    """Mean reward is higher than the baseline's."""

    id = "reward_improved"

    def answers(self, compared: Comparisons) -> Counts:
        """Pass where the difference of mean rewards is above 0."""
        difference = _difference(compared.baseline.mean_reward, compared.candidate.mean_reward)
        return _answers(difference > TOLERANCE, np.isnan(difference))

    def evaluate(self, pairs: Pairs) -> CheckResult:
        """The same of one comparison, with its figures."""
        means = _means(pairs, lambda side: side.mean_reward)
        return _result(self.id, self.answers(_case(pairs)), means, absent=_UNMEASURED)


@dataclass(frozen=True)
class NotWorse:
    """The mean of one figure does not decline."""

    id: str
    figure: Callable[[Tally], Floats]
    absent: str = _UNMEASURED

    def answers(self, compared: Comparisons) -> Counts:
        """Pass where the difference of means is at least 0."""
        difference = _difference(self.figure(compared.baseline), self.figure(compared.candidate))
        return _answers(difference >= -TOLERANCE, np.isnan(difference))

    def evaluate(self, pairs: Pairs) -> CheckResult:
        """The same of one comparison, with its figures."""
        means = _means(pairs, self.figure)
        return _result(self.id, self.answers(_case(pairs)), means, absent=self.absent)


class NoTaskRegressions:
    """No task goes from passing to failing."""

    id = "no_task_regressions"

    def answers(self, compared: Comparisons) -> Counts:
        """Pass where no task is broken."""
        return _answers(np.asarray(~compared.broken.any(axis=-1)), np.asarray(~compared.both.any(axis=-1)))

    def evaluate(self, pairs: Pairs) -> CheckResult:
        """The same of one comparison, with its figures."""
        answer = self.answers(_case(pairs))
        if answer == NOT_APPLICABLE:
            return CheckResult(id=self.id, status=CheckStatus.NOT_APPLICABLE, detail=_UNMEASURED)
        broken, fixed = pairs.broken(), pairs.fixed()
        return CheckResult(
            id=self.id,
            status=_STATUS[int(answer)],
            estimate=float(len(broken)),
            threshold=0.0,
            detail=f"{len(broken)} broken, {len(fixed)} fixed",
        )


class NoMaxSteps:
    """No simulation of the candidate runs into the step budget."""

    id = "no_max_steps"

    def answers(self, compared: Comparisons) -> Counts:
        """Pass where the candidate has no max-step failure."""
        steps = compared.candidate.max_steps
        none = np.full(steps.shape[:-1], steps.shape[-1] == 0)
        return _answers(np.asarray((steps == 0).all(axis=-1)), none)

    def evaluate(self, pairs: Pairs) -> CheckResult:
        """The same of one comparison, with its figures."""
        if not pairs.names:
            absent = "no task was compared"
            return CheckResult(id=self.id, status=CheckStatus.NOT_APPLICABLE, detail=absent)
        before, after = (int(side.max_steps.sum()) for side in pairs.sides)
        return CheckResult(
            id=self.id,
            status=_STATUS[int(self.answers(_case(pairs)))],
            estimate=float(after),
            threshold=0.0,
            detail=f"{before} → {after} simulations",
        )


def _case(pairs: Pairs) -> Comparisons:
    return Comparisons(pairs.baseline, pairs.candidate)


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
