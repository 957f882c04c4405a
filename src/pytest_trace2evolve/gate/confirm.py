"""Confirms regressions by fresh trials, and bounds second tosses: simulations lost before they were measured.

If failures are lost more often than successes, the candidate looks better than it is, and nothing in the
rewards shows it. A promotion must therefore also hold with these simulations at their worst, except for few
of them that no other trial makes suspicious.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import comb
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from pytest_trace2evolve.gate.columns import Counts, Flags, Floats
from pytest_trace2evolve.gate.significance import fisher
from pytest_trace2evolve.records.evidence import FreshTrials, SimulationEvidence
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.scoring.metrics import is_success

STEP_TRIALS = 8
"""Fresh trials per side in one step."""

MAX_FRESH_TRIALS = 2 * STEP_TRIALS
"""The maximum number of fresh trials per side."""

MAX_CONFIRMING_P = 1e-4
"""Fisher's p of the first step up to which a regression is confirmed at once. A p this small requires that
all trials pass on the baseline, and none on the candidate."""

MIN_CLEARING_P = 0.5
"""Fisher's p of the first step from which a regression is cleared at once. Stopping here costs less than a
tenth of a point of power, and saves six of sixteen trials per side if nothing changed."""

MAX_CONTRADICTING_P = 0.01
"""The largest p at which a baseline's fresh trials contradict its recorded trials."""

_TIED_PASSES = (4, 3)
"""Passes of the first step that have p = `MIN_CLEARING_P` but are still followed by a second step. Rounding
once caused the second step, and the published figures depend on it."""

_GRID_INTERVALS = 20_000
"""The number of grid intervals of the pass rates over which a p-value is maximized."""


def next_step_trials(baseline_passed: int, candidate_passed: int, trials_done: int) -> int:
    """The number of further fresh trials that each side needs: `STEP_TRIALS` or 0.

    Args:
        baseline_passed, candidate_passed: Passes among the fresh trials so far. A lost trial counts as failed
            on the baseline and as passed on the candidate.
        trials_done: Fresh trials per side so far: 0, `STEP_TRIALS` or `MAX_FRESH_TRIALS`.
    """
    if trials_done == 0:
        return STEP_TRIALS
    return (
        STEP_TRIALS
        if trials_done == STEP_TRIALS and needs_second_step(baseline_passed, candidate_passed)
        else 0
    )


