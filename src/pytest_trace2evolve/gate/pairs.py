"""Both sides' evidence: sums over the trials of each task, and the two sides paired by task.

The last axis of every array is the axis of tasks (N). A side of `Pairs` has arrays of shape (N,). Arrays of
`Comparisons` have shape (R, N), with one row per comparison. The gate has one row; calibration and simulation
draw many.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from pytest_trace2evolve.gate.columns import (
    BREACHES,
    INVARIANTS,
    KINDS,
    Columns,
    Counts,
    Flags,
    Floats,
    columns,
)
from pytest_trace2evolve.gate.confirm import FreshResult
from pytest_trace2evolve.gate.significance import SignFlip, sign_flip
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.task import natural_order
from pytest_trace2evolve.scoring.metrics import SUCCESS

REWARD, PASS_RATE, REGRESSIONS, MAX_STEPS = "reward", "pass_rate", "task_regressions", "max_steps"
METRICS = (REWARD, PASS_RATE, *KINDS, REGRESSIONS, MAX_STEPS, INVARIANTS)
"""The metrics that policy `calibrated` checks, in the order in which they are printed."""

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
        passed: Successes.
        matched: By kind, the sum over trials of the share of gold actions matched. `INVARIANTS` counts the
            trials that broke no invariant; a name of `BREACHES` counts the trials that kept that invariant. A
            side that was not checked for invariants lacks these keys. A kind that no trial of the side broke
            has no key either.
        checked: By kind, the number of trials in which that share is known.
        max_steps: Trials that the step budget ended.
    """

    trials: Counts
    measured: Counts
    reward: Floats
    squares: Floats
    passed: Counts
    matched: Mapping[str, Floats]
    checked: Mapping[str, Counts]
    max_steps: Counts

    @classmethod
    def combine(cls, function: Callable[[list[Any]], Any], sides: Sequence["Tally"]) -> "Tally":
        """Combine tallies with the same kinds, applying a function to each list of corresponding arrays."""

        def combined(name: str) -> Any:
            values = [getattr(side, name) for side in sides]
            if isinstance(values[0], Mapping):
                return {kind: function([value[kind] for value in values]) for kind in values[0]}
            return function(values)

        return cls(**{each.name: combined(each.name) for each in fields(cls)})

    def map(self, function: Callable[[Any], Any]) -> "Tally":
        """The tally with a function applied to every array."""
        return Tally.combine(lambda arrays: function(arrays[0]), [self])

    @property
    def missing(self) -> Counts:
        """Simulations without a reward."""
        return self.trials - self.measured

    @property
    def passes(self) -> Flags:
        """Whether more than half of a task's measured trials are successes."""
        return 2 * self.passed > self.measured

    @property
    def majority(self) -> Floats:
        """1 if a task passes, else 0; NaN if nothing was measured."""
        return np.where(self.measured > 0, self.passes.astype(np.float64), np.nan)

    @property
    def binary(self) -> Flags:
        """Whether all rewards of a side are 0 or 1."""
        return np.asarray(np.all(np.abs(self.reward - self.passed) < 1 - SUCCESS, axis=-1))

    def figure(self, metric: str) -> Floats:
        """The mean of a metric over the trials of each task; NaN if it is not known.

        The metric is `REWARD`, `PASS_RATE`, one of `KINDS`, or a name of `BREACHES`. For the last, the mean
        is the share of trials that kept that invariant.
        """
        if metric == REWARD:
            return mean_of(self.reward, self.measured)
        if metric == PASS_RATE:
            return mean_of(self.passed, self.measured)
        if metric in BREACHES:
            return mean_of(self.kept(metric), self.checked[INVARIANTS])
        return mean_of(self.matched[metric], self.checked[metric])

    @property
    def watched(self) -> Flags:
        """Tasks with at least one trial checked for invariants, and no measured trial left unchecked."""
        checked = self.checked.get(INVARIANTS, np.zeros_like(self.measured))
        return np.asarray((checked > 0) & (checked == self.measured))

    def kept(self, breach: str) -> Floats:
        """By task, the number of checked trials that kept an invariant (a name of `BREACHES`)."""
        return np.asarray(self.matched.get(breach, self.checked[INVARIANTS]), dtype=np.float64)

    @property
    def variance(self) -> Floats:
        """Variance of the reward between a task's measured trials; NaN if there are fewer than two."""
        mean = self.figure(REWARD)
        with np.errstate(invalid="ignore", divide="ignore"):
            variance = (self.squares - self.measured * mean**2) / (self.measured - 1)
        return np.where(self.measured > 1, np.maximum(variance, 0.0), np.nan)

    def filled(self, asks: Mapping[str, Flags], *, in_favour: bool) -> "Tally":
        """The tally with every missing simulation filled in at its best or worst possible outcome.

        Args:
            asks: By kind, whether a task may name such actions, or is checked for invariants.
            in_favour: Fill in successes with all actions matched and all invariants kept; otherwise failures
                at max steps with none matched or kept.
        """
        missing = self.missing
        gain = missing if in_favour else np.zeros_like(missing)
        matched, checked = dict(self.matched), dict(self.checked)
        if INVARIANTS in checked:
            asks = {**asks, **dict.fromkeys(BREACHES, asks[INVARIANTS])}
            matched |= {name: self.kept(name) for name in BREACHES}
            checked |= dict.fromkeys(BREACHES, checked[INVARIANTS])
        return replace(
            self,
            measured=self.trials,
            reward=self.reward + gain,
            squares=self.squares + gain,
            passed=self.passed + gain,
            matched={kind: sums + gain * asks[kind] for kind, sums in matched.items()},
            checked={kind: count + missing * asks[kind] for kind, count in checked.items()},
            max_steps=self.max_steps if in_favour else self.max_steps + missing,
        )

    def pass_hat(self, tasks: Flags) -> dict[int, Floats]:
        """By k, each task's chance that k of its trials all succeed, for the tasks that `tasks` selects.

        k goes up to the smallest number of measured trials among these tasks.

        Source: Yao et al., τ-bench, arXiv 2406.12045: C(successes, k) / C(trials, k).
        """
        passed, measured = self.passed[tasks], self.measured[tasks]
        found = {}
        for k in PASS_HAT:
            if not measured.size or k > measured.min():
                break
            chance = np.ones(passed.shape)
            for step in range(k):
                chance *= np.maximum(passed - step, 0) / (measured - step)
            found[k] = chance
        return found


