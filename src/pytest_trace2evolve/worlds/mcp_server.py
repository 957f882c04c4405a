"""A world with the tools of an MCP server that communicates over stdio; see `World.from_mcp`."""

import asyncio
import atexit
import contextlib
import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pytest_trace2evolve.errors import InfrastructureError, WorldError, name_suggestion
from pytest_trace2evolve.records.message import Requestor
from pytest_trace2evolve.records.protocols import ToolResult, ToolSchema
from pytest_trace2evolve.records.rules import Rules
from pytest_trace2evolve.records.task import Action, InitialState
from pytest_trace2evolve.utils.canonical import digest, digest_text, storable_text
from pytest_trace2evolve.utils.files import is_inside, real_path
from pytest_trace2evolve.utils.optional import require
from pytest_trace2evolve.worlds.plain import PlainSession, World, initial_data
from pytest_trace2evolve.worlds.plain_data import DataType

SESSION_VAR = "TRACE2EVOLVE_SESSION"
"""The environment variable that names a session's own folder."""

END_SECONDS = 6.0
"""Seconds that each server gets to end when Python exits."""

_REQUEST_ERRORS = (-32700, -32600, -32601, -32602)
"""Codes of errors for invalid requests. The agent sees these errors like the errors of a tool."""

_VERSIONS_PROGRAM = (
    "import importlib.metadata as m; found = {d.name: d.version for d in [*m.distributions()][::-1]}; "
    "print(*(f'{name} {found[name]}' for name in ('fastmcp', 'mcp') if name in found), sep=', ')"
)
"""Prints the versions of the SDKs that an interpreter has."""

T = TypeVar("T")


class WorldLostError(WorldError, InfrastructureError):
    """A server does not start, does not answer, or has ended, so the simulation is lost and not scored."""


@dataclass(frozen=True)
class ServerSettings:
    """How a server is started; see `World.from_mcp`.

    Attributes:
        world: The name of the world, for messages.
        reset_command: The command that runs before the server; None for none.
        reset_tool: The name of the tool that is called first; None for none.
        variables: Environment variables of the server, in addition to the SDK's default.
    """

    world: str
    command: tuple[str, ...]
    reset_command: tuple[str, ...] | None
    reset_tool: str | None
    folder: Path
    start_timeout: float
    timeout: float
    variables: Mapping[str, str]

    def environment(self, folder: Path) -> dict[str, str]:
        """The environment of a session: the SDK's default, which has no keys, and `variables`."""
        from mcp.client.stdio import get_default_environment

        return {**get_default_environment(), **self.variables, SESSION_VAR: str(folder)}

    def lost_error(self, text: str) -> WorldLostError:
        return WorldLostError(f"world {self.world!r}: {text}")


def _split_command(command: str | Sequence[str]) -> tuple[str, ...]:
    words = tuple(shlex.split(command)) if isinstance(command, str) else tuple(map(str, command))
    if words and words[0] in ("python", "python3"):
        return (sys.executable, *words[1:])  # the interpreter of the tests, even outside its environment
    return words


