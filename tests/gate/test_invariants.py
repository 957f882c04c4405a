"""The gate's check `invariants`: a kind that more simulations break is found, and nothing else moves."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.errors import PolicyError
from pytest_trace2evolve.gate.calibrated import CALIBRATED
from pytest_trace2evolve.gate.decide import GateInput, decide
from pytest_trace2evolve.gate.pairs import pair
from pytest_trace2evolve.gate.policy import get_policy
from pytest_trace2evolve.records.rules import Invariant
from pytest_trace2evolve.records.verdict import CheckResult, CheckStatus, Decision, Goal, Label, Verdict
from tests.gate_helpers import Side, lost, sim

TASKS = 30


def watched(broken: Sequence[int], name: str, *, tasks: int = TASKS, trials: int = 2) -> Side:
    """All tasks pass; the first trial of the tasks in `broken` breaks an invariant."""
    return [
        sim(task, 1.0, trial=trial).model_copy(
            update={
                "id": f"{name}-{task}-{trial}",
                "invariants": {Invariant.CONSENT: 2} if task in broken and not trial else {},
            }
        )
        for task in range(tasks)
        for trial in range(trials)
    ]


def unwatched(records: Side) -> Side:
    return [record.model_copy(update={"invariants": None}) for record in records]


def judged(old: Side, new: Side, goal: Goal = Goal.HOLD, policy: Any = CALIBRATED) -> Verdict:
    return decide(GateInput(pair(old, new), policy, goal=goal, label=Label.CLEAN))


def check(verdict: Verdict) -> CheckResult | None:
    return next((one for one in verdict.checks if one.id == "invariants"), None)


@pytest.mark.parametrize(
    ("before", "after", "status", "decision", "p"),
    [
        ((), (), CheckStatus.PASS, Decision.PROMOTE, 1.0),
        ((1, 2, 3), (3, 4, 5), CheckStatus.PASS, Decision.PROMOTE, 1.0),
        ((), range(6), CheckStatus.PASS, Decision.PROMOTE, 6 * 2**-6),
        ((), range(7), CheckStatus.UNDECIDED, Decision.INCONCLUSIVE, 6 * 2**-7),
        ((), range(12), CheckStatus.FAIL, Decision.DISCARD, 6 * 2**-12),
        (range(12), (), CheckStatus.PASS, Decision.PROMOTE, 1.0),
    ],
)
def test_a_kind_that_more_simulations_break_withholds_a_promotion_and_then_discards(
    before: Sequence[int], after: Sequence[int], status: CheckStatus, decision: Decision, p: float
) -> None:
    verdict = judged(watched(before, "b"), watched(after, "c"))
    found = check(verdict)
    assert found is not None
    assert (found.status, verdict.decision, found.p) == (status, decision, pytest.approx(p))
    assert found.estimate == pytest.approx((len(after) - len(before)) / TASKS / 2)
    kind = "consent " if before or after else ""
    assert found.detail == f"{kind}{len(before)} → {len(after)} of {2 * TASKS} simulations"


def broken(name: str, kinds: Mapping[Invariant, Collection[tuple[int, int]]], trials: int = 3) -> Side:
    """32 tasks that all pass; of each kind the simulations (task, trial) that break it."""
    return [
        record.model_copy(
            update={
                "invariants": {
                    kind: 1 for kind, places in kinds.items() if (int(record.task_id), record.trial) in places
                }
            }
        )
        for record in watched((), name, tasks=32, trials=trials)
    ]


def test_a_kind_that_rises_fails_though_as_many_tasks_break_some_kind() -> None:
    """Consent goes from 0 to 32 of 96 simulations, while another kind ends in the same tasks."""
    places = [(task, task % 3) for task in range(32)]
    old, new = broken("b", {Invariant.PROMISES: places}), broken("c", {Invariant.CONSENT: places})
    verdict = judged(old, new)
    found = check(verdict)
    assert found is not None
    assert (found.status, verdict.decision) == (CheckStatus.FAIL, Decision.DISCARD)
    assert found.detail == "consent 0 → 32 of 96 simulations; any kind 32 → 32"


def test_a_kind_that_rises_within_the_same_tasks_fails() -> None:
    """Every third simulation of each task before, all of them afterwards: no further task breaks it."""
    first = [(task, 0) for task in range(32)]
    every = [(task, trial) for task in range(32) for trial in range(3)]
    verdict = judged(broken("b", {Invariant.CONSENT: first}), broken("c", {Invariant.CONSENT: every}))
    found = check(verdict)
    assert found is not None
    assert found.status is CheckStatus.FAIL
    assert found.estimate == pytest.approx(2 / 3)
    assert found.detail == "consent 32 → 96 of 96 simulations"


def test_the_worst_kind_is_named_and_all_kinds_share_one_level() -> None:
    few, many = [(task, 0) for task in range(20, 23)], [(task, 0) for task in range(8)]
    new = broken("c", {Invariant.ELIGIBILITY: few, Invariant.OTHER_CUSTOMERS: many})
    found = check(judged(broken("b", {}), new))
    assert found is not None
    assert found.detail == "other_customers 0 → 8 of 96 simulations; any kind 0 → 11"
    assert found.p == pytest.approx(6 * 2**-8)


def test_the_kinds_count_as_one_question_among_the_checks() -> None:
    """Reward, regressions, max steps and invariants: four questions, for any number of broken kinds."""
    places = [(task, 0) for task in range(9)]
    one = {Invariant.CONSENT: places}
    every = dict.fromkeys(Invariant, places)
    for kinds in (one, every):
        verdict = judged(broken("b", {}), broken("c", kinds))
        found = check(verdict)
        assert found is not None
        assert found.p == pytest.approx(6 * 2**-9)
        assert found.status is CheckStatus.FAIL  # 4 · 6 / 512 = .047


@pytest.mark.parametrize("sides", [(False, False), (True, False), (False, True)])
def test_it_is_not_asked_where_a_side_was_not_held_against_invariants(sides: tuple[bool, bool]) -> None:
    both = watched(range(12), "b"), watched(range(20), "c")
    both[0][0], both[1][3] = lost(both[0][0]), lost(both[1][3])
    shown = [one if kept else unwatched(one) for one, kept in zip(both, sides, strict=True)]
    bare = [unwatched(one) for one in both]
    assert judged(shown[0], shown[1]) == judged(bare[0], bare[1])
    assert check(judged(shown[0], shown[1])) is None


def test_a_lost_simulation_counts_as_one_that_broke_some() -> None:
    """Six tasks that turned worse do not withhold a promotion; with a seventh that may have, they do."""
    old, new = watched((), "b"), watched(range(6), "c")
    assert judged(old, new).decision is Decision.PROMOTE
    new[12] = lost(new[12])
    verdict = judged(old, new)
    assert verdict.decision is Decision.INCONCLUSIVE
    worst = next(one for one in verdict.checks if one.id == "worst_case")
    assert "invariants" in worst.detail


def policy(folder: Path, text: str) -> Any:
    folder.joinpath("own.toml").write_text(text, encoding="utf-8")
    return get_policy("own", folder)


def test_a_policy_can_leave_it_out_or_give_it_a_level(tmp_path: Path) -> None:
    old, new = watched((), "b"), watched(range(10), "c")
    off = policy(tmp_path, "[checks.invariants]\nwatch = false\n")
    assert check(judged(old, new, policy=off)) is None
    sharp = policy(tmp_path, "[checks.invariants]\nalpha = 0.001\n")
    assert judged(old, new).decision is Decision.DISCARD
    assert judged(old, new, policy=sharp).decision is Decision.PROMOTE
    with pytest.raises(PolicyError, match=r"checks\.invariants: this check has no margin; remove 'margin'"):
        policy(tmp_path, "[checks.invariants]\nmargin = 0.1\n")


def changed_records(broken: Collection[int], name: str, **options: Any) -> Side:
    """Like `watched`, but checked for collateral changes too, which the tasks in `broken` have."""
    return [
        record.model_copy(
            update={"invariants": {Invariant.COLLATERAL_CHANGE: int(int(record.task_id) in broken)}}
        )
        for record in watched((), name, **options)
    ]


def test_collateral_changes_are_a_seventh_kind() -> None:
    verdict = judged(changed_records((), "old"), changed_records(range(10), "new"))
    found = check(verdict)
    assert found is not None
    assert found.p == pytest.approx(7 * 2**-10)
    assert found.detail == "collateral_change 0 → 20 of 60 simulations"
    # A stranger's line suspended in 34 of 40 conversations, whose rewards do not see it.
    sides = (
        changed_records((), "old", tasks=40, trials=1),
        changed_records(range(34), "new", tasks=40, trials=1),
    )
    verdict = judged(*sides)
    assert (verdict.decision, check(verdict).status) == (Decision.DISCARD, CheckStatus.FAIL)  # type: ignore[union-attr]


@pytest.mark.parametrize("is_old_baseline", [True, False])
def test_evidence_of_older_versions_was_not_checked_for_them(is_old_baseline: bool) -> None:
    """A side without their number says nothing about them, so nothing about them is compared."""
    sides = [watched((), "old"), changed_records(range(30), "new")]
    verdict = judged(*(sides if is_old_baseline else reversed(sides)))
    assert verdict.decision is Decision.PROMOTE
    found = check(judged(watched((), "old"), watched(range(8), "new")))
    assert found is not None
    assert found.p == pytest.approx(6 * 2**-8), "older evidence is judged as it was"
