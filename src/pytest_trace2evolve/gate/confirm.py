"""Confirms or clears suspected regressions by an exact test on fresh trials of both sides, in two steps.

A task is flagged if it passes on the baseline but not on the candidate. Among noisy tasks, many are flagged
by chance alone. The trials that flagged a task cannot confirm it, because they were selected for the flag. A
flagged task therefore gets fresh trials, which enter no other estimate: first `STEP` per side, then `STEP`
more if the first step neither clearly confirmed nor clearly cleared the regression.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pytest_trace2evolve.gate.columns import Flags, Floats
from pytest_trace2evolve.gate.significance import fisher
from pytest_trace2evolve.records.evidence import FreshTrials, SimulationEvidence
from pytest_trace2evolve.scoring.metrics import succeeded

STEP = 8
"""Fresh trials per side in one step."""

MAX_FRESH = 2 * STEP
"""The most fresh trials per side."""

CONFIRMED = 1e-4
"""Fisher's p of the first step up to which a regression is confirmed at once. This requires that all trials
pass on the baseline, and none on the candidate."""

CLEARED = 0.5
"""Fisher's p of the first step from which a regression is cleared at once. Stopping here costs less than a
tenth of a point of power, and saves six of sixteen trials per side if nothing changed."""

_TIE = (4, 3)
"""Passes of the first step that have p = `CLEARED` but are still followed by a second step. Rounding once
caused this, and the published figures depend on it."""

_GRID = 20_000
"""The number of grid intervals of the pass rates over which a p-value is maximized."""


def next_step(baseline_passed: int, candidate_passed: int, done: int) -> int:
    """The number of further fresh trials that each side needs: `STEP` or 0.

    Args:
        baseline_passed, candidate_passed: Passes among the fresh trials so far. A lost trial counts as failed
            on the baseline and as passed on the candidate.
        done: Fresh trials per side so far: 0, `STEP` or `MAX_FRESH`.
    """
    if done == 0:
        return STEP
    return STEP if done == STEP and two_steps(baseline_passed, candidate_passed) else 0


def two_steps(baseline_first: ArrayLike, candidate_first: ArrayLike) -> Flags:
    """Whether a second step follows a first step with these numbers of passes. Arrays broadcast."""
    return np.asarray(_tables().continues[np.asarray(baseline_first), np.asarray(candidate_first)])


def fresh_p(
    baseline_first: ArrayLike,
    candidate_first: ArrayLike,
    baseline_second: ArrayLike = 0,
    candidate_second: ArrayLike = 0,
) -> Floats:
    """The p-value of fresh trials: small if the candidate is worse. Arrays broadcast.

    Args:
        baseline_first, candidate_first: Passes among the `STEP` trials of the first step.
        baseline_second, candidate_second: Passes among the `STEP` trials of the second step; ignored if the
            first step stopped.

    The outcomes of the two steps are ordered: first outcomes that stop confirmed, then outcomes that
    continue, by Fisher's p over all trials, and last outcomes that stop cleared, whose p is 1. The p-value of
    an outcome is the probability of this or an earlier outcome, at the common pass rate that maximizes it.

    The p-value is valid by construction. If both sides pass at a common rate r, P(p ≤ u) is the probability
    at r of the latest outcome with p ≤ u or an earlier one. This is at most that outcome's p, and therefore
    at most u. If the candidate passes more often than the baseline, P(p ≤ u) is only smaller, since one more
    pass on the baseline or one less on the candidate never moves an outcome back. This is Boschloo's test
    (Biometrika 1970; `scipy.stats.boschloo_exact` gives its one-step form) for a two-step design.

    The test finds a drop from .9 to .2 at .05/20 in 92.9 % of cases and at .05/20/6 in 83.0 %. Fisher's p
    over both steps, plus `CONFIRMED` for the level that the first step may have spent, finds it in 90.7 and
    66.7 %.
    """
    tables = _tables()
    first = np.asarray(baseline_first), np.asarray(candidate_first)
    both = first[0] + np.asarray(baseline_second), first[1] + np.asarray(candidate_second)
    return np.asarray(np.where(tables.continues[first], tables.second[both], tables.first[first]))


def fresh_trials(random: np.random.Generator, broken: Flags, old: Floats, new: Floats, most: int) -> Floats:
    """Draw fresh trials of the broken tasks, and return their p-values; NaN for all other tasks.

    Args:
        random: The random generator.
        broken: The broken tasks, shape (R, N).
        old, new: The probabilities of success on the baseline and the candidate, shape (R, N).
        most: The most fresh simulations of a run, both sides together. Tasks are tried in order until this
            budget is spent.
    """
    p = np.full(broken.shape, np.nan)
    passes = [random.binomial(STEP, chances[broken]) for chances in (old, new, old, new)]
    p[broken] = fresh_p(*passes)
    steps = np.zeros(broken.shape, dtype=np.int64)
    steps[broken] = 1 + two_steps(passes[0], passes[1])
    # A task whose steps exceed the budget stays unconfirmed, and so do all later tasks.
    spent = 2 * STEP * np.cumsum(steps, axis=1)
    return np.where(spent <= most, p, np.nan)


class FreshResult(NamedTuple):
    """The result of a task's fresh trials.

    Attributes:
        p: The p-value with every lost trial counted against a regression; valid whatever the losses depend
            on.
        worst: The p-value with every lost trial counted for a regression: the worst that the full data might
            have shown. Equal to `p` if nothing was lost.
    """

    p: float
    worst: float


def fresh_result(fresh: FreshTrials) -> FreshResult:
    """The p-value of a task's fresh trials, and its lowest value for any outcome of the lost trials."""
    old, new = _by_step(fresh.baseline), _by_step(fresh.candidate)
    filled = (
        (_passes(old[0], lost), _passes(new[0], 1 - lost), _passes(old[1], lost), _passes(new[1], 1 - lost))
        for lost in (0, 1)
    )
    return FreshResult(*(float(fresh_p(*passes)) for passes in filled))


