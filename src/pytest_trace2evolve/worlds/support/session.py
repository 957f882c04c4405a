"""One private copy of a store: it costs what it touches, and nothing done in it reaches another session."""

from collections.abc import Callable, Mapping
from typing import Any

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.message import Requestor
from pytest_trace2evolve.records.protocols import ToolResult, WorldSession
from pytest_trace2evolve.records.task import Action, Assertion, FunctionCall, InitialState
from pytest_trace2evolve.worlds.overlay import fingerprint
from pytest_trace2evolve.worlds.support.database import Data
from pytest_trace2evolve.worlds.support.schemas import TOOL_TYPES
from pytest_trace2evolve.worlds.support.store import MergedStores, Row, Store
from pytest_trace2evolve.worlds.support.tools import GENERIC, RetailAgentTools


class SupportSession:
    """A session of the support world.

    Args:
        store: The records that it starts from.
        merges: Where a task's initialization data are merged into that store.
        solo: Whether the user is absent.
    """

    __slots__ = ("_merges", "_solo", "_tools")

    def __init__(self, store: Store, merges: MergedStores, *, solo: bool = False) -> None:
        self._tools = RetailAgentTools(store)
        self._merges = merges
        self._solo = solo

    @property
    def touched(self) -> frozenset[str]:
        """Names of the records reached so far, as `table/key`.

        A record is reached where a tool looked it up, wrote it or found it, and where initialization data
        name it. The list of all product types reaches none.
        """
        names = set()
        for name, table in self._tools.tables.items():
            names |= {f"{name}/{key}" for key in table.reached | self._tools.store.changed[name]}
        return frozenset(names)

    def initialise(self, state: InitialState | None) -> None:
        """Merge initialization data, then run the initialization actions.

        Raises:
            WorldError: the data do not fit; or an action names no tool, or raises.
        """
        if state is None:
            return
        if state.initialization_data is not None:
            store = self._tools.store
            own = {name: table.own for name, table in self._tools.tables.items()}
            if any(own.values()):
                store = store.replaced(own)
            self._tools.restart(self._merges.merged(store, state.initialization_data))
        for call in state.initialization_actions or []:
            self._run(call)

    def call(self, name: str, arguments: Mapping[str, Any], requestor: Requestor) -> ToolResult:
        """Call a tool as a participant does; whatever it raises becomes an error result, as in tau2."""
        try:
            result = self._function(name, requestor)(**arguments)
        except Exception as error:
            text = f"Error: {error}"
            # An argument with half a surrogate pair stands in the text, and is none that a record takes.
            return ToolResult(content=text.encode("utf-8", "replace").decode(), error=True)
        return ToolResult(content=result) if isinstance(result, str) else result.answer

    def perform(self, action: Action) -> None:
        """Carry out a gold action; its errors are ignored, as in tau2's evaluator."""
        try:
            self._function(action.name, action.requestor)(**action.arguments)
        except Exception:
            # A gold action that fails leaves the world as it is.
            return

    def check(self, assertion: Assertion) -> bool:
        """Never a value: the world has no functions for assertions.

        Raises:
            WorldError: always.
        """
        raise WorldError(
            f"domain 'support' has no assertion {assertion.func_name!r}, nor any other; its tasks are scored "
            "by their gold actions: take it out of 'env_assertions'"
        )

    def sync(self) -> None:
        """Nothing: the user has no tools that the agent's could differ from."""

    def same_state(self, other: WorldSession) -> bool:
        """Whether both databases are equal; only records that may differ are compared.

        Equal is what tau2's hash takes for equal: 1 and 1.0 differ, the order of keys does not count.
        """
        if not isinstance(other, SupportSession):
            raise TypeError(f"cannot compare a {type(self).__name__} with a {type(other).__name__}")
        mine, theirs = self._tools, other._tools
        for name, table in mine.tables.items():
            keys = table.own.keys() | theirs.tables[name].own.keys()
            if mine.store is not theirs.store:
                keys |= mine.store.may_differ(name, theirs.store)
            if not all(_same(table.peek(key), theirs.tables[name].peek(key)) for key in keys):
                return False
        return True

    def content(self) -> dict[str, dict[str, Data]]:
        """The whole database as this session sees it, as plain data to be read only."""
        content = self._tools.store.content()
        for name, table in self._tools.tables.items():
            content[name] |= {key: row.data for key, row in table.own.items()}
        return content

    def _function(self, name: str, requestor: Requestor) -> Callable[..., Row | str]:
        if requestor == "user" and self._solo:
            raise ValueError("User tool calls are not allowed in solo mode")
        if requestor == "user" or name not in TOOL_TYPES:
            raise ValueError(f"Tool '{name}' not found.")
        function: Callable[..., Row | str] = GENERIC.get(name) or getattr(self._tools, name)
        return function

    def _run(self, call: FunctionCall) -> None:
        if call.env_type == "user" or call.func_name not in TOOL_TYPES:
            raise WorldError(
                f"the {call.env_type} toolkit has no function {call.func_name!r}; "
                "the task belongs to another version of the benchmark"
            )
        try:
            self._function(call.func_name, call.env_type)(**call.arguments)
        except Exception as error:
            raise WorldError(f"function {call.func_name!r} raised {type(error).__name__}: {error}") from error


def _same(mine: Row | None, theirs: Row | None) -> bool:
    if mine is None or theirs is None:
        return mine is theirs
    return mine.data is theirs.data or fingerprint(mine.data) == fingerprint(theirs.data)
