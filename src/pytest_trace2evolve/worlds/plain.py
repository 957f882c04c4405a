"""Worlds of a project's own: made from a plain class, whose methods are the tools, or from an MCP server."""

import asyncio
import inspect
import json
import sys
import threading
import typing
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.failure import Difference
from pytest_trace2evolve.records.message import Requestor
from pytest_trace2evolve.records.protocols import ToolResult, ToolSchema, WorldSession
from pytest_trace2evolve.records.rules import Rules
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import DATABASE_EQUALS, Action, Assertion, InitialState, Task
from pytest_trace2evolve.scoring.differences import find_differences
from pytest_trace2evolve.scoring.matchers import contains_matcher, put, resolve, satisfies
from pytest_trace2evolve.utils.canonical import canonical_json, digest
from pytest_trace2evolve.utils.reading import read_text
from pytest_trace2evolve.worlds.plain_data import (
    DataType,
    Snapshot,
    is_same,
    load_data,
    merge_json,
    to_json,
    without_nulls,
)
from pytest_trace2evolve.worlds.tool_schemas import ToolMethod, own_annotation, strip_hint, tool_methods

MAX_KEPT_STATES = 64
"""Maximum number of tasks' initial states that a world keeps for further sessions of the same tasks."""

GUIDELINES = """\
You play a customer who talks to a support agent. The scenario below says who you are, what you want and what
you know.

- Write as the customer, one short message at a time, in your own words.
- Begin with what you want. Tell a fact only when the agent asks for it.
- Know nothing that the scenario does not say, and make nothing up.
- Agree to a change only if it is what you want.
- When you have what you want, or it is refused and you accept that, write ###STOP###.
- When the agent has transferred you to a human, write ###TRANSFER###.
- When the scenario does not say what you need to go on, write ###OUT-OF-SCOPE###.
"""
"""The default instructions for a model that plays the user."""


