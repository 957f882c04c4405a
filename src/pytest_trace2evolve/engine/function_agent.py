"""Agents that a project defines as one function, `make(tools, candidate)`, and that run in child processes.

Each child process works on one simulation at a time (see `agent_child`), so an agent that hangs, exits or
prints anything cannot harm the run. A process is reused for further simulations if the agent closed without a
problem.
"""

import asyncio
import contextlib
import itertools
import json
import os
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Protocol, cast

from pytest_trace2evolve.engine.factories import ChatFactory, make_scripted_user
from pytest_trace2evolve.engine.http_agent import HttpEndpoint
from pytest_trace2evolve.engine.live import AgentFunction, LiveSettings
from pytest_trace2evolve.engine.own_agent import OwnAgent
from pytest_trace2evolve.engine.process_tree import MARK, kill_tree
from pytest_trace2evolve.engine.proxy import PLACEHOLDER_KEY, Exchange, RecordingProxy
from pytest_trace2evolve.errors import (
    AgentCodeError,
    ConfigError,
    EndpointError,
    InfrastructureError,
    Trace2EvolveError,
)
from pytest_trace2evolve.evidence.identity import agent_code
from pytest_trace2evolve.project.candidates import AgentFactory, Candidate
from pytest_trace2evolve.records.evidence import code_differences
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Agent, AnswerStore, Journal, Meter, User, World
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.utils.canonical import storable_text

MAX_LINE = 32 << 20
"""The maximum size of one event of a child process, in bytes."""

MAX_LOG = 4 << 20
"""The maximum size of the log of one process, in bytes."""

SHOWN_OUTPUT = 300
"""The number of characters from the end of a child's output that an error shows."""

END_SECONDS = 5.0
"""The seconds that an agent gets to close before its process is killed."""

_log_numbers = itertools.count(1)