@functools.cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """The event loop of all servers, in a thread of its own, because tools are called without `await`."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="trace2evolve-mcp", daemon=True).start()
    return loop


_running: "set[Server]" = set()


@atexit.register
def _stop_servers() -> None:
    futures = [server.stop() for server in list(_running)]
    for future in futures:
        with contextlib.suppress(Exception):
            future.result(timeout=END_SECONDS)


class Server:
    """A running server process.

    Attributes:
        tools: The server's tools, as the package `mcp` describes them.
        version: The server's name and version.

    Raises:
        WorldLostError: the server does not start.
    """

    def __init__(self, settings: ServerSettings) -> None:
        require("mcp", extra="mcp")
        self._settings = settings
        self._folder = Path(tempfile.mkdtemp(prefix="trace2evolve-mcp-"))
        self._environment = settings.environment(self._folder)
        self._log = self._folder.with_name(f"{self._folder.name}.log")
        self._session: Any = None
        self._error: WorldLostError | None = None
        self._final_output = ""
        self.tools: list[Any] = []
        self.version = ""
        try:
            self._run_reset_command()
        except BaseException:
            self._remove_files()
            raise
        loop = _event_loop()
        self._stop = asyncio.Event()
        self._ready: Future[None] = Future()
        self._serve_future = asyncio.run_coroutine_threadsafe(self._serve(), loop)
        _running.add(self)
        try:
            self._ready.result(timeout=settings.start_timeout)
        except TimeoutError:
            output = self._last_output()
            self.stop()
            raise settings.lost_error(
                f"its MCP server did not start within {settings.start_timeout:g} seconds{output}"
            ) from None
        except Exception as error:
            self.stop()
            cause = " ".join(f"{_first_error(error)}".split()) or type(error).__name__
            raise settings.lost_error(
                f"its MCP server {shlex.join(settings.command)} does not start: {cause}"
                f"{self._final_output}; correct the command, or name missing environment variables in env"
            ) from None

    def _run_reset_command(self) -> None:
        settings = self._settings
        if settings.reset_command is None:
            return
        text = f"its reset command {shlex.join(settings.reset_command)}"
        try:
            process = subprocess.run(
                settings.reset_command,
                cwd=settings.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=settings.start_timeout,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise settings.lost_error(f"{text} cannot be run: {error}") from None
        if process.returncode:
            output = process.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise settings.lost_error(f"{text} ended with exit status {process.returncode}: {output[-200:]}")

    async def _serve(self) -> None:
        from mcp import ClientSession, StdioServerParameters, stdio_client

        settings = self._settings
        program, *arguments = settings.command
        parameters = StdioServerParameters(
            command=program, args=arguments, env=self._environment, cwd=settings.folder
        )
        try:
            with self._log.open("w", encoding="utf-8") as log:
                async with (
                    stdio_client(parameters, errlog=log) as streams,
                    ClientSession(*streams) as session,
                ):
                    result = await session.initialize()
                    info = getattr(result, "server_info", None)
                    self.version = f"{info.name} {info.version}".strip() if info else ""
                    self.tools = await _list_tools(session)
                    self._session = session
                    self._ready.set_result(None)
                    await self._stop.wait()
        except BaseException as error:
            # The log is removed below, perhaps before the waiting thread runs.
            self._final_output = self._last_output()
            if not self._ready.done():
                self._ready.set_exception(
                    error if isinstance(error, Exception) else RuntimeError(repr(error))
                )
        finally:
            _running.discard(self)
            self._remove_files()

    def _remove_files(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._log.unlink()

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool.

        Raises:
            WorldLostError: the server ended, or did not answer in time.
        """
        result = self._request(name, arguments)
        return ToolResult(content=storable_text(_text(result)), error=bool(result.is_error))

    def _request(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Return the server's answer to a call; for a call that it rejects, an answer with the error."""
        from mcp import MCPError
        from mcp.types import CallToolResult, TextContent

        if self._error is not None:
            raise self._error
        settings = self._settings
        try:
            return self._wait(
                asyncio.wait_for(self._session.call_tool(name, dict(arguments)), settings.timeout)
            )
        except TimeoutError:
            self._fail(f"its MCP server did not answer {name!r} within {settings.timeout:g} seconds")
        except MCPError as error:
            if error.error.code in _REQUEST_ERRORS:
                text = f"Error: {error.error.message}"
                return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
            self._fail(f"its MCP server ended while it answered {name!r}: {error.error.message}")
        except Exception as error:
            self._fail(f"its MCP server gave no valid answer to {name!r}: {type(error).__name__}: {error}")

    def data(self, tool: str) -> Any:
        """Return the JSON value that a tool returns.

        Raises:
            WorldLostError: the tool fails, or does not return JSON.
        """
        result = self._request(tool, {})
        value = None if result.is_error else _json_value(result)
        if value is None:
            text = " ".join(_text(result).split())[:200] or "an empty answer"
            raise self._settings.lost_error(
                f"its state tool {tool!r} returned no JSON: {text}; return one JSON text, or annotate the "
                "type that the tool returns, such as list[dict]"
            )
        return value

    def reset(self) -> None:
        """Call the tool that restores the initial data, if there is one.

        Raises:
            WorldLostError: the tool fails.
        """
        tool = self._settings.reset_tool
        if tool is not None and (result := self.call(tool, {})).error:
            raise self._settings.lost_error(f"its reset tool {tool!r} failed: {result.content[:200]}")

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, _event_loop()).result()

    def _fail(self, text: str) -> NoReturn:
        """End the server after an error, which every later call raises too."""
        self._error = self._settings.lost_error(" ".join(f"{text}{self._last_output()}".split()))
        self.stop()
        raise self._error

    def _last_output(self) -> str:
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            return ""
        return f" (its output ends with {storable_text(lines[-1][-200:])!r})" if lines else ""

    def stop(self) -> "Future[None]":
        """Ask the server to end, but do not wait for it."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            _event_loop().call_soon_threadsafe(self._stop.set)
        if not self._ready.done():
            self._serve_future.cancel()
        return self._serve_future


async def _list_tools(session: Any) -> list[Any]:
    tools, cursor = [], None
    while True:
        page = await session.list_tools(**({} if cursor is None else {"cursor": cursor}))
        tools += page.tools
        cursor = getattr(page, "next_cursor", None)
        if not cursor:
            return tools


def _first_error(error: BaseException) -> BaseException:
    """The first exception in nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _text(result: Any) -> str:
    """The text of a tool's result, as a model reads it."""
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(map(_block_text, result.content))


