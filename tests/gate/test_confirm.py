"""Fresh trials and second tosses: what confirms a decrease, what clears it, what a promotion rests on."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import comb
from scipy.stats import fisher_exact

from benchmarks import stale_baselines
from benchmarks.stale_baselines import contradicting_share
from pytest_trace2evolve.gate import confirm
from pytest_trace2evolve.gate.calibrated import CALIBRATED
from pytest_trace2evolve.gate.confirm import (
    MAX_FRESH_TRIALS,
    STEP_TRIALS,
    FreshResult,
    find_contradiction,
    fresh_p,
    fresh_result,
    next_step_trials,
    without_second_tosses,
)
from pytest_trace2evolve.gate.decide import GateInput, decide
from pytest_trace2evolve.gate.pairs import pair
from pytest_trace2evolve.gate.significance import fisher
from pytest_trace2evolve.records.evidence import FreshTrials, SimulationEvidence
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.verdict import Decision, Goal, Label
from tests.gate_helpers import sim

PASSES = np.arange(STEP_TRIALS + 1)
OUTCOMES = np.meshgrid(PASSES, PASSES, PASSES, PASSES, indexing="ij")
P = fresh_p(*OUTCOMES)
"""The p-value of each outcome: passes of baseline and candidate in the first step, then in the second."""

RATES = st.floats(0.0, 1.0)
DOCS = Path(__file__).resolve().parents[2] / "docs"


def counts(rate: float) -> np.ndarray:
    """The probability of each number of passes in one step; scipy's own fails at rates next to 0."""
    return comb(STEP_TRIALS, PASSES) * rate**PASSES * (1 - rate) ** (STEP_TRIALS - PASSES)


def chances(baseline: float, candidate: float) -> np.ndarray:
    """The probability of each outcome."""
    old, new = counts(baseline), counts(candidate)
    return np.einsum("i,j,k,l->ijkl", old, new, old, new)


@given(RATES, RATES)
def test_no_level_is_exceeded_at_any_rates_without_a_fall(one: float, other: float) -> None:
    """Exactly, over all 6561 outcomes: P(p ≤ u) ≤ u where the candidate passes as often or more."""
    chance = chances(min(one, other), max(one, other)).ravel()
    order = np.argsort(P, axis=None)
    p, reached = P.ravel()[order], np.cumsum(chance[order])
    last = np.append(p[1:] != p[:-1], True)
    assert (reached[last] <= p[last] + 1e-12).all()


def fishers() -> np.ndarray:
    """What Fisher's test makes of both steps: all trials, and what the first look may have used up."""
    first = fisher(OUTCOMES[0], STEP_TRIALS, OUTCOMES[1], STEP_TRIALS)
    both = fisher(OUTCOMES[0] + OUTCOMES[2], MAX_FRESH_TRIALS, OUTCOMES[1] + OUTCOMES[3], MAX_FRESH_TRIALS)
    p = np.where(first >= confirm.MIN_CLEARING_P, 1.0, np.minimum(1.0, both + confirm.MAX_CONFIRMING_P))
    return np.where(first <= confirm.MAX_CONFIRMING_P, first, p)


