"""Simulations that are missing: they withhold a discard as they withhold a promotion."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.gate.decide import decide
from pytest_trace2evolve.gate.pairs import pair
from pytest_trace2evolve.gate.policy import CALIBRATED, STRICT
from pytest_trace2evolve.records.verdict import CheckStatus, Decision, Goal, GuardAnswer, Label, Verdict
from tests.gate_helpers import Side, sim

GOALS = st.sampled_from(Goal)


def judged(
    old: Side, new: Side, goal: Goal = Goal.IMPROVE, policy: Any = CALIBRATED, **further: Any
) -> Verdict:
    renamed = [one.model_copy(update={"id": f"new-{one.id}"}) for one in new]
    return decide(pair(old, renamed), policy, goal=goal, label=Label.CLEAN, **further)


def sides(measured: int, reward: float = 0.0) -> tuple[Side, Side]:
    """40 tasks that all pass on the baseline; of the candidate some are measured, and the others are lost."""
    old = [sim(task, 1.0, trial=trial) for task in range(40) for trial in range(2)]
    new = [
        sim(task, reward if task < measured else None, trial=trial)
        for task in range(40)
        for trial in range(2)
    ]
    return old, new


def check(verdict: Verdict, name: str) -> Any:
    return next((one for one in verdict.checks if one.id == name), None)


@pytest.mark.parametrize("policy", [CALIBRATED, STRICT])
@pytest.mark.parametrize("goal", Goal)
def test_what_fits_on_a_full_disk_discards_nothing(goal: Goal, policy: Any) -> None:
    """Only the short traces fit, and they are those that fail: the candidate may be better."""
    old = [sim(task, float(trial == 2), trial=trial) for task in range(40) for trial in range(3)]
    new = [sim(task, None if trial else 0.0, trial=trial) for task in range(40) for trial in range(3)]
    verdict = judged(old, new, goal, policy)
    assert any(one.status is CheckStatus.FAIL for one in verdict.checks)
    assert verdict.decision is Decision.INCONCLUSIVE


@pytest.mark.parametrize("goal", Goal)
def test_a_discard_that_the_missing_could_have_prevented_is_withheld(goal: Goal) -> None:
    old = [sim(task, 1.0, trial=trial) for task in range(40) for trial in range(2)]
    new = [
        sim(task, 0.0 if trial == 0 and task < 8 else 1.0, trial=trial)
        for task in range(40)
        for trial in range(2)
    ]
    assert judged(old, new, goal).decision is Decision.DISCARD
    lost = [
        sim(one.task_id, None, trial=one.trial) if one.trial == 0 and int(one.task_id) < 8 else one
        for one in old
    ]
    verdict = judged(lost, new, goal)
    assert (verdict.decision, check(verdict, "best_case").status) == (
        Decision.INCONCLUSIVE,
        CheckStatus.UNDECIDED,
    )
    assert check(verdict, "best_case").detail.startswith("would not fail: ")


@pytest.mark.parametrize("goal", Goal)
def test_a_discard_stands_that_nothing_missing_could_have_prevented(goal: Goal) -> None:
    """Also with far less than 90 % measured."""
    verdict = judged(*sides(24), goal)
    assert verdict.decision is Decision.DISCARD
    assert check(verdict, "best_case").status is CheckStatus.PASS


def test_a_guard_is_withheld_too() -> None:
    old = [sim(task, 1.0, trial=trial) for task in range(40) for trial in range(2)]
    new = [
        sim(task, 0.0 if trial == 0 and task < 8 else 1.0, trial=trial)
        for task in range(40)
        for trial in range(2)
    ]
    lost = [
        sim(one.task_id, None, trial=one.trial) if one.trial == 0 and int(one.task_id) < 8 else one
        for one in old
    ]
    assert judged(old, new, Goal.HOLD, guard=True).guard is GuardAnswer.HARM_SHOWN
    verdict = judged(lost, new, Goal.HOLD, guard=True)
    assert (verdict.guard, verdict.decision) == (GuardAnswer.HARM_SUSPECTED, Decision.INCONCLUSIVE)
    assert "best_case" in verdict.reason


@pytest.mark.parametrize("which", [0, 1])
def test_a_task_that_is_lost_in_every_attempt_blocks_a_promotion_by_name(which: int) -> None:
    old = [sim(task, 0.0, trial=trial) for task in range(40) for trial in range(2)]
    new = [sim(task, 1.0, trial=trial) for task in range(40) for trial in range(2)]
    assert judged(old, new).decision is Decision.PROMOTE
    both = [old, new]
    both[which] = [sim("7", None, trial=one.trial) if one.task_id == "7" else one for one in both[which]]
    verdict = judged(*both)
    assert verdict.decision is Decision.INCONCLUSIVE
    side = ("baseline", "candidate")[which]
    assert check(verdict, "worst_case").status is CheckStatus.PASS, "the share that is measured is enough"
    assert check(verdict, "lost_again").detail == f"7 ({side})"
    assert verdict.reason == f"lost in every attempt: simulations of 7 ({side})"
    assert {"id": "lost_again", "detail": f"7 ({side})"}.items() <= verdict.to_json()["checks"][-1].items()


def test_a_trial_that_two_runs_lost_blocks_a_promotion_by_name() -> None:
    old = [sim(task, 0.0, trial=trial) for task in range(40) for trial in range(2)]
    new = [sim(task, 1.0, trial=trial) for task in range(40) for trial in range(2)]
    new[0] = sim(0, None)
    assert judged(old, new).decision is Decision.PROMOTE
    verdict = judged(old, new, lost={"0": "candidate"})
    assert (verdict.decision, check(verdict, "lost_again").detail) == (Decision.INCONCLUSIVE, "0 (candidate)")


RECORDS = st.lists(st.tuples(st.integers(0, 7), st.sampled_from([0.0, 1.0, None])), min_size=1, max_size=24)


def numbered(found: list[tuple[int, float | None]]) -> Side:
    trials: dict[int, int] = {}
    records = []
    for task, reward in found:
        trials[task] = trials.get(task, -1) + 1
        records.append(
            sim(task, reward, trial=trials[task], read=(1, None if reward is None else int(reward)))
        )
    return records


def filled(side: Side, reward: float) -> Side:
    return [
        one if one.reward is not None else sim(one.task_id, reward, trial=one.trial, read=(1, int(reward)))
        for one in side
    ]


@settings(max_examples=150)
@given(RECORDS, RECORDS, GOALS, st.booleans(), st.sampled_from([CALIBRATED, STRICT]))
def test_a_discard_holds_with_the_missing_at_their_best(
    old: list[Any], new: list[Any], goal: Goal, guard: bool, policy: Any
) -> None:
    """And without anything missing nothing is withheld and nothing is asked."""
    sides = numbered(old), numbered(new)
    verdict = judged(*sides, goal, policy, guard=guard)
    best = judged(filled(sides[0], 0.0), filled(sides[1], 1.0), goal, policy, guard=guard)
    whole = all(one.reward is not None for side in sides for one in side)
    if verdict.decision is Decision.DISCARD:
        assert best.decision is Decision.DISCARD or not (best.checks and verdict.checks)
    if whole:
        assert not {"best_case", "worst_case", "measured", "lost_again"} & {one.id for one in verdict.checks}
        assert best == verdict
