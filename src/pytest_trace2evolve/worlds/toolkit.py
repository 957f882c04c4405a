"""Sessions over a provider's toolkits: the benchmark's own tool code, run on overlays."""

import json
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any

from pydantic import BaseModel

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.message import Requestor
from pytest_trace2evolve.records.protocols import ToolResult, WorldSession
from pytest_trace2evolve.records.task import Action, Assertion, FunctionCall, InitializationData, InitialState
from pytest_trace2evolve.worlds.overlay import Access, OverlayDatabase, fingerprint, merge


class ToolkitSession:
    """One private copy of a domain: the agent's toolkit, the user's toolkit and their databases.

    Args:
        agent, user: Toolkits whose `db` attribute is an overlay (or a private copy); `user` may be None.
        tools: Names of the tools offered to each side.
        writers: Names of the tools that can change a database.
        generic: Tools that touch no database, by name.
        dumping: Names of the tools that return a record as a dictionary.
        sorting: Names of the tools whose answer upstream sorts by its keys, and the toolkit does not.
        access: The access shared by the overlays.
        sync: Called after each call; carries what one toolkit did over to the other.
        solo: Whether the agent may call the user's tools.
    """

    def __init__(
        self,
        *,
        agent: Any,
        user: Any,
        tools: Mapping[Requestor, frozenset[str]],
        writers: frozenset[str],
        generic: Mapping[str, Callable[..., Any]],
        access: Access,
        dumping: frozenset[str] = frozenset(),
        sorting: frozenset[str] = frozenset(),
        sync: Callable[[Any, Any], None] | None,
        solo: bool,
    ) -> None:
        self._agent = agent
        self._user = user
        self._tools = tools
        self._writers = writers
        self._generic = generic
        self._access = access
        self._dumping = dumping
        self._sorting = sorting
        self._sync = sync
        self._solo = solo
        self.sync()

    @property
    def touched(self) -> frozenset[str]:
        """Names of the records reached so far, as `table/key`."""
        return frozenset(self._access.touched)

    def initialise(self, state: InitialState | None) -> None:
        """Merge initialization data, then run the initialization actions.

        Raises:
            WorldError: a function of the initial state does not exist or raises.
        """
        if state is None:
            return
        if state.initialization_data is not None:
            self._merge(state.initialization_data)
        for call in state.initialization_actions or []:
            self._run(call)

    def call(self, name: str, arguments: Mapping[str, Any], requestor: Requestor) -> ToolResult:
        """Call a tool as a participant does; whatever it raises becomes an error result, as in tau2."""
        try:
            result = self._invoke(name, arguments, requestor)
            self.sync()
            if name in self._sorting:
                result = dict(sorted(result.items()))
            return ToolResult(content=render(result, dumped=name in self._dumping))
        except Exception as error:
            return ToolResult(content=f"Error: {error}", error=True)

    def perform(self, action: Action) -> None:
        """Carry out a gold action; its errors are ignored and nothing is synced, as in tau2's evaluator."""
        try:
            self._invoke(action.name, action.arguments, action.requestor)
        except Exception:
            # tau2 logs and goes on: a gold action that fails leaves the world as it is.
            return

    def check(self, assertion: Assertion) -> bool:
        """Whether the assertion's function returns the value it must return.

        Raises:
            WorldError: there is no such function, it raises, or it does not return true or false.
        """
        result = self._run(assertion)
        if not isinstance(result, bool):
            raise WorldError(
                f"assertion {assertion.func_name!r} returned {type(result).__name__}, not true or false; "
                "the task and the toolkit come from different versions of the benchmark"
            )
        return result == assertion.assert_value

    def sync(self) -> None:
        """Carry what one toolkit did over to the other, where the domain needs it.

        Raises:
            WorldError: the two databases contradict each other.
        """
        if self._sync is None:
            return
        try:
            with _Writing(self._access):
                self._sync(self._agent, self._user)
        except Exception as error:
            raise WorldError(f"the two toolkits cannot be synced: {error}") from error

    def same_state(self, other: WorldSession) -> bool:
        """Whether both databases equal those of another session of the same world."""
        if not isinstance(other, ToolkitSession):
            raise TypeError(f"cannot compare a {type(self).__name__} with a {type(other).__name__}")
        pairs = [(self._agent, other._agent)]
        if self._user is not None and self._user.db is not self._agent.db:
            pairs.append((self._user, other._user))
        return all(_same_database(mine.db, theirs.db) for mine, theirs in pairs)

    def _invoke(self, name: str, arguments: Mapping[str, Any], requestor: Requestor) -> Any:
        toolkit, offered = self._side(name, requestor)
        if toolkit is None or name not in offered:
            raise ValueError(f"Tool '{name}' not found.")
        function = self._generic.get(name) or getattr(toolkit, name)
        if name not in self._writers:
            return function(**arguments)
        with _Writing(self._access):
            return function(**arguments)

    def _side(self, name: str, requestor: Requestor) -> tuple[Any, frozenset[str]]:
        if requestor == "user":
            if self._solo:
                raise ValueError("User tool calls are not allowed in solo mode")
            return self._user, self._tools["user"]
        if self._solo and name in self._tools["user"]:
            return self._user, self._tools["user"]
        return self._agent, self._tools["assistant"]

    def _run(self, call: FunctionCall) -> Any:
        toolkit = self._user if call.env_type == "user" else self._agent
        function = getattr(toolkit, call.func_name, None)
        if function is None:
            raise WorldError(
                f"the {call.env_type} toolkit has no function {call.func_name!r}; "
                "the task belongs to another version of the benchmark"
            )
        try:
            with _Writing(self._access):
                result = function(**call.arguments)
            self.sync()
        except Exception as error:
            raise WorldError(f"function {call.func_name!r} raised {type(error).__name__}: {error}") from error
        return result

    def _merge(self, data: InitializationData) -> None:
        with _Writing(self._access):
            for toolkit, update in ((self._agent, data.agent_data), (self._user, data.user_data)):
                if update:
                    merge(toolkit.db, update)


class _Writing:
    """Lets overlays copy records for the length of a block; blocks nest."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def __enter__(self) -> None:
        self._before = self._access.writing
        self._access.writing = True

    def __exit__(self, *_: object) -> None:
        self._access.writing = self._before


def _same_database(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, OverlayDatabase) and isinstance(theirs, OverlayDatabase):
        return mine.same_as(theirs)
    return fingerprint(mine) == fingerprint(theirs)


def render(result: Any, *, dumped: bool = False) -> str:
    """The text a model reads for a tool's result, by tau2's rule.

    Text stands as it is, except that a toolkit's compact JSON object or array is spaced as tau2 spaces it.
    A record keeps its numbers; in any other dictionary tau2 writes them as text. `dumped` says that a
    dictionary is a record.
    """
    if isinstance(result, str):
        if result[:1] in ("{", "["):
            try:
                return json.dumps(json.loads(result))
            except (ValueError, RecursionError):
                return result
        return result
    return json.dumps(result if dumped else _renderable(result), default=str)


def _renderable(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return [_renderable(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _renderable(item) for key, item in value.items()}
    if isinstance(value, date | datetime):
        return value.isoformat()
    return value
