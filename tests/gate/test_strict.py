"""Policy `strict`: the published decisions, and each check by itself."""

import pytest

from pytest_trace2evolve.gate.pairs import pair
from pytest_trace2evolve.gate.policy import STRICT
from pytest_trace2evolve.records.verdict import CheckStatus, Decision, Goal, Label
from tests.gate_helpers import Side, ids, side, sim, strict

PASS, FAIL, ABSENT = CheckStatus.PASS, CheckStatus.FAIL, CheckStatus.NOT_APPLICABLE
PUBLISHED = {
    "reward_improved",
    "pass_rate_not_worse",
    "action_match_not_worse",
    "read_action_match_not_worse",
    "write_action_match_not_worse",
    "no_task_regressions",
    "no_max_steps",
}


def retail(passed: int) -> Side:
    """Tasks 100 to 113, of which the first `passed` pass."""
    return [sim(100 + n, float(n < passed), read=(2, 2), write=(1, int(n < passed))) for n in range(14)]


def airline(passed: str, last_reads: int) -> Side:
    """Tasks 40 to 49; six name actions, 47/12 of which are matched where the last has one read matched."""
    shares = {"40": (4, 4), "41": (3, 2), "43": (2, 1), "45": (6, 3), "46": (1, 1)}
    actions = {task: {"write": count} for task, count in shares.items()} | {"49": {"read": (4, last_reads)}}
    return [sim(task, float(str(task)[1] in passed), **actions.get(str(task), {})) for task in range(40, 50)]


def at_max_steps(task: int, reward: float = 0.0) -> Side:
    return [sim(task, reward, end="max_steps")]


@pytest.mark.parametrize(
    ("passed", "label", "figure"),
    [(3, Label.CLEAN, "0.214"), (6, Label.DEVELOPMENT, "0.429")],
    ids=["v5", "v6"],
)
def test_published_retail_gain_is_promoted_under_the_label_it_came_with(passed, label, figure):
    verdict = strict(retail(0), retail(passed), label=label)
    assert verdict.decision is Decision.PROMOTE
    assert (verdict.label, verdict.policy, verdict.tasks) == (label, "strict", 14)
    assert f"{verdict.baseline.reward:.3f} → {verdict.candidate.reward:.3f}" == f"0.000 → {figure}"
    assert ids(verdict, PASS) == PUBLISHED
    assert verdict.fixed == tuple(str(100 + n) for n in range(passed))


def test_published_airline_decline_is_discarded_though_its_action_match_rose():
    verdict = strict(airline("012345", last_reads=1), airline("0126", last_reads=2))
    old, new = verdict.baseline, verdict.candidate
    assert verdict.decision is Decision.DISCARD
    assert f"{old.reward:.3f} {new.reward:.3f}" == "0.600 0.400"
    assert f"{old.action_match:.3f} {new.action_match:.3f}" == "0.653 0.694"
    assert f"{old.read_action_match:.3f} {new.read_action_match:.3f}" == "0.250 0.500"
    assert ids(verdict, FAIL) == {"reward_improved", "pass_rate_not_worse", "no_task_regressions"}
    assert (verdict.broken, verdict.fixed) == (("43", "44", "45"), ("46",))


def test_published_v3_is_discarded_for_a_max_step_failure_and_nothing_else():
    verdict = strict(side(0, 0, 0, 1), side(1, 1, 0, 1)[:2] + at_max_steps(2) + side(1, start=3))
    assert verdict.decision is Decision.DISCARD
    assert verdict.candidate.reward > verdict.baseline.reward
    assert ids(verdict, FAIL) == {"no_max_steps"}
    assert (verdict.baseline.max_steps, verdict.candidate.max_steps) == (0, 1)


def did(**actions: tuple[int, int | None]) -> Side:
    return [sim(1, **actions)]


