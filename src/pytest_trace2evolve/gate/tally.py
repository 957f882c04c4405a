"""Sums over the trials of each task: all that the statistics need, for one comparison or for thousands.

Every array ends in an axis of tasks (N). The gate gives arrays of shape (N,); calibration and simulation give
(R, N), a row a comparison, and the same functions serve both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pytest_trace2evolve.gate.columns import BREACHES, INVARIANTS, SUCCESS, Columns, Counts, Flags, Floats


@dataclass(frozen=True)
class Tally:
    """One side.

    Attributes:
        trials: Simulations of the task, measured or not.
        measured: Those that have a reward.
        reward: Sum of the rewards.
        squares: Sum of the squared rewards.
        passed: Successes.
        matched: By kind, the sum over trials of the share of gold actions matched; under `INVARIANTS` the
            trials that broke none, under a name of `BREACHES` those that kept that invariant. A side that
            was not checked for invariants lacks these keys; one that broke a kind in no trial lacks its key.
        checked: By kind, in how many trials that share is known.
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

    @property
    def missing(self) -> Counts:
        """Simulations without a reward."""
        return self.trials - self.measured

    @property
    def passes(self) -> Flags:
        """Whether more than half of a task's measured trials are successes."""
        return 2 * self.passed > self.measured

    @property
    def mean_reward(self) -> Floats:
        """Mean reward by task; NaN where nothing was measured."""
        return mean_of(self.reward, self.measured)

    @property
    def pass_rate(self) -> Floats:
        """Share of successes by task; NaN where nothing was measured."""
        return mean_of(self.passed, self.measured)

    def share(self, kind: str) -> Floats:
        """Mean share of gold actions matched by task; NaN where none are known."""
        return mean_of(self.matched[kind], self.checked[kind])

    @property
    def watched(self) -> Flags:
        """Tasks of which every measured trial, and at least one, was checked for invariants."""
        if INVARIANTS not in self.checked:
            return np.zeros(self.trials.shape, dtype=np.bool_)
        checked = self.checked[INVARIANTS]
        return np.asarray((checked > 0) & (checked == self.measured))

    def kept(self, breach: str) -> Floats:
        """By task, the trials that kept an invariant (a name of `BREACHES`), of those checked for it."""
        return np.asarray(self.matched.get(breach, self.checked[INVARIANTS]), dtype=np.float64)

    def _matched(self, kind: str) -> Floats:
        return self.kept(kind) if kind in BREACHES else self.matched[kind]

    def _checked(self, kind: str) -> Counts:
        return self.checked[INVARIANTS if kind in BREACHES else kind]

    @property
    def within(self) -> Floats:
        """Variance of the reward between a task's trials; NaN below two of them."""
        mean = self.mean_reward
        with np.errstate(invalid="ignore", divide="ignore"):
            variance = (self.squares - self.measured * mean**2) / (self.measured - 1)
        return np.where(self.measured > 1, np.maximum(variance, 0.0), np.nan)

    def filled(self, asks: Mapping[str, Flags], *, in_favour: bool) -> "Tally":
        """Every missing simulation as the best (`in_favour`) or worst that it could have been.

        Args:
            asks: By kind, whether a task may name such actions, or is checked for invariants.
            in_favour: Success with all actions matched and all invariants kept; else failure at max steps
                with none matched or kept.
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

    def plus(self, other: "Tally") -> "Tally":
        """These trials and further ones of the same tasks."""
        kinds = dict.fromkeys([*self.matched, *other.matched])
        return Tally(
            trials=self.trials + other.trials,
            measured=self.measured + other.measured,
            reward=self.reward + other.reward,
            squares=self.squares + other.squares,
            passed=self.passed + other.passed,
            matched={kind: self._matched(kind) + other._matched(kind) for kind in kinds},
            checked={kind: self._checked(kind) + other._checked(kind) for kind in kinds},
            max_steps=self.max_steps + other.max_steps,
        )

    def only(self, tasks: Flags) -> "Tally":
        """The same, for some of the tasks."""
        return Tally(
            trials=self.trials[..., tasks],
            measured=self.measured[..., tasks],
            reward=self.reward[..., tasks],
            squares=self.squares[..., tasks],
            passed=self.passed[..., tasks],
            matched={kind: sums[..., tasks] for kind, sums in self.matched.items()},
            checked={kind: count[..., tasks] for kind, count in self.checked.items()},
            max_steps=self.max_steps[..., tasks],
        )


def tally(side: Columns, places: Counts, size: int) -> Tally:
    """Sums over trials.

    Args:
        side: The simulations.
        places: For each of the side's tasks its place among `size` tasks; -1 leaves it out.
        size: How many tasks there are.
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
    """Sums by place whose last digit does not depend on the order of the values."""
    if np.array_equal(values, np.rint(values)):
        return np.bincount(place, weights=values, minlength=size)
    order = np.lexsort((values, place))
    return np.bincount(place[order], weights=values[order], minlength=size)


PASS_HAT = (1, 2, 4, 8, 16)
"""The k of pass^k that are told."""


def pass_hat(side: Tally) -> dict[int, Floats]:
    """By k, the chance of each task that k of its trials all succeed; as far as every task's trials go.

    Source: Yao et al., τ-bench, arXiv 2406.12045: C(successes, k) / C(trials, k).
    """
    fewest = int(side.measured.min(initial=PASS_HAT[-1])) if side.measured.size else 0
    found = {}
    for k in PASS_HAT:
        if k > fewest:
            break
        chance = np.ones(side.passed.shape)
        for step in range(k):
            chance *= np.maximum(side.passed - step, 0) / (side.measured - step)
        found[k] = chance
    return found


def mean_of(sums: Floats | Counts, counts: Counts) -> Floats:
    """Sums over counts; NaN where there is none."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