def output_of(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")


@pytest.mark.parametrize(
    ("fall", "parts", "least"), [((0.9, 0.2), "20", 0.9), ((0.9, 0.2), "20/6", 0.8), ((0.9, 0.3), "20", 0.75)]
)
def test_a_real_fall_is_confirmed_as_often_as_the_docs_say(
    fall: tuple[float, float], parts: str, least: float
) -> None:
    """The exact test finds it more often than Fisher's does, in two steps or in the first alone."""
    level = 0.05 / np.prod([int(part) for part in parts.split("/")])
    chance = chances(*fall)
    one_step = fisher(OUTCOMES[0], STEP_TRIALS, OUTCOMES[1], STEP_TRIALS)
    found = [float(chance[p <= level].sum()) for p in (fishers(), P, one_step)]
    assert found[1] > max(least, found[0]) > found[2]
    name = " → ".join(f"{rate:.1f}".lstrip("0") for rate in fall)
    row = " | ".join([f"| {name} at .05/{parts}", *map(output_of, found[:2])]) + " |"
    assert row in (DOCS / "decisions.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("passed", "more"),
    [((8, 0), 0), ((8, 1), 8), ((7, 2), 8), ((8, 6), 8), ((8, 7), 0), ((5, 5), 0), ((0, 8), 0), ((1, 0), 0)],
)
def test_a_second_step_is_for_what_is_unclear(passed: tuple[int, int], more: int) -> None:
    assert next_step_trials(0, 0, 0) == STEP_TRIALS
    assert next_step_trials(*passed, STEP_TRIALS) == more
    assert next_step_trials(*passed, MAX_FRESH_TRIALS) == 0


def test_a_pass_more_on_the_baseline_or_less_on_the_candidate_never_raises_p() -> None:
    for side, better in ((0, -1), (1, 1), (2, -1), (3, 1)):
        assert (np.diff(P, axis=side) * better >= 0).all()


def test_the_second_step_counts_only_where_the_first_went_on() -> None:
    assert fresh_p(8, 0) == fresh_p(8, 0, 0, 8) < 2e-5
    assert fresh_p(5, 5, 8, 0) == 1.0
    assert fresh_p([8, 7], [1, 2], [8, 8], [1, 3]).shape == (2,)
    assert fresh_p(7, 2, 8, 1) < fresh_p(7, 2, 7, 1) < 0.01


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 12), st.integers(1, 12))
def test_fishers_p_is_scipys(passed: int, other: int, more: int, further: int) -> None:
    trials = max(passed, more), max(other, further)
    table = [[passed, trials[0] - passed], [other, trials[1] - other]]
    expected = fisher_exact(table, alternative="greater").pvalue
    assert fisher(passed, trials[0], other, trials[1]) == pytest.approx(expected, rel=1e-9)


def trials(*rewards: float | None, start: int = 0) -> tuple[SimulationEvidence, ...]:
    return tuple(sim("t", reward, trial=start + number) for number, reward in enumerate(rewards))


def test_steps_are_told_apart_by_trial_whatever_the_order() -> None:
    old = trials(*[1.0] * 7, 0.0, *[1.0] * 8, start=100)
    new = trials(*[0.0] * 6, 1.0, 1.0, *[0.0] * 8)
    result = fresh_result(FreshTrials(baseline=old[::-1], candidate=new[::-1]))
    assert result.p == result.worst_p == fresh_p(7, 2, 8, 0)


def test_what_was_lost_counts_against_a_fall_and_is_said() -> None:
    old, new = trials(*[1.0] * 7, None, *[1.0] * 8), trials(*[0.0] * 16)
    result = fresh_result(FreshTrials(baseline=old, candidate=new))
    assert result.p == fresh_p(7, 0, 8, 0) > result.worst_p == fresh_p(8, 0)
    result = fresh_result(FreshTrials(baseline=trials(*[1.0] * 8), candidate=trials(*[None] * 8)))
    assert (result.p, result.worst_p) == (1.0, fresh_p(8, 0))


@given(st.lists(st.sampled_from([0.0, 1.0, None]), min_size=32, max_size=32), st.data())
def test_losing_more_never_lowers_p_nor_raises_what_it_might_have_been(
    rewards: list[float | None], data: st.DataObject
) -> None:
    """So a simulation that infrastructure takes neither confirms a fall nor clears one."""
    lost = data.draw(st.sets(st.integers(0, 31)))
    fewer = [None if place in lost else reward for place, reward in enumerate(rewards)]
    before, after = (
        fresh_result(FreshTrials(baseline=trials(*those[:16]), candidate=trials(*those[16:])))
        for those in (rewards, fewer)
    )
    assert after.p >= before.p
    assert after.worst_p <= before.worst_p


# Fresh trials of a baseline that contradict its recorded trials.