def _block_text(block: Any) -> str:
    """The text of a content block or of its resource; for anything else, its type and address in brackets."""
    resource = getattr(block, "resource", block)
    text, address = getattr(resource, "text", None), getattr(resource, "uri", None)
    return text if text is not None else f"[{block.type}{f': {address}' if address else ''}]"


def _json_value(result: Any) -> Any:
    """The JSON value that a tool's result holds; None if it holds none.

    Structured content has one form however many items it has. SDKs wrap a value that is not an object in an
    object with the key `result`, and write one block of text for each item of a list.
    """
    texts = [_parse_json(_block_text(block)) for block in result.content]
    value = result.structured_content
    if value is None:
        return None if None in texts else texts[0] if len(texts) == 1 else texts or None
    if isinstance(value, dict) and value.keys() == {"result"} and texts != [value]:
        value = value["result"]
    return _parse_json(value) if isinstance(value, str) else value


def _parse_json(text: str) -> Any:
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    return None


def _sdk_versions(settings: ServerSettings) -> str:
    """The versions of the SDKs of the server's Python interpreter, which word the errors that the agent sees.

    Empty if the command starts no interpreter that can be found (`npx`, `uvx`), or one without an SDK.
    """
    environment = settings.environment(settings.folder)

    def find(name: str) -> Path:
        path = settings.folder / name if os.sep in name else name
        return Path(shutil.which(path, path=environment.get("PATH")) or os.devnull)

    program = find(settings.command[0])
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if not program.name.startswith("python"):  # perhaps a script, such as one that pip installed
            with program.open("rb") as script:
                start, _, interpreter = script.readline(500).decode("utf-8", "replace").rpartition("#!")
            program = find(interpreter.split()[-1]) if interpreter and not start else program
        if program.name.startswith("python"):
            return subprocess.run(
                [program, "-c", _VERSIONS_PROGRAM],
                cwd=settings.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=settings.start_timeout,
            ).stdout.strip()
    return ""


class McpWorld(World):
    """A world made from an MCP server; see `World.from_mcp`."""

    def __init__(
        self,
        command: str | Sequence[str],
        reset: str | Sequence[str] | None,
        state: str | None,
        reads: Sequence[str] | None,
        folder: Path,
        timeouts: tuple[float, float],
        variables: Mapping[str, str],
        *,
        name: str,
        policy: str,
        guidelines: str,
        rules: Rules | None,
    ) -> None:
        super().__init__(name, policy, guidelines, rules)
        words = _split_command(command)
        if not words:
            raise WorldError(f"world {name!r}: its command is empty; name the program of the MCP server")
        if not isinstance(variables, Mapping):
            raise WorldError(
                f"world {name!r}: env is of type {type(variables).__name__}; give names and texts"
            )
        for key, value in variables.items():
            if not isinstance(key, str) or not key or {"=", "\0"} & {*key}:
                raise WorldError(f"world {name!r}: env: {key!r} is not the name of a variable; correct it")
            if not isinstance(value, str):
                kind = type(value).__name__
                raise WorldError(f"world {name!r}: env: {key!r} is of type {kind}, not text; set a text")
        is_tool = isinstance(reset, str) and len(reset.split()) == 1
        self.settings = ServerSettings(
            world=name,
            command=words,
            reset_command=None if reset is None or is_tool else _split_command(reset),
            reset_tool=reset if is_tool and isinstance(reset, str) else None,
            folder=folder,
            start_timeout=timeouts[0],
            timeout=timeouts[1],
            variables=variables,
        )
        self.state = state
        self._reads = None if reads is None else frozenset(reads)
        self._lock = threading.Lock()
        self._description: _Description | None = None

    def _get_description(self) -> "_Description":
        """Return the server's tools and initial data. The first call starts a server to read them."""
        with self._lock:
            if self._description is None:
                self._description = self._read_description()
        return self._description

    def _read_description(self) -> "_Description":
        server = Server(self.settings)
        try:
            hidden_names = {name for name in (self.settings.reset_tool, self.state) if name is not None}
            tools_by_name = {tool.name: tool for tool in server.tools}
            for name in (*hidden_names, *(self._reads or ())):
                if name not in tools_by_name:
                    raise WorldError(
                        f"world {self.domain!r}: its MCP server has no tool {name!r}; "
                        f"{name_suggestion(name, tools_by_name)}"
                    )
            server.reset()
            return _Description(
                schemas=tuple(
                    ToolSchema(
                        name=tool.name,
                        description=tool.description or "",
                        parameters={key: value for key, value in tool.input_schema.items() if key != "title"},
                    )
                    for tool in tools_by_name.values()
                    if tool.name not in hidden_names
                ),
                reads=frozenset(
                    tool.name for tool in server.tools if getattr(tool.annotations, "read_only_hint", False)
                )
                if self._reads is None
                else self._reads,
                data=None if self.state is None else server.data(self.state),
                version=", ".join(filter(None, (server.version, _sdk_versions(self.settings)))),
            )
        finally:
            server.stop()

    def tools(self, requestor: Requestor) -> Sequence[ToolSchema]:
        """The agent's tools, without those that reset or return the database. The user has no tools."""
        return self._get_description().schemas if requestor == "assistant" else []

    def changes_state(self, name: str) -> bool:
        """Whether a tool may change the database. Every tool that is not declared as a read may."""
        return self.has_tool(name) and name not in self._get_description().reads

    def open(self, *, solo: bool = False) -> "McpSession":
        """Return a session with its own server process."""
        return McpSession(self)

    def data_digest(self) -> str:
        """Digest of the initial database; of `None` if no tool returns it."""
        return digest(self._get_description().data)

    def version(self) -> str:
        """The server's name and version, and those of its SDKs, as far as they are known."""
        return self._get_description().version

    def fingerprint(self) -> str:
        """The version, and a digest of the command's arguments, the project's files that it names, and the
        names of environment variables, whose values may be secret.
        """
        words = self.settings.command
        # The interpreter of a virtual environment is a link out of the project.
        folder = real_path(self.settings.folder)
        is_own_program = is_inside(folder / words[0], folder)
        named_words = words if is_own_program else words[1:]
        names = [*named_words, *(f"{word.replace('.', '/')}.py" for word in words)]
        paths = [folder / name for name in names]
        files = [digest_text(path.read_bytes().hex()) for path in paths if path.is_file()]
        variables = sorted(self.settings.variables)
        return f"{self.version()}: {digest([list(words[1:]), files, variables])}"


