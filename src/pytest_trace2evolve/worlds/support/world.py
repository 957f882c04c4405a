"""The support world, which runs its domain's tools over a given retail database."""

import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any

from pytest_trace2evolve import __version__
from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.message import Requestor
from pytest_trace2evolve.records.protocols import ToolSchema, World
from pytest_trace2evolve.records.rules import Rules
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Assertion, FunctionCall, InitializationData, Task
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.worlds.copy_on_write import OverlayDatabase, WriteMode, merge
from pytest_trace2evolve.worlds.retail_rules import RETAIL_RULES
from pytest_trace2evolve.worlds.support.database import RetailDB
from pytest_trace2evolve.worlds.support.tools import TOOL_TYPES, RetailAgentTools, tool_schemas
from pytest_trace2evolve.worlds.toolkit import ToolkitSession

PROVIDER = "trace2evolve"
DOMAIN = "support"

_TOOLS: Mapping[Requestor, frozenset[str]] = {"assistant": frozenset(TOOL_TYPES)}
_WRITER_TOOLS = frozenset(name for name, kind in TOOL_TYPES.items() if kind is ToolType.WRITE)
_SORTED_TOOLS = frozenset({"list_all_product_types"})
_MAX_MERGED_STORES = 256  # each holds references to all records of its original store


class SupportWorld(World):
    """A retail store's support desk, without tasks of its own; tasks bring the data that they need.

    Args:
        domain: `support`.
        store: A retail database in τ²'s shape, `{"products": …, "users": …, "orders": …}`, each table with
            its records by key. None means an empty database, which each task's initialization data fill.

    Raises:
        WorldError: the domain is unknown, or the store has a different shape.
    """

    provider = PROVIDER
    fingerprint = "support 1"
    """Version of the tools' behaviour; a golden test fails if the tools change but the version does not."""

    def __init__(self, domain: str = DOMAIN, store: Mapping[str, Any] | None = None) -> None:
        if domain != DOMAIN:
            raise WorldError(f"provider {PROVIDER!r} has no domain {domain!r}; it has {DOMAIN}")
        self.domain = domain
        self._store = RetailDB.read(store or {})
        self._merged_stores = _MergedStores()

    def tasks(self) -> Mapping[str, Task]:
        """Return no tasks, because a suite names the files with its tasks."""
        return {}

    def splits(self) -> Mapping[str, Sequence[str]]:
        """Return no splits, because there are no tasks."""
        return {}

    def policy(self, *, solo: bool = False) -> str:
        """The text that the agent must follow. Raises `WorldError` for solo mode, which the domain lacks."""
        if solo:
            raise WorldError(f"domain {self.domain!r} has no solo mode")
        return _read_text("policy.md")

    def guidelines(self) -> str:
        """The instructions for a model that plays the customer."""
        return _read_text("guidelines.md")

    def tools(self, requestor: Requestor) -> Sequence[ToolSchema]:
        """The agent's tools; the user has none."""
        return tool_schemas() if requestor == "assistant" else []

    def tool_types(self) -> Mapping[str, ToolType]:
        return TOOL_TYPES

    def has_tool(self, name: str) -> bool:
        return name in TOOL_TYPES

    def changes_state(self, name: str) -> bool:
        return name in _WRITER_TOOLS

    def open(self, *, solo: bool = False) -> "SupportSession":
        return SupportSession(self._store, self._merged_stores, solo=solo)

    def data_digest(self) -> str:
        """Digest of the store's whole content, with absent optional fields as null."""
        return digest(self._store.model_dump())

    def rules(self) -> Rules:
        """The rules of τ² retail, which this domain's policy states in other words."""
        return RETAIL_RULES

    def version(self) -> str:
        """Version of this package."""
        return __version__


class SupportSession(ToolkitSession):
    """One private copy of a store."""

    def __init__(self, store: RetailDB, merged_stores: "_MergedStores", *, solo: bool) -> None:
        mode = WriteMode()
        self._store = store
        self._merged_stores = merged_stores
        super().__init__(
            agent=RetailAgentTools(OverlayDatabase(store, mode)),
            tools=_TOOLS,
            writers=_WRITER_TOOLS,
            sorted_tools=_SORTED_TOOLS,
            mode=mode,
            solo=solo,
        )

    def check(self, assertion: Assertion) -> bool:
        """Always raises `WorldError`: the world has no functions for assertions."""
        raise WorldError(
            f"domain 'support' has no assertion {assertion.func_name!r} or any other; its tasks are scored "
            "by their gold actions; remove it from 'env_assertions'"
        )

    def _function(self, call: FunctionCall) -> Callable[..., Any] | None:
        return super()._function(call) if call.func_name in TOOL_TYPES else None

    def _merge(self, data: InitializationData) -> None:
        if data.user_data or self.agent.db.is_changed():
            super()._merge(data)
        else:
            self._store = self._merged_stores.get(self._store, data)
            self.agent.db = OverlayDatabase(self._store, self._mode)


class _MergedStores:
    """Stores with the initialization data of the latest tasks merged into them.

    Data are recognised by object identity, so they must not be changed in place.
    """

    def __init__(self) -> None:
        self._stores: OrderedDict[tuple[int, int], tuple[RetailDB, InitializationData, RetailDB]] = (
            OrderedDict()
        )

    def get(self, store: RetailDB, data: InitializationData) -> RetailDB:
        """The store with the data merged into it. Raises `WorldError` if the data do not fit."""
        key = id(store), id(data)
        if key not in self._stores:
            view = OverlayDatabase(store, WriteMode())
            merge(view, data.agent_data or {})
            tables: dict[str, Any] = {name: dict(table.items()) for name, table in vars(view).items()}
            self._stores[key] = store, data, RetailDB.model_construct(**tables)
            if len(self._stores) > _MAX_MERGED_STORES:
                self._stores.popitem(last=False)
        self._stores.move_to_end(key)
        return self._stores[key][-1]


@functools.cache
def _read_text(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")
