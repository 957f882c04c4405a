"""Comparisons whose sides have different numbers of trials of a task."""

from itertools import product
from math import comb
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.gate.calibrated import CALIBRATED
from pytest_trace2evolve.gate.checks import compute_findings
from pytest_trace2evolve.gate.decide import GateInput, decide
from pytest_trace2evolve.gate.pairs import Comparisons, Pairs, pair
from pytest_trace2evolve.gate.policy import STRICT
from pytest_trace2evolve.gate.protocols import Policy, Question
from pytest_trace2evolve.gate.significance import sign_flip
from pytest_trace2evolve.gate.tallies import REWARD, Tally
from pytest_trace2evolve.records.verdict import Goal, Label, Verdict
from tests.gate_helpers import Side, side

LAW = settings(deadline=None, max_examples=40)
REWARDS = st.sampled_from([0.0, 1.0])


def judged(old: Side, new: Side, goal: Goal = Goal.IMPROVE, policy: Policy = CALIBRATED) -> Verdict:
    """The verdict on two sides, which no split names."""
    return decide(GateInput(pair(old, new), policy, goal=goal, label=Label.DEVELOPMENT))


def tasks(trials: int, size: int) -> st.SearchStrategy[Side]:
    """Tasks with so many trials each."""
    task = st.lists(REWARDS, min_size=trials, max_size=trials)
    return st.lists(task, min_size=size, max_size=size).map(lambda rewards: side(*rewards))


@st.composite
def unequal(draw: st.DrawFn) -> tuple[Side, Side]:
    """Two sides of a few tasks with up to four trials each."""
    size, old, new = draw(st.integers(2, 6)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    return draw(tasks(old, size)), draw(tasks(new, size))


def permuted(pairs: Pairs) -> float:
    """The chance of as many passes of the candidate, by listing all of its shares of each task's passes."""
    sums = {0: 1.0}
    old_side, new_side = pairs.sides
    passes = old_side.successes + new_side.successes
    for old, new, passed in zip(old_side.measured, new_side.measured, passes, strict=True):
        ways = {
            count: comb(int(new), count)
            * comb(int(old), int(passed) - count)
            / comb(int(old + new), int(passed))
            for count in range(min(int(new), int(passed)) + 1)
        }
        updated: dict[int, float] = {}
        for (total, chance), (count, share) in product(sums.items(), ways.items()):
            updated[total + count] = updated.get(total + count, 0.0) + chance * share
        sums = updated
    observed = int(new_side.successes.sum())
    return sum(chance for total, chance in sums.items() if total >= observed)


@LAW
@given(unequal())
def test_the_larger_p_of_both_tests_counts(sides: tuple[Side, Side]) -> None:
    pairs = pair(*sides)
    found = pairs.comparisons.sign_flip_test(REWARD)
    flips = sign_flip(pairs.comparisons.difference(REWARD), pairs.comparisons.common_trials)
    expected = flips.high[0]
    if len(sides[0]) != len(sides[1]):
        expected = max(expected, permuted(pairs))
    assert found.high[0] == pytest.approx(expected, abs=1e-9)


@LAW
@given(unequal(), st.randoms(use_true_random=False))
def test_the_order_of_simulations_does_not_matter(sides: tuple[Side, Side], random: Random) -> None:
    shuffled = [random.sample(records, len(records)) for records in sides]
    for policy in (CALIBRATED, STRICT):
        assert judged(*sides, policy=policy) == judged(shuffled[0], shuffled[1], policy=policy)


@LAW
@given(unequal(), st.data())
def test_a_further_success_never_weakens_the_evidence_of_a_gain(
    sides: tuple[Side, Side], data: st.DataObject
) -> None:
    old, new = sides
    index = data.draw(st.integers(0, len(new) - 1))
    better = [*new[:index], new[index].model_copy(update={"reward": 1.0}), *new[index + 1 :]]
    before, after = (pair(old, records).comparisons.sign_flip_test(REWARD) for records in (new, better))
    assert after.high[0] <= before.high[0] + 1e-9
    assert after.low[0] >= before.low[0] - 1e-9


def test_tasks_break_by_equal_numbers_of_trials() -> None:
    """A baseline that passes two of three trials, but not the first, is not broken by a failed trial."""
    pairs = pair(side([0.0, 1.0, 1.0], [1.0, 0.0, 0.0]), side(0.0, 0.0))
    assert pairs.broken_tasks() == ["1"]
    assert pairs.fixed_tasks() == []
    verdict = judged(side([0.0, 1.0, 1.0]), side(0.0))
    assert verdict.broken == ()
    lost = pair(side([1.0, 1.0, 0.0], [0.0, 0.0, 0.0]), side([None, None], [None, None]))
    for is_favourable, broken, fixed in ((False, ["0"], []), (True, [], ["1"])):
        filled = lost.fill_missing(is_favourable=is_favourable)
        assert (filled.broken_tasks(), filled.fixed_tasks()) == (broken, fixed)


def test_sides_without_an_effect_seldom_differ() -> None:
    """20 tasks that pass nine of ten times, two trials against 16: the sign-flip test alone errs in 9 %."""
    random, rows = np.random.default_rng(0), 4000
    counts = [random.binomial(trials, 0.9, (rows, 20)) for trials in (16, 2)]
    comparisons = Comparisons(Tally.of_successes(counts[0], 16), Tally.of_successes(counts[1], 2))
    alone = sign_flip(comparisons.difference(REWARD), 16).high
    finding = compute_findings(comparisons, CALIBRATED.rules(Question(Goal.IMPROVE)))[REWARD]
    assert (alone <= 0.05).mean() > 0.07
    assert (finding.gain_p <= 0.05).mean() < 0.05
    assert (finding.low > 0).mean() < 0.05


def test_only_the_candidate_needs_more_trials_while_the_baseline_has_more() -> None:
    random = Random(3)
    old = side(*[[float(random.random() < 0.4) for _ in range(16)] for _ in range(30)])
    new = side(*[[float(random.random() < 0.5) for _ in range(2)] for _ in range(30)])
    (needed,) = judged(old, new).settling
    assert needed.trials is not None
    assert needed.trials <= 16
    assert needed.simulations == 30 * (needed.trials - 2)