class _Streams(asyncio.SubprocessProtocol):
    """Receives the events and the output of a child process, and notices when the process exits.

    A child has ended when its process exits. Its streams may stay open in processes that it started.

    Args:
        log: The file for the output, which the first output creates. The file is emptied
            before it gets too long.
    """

    def __init__(self, log: Path) -> None:
        self.lines: deque[bytes] = deque()
        self.is_overlong = False
        self.ended = asyncio.Event()
        self.tail = b""
        self._log_path = log
        self._log: IO[bytes] | None = None
        self._log_size = 0
        self._part = bytearray()
        self._new_line = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Store complete lines of events, and write output to the log."""
        if fd != 1:
            self._write_log(data)
            return
        *lines, rest = data.split(b"\n")
        for line in lines:
            self.lines.append(bytes(self._part) + line)
            self._part.clear()
        self._part += rest
        self.is_overlong = self.is_overlong or len(self._part) > MAX_LINE
        if lines or self.is_overlong:
            self._new_line.set()

    def process_exited(self) -> None:
        """Record that the process has exited."""
        self.ended.set()
        self._new_line.set()

    async def wait_for_line(self) -> None:
        """Wait until an event has arrived, or until none can arrive any more."""
        while not (self.lines or self.is_overlong or self.ended.is_set()):
            self._new_line.clear()
            await self._new_line.wait()

    def _write_log(self, data: bytes) -> None:
        self.tail = (self.tail + data)[-SHOWN_OUTPUT * 4 :]
        with contextlib.suppress(OSError, ValueError):  # a full disk is not the agent's fault
            if self._log is None:
                self._log_path.parent.mkdir(parents=True, exist_ok=True)
                self._log = self._log_path.open("wb", buffering=0)
            if self._log_size + len(data) > MAX_LOG:
                self._log.seek(0)
                self._log.truncate()
                self._log_size = 0
            self._log.write(data[-MAX_LOG:])
            self._log_size += len(data)

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()


class Child:
    """A child process that runs an agent.

    Attributes:
        token: The secret in the base URL of the process.
        is_waiting: Whether the agent raised an exception, after which the process waits for the next request.
    """

    def __init__(
        self,
        function: AgentFunction,
        transport: asyncio.SubprocessTransport,
        streams: _Streams,
        token: str,
    ) -> None:
        self.token = token
        self.is_waiting = False
        self._function = function
        self._transport = transport
        self._streams = streams

    @classmethod
    async def start(cls, function: AgentFunction, proxy: RecordingProxy) -> "Child":
        """Start a process; its output goes to a file in the log folder.

        Raises:
            InfrastructureError: the process cannot be started.
        """
        token = proxy.new_token()
        command = [sys.executable, "-P", "-m", "pytest_trace2evolve.engine.agent_child"]
        try:
            path = function.log_folder / f"agent-{os.getpid()}-{next(_log_numbers)}.log"
            transport, streams = await asyncio.get_running_loop().subprocess_exec(
                lambda: _Streams(path),
                *command,
                *map(str, function.import_folders or (function.folder,)),
                cwd=function.folder,
                env=_environment(proxy, token)
                | ({"PYTHONDONTWRITEBYTECODE": "1"} if function.is_commit else {}),
                start_new_session=True,  # an interrupt of the run must not reach the agent
            )
        except (OSError, ValueError) as error:
            raise InfrastructureError(f"the agent's process cannot be started: {error}") from None
        return cls(function, transport, streams, token)

    async def ask(self, request: Mapping[str, Any], exchange: Exchange) -> dict[str, Any]:
        """Send a request and return the child's next event.

        Raises:
            AgentCodeError: the agent raised an exception, did not answer in time, or ended the process.
            ContextWindowError: the agent has failed, because its conversation does not fit its model.
            InfrastructureError: the model or a service did not answer, the module cannot be imported any
                more, or another program killed the process.
            Trace2EvolveError: a request of the agent to its model ended the simulation or the run.
        """
        self.is_waiting = False
        try:
            event = await self._exchange(request, exchange)
        except AgentCodeError:
            exchange.raise_if_unanswered(has_failed=True)
            raise
        self.is_waiting = event["event"] == "failed"
        if exchange.failure is not None:
            raise exchange.failure
        if event["event"] == "failed" and event.get("stage") == "import":
            raise InfrastructureError(f"{self._function.path} cannot be imported: {_error_text(event)}")
        exchange.raise_if_unanswered(has_failed=event["event"] == "failed")
        if event["event"] == "failed":
            if event["network"]:
                raise InfrastructureError(f"the agent could not reach a service: {_error_text(event)}")
            cause, detail, frames = (storable_text(event[name]) for name in ("error", "detail", "frames"))
            raise AgentCodeError(cause, detail, frames=frames)
        return event

    async def check_import(self) -> None:
        """Check that the function can be imported.

        Raises:
            ConfigError: the function cannot be imported.
        """
        path = self._function.path
        exchange = Exchange(0, None, _do_nothing)
        try:
            event = await self._exchange(self.import_request, exchange)
        except AgentCodeError as error:
            raise ConfigError(f"agent {path!r}: {error}") from None
        if event["event"] == "failed":
            frame_lines = event["frames"].strip().splitlines()
            location = f" ({frame_lines[0].strip()})" if frame_lines else ""
            raise ConfigError(f"agent {path!r} cannot be imported: {_error_text(event)}{location}")

    @property
    def import_request(self) -> dict[str, Any]:
        """The request that imports the function."""
        function = self._function
        return {
            "do": "import",
            "agent": function.path,
            "folder": str(function.folder) if function.is_commit else None,
        }

    async def _exchange(self, request: Mapping[str, Any], exchange: Exchange) -> dict[str, Any]:
        streams = self._streams
        self.send(request)
        failure_task = asyncio.create_task(exchange.failed.wait())
        line_task = asyncio.create_task(streams.wait_for_line())
        try:
            async with asyncio.timeout(self._function.timeout):
                await asyncio.wait({failure_task, line_task}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise self._timeout_error(request, exchange) from None
        finally:
            failure_task.cancel()
            line_task.cancel()
        if exchange.failure is not None:
            raise exchange.failure
        if streams.is_overlong:
            raise AgentCodeError(f"the agent's process sent more than {MAX_LINE >> 20} MiB at once")
        if not streams.lines:
            raise self._end_error(exchange)
        return _parse_event(streams.lines.popleft())

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request without waiting for the answer."""
        pipe = self._transport.get_pipe_transport(0)
        if pipe is not None and not pipe.is_closing():
            cast(asyncio.WriteTransport, pipe).write(json.dumps(request).encode() + b"\n")

    def _timeout_error(self, request: Mapping[str, Any], exchange: Exchange) -> Exception:
        step = {"make": "make", "import": "importing its module"}.get(str(request.get("do")), "run")
        text = f"{step} gave no answer within {self._function.timeout:g} seconds (t2e_call_timeout)"
        if exchange.pending or exchange.outage:
            return InfrastructureError(f"the agent waits for its model: {text}")
        return AgentCodeError(f"TimeoutError: {text}")

    def _end_error(self, exchange: Exchange) -> Exception:
        status = self._transport.get_returncode() or 0
        if status in (-9, -15):
            return InfrastructureError(
                f"the agent's process was killed by signal {-status}: {self._describe_output()}"
            )
        ending = f"signal {-status}" if status < 0 else f"exit status {status}"
        return AgentCodeError(f"the agent's process ended with {ending}", f"; {self._describe_output()}")

    def _describe_output(self) -> str:
        text = storable_text(self._streams.tail.decode("utf-8", "replace"))
        tail = " ".join(text.split())[-SHOWN_OUTPUT:]
        return f"its output ends with {tail!r}" if tail else "it printed nothing"

    def kill(self) -> None:
        """End the process and all processes that it started."""
        kill_tree(self._transport.get_pid(), self.token, has_ended=not self.is_running)

    async def end(self) -> None:
        """Ask the process to exit, and kill it if it does not exit in time."""
        if self.is_running:
            self.send({"do": "exit"})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await self._streams.ended.wait()
        self.kill()
        await self.wait()

    async def wait(self) -> None:
        """Wait until the killed process has ended, and close its streams."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self._streams.ended.wait()
        self._transport.close()
        self._streams.close()

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return not self._streams.ended.is_set()


def _environment(proxy: RecordingProxy, token: str) -> dict[str, str]:
    """Return the environment of a child.

    OpenAI clients then send their requests to the proxy, with a placeholder instead of the API key.
    """
    hosts = [os.environ.get(name) for name in ("no_proxy", "NO_PROXY")]
    direct = ",".join(dict.fromkeys([*(host for host in hosts if host), "127.0.0.1", "localhost"]))
    return {
        "OPENAI_AGENTS_DISABLE_TRACING": "1",  # the SDK would upload all conversations
        **os.environ,
        proxy.api_key_env: PLACEHOLDER_KEY,
        "OPENAI_API_KEY": PLACEHOLDER_KEY,
        "OPENAI_BASE_URL": proxy.base_url(token),
        "OPENAI_API_BASE": proxy.base_url(token),
        "NO_PROXY": direct,
        "no_proxy": direct,
        "PYTHONUNBUFFERED": "1",
        MARK: token,
    }


def _parse_event(line: bytes) -> dict[str, Any]:
    """Parse an event of a child. An agent that writes to the event stream itself causes an error.

    Raises:
        AgentCodeError: the line is not an event.
    """
    with contextlib.suppress(ValueError, RecursionError):
        event = json.loads(line)
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            return event
    raise AgentCodeError("the agent's process sent a line that is not an event", f": {line[:80]!r}")


def _error_text(event: Mapping[str, Any]) -> str:
    return f"{event['error']}{event['detail']}"


class FunctionAgent(OwnAgent):
    """The agent of one simulation, which runs in a child process.

    Args:
        pool: Provides the child process.
        make: The arguments of the request `make`.
        exchange: The requests that the agent sends to its model.
    """

    def __init__(self, pool: "ChildPool", make: Mapping[str, Any], exchange: Exchange) -> None:
        super().__init__(pool.function.path, exchange)
        self._pool = pool
        self._make = dict(make)
        self._child: Child | None = None
        self._message = ""
        self._is_idle = False

    async def respond(self, history: Sequence[Message]) -> Message:
        """Return the agent's next tool call or reply.

        Raises:
            AgentCodeError, Trace2EvolveError: see `Child.ask`.
            InfrastructureError: see `Child.ask`; also if the task starts in the middle of a
                conversation that the agent cannot continue.
        """
        last = history[-1]
        self._is_idle = False
        if self._child is None:
            earlier_messages = self._earlier(history)
            self._child = await self._pool.take(self._exchange)
            request = {**self._child.import_request, "do": "make", **self._make, "history": earlier_messages}
        elif last.role == "tool":
            request = {"result": last.content or ""}
        else:
            request = {"do": "run", "message": last.content or ""}
        if last.role == "user":
            self._message = last.content or ""
        event = await self._child.ask(request, self._exchange)
        if event["event"] == "no history":
            raise InfrastructureError(
                f"the task starts in the middle of a conversation, but {self.name} cannot continue one; "
                "let it take a third argument named history, or leave the task out of the suite"
            )
        if event["event"] == "made":
            event = await self._child.ask({"do": "run", "message": self._message}, self._exchange)
        if event["event"] == "reply":
            self._is_idle = True
            return await self._reply(str(event.get("content")))
        if event["event"] == "call":
            arguments = event.get("arguments")
            call_arguments = arguments if isinstance(arguments, dict) else {}
            return await self._calls([(None, str(event.get("name")), call_arguments)])
        raise AgentCodeError("the agent's process sent an unexpected event", f": {event['event'][:80]!r}")

    async def close(self) -> None:
        """Return the child process to the pool, or end it if the simulation ended in the middle of a turn."""
        child, self._child = self._child, None
        if child is not None:
            await self._pool.put(child, self._exchange, is_reusable=self._is_idle or child.is_waiting)


class ChildPool:
    """The child processes of one agent function."""

    def __init__(self, function: AgentFunction, proxy: RecordingProxy) -> None:
        self.function = function
        self._proxy = proxy
        self._idle: list[Child] = []
        self._all: set[Child] = set()

    async def check(self) -> None:
        """Start a process that imports the function, so that an error is found before any simulation.

        Raises:
            ConfigError: the function cannot be imported, or the process cannot be started.
        """
        try:
            child = await self._start()
        except InfrastructureError as error:
            raise ConfigError(f"agent {self.function.path!r}: {error}") from None
        try:
            await child.check_import()
        except BaseException:
            await self._end(child)
            raise
        self._idle.append(child)

    def make_agent(self, request: Mapping[str, Any], exchange: Exchange) -> OwnAgent:
        """Make the agent of one simulation."""
        return FunctionAgent(self, request, exchange)

    async def take(self, exchange: Exchange) -> Child:
        """Return an idle child process, or start one."""
        child = None
        while self._idle and child is None:
            idle = self._idle.pop()
            # A request from an idle process means that an earlier simulation left something running.
            if idle.is_running and not self._proxy.has_strayed(idle.token):
                child = idle
            else:
                await self._end(idle)
        child = child or await self._start()
        self._proxy.attach(child.token, exchange)
        return child

    async def put(self, child: Child, exchange: Exchange, *, is_reusable: bool) -> None:
        """Take a child process back after a simulation."""
        try:
            if is_reusable and child.is_running and exchange.failure is None and not exchange.pending:
                async with asyncio.timeout(END_SECONDS):
                    event = await child.ask({"do": "close"}, exchange)
                if event["event"] == "closed" and event.get("reusable") and not exchange.pending:
                    self._proxy.detach(child.token)
                    self._idle.append(child)
                    return
        except (Trace2EvolveError, TimeoutError):
            pass  # the simulation is complete before `close`
        finally:
            if child not in self._idle:
                self._proxy.detach(child.token)
                child.kill()
        await self._end(child)

    async def _start(self) -> Child:
        await self._proxy.open()
        await asyncio.to_thread(check_unchanged, self.function)
        child = await Child.start(self.function, self._proxy)
        self._all.add(child)
        return child

    async def _end(self, child: Child) -> None:
        self._all.discard(child)
        child.kill()
        await child.wait()

    async def close(self) -> None:
        """End all child processes. Idle processes may exit by themselves; all others are killed."""
        for child in self._all - set(self._idle):
            child.kill()
        await asyncio.gather(*(child.end() for child in self._all))
        self._all.clear()
        self._idle.clear()


def check_unchanged(function: AgentFunction) -> None:
    """Check that the code on the disk is the code that the run has identified.

    Each new process imports the agent again, so an edit during a run would mix two versions.

    Raises:
        EndpointError: the code changed.
    """
    if function.is_commit or not function.code.files:
        return
    current_code = agent_code(function.path.partition(":")[0], function.code_folders)
    if changed_files := list(code_differences(function.code, current_code)):
        raise EndpointError(
            f"the code of agent {function.path!r} changed during the run ({', '.join(changed_files[:3])}); "
            "run again, and leave the agent as it is while a run measures it"
        )


class Backend(Protocol):
    """Runs the project's own agents: in child processes, or behind a URL."""

    async def check(self) -> None:
        """Raise `ConfigError` if no simulation could begin."""

    def make_agent(self, request: Mapping[str, Any], exchange: Exchange) -> OwnAgent:
        """Make the agent of one simulation."""

    async def close(self) -> None:
        """Release all resources."""