def contradiction(recorded: list[tuple[int, int]], fresh: dict[int, int]) -> str:
    """The finding on tasks with so many passes of so many recorded trials, and so many of 8 fresh passes."""
    trials = {
        str(task): tuple(sim(task, float(number < passed), trial=number) for number in range(STEP_TRIALS))
        for task, passed in fresh.items()
    }
    return find_contradiction(
        [str(task) for task in range(len(recorded))],
        np.array([passed for passed, _ in recorded]),
        np.array([measured for _, measured in recorded]),
        {task: FreshTrials(baseline=records, candidate=()) for task, records in trials.items()},
    )


@given(RATES, st.integers(1, 9))
def test_a_task_contradicts_itself_no_more_often_than_its_p_says(rate: float, trials: int) -> None:
    """Exactly, with the selection: only a task that passes more than half of its recorded trials is rerun."""
    recorded = comb(trials, range(trials + 1)) * [
        rate**k * (1 - rate) ** (trials - k) for k in range(trials + 1)
    ]
    flagged = range(trials // 2 + 1, trials + 1)
    outcomes = [
        (confirm._contradicting_p(number, trials, passed), recorded[number] * counts(rate)[passed])
        for number in flagged
        for passed in PASSES.tolist()
    ]
    for level in {p for p, _ in outcomes}:
        assert sum(chance for p, chance in outcomes if p <= level) <= level + 1e-9


@pytest.mark.parametrize("name", stale_baselines.RATES)
@pytest.mark.parametrize(("tasks", "trials"), [(40, 4), (12, 4), (12, 2), (40, 1)])
def test_an_unchanged_baseline_seldom_contradicts_itself(name: str, tasks: int, trials: int) -> None:
    for is_broken in (False, True):
        share = contradicting_share(name, trials, tasks, is_candidate_broken=is_broken, repeats=2000)
        assert share <= (0.03 if is_broken else 0.02)


@pytest.mark.parametrize("name", ["uniform", "near 0 or 1", "all tasks at .9"])
def test_a_changed_baseline_contradicts_itself(name: str) -> None:
    for trials in (1, 2, 4):
        assert contradicting_share(name, trials, 40, fall=1.0, repeats=500) >= 0.95
    assert contradicting_share(name, 4, 40, fall=0.5, repeats=500) >= 0.9


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, STEP_TRIALS), st.booleans()), max_size=8))
def test_fewer_fresh_passes_never_hide_a_contradiction(tasks: list[tuple[int, int, bool]]) -> None:
    recorded = [(passed, 4) for passed, _, _ in tasks]
    fresh = {task: passed for task, (_, passed, is_flagged) in enumerate(tasks) if is_flagged}
    if contradiction(recorded, fresh):
        assert contradiction(recorded, {task: max(passed - 1, 0) for task, passed in fresh.items()})


def test_one_task_can_contradict_by_itself() -> None:
    assert "4 of 4 recorded trials of the baseline passed, but 0 of 8 fresh" in contradiction(
        [(4, 4)] * 12, {3: 0}
    )
    assert not contradiction([(4, 4)] * 12, {3: 2})
    assert not contradiction([(3, 4)] * 12, {3: 0})
    assert not contradiction([(1, 1)] * 12, {3: 0})


def test_only_the_first_step_counts_and_a_lost_trial_as_passed() -> None:
    first = [sim(0, 0.0, trial=number) for number in range(STEP_TRIALS)]
    second = [sim(0, 1.0, trial=number) for number in range(STEP_TRIALS, MAX_FRESH_TRIALS)]
    numbers = ["0"], np.array([6]), np.array([6])
    assert find_contradiction(*numbers, {"0": FreshTrials(baseline=(*first, *second), candidate=())})
    lost = [sim(0, None, trial=number) for number in range(STEP_TRIALS)]
    assert not find_contradiction(*numbers, {"0": FreshTrials(baseline=tuple(lost), candidate=())})
    assert not find_contradiction([], np.array([]), np.array([]), {})


# Second tosses: simulations that were lost before they were measured.


def one(side: str, task: int, reward: float, lost: int = 0, trial: int = 0) -> SimulationEvidence:
    return SimulationEvidence(
        id=f"{side}-{task}-{trial}",
        task_id=str(task),
        trial=trial,
        status=Status.MEASURED,
        reward=reward,
        termination_reason="user_stop",
        task_digest=f"task {task}",
        lost=lost,
    )


