"""Questions for harm alone: guard splits and goal `no-regression`, and the drop that they could detect."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.gate.calibrated import CALIBRATED, REWARD_DROP, Calibrated
from pytest_trace2evolve.gate.confirm import FreshResult, fresh_p
from pytest_trace2evolve.gate.decide import GateInput, decide
from pytest_trace2evolve.gate.intervals import GUARDED_DROP
from pytest_trace2evolve.gate.pairs import pair
from pytest_trace2evolve.gate.tallies import REGRESSIONS
from pytest_trace2evolve.records.verdict import (
    CheckStatus,
    Decision,
    Estimand,
    Goal,
    GuardAnswer,
    Label,
    Verdict,
)
from tests.gate.verdicts import check, judged, of, renamed
from tests.gate_helpers import Side, ids, lost, side, sim


def guard(old: Side, new: Side, **further: Any) -> Verdict:
    return judged(old, new, is_guard=True, **further)


def with_actions(records: Side) -> Side:
    return [
        sim(one.task_id, one.reward, trial=one.trial, read=(2, int(one.reward or 0) * 2)) for one in records
    ]


# Guards.


@pytest.mark.parametrize("actions", [False, True])
def test_six_of_ten_tasks_that_broke_are_never_no_harm(actions: bool) -> None:
    sides = of(10, broken=6, fails=4)
    verdict = guard(*(with_actions(one) if actions else one for one in sides))
    assert check(verdict, REWARD_DROP).p == pytest.approx(2**-6)
    assert verdict.decision in (Decision.DISCARD, Decision.INCONCLUSIVE)
    assert verdict.guard in (GuardAnswer.HARM_SHOWN, GuardAnswer.HARM_SUSPECTED)
    assert "no harm" not in verdict.reason
    if actions:
        assert verdict.reason == (
            "harm suspected: reward_drop (p = 0.0156), action_match (p = 0.0156), "
            "read_action_match (p = 0.0156), task_regressions (6 broken, 0 fixed); 10 tasks cannot detect "
            f"a drop of 20 points (detectable: {verdict.reason.partition('detectable: ')[2]}"
        )


@pytest.mark.parametrize(
    ("tasks", "broken", "answer", "decision"),
    [
        (100, 0, GuardAnswer.NO_HARM_DETECTED, None),
        (100, 4, GuardAnswer.NO_HARM_DETECTED, None),
        (100, 5, GuardAnswer.HARM_SUSPECTED, Decision.INCONCLUSIVE),
        (100, 12, GuardAnswer.HARM_SHOWN, Decision.DISCARD),
        (14, 0, GuardAnswer.NO_HARM_DETECTED, None),
        (13, 0, GuardAnswer.HARM_SUSPECTED, Decision.INCONCLUSIVE),
        (10, 6, GuardAnswer.HARM_SHOWN, Decision.DISCARD),
        (1, 0, GuardAnswer.HARM_SUSPECTED, Decision.INCONCLUSIVE),
    ],
)
def test_a_guard_gives_one_of_three_answers(
    tasks: int, broken: int, answer: GuardAnswer, decision: Decision | None
) -> None:
    verdict = guard(*of(tasks, broken))
    assert (verdict.guard, verdict.decision) == (answer, decision)
    assert verdict.reason.startswith(answer.value)
    assert verdict.to_json()["guard"] == answer.value


def test_a_small_guard_passes_if_its_own_bound_excludes_the_drop() -> None:
    """Of agents that lose 20 points, 4.4 % would show none of it on 14 tasks (.8^14)."""
    verdict = guard(*of(14, 0))
    assert verdict.reason == "no harm detected; a drop of more than 20 points is excluded"
    assert verdict.detectable is not None
    assert verdict.detectable > GUARDED_DROP


def test_a_guard_names_the_drop_that_it_could_have_detected() -> None:
    verdict = guard(*of(100, 0))
    assert verdict.detectable is not None
    assert verdict.reason == (
        f"no harm detected; a drop of {np.ceil(100 * verdict.detectable):.0f} points would have been"
    )
    assert check(verdict, REWARD_DROP).detectable == verdict.detectable <= GUARDED_DROP


def test_a_guard_with_too_few_tasks_says_how_many_are_enough() -> None:
    reason = guard(*of(10, 0)).reason
    assert reason.endswith("; about 32 tasks would detect it")
    assert "10 tasks cannot detect a drop of 20 points (detectable: 61 points or more)" in reason
    assert "1 task cannot detect a drop of 20 points (detectable: none)" in guard(*of(1, 0)).reason


def test_identical_evidence_needs_no_tasks() -> None:
    old = side(1, 0, 1)
    verdict = decide(
        GateInput(pair(old, old), CALIBRATED, goal=Goal.HOLD, label=Label.TRANSFER, is_guard=True)
    )
    assert (verdict.guard, verdict.decision) == (GuardAnswer.NO_HARM_DETECTED, None)


# Goal `no-regression`.


@pytest.mark.parametrize(
    ("broken", "decision"),
    [(0, Decision.PROMOTE), (4, Decision.PROMOTE), (5, Decision.DISCARD), (12, Decision.DISCARD)],
)
def test_no_regression_discards_a_drop_beyond_noise_and_passes_the_rest(
    broken: int, decision: Decision
) -> None:
    """Five of twelve tasks: p = 1/32, which `hold` leaves undecided."""
    verdict = judged(*of(12, broken), goal=Goal.NO_REGRESSION)
    assert verdict.decision is decision
    assert verdict.label is Label.DEVELOPMENT
    assert verdict.settling == ()
    if decision is Decision.PROMOTE:
        assert verdict.reason.startswith("no regression detected; a drop of ")
        assert verdict.detectable is not None
    assert judged(*of(12, 5)).decision is Decision.INCONCLUSIVE


@pytest.mark.parametrize("policy", [CALIBRATED, CALIBRATED.for_suite(Estimand.SUITE)])
@pytest.mark.parametrize("tasks", [1, 12, 20, 32])
def test_no_regression_discards_one_task_that_falls_from_all_of_six_trials_to_none(
    tasks: int, policy: Calibrated
) -> None:
    old, new = side(*[[1.0] * 6] * tasks), side([0.0] * 6, *[[1.0] * 6] * (tasks - 1))
    verdict = judged(old, new, Goal.NO_REGRESSION, policy)
    assert verdict.decision is Decision.DISCARD
    assert verdict.regressions == (old[0].task_id,)


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=3),
    st.sampled_from([CALIBRATED, CALIBRATED.for_suite(Estimand.SUITE)]),
)
def test_no_regression_never_passes_with_a_confirmed_regression(
    passes: list[tuple[int, int]], fresh: list[tuple[int, int]], policy: Calibrated
) -> None:
    """Live and recorded: what passes lists no confirmed task, and what is confirmed is discarded."""
    old, new = (side(*[[1.0] * n + [0.0] * (6 - n) for n in counts]) for counts in zip(*passes, strict=True))
    pairs = pair(old, renamed(new))
    if fresh:
        p = [float(fresh_p(8, n, 8, m)) for n, m in fresh]
        results = {name: FreshResult(each, each) for name, each in zip(pairs.names, p, strict=False)}
        pairs = pairs.with_fresh_results(results)
    verdict = decide(GateInput(pairs, policy, goal=Goal.NO_REGRESSION, label=Label.DEVELOPMENT))
    if verdict.regressions:
        assert verdict.decision is Decision.DISCARD
        assert REGRESSIONS in ids(verdict, CheckStatus.FAIL)


def test_no_regression_withholds_a_pass_if_too_much_was_lost() -> None:
    old, new = of(20, 1)
    one = [*new[:-1], lost(new[-1])]
    assert judged(old, one, Goal.NO_REGRESSION).decision is Decision.PROMOTE
    three = [*new[:-3], *(lost(record) for record in new[-3:])]
    verdict = judged(old, three, Goal.NO_REGRESSION)
    assert verdict.decision is Decision.INCONCLUSIVE
    assert ids(verdict, CheckStatus.UNDECIDED) == {"measured"}
    assert "no regression" not in verdict.reason
    # Above 90 %, what was lost must not have been able to show harm.
    old, new = of(60, 4)
    two = [*new[:-2], *(lost(record) for record in new[-2:])]
    assert ids(judged(old, two, Goal.NO_REGRESSION), CheckStatus.UNDECIDED) == {"worst_case"}


# Missing simulations.


def eight_fell() -> tuple[Side, Side, Side]:
    """40 tasks of two trials; a candidate that fails the first trial of eight; a baseline that lost those."""
    old = [sim(task, 1.0, trial=trial) for task in range(40) for trial in range(2)]
    are_lower = [each.trial == 0 and int(each.task_id) < 8 for each in old]
    new = [
        sim(each.task_id, 0.0 if down else 1.0, trial=each.trial)
        for each, down in zip(old, are_lower, strict=True)
    ]
    without = [
        sim(each.task_id, None, trial=0) if down else each for each, down in zip(old, are_lower, strict=True)
    ]
    return old, new, without


@pytest.mark.parametrize("goal", Goal)
def test_a_discard_that_the_missing_could_have_prevented_is_withheld(goal: Goal) -> None:
    old, new, without = eight_fell()
    assert judged(old, new, goal).decision is Decision.DISCARD
    verdict = judged(without, new, goal)
    assert (verdict.decision, check(verdict, "best_case").status) == (
        Decision.INCONCLUSIVE,
        CheckStatus.UNDECIDED,
    )
    assert check(verdict, "best_case").detail.startswith("would not fail: ")


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
    verdict = judged(old, new, lost_tasks={"0": "candidate"})
    assert (verdict.decision, check(verdict, "lost_again").detail) == (Decision.INCONCLUSIVE, "0 (candidate)")