async def _do_nothing() -> None:
    """Do nothing before an answer is used, because no ledger records the draw."""


class FunctionFactory:
    """Makes the project's own agent, and its user, for each simulation.

    Attributes:
        is_playback: Whether answers come from a cassette.

    Args:
        settings: The function, the endpoint of its models, and the model of the user.
        on_close: Registers a coroutine function that closes what this factory has opened.
        meter: Counts the usage of the endpoints, and admits each request.
        cache: The project's cache of answers; None if it is not used.
        record: The store in which the processes of the run record answers; None if nothing is recorded.

    Raises:
        EndpointError: the key of the user's model is missing.
    """

    def __init__(
        self,
        settings: LiveSettings,
        on_close: Callable[[Callable[[], Coroutine[Any, Any, None]]], None],
        meter: Meter,
        *,
        cache: AnswerStore | None = None,
        record: AnswerStore | None = None,
    ) -> None:
        function = settings.function
        assert function is not None
        self._function = function
        self._settings = settings
        cassette = settings.cassette
        self.is_playback = cassette is not None
        proxy = RecordingProxy(
            settings.agent,
            function.prices,
            meter,
            needs_prices=function.needs_prices,
            cache=cache,
            record=record,
            played=None if cassette is None else cassette.answers,
        )
        self._backend: Backend = HttpEndpoint(function, proxy) if function.url else ChildPool(function, proxy)
        on_close(self._backend.close)
        on_close(proxy.close)
        self._users = None
        if settings.has_user_model:
            users = replace(settings, agent=settings.user, function=None)
            self._users = ChatFactory(users, on_close, meter, cache=cache, record=record)

    async def check(self) -> None:
        """Check that the agent can be reached or imported.

        Raises:
            ConfigError: no simulation could begin; the message is one line.
        """
        await self._backend.check()

    def with_journal(
        self, journal: Journal, before_use: Callable[[], Awaitable[None]], cache_partition: str = ""
    ) -> AgentFactory:
        """Return a factory for one simulation that writes all its answers to a journal; see `ChatFactory`."""
        users = self._users
        make_user = users.user_maker(journal, before_use, cache_partition) if users is not None else None

        def make(
            task: Task, world: World, candidate: Candidate, trial: int, /, *, solo: bool = False
        ) -> tuple[Agent, User]:
            exchange = Exchange(trial, journal, before_use, cache_partition)
            return self._make(task, world, candidate, exchange, make_user)

        return make

    def __call__(
        self, task: Task, world: World, candidate: Candidate, trial: int, /, *, solo: bool = False
    ) -> tuple[Agent, User]:
        """Make the agent and the user of one simulation without a journal. A solo run is rejected earlier."""
        make_user = self._users.user_maker() if self._users is not None else None
        return self._make(task, world, candidate, Exchange(trial, None, _do_nothing), make_user)

    def _make(
        self,
        task: Task,
        world: World,
        candidate: Candidate,
        exchange: Exchange,
        make_user: Callable[[Task, World, int], User] | None,
    ) -> tuple[Agent, User]:
        trial = exchange.trial
        user = make_user(task, world, trial) if make_user else make_scripted_user(task, trial)
        if user is None:
            raise InfrastructureError(
                f"task {task.id!r} has no scripted user; name a model that plays it with --t2e-user-model"
            )
        instructions = [candidate.instruction, self._settings.extra_instruction]
        prompt = [candidate.prompt or world.policy(), *(text for text in instructions if text)]
        request = {
            "tools": [tool.model_dump(mode="json") for tool in candidate.task_tools(world, task)],
            "candidate": {
                "id": candidate.id,
                "prompt": "\n\n".join(prompt),
                "instruction": candidate.instruction,
                "model": self._settings.agent.model or None,
                "parameters": dict(self._function.parameters),
                "trial": trial,
            },
        }
        return self._backend.make_agent(request, exchange), user


def make_factory(
    settings: LiveSettings,
    on_close: Callable[[Callable[[], Coroutine[Any, Any, None]]], None],
    meter: Meter,
    *,
    cache: AnswerStore | None = None,
    record: AnswerStore | None = None,
) -> ChatFactory | FunctionFactory:
    """Make the factory of a live run's agent; see `ChatFactory` and `FunctionFactory`."""
    factory_class = ChatFactory if settings.function is None else FunctionFactory
    return factory_class(settings, on_close, meter, cache=cache, record=record)