class World(ABC):
    """A domain of a project's own; a suite names it by its import path, such as `app.hotel:world`.

    Make one with `World.from_tools` or `World.from_mcp`.

    Attributes:
        provider: The name of the world in messages.
        domain: The same name as `provider`.
    """

    def __init__(self, name: str, policy: str, guidelines: str, rules: Rules | None) -> None:
        self.provider = self.domain = name
        self._policy = policy
        self._guidelines = guidelines
        self._rules = rules

    @classmethod
    def from_tools(
        cls,
        tools: type,
        *,
        data: str | Path | Mapping[str, Any] | BaseModel | None = None,
        policy: str | Path = "",
        name: str | None = None,
        guidelines: str = GUIDELINES,
        rules: Rules | None = None,
        reads: Sequence[str] = (),
    ) -> "ToolsWorld":
        """Make a world from a class whose public methods are the agent's tools.

        Each session gets an instance of the class with its own copy of the database. If the constructor
        takes an argument, it gets the database. Otherwise the attribute `db` is set to the database.

        Args:
            tools: The class. Schemas come from type hints, descriptions from docstrings.
            data: The database: a JSON or YAML file, a mapping, or a pydantic model. A relative path is
                relative to the file that defines `tools`. The annotation of the constructor's argument, or of
                the class attribute `db`, validates a file or a mapping.
            policy: The text that the agent must follow, or the path of a file with it.
            name: The world's name; by default the name of the class, without `Tools`, in lower case.
            guidelines: Instructions for a model that plays the user.
            rules: Rules whose breaches are counted in every trace.
            reads: Tools that never change the database. Reports count their calls as reads, and scoring does
                not replay them. Every other tool may change the database.

        Raises:
            WorldError: the class has no tools, a file cannot be read, or the data do not fit the model.
        """
        if not inspect.isclass(tools):
            raise WorldError(f"from_tools got a {type(tools).__name__}, not a class; pass the class itself")
        folder = _folder_of(tools)
        name = name or (tools.__name__.removesuffix("Tools") or tools.__name__).lower()
        data_type = DataType(_database_hint(tools), f"the database of {tools.__name__}")
        source = f"the data {data}" if isinstance(data, str | Path) else "the data"
        database = data_type.validate(load_data(data, folder), source)
        return ToolsWorld(
            tools,
            database,
            data_type,
            reads,
            name=name,
            policy=_policy_text(policy, folder),
            guidelines=guidelines,
            rules=rules,
        )

    @classmethod
    def from_mcp(
        cls,
        command: str | Sequence[str],
        *,
        reset: str | Sequence[str] | None = None,
        state: str | None = None,
        policy: str | Path = "",
        name: str = "mcp",
        guidelines: str = GUIDELINES,
        rules: Rules | None = None,
        reads: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        folder: str | Path | None = None,
        timeout: float = 60.0,
        start_timeout: float = 30.0,
    ) -> "World":
        """Make a world from an MCP server that talks over stdio; needs the extra `mcp`.

        Each session starts a process of the server. The environment variable `TRACE2EVOLVE_SESSION` names an
        empty folder of the session, in which a server can keep its data. A server that cannot be started or
        does not answer in time loses the simulation, which is then not scored.

        Args:
            command: The command that starts the server.
            reset: The name of a tool, or a command (a list, or a text with spaces), that restores the initial
                data at the start of a session. A command runs before the server starts. None for a server
                that starts with its initial data.
            state: The name of a tool that returns the database as JSON. Without it, the database cannot be
                compared, so tasks can only expect calls and texts.
            policy: The text that the agent must follow, or the path of a file with it.
            name: The world's name.
            guidelines: Instructions for a model that plays the user.
            rules: Rules whose breaches are counted in every trace.
            reads: Tools that never change the database; by default those that the server annotates as
                read-only.
            env: Environment variables of the server and the reset command. Without it, they get only those
                that the MCP SDK passes on, such as `PATH` and `HOME`, and no keys of the shell.
            folder: The folder in which commands run and from which relative paths start; by default the
                folder of the calling file.
            timeout: Seconds in which the server must answer each call.
            start_timeout: Seconds in which the server must start.

        Raises:
            WorldError: the command is empty, a file cannot be read, or a value of `env` is not text.
        """
        from pytest_trace2evolve.worlds.mcp_server import McpWorld

        caller = sys._getframe(1).f_globals.get("__file__")
        start = Path(caller).parent if caller else Path.cwd()
        root = start if folder is None else start / folder
        return McpWorld(
            command,
            reset,
            state,
            reads,
            root,
            (start_timeout, timeout),
            env or {},
            name=name,
            policy=_policy_text(policy, root),
            guidelines=guidelines,
            rules=rules,
        )

    def tasks(self) -> Mapping[str, Task]:
        """Return no tasks, because a suite names the file with its tasks."""
        return {}

    def splits(self) -> Mapping[str, Sequence[str]]:
        """Return no splits, because there are no tasks."""
        return {}

    def policy(self, *, solo: bool = False) -> str:
        """Return the text that the agent must follow. Raises `WorldError` in solo mode."""
        if solo:
            raise WorldError(f"world {self.domain!r} has no solo mode")
        return self._policy

    def guidelines(self) -> str:
        """The instructions for a model that plays the user."""
        return self._guidelines

    @abstractmethod
    def tools(self, requestor: Requestor) -> Sequence[ToolSchema]:
        """The agent's tools; the user has none."""

    def tool_types(self) -> Mapping[str, ToolType]:
        """Return the type of each tool: READ if it is known to change nothing, else WRITE."""
        return {
            tool.name: ToolType.WRITE if self.changes_state(tool.name) else ToolType.READ
            for tool in self.tools("assistant")
        }

    def has_tool(self, name: str) -> bool:
        """Whether the agent can call a tool of this name."""
        return any(tool.name == name for tool in self.tools("assistant"))

    @abstractmethod
    def changes_state(self, name: str) -> bool:
        """Whether a tool may change the database."""

    def has_arguments(self, name: str, arguments: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
        """Whether a call has the expected arguments as its tool gets them: converted, and with defaults.

        Expected arguments may contain matchers.
        """
        schema = next((tool.parameters for tool in self.tools("assistant") if tool.name == name), {})
        properties = schema.get("properties", {})
        if arguments.keys() <= properties.keys():  # otherwise the tool rejects the call
            defaults = {key: value["default"] for key, value in properties.items() if "default" in value}
            arguments = {**defaults, **arguments}
        method: ToolMethod | None = getattr(self, "methods", {}).get(name)  # a server converts in its own way
        convert = method.convert_argument if method else lambda _, value: value
        return all(
            key in arguments
            and satisfies(
                value if contains_matcher(value) else convert(key, value),
                convert(key, arguments[key]),
                is_same,
            )
            for key, value in expected.items()
        )

    @abstractmethod
    def open(self, *, solo: bool = False) -> "PlainSession":
        """Open a session with its own database."""

    @abstractmethod
    def data_digest(self) -> str:
        """Digest of the initial database."""

    def rules(self) -> Rules | None:
        """The rules whose breaches are counted; None if there are none."""
        return self._rules

    def version(self) -> str:
        """Return an empty text, because the lock identifies the code instead."""
        return ""


class PlainSession(WorldSession):
    """A session of a world of a project's own."""

    @abstractmethod
    def data(self) -> Any:
        """The current database as JSON."""

    @abstractmethod
    def expected_data(self, changes: Mapping[str, Any]) -> Any:
        """The initial database of the task with the changes that the task expects, as JSON.

        Raises:
            WorldError: the changes do not fit the database.
        """

    def check(self, assertion: Assertion) -> bool:
        """Whether an assertion holds.

        Raises:
            WorldError: the assertion is unknown, or its data do not fit the database.
        """
        if assertion.func_name != DATABASE_EQUALS:
            raise WorldError(
                f"this world has no assertion {assertion.func_name!r}; it has only {DATABASE_EQUALS}"
            )
        is_equal = not self.data_differences(assertion.arguments.get("data") or {})
        return is_equal == assertion.assert_value

    def data_differences(self, changes: Mapping[str, Any]) -> list[Difference]:
        """Return the places in which the database differs from the one that a task expects.

        A missing key equals a null.

        Raises:
            WorldError: the changes do not fit the database.
        """
        return list(find_differences(*self._compared_data(changes), is_same=self.is_same_value))

    def databases(self) -> Mapping[str, Any]:
        """The database, to show how it differs from the expected one."""
        return {"agent": self.data()}

    def compared_databases(self, assertion: Assertion) -> tuple[Any, Any] | None:
        """The databases that a `database_equals` assertion compares; None for any other assertion."""
        if assertion.func_name != DATABASE_EQUALS:
            return None
        return self._compared_data(assertion.arguments.get("data") or {})

    def is_same_value(self, expected: Any, actual: Any) -> bool:
        """Whether two values of the database are equal; see `is_same`."""
        return is_same(expected, actual)

    def _compared_data(self, changes: Mapping[str, Any]) -> tuple[Any, Any]:
        actual = self.data()
        known_changes, values = resolve(changes, actual, self.is_same_value)
        try:
            expected = self.expected_data(known_changes)
        except WorldError:
            if not values:
                raise
            # A value that is missing or wrong in place of a matcher does not fit the database's type.
            expected = merge_json(self.expected_data({}), known_changes)
        for path, value in values.items():
            put(expected, path, value)
        return without_nulls(expected), without_nulls(actual)

    def sync(self) -> None:
        """Do nothing, because there is one database."""

    def same_state(self, other: WorldSession) -> bool:
        """Whether both databases are equal."""
        if not isinstance(other, PlainSession):
            raise TypeError(f"cannot compare a {type(self).__name__} with a {type(other).__name__}")
        return is_same(self.data(), other.data())


class ToolsWorld(World):
    """A world made from a plain class; see `World.from_tools`."""

    def __init__(
        self,
        tools: type,
        database: Any,
        data_type: DataType,
        reads: Sequence[str],
        *,
        name: str,
        policy: str,
        guidelines: str,
        rules: Rules | None,
    ) -> None:
        super().__init__(name, policy, guidelines, rules)
        self.tools_class = tools
        self.methods = tool_methods(tools)
        self.data_type = data_type
        if isinstance(reads, str) or (unknown := [tool for tool in reads if tool not in self.methods]):
            value = reads if isinstance(reads, str) else unknown[0]
            problem = "is a text, not a list" if isinstance(reads, str) else "is not a tool"
            raise WorldError(f"world {name!r}: reads: {value!r} {problem}; list names of {tools.__name__}")
        self._reads = frozenset(reads)
        try:
            self._initial = Snapshot(database)
        except Exception as error:  # an object of any class may be in the data
            cause = " ".join(f"{type(error).__name__}: {error}".split())
            raise WorldError(
                f"world {name!r}: its data cannot be copied ({cause}); use plain data"
            ) from error
        self._states: dict[str, Snapshot] = {}
        self._lock = threading.Lock()
        self._digest = digest(to_json(database))
        self.attribute = ""
        # An instance is created here, so that an unusable class is reported before the simulations.
        self.attribute = _database_attribute(*self.create(self._initial))

    def create(self, initial: Snapshot) -> tuple[Any, Any]:
        """Create an instance of the class, and return it with its database.

        Raises:
            WorldError: the constructor raises.
        """
        cls, database = self.tools_class, initial.copy()
        parameters = _constructor_parameters(cls)
        try:
            if not parameters:
                tools = cls()
                tools.db = database
            elif parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
                tools = cls(**{parameters[0].name: database})
            else:
                tools = cls(database)
        except Exception as error:
            cause = " ".join(f"{type(error).__name__}: {error}".split())
            raise WorldError(
                f"{cls.__name__} cannot be created: {cause}; its constructor must take only the database"
            ) from error
        return tools, database

    def state_of(self, update: Mapping[str, Any]) -> Snapshot:
        """The initial database with the data of a task.

        Raises:
            WorldError: the data do not fit the database.
        """
        key = canonical_json(to_json(update))
        with self._lock:
            state = self._states.get(key)
        if state is None:
            state = Snapshot(self.data_type.merge(self._initial.copy(), update, "the task's data"))
            with self._lock:
                if len(self._states) >= MAX_KEPT_STATES:
                    self._states.pop(next(iter(self._states)))
                self._states[key] = state
        return state

    def tools(self, requestor: Requestor) -> Sequence[ToolSchema]:
        """The agent's tools; the user has none."""
        return [method.schema for method in self.methods.values()] if requestor == "assistant" else []

    def has_tool(self, name: str) -> bool:
        """Whether the agent can call a tool of this name."""
        return name in self.methods

    def changes_state(self, name: str) -> bool:
        """Whether a tool may change the database. Tools declared in `reads` may not."""
        return name in self.methods and name not in self._reads

    def open(self, *, solo: bool = False) -> "ToolsSession":
        """Open a session with its own copy of the database."""
        return ToolsSession(self, self._initial)

    def data_digest(self) -> str:
        """Digest of the initial database."""
        return self._digest

    def code_roots(self) -> tuple[object, ...]:
        """The objects whose code decides the results of the tools."""
        return (self.tools_class, *_classes_in(self.data_type.hint))


class ToolsSession(PlainSession):
    """An instance of the class of a world, with its own copy of the database.

    The instance is created when it is first needed, so the constructor sees the data of the task.
    """

    def __init__(self, world: ToolsWorld, initial: Snapshot) -> None:
        self._world = world
        self._initial = initial
        self._tools: Any = None

    @property
    def tools(self) -> Any:
        """The instance of the class."""
        if self._tools is None:
            self._tools, _ = self._world.create(self._initial)
        return self._tools

    @property
    def db(self) -> Any:
        """The current database."""
        return getattr(self.tools, self._world.attribute)

    def data(self) -> Any:
        """The current database as JSON."""
        return to_json(self.db)

    def expected_data(self, changes: Mapping[str, Any]) -> Any:
        """The initial database of the task with the changes that the task expects, as JSON."""
        initial = self._initial.copy()
        return to_json(
            self._world.data_type.merge(initial, changes, "the expected data") if changes else initial
        )

    def initialise(self, state: InitialState | None) -> None:
        """Merge a task's data into the database.

        Raises:
            WorldError: the data do not fit, or the task has data for the user or initialization actions.
        """
        agent_data = initial_data(state)
        if agent_data:
            self._initial, self._tools = self._world.state_of(agent_data), None

    def call(self, name: str, arguments: Mapping[str, Any], requestor: Requestor) -> ToolResult:
        """Call a tool. If the tool raises an exception, the result is an error, as in τ²."""
        tools = self.tools
        try:
            return ToolResult(content=rendered(self._invoke(tools, name, arguments)))
        except Exception as error:
            # The text may quote an argument with half a surrogate pair, which no record can hold.
            needs_type = isinstance(error, KeyError) or not str(error)
            prefix = f"{type(error).__name__}: " if needs_type else ""
            text = f"Error: {prefix}{error}".encode("utf-8", "replace").decode()
            return ToolResult(content=text, error=True)

    def perform(self, action: Action) -> None:
        """Carry out a gold action, ignoring its errors."""
        tools = self.tools
        try:
            self._invoke(tools, action.name, action.arguments)
        except Exception:
            return  # as in τ²'s evaluator

    def _invoke(self, tools: Any, name: str, arguments: Mapping[str, Any]) -> Any:
        method: ToolMethod | None = self._world.methods.get(name)
        if method is None:
            raise ValueError(f"Tool '{name}' not found.")
        result = getattr(tools, name)(**method.convert(arguments))
        return _run_coroutine(result) if inspect.isawaitable(result) else result


def initial_data(state: InitialState | None) -> dict[str, Any]:
    """The data that a task adds to the agent's database.

    Raises:
        WorldError: the task has data for the user or initialization actions.
    """
    if state is None:
        return {}
    data = state.initialization_data
    if data is not None and data.user_data:
        raise WorldError("initialization data for the user, who has no database in this world")
    for call in state.initialization_actions or []:
        raise WorldError(f"initialization action {call.func_name!r}: this world has none; use data")
    return (data.agent_data or {}) if data is not None else {}


def rendered(result: Any) -> str:
    """Return the text that a model reads: a text unchanged, anything else as JSON."""
    return result if type(result) is str else json.dumps(to_json(result), ensure_ascii=False)


def _run_coroutine(result: Any) -> Any:
    """Return the result of an asynchronous tool. It runs in a new thread, because a loop runs in this one."""

    async def wait_for_result() -> Any:
        return await result

    with ThreadPoolExecutor(1, thread_name_prefix="trace2evolve-tool") as thread:
        return thread.submit(lambda: asyncio.run(wait_for_result())).result()


def _folder_of(cls: type) -> Path:
    try:
        return Path(inspect.getfile(cls)).parent
    except (TypeError, OSError):  # a class of an interactive session
        return Path.cwd()


def _constructor_parameters(cls: type) -> list[inspect.Parameter]:
    if "__init__" not in {name for base in cls.__mro__[:-1] for name in vars(base)}:
        return []
    ignored = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        parameter for parameter in inspect.signature(cls).parameters.values() if parameter.kind not in ignored
    ]