def needs_second_step(baseline_first: ArrayLike, candidate_first: ArrayLike) -> Flags:
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
        baseline_first, candidate_first: Passes among the `STEP_TRIALS` trials of the first step.
        baseline_second, candidate_second: Passes among the `STEP_TRIALS` trials of the second step; ignored
            if the first step stopped.

    The outcomes of the two steps are ordered: first outcomes that stop confirmed, then outcomes that
    continue, by Fisher's p over all trials, and last outcomes that stop cleared, whose p is 1. The p-value of
    an outcome is the probability of this or an earlier outcome, at the common pass rate that maximizes it.

    The p-value is valid by construction. If both sides pass at a common rate r, P(p ≤ u) is the probability
    at r of the latest outcome with p ≤ u or an earlier one. The probability is at most that outcome's p, and
    therefore at most u. If the candidate passes more often than the baseline, P(p ≤ u) is only smaller, since
    one more pass on the baseline or one less on the candidate never moves an outcome back. The test is
    Boschloo's (Biometrika 1970; `scipy.stats.boschloo_exact` gives its one-step form) for a two-step design.
    """
    tables = _tables()
    first_passes = np.asarray(baseline_first), np.asarray(candidate_first)
    total_passes = (
        first_passes[0] + np.asarray(baseline_second),
        first_passes[1] + np.asarray(candidate_second),
    )
    return np.asarray(
        np.where(tables.continues[first_passes], tables.second_p[total_passes], tables.first_p[first_passes])
    )


def simulate_fresh_trials(
    random: np.random.Generator, is_broken: Flags, old: Floats, new: Floats, max_simulations: int
) -> Floats:
    """Draw fresh trials of the broken tasks, and return their p-values; NaN for all other tasks.

    Args:
        random: The random generator.
        is_broken: The broken tasks, shape (R, N).
        old, new: The probabilities of success on the baseline and the candidate, shape (R, N).
        max_simulations: Maximum number of fresh simulations of a run, both sides together. Tasks are tried in
            order until this budget is spent.
    """
    p = np.full(is_broken.shape, np.nan)
    passes = [random.binomial(STEP_TRIALS, chances[is_broken]) for chances in (old, new, old, new)]
    p[is_broken] = fresh_p(*passes)
    step_counts = np.zeros(is_broken.shape, dtype=np.int64)
    step_counts[is_broken] = 1 + needs_second_step(passes[0], passes[1])
    # A task whose steps exceed the budget stays unconfirmed, and so do all later tasks.
    spent_simulations = 2 * STEP_TRIALS * np.cumsum(step_counts, axis=1)
    return np.where(spent_simulations <= max_simulations, p, np.nan)


class FreshResult(NamedTuple):
    """The result of a task's fresh trials.

    Attributes:
        p: The p-value with every lost trial counted against a regression; valid for all
            causes of the losses.
        worst_p: The p-value with every lost trial counted for a regression: the worst that the full data
            might have shown. Equal to `p` if nothing was lost.
    """

    p: float
    worst_p: float


CLEARED, CONFIRMED = FreshResult(1.0, 1.0), FreshResult(0.0, 0.0)
"""The results that speak most clearly against a regression, and for one."""


def fresh_result(fresh: FreshTrials) -> FreshResult:
    """The p-value of a task's fresh trials, and its lowest value for any outcome of the lost trials.

    For the lowest value, a trial that was measured only after it had been lost counts as lost.
    """
    results = []
    for passes_if_lost in (0, 1):
        old, new = (
            _split_into_steps(
                trial.model_copy(update={"reward": None}) if trial.lost and passes_if_lost else trial
                for trial in side
            )
            for side in (fresh.baseline, fresh.candidate)
        )
        passes = (
            _step_passes(old[0], passes_if_lost),
            _step_passes(new[0], 1 - passes_if_lost),
            _step_passes(old[1], passes_if_lost),
            _step_passes(new[1], 1 - passes_if_lost),
        )
        results.append(float(fresh_p(*passes)))
    return FreshResult(*results)


def passes_of_sides(
    baseline: Sequence[SimulationEvidence], candidate: Sequence[SimulationEvidence]
) -> tuple[int, int]:
    """The passes of both sides, in the form that `next_step_trials` expects."""
    return _count_passes(baseline, 0), _count_passes(candidate, 1)


def find_contradiction(
    tasks: Sequence[str], passes: Counts, trials: Counts, fresh: Mapping[str, FreshTrials]
) -> str:
    """Describe how the first fresh trials of a baseline contradict its recorded trials; empty if they do not.

    `passes` of the recorded `trials` of `tasks` passed. The j-th smallest of n p-values is at least Beta(j,
    n + 1 - j). The smallest of these n tail probabilities decides, so one task can contradict by itself, or
    many together. A task without fresh trials has p = 1, and a lost fresh trial counts as passed.
    """
    counts = [
        (int(passed), int(measured), _step_passes(_split_into_steps(fresh[task].baseline)[0], 1))
        for task, passed, measured in zip(tasks, passes, trials, strict=True)
        if task in fresh and 2 * passed > measured
    ]
    rank = np.arange(1, len(counts) + 1)
    p = np.sort([_contradicting_p(*numbers) for numbers in counts])
    if scipy.special.betainc(rank, len(tasks) + 1 - rank, p).min(initial=1.0) > MAX_CONTRADICTING_P:
        return ""
    passed, measured, fresh_passed = map(sum, zip(*counts, strict=True))
    return (
        f"{passed} of {measured} recorded trials of the baseline passed, but {fresh_passed} of "
        f"{STEP_TRIALS * len(counts)} fresh ones; the baseline may run other code than when it was saved "
        "(unseen code, a changed dependency), so nothing is cleared: save it again with "
        "--t2e-baseline-mode update"
    )


@cache
def _contradicting_p(recorded_passes: int, recorded_trials: int, fresh_passes: int) -> float:
    """The largest probability, over all pass rates, that a task passes and gets at most this Fisher's p."""
    recorded, fresh = np.ogrid[: recorded_trials + 1, : STEP_TRIALS + 1]
    p = fisher(recorded, recorded_trials, fresh, STEP_TRIALS)
    is_extreme = p <= p[recorded_passes, fresh_passes] * (1 + 1e-9)
    ways = np.outer(_binomial_coefficients(recorded_trials), _binomial_coefficients(STEP_TRIALS))
    ways *= is_extreme & (2 * recorded > recorded_trials)
    total_ways = np.bincount((recorded + fresh).ravel(), ways.ravel()).astype(np.float64)
    return float(_max_probability(total_ways[None, :])[0])


def _split_into_steps(simulations: Iterable[SimulationEvidence]) -> tuple[list[SimulationEvidence], ...]:
    ordered_simulations = sorted(simulations, key=lambda simulation: simulation.trial)
    return ordered_simulations[:STEP_TRIALS], ordered_simulations[STEP_TRIALS:]


def _step_passes(simulations: list[SimulationEvidence], passes_if_lost: int) -> int:
    """The passes of one step. Trials that were never made count as lost."""
    return _count_passes(simulations, passes_if_lost) + passes_if_lost * (STEP_TRIALS - len(simulations))


def _count_passes(simulations: Iterable[SimulationEvidence], passes_if_lost: int) -> int:
    """The number of passes. Each trial without a reward counts as `passes_if_lost` passes."""
    return sum(
        passes_if_lost if simulation.reward is None else is_success(simulation.reward)
        for simulation in simulations
    )


class _Tables(NamedTuple):
    """Tables over the passes of baseline and candidate.

    Attributes:
        continues: Whether a second step follows, by the passes of the first step.
        first_p: The p-value after the first step, by its passes.
        second_p: The p-value after both steps, by the passes of both steps together.
    """

    continues: Flags
    first_p: Floats
    second_p: Floats


