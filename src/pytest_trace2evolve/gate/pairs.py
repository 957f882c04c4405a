"""The evidence of both sides: sums over the trials of each task, paired by task.

The last axis of every array is the axis of tasks (N). A side of `Pairs` has arrays of shape (N,). Arrays of
`Comparisons` have shape (R, N), with one row per comparison. The gate uses one row; calibration and power
simulations use many.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from pytest_trace2evolve.gate.columns import (
    ACTION_METRICS,
    AGENT_ERRORS,
    APPLIES_PREFIX,
    CHECK_PREFIX,
    COLLATERAL,
    INVARIANT_METRICS,
    INVARIANTS,
    MINEFIELD,
    USAGE_METRICS,
    Columns,
    Counts,
    Flags,
    Floats,
    build_columns,
)
from pytest_trace2evolve.gate.confirm import FreshResult
from pytest_trace2evolve.gate.significance import SignFlip, sign_flip, stratified_fisher
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.task import natural_sort_key
from pytest_trace2evolve.scoring.metrics import SUCCESS

REWARD, PASS_RATE, REGRESSIONS, MAX_STEPS = "reward", "pass_rate", "task_regressions", "max_steps"
METRICS = (REWARD, PASS_RATE, *ACTION_METRICS, REGRESSIONS, MAX_STEPS, AGENT_ERRORS, INVARIANTS)
"""The metrics that policy `calibrated` checks, in the order in which they are printed."""

MIN_MEASURED = 0.9
"""The minimum share of measured simulations on each side for a promotion. One of the project's own checks
needs results for the same share of simulations to pass."""

PASS_HAT = (1, 2, 4, 8, 16)
"""The k for which pass^k is reported."""

_MAX_COMMON_TRIALS = 5_040


@dataclass(frozen=True)
class Tally:
    """The sums of one side over the trials of each task.

    Attributes:
        trials: Simulations of the task, measured or not.
        measured: Simulations that have a reward.
        reward, squares: Sums of the rewards and of their squares.
        successes: Simulations whose reward counts as a success.
        matched: By kind, the sum over trials of the share of gold actions matched. `INVARIANTS` counts the
            trials that broke no invariant; a name of `INVARIANT_METRICS` counts the trials that kept that
            invariant. A side that was not checked for invariants lacks these keys. A kind that no trial of
            the side broke has no key either. `AGENT_ERRORS` counts the trials that did not end in an agent
            error; a side without such errors may lack it. A name with `CHECK_PREFIX` counts the trials that
            did not break one of the project's own checks; a name with `APPLIES_PREFIX` counts the trials to
            which the check applied.
        checked: By kind, the number of trials in which that share is known.
        max_steps: Trials that the step budget ended.
    """

    trials: Counts
    measured: Counts
    reward: Floats
    squares: Floats
    successes: Counts
    matched: Mapping[str, Floats]
    checked: Mapping[str, Counts]
    max_steps: Counts

    @classmethod
    def of_successes(cls, successes: Counts, trials: int | Counts) -> "Tally":
        """The tally of tasks that were all measured with rewards of 0 or 1, and have no other figures."""
        none = np.zeros_like(successes)
        reward = successes.astype(np.float64)
        return cls(
            trials=none + trials,
            measured=none + trials,
            reward=reward,
            squares=reward,
            successes=successes,
            matched=dict.fromkeys(ACTION_METRICS, none.astype(np.float64)),
            checked=dict.fromkeys(ACTION_METRICS, none),
            max_steps=none,
        )

    @classmethod
    def combine(cls, function: Callable[[list[Any]], Any], tallies: Sequence["Tally"]) -> "Tally":
        """Combine tallies with the same kinds, applying a function to each list of corresponding arrays."""

        def combine_field(name: str) -> Any:
            arrays = [getattr(tally_of_side, name) for tally_of_side in tallies]
            if isinstance(arrays[0], Mapping):
                return {kind: function([value[kind] for value in arrays]) for kind in arrays[0]}
            return function(arrays)

        return cls(**{item.name: combine_field(item.name) for item in fields(cls)})

    def map(self, function: Callable[[Any], Any]) -> "Tally":
        """The tally with a function applied to every array."""
        return Tally.combine(lambda arrays: function(arrays[0]), [self])

    @property
    def missing_counts(self) -> Counts:
        """The number of simulations of each task without a reward."""
        return self.trials - self.measured

    @property
    def passes(self) -> Flags:
        """Whether more than half of a task's measured trials are successes."""
        return 2 * self.successes > self.measured

    @property
    def pass_indicator(self) -> Floats:
        """By task, 1 if it passes, else 0; NaN if nothing was measured."""
        return np.where(self.measured > 0, self.passes.astype(np.float64), np.nan)

    @property
    def is_binary(self) -> Flags:
        """Whether all rewards of a side are 0 or 1."""
        return np.asarray(np.all(np.abs(self.reward - self.successes) < 1 - SUCCESS, axis=-1))

    def figure(self, metric: str) -> Floats:
        """The mean of a metric over the trials of each task; NaN if it is not known.

        The metric is `REWARD`, `PASS_RATE` (the share of measured trials that are successes), one of
        `INVARIANT_METRICS` (the share of checked trials that kept the invariant), or a key of `matched` (its
        sum divided by the number of trials in `checked`).
        """
        if metric == REWARD:
            return mean_of(self.reward, self.measured)
        if metric == PASS_RATE:
            return mean_of(self.successes, self.measured)
        if metric == AGENT_ERRORS:
            return 1.0 - mean_of(self.agent_errors, self.measured)
        if metric in INVARIANT_METRICS:
            return mean_of(self.kept_counts(metric), self.checked[INVARIANTS])
        return mean_of(self.matched[metric], self.checked[metric])

    @property
    def is_watched(self) -> Flags:
        """Whether each task has trials checked for invariants, and no measured trial left unchecked."""
        checked = self.checked.get(INVARIANTS, np.zeros_like(self.measured))
        return np.asarray((checked > 0) & (checked == self.measured))

    @property
    def check_ids(self) -> list[str]:
        """The ids of the project's own checks that were run on the side."""
        return [name.removeprefix(CHECK_PREFIX) for name in self.matched if name.startswith(CHECK_PREFIX)]

    def unchecked_counts(self, check_id: str) -> Counts:
        """By task, the number of measured trials without a result of one of the project's own checks."""
        return np.asarray(self.measured - self.checked[CHECK_PREFIX + check_id])

    def broken_counts(self, check_id: str, *, counts_unchecked: bool) -> Floats:
        """By task, the number of measured trials that broke one of the project's own checks.

        `counts_unchecked` is whether trials without a result count as broken.
        """
        metric = CHECK_PREFIX + check_id
        unchecked = self.unchecked_counts(check_id) if counts_unchecked else 0
        return np.asarray(self.checked[metric] - self.matched[metric] + unchecked)

    def without_checks(self, check_ids: Iterable[str]) -> "Tally":
        """The tally without some of the project's own checks, or without `COLLATERAL`."""
        names = {prefix + name for name in check_ids for prefix in ("", CHECK_PREFIX, APPLIES_PREFIX)}
        matched = {kind: sums for kind, sums in self.matched.items() if kind not in names}
        checked = {kind: counts for kind, counts in self.checked.items() if kind not in names}
        return replace(self, matched=matched, checked=checked)

    def kept_counts(self, breach: str) -> Floats:
        """By task, the number of checked trials that kept an invariant (a name of `INVARIANT_METRICS`)."""
        return np.asarray(self.matched.get(breach, self.checked[INVARIANTS]), dtype=np.float64)

    @property
    def invariant_kinds(self) -> list[str]:
        """The names of `INVARIANT_METRICS` for which the side was checked."""
        optional = (COLLATERAL, MINEFIELD)
        return [name for name in INVARIANT_METRICS if name not in optional or name in self.matched]

    @property
    def agent_errors(self) -> Counts:
        """By task, the number of measured trials that ended in an agent error."""
        if AGENT_ERRORS not in self.matched:
            return np.zeros_like(self.measured)
        return np.rint(self.checked[AGENT_ERRORS] - self.matched[AGENT_ERRORS]).astype(np.int64)

    def with_agent_errors_of(self, candidate: "Tally") -> "Tally":
        """The tally with a count of agent errors, which may be 0, if the candidate has such a count.

        A missing simulation of the baseline may then be filled in as an agent error.
        """
        if AGENT_ERRORS in self.matched or AGENT_ERRORS not in candidate.matched:
            return self
        return replace(
            self,
            matched={**self.matched, AGENT_ERRORS: self.measured.astype(np.float64)},
            checked={**self.checked, AGENT_ERRORS: self.measured},
        )

    @property
    def variance(self) -> Floats:
        """Variance of the reward between a task's measured trials; NaN if there are fewer than two."""
        mean = self.figure(REWARD)
        with np.errstate(invalid="ignore", divide="ignore"):
            variance = (self.squares - self.measured * mean**2) / (self.measured - 1)
        return np.where(self.measured > 1, np.maximum(variance, 0.0), np.nan)

    def fill_missing(self, has_actions: Mapping[str, Flags], *, is_favourable: bool) -> "Tally":
        """The tally with every missing simulation filled in at its best or worst possible outcome.

        Args:
            has_actions: By kind, whether a task may name such actions, or is checked for invariants.
            is_favourable: Whether to fill in successes with all actions matched, and all invariants and
                the project's own checks kept; otherwise failures at max steps with none matched or kept, and
                with an agent error if the side counts them.
        """
        missing_counts = self.missing_counts
        successes = missing_counts if is_favourable else np.zeros_like(missing_counts)
        matched, checked = dict(self.matched), dict(self.checked)
        if INVARIANTS in checked:
            kinds = self.invariant_kinds
            has_actions = {**has_actions, **dict.fromkeys(kinds, has_actions[INVARIANTS])}
            matched |= {name: self.kept_counts(name) for name in kinds}
            checked |= dict.fromkeys(kinds, checked[INVARIANTS])
        own_names = [prefix + name for name in self.check_ids for prefix in (CHECK_PREFIX, APPLIES_PREFIX)]
        all_names = (AGENT_ERRORS, *own_names)
        has_actions = {**has_actions, **dict.fromkeys(all_names, np.ones_like(self.trials, dtype=np.bool_))}
        return replace(
            self,
            measured=self.trials,
            reward=self.reward + successes,
            squares=self.squares + successes,
            successes=self.successes + successes,
            matched={kind: sums + successes * has_actions[kind] for kind, sums in matched.items()},
            checked={kind: count + missing_counts * has_actions[kind] for kind, count in checked.items()},
            max_steps=self.max_steps if is_favourable else self.max_steps + missing_counts,
        )

    def pass_hat(self, tasks: Flags) -> dict[int, Floats]:
        """By k, each task's chance that k of its trials all succeed, for the tasks that `tasks` selects.

        k goes up to the smallest number of measured trials among these tasks.

        Source: Yao et al., τ-bench, arXiv 2406.12045: C(successes, k) / C(trials, k).
        """
        passed, measured = self.successes[tasks], self.measured[tasks]
        chances_by_k = {}
        for k in PASS_HAT:
            if not measured.size or k > measured.min():
                break
            chance = np.ones(passed.shape)
            for step in range(k):
                chance *= np.maximum(passed - step, 0) / (measured - step)
            chances_by_k[k] = chance
        return chances_by_k


