"""Metrics over simulations, by small examples whose figures can be worked out by hand."""

from typing import Any

import pytest

from pytest_trace2evolve.records.evidence import ActionCount, SimulationEvidence
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.metrics import as_evidence, metrics, pass_hat, succeeded
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


@pytest.mark.parametrize(
    ("successes", "trials", "k", "value"),
    [(4, 4, 4, 1.0), (2, 4, 1, 0.5), (2, 4, 2, 1 / 6), (1, 4, 2, 0.0), (0, 1, 1, 0.0)],
)
def test_pass_hat_is_the_share_of_all_draws_that_succeed(
    successes: int, trials: int, k: int, value: float
) -> None:
    assert pass_hat(successes, trials, k) == pytest.approx(value)


def test_pass_hat_of_more_trials_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^pass\^3 needs at least 3 trials, there are 2$"):
        pass_hat(1, 2, 3)


@pytest.mark.parametrize(("reward", "success"), [(1.0, True), (1 - 1e-7, True), (0.999, False), (0.0, False)])
def test_a_reward_within_tau2s_tolerance_of_1_is_a_success(reward: float, success: bool) -> None:
    assert succeeded(reward) is success


def test_the_mean_is_over_a_tasks_trials_first_and_then_over_tasks() -> None:
    figures = metrics([run("a", 1, 0), run("a", 1, 1), run("a", 0, 2), run("b", 0)])
    assert figures.reward == pytest.approx(1 / 3)
    assert (figures.simulations, figures.tasks, figures.measured) == (4, 2, 4)


def test_pass_hat_goes_up_to_the_smallest_number_of_trials() -> None:
    figures = metrics([run("a", 1, 0), run("a", 0, 1), run("a", 1, 2), run("b", 1, 0), run("b", 1, 1)])
    assert figures.pass_hat == pytest.approx({1: (2 / 3 + 1) / 2, 2: (1 / 3 + 1) / 2})


def test_infrastructure_errors_are_counted_and_left_out_of_every_rate() -> None:
    figures = metrics([run("a", 1), lost("a", 1), lost("b")])
    assert (figures.reward, figures.pass_hat, figures.action_match) == (1, {1: 1}, None)
    assert (figures.simulations, figures.tasks, figures.measured) == (3, 2, 1)
    assert (figures.infrastructure_errors, figures.not_measured) == (2, 0)
    assert figures.terminations == {"infrastructure_error": 2, "user_stop": 1}


def test_what_was_not_measured_is_counted_on_its_own() -> None:
    figures = metrics([run("a", None), run("b", 0)])
    assert (figures.measured, figures.not_measured, figures.infrastructure_errors) == (1, 1, 0)
    assert figures.reward == 0


def test_nothing_measured_gives_no_figure_rather_than_a_zero() -> None:
    for records in ([], [lost("a"), run("b", None)]):
        figures = metrics(records)
        assert (figures.reward, figures.recorded_reward, figures.agreement) == (None, None, None)
        assert (figures.action_match, figures.pass_hat) == (None, {})


def test_action_match_is_split_by_the_type_of_tool() -> None:
    counts = {"read": ActionCount(total=4, matched=1), "write": ActionCount(total=1, matched=1)}
    figures = metrics([run("a", actions=counts), run("b", actions={"read": ActionCount(total=1, matched=1)})])
    assert figures.action_match == pytest.approx((2 / 5 + 1) / 2)
    assert figures.read_action_match == pytest.approx((1 / 4 + 1) / 2)
    assert figures.write_action_match == 1


def test_a_task_without_actions_of_a_kind_does_not_count_for_it() -> None:
    figures = metrics([run("a", actions={"read": ActionCount(total=2, matched=0)}), run("b")])
    assert (figures.action_match, figures.read_action_match, figures.write_action_match) == (0, 0, None)


def test_a_simulation_whose_actions_were_not_checked_does_not_count_for_action_match() -> None:
    unchecked = run("a", 0, actions={"read": ActionCount(total=2)}, termination_reason="max_steps")
    assert unchecked.hit_max_steps
    checked = run("b", actions={"read": ActionCount(total=2, matched=2)})
    assert metrics([unchecked, checked]).action_match == 1


def test_agreement_compares_with_the_recorded_rewards_that_there_are() -> None:
    figures = metrics([run("a", 1, recorded_reward=1.0), run("b", 1, recorded_reward=0.0), run("c", 0)])
    assert figures.agreement == 0.5
    assert figures.recorded_reward == 0.5


def evidence_of(simulation: Simulation, desk: World) -> SimulationEvidence:
    task = desk.tasks()[simulation.task_id]
    return as_evidence(simulation, task, score(simulation, task, desk), desk.tool_types())


def test_evidence_counts_gold_actions_by_the_type_of_tool(desk: World, simulate: Simulate) -> None:
    note = desk.tasks()["note"].actions
    look = desk.tasks()["look"].actions
    task = Task.model_validate({"id": "two", "evaluation_criteria": {"actions": [*note, *look]}})
    done = simulate(task, desk)
    found = as_evidence(done, task, score(done, task, desk), desk.tool_types())
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


@pytest.mark.parametrize(
    ("agent", "user", "cost"), [(None, None, None), (0.5, None, 0.5), (None, 0.0, 0.0), (0.5, 0.25, 0.75)]
)
def test_evidence_adds_up_the_costs_that_are_known(
    agent: float | None, user: float | None, cost: float | None, desk: World, simulate: Simulate
) -> None:
    done = simulate(desk.tasks()["idle"], desk)
    priced = done.model_copy(update={"agent_cost": agent, "user_cost": user, "trial": None})
    found = evidence_of(priced, desk)
    assert (found.cost, found.trial) == (cost, 0)
