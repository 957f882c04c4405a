"""Agent errors are measured failures, and the gate watches them."""

import pytest

from pytest_trace2evolve.gate.calibrated import CALIBRATED
from pytest_trace2evolve.gate.policy import STRICT
from pytest_trace2evolve.gate.protocols import Policy
from pytest_trace2evolve.records.verdict import CheckStatus, Decision, Estimand, Goal
from tests.gate.verdicts import check, judged, policy_of
from tests.gate_helpers import Side, ids, sim

THESE_TASKS = CALIBRATED.for_suite(Estimand.SUITE)
TRIALS = 4


def run(tasks: int, passing: int, errors: dict[int, int] | None = None) -> Side:
    """So many tasks, of which the first ones pass; failed trials end in an agent error as often as stated."""
    return [
        sim(
            task,
            float(task < passing),
            trial=trial,
            end="agent_error" if task >= passing and trial < (errors or {}).get(task, 0) else "user_stop",
        )
        for task in range(tasks)
        for trial in range(TRIALS)
    ]


def names(policy: Policy, goal: Goal) -> set[str]:
    return {one.id for one in judged(run(10, 8), run(10, 8), goal, policy).checks}


@pytest.mark.parametrize("goal", Goal)
def test_evidence_without_agent_errors_has_no_check_of_them(goal: Goal) -> None:
    for policy in (CALIBRATED, THESE_TASKS, STRICT):
        assert not any("agent_error" in name for name in names(policy, goal))


@pytest.mark.parametrize("goal", Goal)
def test_new_errors_where_the_baseline_already_failed_are_harm(goal: Goal) -> None:
    verdict = judged(run(10, 8), run(10, 8, {8: 4, 9: 4}), goal, THESE_TASKS)
    found = check(verdict, "agent_errors")
    assert found.status is CheckStatus.FAIL
    assert found.p == pytest.approx(1 / 70**2)
    assert found.detail == "0 → 8 of 40 simulations"
    assert verdict.decision is Decision.DISCARD


def test_strict_fails_on_any_further_error() -> None:
    assert ids(judged(run(9, 6), run(9, 6, {7: 1}), Goal.HOLD, STRICT), CheckStatus.FAIL) == {
        "no_more_agent_errors"
    }
    assert judged(run(9, 6, {7: 1}), run(9, 6, {7: 1}), Goal.HOLD, STRICT).decision is Decision.PROMOTE


def test_a_policy_can_leave_the_check_out() -> None:
    for text in (
        "estimand = 'suite'\n[checks.agent_errors]\nwatch = false\n",
        "base = 'strict'\n[checks.no_more_agent_errors]\nwatch = false\n",
    ):
        verdict = judged(run(9, 6), run(9, 6, {7: 4, 8: 4}), Goal.HOLD, policy_of(text))
        assert not any("agent_errors" in one.id for one in verdict.checks)


@pytest.mark.parametrize("goal", Goal)
@pytest.mark.parametrize("policy", [CALIBRATED, THESE_TASKS, STRICT], ids=["tasks", "suite", "strict"])
def test_an_agent_that_always_fails_by_an_error_is_never_promoted(policy: Policy, goal: Goal) -> None:
    broken = run(10, 0, dict.fromkeys(range(10), TRIALS))
    for old in (run(10, 0), broken):
        verdict = judged(old, broken, goal, policy)
        assert verdict.decision is not Decision.PROMOTE
        assert "all_agent_errors" in ids(verdict, CheckStatus.UNDECIDED)


# A gain on exactly these tasks.


def coins(*passes: int, trials: int = TRIALS) -> Side:
    return [
        sim(task, float(trial < count), trial=trial)
        for task, count in enumerate(passes)
        for trial in range(trials)
    ]


def test_a_gain_on_these_tasks_has_the_p_of_the_permutation_test() -> None:
    verdict = judged(coins(0, 4, 4, 0), coins(4, 4, 4, 0), policy=THESE_TASKS)
    assert check(verdict, "reward_improved").p == pytest.approx(1 / 70)
    verdict = judged(coins(0, 2, 2, 0, trials=2), coins(2, 2, 2, 0, trials=2), policy=THESE_TASKS)
    assert check(verdict, "reward_improved").p == pytest.approx(1 / 6)
    assert verdict.decision is Decision.INCONCLUSIVE