def mean_of(sums: Floats | Counts, counts: Counts) -> Floats:
    """Sums divided by counts; NaN if the count is 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def tally(side: Columns, new_indices: Counts, size: int, is_counted: Flags | None = None) -> Tally:
    """Sum one side's simulations over the trials of each task.

    Args:
        side: The simulations.
        new_indices: The position of each of the side's tasks among `size` tasks; -1 leaves a task out.
        size: The number of tasks.
        is_counted: The simulations to sum; None for all.
    """
    indices = new_indices[side.task_index] if side.size else np.empty(0, dtype=np.int64)
    is_selected = indices >= 0 if is_counted is None else (indices >= 0) & is_counted
    indices, measured, reward = indices[is_selected], side.measured[is_selected], side.reward[is_selected]

    def count(flags: Flags) -> Counts:
        return np.bincount(indices[flags], minlength=size)

    def total(values: Floats, flags: Flags) -> Any:
        return _sum_by_index(values[flags], indices[flags], size)

    shares = {kind: share[is_selected] for kind, share in side.shares.items()}
    is_known = {kind: measured & ~np.isnan(share) for kind, share in shares.items()}
    return Tally(
        trials=np.bincount(indices, minlength=size),
        measured=count(measured),
        reward=total(reward, measured),
        squares=total(reward**2, measured),
        successes=count(measured & (reward >= SUCCESS)),
        matched={kind: total(share, is_known[kind]) for kind, share in shares.items()},
        checked={kind: count(flags) for kind, flags in is_known.items()},
        max_steps=count(side.max_steps[is_selected]),
    )


def _sum_by_index(values: Floats, indices: Counts, size: int) -> Any:
    """Sum the values by index, so that not even the last digit depends on the order of the values."""
    if np.array_equal(values, np.rint(values)):
        return np.bincount(indices, weights=values, minlength=size)
    order = np.lexsort((values, indices))
    return np.bincount(indices[order], weights=values[order], minlength=size)


@dataclass(frozen=True)
class TaskMeans:
    """The mean of a figure over the measured trials of each task of one side, in arrays of shape (N,).

    Attributes:
        means: The means; NaN if the figure is known for no trial.
        variances: The variance of each mean over trials; NaN with fewer than two trials.
        counts: The trials for which the figure is known.
    """

    means: Floats
    variances: Floats
    counts: Counts


def task_means(values: Floats, indices: Counts, size: int) -> TaskMeans:
    """The means of values by task.

    Args:
        values: One value for each simulation; NaN if it is not known.
        indices: The task of each simulation; -1 leaves it out.
        size: The number of tasks.
    """
    is_known = ~np.isnan(values) & (indices >= 0)
    values, indices = values[is_known], indices[is_known]
    counts = np.bincount(indices, minlength=size)
    means = mean_of(_sum_by_index(values, indices, size), counts)
    squares = _sum_by_index((values - means[indices]) ** 2, indices, size)
    with np.errstate(invalid="ignore", divide="ignore"):
        variances = np.where(counts > 1, squares / (counts - 1) / counts, np.nan)
    return TaskMeans(means, variances, counts)


@dataclass(frozen=True)
class Comparisons:
    """Comparisons of two sides: tallies with arrays of shape (R, N), and p-values of fresh trials.

    Attributes:
        fresh_p: p-values that a task is worse, from fresh trials of both sides alone, shape (R, N); NaN for a
            task without fresh trials. None if nothing could be confirmed (recorded runs).
        is_binary: By comparison, whether every reward is 0 or 1. If so, the pass rate adds nothing.
        is_critical: Whether each task is critical on either side, in a shape that broadcasts to (R, N).
        first_trials: Both sides with only as many trials of each task as the side with fewer has; None if
            that is all of them. Tasks count as broken, fixed or out of steps by these trials, because more
            trials change how often a task passes more than half of them.
    """

    baseline: Tally
    candidate: Tally
    fresh_p: Floats | None = None
    is_binary: bool | Flags = True
    is_critical: Flags = field(default_factory=lambda: np.zeros((1, 1), dtype=np.bool_))
    first_trials: tuple[Tally, Tally] | None = None
    _sign_flips: dict[str, SignFlip] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def measured_on_both(self) -> Flags:
        """Whether each task has a measured trial on both sides."""
        return (self.baseline.measured > 0) & (self.candidate.measured > 0)

    @property
    def counted_sides(self) -> tuple[Tally, Tally]:
        """Both sides with equal numbers of trials of each task."""
        return self.first_trials or (self.baseline, self.candidate)

    @property
    def is_broken(self) -> Flags:
        """Whether each task passes on the baseline, but not on the candidate."""
        old, new = self.counted_sides
        return (old.measured > 0) & (new.measured > 0) & old.passes & ~new.passes

    @property
    def is_fixed(self) -> Flags:
        """Whether each task passes on the candidate, but not on the baseline."""
        old, new = self.counted_sides
        return (old.measured > 0) & (new.measured > 0) & ~old.passes & new.passes

    @cached_property
    def has_unequal_trials(self) -> Flags:
        """Whether the sides of each comparison ran a common task with different numbers of trials."""
        old, new = self.baseline.trials, self.candidate.trials
        return np.asarray(((old != new) & (old > 0) & (new > 0)).any(axis=1))

    @property
    def is_suspected(self) -> Flags:
        """Whether each task is broken and has no fresh trials that could confirm or clear it."""
        return self.is_broken if self.fresh_p is None else self.is_broken & np.isnan(self.fresh_p)

    @property
    def is_watched(self) -> Flags:
        """Whether all measured trials of each task were checked for invariants, on both sides."""
        return self.baseline.is_watched & self.candidate.is_watched

    @property
    def check_ids(self) -> list[str]:
        """The ids of the project's own checks that were run on both sides."""
        return [name for name in self.baseline.check_ids if name in self.candidate.check_ids]

    def check_difference(self, check_id: str, *, is_favourable: bool) -> Floats:
        """By task, the change in the share of trials that keep one of the project's own checks.

        The change is NaN for a task that is not measured on both sides.

        Measured trials without a result count as broken on one side and as kept on the other. `is_favourable`
        says whether this favours the candidate.
        """
        shares = [
            mean_of(side.broken_counts(check_id, counts_unchecked=counts_unchecked), side.measured)
            for side, counts_unchecked in (
                (self.baseline, is_favourable),
                (self.candidate, not is_favourable),
            )
        ]
        return np.asarray(shares[0] - shares[1])

    @property
    def mean_trials(self) -> Floats:
        """By comparison, the mean over tasks of the measured trials on the side with fewer; at least 1."""
        smaller_counts = np.where(
            self.measured_on_both, np.minimum(self.baseline.measured, self.candidate.measured), 0
        )
        return np.asarray(
            np.maximum(smaller_counts.sum(axis=1) / np.maximum(self.measured_on_both.sum(axis=1), 1), 1.0)
        )

    def difference(self, metric: str) -> Floats:
        """Candidate minus baseline by task (see `Tally.figure`); NaN if a side's figure is not known."""
        change = self.candidate.figure(metric) - self.baseline.figure(metric)
        return (
            np.where(self.is_watched, change, np.nan) if metric in INVARIANT_METRICS else np.asarray(change)
        )

    def sign_flip_test(self, metric: str) -> SignFlip:
        """The sign-flip test of a metric, computed once for all questions about these comparisons."""
        if metric not in self._sign_flips:
            flips = sign_flip(self.difference(metric), self.common_trials)
            flips = self.with_trial_test(flips, lambda side: self._successes(side, metric))
            if metric == REWARD and not np.all(self.is_binary) and (error := self.trial_error).any():
                with np.errstate(divide="ignore", invalid="ignore"):
                    z = np.where(error > 0, np.nanmean(self.difference(metric), axis=1) / error, np.nan)
                low, high = scipy.special.ndtr(z), scipy.special.ndtr(-z)
                flips = SignFlip(np.fmax(flips.low, low), np.fmax(flips.high, high))
            self._sign_flips[metric] = flips
        return self._sign_flips[metric]

    def with_fresh_p(self, fresh_p: Floats) -> "Comparisons":
        """The same comparisons with other results of fresh trials; tests that are done stay done."""
        changed = replace(self, fresh_p=fresh_p)
        object.__setattr__(changed, "_sign_flips", self._sign_flips)
        return changed

    def with_trial_test(
        self, flips: SignFlip, successes_of: Callable[[Tally], tuple[Counts, Counts] | None]
    ) -> SignFlip:
        """The larger p-values of the sign-flip test and of a permutation of each task's trials.

        Only comparisons with unequal trials need the second test. There, a task's difference is skewed, and
        the sign-flip test errs in up to 10 % of comparisons at a level of 5 %. The permutation by itself errs
        if a change helps some tasks and harms others.

        Args:
            flips: The sign-flip test.
            successes_of: Returns the successes and the trials of each task of a side; None if the metric is
                not a count of trials.
        """
        rows = self.has_unequal_trials
        if not rows.any():
            return flips
        old, new = (successes_of(side) for side in (self.baseline, self.candidate))
        if old is None or new is None:
            return flips
        is_known = (old[1] > 0) & (new[1] > 0)
        passed, trials, new_passed, new_trials = (
            np.where(is_known, counts, 0)[rows] for counts in (*old, *new)
        )
        failed, new_failed = trials - passed, new_trials - new_passed
        low, high = flips.low.copy(), flips.high.copy()
        low[rows] = np.maximum(low[rows], stratified_fisher(failed, trials, new_failed, new_trials))
        high[rows] = np.maximum(high[rows], stratified_fisher(new_failed, new_trials, failed, trials))
        return SignFlip(low, high)

    def _successes(self, side: Tally, metric: str) -> tuple[Counts, Counts] | None:
        if metric == PASS_RATE or (metric == REWARD and np.all(self.is_binary)):
            return side.successes, side.measured
        if metric == AGENT_ERRORS:
            return side.measured - side.agent_errors, side.measured
        if metric in INVARIANT_METRICS:
            kept = np.rint(side.kept_counts(metric)).astype(np.int64)
            return kept * self.is_watched, side.checked[INVARIANTS] * self.is_watched
        return None

    @cached_property
    def trial_error(self) -> Floats:
        """The standard error of the mean reward's difference by a permutation of each task's trials, (R,).

        0 with equal trials, whose standard error over tasks is enough.
        """
        old, new = self.baseline, self.candidate
        total = old.measured + new.measured
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = (old.reward + new.reward) / total
            variance = (old.squares + new.squares - total * mean**2) / (total - 1)
            variance *= 1 / old.measured + 1 / new.measured
        is_known = self.measured_on_both
        error = np.sqrt(np.where(is_known, variance, 0.0).sum(axis=1)) / np.maximum(is_known.sum(axis=1), 1)
        return np.where(self.has_unequal_trials, error, 0.0)

    @property
    def common_trials(self) -> int:
        """The least common multiple of all tasks' numbers of measured trials; 1 if it would be too large."""
        counts = np.unique(np.concatenate([self.baseline.measured.ravel(), self.candidate.measured.ravel()]))
        multiple = math.lcm(*counts[counts > 0].tolist())
        return multiple if multiple <= _MAX_COMMON_TRIALS else 1

    def fill_missing(self, has_actions: Mapping[str, Flags], *, is_favourable: bool) -> "Comparisons":
        """Fill in missing simulations at the best or the worst possible outcome for the candidate."""
        return replace(self, **_filled_sides(self, has_actions, is_favourable=is_favourable))


