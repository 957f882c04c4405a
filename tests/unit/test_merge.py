"""Initialization data: validated by the database's models, and never shared with the task."""

import pytest

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.worlds.registry import Worlds
from tests.conftest import Simulate


@pytest.fixture
def retail(worlds: Worlds) -> World:
    """The retail domain of the package."""
    return worlds.open("inspect_evals", "retail")


def with_order(retail: World, **changes: object) -> Task:
    """A task that cancels an order which only its initialization data bring into being."""
    session = retail.open()
    order = session._agent.db.orders["#W2378156"].model_dump(mode="json")  # any order will do
    order |= {"order_id": "#W0000001", "status": "pending", **changes}
    return Task.model_validate(
        {
            "id": "new",
            "initial_state": {"initialization_data": {"agent_data": {"orders": {"#W0000001": order}}}},
            "evaluation_criteria": {
                "actions": [
                    {
                        "name": "cancel_pending_order",
                        "arguments": {"order_id": "#W0000001", "reason": "no longer needed"},
                    }
                ]
            },
        }
    )


def test_a_new_record_is_one_that_tools_can_work_on(retail: World, simulate: Simulate) -> None:
    task = with_order(retail)
    assert score(simulate(task, retail), task, retail).reward == 1.0


def test_doing_nothing_to_a_new_record_is_no_success(retail: World, simulate: Simulate) -> None:
    from pytest_trace2evolve.agents.reference import NopAgent

    task = with_order(retail)
    assert score(simulate(task, retail, NopAgent()), task, retail).reward == 0.0


def test_data_that_do_not_fit_the_models_are_not_measured(retail: World, simulate: Simulate) -> None:
    trace = simulate(with_order(retail), retail)
    broken = with_order(retail, items="none")
    result = score(trace, broken, retail)
    assert result.status is Status.NOT_MEASURED
    assert result.note.startswith("initialization data do not fit 'orders': ")


def test_a_record_is_not_replaced_by_nothing(retail: World) -> None:
    state = Task.model_validate(
        {"id": "t", "initial_state": {"initialization_data": {"agent_data": {"orders": {"#W2378156": None}}}}}
    ).initial_state
    with pytest.raises(WorldError, match="initialization data do not fit 'orders'"):
        retail.open().initialise(state)


def test_a_contradiction_between_the_two_databases_is_not_measured(
    worlds: Worlds, simulate: Simulate
) -> None:
    telecom = worlds.open("inspect_evals", "telecom")
    task = next(iter(telecom.tasks().values()))
    trace = simulate(task, telecom)
    stray = {"user_data": {"surroundings": {"phone_number": "000"}}}
    broken = Task.model_validate(
        {**task.model_dump(mode="json"), "initial_state": {"initialization_data": stray}}
    )
    result = score(trace, broken, telecom)
    assert result.status is Status.NOT_MEASURED
    assert "cannot be synced" in result.note