CASES = [
    ("reward_improved", PASS, side(0.5), side(0.6)),
    ("reward_improved", FAIL, side(0.5), side(0.5)),
    ("reward_improved", ABSENT, side(None), side(1)),
    ("reward_improved", FAIL, side(0.3), side(0.1 + 0.2)),
    ("reward_not_worse", PASS, side(0.1 + 0.2), side(0.3)),
    ("reward_not_worse", FAIL, side(1, 0.5), side(1, 0.4)),
    ("reward_not_worse", ABSENT, side(0), side(None)),
    ("pass_rate_not_worse", PASS, side(1, 0), side(0, 1)),
    ("pass_rate_not_worse", FAIL, side(1, 0), side(0.9, 0.9)),
    ("pass_rate_not_worse", ABSENT, side(1), side(None)),
    ("action_match_not_worse", PASS, did(read=(3, 1)), did(read=(3, 1))),
    ("action_match_not_worse", FAIL, did(read=(1, 1), write=(2, 1)), did(read=(1, 1), write=(2, 0))),
    ("action_match_not_worse", FAIL, did(generic=(1, 1)), did(generic=(1, 0))),
    ("action_match_not_worse", ABSENT, did(read=(0, 0)), did(read=(0, 0))),
    ("action_match_not_worse", ABSENT, did(read=(1, 1)), did(read=(1, None))),
    ("read_action_match_not_worse", PASS, did(read=(2, 1)), did(read=(2, 2))),
    ("read_action_match_not_worse", FAIL, did(read=(2, 2), write=(2, 0)), did(read=(2, 1), write=(2, 2))),
    ("read_action_match_not_worse", ABSENT, did(write=(1, 1)), did(write=(1, 0))),
    ("write_action_match_not_worse", PASS, did(write=(2, 1)), did(write=(2, 1))),
    ("write_action_match_not_worse", FAIL, did(read=(2, 0), write=(2, 2)), did(read=(2, 2), write=(2, 1))),
    ("write_action_match_not_worse", ABSENT, did(read=(1, 1)), did(read=(1, 0))),
    ("no_task_regressions", PASS, side(0, 1), side(1, 1)),
    ("no_task_regressions", FAIL, side(1, 0, 0), side(0, 1, 1)),
    ("no_task_regressions", ABSENT, side(1), side(None)),
    ("no_max_steps", PASS, at_max_steps(1), side(0, start=1)),
    ("no_max_steps", FAIL, at_max_steps(1), at_max_steps(1, 1.0)),
]