@dataclass(frozen=True)
class Pairs:
    """Tasks that both sides ran, in order of their ids.

    Attributes:
        names: The ids of the N tasks.
        baseline, candidate: The tally of either side, with arrays of shape (N,).
        has_actions: By kind, whether a task names such gold actions. A task whose actions are unknown,
            because it was measured on neither side, counts as naming them. Under `INVARIANTS`, whether both
            sides were checked for invariants.
        left_out: The reason for leaving out each omitted task, by task id.
        is_identical: Whether both sides hold the same simulations.
        cost, tokens: Mean cost and tokens of a simulation; None if no simulation records them.
        fresh_p: p-values of the tasks' fresh trials, shape (N,); NaN for a task without fresh trials. None if
            nothing could be confirmed.
        fresh_worst_p: The same, but with every lost fresh trial counted as a sign of a regression.
        ungated_checks: By id, the reason why one of the project's own checks decides nothing.
        unjudged: The number of tasks with a simulation that only a judge could have measured.
        critical: The tasks that are critical on either side.
        first_trials: See `Comparisons`.
        usage: What the agent used on the baseline and on the candidate, by name of `USAGE_METRICS`; empty if
            neither side recorded anything.
    """

    names: tuple[str, ...]
    baseline: Tally
    candidate: Tally
    has_actions: Mapping[str, Flags]
    left_out: Mapping[str, str] = field(default_factory=dict)
    is_identical: bool = False
    cost: float | None = None
    tokens: float | None = None
    fresh_p: Floats | None = None
    fresh_worst_p: Floats | None = None
    ungated_checks: Mapping[str, str] = field(default_factory=dict)
    unjudged: int = 0
    critical: frozenset[str] = frozenset()
    first_trials: tuple[Tally, Tally] | None = None
    usage: Mapping[str, tuple[TaskMeans, TaskMeans]] = field(default_factory=dict)

    @property
    def sides(self) -> tuple[Tally, Tally]:
        """The baseline and the candidate."""
        return self.baseline, self.candidate

    @property
    def counted_sides(self) -> tuple[Tally, Tally]:
        """Both sides with equal numbers of trials of each task."""
        return self.first_trials or self.sides

    @cached_property
    def comparisons(self) -> Comparisons:
        """The same evidence as one row of comparisons."""

        def as_row(sides: Iterable[Tally]) -> tuple[Tally, Tally]:
            old, new = (side.map(lambda array: array[None, :]) for side in sides)
            return old, new

        baseline, candidate = as_row(self.sides)
        return Comparisons(
            baseline,
            candidate,
            fresh_p=None if self.fresh_p is None else self.fresh_p[None, :],
            is_binary=bool(self.baseline.is_binary & self.candidate.is_binary),
            is_critical=np.array([[name in self.critical for name in self.names]], dtype=np.bool_),
            first_trials=None if self.first_trials is None else as_row(self.first_trials),
        )

    @property
    def measured_on_both(self) -> Flags:
        """Whether each task has a measured trial on both sides."""
        return np.asarray(self.comparisons.measured_on_both[0])

    def fixed_tasks(self) -> list[str]:
        """Tasks that fail on the baseline and pass on the candidate."""
        return self.select_names(self.comparisons.is_fixed[0])

    def broken_tasks(self) -> list[str]:
        """Tasks that pass on the baseline and fail on the candidate."""
        return self.select_names(self.comparisons.is_broken[0])

    def select_names(self, flags: Flags) -> list[str]:
        """The names of the tasks that `flags` selects."""
        return [self.names[index] for index in np.flatnonzero(flags)]

    def with_left_out(self, reasons: Mapping[str, str]) -> "Pairs":
        """Add tasks that were left out before pairing; their reasons take precedence over existing ones."""
        return replace(self, left_out={**self.left_out, **reasons})

    def with_ungated_checks(self, reasons: Mapping[str, str]) -> "Pairs":
        """Leave own checks out of the decision. Checks that neither side recorded are ignored."""
        recorded_ids = {name for side in self.sides for name in side.check_ids}
        known_reasons = {name: reason for name, reason in reasons.items() if name in recorded_ids}
        return replace(
            self,
            baseline=self.baseline.without_checks(known_reasons),
            candidate=self.candidate.without_checks(known_reasons),
            ungated_checks={**self.ungated_checks, **known_reasons},
        )

    def with_fresh_results(self, fresh: Mapping[str, FreshResult]) -> "Pairs":
        """Add the results of fresh trials, by task id."""
        results = [fresh.get(name, FreshResult(np.nan, np.nan)) for name in self.names]
        return replace(
            self,
            fresh_p=np.array([result.p for result in results], dtype=np.float64),
            fresh_worst_p=np.array([result.worst_p for result in results], dtype=np.float64),
        )

    def fill_missing(self, *, is_favourable: bool) -> "Pairs":
        """Fill in missing simulations at the best or the worst possible outcome for the candidate.

        The result is a bound that a discard or a promotion must survive, never a score. `fresh_p` already
        counts lost trials against a regression.
        """
        sides = _filled_sides(self, self.has_actions, is_favourable=is_favourable)
        return replace(self, fresh_p=self.fresh_p if is_favourable else self.fresh_worst_p, **sides)


