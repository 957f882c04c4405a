"""A world made from a plain class: its public methods are the tools, and a file holds its database."""

import asyncio
import copy
import inspect
import json
import typing
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ValidationError

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.message import Requestor
from pytest_trace2evolve.records.protocols import ToolResult, ToolSchema, WorldSession
from pytest_trace2evolve.records.rules import Rules
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Action, Assertion, InitialState, Task
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.reading import (
    MAX_RECORD_BYTES,
    convert_failures,
    first_problem,
    parse_json,
    read_text,
)
from pytest_trace2evolve.utils.yaml_text import parse_yaml
from pytest_trace2evolve.worlds.copy_on_write import combine, fingerprint, to_plain
from pytest_trace2evolve.worlds.tool_schemas import tool_methods

DATABASE_EQUALS = "database_equals"
"""The assertion that compares the database with the expected one; every plain world has it."""

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


class World:
    """A domain of a project's own.

    Make one with `World.from_tools`. A suite names it by its import path, such as `app.hotel:world`.

    Attributes:
        provider: The name of the world in messages.
        domain: The same name.
    """

    def __init__(
        self,
        tools: type,
        database: Any,
        policy: str,
        *,
        name: str,
        guidelines: str = GUIDELINES,
        rules: Rules | None = None,
        reads: Sequence[str] = (),
    ) -> None:
        self.provider = self.domain = name
        self._cls = tools
        self._methods = tool_methods(tools)
        self._database = database
        self._policy = policy
        self._guidelines = guidelines
        self._rules = rules
        if unknown := [method for method in reads if method not in self._methods]:
            raise WorldError(f"world {name!r}: reads names {unknown[0]!r}, which is not a tool")
        self._reads = frozenset(reads)
        self.open()  # a class that cannot be created is an error now, not in every simulation

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
    ) -> Self:
        """Make a world from a class whose public methods are the agent's tools.

        Each session gets an instance of the class with its own copy of the database. If the constructor
        takes an argument, it gets the database. Otherwise the instance's attribute `db` is set to it.

        Args:
            tools: The class. Schemas come from type hints, descriptions from docstrings.
            data: The database: a JSON or YAML file, a mapping, or a pydantic model. A relative path is
                relative to the file that defines `tools`. The annotation of the constructor's argument, or of
                the class attribute `db`, names the pydantic model that validates a file or a mapping.
            policy: The text that the agent must follow, or the path of a file with it.
            name: The world's name; by default the name of the class, without `Tools`, in lower case.
            guidelines: Instructions for a model that plays the user.
            rules: Rules whose breaches are counted in every trace.
            reads: Tools that never change the database. They need no replay when a trace is scored. Without
                a declaration, every tool may change the database.

        Raises:
            WorldError: the class has no tools, a file cannot be read, or the data do not fit the model.
        """
        folder = Path(inspect.getfile(tools)).parent
        given = data if isinstance(data, BaseModel) else _validated(tools, _loaded(data, folder))
        return cls(
            tools,
            given,
            _policy_text(policy, folder),
            name=name or (tools.__name__.removesuffix("Tools") or tools.__name__).lower(),
            guidelines=guidelines,
            rules=rules,
            reads=reads,
        )

    def tasks(self) -> Mapping[str, Task]:
        """Return no tasks, because a suite names the file with its tasks."""
        return {}

    def splits(self) -> Mapping[str, Sequence[str]]:
        """Return no splits, because there are no tasks."""
        return {}

    def policy(self, *, solo: bool = False) -> str:
        """The text that the agent must follow. Raises `WorldError` for solo mode, which the world lacks."""
        if solo:
            raise WorldError(f"world {self.domain!r} has no solo mode")
        return self._policy

    def guidelines(self) -> str:
        """The instructions for a model that plays the user."""
        return self._guidelines

    def tools(self, requestor: Requestor) -> Sequence[ToolSchema]:
        """The agent's tools; the user has none."""
        return [method.schema for method in self._methods.values()] if requestor == "assistant" else []

    def tool_types(self) -> Mapping[str, ToolType]:
        """Tools declared as `reads` are of type READ, all others of type WRITE."""
        return {name: ToolType.READ if name in self._reads else ToolType.WRITE for name in self._methods}

    def has_tool(self, name: str) -> bool:
        """Whether the agent can call a tool of this name."""
        return name in self._methods

    def changes_state(self, name: str) -> bool:
        """Whether a tool may change the database."""
        return name in self._methods and name not in self._reads

    def open(self, *, solo: bool = False) -> "PlainSession":
        """A session with its own copy of the database."""
        return PlainSession(self._cls, self._methods, self._database)

    def data_digest(self) -> str:
        """Digest of the initial database."""
        return digest(json.loads(fingerprint(self._database)))

    def rules(self) -> Rules | None:
        """The rules whose breaches are counted; None if there are none."""
        return self._rules

    def version(self) -> str:
        """An empty text, because the lock identifies the code instead."""
        return ""

    def code_roots(self) -> tuple[object, ...]:
        """The objects whose code decides the results of the tools."""
        return (self._cls, type(self._database))