def _database_hint(cls: type) -> Any:
    """Return the type of the database by the hint of the constructor or of `db`; None for any mapping.

    Raises:
        WorldError: the hint cannot be read.
    """
    parameters = _constructor_parameters(cls)
    owner = inspect.getattr_static(cls, "__init__") if parameters else cls
    name = parameters[0].name if parameters else "db"
    try:
        hint = typing.get_type_hints(owner, include_extras=True).get(name)
    except Exception as error:  # a hint is any expression
        if not own_annotation(owner, name):
            return None
        raise WorldError(f"{cls.__name__}: the type hint of {name!r} cannot be read ({error})") from None
    hint = strip_hint(hint)
    is_untyped = hint in (None, Any, dict, Mapping) or (typing.get_args(hint) and hint == dict[str, Any])
    return None if is_untyped else hint


def _classes_in(hint: Any) -> list[type]:
    """Return the classes that a type hint names."""
    if inspect.isclass(hint) and not typing.get_args(hint):
        return [hint]
    return [cls for argument in typing.get_args(hint) for cls in _classes_in(argument)]


def _database_attribute(tools: object, database: Any) -> str:
    """Return the name of the attribute that holds the database."""
    names = ["db", *getattr(tools, "__dict__", ())]
    names += [name for base in type(tools).__mro__ for name in getattr(base, "__slots__", ())]
    values = {name: getattr(tools, name, None) for name in names if isinstance(name, str)}
    for name, value in values.items():
        if value is database:
            return name
    for name, value in values.items():
        if type(value) is type(database) and is_same(to_json(value), to_json(database)):
            return name
    raise WorldError(
        f"{type(tools).__name__} keeps its database in no attribute; assign the constructor's argument to "
        "self.db, because the database after a simulation is compared with the expected one"
    )


def _policy_text(policy: str | Path, folder: Path) -> str:
    if isinstance(policy, str) and ("\n" in policy or not policy.endswith((".md", ".txt"))):
        return policy
    return read_text(folder / policy, WorldError, "correct the path of the policy")