def _filled_sides(
    evidence: Comparisons | Pairs, has_actions: Mapping[str, Flags], *, is_favourable: bool
) -> dict[str, Any]:
    """The tallies of both sides with their missing simulations filled in."""

    def fill(old: Tally, new: Tally) -> tuple[Tally, Tally]:
        return (
            old.with_agent_errors_of(new).fill_missing(has_actions, is_favourable=not is_favourable),
            new.fill_missing(has_actions, is_favourable=is_favourable),
        )

    baseline, candidate = fill(evidence.baseline, evidence.candidate)
    first_trials = None if evidence.first_trials is None else fill(*evidence.first_trials)
    return {"baseline": baseline, "candidate": candidate, "first_trials": first_trials}


def format_means(old: Floats, new: Floats) -> str:
    """The means of a figure on both sides, over the tasks that have it on both."""
    is_known = ~np.isnan(old) & ~np.isnan(new)
    return f"{old[is_known].mean():.3f} → {new[is_known].mean():.3f} (n={int(is_known.sum())})"


def left_out_lines(left_out: Mapping[str, str]) -> tuple[str, ...]:
    """Lines of text with each omitted task and its reason, in order of task ids."""
    return tuple(f"{name}: {left_out[name]}" for name in sorted(left_out, key=natural_sort_key))


