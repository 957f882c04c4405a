"""The evidence of both sides, paired by task.

Arrays of `Comparisons` have shape (R, N), with one row per comparison and N tasks. The gate uses one row,
with the names of its tasks (`Pairs`). Calibration and power simulations use many.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import scipy

from pytest_trace2evolve.gate.columns import (
    ACTION_METRICS,
    AGENT_ERRORS,
    COLLATERAL,
    INVARIANT_METRICS,
    INVARIANTS,
    USAGE_METRICS,
    Columns,
    Counts,
    Flags,
    Floats,
    build_columns,
)
from pytest_trace2evolve.gate.confirm import FreshResult
from pytest_trace2evolve.gate.significance import SignFlip, sign_flip, stratified_fisher
from pytest_trace2evolve.gate.tallies import (
    PASS_RATE,
    REWARD,
    Tally,
    TaskMeans,
    mean_of,
    tally,
    usage_means,
)
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.task import natural_sort_key

_MAX_COMMON_TRIALS = 5_040


@dataclass(frozen=True)
class Comparisons:
    """Comparisons of two sides: tallies with arrays of shape (R, N), and p-values of fresh trials.

    Attributes:
        fresh_p: p-values that a task is worse, from fresh trials of both sides alone, shape (R, N); NaN for a
            task without fresh trials. None if nothing could be confirmed (recorded runs).
        fresh_worst_p: The same, but with every lost fresh trial counted as a sign of a regression.
        is_critical: Whether each task is critical on either side, in a shape that broadcasts to (R, N).
        first_trials: Both sides with only as many trials of each task as the side with fewer has; None if
            that is all of them. Tasks count as broken, fixed or out of steps by these trials, because more
            trials change how often a task passes more than half of them.
        has_actions: By kind, whether a task names such gold actions. A task whose actions are unknown,
            because it was measured on neither side, counts as naming them. Under `INVARIANTS`, whether both
            sides were checked for invariants. Needed only if simulations are missing.
    """

    baseline: Tally
    candidate: Tally
    fresh_p: Floats | None = None
    fresh_worst_p: Floats | None = None
    is_critical: Flags = field(default_factory=lambda: np.zeros((1, 1), dtype=np.bool_))
    first_trials: tuple[Tally, Tally] | None = None
    has_actions: Mapping[str, Flags] = field(default_factory=dict)
    _sign_flips: dict[str, SignFlip] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def is_binary(self) -> Flags:
        """By comparison, whether every reward is 0 or 1. If so, the pass rate adds nothing."""
        return self.baseline.is_binary & self.candidate.is_binary

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

    def fill_missing(self, *, is_favourable: bool) -> "Comparisons":
        """Fill in missing simulations at the best or the worst possible outcome for the candidate.

        `fresh_p` already counts lost trials against a regression.
        """

        def fill(old: Tally, new: Tally) -> tuple[Tally, Tally]:
            return (
                old.with_agent_errors_of(new).fill_missing(self.has_actions, is_favourable=not is_favourable),
                new.fill_missing(self.has_actions, is_favourable=is_favourable),
            )

        baseline, candidate = fill(self.baseline, self.candidate)
        return replace(
            self,
            baseline=baseline,
            candidate=candidate,
            first_trials=self.first_trials and fill(*self.first_trials),
            fresh_p=self.fresh_p if is_favourable or self.fresh_worst_p is None else self.fresh_worst_p,
        )


@dataclass(frozen=True)
class Pairs:
    """Tasks that both sides ran, in order of their ids.

    Attributes:
        names: The ids of the N tasks.
        comparisons: Both sides as one row of comparisons.
        left_out: The reason for leaving out each omitted task, by task id.
        is_identical: Whether both sides hold the same simulations.
        cost, tokens: Mean cost and tokens of a simulation; None if no simulation records them.
        ungated_checks: By id, the reason why one of the project's own checks decides nothing.
        unjudged: The number of tasks with a simulation that only a judge could have measured.
        usage: What the agent used on the baseline and on the candidate, by name of `USAGE_METRICS`; empty if
            neither side recorded anything.
    """

    names: tuple[str, ...]
    comparisons: Comparisons
    left_out: Mapping[str, str] = field(default_factory=dict)
    is_identical: bool = False
    cost: float | None = None
    tokens: float | None = None
    ungated_checks: Mapping[str, str] = field(default_factory=dict)
    unjudged: int = 0
    usage: Mapping[str, tuple[TaskMeans, TaskMeans]] = field(default_factory=dict)

    @cached_property
    def sides(self) -> tuple[Tally, Tally]:
        """The tallies of the baseline and of the candidate, with arrays of shape (N,)."""
        old, new = self.comparisons.baseline, self.comparisons.candidate
        return old.map(lambda array: array[0]), new.map(lambda array: array[0])

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
        old, new = self.comparisons.baseline, self.comparisons.candidate
        known_reasons = {
            name: reason for name, reason in reasons.items() if name in (*old.check_ids, *new.check_ids)
        }
        comparisons = replace(
            self.comparisons,
            baseline=old.without_checks(known_reasons),
            candidate=new.without_checks(known_reasons),
        )
        ungated_checks = {**self.ungated_checks, **known_reasons}
        return replace(self, comparisons=comparisons, ungated_checks=ungated_checks)

    def with_fresh_results(self, fresh: Mapping[str, FreshResult]) -> "Pairs":
        """Add the results of fresh trials, by task id."""
        results = [fresh.get(name, FreshResult(np.nan, np.nan)) for name in self.names]
        p, worst_p = np.array(results, dtype=np.float64).reshape(1, -1, 2).transpose(2, 0, 1)
        return replace(self, comparisons=replace(self.comparisons, fresh_p=p, fresh_worst_p=worst_p))

    def fill_missing(self, *, is_favourable: bool) -> "Pairs":
        """Fill in missing simulations at the best or the worst possible outcome for the candidate.

        The result is a bound that a discard or a promotion must survive, never a score.
        """
        return replace(self, comparisons=self.comparisons.fill_missing(is_favourable=is_favourable))


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
    # Costs are means over all simulations, also those of tasks that are left out.
    cost, tokens = _mean_or_none(old.cost, new.cost), _mean_or_none(old.tokens, new.tokens)
    old, new = old.select_tasks(names), new.select_tasks(names)
    tallies = tally(old), tally(new)
    if any(COLLATERAL not in side.matched for side in tallies):  # both sides must have been checked
        tallies = tallies[0].without_checks([COLLATERAL]), tallies[1].without_checks([COLLATERAL])
    critical = old.critical | new.critical
    has_actions = _tasks_with_actions((old, new), tallies)
    pairs = Pairs(
        names=tuple(names),
        comparisons=Comparisons(
            *_as_rows(tallies),
            is_critical=np.array([[name in critical for name in names]], dtype=np.bool_),
            first_trials=_first_trials((old, new), tallies),
            has_actions={kind: flags[np.newaxis] for kind, flags in has_actions.items()},
        ),
        left_out=left_out,
        is_identical=_are_identical(old, new),
        cost=cost,
        tokens=tokens,
        unjudged=len((old.unjudged | new.unjudged) & {*names}),
        usage=_paired_usage(old, new),
    )
    return pairs.with_ungated_checks(_one_sided_checks(*tallies))


def _as_rows(sides: tuple[Tally, Tally]) -> tuple[Tally, Tally]:
    """Both sides of one comparison as arrays of shape (1, N)."""
    old, new = (side.map(lambda array: array[np.newaxis]) for side in sides)
    return old, new


def _first_trials(sides: tuple[Columns, Columns], tallies: tuple[Tally, Tally]) -> tuple[Tally, Tally] | None:
    """Both sides with as many trials of each task as the side with fewer has; None if they have equal ones.

    The trials with the smallest numbers count.
    """
    limits = np.minimum(*(side.trials for side in tallies))
    if all(np.array_equal(side.trials, limits) for side in tallies):
        return None

    def limited(side: Columns) -> Tally:
        order = np.lexsort((side.trial, side.task_index))
        starts = np.searchsorted(side.task_index[order], side.task_index[order])
        position = np.empty(side.size, dtype=np.int64)
        position[order] = np.arange(side.size) - starts
        return tally(side, position < limits[side.task_index])

    return _as_rows((limited(sides[0]), limited(sides[1])))


def _paired_usage(old: Columns, new: Columns) -> dict[str, tuple[TaskMeans, TaskMeans]]:
    usage = {metric: (usage_means(old, metric), usage_means(new, metric)) for metric in USAGE_METRICS}
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


def _tasks_with_actions(sides: tuple[Columns, Columns], tallies: tuple[Tally, Tally]) -> dict[str, Flags]:
    """By kind, whether each task names such actions, or may; see `Comparisons.has_actions`."""
    old, new = (
        {
            kind: np.bincount(side.task_index[flags], minlength=len(side.tasks)) > 0
            for kind, flags in side.has_actions.items()
        }
        for side in sides
    )
    has_actions = {kind: old[kind] | new[kind] for kind in ACTION_METRICS}
    is_unknown = (tallies[0].measured == 0) & (tallies[1].measured == 0)
    is_unknown &= ~np.any(list(has_actions.values()), axis=0)
    may_be_watched = _may_be_watched(tallies[0]) & _may_be_watched(tallies[1])
    return {**{kind: flags | is_unknown for kind, flags in has_actions.items()}, INVARIANTS: may_be_watched}


def _may_be_watched(side: Tally) -> Flags:
    """Whether each task was checked for invariants.

    A task without measured trials counts as checked if any other task was.
    """
    return np.asarray(side.is_watched | ((side.measured == 0) & side.is_watched.any()))


def _are_identical(old: Columns, new: Columns) -> bool:
    """Whether both sides hold the same simulations, with the same rewards."""
    if old.size != new.size or not old.size or old.ids[0] not in set(new.ids):
        return False  # the usual case; avoids building a set of half a million records
    records_of_sides = [
        set(zip(side.ids, side.measured.tolist(), side.reward.tolist(), strict=True)) for side in (old, new)
    ]
    return records_of_sides[0] == records_of_sides[1]


def _mean_or_none(*arrays: Floats) -> float | None:
    values = np.concatenate(arrays)
    known_values = values[~np.isnan(values)]
    return float(known_values.mean()) if known_values.size else None