@dataclass(frozen=True)
class _Description:
    """The tools, the version and the initial data of a server."""

    schemas: tuple[ToolSchema, ...]
    reads: frozenset[str]
    data: Any
    version: str


class McpSession(PlainSession):
    """A session with its own server process, which starts when it is first needed."""

    def __init__(self, world: McpWorld) -> None:
        self._world = world
        self._running_server: Server | None = None
        self._initial: Any = None

    @property
    def is_comparable(self) -> bool:
        """Whether a tool returns the database, so that it can be compared."""
        return self._world.state is not None

    @property
    def _server(self) -> Server:
        if self._running_server is None:
            server = Server(self._world.settings)
            weakref.finalize(self, server.stop)
            self._running_server = server
            server.reset()
            if self._world.state is not None:
                self._initial = server.data(self._world.state)
        return self._running_server

    def close(self) -> None:
        """End the process."""
        if self._running_server is not None:
            self._running_server.stop()

    def data(self) -> Any:
        """The current database as JSON."""
        if self._world.state is None:
            raise WorldError(
                f"world {self._world.domain!r} has no tool that returns its database, so it cannot be "
                "compared; name one with from_mcp(state=…), or let the task expect only calls and texts"
            )
        return self._server.data(self._world.state)

    def expected_data(self, changes: Mapping[str, Any]) -> Any:
        """The initial database with the changes that the task expects, as JSON."""
        self.data()  # starts the server and checks that the database can be read
        return DataType(None, "the database").merge(self._initial, changes, "the expected data")

    def initialise(self, state: InitialState | None) -> None:
        """Start the server.

        Raises:
            WorldError: the task has data, which a server cannot take.
            WorldLostError: the server does not start.
        """
        if initial_data(state):
            raise WorldError("the task has data, but the data of an MCP server cannot be set; remove 'data'")
        _ = self._server

    def call(self, name: str, arguments: Mapping[str, Any], requestor: Requestor) -> ToolResult:
        """Call a tool.

        Raises:
            WorldLostError: the server ended, or did not answer in time.
        """
        if not self._world.has_tool(name):
            return ToolResult(content=f"Error: Tool '{name}' not found.", error=True)
        return self._server.call(name, arguments)

    def perform(self, action: Action) -> None:
        """Carry out a gold action, ignoring an error of the tool."""
        self.call(action.name, action.arguments, action.requestor)
