"""Many comparisons judged at once, each as the gate would judge it: what calibration and simulation count.

`decide` answers one comparison with all its figures. Here is the same decision without them: a property test
holds the two equal.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from pytest_trace2evolve.gate.columns import Counts, Flags, Floats
from pytest_trace2evolve.gate.decide import MIN_MEASURED
from pytest_trace2evolve.gate.judgement import Question
from pytest_trace2evolve.gate.planning import DETECTED
from pytest_trace2evolve.gate.tally import Comparisons, Tally, mean_of
from pytest_trace2evolve.gate.vectorized import FAIL, UNDECIDED
from pytest_trace2evolve.records.verdict import Decision, Goal


class RowPolicy(Protocol):
    """A policy that can be asked about many comparisons at once."""

    @property
    def name(self) -> str: ...

    def answers(self, compared: Comparisons, question: Question) -> Counts:
        """Answers of every check by comparison, shape (checks, R)."""
        ...

    def detects(self, compared: Comparisons, question: Question, drop: float) -> Flags:
        """Whether each comparison would have detected a drop of the mean reward, shape (R,)."""
        ...


def ranks(
    policy: RowPolicy, compared: Comparisons, question: Question, asks: Mapping[str, Flags] | None = None
) -> Counts:
    """`Decision.rank` of each comparison: 0 discard, 1 inconclusive, 2 promote (a guard: no harm detected).

    Args:
        policy: What a comparison must show.
        compared: The comparisons, arrays of shape (R, N).
        question: What is asked.
        asks: By kind, whether a task may name such actions, shape (R, N); needed where simulations were lost.
    """
    answers = policy.answers(compared, question)
    undecided, failed = (answers == UNDECIDED).any(axis=0), answers == FAIL
    lost = (compared.baseline.missing > 0).any(axis=1) | (compared.candidate.missing > 0).any(axis=1)
    if lost.any():
        assert asks is not None, "what a lost simulation was asked to do must be known"
        filled = replace(
            compared,
            baseline=compared.baseline.filled(asks, in_favour=True),
            candidate=compared.candidate.filled(asks, in_favour=False),
        )
        best = replace(
            compared,
            baseline=compared.baseline.filled(asks, in_favour=False),
            candidate=compared.candidate.filled(asks, in_favour=True),
        )
        still = policy.answers(best, replace(question, filled=True)) == FAIL
        withheld = lost & failed.any(axis=0) & ~(failed & still).any(axis=0)
        failed, undecided = failed & ~withheld, undecided | withheld
        for side in (compared.baseline, compared.candidate):
            undecided |= ((side.trials > 1) & (side.measured == 0)).any(axis=1)
        bound = policy.answers(filled, replace(question, filled=True))
        shares = np.minimum(_measured(compared.baseline), _measured(compared.candidate))
        open_ = ((bound == UNDECIDED) | (bound == FAIL)).any(axis=0)
        undecided |= lost & (open_ | (shares < MIN_MEASURED))
    if question.guard and question.goal is not Goal.NO_REGRESSION:
        undecided |= ~policy.detects(compared, question, DETECTED)
    rank = np.where(undecided, Decision.INCONCLUSIVE.rank, Decision.PROMOTE.rank)
    rank = np.where(failed.any(axis=0), Decision.DISCARD.rank, rank)
    return np.where(compared.both.any(axis=1), rank, Decision.INCONCLUSIVE.rank)


def _measured(side: Tally) -> Floats:
    return np.nan_to_num(mean_of(side.measured.sum(axis=1), side.trials.sum(axis=1)))
