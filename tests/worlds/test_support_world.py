"""The support world: what it offers, its refusals, initial states, scoring, and that it stands alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve import __version__
from pytest_trace2evolve.cases.case import read_cases
from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.protocols import ToolResult, ToolSchema
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import InitializationData, InitialState
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.worlds.registry import Worlds
from pytest_trace2evolve.worlds.support.world import SupportWorld

ADDRESS = {
    "address1": "Elm Street 1",
    "address2": "",
    "city": "Springfield",
    "country": "USA",
    "state": "IL",
    "zip": "62701",
}
MUG = {"item_id": "m1", "options": {"color": "red"}, "available": True, "price": 8.5}
BLUE_MUG = {"item_id": "m2", "options": {"color": "blue"}, "available": True, "price": 10}
GONE_MUG = {"item_id": "m3", "options": {"color": "green"}, "available": False, "price": 9.0}
ORDER: dict[str, Any] = {
    "order_id": "#W1",
    "user_id": "una_1",
    "address": ADDRESS,
    "items": [
        {"name": "Mug", "product_id": "p1", "item_id": "m1", "price": 8.5, "options": {"color": "red"}}
    ],
    "status": "pending",
    "fulfillments": [],
    "payment_history": [{"transaction_type": "payment", "amount": 8.5, "payment_method_id": "gift_card_1"}],
}
STORE: dict[str, Any] = {
    "products": {
        "p1": {
            "name": "Mug",
            "product_id": "p1",
            "variants": {item["item_id"]: item for item in (MUG, BLUE_MUG, GONE_MUG)},
        }
    },
    "users": {
        "una_1": {
            "user_id": "una_1",
            "name": {"first_name": "Una", "last_name": "Öz"},
            "address": ADDRESS,
            "email": "una@example.com",
            "payment_methods": {
                "gift_card_1": {"source": "gift_card", "id": "gift_card_1", "balance": 3.0},
                "paypal_1": {"source": "paypal", "id": "paypal_1"},
            },
            "orders": ["#W1", "#W2"],
        }
    },
    "orders": {"#W1": ORDER, "#W2": {**ORDER, "order_id": "#W2", "status": "delivered"}},
}
CANCEL = {"order_id": "#W1", "reason": "no longer needed"}


@pytest.fixture
def world() -> SupportWorld:
    """The support world over a store of one customer, two orders and one product."""
    return SupportWorld(store=STORE)


def start_with(agent_data: Any = None, *, user_data: Any = None, actions: Any = None) -> InitialState:
    data = InitializationData(agent_data=agent_data, user_data=user_data)
    return InitialState.model_validate({"initialization_data": data, "initialization_actions": actions})


def test_the_registry_opens_it_over_an_empty_store(worlds: Worlds) -> None:
    world = worlds.open("trace2evolve", "support")
    assert (world.provider, world.domain, world.version()) == ("trace2evolve", "support", __version__)
    assert (dict(world.tasks()), dict(world.splits())) == ({}, {})
    assert world.open().call("list_all_product_types", {}, "assistant") == ToolResult(content="{}")
    assert world.open().call("get_order_details", {"order_id": "#W1"}, "assistant").error


def test_an_unknown_domain_names_the_one_there_is() -> None:
    with pytest.raises(WorldError) as caught:
        SupportWorld("retail")
    assert str(caught.value) == "provider 'trace2evolve' has no domain 'retail'; it has support"


def shape(tool: ToolSchema) -> tuple[Mapping[str, Any], list[str]]:
    """Names, types and necessity of a tool's parameters, without their descriptions."""
    types = {
        name: {key: value for key, value in one.items() if key != "description"}
        for name, one in tool.parameters["properties"].items()
    }
    return types, tool.parameters.get("required", [])


def test_the_tools_are_retails_and_the_item_lookup(world: SupportWorld, worlds: Worlds) -> None:
    mine = {tool.name: tool for tool in world.tools("assistant")}
    theirs = {tool.name: tool for tool in worlds.open("inspect_evals", "retail").tools("assistant")}
    assert {name: shape(mine[name]) for name in theirs} == {name: shape(theirs[name]) for name in theirs}
    assert mine.keys() - theirs.keys() == {"get_item_details"}
    assert shape(mine["get_item_details"]) == ({"item_id": {"type": "string"}}, ["item_id"])
    assert all(tool.description != theirs[name].description for name, tool in mine.items() if name in theirs)
    assert world.tools("user") == []


def test_the_types_of_tools_are_retails(world: SupportWorld, worlds: Worlds) -> None:
    retail = worlds.open("inspect_evals", "retail")
    assert world.tool_types() == {**retail.tool_types(), "get_item_details": ToolType.READ}
    for name in world.tool_types():
        assert world.has_tool(name)
        assert world.changes_state(name) == retail.changes_state(name)
    assert not world.has_tool("fly")
    assert not world.changes_state("fly")


