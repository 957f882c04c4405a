"""Metrics over simulations, by small examples whose figures can be worked out by hand."""

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.records.evidence import ActionCount, SimulationEvidence
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.metrics import compute_metrics, is_success, pass_hat, to_evidence
from pytest_trace2evolve.scoring.reward import score
from tests.conftest import Simulate


def run(task: str, reward: float | None = 1.0, trial: int = 0, **fields: Any) -> SimulationEvidence:
    """One simulation's evidence; measured where it has a reward."""
    status = Status.NOT_MEASURED if reward is None else Status.MEASURED
    record: dict[str, Any] = {
        "id": f"{task}-{trial}",
        "task_id": task,
        "trial": trial,
        "status": status,
        "termination_reason": "user_stop",
        "reward": reward,
        "task_digest": "d",
    }
    return SimulationEvidence.model_validate(record | fields)


def lost(task: str, trial: int = 0) -> SimulationEvidence:
    return run(task, None, trial, status="infrastructure_error", termination_reason="infrastructure_error")


def test_pass_hat_of_more_trials_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^pass\^3 needs at least 3 trials, got 2$"):
        pass_hat(1, 2, 3)


@pytest.mark.parametrize(("reward", "success"), [(1.0, True), (1 - 1e-7, True), (0.999, False), (0.0, False)])
def test_a_reward_within_tau2s_tolerance_of_1_is_a_success(reward: float, success: bool) -> None:
    assert is_success(reward) is success


def test_the_mean_is_over_a_tasks_trials_first_and_then_over_tasks() -> None:
    figures = compute_metrics([run("a", 1, 0), run("a", 1, 1), run("a", 0, 2), run("b", 0)])
    assert figures.reward == pytest.approx(1 / 3)
    assert (figures.simulations, figures.tasks, figures.measured) == (4, 2, 4)


def test_nothing_measured_gives_no_figure_rather_than_a_zero() -> None:
    for records in ([], [lost("a"), run("b", None)]):
        figures = compute_metrics(records)
        assert (figures.reward, figures.recorded_reward, figures.agreement) == (None, None, None)
        assert (figures.action_match, figures.pass_hat) == (None, {})


def test_action_match_is_split_by_the_type_of_tool() -> None:
    counts = {"read": ActionCount(total=4, matched=1), "write": ActionCount(total=1, matched=1)}
    figures = compute_metrics(
        [run("a", actions=counts), run("b", actions={"read": ActionCount(total=1, matched=1)})]
    )
    assert figures.action_match == pytest.approx((2 / 5 + 1) / 2)
    assert figures.read_action_match == pytest.approx((1 / 4 + 1) / 2)
    assert figures.write_action_match == 1


def test_agreement_compares_with_the_recorded_rewards_that_there_are() -> None:
    figures = compute_metrics(
        [run("a", 1, recorded_reward=1.0), run("b", 1, recorded_reward=0.0), run("c", 0)]
    )
    assert figures.agreement == 0.5
    assert figures.recorded_reward == 0.5


def evidence_of(simulation: Simulation, desk: World) -> SimulationEvidence:
    task = desk.tasks()[simulation.task_id]
    return to_evidence(simulation, task, score(simulation, task, desk), desk.tool_types())


def test_evidence_counts_gold_actions_by_the_type_of_tool(desk: World, simulate: Simulate) -> None:
    note = desk.tasks()["note"].actions
    look = desk.tasks()["look"].actions
    task = Task.model_validate({"id": "two", "evaluation_criteria": {"actions": [*note, *look]}})
    done = simulate(task, desk)
    found = to_evidence(done, task, score(done, task, desk), desk.tool_types())
    assert found.actions == {
        "read": ActionCount(total=2, matched=2),
        "write": ActionCount(total=1, matched=1),
    }
    assert (found.status, found.reward, found.task_digest) == (Status.MEASURED, 1.0, task.digest)


@pytest.mark.parametrize("reason", ["max_steps", "infrastructure_error"])
def test_evidence_of_unchecked_actions_has_totals_only(reason: str, desk: World, simulate: Simulate) -> None:
    done = simulate(desk.tasks()["note"], desk)
    found = evidence_of(done.model_copy(update={"termination_reason": reason}), desk)
    assert found.actions == {"read": ActionCount(total=1), "write": ActionCount(total=1)}
    assert found.action_share() is None


# Laws.

FEW = settings(max_examples=30)
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


@FEW
@given(runs(), st.randoms(use_true_random=False))
def test_metrics_do_not_depend_on_the_order_of_records(
    records: list[SimulationEvidence], random: Any
) -> None:
    shuffled = list(records)
    random.shuffle(shuffled)
    assert compute_metrics(shuffled) == compute_metrics(records)


@FEW
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
    with_it, without = compute_metrics([*records, lost]), compute_metrics(records)
    assert with_it.model_dump(exclude=counted) == without.model_dump(exclude=counted)
    assert with_it.infrastructure_errors == without.infrastructure_errors + 1


@FEW
@given(runs())
def test_every_rate_lies_between_0_and_1(records: list[SimulationEvidence]) -> None:
    figures = compute_metrics(records)
    rates = [figures.reward, figures.agreement, figures.action_match, figures.read_action_match]
    assert all(0 <= rate <= 1 for rate in [*rates, *figures.pass_hat.values()] if rate is not None)
    assert figures.measured + figures.not_measured + figures.infrastructure_errors == len(records)
    assert sum(figures.terminations.values()) == len(records)


@FEW
@given(runs())
def test_equal_recorded_rewards_give_an_equal_mean(records: list[SimulationEvidence]) -> None:
    same = [record.model_copy(update={"recorded_reward": record.reward}) for record in records]
    assert compute_metrics(same).recorded_reward == compute_metrics(same).reward
