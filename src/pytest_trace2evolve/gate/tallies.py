"""Sums of one side's simulations over the trials of each task.

The last axis of every array is the axis of tasks (N). A side of one comparison has arrays of shape (N,), and
the sides of R comparisons have arrays of shape (R, N).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from pytest_trace2evolve.gate.columns import (
    ACTION_METRICS,
    AGENT_ERRORS,
    APPLIES_PREFIX,
    CHECK_PREFIX,
    COLLATERAL,
    INVARIANT_METRICS,
    INVARIANTS,
    MINEFIELD,
    Columns,
    Counts,
    Flags,
    Floats,
)
from pytest_trace2evolve.scoring.metrics import SUCCESS

REWARD, PASS_RATE, REGRESSIONS, MAX_STEPS = "reward", "pass_rate", "task_regressions", "max_steps"
METRICS = (REWARD, PASS_RATE, *ACTION_METRICS, REGRESSIONS, MAX_STEPS, AGENT_ERRORS, INVARIANTS)
"""The metrics that policy `calibrated` checks, in the order in which they are printed."""

MIN_MEASURED = 0.9
"""The minimum share of measured simulations on each side for a promotion. One of the project's own checks
needs results for the same share of simulations to pass."""

PASS_HAT = (1, 2, 4, 8, 16)
"""The k for which pass^k is reported."""


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


def tally(side: Columns, is_counted: Flags | None = None) -> Tally:
    """Sum one side's simulations over the trials of each task; `is_counted` selects some of them."""
    is_counted = np.ones(side.size, dtype=np.bool_) if is_counted is None else is_counted
    size, indices = len(side.tasks), side.task_index[is_counted]
    measured, reward = side.measured[is_counted], side.reward[is_counted]

    def count(flags: Flags) -> Counts:
        return np.bincount(indices[flags], minlength=size)

    def total(values: Floats, flags: Flags) -> Any:
        return _sum_by_index(values[flags], indices[flags], size)

    shares = {kind: share[is_counted] for kind, share in side.shares.items()}
    is_known = {kind: measured & ~np.isnan(share) for kind, share in shares.items()}
    return Tally(
        trials=np.bincount(indices, minlength=size),
        measured=count(measured),
        reward=total(reward, measured),
        squares=total(reward**2, measured),
        successes=count(measured & (reward >= SUCCESS)),
        matched={kind: total(share, is_known[kind]) for kind, share in shares.items()},
        checked={kind: count(flags) for kind, flags in is_known.items()},
        max_steps=count(side.max_steps[is_counted]),
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


def usage_means(side: Columns, metric: str) -> TaskMeans:
    """The means by task of a figure of `USAGE_METRICS`, over the measured simulations that have it."""
    is_known = side.measured & ~np.isnan(side.usage[metric])
    return task_means(side.usage[metric][is_known], side.task_index[is_known], len(side.tasks))


def task_means(values: Floats, indices: Counts, size: int) -> TaskMeans:
    """The means of values by task; `indices` holds the task of each value, below `size`."""
    counts = np.bincount(indices, minlength=size)
    means = mean_of(_sum_by_index(values, indices, size), counts)
    squares = _sum_by_index((values - means[indices]) ** 2, indices, size)
    with np.errstate(invalid="ignore", divide="ignore"):
        variances = np.where(counts > 1, squares / (counts - 1) / counts, np.nan)
    return TaskMeans(means, variances, counts)
