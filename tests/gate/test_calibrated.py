"""Policy `calibrated`: what it says of recorded runs of real models, its checks one by one, and its files."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.gate.calibrated import CALIBRATED
from pytest_trace2evolve.gate.claims import AlphaSpending
from pytest_trace2evolve.gate.columns import Columns
from pytest_trace2evolve.gate.confirm import FreshResult
from pytest_trace2evolve.gate.decide import GateInput, decide
from pytest_trace2evolve.gate.pairs import pair
from pytest_trace2evolve.records.verdict import (
    CheckStatus,
    Decision,
    Goal,
    Label,
    Verdict,
)
from pytest_trace2evolve.session.compare import read_side
from pytest_trace2evolve.worlds.registry import Worlds
from tests.gate.verdicts import check, judged, policy_of, renamed
from tests.gate_helpers import Side, ids, side, sim

PASS, FAIL, OPEN, ABSENT = (
    CheckStatus.PASS,
    CheckStatus.FAIL,
    CheckStatus.UNDECIDED,
    CheckStatus.NOT_APPLICABLE,
)


# Recorded runs of real models.

RECORDED = {
    ("telecom-gpt-4.1", "telecom-gpt-4.1-sft"): (
        Decision.INCONCLUSIVE,
        (12, 0, 0),
        {"max_steps": OPEN, "reward_improved": PASS},
    ),
    ("telecom-solo-gpt-4.1", "telecom-solo-gpt-4.1-sft"): (
        Decision.PROMOTE,
        (16, 2, 2),
        {"reward_improved": PASS},
    ),
    ("telecom-gpt-4.1-sft", "telecom-gpt-4.1"): (Decision.DISCARD, (0, 12, 12), {"reward_improved": FAIL}),
    ("telecom-solo-gpt-4.1-sft", "telecom-solo-gpt-4.1"): (
        Decision.DISCARD,
        (2, 16, 16),
        {"reward_improved": FAIL},
    ),
    ("retail-gpt-4.1", "retail-gpt-4.1-sft"): (Decision.INCONCLUSIVE, (6, 6, 6), {"reward_improved": OPEN}),
    ("retail-gpt-4.1-mini-base", "retail-gpt-4.1-mini-policy-v1"): (
        Decision.INCONCLUSIVE,
        (16, 19, 19),
        {"reward_improved": OPEN},
    ),
    ("retail-gpt-4.1-mini-base", "retail-gpt-4.1-mini-policy-v2"): (
        Decision.DISCARD,
        (21, 14, 14),
        {"reward_improved": OPEN, "invariants": FAIL},
    ),
}


@pytest.fixture(scope="module")
def side_of(recorded: Path, worlds: Worlds) -> Callable[..., Columns]:
    """The scored simulations of recorded files, each scored once."""

    @cache
    def columns_of(*names: str) -> Columns:
        return read_side([recorded / f"{name}.json.gz" for name in names], worlds, None, None).columns

    return columns_of


@pytest.mark.parametrize(("sides", "expected"), RECORDED.items(), ids=["-".join(names) for names in RECORDED])
def test_recorded_runs_of_real_models(
    side_of: Callable[..., Columns],
    sides: tuple[str, str],
    expected: tuple[Decision, tuple[int, int, int], dict[str, CheckStatus]],
) -> None:
    pairs = pair(*map(side_of, sides))
    verdict = decide(GateInput(pairs, CALIBRATED, goal=Goal.IMPROVE, label=Label.DEVELOPMENT))
    decision, counts, answers = expected
    assert verdict.decision is decision
    assert tuple(map(len, (verdict.fixed, verdict.broken, verdict.suspected))) == counts
    assert answers.items() <= {one.id: one.status for one in verdict.checks}.items()
    if sides[1] == "telecom-gpt-4.1-sft":
        # Five tasks at max steps, none before, stand between a gain and its promotion.
        steps = check(verdict, "max_steps")
        assert (ids(verdict, OPEN), round(steps.p or 0, 3), steps.detail) == (
            {"max_steps"},
            0.031,
            "0 → 5 tasks",
        )
    if sides[1] == "retail-gpt-4.1-mini-policy-v2":
        # Any kind: 28 to 35 of 114, not significant by task; authentication alone: 0 to 16.
        breaches = check(verdict, "invariants")
        assert ids(verdict, FAIL) == {"invariants"}
        assert breaches.detail == "authentication 0 → 16 of 114 simulations; any kind 28 → 35"
        assert breaches.p == pytest.approx(7 * 2**-16)
    if sides[1] == "telecom-solo-gpt-4.1-sft":
        careful = decide(
            GateInput(pairs, policy_of('suspected = "block"\n'), goal=Goal.IMPROVE, label=Label.DEVELOPMENT)
        )
        assert careful.decision is Decision.INCONCLUSIVE
        assert "task_regressions" in ids(careful, OPEN)


def test_a_file_against_itself_is_identical_evidence(side_of: Callable[..., Columns]) -> None:
    same = pair(side_of("retail-gpt-4.1"), side_of("retail-gpt-4.1"))
    for goal, decision in ((Goal.HOLD, Decision.PROMOTE), (Goal.IMPROVE, Decision.INCONCLUSIVE)):
        verdict = decide(GateInput(same, CALIBRATED, goal=goal, label=Label.DEVELOPMENT))
        assert (verdict.identical, verdict.decision) == (True, decision)
        assert verdict.checks[0].detail.startswith("identical evidence; ")


def test_three_trials_a_side_are_paired_by_task(side_of: Callable[..., Columns]) -> None:
    old, new = (side_of(*(f"retail-gpt-4o-prompt-{x}-trial-{n}" for n in (1, 2, 3))) for x in "ab")
    verdict = decide(GateInput(pair(old, new), CALIBRATED, goal=Goal.IMPROVE, label=Label.DEVELOPMENT))
    reward = verdict.checks[0]
    assert verdict.decision is Decision.INCONCLUSIVE
    assert (verdict.tasks, round(reward.estimate or 0, 3), round(reward.p or 0, 3)) == (38, 0.105, 0.064)
    assert sorted(verdict.candidate.pass_hat) == [1, 2]


# Check by check.


def test_hold_needs_the_bound_above_minus_the_margin() -> None:
    few, many = side(*[1, 0] * 10), side(*[1, 0] * 60)
    assert judged(few, few, Goal.HOLD).decision is Decision.INCONCLUSIVE
    held = judged(many, many, Goal.HOLD)
    assert held.decision is Decision.PROMOTE
    reward = check(held, "reward_not_worse")
    assert (reward.threshold, reward.low) == (-0.10, pytest.approx(-(1 - 0.05 ** (1 / 120))))


def test_max_steps_count_by_task_not_by_trial() -> None:
    def at_limit(tasks: int) -> Side:
        return [sim(task, 0.0, trial=n, end="max_steps" if task < tasks else "user_stop")
                for task in range(40) for n in range(2)]  # fmt: skip

    assert check(judged(at_limit(0), at_limit(4)), "max_steps").status is PASS
    five = check(judged(at_limit(0), at_limit(5)), "max_steps")
    assert (five.status, round(five.p or 0, 4)) == (OPEN, 0.0312)
    assert check(judged(at_limit(0), at_limit(9)), "max_steps").status is FAIL


def test_fresh_trials_confirm_clear_and_leave_the_rest_suspected() -> None:
    old, new = side(*[1] * 30), side(*[0] * 3, *[1] * 27)
    pairs = pair(old, renamed(new))
    fresh = {"0": FreshResult(1e-5, 1e-5), "1": FreshResult(0.6, 0.6)}
    verdict = decide(
        GateInput(pairs.with_fresh_results(fresh), CALIBRATED, goal=Goal.HOLD, label=Label.CLEAN)
    )
    assert (verdict.regressions, verdict.suspected, verdict.decision) == (("0",), ("2",), Decision.DISCARD)
    cleared = decide(
        GateInput(
            pairs.with_fresh_results({"1": FreshResult(0.6, 0.6)}),
            CALIBRATED,
            goal=Goal.HOLD,
            label=Label.CLEAN,
        )
    )
    assert "task_regressions" in ids(cleared, PASS)
    assert cleared.suspected == ("0", "2")


def test_a_lost_fresh_trial_that_could_confirm_withholds_the_promotion() -> None:
    old, new = critical(side(*[0] * 30, *[1] * 30), "30"), side(*[1] * 30, 0, *[1] * 29)
    pairs = pair(old, renamed(new))
    for worst, decision in ((0.9, Decision.PROMOTE), (1e-6, Decision.INCONCLUSIVE)):
        tried = pairs.with_fresh_results({"30": FreshResult(0.9, worst)})
        verdict = decide(GateInput(tried, CALIBRATED, goal=Goal.IMPROVE, label=Label.CLEAN))
        assert verdict.decision is decision
    assert "worst_case" in ids(verdict, OPEN)


def critical(records: Side, *tasks: str) -> Side:
    """The same simulations; these tasks are tagged `critical`."""
    return [record.model_copy(update={"critical": record.task_id in tasks}) for record in records]


def weighed(falls: int, fixed: int, *tagged: str, goal: Goal = Goal.IMPROVE, **further: Any) -> Verdict:
    """So many confirmed falls and fixed tasks among tasks that pass on both sides."""
    old, new = side(*[1] * falls, *[0] * fixed, *[1] * 60), side(*[0] * falls, *[1] * (fixed + 60))
    fresh = {str(task): FreshResult(1e-6, 1e-6) for task in range(falls)}
    pairs = pair(critical(old, *tagged), renamed(new)).with_fresh_results(fresh)
    return decide(GateInput(pairs, CALIBRATED, goal=goal, label=Label.DEVELOPMENT, **further))


def test_a_confirmed_fall_is_weighed_against_what_was_fixed() -> None:
    """Measured: 13 tasks fixed and one broken were discarded for the one."""
    verdict = weighed(1, 13)
    assert (verdict.decision, verdict.regressions) == (Decision.PROMOTE, ("0",))
    assert check(verdict, "task_regressions").detail == "1 broken, 13 fixed; 1 confirmed; 1 tried again"
    assert weighed(1, 13, goal=Goal.HOLD).decision is Decision.DISCARD
    assert weighed(1, 13, goal=Goal.NO_REGRESSION).decision is Decision.DISCARD


def test_falls_that_outnumber_what_was_fixed_are_harm() -> None:
    assert "task_regressions" in ids(weighed(4, 0), PASS)  # McNemar: p = .0625
    assert "task_regressions" in ids(weighed(5, 0), OPEN)
    verdict = weighed(12, 0)
    assert "task_regressions" in ids(verdict, FAIL)
    assert verdict.decision is Decision.DISCARD


def test_a_confirmed_fall_of_a_critical_task_is_harm() -> None:
    verdict = weighed(2, 13, "1")
    assert (verdict.decision, verdict.regressions) == (Decision.DISCARD, ("0", "1"))
    assert "2 confirmed (critical: 1)" in check(verdict, "task_regressions").detail
    assert weighed(2, 13, "9").decision is Decision.PROMOTE  # critical, and it did not fall


@pytest.mark.parametrize(
    ("falls", "fixed", "tagged", "answer"),
    [
        (1, 13, (), "no harm detected"),
        (1, 13, ("0",), "harm shown"),
        (1, 3, (), "harm suspected"),  # three fixed tasks do not outweigh it: McNemar's p = .3125
    ],
)
def test_a_guard_of_an_improvement_weighs_falls_too(
    falls: int, fixed: int, tagged: tuple[str, ...], answer: str
) -> None:
    verdict = weighed(falls, fixed, *tagged, is_guard=True)
    assert verdict.guard is not None
    assert verdict.guard.value == answer
    assert weighed(falls, fixed, goal=Goal.HOLD, is_guard=True).decision is Decision.DISCARD


def test_a_test_and_an_analysis_spend_their_share_of_the_level() -> None:
    old, new = side(*[0] * 6, *[1] * 30), side(*[1] * 6, *[1] * 30)
    for test, analysis, level, decision in (
        (1, None, 0.0304, Decision.PROMOTE),
        (1, 1, 0.0228, Decision.PROMOTE),
        (1, 2, 0.0057, Decision.INCONCLUSIVE),
        (2, 1, 0.0057, Decision.INCONCLUSIVE),
        (3, None, 0.0034, Decision.INCONCLUSIVE),
    ):
        verdict = judged(old, new, spending=AlphaSpending(test, analysis))
        assert (verdict.look, verdict.analysis) == (test, analysis)
        assert (verdict.decision, round(verdict.alpha or 0, 4)) == (decision, level)


# Policies as files.
