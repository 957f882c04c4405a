"""Second tosses: what a promotion may rest on after simulations were lost."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.gate.calibrated import CALIBRATED
from pytest_trace2evolve.gate.confirm import fresh_result, without_second_tosses
from pytest_trace2evolve.gate.decide import GateInput, decide
from pytest_trace2evolve.gate.pairs import pair
from pytest_trace2evolve.records.evidence import FreshTrials, SimulationEvidence
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.verdict import Decision, Goal, Label


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