def mean_of(sums: Floats | Counts, counts: Counts) -> Floats:
    """Sums divided by counts; NaN if the count is 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def tally(side: Columns, places: Counts, size: int) -> Tally:
    """Sum one side's simulations over the trials of each task.

    Args:
        side: The simulations.
        places: The position of each of the side's tasks among `size` tasks; -1 leaves a task out.
        size: The number of tasks.
    """
    place = places[side.task] if side.size else np.empty(0, dtype=np.int64)
    kept = place >= 0
    place, measured, reward = place[kept], side.measured[kept], side.reward[kept]

    def count(flags: Flags) -> Counts:
        return np.bincount(place[flags], minlength=size)

    def total(values: Floats, flags: Flags) -> Any:
        return _sums(values[flags], place[flags], size)

    shares = {kind: share[kept] for kind, share in side.shares.items()}
    known = {kind: measured & ~np.isnan(share) for kind, share in shares.items()}
    return Tally(
        trials=np.bincount(place, minlength=size),
        measured=count(measured),
        reward=total(reward, measured),
        squares=total(reward**2, measured),
        passed=count(measured & (reward >= SUCCESS)),
        matched={kind: total(share, known[kind]) for kind, share in shares.items()},
        checked={kind: count(flags) for kind, flags in known.items()},
        max_steps=count(side.max_steps[kept]),
    )


def _sums(values: Floats, place: Counts, size: int) -> Any:
    """Sums by place; even the last digit does not depend on the order of the values."""
    if np.array_equal(values, np.rint(values)):
        return np.bincount(place, weights=values, minlength=size)
    order = np.lexsort((values, place))
    return np.bincount(place[order], weights=values[order], minlength=size)


@dataclass(frozen=True)
class Comparisons:
    """Comparisons: two tallies with arrays of shape (R, N), and p-values of fresh trials.

    Attributes:
        fresh: p-values that a task is worse, from fresh trials of both sides alone, shape (R, N); NaN for a
            task without fresh trials. None if nothing could be confirmed (recorded runs).
        binary: By comparison, whether every reward is 0 or 1. If so, the pass rate adds nothing.
    """

    baseline: Tally
    candidate: Tally
    fresh: Floats | None = None
    binary: bool | Flags = True
    _flips: dict[str, SignFlip] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def both(self) -> Flags:
        """Tasks with a measured trial on both sides."""
        return (self.baseline.measured > 0) & (self.candidate.measured > 0)

    @property
    def broken(self) -> Flags:
        """Tasks that pass on the baseline and not on the candidate."""
        return self.both & self.baseline.passes & ~self.candidate.passes

    @property
    def fixed(self) -> Flags:
        """Tasks that pass on the candidate and not on the baseline."""
        return self.both & ~self.baseline.passes & self.candidate.passes

    @property
    def suspected(self) -> Flags:
        """Broken tasks that fresh trials neither confirmed nor cleared."""
        return self.broken if self.fresh is None else self.broken & np.isnan(self.fresh)

    @property
    def watched(self) -> Flags:
        """Tasks whose measured trials were all checked for invariants, on both sides."""
        return self.baseline.watched & self.candidate.watched

    @property
    def usual_trials(self) -> Floats:
        """By comparison, the mean over tasks of the smaller of both sides' measured trials; at least 1."""
        fewer = np.where(self.both, np.minimum(self.baseline.measured, self.candidate.measured), 0)
        return np.asarray(np.maximum(fewer.sum(axis=1) / np.maximum(self.both.sum(axis=1), 1), 1.0))

    def difference(self, metric: str) -> Floats:
        """Candidate minus baseline by task (see `Tally.figure`); NaN if a side's figure is not known."""
        change = self.candidate.figure(metric) - self.baseline.figure(metric)
        return np.where(self.watched, change, np.nan) if metric in BREACHES else np.asarray(change)

    def flips(self, metric: str) -> SignFlip:
        """The sign-flip test of a metric, computed once for all questions about these comparisons."""
        if metric not in self._flips:
            self._flips[metric] = sign_flip(self.difference(metric), self._common_trials)
        return self._flips[metric]

    @property
    def _common_trials(self) -> int:
        """The least common multiple of all tasks' numbers of measured trials; 1 if it would be too large."""
        counts = np.unique(np.concatenate([self.baseline.measured.ravel(), self.candidate.measured.ravel()]))
        common = math.lcm(*counts[counts > 0].tolist())
        return common if common <= _MAX_COMMON_TRIALS else 1

    def filled(self, asks: Mapping[str, Flags], *, in_favour: bool) -> "Comparisons":
        """Fill in missing simulations at the best or the worst possible outcome for the candidate."""
        return replace(
            self,
            baseline=self.baseline.filled(asks, in_favour=not in_favour),
            candidate=self.candidate.filled(asks, in_favour=in_favour),
        )


