"""The gate's check `invariants`: more tasks that break any are found, and nothing else moves."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.errors import PolicyError
from pytest_trace2evolve.evidence.baselines import render_evidence
from pytest_trace2evolve.gate.decide import decide
from pytest_trace2evolve.gate.pairs import pair
from pytest_trace2evolve.gate.policy import CALIBRATED, Strict, get_policy
from pytest_trace2evolve.records.evidence import Evidence, Provenance
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
    return decide(pair(old, new), policy, goal=goal, label=Label.CLEAN)


def check(verdict: Verdict) -> CheckResult | None:
    return next((one for one in verdict.checks if one.id == "invariants"), None)


@pytest.mark.parametrize(
    ("before", "after", "status", "decision", "p"),
    [
        ((), (), CheckStatus.PASS, Decision.PROMOTE, 1.0),
        ((1, 2, 3), (3, 4, 5), CheckStatus.PASS, Decision.PROMOTE, 11 / 16),
        ((), range(4), CheckStatus.PASS, Decision.PROMOTE, 1 / 16),
        ((), range(5), CheckStatus.UNDECIDED, Decision.INCONCLUSIVE, 1 / 32),
        ((), range(12), CheckStatus.FAIL, Decision.DISCARD, 2**-12),
        (range(12), (), CheckStatus.PASS, Decision.PROMOTE, 1.0),
    ],
)
def test_tasks_that_break_more_withhold_a_promotion_and_then_discard(
    before: Sequence[int], after: Sequence[int], status: CheckStatus, decision: Decision, p: float
) -> None:
    verdict = judged(watched(before, "b"), watched(after, "c"))
    found = check(verdict)
    assert found is not None
    assert (found.status, verdict.decision, found.p) == (status, decision, pytest.approx(p))
    assert found.estimate == pytest.approx((len(after) - len(before)) / TASKS)
    assert found.detail == f"{len(before)} → {len(after)} of {TASKS} tasks"


@pytest.mark.parametrize("sides", [(False, False), (True, False), (False, True)])
def test_it_is_not_asked_where_a_side_was_not_held_against_invariants(sides: tuple[bool, bool]) -> None:
    both = watched(range(12), "b"), watched(range(20), "c")
    both[0][0], both[1][3] = lost(both[0][0]), lost(both[1][3])
    shown = [one if kept else unwatched(one) for one, kept in zip(both, sides, strict=True)]
    bare = [unwatched(one) for one in both]
    assert judged(shown[0], shown[1]) == judged(bare[0], bare[1])
    assert check(judged(shown[0], shown[1])) is None


def test_only_tasks_whose_trials_were_all_looked_at_count() -> None:
    new = watched(range(12), "c")
    old = [one if int(one.task_id) >= 6 or one.trial else unwatched([one])[0] for one in watched((), "b")]
    found = check(judged(old, new))
    assert found is not None
    assert found.detail == f"0 → 6 of {TASKS - 6} tasks"


def test_a_lost_simulation_counts_as_one_that_broke_some() -> None:
    """Four tasks that turned worse do not withhold a promotion; with a fifth that may have, they do."""
    old, new = watched((), "b"), watched(range(4), "c")
    assert judged(old, new).decision is Decision.PROMOTE
    new[8] = lost(new[8])
    verdict = judged(old, new)
    assert verdict.decision is Decision.INCONCLUSIVE
    worst = next(one for one in verdict.checks if one.id == "worst_case")
    assert "invariants" in worst.detail


def test_a_guard_split_discards_on_it() -> None:
    old, new = watched((), "b"), watched(range(14), "c")
    guarded = decide(pair(old, new), CALIBRATED, goal=Goal.HOLD, label=Label.TRANSFER, guard=True)
    assert guarded.decision is Decision.DISCARD


def policy(folder: Path, text: str) -> Any:
    folder.joinpath("own.toml").write_text(text, encoding="utf-8")
    return get_policy("own", folder)


def test_a_policy_can_leave_it_out_or_give_it_a_level(tmp_path: Path) -> None:
    old, new = watched((), "b"), watched(range(8), "c")
    off = policy(tmp_path, "[checks.invariants]\nwatch = false\n")
    assert check(judged(old, new, policy=off)) is None
    sharp = policy(tmp_path, "[checks.invariants]\nalpha = 0.001\n")
    assert judged(old, new).decision is Decision.DISCARD
    assert judged(old, new, policy=sharp).decision is Decision.PROMOTE
    with pytest.raises(PolicyError, match=r"checks\.invariants: has no margin; leave 'margin' out"):
        policy(tmp_path, "[checks.invariants]\nmargin = 0.1\n")


def test_strict_does_not_ask_it() -> None:
    strict = get_policy("strict")
    assert isinstance(strict, Strict)
    assert check(judged(watched((), "b"), watched(range(20), "c"), policy=strict)) is None


def test_evidence_without_invariants_is_written_as_before_them() -> None:
    origin = Provenance(domain="desk", provider="fake")
    one = sim(1, 1.0)
    written = render_evidence(Evidence(provenance=origin, simulations=(one,)))
    assert "invariants" not in written
    assert written.splitlines()[3].startswith('  {"id":"1-0","reward":1.0,"status":"measured",')
    held = one.model_copy(update={"invariants": {}})
    assert '"invariants":{}' in render_evidence(Evidence(provenance=origin, simulations=(held,)))