def masked(records: Sequence[SimulationEvidence]) -> list[str]:
    return [record.id for record in records if record.status is not Status.MEASURED]


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        ({}, []),
        ({3: 1}, []),
        ({3: 2}, ["new-3-0"]),
        ({0: 1}, []),  # it failed again: nothing was gained
        ({0: 1, 3: 1}, []),
        ({3: 1, 4: 1}, ["new-3-0", "new-4-0"]),
    ],
)
def test_one_second_toss_may_count_as_measured(lost: dict[int, int], expected: list[str]) -> None:
    new = [one("new", task, float(task > 0), lost.get(task, 0)) for task in range(8)]
    assert masked(without_second_tosses([one("old", task, 0.0) for task in range(8)], new)[1]) == expected


def test_a_task_that_fails_otherwise_is_suspicious() -> None:
    new = [one("new", 0, 1.0, lost=1), one("new", 0, 0.0, trial=1), one("new", 1, 1.0)]
    old = [one("old", 0, 0.0, lost=1), one("old", 0, 1.0, trial=1), one("old", 1, 1.0)]
    sides = without_second_tosses(old, new)
    assert [masked(side) for side in sides] == [["old-0-0"], ["new-0-0"]]


RECORDS = st.lists(st.tuples(st.booleans(), st.integers(0, 2)), min_size=6, max_size=12)


@given(RECORDS, RECORDS, st.sampled_from(Goal))
def test_a_second_toss_only_withholds(
    old: list[tuple[bool, int]], new: list[tuple[bool, int]], goal: Goal
) -> None:
    """With it nothing is promoted that is not promoted without it, and a discard stays."""
    size = min(len(old), len(new))
    sides = [
        [one(side, task, float(passes), lost) for task, (passes, lost) in enumerate(outcomes[:size])]
        for side, outcomes in (("old", old), ("new", new))
    ]
    plain, bounded = (
        decide(
            GateInput(
                pair(*sides),
                CALIBRATED,
                goal=goal,
                label=Label.DEVELOPMENT,
                bounded_pairs=pair(*without_second_tosses(*sides)) if is_bounded else None,
            )
        )
        for is_bounded in (False, True)
    )
    assert plain.decision is not None
    assert bounded.decision is not None
    if plain.decision is Decision.DISCARD:
        assert bounded.decision is Decision.DISCARD
    assert bounded.decision.rank <= plain.decision.rank
    assert plain.candidate == bounded.candidate, "a bound changes no figure"


def test_a_fresh_trial_that_was_tossed_again_does_not_clear_a_task() -> None:
    def fresh(lost: int) -> FreshTrials:
        passing = [one("old", 0, 1.0, trial=trial) for trial in range(8)]
        # Six trials were lost, and passed when they were made again.
        new = [one("new", 0, 1.0, lost * (trial > 1), trial) for trial in range(8)]
        return FreshTrials(baseline=tuple(passing), candidate=tuple(new))

    plain, tossed = fresh_result(fresh(0)), fresh_result(fresh(1))
    assert plain.p == plain.worst_p == tossed.p
    assert tossed.worst_p < tossed.p


def test_what_lost_fresh_trials_might_have_shown_withholds_a_promotion() -> None:
    old, new = ([sim(str(task), 1.0, trial=trial) for task in range(40) for trial in range(2)] for _ in "ab")
    new = [sim(each.task_id, float(each.task_id != "0"), trial=each.trial) for each in new]
    ranks = []
    for worst_p in (1.0, 0.0):
        pairs = pair(old, new).with_fresh_results({"0": FreshResult(1.0, worst_p)})
        verdict = decide(GateInput(pairs, CALIBRATED, goal=Goal.NO_REGRESSION, label=Label.DEVELOPMENT))
        ranks.append(verdict.decision)
    assert ranks == [Decision.PROMOTE, Decision.INCONCLUSIVE]