@dataclass(frozen=True)
class Pairs:
    """Tasks that both sides ran, in order of their ids.

    Attributes:
        names: The ids of the N tasks.
        baseline, candidate: The tally of either side, with arrays of shape (N,).
        asks: By kind, whether a task names such gold actions. A task whose actions are unknown, because it
            was measured on neither side, counts as naming them. Under `INVARIANTS`, whether both sides were
            checked for invariants.
        left_out: The reason for leaving out each omitted task, by task id.
        identical: Whether both sides hold the same simulations.
        cost, tokens: Mean cost and tokens of a simulation; None if no simulation records them.
        fresh: p-values of the tasks' fresh trials, shape (N,); NaN for a task without fresh trials. None if
            nothing could be confirmed.
        fresh_worst: The same, but with every lost fresh trial counted as a sign of a regression.
    """

    names: tuple[str, ...]
    baseline: Tally
    candidate: Tally
    asks: Mapping[str, Flags]
    left_out: Mapping[str, str] = field(default_factory=dict)
    identical: bool = False
    cost: float | None = None
    tokens: float | None = None
    fresh: Floats | None = None
    fresh_worst: Floats | None = None

    @property
    def sides(self) -> tuple[Tally, Tally]:
        """The baseline and the candidate."""
        return self.baseline, self.candidate

    @cached_property
    def compared(self) -> Comparisons:
        """The same evidence as one row of comparisons."""
        baseline, candidate = (side.map(lambda array: array[None, :]) for side in self.sides)
        return Comparisons(
            baseline,
            candidate,
            fresh=None if self.fresh is None else self.fresh[None, :],
            binary=bool(self.baseline.binary & self.candidate.binary),
        )

    @property
    def both(self) -> Flags:
        """Tasks with a measured trial on both sides."""
        return np.asarray(self.compared.both[0])

    def fixed(self) -> list[str]:
        """Tasks that fail on the baseline and pass on the candidate."""
        return self.named(self.compared.fixed[0])

    def broken(self) -> list[str]:
        """Tasks that pass on the baseline and fail on the candidate."""
        return self.named(self.compared.broken[0])

    def named(self, flags: Flags) -> list[str]:
        """The names of the tasks that `flags` selects."""
        return [self.names[place] for place in np.flatnonzero(flags)]

    def leaving_out(self, reasons: Mapping[str, str]) -> "Pairs":
        """Add tasks that were left out before pairing; their reasons take precedence over existing ones."""
        return replace(self, left_out={**self.left_out, **reasons})

    def tried_again(self, fresh: Mapping[str, FreshResult]) -> "Pairs":
        """Add the results of fresh trials, by task id."""
        results = [fresh.get(name, FreshResult(np.nan, np.nan)) for name in self.names]
        return replace(
            self,
            fresh=np.array([result.p for result in results], dtype=np.float64),
            fresh_worst=np.array([result.worst for result in results], dtype=np.float64),
        )

    def filled(self, *, in_favour: bool) -> "Pairs":
        """Fill in missing simulations at the best or the worst possible outcome for the candidate.

        The result is a bound that a discard or a promotion must survive, never a score. `fresh` already
        counts lost trials against a regression.
        """
        return replace(
            self,
            baseline=self.baseline.filled(self.asks, in_favour=not in_favour),
            candidate=self.candidate.filled(self.asks, in_favour=in_favour),
            fresh=self.fresh if in_favour else self.fresh_worst,
        )