@cache
def _tables() -> _Tables:
    step_passes, total_passes = np.arange(STEP_TRIALS + 1), np.arange(MAX_FRESH_TRIALS + 1)
    step_p = fisher(step_passes[:, None], STEP_TRIALS, step_passes[None, :], STEP_TRIALS)
    total_p = fisher(total_passes[:, None], MAX_FRESH_TRIALS, total_passes[None, :], MAX_FRESH_TRIALS)
    is_confirmed, is_cleared = step_p <= MAX_CONFIRMING_P, step_p >= MIN_CLEARING_P
    continues = ~is_confirmed & ~is_cleared
    continues[_TIED_PASSES] = True
    step_binomials, total_binomials = (
        _binomial_coefficients(STEP_TRIALS),
        _binomial_coefficients(MAX_FRESH_TRIALS),
    )
    step_ways = np.outer(step_binomials, step_binomials)
    # The number of ways to reach each number of passes per side if the first step continues.
    total_ways = np.zeros(total_p.shape)
    for i, j in np.argwhere(continues):
        total_ways[i : i + STEP_TRIALS + 1, j : j + STEP_TRIALS + 1] += step_ways[i, j] * step_ways
    # By the total passes of both sides in both steps, on which alone a probability at a pass rate depends.
    confirmed_ways = np.zeros(2 * MAX_FRESH_TRIALS + 1)
    for i, j in np.argwhere(is_confirmed):
        confirmed_ways[i + j : i + j + MAX_FRESH_TRIALS + 1] += step_ways[i, j] * total_binomials
    levels, level_index = np.unique(np.round(np.log(total_p), 9), return_inverse=True)
    level_ways = np.zeros((len(levels), 2 * MAX_FRESH_TRIALS + 1))
    np.add.at(
        level_ways,
        (level_index.reshape(total_p.shape), total_passes[:, None] + total_passes[None, :]),
        total_ways,
    )
    tail = _max_probability(np.vstack([confirmed_ways, confirmed_ways + np.cumsum(level_ways, axis=0)]))
    first_p = np.where(is_confirmed, tail[0], 1.0)
    second_p = tail[1:][level_index.reshape(total_p.shape)]
    for table in (continues, first_p, second_p):
        table.setflags(write=False)
    return _Tables(continues, first_p, second_p)


def _max_probability(ways: Floats) -> Floats:
    """An upper bound on the largest probability of each set of outcomes over all pass rates.

    Args:
        ways: One row per set of outcomes; column k counts the outcomes with k passes, from 0 to n.

    A probability is a polynomial in the rate with the coefficients ways / C(n, k) in Bernstein's form. Its
    maximum exceeds the largest value on a grid of step h by at most h²/8 times the largest curvature. The
    curvature is at most n (n − 1) times the largest second difference of the coefficients.
    """
    n = ways.shape[1] - 1
    passes, rates = np.arange(n + 1)[:, None], np.linspace(0.0, 1.0, _GRID_INTERVALS + 1)
    values = ways @ (rates**passes * (1.0 - rates) ** (n - passes))
    curvature = n * (n - 1) * np.abs(np.diff(ways / _binomial_coefficients(n), 2, axis=1)).max(axis=1)
    return np.asarray(np.minimum(values.max(axis=1) + curvature / (8.0 * _GRID_INTERVALS**2), 1.0))


def _binomial_coefficients(n: int) -> Floats:
    return np.array([comb(n, k) for k in range(n + 1)], dtype=np.float64)


TRUSTED_SHARE = 1 / 6
"""The number of second tosses that may count as measured, as a share of the square root of a side's
simulations; at least one. That many move the mean by about a sixth of its standard error."""

Records = Sequence[SimulationEvidence]


def without_second_tosses(baseline: Records, candidate: Records) -> tuple[Records, Records]:
    """Return both sides with each suspicious second toss marked as lost, so that it counts at its worst.

    Suspicious is a simulation that was lost more than once, or that has a trial of its task, never lost, that
    had the worse outcome for a promotion: a failure of the candidate, or a success of the baseline. If more
    second tosses than `TRUSTED_SHARE` allows favour the candidate, all of them are suspicious.
    """
    suspects, trusted = set(), set()
    for records, is_worst in ((baseline, True), (candidate, False)):
        measured = [record for record in records if record.reward is not None]
        is_worse = {record.id: is_success(record.reward or 0.0) is is_worst for record in measured}
        worse_tasks = {record.task_id for record in measured if is_worse[record.id] and not record.lost}
        for record in measured:
            if record.lost > 1 or (record.lost and record.task_id in worse_tasks):
                suspects.add(record.id)
            elif record.lost and not is_worse[record.id]:
                trusted.add(record.id)
    if len(trusted) > max(1, int(TRUSTED_SHARE * math.sqrt(min(len(baseline), len(candidate))))):
        suspects |= trusted
    changes: dict[str, object] = {
        "status": Status.INFRASTRUCTURE_ERROR,
        "reward": None,
        "invariants": None,
        "checks": {},
    }
    old, new = (
        [record.model_copy(update=changes) if record.id in suspects else record for record in side]
        for side in (baseline, candidate)
    )
    return old, new
