"""What the support world is held to: the retail toolkit of inspect_evals, over any database."""

from collections.abc import Mapping
from typing import Any

from pytest_trace2evolve.records.protocols import ToolResult
from pytest_trace2evolve.utils.optional import quiet_import
from pytest_trace2evolve.worlds.inspect_evals import InspectWorld
from pytest_trace2evolve.worlds.overlay import fingerprint
from pytest_trace2evolve.worlds.support.session import SupportSession
from pytest_trace2evolve.worlds.toolkit import ToolkitSession

State = dict[str, dict[str, str]]
"""A whole database: by table and key the text that tau2 would hash for a record."""

Known = dict[int, tuple[Any, str]]
"""Texts of records by identity, with the record, for stores too large to be written out after every test."""

TABLES = ("products", "users", "orders")


def reference_world(store: Mapping[str, Any]) -> InspectWorld:
    """The retail domain of inspect_evals over another database than its own."""
    world = InspectWorld("retail")
    model = quiet_import("inspect_evals.tau2.retail.data_model").RetailDB
    world._databases["assistant"] = model.model_validate(store)
    return world


def open_reference(world: InspectWorld) -> ToolkitSession:
    """A session of it that has `get_item_details` too, which upstream's toolkit has and the port lacks."""
    session = world.open()
    agent = session._agent

    def get_item_details(self: Any, item_id: str) -> str:
        for key, product in agent.db.products.items():
            if item_id in product.variants:
                return str(agent.db.products[key].variants[item_id].model_dump_json())
        raise ValueError("Item not found")

    get_item_details.__qualname__ = "RetailAgentTools.get_item_details"
    session._generic = {**session._generic, "get_item_details": get_item_details.__get__(agent)}
    session._tools = {**session._tools, "assistant": session._tools["assistant"] | {"get_item_details"}}
    return session


def answer(session: ToolkitSession, name: str, arguments: dict[str, Any]) -> ToolResult:
    """The reference's answer to the agent."""
    return session.call(name, arguments, "assistant")


def reference_state(session: ToolkitSession, known: Known | None = None) -> State:
    """The whole database of a session of the reference."""
    tables = {name: dict(getattr(session._agent.db, name).items()) for name in TABLES}
    return _state(tables, {} if known is None else known)


def state(session: SupportSession, known: Known | None = None) -> State:
    """The whole database of a session of the support world."""
    return _state(session.content(), {} if known is None else known)


def _state(tables: Mapping[str, Mapping[str, Any]], known: Known) -> State:
    return {
        name: {key: _text(record, known) for key, record in table.items()} for name, table in tables.items()
    }


def _text(record: Any, known: Known) -> str:
    if id(record) not in known:
        known[id(record)] = record, fingerprint(record)
    return known[id(record)][1]