class PlainSession(WorldSession):
    """An instance of the class of a plain world, with its own copy of the database.

    Args:
        cls: The class.
        methods: Its tools by name.
        database: The initial database, which is copied and never changed.
    """

    def __init__(self, cls: type, methods: Mapping[str, Any], database: Any) -> None:
        self._methods = methods
        self._initial = database
        try:
            if _takes_database(cls):
                self._tools = cls(copy.deepcopy(database))
            else:
                self._tools = cls()
                self._tools.db = copy.deepcopy(database)
        except Exception as error:
            raise WorldError(f"{cls.__name__} cannot be created: {type(error).__name__}: {error}") from error
        self._attribute = _database_attribute(self._tools, database)

    @property
    def db(self) -> Any:
        """The current database."""
        return getattr(self._tools, self._attribute)

    def initialise(self, state: InitialState | None) -> None:
        """Merge a task's data into the database.

        Raises:
            WorldError: the data do not fit, or the task has initialization actions, which plain worlds lack.
        """
        if state is None:
            return
        data = state.initialization_data
        if data is not None and data.user_data:
            raise WorldError("initialization data for the user, who has no database in this world")
        if data is not None and data.agent_data:
            self._initial = _merged(self._initial, data.agent_data)
            setattr(self._tools, self._attribute, copy.deepcopy(self._initial))
        for call in state.initialization_actions or []:
            raise WorldError(f"initialization action {call.func_name!r}: a plain world has none; use data")

    def call(self, name: str, arguments: Mapping[str, Any], requestor: Requestor) -> ToolResult:
        """Call a tool; an exception gives an error result, as in τ²."""
        try:
            return ToolResult(content=_rendered(self._invoke(name, arguments)))
        except Exception as error:
            # The text may quote an argument with half a surrogate pair, which no record can hold.
            needs_type = isinstance(error, KeyError) or not str(error)
            prefix = f"{type(error).__name__}: " if needs_type else ""
            text = f"Error: {prefix}{error}".encode("utf-8", "replace").decode()
            return ToolResult(content=text, error=True)

    def perform(self, action: Action) -> None:
        """Carry out a gold action, ignoring its errors."""
        try:
            self._invoke(action.name, action.arguments)
        except Exception:
            return  # as in τ²'s evaluator: a gold action that fails leaves the world unchanged

    def check(self, assertion: Assertion) -> bool:
        """Whether an assertion holds.

        Raises:
            WorldError: the assertion is unknown.
        """
        if assertion.func_name != DATABASE_EQUALS:
            raise WorldError(
                f"a plain world has no assertion {assertion.func_name!r}; it has only {DATABASE_EQUALS}"
            )
        expected = expected_database(self._initial, assertion.arguments.get("data") or {})
        return (fingerprint(self.db) == fingerprint(expected)) == assertion.assert_value

    def databases(self) -> Mapping[str, Any]:
        """The database, to show how it differs from the expected one."""
        return {"agent": self.db}

    def expected_database(self, assertion: Assertion) -> Any:
        """The database that a `database_equals` assertion expects; None for any other assertion."""
        if assertion.func_name != DATABASE_EQUALS:
            return None
        return expected_database(self._initial, assertion.arguments.get("data") or {})

    def sync(self) -> None:
        """Do nothing, because there is one database."""

    def same_state(self, other: WorldSession) -> bool:
        """Whether both databases are equal."""
        if not isinstance(other, PlainSession):
            raise TypeError(f"cannot compare a {type(self).__name__} with a {type(other).__name__}")
        return fingerprint(self.db) == fingerprint(other.db)

    def _invoke(self, name: str, arguments: Mapping[str, Any]) -> Any:
        method = self._methods.get(name)
        if method is None:
            raise ValueError(f"Tool '{name}' not found.")
        result = getattr(self._tools, name)(**method.convert(arguments))
        return _awaited(result) if inspect.isawaitable(result) else result


