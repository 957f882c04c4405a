"""The support world: what its domain offers, over whatever database it is given."""

import functools
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from pytest_trace2evolve import __version__
from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.message import Requestor
from pytest_trace2evolve.records.protocols import ToolSchema
from pytest_trace2evolve.records.rules import Rules
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.worlds.retail_rules import RETAIL_RULES
from pytest_trace2evolve.worlds.support.schemas import TOOL_TYPES, tool_schemas
from pytest_trace2evolve.worlds.support.session import SupportSession
from pytest_trace2evolve.worlds.support.store import MergedStores, Store

PROVIDER = "trace2evolve"
DOMAIN = "support"


class SupportWorld:
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
        self._store = Store.read(store)
        self._merges = MergedStores(self._store)

    def tasks(self) -> Mapping[str, Task]:
        """None: a suite names the files that its tasks are in."""
        return {}

    def splits(self) -> Mapping[str, Sequence[str]]:
        """None, as there are no tasks."""
        return {}

    def policy(self, *, solo: bool = False) -> str:
        """The text the agent must follow.

        Raises:
            WorldError: solo mode, which the domain does not have.
        """
        if solo:
            raise WorldError(f"domain {self.domain!r} has no solo mode")
        return _text("policy.md")

    def guidelines(self) -> str:
        """How a model that plays the customer is to behave."""
        return _text("guidelines.md")

    def tools(self, requestor: Requestor) -> Sequence[ToolSchema]:
        """The agent's tools; the user has none."""
        return self._schemas if requestor == "assistant" else []

    @functools.cached_property
    def _schemas(self) -> Sequence[ToolSchema]:
        return tool_schemas()

    def tool_types(self) -> Mapping[str, ToolType]:
        """What each tool does."""
        return TOOL_TYPES

    def has_tool(self, name: str) -> bool:
        """Whether the agent can call a tool of this name."""
        return name in TOOL_TYPES

    def changes_state(self, name: str) -> bool:
        """Whether a tool can change the database."""
        return TOOL_TYPES.get(name) is ToolType.WRITE

    def open(self, *, solo: bool = False) -> SupportSession:
        """A fresh session over the store."""
        return SupportSession(self._store, self._merges, solo=solo)

    def data_digest(self) -> str:
        """Digest of the store's content, in its whole shape: optional fields count as null."""
        return self._digest

    @functools.cached_property
    def _digest(self) -> str:
        return digest(self._store.content())

    def rules(self) -> Rules:
        """What every agent in it must keep to: the policy is that of retail in other words."""
        return RETAIL_RULES

    def version(self) -> str:
        """Version of this package."""
        return __version__


@functools.cache
def _text(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")
