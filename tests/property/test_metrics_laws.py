"""Laws of the metrics: pass^k against enumeration, and independence of order."""

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.scoring.metrics import metrics, pass_hat

OUTCOMES = st.lists(st.booleans(), min_size=1, max_size=9)
REWARDS = st.sampled_from([0.0, 0.1, 1 / 3, 0.7, 1.0])


@st.composite
def runs(draw: st.DrawFn, lost: bool = True) -> list[SimulationEvidence]:
    """Simulations of a few tasks, each (task, trial) once."""
    keys = draw(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5)), unique=True, max_size=14))
    return [draw(simulation(task, trial, lost)) for task, trial in keys]


@st.composite
def simulation(draw: st.DrawFn, task: str, trial: int, lost: bool) -> SimulationEvidence:
    kinds = ["measured", "measured", "not_measured"] + ["infrastructure_error"] * lost
    status = draw(st.sampled_from(kinds))
    total = draw(st.integers(0, 3))
    matched = draw(st.integers(0, total)) if status == "measured" else None
    record: dict[str, Any] = {
        "id": f"{task}-{trial}",
        "task_id": task,
        "trial": trial,
        "status": status,
        "termination_reason": draw(st.sampled_from(["user_stop", "max_steps"])),
        "reward": draw(REWARDS) if status == "measured" else None,
        "recorded_reward": draw(st.none() | REWARDS),
        "actions": {draw(st.sampled_from(["read", "write"])): {"total": total, "matched": matched}},
        "task_digest": "d",
    }
    return SimulationEvidence.model_validate(record)


@given(OUTCOMES, st.data())
def test_pass_hat_is_the_share_of_subsets_without_a_failure(
    outcomes: list[bool], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(outcomes)))
    subsets = list(combinations(outcomes, k))
    share = sum(all(subset) for subset in subsets) / len(subsets)
    assert pass_hat(sum(outcomes), len(outcomes), k) == pytest.approx(share)


@given(OUTCOMES)
def test_pass_hat_never_rises_with_k(outcomes: list[bool]) -> None:
    values = [pass_hat(sum(outcomes), len(outcomes), k) for k in range(1, len(outcomes) + 1)]
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(sum(outcomes) / len(outcomes))


@given(runs(), st.randoms(use_true_random=False))
def test_metrics_do_not_depend_on_the_order_of_records(
    records: list[SimulationEvidence], random: Any
) -> None:
    shuffled = list(records)
    random.shuffle(shuffled)
    assert metrics(shuffled) == metrics(records)


@given(runs(lost=False), st.sampled_from("abcd"), st.none() | REWARDS)
def test_infrastructure_errors_change_no_rate(
    records: list[SimulationEvidence], task: str, recorded: float | None
) -> None:
    lost = SimulationEvidence(
        id="lost",
        task_id=task,
        trial=99,
        status="infrastructure_error",
        termination_reason="infrastructure_error",
        recorded_reward=recorded,
        task_digest="d",
    )
    counted = {"simulations", "tasks", "infrastructure_errors", "terminations"}
    with_it, without = metrics([*records, lost]), metrics(records)
    assert with_it.model_dump(exclude=counted) == without.model_dump(exclude=counted)
    assert with_it.infrastructure_errors == without.infrastructure_errors + 1


@given(runs())
def test_every_rate_lies_between_0_and_1(records: list[SimulationEvidence]) -> None:
    figures = metrics(records)
    rates = [figures.reward, figures.agreement, figures.action_match, figures.read_action_match]
    assert all(0 <= rate <= 1 for rate in [*rates, *figures.pass_hat.values()] if rate is not None)
    assert figures.measured + figures.not_measured + figures.infrastructure_errors == len(records)
    assert sum(figures.terminations.values()) == len(records)


@given(runs())
def test_equal_recorded_rewards_give_an_equal_mean(records: list[SimulationEvidence]) -> None:
    same = [record.model_copy(update={"recorded_reward": record.reward}) for record in records]
    assert metrics(same).recorded_reward == metrics(same).reward