def expected_database(initial: Any, changes: Mapping[str, Any]) -> Any:
    """The database that a task expects, as plain data.

    Args:
        initial: The database before the simulation.
        changes: The expected changes. Mappings are merged, a null removes the key, and any other value
            replaces the old one.
    """
    return _changed(json.loads(fingerprint(initial)), changes)


def _changed(old: Any, new: Any) -> Any:
    if not isinstance(new, Mapping):
        return new
    kept = {**old} if isinstance(old, Mapping) else {}
    for key, value in new.items():
        if value is None and key in kept:
            del kept[key]
        else:
            kept[str(key)] = _changed(kept.get(str(key)), value)
    return kept


def _merged(database: Any, update: Mapping[str, Any]) -> Any:
    """The database with a task's data; models validate their fields."""
    merged = combine(database, update)
    if not isinstance(database, BaseModel):
        return merged
    try:
        return type(database).model_validate(merged)
    except ValidationError as error:
        raise WorldError(f"the task's data do not fit the database: {first_problem(error, 'data')}") from None


def _rendered(result: Any) -> str:
    """The text that a model reads: a text unchanged, anything else as JSON."""
    return (
        result if isinstance(result, str) else json.dumps(to_plain(result), default=str, ensure_ascii=False)
    )


def _awaited(result: Any) -> Any:
    """The result of a tool that is a coroutine, from a thread of its own, since a loop runs in this one."""

    async def finished() -> Any:
        return await result

    with ThreadPoolExecutor(1, thread_name_prefix="trace2evolve-tool") as thread:
        return thread.submit(lambda: asyncio.run(finished())).result()


def _constructor_parameters(cls: type) -> list[inspect.Parameter]:
    if "__init__" not in {name for base in cls.__mro__[:-1] for name in vars(base)}:
        return []
    return list(inspect.signature(cls).parameters.values())


def _takes_database(cls: type) -> bool:
    return bool(_constructor_parameters(cls))


def _database_model(cls: type) -> type[BaseModel] | None:
    """The pydantic model of the database, by the constructor's hint or the hint of `db`; None if neither."""
    try:
        parameters = _constructor_parameters(cls)
        hints = typing.get_type_hints(inspect.getattr_static(cls, "__init__") if parameters else cls)
        hint = hints.get(parameters[0].name if parameters else "db")
    except Exception:  # a hint is any expression, and a class without readable hints has a plain database
        return None
    return hint if inspect.isclass(hint) and issubclass(hint, BaseModel) else None


def _database_attribute(tools: object, database: Any) -> str:
    """The name of the attribute that holds the database."""
    text = fingerprint(database)
    for name, value in vars(tools).items():
        if type(value) is type(database) and fingerprint(value) == text:
            return name
    raise WorldError(
        f"{type(tools).__name__} keeps its database in no attribute; assign the constructor's argument to "
        "self.db, because the database after a simulation is compared with the expected one"
    )


def _validated(cls: type, data: Any) -> Any:
    model = _database_model(cls)
    if model is None:
        return data
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise WorldError(f"the data of {cls.__name__} do not fit: {first_problem(error, 'data')}") from None


def _loaded(data: str | Path | Mapping[str, Any] | None, folder: Path) -> Any:
    """The content of a data file, or a copy of the given data."""
    if data is None:
        return {}
    if isinstance(data, Mapping):
        return copy.deepcopy(dict(data))
    path = folder / data
    text = read_text(path, WorldError, max_bytes=MAX_RECORD_BYTES)
    loaded = (
        parse_yaml(text, path, WorldError) if path.suffix in (".yaml", ".yml") else _parsed_json(text, path)
    )
    if not isinstance(loaded, dict):
        raise WorldError(f"{path}: holds a {type(loaded).__name__}, not a mapping; correct the file")
    return loaded


def _parsed_json(text: str, path: Path) -> Any:
    with convert_failures(path, WorldError, "correct the file"):
        return parse_json(text, require_unique=True)


def _policy_text(policy: str | Path, folder: Path) -> str:
    if isinstance(policy, str) and ("\n" in policy or not policy.endswith((".md", ".txt"))):
        return policy
    return read_text(folder / policy, WorldError)


def is_plain(world: object) -> bool:
    """Whether a world was made from a plain class."""
    return isinstance(world, World)
