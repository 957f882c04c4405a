"""The reference for the support world: the retail toolkit of inspect_evals, over any database."""

from typing import Any

from pytest_trace2evolve.records.protocols import ToolResult
from pytest_trace2evolve.records.task import InitialState
from pytest_trace2evolve.worlds.copy_on_write import WriteMode, fingerprint
from pytest_trace2evolve.worlds.inspect_evals import InspectWorld
from pytest_trace2evolve.worlds.toolkit import ToolkitSession

State = dict[str, dict[str, str]]
"""A whole database: by table and key the text that tau2 would hash for a record."""

Known = dict[int, tuple[Any, str]]
"""Texts of records by identity, with the record, for stores too large to be written out after every test."""

TABLES = ("products", "users", "orders")


class Reference:
    """A session of inspect_evals' retail domain with `get_item_details`, which the port lacks."""

    def __init__(self, world: InspectWorld) -> None:
        self._session = world.open()
        self._lookup = ToolkitSession(
            agent=None,
            tools={"assistant": frozenset({"get_item_details"})},
            functions={"get_item_details": ItemLookup(self._session.agent).get_item_details},
            mode=WriteMode(),
            solo=False,
        )

    def initialise(self, state: InitialState) -> None:
        self._session.initialise(state)

    def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        session = self._lookup if name == "get_item_details" else self._session
        return session.call(name, arguments, "assistant")

    def state(self, known: Known | None = None) -> State:
        """The whole database."""
        return state(self._session, known)


class ItemLookup:
    def __init__(self, agent: Any) -> None:
        self._agent = agent

    def get_item_details(self, item_id: str) -> str:
        for product in self._agent.db.products.values():
            if item_id in product.variants:
                return str(product.variants[item_id].model_dump_json())
        raise ValueError("Item not found")

    get_item_details.__qualname__ = "RetailAgentTools.get_item_details"


def state(session: ToolkitSession, known: Known | None = None) -> State:
    """The whole database of a session."""
    known = {} if known is None else known
    return {
        name: {key: _text(record, known) for key, record in getattr(session.agent.db, name).items()}
        for name in TABLES
    }


def _text(record: Any, known: Known) -> str:
    if id(record) not in known:
        known[id(record)] = record, fingerprint(record)
    return known[id(record)][1]