BROKEN_STARTS = {
    "initialization data name 'ships', but the database has no such table": {"agent_data": {"ships": {}}},
    "initialization data do not fit 'orders': it: Input should be a valid dictionary": {
        "agent_data": {"orders": []}
    },
    "initialization data do not fit 'orders': items: must be a list, not 'none'": {
        "agent_data": {"orders": {"#W1": {"items": "none"}}}
    },
    "the task has initialization data for the user, but the user has no database in this domain": {
        "user_data": {"on": True}
    },
    "the assistant toolkit has no function 'fly'; the task belongs to a different benchmark version": {
        "actions": [{"env_type": "assistant", "func_name": "fly", "arguments": {}}]
    },
    "the user toolkit has no function 'calculate'; the task belongs to a different benchmark version": {
        "actions": [{"env_type": "user", "func_name": "calculate", "arguments": {"expression": "1"}}]
    },
    "function 'cancel_pending_order' raised ValueError: Invalid reason": {
        "actions": [
            {
                "env_type": "assistant",
                "func_name": "cancel_pending_order",
                "arguments": {**CANCEL, "reason": "x"},
            }
        ]
    },
}


@pytest.mark.parametrize(("text", "start"), BROKEN_STARTS.items())
def test_an_initial_state_that_does_not_fit_is_refused(
    world: SupportWorld, text: str, start: dict[str, Any]
) -> None:
    with pytest.raises(WorldError) as caught:
        world.open().initialise(start_with(**start))
    assert str(caught.value) == text


BROKEN_STORES: dict[str, Any] = {
    "unknown key 'ships'; known are orders, products, users": {"ships": {}},
    "orders: Input should be a valid dictionary": {"orders": []},
    "orders.#W1.status: Input should be 'processed', 'pending', 'pending (item modified)', 'delivered', "
    "'cancelled', 'exchange requested' or 'return requested', not 'lost'": {
        "orders": {"#W1": {**ORDER, "status": "lost"}}
    },
    "products.p1.variants.m1.price: Input should be a finite number, not inf": {
        "products": {"p1": {**STORE["products"]["p1"], "variants": {"m1": {**MUG, "price": float("inf")}}}}
    },
}


@pytest.mark.parametrize(("text", "store"), BROKEN_STORES.items())
def test_a_store_of_another_shape_is_refused(text: str, store: Any) -> None:
    with pytest.raises(WorldError) as caught:
        SupportWorld(store=store)
    assert str(caught.value) == f"the store does not have the expected shape: {text}"


def test_the_digest_is_of_the_content_whatever_its_layout() -> None:
    explicit = {
        **STORE,
        "orders": {key: {**row, "return_items": None} for key, row in STORE["orders"].items()},
    }
    backwards = dict(reversed(STORE.items()))
    assert SupportWorld(store=explicit).data_digest() == SupportWorld(store=backwards).data_digest()
    assert SupportWorld(store=STORE).data_digest() != SupportWorld().data_digest()


BEHAVIOUR = {"support 1": "e289d25954867b2e95e1404ba2cae1e6"}
"""By version of the tools' behaviour, the digest of what they answer to the calls of `golden_answers`."""

GOLDEN_CASES = Path(__file__).resolve().parents[2] / "suites" / "support"


def golden_answers() -> list[list[object]]:
    """Answers of the tools in the frozen cases: to each gold action, to its repetition, and to reads."""
    world = SupportWorld()
    answers: list[list[object]] = []
    for path in sorted(GOLDEN_CASES.glob("*.jsonl")):
        for case in read_cases(path):
            session = world.open()
            session.initialise(case.task.initial_state)
            calls = [(action.name, action.arguments) for action in case.task.actions]
            orders = {
                value for _, arguments in calls for key, value in arguments.items() if key == "order_id"
            }
            reads: list[tuple[str, Mapping[str, Any]]] = [
                *(("get_order_details", {"order_id": order}) for order in sorted(orders)),
                ("get_order_details", {"order_id": "#W0"}),
                ("list_all_product_types", {}),
                ("calculate", {"expression": "(2 + 3) * 4.5"}),
            ]
            for name, arguments in [*calls, *reads, *calls, *reads]:
                result = session.call(name, arguments, "assistant")
                answers.append([name, result.content, result.error])
    return answers


def test_the_tools_behave_as_their_version_says() -> None:
    answers = golden_answers()
    writes = {name for name, kind in SupportWorld().tool_types().items() if kind is ToolType.WRITE}
    assert {name for name, *_ in answers} >= writes
    assert digest(answers) == BEHAVIOUR[SupportWorld.fingerprint], (
        "the tools answer otherwise: raise SupportWorld.fingerprint and add its digest here"
    )
