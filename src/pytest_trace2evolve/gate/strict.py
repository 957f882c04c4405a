"""The policy `strict`: point estimates against thresholds, Trace2Evolve's rule."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pytest_trace2evolve.errors import PolicyError
from pytest_trace2evolve.gate.checks import (
    FAIL,
    NOT_APPLICABLE,
    PASS,
    STATUSES,
    Check,
    Judgement,
    Policy,
    Question,
    VectorizedCheck,
    run_check,
)
from pytest_trace2evolve.gate.columns import Counts, Flags, Floats
from pytest_trace2evolve.gate.pairs import Pairs
from pytest_trace2evolve.gate.tally import Comparisons, Tally, mean_of
from pytest_trace2evolve.records.verdict import CheckResult, CheckStatus, Goal

TOLERANCE = 1e-9
"""Differences within this are rounding, not effects."""

_UNMEASURED = "nothing was measured on both sides"


@dataclass(frozen=True)
class PointCheck:
    """A check of a point estimate.

    Attributes:
        id: Its name.
        applies, passes: By comparison, whether it applies and whether it passes.
        figures: Of one comparison, the estimate and a line that explains it.
        absent: Why it does not apply, if it does not.
    """

    id: str
    applies: Callable[[Comparisons], Flags]
    passes: Callable[[Comparisons], Flags]
    figures: Callable[[Pairs], tuple[float, str]]
    absent: str = _UNMEASURED

    def answers(self, compared: Comparisons) -> Counts:
        """`PASS`, `FAIL` or `NOT_APPLICABLE` by comparison."""
        return np.where(self.applies(compared), np.where(self.passes(compared), PASS, FAIL), NOT_APPLICABLE)

    def evaluate(self, pairs: Pairs) -> CheckResult:
        """The answer of one comparison, with its figures."""
        status = STATUSES[self.answers(pairs.compared)[0]]
        if status is CheckStatus.NOT_APPLICABLE:
            return CheckResult(id=self.id, status=status, detail=self.absent)
        estimate, detail = self.figures(pairs)
        return CheckResult(id=self.id, status=status, estimate=estimate, threshold=0.0, detail=detail)


def _mean_check(
    name: str, figure: Callable[[Tally], Floats], absent: str = _UNMEASURED, *, rises: bool = False
) -> PointCheck:
    """Whether the mean of a figure rises, or does not decline, over the tasks that have it on both sides."""

    def difference(compared: Comparisons) -> Floats:
        change = figure(compared.candidate) - figure(compared.baseline)
        known = ~np.isnan(change)
        return mean_of(np.where(known, change, 0.0).sum(axis=1), known.sum(axis=1))

    def figures(pairs: Pairs) -> tuple[float, str]:
        old, new = (figure(side) for side in pairs.sides)
        known = ~np.isnan(old) & ~np.isnan(new)
        means = f"{old[known].mean():.3f} → {new[known].mean():.3f} (n={int(known.sum())})"
        return float(difference(pairs.compared)[0]), means

    def passes(compared: Comparisons) -> Flags:
        change = difference(compared)
        return np.asarray(change > TOLERANCE if rises else change >= -TOLERANCE)

    return PointCheck(
        id=name,
        applies=lambda compared: np.asarray(~np.isnan(difference(compared))),
        passes=passes,
        figures=figures,
        absent=absent,
    )


def _share_check(kind: str, actions: str) -> PointCheck:
    return _mean_check(f"{kind}_not_worse", lambda side: side.share(kind), f"no gold {actions} checked")


def _passed(side: Tally) -> Floats:
    return np.where(side.measured > 0, side.passes.astype(np.float64), np.nan)


def _broken_and_fixed(pairs: Pairs) -> tuple[float, str]:
    broken, fixed = len(pairs.broken()), len(pairs.fixed())
    return float(broken), f"{broken} broken, {fixed} fixed"


def _max_steps(pairs: Pairs) -> tuple[float, str]:
    before, after = (int(side.max_steps.sum()) for side in pairs.sides)
    return float(after), f"{before} → {after} simulations"


REWARD_IMPROVED = _mean_check("reward_improved", lambda side: side.mean_reward, rises=True)
REWARD_NOT_WORSE = _mean_check("reward_not_worse", lambda side: side.mean_reward)

WATCHED: tuple[Check, ...] = (
    _mean_check("pass_rate_not_worse", _passed),
    _share_check("action_match", "actions"),
    _share_check("read_action_match", "read actions"),
    _share_check("write_action_match", "write actions"),
    PointCheck(
        id="no_task_regressions",
        applies=lambda compared: np.asarray(compared.both.any(axis=1)),
        passes=lambda compared: np.asarray(~compared.broken.any(axis=1)),
        figures=_broken_and_fixed,
    ),
    PointCheck(
        id="no_max_steps",
        applies=lambda compared: np.full(len(compared.both), compared.both.shape[1] > 0),
        passes=lambda compared: np.asarray((compared.candidate.max_steps == 0).all(axis=1)),
        figures=_max_steps,
        absent="no task was compared",
    ),
)
"""The checks of `strict` besides the reward."""


@dataclass(frozen=True)
class Strict(Policy):
    """A named set of checks on point estimates."""

    name: str
    improve: Check
    hold: Check
    watched: tuple[Check, ...]
    confirms: bool = False
    confirm: int = 0
    alpha: float = 0.05

    equal_trials = False

    def checks(self, goal: Goal) -> tuple[Check, ...]:
        """The checks in the order in which they are printed."""
        return (self.improve if goal is Goal.IMPROVE else self.hold, *self.watched)

    def judge(self, pairs: Pairs, question: Question) -> Judgement:
        """Answer every check."""
        return Judgement(tuple(run_check(check, pairs) for check in self.checks(question.goal)))

    def detects(self, compared: Comparisons, question: Question, drop: float) -> Flags:
        """Every one: a policy on point estimates states no change that it could have missed."""
        return np.ones(len(compared.both), dtype=np.bool_)

    def answers(self, compared: Comparisons, question: Question) -> Counts:
        """Answers of every check by comparison, shape (checks, R); other checks are left out.

        Raises:
            PolicyError: no check can be asked of many comparisons at once.
        """
        checks = [check for check in self.checks(question.goal) if isinstance(check, VectorizedCheck)]
        if not checks:
            raise PolicyError(
                f"policy {self.name!r} has no check that can be asked of many comparisons at once: give one "
                "of its checks a method 'answers', or leave the policy out of the calibration"
            )
        return np.stack([check.answers(compared) for check in checks])


STRICT = Strict("strict", REWARD_IMPROVED, REWARD_NOT_WORSE, WATCHED)
"""Trace2Evolve's rule, on point estimates."""
