"""The search screens proposals on discovery tasks, and keeps only what the gate promotes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.errors import BudgetError, ProposalError
from pytest_trace2evolve.improve.search import (
    Rewards,
    Row,
    Rules,
    Status,
    paired_gain,
    screening_order,
    search,
)
from pytest_trace2evolve.records.verdict import Decision

TASKS = {str(task): str(task % 3) for task in range(12)}


@dataclass
class ScriptedArena:
    """Candidates have fixed rewards: the parent passes the first half of the tasks.

    Attributes:
        skills: By candidate, how many tasks pass.
        promotable: What the gate promotes.
        asked: The calls, in order.
    """

    skills: Mapping[str, int]
    promotable: Sequence[str] = ()
    budget: int = 10_000
    asked: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.left = [name for name in self.skills if name != "v0"]
        self.seen: dict[str, set[str]] = {}

    def propose(self, parent: str, count: int) -> Sequence[str]:
        batch, self.left = self.left[:count], self.left[count:]
        return batch

    def screen(self, candidate: str, tasks: Sequence[str]) -> Rewards:
        if self.skills[candidate] < 0:
            raise ProposalError(f"{candidate} cannot be run", is_crash=True)
        self.asked.append(("screen", candidate))
        self.seen.setdefault(candidate, set()).update(tasks)
        return {task: float(int(task) < self.skills[candidate]) for task in tasks}

    def gate(self, candidate: str, parent: str) -> Decision:
        if len(self.asked) >= self.budget:
            raise BudgetError("the budget is spent")
        self.asked.append(("gate", candidate))
        return Decision.PROMOTE if candidate in self.promotable else Decision.INCONCLUSIVE


def rows_of(arena: ScriptedArena, **rules: object) -> list[Row]:
    return list(search(arena, "v0", TASKS, Rules(**rules)))  # type: ignore[arg-type]


def test_only_a_promotion_is_kept_and_becomes_the_parent() -> None:
    arena = ScriptedArena({"v0": 3, "a": 9, "b": 12}, promotable=["a", "b"])
    rows = rows_of(arena, width=1)
    assert [(row.candidate, row.parent, row.status) for row in rows] == [
        ("a", "v0", Status.KEEP),
        ("b", "a", Status.KEEP),
    ]
    assert rows[0].gain == pytest.approx(0.5)


def test_a_proposal_without_a_gain_is_measured_on_a_third_of_the_tasks_and_never_gated() -> None:
    arena = ScriptedArena({"v0": 6, "same": 6, "worse": 0})
    rows = rows_of(arena)
    assert {row.verdict for row in rows} == {"screened out after 4 tasks"}
    assert len(arena.seen["same"]) == len(arena.seen["worse"]) == 4
    assert not [name for call, name in arena.asked if call == "gate"]


def test_the_strongest_is_gated_first_and_the_others_not_after_a_promotion() -> None:
    arena = ScriptedArena({"v0": 0, "good": 8, "best": 12}, promotable=["best", "good"])
    rows = rows_of(arena, shares=(1.0,))
    assert [name for call, name in arena.asked if call == "gate"] == ["best"]
    assert [(row.candidate, row.verdict) for row in rows] == [
        ("best", "promote"),
        ("good", "not gated: another one was promoted"),
    ]


def test_a_spent_budget_ends_the_search_and_keeps_earlier_outcomes() -> None:
    arena = ScriptedArena({"v0": 0, "bad": 0, "good": 12}, promotable=["good"], budget=4)
    rows = search(arena, "v0", TASKS, Rules(width=1))
    assert next(rows).candidate == "bad"
    with pytest.raises(BudgetError):
        next(rows)


@given(
    st.dictionaries(st.text(max_size=5), st.sampled_from(["a", "b", "c"]), max_size=40),
    st.data(),
)
def test_the_order_of_a_group_does_not_depend_on_its_rewards(
    tasks: dict[str, str], data: st.DataObject
) -> None:
    rewards = [{task: float(data.draw(st.booleans())) for task in tasks} for _ in range(2)]
    orders = [screening_order(reward, tasks) for reward in rewards]
    assert sorted(orders[0]) == sorted(tasks)
    for group in set(tasks.values()):
        in_group = [[task for task in order if tasks[task] == group] for order in orders]
        assert in_group[0] == in_group[1]


@given(st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1)), st.floats(-1, 1))
def test_a_gain_compares_shared_tasks_alone(parent: dict[str, float], shift: float) -> None:
    gain = paired_gain(parent, {task: reward + shift for task, reward in parent.items()} | {"other": 9.0})
    assert gain.tasks == len(parent)
    if parent:
        assert gain.mean == pytest.approx(shift)
        assert gain.error == pytest.approx(0.0, abs=1e-9)
