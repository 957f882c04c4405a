"""Agents that a project writes as one function, `make(tools, candidate)`, and runs in child processes.

Each child process works on one simulation at a time (see `agent_child`), so an agent that hangs, exits or
prints anything cannot harm the run. The process is reused for further simulations if the agent behaved.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_trace2evolve.agents.chat import is_visible
from pytest_trace2evolve.engine.factories import ChatFactory, make_scripted_user
from pytest_trace2evolve.engine.live import AgentFunction, LiveSettings
from pytest_trace2evolve.engine.proxy import PLACEHOLDER_KEY, Exchange, RecordingProxy
from pytest_trace2evolve.errors import AgentCodeError, InfrastructureError
from pytest_trace2evolve.project.candidates import AgentFactory, Candidate
from pytest_trace2evolve.records.completion import to_wire
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.protocols import Agent, AnswerStore, Journal, Meter, User, World
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.utils.canonical import storable_text

MAX_LINE = 64 << 20
"""The largest number of bytes of one event of a child process."""

SHOWN_OUTPUT = 300
"""The last characters of a child's output that an error shows."""

END_SECONDS = 5.0
"""Seconds that an agent has to close before its process is ended."""


class Child:
    """A child process of an agent.

    Attributes:
        is_waiting: Whether the agent's code raised an exception, after which the process waits for a request.
    """

    def __init__(
        self, function: AgentFunction, process: asyncio.subprocess.Process, token: str, log: Path
    ) -> None:
        self.token = token
        self.is_waiting = False
        self._function = function
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, function: AgentFunction, proxy: RecordingProxy, log: Path) -> "Child":
        """Start a process; its output goes to the file `log`."""
        token = proxy.new_token()
        environment = {
            **os.environ,
            "OPENAI_BASE_URL": proxy.base_url(token),
            "OPENAI_API_KEY": PLACEHOLDER_KEY,
            "PYTHONUNBUFFERED": "1",
        }
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "pytest_trace2evolve.engine.agent_child",
                str(function.folder),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                cwd=function.folder,
                env=environment,
                limit=MAX_LINE,
                start_new_session=True,  # an interrupt of the run is not the agent's
            )
        return cls(function, process, token, log)

    async def ask(self, request: Mapping[str, Any], exchange: Exchange) -> dict[str, Any]:
        """Send a request and return the child's next event.

        Raises:
            AgentCodeError: the agent raised an exception, did not answer in time, or ended the process.
            InfrastructureError: a service did not answer in time, or the process was killed from outside.
            Trace2EvolveError: a request of the agent to its model ended the simulation or the run.
        """
        self.is_waiting = False
        failed = asyncio.create_task(exchange.failed.wait())
        event = asyncio.create_task(self._exchange(request))
        try:
            async with asyncio.timeout(self._function.timeout):
                await asyncio.wait({failed, event}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise self._timeout_error(request, exchange) from None
        finally:
            failed.cancel()
            if not event.done():
                event.cancel()
        if exchange.failure is not None:
            raise exchange.failure
        answer = event.result()
        if answer["event"] == "failed":
            self.is_waiting = True
            if answer["network"]:
                raise InfrastructureError(f"the agent could not reach a service: {answer['error']}")
            raise AgentCodeError(storable_text(answer["error"]), storable_text(answer["frames"]))
        return answer

    async def _exchange(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(ConnectionError):  # the process has ended, as the empty line says
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            await self._process.stdin.drain()
        line = await self._process.stdout.readline()
        if not line:
            raise await self._end_error()
        event: dict[str, Any] = json.loads(line)
        return event

    def _timeout_error(self, request: Mapping[str, Any], exchange: Exchange) -> Exception:
        step = "make" if request.get("do") == "make" else "run"
        text = f"{step} gave no answer within {self._function.timeout:g} seconds (--t2e-call-timeout)"
        if exchange.pending:
            return InfrastructureError(f"the agent waits for its model: {text}")
        return AgentCodeError(f"TimeoutError: {text}")

    async def _end_error(self) -> Exception:
        status = await self._process.wait()
        if status in (-9, -15):
            return InfrastructureError(
                f"the agent's process was killed by signal {-status}; {self._output()}"
            )
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        return AgentCodeError(f"the agent's process ended with {how}; {self._output()}")

    def _output(self) -> str:
        try:
            text = self._log.read_bytes()[-SHOWN_OUTPUT:].decode("utf-8", "replace")
        except OSError:
            text = ""
        shown = " ".join(storable_text(text).split())
        return f"its output ends with {shown!r}" if shown else "it printed nothing"

    def kill(self) -> None:
        """End the process and all processes that it started in its session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, 9)
            else:
                self._process.kill()

    async def wait(self) -> None:
        """Wait until the process has ended."""
        await self._process.wait()

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.returncode is None


class FunctionAgent:
    """The agent of one simulation, which a child process plays."""

    def __init__(self, pool: "ChildPool", make: Mapping[str, Any], exchange: Exchange) -> None:
        self.name = pool.function.path
        self._pool = pool
        self._make = dict(make)
        self._exchange = exchange
        self._child: Child | None = None
        self._calls = 0
        self._is_idle = False

    async def respond(self, history: Sequence[Message]) -> Message:
        """The agent's next tool call or reply.

        Raises: see `Child.ask`; also `InfrastructureError` if the task starts in the middle of a
            conversation and the agent cannot.
        """
        if self._child is None:
            self._child = await self._pool.take(self._exchange)
            earlier = [to_wire(message) for message in history[:-1] if is_visible(message)]
            is_new = not any(message.role == "user" for message in history[:-1])
            request = {"do": "make", **self._make, "history": [] if is_new else earlier}
            made = await self._child.ask(request, self._exchange)
            if made["event"] == "no history":
                raise InfrastructureError(
                    f"the task starts in the middle of a conversation, but {self.name} cannot continue one; "
                    "let it take a third argument named history, or leave the task out of the suite"
                )
        self._is_idle = False
        last = history[-1]
        if last.role == "tool":
            request = {"result": last.content or ""}
        else:
            request = {"do": "run", "message": last.content or ""}
        return self._message(await self._child.ask(request, self._exchange))

    def _message(self, event: Mapping[str, Any]) -> Message:
        usage, is_cached = self._exchange.take_usage()
        fields: dict[str, Any] = {"role": "assistant", "cost": usage.cost if usage.calls else None}
        if usage.calls:
            fields["usage"] = {
                "calls": usage.calls,
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
            }
        if is_cached:
            fields["cached"] = True
        self._is_idle = event["event"] == "reply"
        if self._is_idle:
            return Message.model_validate({**fields, "content": storable_text(event["content"])})
        self._calls += 1
        arguments = event["arguments"] if isinstance(event["arguments"], dict) else {}
        call = ToolCall.model_construct(
            id=f"call_{self._calls}", name=str(event["name"]), arguments=arguments, requestor="assistant"
        )
        return Message.model_construct(**fields, content=None, tool_calls=[call])

    async def close(self) -> None:
        """Return the child process to the pool, or end it if the simulation ended in the middle of a turn."""
        child, self._child = self._child, None
        if child is not None:
            is_reusable = self._is_idle or child.is_waiting
            await self._pool.put(child, self._exchange, is_reusable=is_reusable)


class ChildPool:
    """The child processes of one agent function."""

    def __init__(self, function: AgentFunction, proxy: RecordingProxy) -> None:
        self.function = function
        self._proxy = proxy
        self._idle: list[Child] = []
        self._all: list[Child] = []

    async def take(self, exchange: Exchange) -> Child:
        """Return an idle child process, or start one."""
        await self._proxy.open()
        while self._idle:
            child = self._idle.pop()
            if child.is_running:
                break
        else:
            child = await Child.start(
                self.function, self._proxy, self.function.log_folder / f"agent-{len(self._all) + 1}.log"
            )
            self._all.append(child)
        self._proxy.attach(child.token, exchange)
        return child

    async def put(self, child: Child, exchange: Exchange, *, is_reusable: bool) -> None:
        """Take a child process back after a simulation."""
        if is_reusable and child.is_running and exchange.failure is None:
            try:
                async with asyncio.timeout(END_SECONDS):
                    await child.ask({"do": "close"}, exchange)
                self._proxy.detach(child.token)
                self._idle.append(child)
                return
            except Exception:  # whatever the agent's `close` does, the simulation is complete
                pass
        self._proxy.detach(child.token)
        child.kill()

    async def close(self) -> None:
        """End all child processes."""
        for child in self._all:
            child.kill()
        for child in self._all:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await child.wait()


async def _do_nothing() -> None:
    """Do nothing before an answer is used, because no ledger has to name the draw."""


class FunctionFactory:
    """Makes the agent of a project's function, and its user, for each simulation.

    Attributes:
        is_playback: Whether answers come from a cassette.

    Args:
        settings: The function, the endpoint of its models, and the model of the user.
        on_close: Registers a coroutine function that ends what was opened here.
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
        assert settings.function is not None
        self._settings = settings
        cassette = settings.cassette
        self.is_playback = cassette is not None
        proxy = RecordingProxy(
            settings.agent,
            settings.function.prices,
            meter,
            cache=cache,
            record=record,
            played=None if cassette is None else cassette.answers,
        )
        self._pool = ChildPool(settings.function, proxy)
        on_close(self._pool.close)
        on_close(proxy.close)
        self._users = None
        if settings.has_user_model:
            users = replace(settings, agent=settings.user, function=None)
            self._users = ChatFactory(users, on_close, meter, cache=cache, record=record)

    def with_journal(
        self, journal: Journal, before_use: Callable[[], Awaitable[None]], cache_partition: str = ""
    ) -> AgentFactory:
        """Return a factory for one simulation that journals all its answers; see `ChatFactory`."""
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
        """Make the agent and the user of one simulation without a journal; `solo` is rejected before."""
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
            "agent": self._pool.function.path,
            "tools": [
                tool.model_dump(mode="json") for tool in candidate.describe_tools(world.tools("assistant"))
            ],
            "candidate": {
                "id": candidate.id,
                "prompt": "\n\n".join(prompt),
                "instruction": candidate.instruction,
                "model": self._settings.agent.model or None,
                "parameters": dict(self._pool.function.parameters),
                "trial": trial,
            },
        }
        return FunctionAgent(self._pool, request, exchange), user


def make_factory(
    settings: LiveSettings,
    on_close: Callable[[Callable[[], Coroutine[Any, Any, None]]], None],
    meter: Meter,
    *,
    cache: AnswerStore | None = None,
    record: AnswerStore | None = None,
) -> ChatFactory | FunctionFactory:
    """Make the factory of a live run's agent; see `ChatFactory` and `FunctionFactory`."""
    kind = ChatFactory if settings.function is None else FunctionFactory
    return kind(settings, on_close, meter, cache=cache, record=record)