Simulations = Columns | Iterable[SimulationEvidence]
"""One side's simulations, as records or as columns."""


def pair(baseline: Simulations, candidate: Simulations) -> Pairs:
    """Pair two sides by task.

    A task is left out, and named in `left_out`, if only one side ran it or if the two sides ran different
    content under the same id.
    """
    old, new = (side if isinstance(side, Columns) else build_columns(side) for side in (baseline, candidate))
    digests_of_sides = old.content_digests(), new.content_digests()
    names, left_out = [], {}
    for name in sorted({*old.tasks, *new.tasks}, key=natural_sort_key):
        digests = [side.get(name) for side in digests_of_sides]
        if None in digests:
            left_out[name] = f"only the {'baseline' if digests[1] is None else 'candidate'} ran it"
        elif digests[0] != digests[1] or digests[0] == "":
            left_out[name] = "the two sides ran different content under this id"
        else:
            names.append(name)
    index_of = {name: index for index, name in enumerate(names)}
    indices_of_sides = [
        np.array([index_of.get(name, -1) for name in side.tasks], dtype=np.int64) for side in (old, new)
    ]
    tallies = [
        tally(side, indices, len(names)) for side, indices in zip((old, new), indices_of_sides, strict=True)
    ]
    if any(COLLATERAL not in side.matched for side in tallies):  # both sides must have been checked
        tallies = [side.without_checks([COLLATERAL]) for side in tallies]
    pairs = Pairs(
        names=tuple(names),
        baseline=tallies[0],
        candidate=tallies[1],
        has_actions=_tasks_with_actions((old, new), indices_of_sides, tallies),
        left_out=left_out,
        is_identical=_are_identical(old, new, indices_of_sides),
        cost=_mean_or_none(old.cost, new.cost),
        tokens=_mean_or_none(old.tokens, new.tokens),
        unjudged=len((old.unjudged | new.unjudged) & index_of.keys()),
        critical=old.critical | new.critical,
        first_trials=_first_trials((old, new), indices_of_sides, tallies),
        usage=_paired_usage((old, new), indices_of_sides, len(names)),
    )
    return pairs.with_ungated_checks(_one_sided_checks(*tallies))