def means_line(old: Floats, new: Floats) -> str:
    """The means of a figure on both sides, over the tasks that have it on both."""
    known = ~np.isnan(old) & ~np.isnan(new)
    return f"{old[known].mean():.3f} → {new[known].mean():.3f} (n={int(known.sum())})"


def left_out_lines(left_out: Mapping[str, str]) -> tuple[str, ...]:
    """Lines of text with each omitted task and its reason, in order of task ids."""
    return tuple(f"{name}: {left_out[name]}" for name in sorted(left_out, key=natural_order))


Simulations = Columns | Iterable[SimulationEvidence]
"""One side's simulations, as records or as columns."""


def pair(baseline: Simulations, candidate: Simulations) -> Pairs:
    """Pair two sides by task.

    A task is left out, and named in `left_out`, if only one side ran it or if the two sides ran different
    content under the same id.
    """
    old, new = (side if isinstance(side, Columns) else columns(side) for side in (baseline, candidate))
    content = old.contents(), new.contents()
    names, left_out = [], {}
    for name in sorted({*old.tasks, *new.tasks}, key=natural_order):
        digests = [side.get(name) for side in content]
        if None in digests:
            left_out[name] = f"only the {'baseline' if digests[1] is None else 'candidate'} ran it"
        elif digests[0] != digests[1] or digests[0] == "":
            left_out[name] = "the two sides ran different content under this id"
        else:
            names.append(name)
    place = {name: number for number, name in enumerate(names)}
    places = [np.array([place.get(name, -1) for name in side.tasks], dtype=np.int64) for side in (old, new)]
    sums = [tally(side, where, len(names)) for side, where in zip((old, new), places, strict=True)]
    return Pairs(
        names=tuple(names),
        baseline=sums[0],
        candidate=sums[1],
        asks=_asks((old, new), places, sums),
        left_out=left_out,
        identical=_identical(old, new, places),
        cost=_mean(old.cost, new.cost),
        tokens=_mean(old.tokens, new.tokens),
    )


def _asks(sides: tuple[Columns, Columns], places: list[Counts], sums: list[Tally]) -> dict[str, Flags]:
    size = len(sums[0].trials)
    asks: dict[str, Flags] = {kind: np.zeros(size, dtype=np.bool_) for kind in KINDS}
    for side, where in zip(sides, places, strict=True):
        for kind in KINDS:
            here = where[side.task[side.asks[kind]]] if side.size else np.empty(0, dtype=np.int64)
            asks[kind][here[here >= 0]] = True
    unknown = (sums[0].measured == 0) & (sums[1].measured == 0) & ~np.any(list(asks.values()), axis=0)
    watched = _may_be_watched(sums[0]) & _may_be_watched(sums[1])
    return {**{kind: flags | unknown for kind, flags in asks.items()}, INVARIANTS: watched}


def _may_be_watched(side: Tally) -> Flags:
    """Tasks checked for invariants; a task without measured trials counts as checked if any other was."""
    return np.asarray(side.watched | ((side.measured == 0) & side.watched.any()))


def _identical(old: Columns, new: Columns, places: list[Counts]) -> bool:
    """Whether both sides hold the same simulations of the compared tasks, with the same rewards."""
    kept = [np.flatnonzero(where[side.task] >= 0) for side, where in zip((old, new), places, strict=True)]
    if len(kept[0]) != len(kept[1]) or not len(kept[0]) or old.ids[kept[0][0]] not in set(new.ids):
        return False  # the usual case; avoids building a set of half a million records
    held = [
        {(side.ids[row], bool(side.measured[row]), float(side.reward[row])) for row in rows}
        for side, rows in zip((old, new), kept, strict=True)
    ]
    return held[0] == held[1]


def _mean(*columns: Floats) -> float | None:
    values = np.concatenate(columns)
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else None
