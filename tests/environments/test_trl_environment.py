"""The class of which trl makes tools: the world's own schemas, and nothing else that is public."""

import inspect
from typing import Any

import pytest

from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.environments.trl_environment import CONVERSATION_OVER, rollout_class
from pytest_trace2evolve.errors import GeneratorError
from pytest_trace2evolve.records.protocols import ToolSchema
from pytest_trace2evolve.worlds.support.world import SupportWorld

TOOLS = SupportWorld().tools("assistant")


def make() -> Any:
    return Environments().environment("precondition_verification", 5)


def test_the_methods_schemas_are_the_worlds() -> None:
    utils = pytest.importorskip("transformers.utils")
    made = rollout_class(TOOLS, make)()
    for tool in TOOLS:
        found = utils.get_json_schema(getattr(made, tool.name))["function"]
        found["parameters"].setdefault("required", [])  # left out if nothing is required
        parameters = {key: value for key, value in tool.parameters.items() if key != "additionalProperties"}
        assert found == {"name": tool.name, "description": tool.description, "parameters": parameters}


def test_numbers_choices_and_what_may_be_left_out_can_be_said() -> None:
    utils = pytest.importorskip("transformers.utils")
    parameters = {
        "type": "object",
        "properties": {
            "note": {"type": "string", "description": "A note.", "nullable": True},
            "rows": {
                "type": "array",
                "items": {"type": "array", "items": {"type": "integer"}},
                "description": "Rows.",
            },
            "kind": {"type": "string", "enum": ["a", "b"], "description": "Which."},
        },
        "required": ["rows", "kind"],
    }
    tool = ToolSchema(name="put", description="Put it.", parameters=parameters)
    found = utils.get_json_schema(rollout_class([tool], make)().put)["function"]
    assert found["parameters"] == parameters


def test_only_reset_and_the_tools_are_public() -> None:
    made = rollout_class(TOOLS, make)
    public = {
        name for name, _ in inspect.getmembers(made, predicate=inspect.isfunction) if not name.startswith("_")
    }
    assert public == {"reset", *(tool.name for tool in TOOLS)}
    assert made.__name__ == "Rollout"


def test_tools_answer_as_in_the_target_and_nothing_after_the_end() -> None:
    rollout: Any = rollout_class(TOOLS, make)()
    rollout.reset(seed=3, prompt=[], further="column")
    assert (
        rollout.get_order_details(order_id="#W0")
        == rollout.get_order_details("#W0")
        == "Error: Order not found"
    )
    assert rollout.get_order_details(number="#W0").startswith("Error: ")
    rollout.cancel_pending_order(order_id="#W0", reason="no longer needed")
    assert rollout._is_done
    assert rollout._reward() == 0.0
    assert rollout.get_order_details("#W0") == CONVERSATION_OVER
    rollout.reset(seed=3)
    assert rollout.get_order_details("#W0") == "Error: Order not found"


@pytest.mark.parametrize(
    ("name", "schema", "told"),
    [
        ("reset", {}, "tool 'reset' cannot be a method: rename it to a public identifier"),
        ("get-it", {}, "tool 'get-it' cannot be a method: rename it to a public identifier"),
        (
            "put",
            {"properties": {"x": {"type": "null"}}},
            (
                "tool 'put': parameter 'x' has type 'null'; "
                "must be one of string, integer, number, boolean, object, array"
            ),
        ),
    ],
)
def test_what_no_method_can_say_is_refused(name: str, schema: dict[str, Any], told: str) -> None:
    with pytest.raises(GeneratorError) as raised:
        rollout_class([ToolSchema(name=name, description="", parameters=schema)], make)
    assert str(raised.value) == told
