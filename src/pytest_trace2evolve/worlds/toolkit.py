"""Sessions that run a provider's toolkits, the benchmark's own tool code, on overlays of its databases."""

import json
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any

from pydantic import BaseModel

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.message import Requestor
from pytest_trace2evolve.records.protocols import ToolResult, WorldSession
from pytest_trace2evolve.records.task import Action, Assertion, FunctionCall, InitializationData, InitialState
from pytest_trace2evolve.worlds.copy_on_write import (
    OverlayDatabase,
    WriteMode,
    changed_contents,
    frozen_contents,
    is_equal,
    merge,
)


class ToolkitSession(WorldSession):
    """One private copy of a domain: the agent's toolkit, the user's toolkit and their databases.

    Banking logs calls of discoverable tools in its database. tau2 logs calls of a read-only tool only if the
    task's gold actions call this tool, so any other read does no harm. A session does not know its task and
    therefore logs every call. When two sessions are compared, they drop the entries of read-only tools that
    no gold action called.

    Args:
        agent: The agent's toolkit, whose `db` attribute is an overlay or a private copy.
        user: The user's toolkit, with a `db` attribute like the agent's; None if there is none.
        tools: Names of the tools that each side may call; a side without tools may be missing.
        writers: Names of the tools that can change a database.
        functions: Tools that are not methods of a toolkit, by name; they use no database.
        record_tools: Names of the tools that return a record as a dictionary.
        sorted_tools: Names of the tools whose results τ² sorts by key and the toolkit does not.
        hidden_readers: The agent's discoverable tools that only read.
        mode: The write mode of the overlays.
        sync: Copies the changes of one toolkit to the other; called after each call.
        solo: Whether the agent may call the user's tools.
    """

    def __init__(
        self,
        *,
        agent: Any,
        user: Any = None,
        tools: Mapping[Requestor, frozenset[str]],
        writers: frozenset[str] = frozenset(),
        functions: Mapping[str, Callable[..., Any]] | None = None,
        record_tools: frozenset[str] = frozenset(),
        sorted_tools: frozenset[str] = frozenset(),
        hidden_readers: frozenset[str] = frozenset(),
        mode: WriteMode,
        sync: Callable[[Any, Any], None] | None = None,
        solo: bool,
    ) -> None:
        self.agent = agent
        self.user = user
        self._tools = {"user": frozenset[str](), **tools}
        self._writers = writers
        self._functions = functions or {}
        self._record_tools = record_tools
        self._sorted_tools = sorted_tools
        self._unrequested_readers = set(hidden_readers)
        self._mode = mode
        self._sync = sync
        self._solo = solo
        self.sync()

    def initialise(self, state: InitialState | None) -> None:
        """Merge initialization data, then run the initialization actions (not the message history).

        Raises:
            WorldError: the data do not fit, or a function of the initial state does not exist or raises.
        """
        if state is None:
            return
        if state.initialization_data is not None:
            self._merge(state.initialization_data)
        for call in state.initialization_actions or []:
            self._run_function(call)

    def call(self, name: str, arguments: Mapping[str, Any], requestor: Requestor) -> ToolResult:
        """Call a tool for a participant; any exception becomes an error result, as in tau2."""
        try:
            result = self._invoke(name, arguments, requestor)
            self.sync()
            if name in self._sorted_tools:
                result = dict(sorted(result.items()))
            return ToolResult(content=render_result(result, is_record=name in self._record_tools))
        except Exception as error:
            # The text may quote an argument with half a surrogate pair, which no record can hold.
            text = f"Error: {error}".encode("utf-8", "replace").decode()
            return ToolResult(content=text, error=True)

    def perform(self, action: Action) -> None:
        name = action.arguments.get("agent_tool_name")
        if action.name == "call_discoverable_agent_tool" and isinstance(name, str):
            self._unrequested_readers.discard(name)
        try:
            self._invoke(action.name, action.arguments, action.requestor)
        except Exception:
            return  # as in tau2's evaluator: a gold action that fails leaves the world unchanged

    def check(self, assertion: Assertion) -> bool:
        """Return whether the assertion's function returns the required value.

        Raises:
            WorldError: the function does not exist, raises, or does not return true or false.
        """
        result = self._run_function(assertion)
        if not isinstance(result, bool):
            raise WorldError(
                f"assertion {assertion.func_name!r} returned {type(result).__name__}, not true or false; "
                "the task and the toolkit come from different versions of the benchmark"
            )
        return result == assertion.assert_value

    def sync(self) -> None:
        """Copy the changes of one toolkit to the other, if the domain needs it.

        Raises:
            WorldError: the two databases contradict each other.
        """
        if self._sync is None:
            return
        try:
            with self._mode.enable():
                self._sync(self.agent, self.user)
        except Exception as error:
            raise WorldError(f"the two toolkits cannot be synced: {error}") from error

    def same_state(self, other: WorldSession) -> bool:
        """Return whether both databases are equal, apart from log entries that no gold action requires."""
        if not isinstance(other, ToolkitSession):
            raise TypeError(f"cannot compare a {type(self).__name__} with a {type(other).__name__}")
        tools = self._unrequested_readers & other._unrequested_readers
        self._drop_log_entries(tools)
        other._drop_log_entries(tools)
        if not is_equal(self.agent.db, other.agent.db):
            return False
        is_database_shared = self.user is None or self.user.db is self.agent.db
        return is_database_shared or is_equal(self.user.db, other.user.db)

    def _drop_log_entries(self, tools: set[str]) -> None:
        if not tools:
            return
        log = self.agent.db.agent_discoverable_tools.data
        for key in [key for key, entry in log.items() if entry["tool_name"] in tools]:
            del log[key]

    def databases(self) -> dict[str, Any]:
        """Return the databases by side; a database that both sides share is the agent's."""
        databases = {"agent": self.agent.db}
        if self.user is not None and self.user.db is not self.agent.db:
            databases["user"] = self.user.db
        return {
            side: database.contents() if isinstance(database, OverlayDatabase) else database
            for side, database in databases.items()
        }

    def agent_database(self, other: "ToolkitSession | None" = None) -> Any:
        """Return the agent's database without records shared with another session, or else a copy."""
        return changed_contents(self.agent.db, other.agent.db) if other else frozen_contents(self.agent.db)

    def _invoke(self, name: str, arguments: Mapping[str, Any], requestor: Requestor) -> Any:
        if requestor == "user" and self._solo:
            raise ValueError("User tool calls are not allowed in solo mode")
        side = "user" if self._solo and name in self._tools["user"] else requestor
        if name not in self._tools[side]:
            raise ValueError(f"Tool '{name}' not found.")
        function = self._functions.get(name) or getattr(self._toolkit(side), name)
        if name not in self._writers:
            return function(**arguments)
        with self._mode.enable():
            return function(**arguments)

    def _toolkit(self, side: Requestor) -> Any:
        return self.user if side == "user" else self.agent

    def _run_function(self, call: FunctionCall) -> Any:
        function = self._function(call)
        if function is None:
            raise WorldError(
                f"the {call.env_type} toolkit has no function {call.func_name!r}; "
                "the task belongs to a different benchmark version"
            )
        try:
            with self._mode.enable():
                result = function(**call.arguments)
            self.sync()
        except Exception as error:
            raise WorldError(f"function {call.func_name!r} raised {type(error).__name__}: {error}") from error
        return result

    def _function(self, call: FunctionCall) -> Callable[..., Any] | None:
        return getattr(self._toolkit(call.env_type), call.func_name, None)

    def _merge(self, data: InitializationData) -> None:
        with self._mode.enable():
            if data.agent_data:
                merge(self.agent.db, data.agent_data)
            if data.user_data and self.user is None:
                raise WorldError(
                    "the task has initialization data for the user, but the user has no database in this "
                    "domain"
                )
            if data.user_data:
                merge(self.user.db, data.user_data)


def render_result(result: Any, *, is_record: bool = False) -> str:
    """Render a tool's result as the text that a model reads, by tau2's rules.

    Text is unchanged, except that a toolkit's compact JSON object or array is spaced as tau2 spaces it.
    A record keeps its numbers. In any other result, tau2 writes numbers as text.

    Args:
        result: The return value of the tool.
        is_record: Whether a dictionary is a record.
    """
    if isinstance(result, str):
        if result[:1] in ("{", "["):
            try:
                return json.dumps(json.loads(result))
            except (ValueError, RecursionError):
                return result
        return result
    return json.dumps(result if is_record else _to_renderable(result), default=str)


def _to_renderable(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return [_to_renderable(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _to_renderable(item) for key, item in value.items()}
    if isinstance(value, date | datetime):
        return value.isoformat()
    return value