@pytest.mark.parametrize(("name", "status", "old", "new"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_each_check_alone(name, status, old, new):
    checks = {check.id: check for goal in Goal for check in STRICT.checks(goal)}
    result = checks[name].evaluate(pair(old, new))
    assert (result.id, result.status) == (name, status)
    assert (result.estimate is None) == (status is ABSENT)


@pytest.mark.parametrize(
    ("trials", "passes"),
    [([1, 1, 0], True), ([1, 0, 0], False), ([1, 0], False), ([1, None, None], True), ([1, 0, None], False),
     ([0.999], False), ([1 - 1e-7], True)],
)  # fmt: skip
def test_a_task_passes_when_more_than_half_of_its_measured_trials_do(trials, passes):
    verdict = strict(side(trials), side(0))
    assert (verdict.broken == ("0",)) is passes
    assert verdict.baseline.pass_rate == float(passes)


def test_goal_hold_asks_for_a_reward_not_worse_in_place_of_a_better_one():
    same = side(1, 0)
    assert strict(same, same, Goal.IMPROVE).decision is Decision.DISCARD
    held = strict(same, same, Goal.HOLD)
    assert held.decision is Decision.PROMOTE
    assert {check.id for check in held.checks} == PUBLISHED - {"reward_improved"} | {"reward_not_worse"}
    assert strict(side(1, 0.5), side(1, 0), Goal.HOLD).decision is Decision.DISCARD


@pytest.mark.parametrize(
    ("old", "new", "decision"),
    [
        (side(1, 1), side(1, 0), Decision.DISCARD),
        (side(0), at_max_steps(0), Decision.DISCARD),
        (side(1, 0), side(1, 1), None),
        (side(1, 0), side(1, 0), None),
        # A guard that compared nothing could have detected nothing.
        (side(1), [], Decision.INCONCLUSIVE),
        # What was lost could have been harm: it withholds a promotion.
        (side(1), side(None), Decision.INCONCLUSIVE),
        (side(1, 0), side(1, None), Decision.INCONCLUSIVE),
    ],
)
def test_a_guard_discards_on_harm_and_otherwise_decides_nothing(old, new, decision):
    verdict = strict(old, new, is_guard=True)
    assert (verdict.decision, verdict.goal) == (decision, Goal.HOLD)
    cut_short = strict(old, new, is_guard=True, partial_reason="stopped by -x")
    assert cut_short.decision is Decision.INCONCLUSIVE


@pytest.mark.parametrize(
    ("old", "new"),
    [([], []), (side(1), side(1, start=9)), (side(None, 1), side(1, None)), (side(0), at_max_steps(1))],
)
def test_nothing_in_common_is_inconclusive_and_says_so(old, new):
    verdict = strict(old, new)
    assert verdict.decision is Decision.INCONCLUSIVE
    assert verdict.reason == "no task was measured on both sides"


def test_tasks_left_out_are_named_with_the_reason_and_the_rest_is_compared():
    old = [sim(10), sim(9), sim("odd", 0), sim(2, 1, digest="before")]
    new = [sim("odd", 1), sim(2, 0, digest="after"), sim(30)]
    verdict = strict(old, new)
    assert verdict.left_out == (
        "2: the two sides ran different content under this id",
        "9: only the baseline ran it",
        "10: only the baseline ran it",
        "30: only the candidate ran it",
    )
    assert (verdict.decision, verdict.tasks, verdict.fixed) == (Decision.PROMOTE, 1, ("odd",))


def test_below_ninety_per_cent_measured_nothing_is_promoted():
    enough, short = [None, *[0] * 9], [None, None, *[0] * 8]
    promoted = strict(side(*enough), side(*[1] * 10))
    assert promoted.decision is Decision.PROMOTE
    assert {"measured", "worst_case"} <= ids(promoted, PASS)
    assert (promoted.baseline.measured, promoted.baseline.missing) == (9, 1)
    withheld = strict(side(*short), side(*[1] * 10))
    assert withheld.decision is Decision.INCONCLUSIVE
    assert ids(withheld, CheckStatus.UNDECIDED) == {"measured"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (side(None, *[0] * 10), side(0, *[1] * 10), "no_task_regressions"),
        (side(None, *[1] * 10), side(0.9, *[1] * 10),
         "reward_not_worse, pass_rate_not_worse, no_task_regressions"),
        (side(*[0] * 10, 1), side(*[1] * 10, None), "no_task_regressions, no_max_steps"),
        ([sim(0, None, read=(2, None)), *side(*[1] * 9, start=1)],
         [sim(0, read=(2, 1)), *side(*[1] * 9, start=1)],
         "action_match_not_worse, read_action_match_not_worse"),
        ([sim(0, 0, write=(2, 1)), *side(*[1] * 9, start=1)],
         [sim(0, None, write=(2, None)), *side(*[1] * 9, start=1)],
         "action_match_not_worse, write_action_match_not_worse, no_max_steps"),
    ],
)  # fmt: skip
def test_a_promotion_that_missing_simulations_could_overturn_is_withheld(old, new, message):
    verdict = strict(old, new, Goal.HOLD)
    assert not ids(verdict, FAIL)
    assert verdict.decision is Decision.INCONCLUSIVE
    worst_case = next(check for check in verdict.checks if check.id == "worst_case")
    assert worst_case.status is CheckStatus.UNDECIDED
    assert worst_case.detail.endswith(f": {message}")