def _first_trials(
    sides: tuple[Columns, Columns], indices_of_sides: list[Counts], tallies: list[Tally]
) -> tuple[Tally, Tally] | None:
    """Both sides with as many trials of each task as the side with fewer has; None if they have equal ones.

    The trials with the smallest numbers count.
    """
    limits = np.minimum(*(side.trials for side in tallies))
    if all(np.array_equal(side.trials, limits) for side in tallies):
        return None
    limited = []
    for side, indices in zip(sides, indices_of_sides, strict=True):
        order = np.lexsort((side.trial, side.task_index))
        starts = np.searchsorted(side.task_index[order], side.task_index[order])
        position = np.empty(side.size, dtype=np.int64)
        position[order] = np.arange(side.size) - starts
        is_first = position < limits[indices[side.task_index]]
        limited.append(tally(side, indices, len(limits), is_first))
    old, new = limited
    return old, new


def _paired_usage(
    sides: tuple[Columns, Columns], indices_of_sides: list[Counts], size: int
) -> dict[str, tuple[TaskMeans, TaskMeans]]:
    usage = {}
    for metric in USAGE_METRICS:
        old, new = (
            task_means(
                np.where(side.measured, side.usage[metric], np.nan),
                indices[side.task_index] if side.size else side.task_index,
                size,
            )
            for side, indices in zip(sides, indices_of_sides, strict=True)
        )
        usage[metric] = old, new
    return usage if any(side.counts.any() for pair in usage.values() for side in pair) else {}