def step_passes(
    baseline: Sequence[SimulationEvidence], candidate: Sequence[SimulationEvidence]
) -> tuple[int, int]:
    """The passes of both sides, in the form that `next_step` expects."""
    return _passed(baseline, 0), _passed(candidate, 1)


def _by_step(records: tuple[SimulationEvidence, ...]) -> tuple[list[SimulationEvidence], ...]:
    ordered = sorted(records, key=lambda record: record.trial)
    return ordered[:STEP], ordered[STEP:]


def _passes(records: list[SimulationEvidence], lost: int) -> int:
    """The passes of one step. Trials that were never made count as lost."""
    return _passed(records, lost) + lost * (STEP - len(records))


def _passed(records: Iterable[SimulationEvidence], lost: int) -> int:
    """The passes of some trials. Each trial without a reward counts as `lost` passes."""
    return sum(lost if record.reward is None else succeeded(record.reward) for record in records)


class _Tables(NamedTuple):
    """Tables over the passes of baseline and candidate.

    Attributes:
        continues: Whether a second step follows, by the passes of the first step.
        first: The p-value after the first step, by its passes.
        second: The p-value after both steps, by the passes of both steps together.
    """

    continues: Flags
    first: Floats
    second: Floats


@cache
def _tables() -> _Tables:
    one, two = np.arange(STEP + 1), np.arange(MAX_FRESH + 1)
    after_one = fisher(one[:, None], STEP, one[None, :], STEP)
    after_two = fisher(two[:, None], MAX_FRESH, two[None, :], MAX_FRESH)
    confirmed, cleared = after_one <= CONFIRMED, after_one >= CLEARED
    continues = ~confirmed & ~cleared
    continues[_TIE] = True
    choose_one, choose_two = _choose(STEP), _choose(MAX_FRESH)
    ways_one = np.outer(choose_one, choose_one)
    # The number of ways to reach each number of passes per side if the first step continues.
    ways_two = np.zeros(after_two.shape)
    for i, j in np.argwhere(continues):
        ways_two[i : i + STEP + 1, j : j + STEP + 1] += ways_one[i, j] * ways_one
    # By the total passes of both sides in both steps, on which alone a probability at a pass rate depends.
    stopped = np.zeros(2 * MAX_FRESH + 1)
    for i, j in np.argwhere(confirmed):
        stopped[i + j : i + j + MAX_FRESH + 1] += ways_one[i, j] * choose_two
    levels, level_of = np.unique(np.round(np.log(after_two), 9), return_inverse=True)
    ways = np.zeros((len(levels), 2 * MAX_FRESH + 1))
    np.add.at(ways, (level_of.reshape(after_two.shape), two[:, None] + two[None, :]), ways_two)
    tail = _largest(np.vstack([stopped, stopped + np.cumsum(ways, axis=0)]))
    first = np.where(confirmed, tail[0], 1.0)
    second = tail[1:][level_of.reshape(after_two.shape)]
    for table in (continues, first, second):
        table.setflags(write=False)
    return _Tables(continues, first, second)


def _largest(ways: Floats) -> Floats:
    """An upper bound of the largest probability of each set of outcomes over all pass rates.

    Args:
        ways: One row per set of outcomes; column k counts the outcomes with k passes, from 0 to n.

    A probability is a polynomial in the rate with the coefficients ways / C(n, k) in Bernstein's form. Its
    maximum exceeds the largest value on a grid of step h by at most h²/8 times the largest curvature. The
    curvature is at most n (n − 1) times the largest second difference of the coefficients.
    """
    n = ways.shape[1] - 1
    passes, rates = np.arange(n + 1)[:, None], np.linspace(0.0, 1.0, _GRID + 1)
    values = ways @ (rates**passes * (1.0 - rates) ** (n - passes))
    curvature = n * (n - 1) * np.abs(np.diff(ways / _choose(n), 2, axis=1)).max(axis=1)
    return np.asarray(np.minimum(values.max(axis=1) + curvature / (8.0 * _GRID**2), 1.0))


def _choose(n: int) -> Floats:
    return np.array([comb(n, k) for k in range(n + 1)], dtype=np.float64)
