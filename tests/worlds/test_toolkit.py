"""Sessions over overlays: they equal the port's own toolkits, and validate initialization data."""

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from pytest_trace2evolve.records.message import Requestor
from pytest_trace2evolve.records.protocols import ToolResult, World
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.task import FunctionCall, Task
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.utils.optional import import_quietly
from pytest_trace2evolve.worlds.inspect_domains import DOMAINS, Toolkit
from pytest_trace2evolve.worlds.registry import Worlds
from pytest_trace2evolve.worlds.toolkit import render_result
from tests.conftest import Simulate
from tests.worlds.states import state_of

Call = tuple[str, dict[str, Any], Requestor]


@functools.cache
def initial(module: str, name: str) -> tuple[type[Any], type[BaseModel], dict[str, Any]]:
    """A toolkit's class, its database's class and the content that `initialize` loads."""
    kind = getattr(import_quietly(module), name)
    toolkit = kind(store=import_quietly("inspect_ai.util").Store())
    toolkit.initialize()
    return kind, type(toolkit.db), toolkit.db.model_dump()


def toolkit_of(spec: Toolkit) -> Any:
    """The port's own toolkit with a store and a database that nothing else holds."""
    kind, model, content = initial(spec.module, spec.name)
    toolkit = kind(store=import_quietly("inspect_ai.util").Store())
    toolkit.db = model.model_validate(content)
    return toolkit


class Original:
    """The port's toolkits, coupled as the port couples them, run without any overlay."""

    def __init__(self, domain: str) -> None:
        spec = DOMAINS[domain]
        self.agent = toolkit_of(spec.agent)
        self.user = toolkit_of(spec.user) if spec.user else None
        self._couple: Callable[[], None] = lambda: None
        if self.user is not None:
            environment = import_quietly("inspect_evals.tau2.telecom.environment").Environment
            self._couple = environment(self.user, self.agent).sync_tools

    def run(self, name: str, arguments: dict[str, Any], side: Requestor) -> ToolResult:
        try:
            result = getattr(self.user if side == "user" else self.agent, name)(**arguments)
            self._couple()
        except Exception as error:
            return ToolResult(content=f"Error: {error}", error=True)
        return ToolResult(content=render_result(result))


def gold_calls(task: Task) -> list[Call]:
    """The gold calls of a task that a toolkit carries out itself."""
    generic = {"calculate", "transfer_to_human_agents"}
    return [(gold.name, gold.arguments, gold.requestor) for gold in task.actions if gold.name not in generic]


def first_calls(task: Task) -> list[FunctionCall]:
    return (task.initial_state.initialization_actions or []) if task.initial_state else []


def perturbed(data: st.DataObject, call: Call, pool: list[Call]) -> Call:
    """A call as it stands, or with one argument missing, of the wrong type, or from another call."""
    name, arguments, side = call
    if not arguments or data.draw(st.booleans()):
        return call
    key = data.draw(st.sampled_from(sorted(arguments)))
    others = [given[key] for _, given, _ in pool if key in given]
    value = data.draw(st.sampled_from([*others, "no such thing", -1, None]))
    kept = {other: item for other, item in arguments.items() if other != key}
    return name, kept if value is None else kept | {key: value}, side


@pytest.mark.parametrize("domain", ["retail", "airline", "telecom"])
@settings(max_examples=2, deadline=None)
@given(data=st.data())
def test_a_session_answers_and_ends_as_the_ports_own_toolkits_do(
    worlds: Worlds, domain: str, data: st.DataObject
) -> None:
    world = worlds.open("inspect_evals", domain)
    tasks = [world.tasks()[task_id] for task_id in world.splits()["base"]]
    task = data.draw(st.sampled_from([task for task in tasks if gold_calls(task)]))
    pool = [call for other in tasks for call in gold_calls(other)]
    own = gold_calls(task)
    picked = own + data.draw(st.lists(st.sampled_from(own + pool), min_size=5, max_size=20))
    calls = [perturbed(data, call, pool) for call in picked]
    session, original = world.open(), Original(domain)
    session.initialise(task.initial_state)
    for start in first_calls(task):
        assert not original.run(start.func_name, start.arguments, start.env_type).error
    with patch("uuid.uuid4", return_value=SimpleNamespace(hex="0" * 32)):
        for name, arguments, side in calls:
            assert session.call(name, arguments, side) == original.run(name, arguments, side)
    assert state_of(session) == state_of(original)


@pytest.fixture
def retail(worlds: Worlds) -> World:
    """The retail domain of the package."""
    return worlds.open("inspect_evals", "retail")


def with_order(retail: World, **changes: object) -> Task:
    """A task that cancels an order which only its initialization data bring into being."""
    session: Any = retail.open()
    order = session.agent.db.orders["#W2378156"].model_dump(mode="json")  # any order will do
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


def test_data_that_do_not_fit_the_models_are_not_measured(retail: World, simulate: Simulate) -> None:
    trace = simulate(with_order(retail), retail)
    broken = with_order(retail, items="none")
    result = score(trace, broken, retail)
    assert result.status is Status.NOT_MEASURED
    assert result.note.startswith("initialization data do not fit 'orders': ")


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