def _one_sided_checks(baseline: Tally, candidate: Tally) -> dict[str, str]:
    """The project's own checks that were run on one side only, with the reasons to leave them out."""
    ids_of_sides = {"baseline": baseline.check_ids, "candidate": candidate.check_ids}
    return {
        name: f"not gated: the {other} was not measured by it; measure the {other} again"
        for side, other in (("candidate", "baseline"), ("baseline", "candidate"))
        for name in ids_of_sides[side]
        if name not in ids_of_sides[other]
    }


def _tasks_with_actions(
    sides: tuple[Columns, Columns], indices_of_sides: list[Counts], tallies: list[Tally]
) -> dict[str, Flags]:
    size = len(tallies[0].trials)
    has_actions: dict[str, Flags] = {kind: np.zeros(size, dtype=np.bool_) for kind in ACTION_METRICS}
    for side, indices in zip(sides, indices_of_sides, strict=True):
        for kind in ACTION_METRICS:
            task_indices = (
                indices[side.task_index[side.has_actions[kind]]] if side.size else np.empty(0, dtype=np.int64)
            )
            has_actions[kind][task_indices[task_indices >= 0]] = True
    is_unknown = (
        (tallies[0].measured == 0) & (tallies[1].measured == 0) & ~np.any(list(has_actions.values()), axis=0)
    )
    may_be_watched = _may_be_watched(tallies[0]) & _may_be_watched(tallies[1])
    return {**{kind: flags | is_unknown for kind, flags in has_actions.items()}, INVARIANTS: may_be_watched}


