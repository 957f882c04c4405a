"""The support world: what its domain offers, over whatever database it is given."""

import functools
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any

from pytest_trace2evolve import __version__
from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.message import Requestor
from pytest_trace2evolve.records.protocols import ToolResult, ToolSchema, World, WorldSession
from pytest_trace2evolve.records.rules import Rules
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Assertion, FunctionCall, InitializationData, Task
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.worlds.overlay import WriteMode, fingerprint
from pytest_trace2evolve.worlds.retail_rules import RETAIL_RULES
from pytest_trace2evolve.worlds.support.store import Data, Row, Store, StoreCache
from pytest_trace2evolve.worlds.support.tools import TOOL_TYPES, RetailAgentTools, tool_schemas
from pytest_trace2evolve.worlds.toolkit import ToolkitSession

PROVIDER = "trace2evolve"
DOMAIN = "support"

_OFFERED: Mapping[Requestor, frozenset[str]] = {"assistant": frozenset(TOOL_TYPES), "user": frozenset()}


class SupportWorld(World):
    """A retail store's support desk. It has no tasks of its own: they come with the data that they need.

    Args:
        domain: `support`.
        store: A retail database in τ²'s shape, `{"products": …, "users": …, "orders": …}`, each table with
            its records by key; None: an empty one, which each task's initialization data fill.

    Raises:
        WorldError: another domain, or a store of another shape.
    """

    provider = PROVIDER
    fingerprint = "support 1"
    """Version of the tools' behaviour; a golden test fails if the tools change and this does not."""

    def __init__(self, domain: str = DOMAIN, store: Mapping[str, Any] | None = None) -> None:
        if domain != DOMAIN:
            raise WorldError(f"provider {PROVIDER!r} has no domain {domain!r}; it has {DOMAIN}")
        self.domain = domain
        self._stores = StoreCache(Store.read(store or {}))

    def tasks(self) -> Mapping[str, Task]:
        """No tasks: a suite names the files that its tasks are in."""
        return {}

    def splits(self) -> Mapping[str, Sequence[str]]:
        """No splits, as there are no tasks."""
        return {}

    def policy(self, *, solo: bool = False) -> str:
        """The text the agent must follow.

        Raises:
            WorldError: solo mode, which the domain does not have.
        """
        if solo:
            raise WorldError(f"domain {self.domain!r} has no solo mode")
        return _read_text("policy.md")

    def guidelines(self) -> str:
        """How a model that plays the customer is to behave."""
        return _read_text("guidelines.md")

    def tools(self, requestor: Requestor) -> Sequence[ToolSchema]:
        """The agent's tools; the user has none."""
        return self._schemas if requestor == "assistant" else []

    @functools.cached_property
    def _schemas(self) -> Sequence[ToolSchema]:
        return tool_schemas()

    def tool_types(self) -> Mapping[str, ToolType]:
        return TOOL_TYPES

    def has_tool(self, name: str) -> bool:
        return name in TOOL_TYPES

    def changes_state(self, name: str) -> bool:
        return TOOL_TYPES.get(name) is ToolType.WRITE

    def open(self, *, solo: bool = False) -> "SupportSession":
        return SupportSession(self._stores, solo=solo)

    def data_digest(self) -> str:
        """Digest of the store's content, in its whole shape: optional fields count as null."""
        return self._digest

    @functools.cached_property
    def _digest(self) -> str:
        return digest(self._stores.store.content())

    def rules(self) -> Rules:
        """What every agent in it must keep to: the policy is that of retail in other words."""
        return RETAIL_RULES

    def version(self) -> str:
        """Version of this package."""
        return __version__


class SupportSession(ToolkitSession):
    """One private copy of a store: it costs what it writes, and nothing done in it reaches another session.

    Args:
        stores: The store that it starts from, with tasks' initialization data merged into it.
        solo: Whether the user is absent.
    """

    def __init__(self, stores: StoreCache, *, solo: bool = False) -> None:
        self.agent: RetailAgentTools
        self._stores = stores
        agent = RetailAgentTools(stores.store)
        super().__init__(agent=agent, tools=_OFFERED, functions={}, mode=WriteMode(), solo=solo)

    def check(self, assertion: Assertion) -> bool:
        """Never a value: the world has no functions for assertions.

        Raises:
            WorldError: always.
        """
        raise WorldError(
            f"domain 'support' has no assertion {assertion.func_name!r}, nor any other; its tasks are scored "
            "by their gold actions: take it out of 'env_assertions'"
        )

    def same_state(self, other: WorldSession) -> bool:
        """Whether both databases are equal for tau2's hash; only records that may differ are compared."""
        if not isinstance(other, SupportSession):
            raise TypeError(f"cannot compare a {type(self).__name__} with a {type(other).__name__}")
        mine, theirs = self.agent, other.agent
        for name, table in mine.tables.items():
            keys = table.own.keys() | theirs.tables[name].own.keys()
            if mine.store is not theirs.store:
                keys |= mine.store.may_differ(name, theirs.store)
            if not all(_equal(table.get(key), theirs.tables[name].get(key)) for key in keys):
                return False
        return True

    def content(self) -> dict[str, dict[str, Data]]:
        """The whole database as this session sees it, as plain data to be read only."""
        content = self.agent.store.content()
        for name, table in self.agent.tables.items():
            content[name] |= {key: row.data for key, row in table.own.items()}
        return content

    def _answer(self, name: str, result: Row | str) -> ToolResult:
        return ToolResult(content=result) if isinstance(result, str) else result.answer

    def _function(self, call: FunctionCall) -> Callable[..., Any] | None:
        if call.env_type == "user" or call.func_name not in TOOL_TYPES:
            return None
        return super()._function(call)

    def _merge(self, data: InitializationData) -> None:
        own = {name: table.own for name, table in self.agent.tables.items()}
        if any(own.values()) or self.agent.store is not self._stores.store:
            store = self.agent.store.replaced(own).merged(data)
        else:
            store = self._stores.merged(data)
        self.agent = RetailAgentTools(store)


def _equal(mine: Row | None, theirs: Row | None) -> bool:
    if mine is None or theirs is None:
        return mine is theirs
    return mine.data is theirs.data or fingerprint(mine.data) == fingerprint(theirs.data)


@functools.cache
def _read_text(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")
