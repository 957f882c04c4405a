"""Comparisons of two sides as arrays, and the questions that can be asked of them task by task.

Rows are comparisons: the gate has one, calibration and simulation have as many as they draw.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from pytest_trace2evolve.gate.columns import BREACHES, INVARIANTS, KINDS, Flags, Floats
from pytest_trace2evolve.gate.signflip import SignFlip, sign_flip
from pytest_trace2evolve.gate.tally import Tally, mean_of

REWARD, PASS_RATE, REGRESSIONS, MAX_STEPS = "reward", "pass_rate", "task_regressions", "max_steps"
METRICS = (REWARD, PASS_RATE, *KINDS, REGRESSIONS, MAX_STEPS, INVARIANTS)
"""What the policy looks at, in the order in which it is printed."""

_MOST_COMMON = 5_040


@dataclass(frozen=True)
class Comparisons:
    """Comparisons: two tallies of arrays (R, N), and p-values of fresh trials.

    Attributes:
        baseline, candidate: What either side did.
        fresh: p that a task is worse, from fresh trials of both sides alone, shape (R, N); NaN where a task
            has none. None: nothing could be confirmed (recorded runs).
        binary: By comparison, whether every reward is 0 or 1: the pass rate then says nothing new.
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
    def common_trials(self) -> int:
        """A number that all tasks' measured trials divide; 1 where it would be large."""
        counts = np.unique(np.concatenate([self.baseline.measured.ravel(), self.candidate.measured.ravel()]))
        common = math.lcm(*counts[counts > 0].tolist())
        return common if common <= _MOST_COMMON else 1

    @property
    def held(self) -> Flags:
        """Tasks whose measured trials were all checked for invariants, on both sides."""
        return self.baseline.watched & self.candidate.watched

    @property
    def usual_trials(self) -> Floats:
        """By comparison, the mean over its tasks of the smaller side's measured trials; at least 1."""
        fewer = np.where(self.both, np.minimum(self.baseline.measured, self.candidate.measured), 0)
        return np.asarray(np.maximum(fewer.sum(axis=1) / np.maximum(self.both.sum(axis=1), 1), 1.0))

    def difference(self, metric: str) -> Floats:
        """Candidate minus baseline by task; NaN where it is not known on both sides.

        Under a name of `BREACHES`, of the share of trials that kept the invariant.
        """
        sides = self.candidate, self.baseline
        if metric == REWARD:
            values = [side.mean_reward for side in sides]
        elif metric == PASS_RATE:
            values = [side.pass_rate for side in sides]
        elif metric in BREACHES:
            rates = [mean_of(side.kept(metric), side.checked[INVARIANTS]) for side in sides]
            values = [np.where(self.held, rate, np.nan) for rate in rates]
        else:
            values = [side.share(metric) for side in sides]
        return np.asarray(values[0] - values[1])

    def flips(self, metric: str) -> SignFlip:
        """The sign-flip test of a metric, worked out once whatever is asked of these comparisons."""
        if metric not in self._flips:
            self._flips[metric] = sign_flip(self.difference(metric), self.common_trials)
        return self._flips[metric]