def _may_be_watched(side: Tally) -> Flags:
    """Whether each task was checked for invariants.

    A task without measured trials counts as checked if any other task was.
    """
    return np.asarray(side.is_watched | ((side.measured == 0) & side.is_watched.any()))


def _are_identical(old: Columns, new: Columns, indices_of_sides: list[Counts]) -> bool:
    """Whether both sides hold the same simulations of the compared tasks, with the same rewards."""
    rows_of_sides = [
        np.flatnonzero(indices[side.task_index] >= 0)
        for side, indices in zip((old, new), indices_of_sides, strict=True)
    ]
    if (
        len(rows_of_sides[0]) != len(rows_of_sides[1])
        or not len(rows_of_sides[0])
        or old.ids[rows_of_sides[0][0]] not in set(new.ids)
    ):
        return False  # the usual case; avoids building a set of half a million records
    records_of_sides = [
        {(side.ids[row], bool(side.measured[row]), float(side.reward[row])) for row in rows}
        for side, rows in zip((old, new), rows_of_sides, strict=True)
    ]
    return records_of_sides[0] == records_of_sides[1]


def _mean_or_none(*arrays: Floats) -> float | None:
    values = np.concatenate(arrays)
    known_values = values[~np.isnan(values)]
    return float(known_values.mean()) if known_values.size else None
