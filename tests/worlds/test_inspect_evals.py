"""Worlds over inspect_evals: its data and tools unchanged, private sessions, late imports."""

import pytest

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.message import Requestor
from pytest_trace2evolve.records.protocols import ToolResult
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.worlds.inspect_domains import DOMAINS
from pytest_trace2evolve.worlds.registry import Worlds
from tests.worlds.states import state_of

PROVIDER = "inspect_evals"
SIZES = {"retail": 114, "airline": 50, "telecom": 114, "telecom-workflow": 114, "banking_knowledge": 97}
SIDES: tuple[Requestor, Requestor] = ("assistant", "user")


@pytest.mark.parametrize(("domain", "size"), SIZES.items())
def test_a_domain_opens_with_its_tasks_policy_and_tools(worlds: Worlds, domain: str, size: int) -> None:
    world = worlds.open(PROVIDER, domain)
    assert (world.provider, world.domain) == (PROVIDER, domain)
    assert len(world.splits()["base"]) == size
    assert set(world.splits()["base"]) <= set(world.tasks())
    assert all(world.tasks()[task_id].id == task_id for task_id in world.splits()["base"])
    assert len(world.policy()) > 1000
    assert "{{" not in world.policy()


@pytest.mark.parametrize("domain", SIZES)
def test_every_offered_tool_has_a_type_and_every_typed_tool_is_offered(worlds: Worlds, domain: str) -> None:
    world = worlds.open(PROVIDER, domain)
    offered = [tool.name for side in SIDES for tool in world.tools(side)]
    assert sorted(offered) == sorted(world.tool_types())
    assert all(world.has_tool(name) for name in offered)
    assert not world.has_tool("fly_to_the_moon")


@pytest.mark.parametrize("domain", SIZES)
def test_every_gold_action_names_a_typed_tool(worlds: Worlds, domain: str) -> None:
    world = worlds.open(PROVIDER, domain)
    named = {action.name for task in world.tasks().values() for action in task.actions}
    assert named <= set(world.tool_types())


@pytest.mark.parametrize("domain", SIZES)
def test_every_tool_of_either_side_can_be_called(worlds: Worlds, domain: str) -> None:
    world, spec = worlds.open(PROVIDER, domain), DOMAINS[domain]
    session = world.open()
    for side, toolkit in zip(SIDES, (spec.agent, spec.user), strict=True):
        for name in toolkit.callable_tools if toolkit else ():
            answer = session.call(name, {}, side).content
            assert "not found" not in answer or name not in answer
            assert "has no attribute" not in answer


@pytest.mark.parametrize("domain", SIZES)
def test_tool_schemas_describe_an_object_and_every_parameter(worlds: Worlds, domain: str) -> None:
    for side in SIDES:
        for tool in worlds.open(PROVIDER, domain).tools(side):
            assert tool.description
            assert tool.parameters["type"] == "object"
            assert set(tool.parameters.get("required", [])) <= set(tool.parameters["properties"])


def test_a_tool_that_does_not_exist_answers_with_tau2s_error(worlds: Worlds) -> None:
    session = worlds.open(PROVIDER, "retail").open()
    answer = ToolResult(content="Error: Tool 'fly' not found.", error=True)
    assert session.call("fly", {}, "assistant") == answer
    assert session.call("get_user_details", {}, "user").error


@pytest.mark.parametrize("domain", SIZES)
def test_gold_actions_change_neither_the_shared_databases_nor_the_tasks(worlds: Worlds, domain: str) -> None:
    world = worlds.open(PROVIDER, domain)
    before = state_of(world.open())
    for task_id in world.splits()["base"]:
        session, task = world.open(), world.tasks()[task_id].model_copy(deep=True)
        given = task.model_dump_json()
        session.initialise(task.initial_state)
        for action in task.actions:
            session.call(action.name, action.arguments, action.requestor)
        assert task.model_dump_json() == given, task_id
    assert state_of(world.open()) == before


def test_initialization_data_of_an_unknown_table_are_refused(worlds: Worlds) -> None:
    state = Task.model_validate(
        {"id": "t", "initial_state": {"initialization_data": {"agent_data": {"ships": {}}}}}
    ).initial_state
    with pytest.raises(WorldError, match="'ships', but the database has no such table"):
        worlds.open(PROVIDER, "banking_knowledge").open().initialise(state)


@pytest.mark.parametrize(
    ("function", "message"), [("fly", "no function 'fly'"), ("set_data_usage", "raised TypeError")]
)
def test_an_initial_state_that_does_not_fit_is_refused(worlds: Worlds, function: str, message: str) -> None:
    call = {"env_type": "assistant", "func_name": function, "arguments": {}}
    task = Task.model_validate({"id": "t", "initial_state": {"initialization_actions": [call]}})
    with pytest.raises(WorldError, match=message):
        worlds.open(PROVIDER, "telecom").open().initialise(task.initial_state)
