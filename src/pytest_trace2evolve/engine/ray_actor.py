"""A process of a Ray cluster that opens the project and its models once, and makes simulations.

The driver keeps the budget, the rate limit, the journals and the stores of answers. A simulation on the
cluster sends events to the driver. When a local simulation would write a file, it waits for a reply of the
driver.
"""

import asyncio
import itertools
import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest_trace2evolve
from pytest_trace2evolve import errors
from pytest_trace2evolve.engine.conversation import Assignment, Limits, simulate
from pytest_trace2evolve.engine.factories import BUILT_IN_AGENTS, AnswerStores, identify
from pytest_trace2evolve.engine.function_agent import make_factory
from pytest_trace2evolve.engine.live import LiveSettings
from pytest_trace2evolve.errors import ConfigError, InfrastructureError, Trace2EvolveError
from pytest_trace2evolve.evidence.journal import KeptAnswers
from pytest_trace2evolve.project.candidates import AgentFactory, Candidate
from pytest_trace2evolve.project.project import LockedSuite, Project
from pytest_trace2evolve.project.tool_settings import find_code_folders
from pytest_trace2evolve.records.completion import Answer, JournalEntry, Usage
from pytest_trace2evolve.records.evidence import CHAT, Identity, code_differences
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.worlds.registry import Worlds

Side = tuple[str, Literal["baseline", "candidate"]]
"""The name of a suite, and one side of its comparison."""


@dataclass(frozen=True)
class RemoteSuite:
    """A suite for a node to run: its lock, its agent and candidate, and the identity of their code."""

    locked: LockedSuite
    agent: str
    candidate: Candidate
    identity: Identity


@dataclass(frozen=True)
class Setup:
    """The data that a process needs before its first simulation.

    Attributes:
        version: The driver's version of this package.
        suites_folder: The folder of suites, relative to the project's folder.
        suites: The suites that the process runs, by name.
        is_limited: Whether the run has a rate limit, so that the driver admits each request.
        stores: The names of the stores of answers that the driver keeps.
    """

    version: str
    suites_folder: str
    suites: Mapping[str, RemoteSuite] = field(default_factory=dict)
    is_limited: bool = False
    stores: tuple[Literal["cache", "record"], ...] = ()


@dataclass(frozen=True)
class Secrets:
    """Secrets that Ray sends to the process and that the cluster must not store.

    Attributes:
        sides: The models of each side, with their keys.
        variables: Environment variables for the project's code.
    """

    sides: Mapping[Side, LiveSettings | None] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SimulationRequest:
    """A message that requests a simulation.

    Attributes:
        entries: The journal so far; None without a journal.
        was_redrawn: Whether answers of the journal were discarded earlier.
    """

    number: int
    suite: str
    side: Literal["baseline", "candidate"]
    task_id: str
    candidate: Candidate
    trial: int
    limits: Limits
    solo: bool
    cache_partition: str
    entries: tuple[JournalEntry, ...] | None = None
    was_redrawn: bool = False


class Event(NamedTuple):
    """A message from a simulation to the driver.

    Attributes:
        simulation: The number of the simulation's request; 0 for events of the whole process.
        kind: The kind of event or question.
        question_number: The number of the question that the driver must answer; 0 if the event is not a
            question.
    """

    simulation: int
    kind: Literal["added", "use", "spent", "admit", "get", "put", "done", "failed"]
    content: Any = None
    question_number: int = 0


class Reply(NamedTuple):
    """The driver's answer to a question: a value, or the class and text of an error."""

    question_number: int
    value: Any = None
    error: tuple[str, str] | None = None


class Stop(NamedTuple):
    """A message that forbids further requests, with the class and text of the error that requests raise."""

    error: tuple[str, str]


class Cancel(NamedTuple):
    """A message that cancels a simulation for which the driver no longer waits."""

    simulation: int


Message = SimulationRequest | Reply | Stop | Cancel


def encode_error(error: Exception) -> tuple[str, str]:
    """Encode an error for a message, as the name of its class and its text."""
    if isinstance(error, Trace2EvolveError):
        return type(error).__name__, str(error)
    return InfrastructureError.__name__, f"{type(error).__name__}: {error}"


def decode_error(name: str, text: str) -> Exception:
    """Decode an error that `encode_error` encoded."""
    error_class = getattr(errors, name, InfrastructureError)
    error: Exception = error_class(text)
    return error


class _Channel:
    """Sends events to the driver and waits for its replies."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._has_events = asyncio.Event()
        self._pending_replies: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self.stop_error: tuple[str, str] | None = None

    def send(self, event: Event) -> None:
        self._events.append(event)
        self._has_events.set()

    async def ask(self, simulation: int, kind: Any, content: Any = None) -> Any:
        number = next(self._numbers)
        future = self._pending_replies[number] = asyncio.get_running_loop().create_future()
        self.send(Event(simulation, kind, content, number))
        try:
            return await future
        finally:
            del self._pending_replies[number]

    def resolve(self, reply: Reply) -> None:
        future = self._pending_replies.get(reply.question_number)
        if future is None or future.done():  # its simulation was cancelled
            return
        if reply.error is None:
            future.set_result(reply.value)
        else:
            future.set_exception(decode_error(*reply.error))

    async def collect(self, window: float) -> list[Event]:
        """Wait for an event, then return all events that arrived until `window` seconds later."""
        await self._has_events.wait()
        await asyncio.sleep(window)
        self._has_events.clear()
        events = list(self._events)
        self._events.clear()
        return events


class _RemoteMeter:
    """A proxy of the run's account, which the driver keeps."""

    def __init__(self, channel: _Channel, *, is_limited: bool) -> None:
        self._channel = channel
        self._is_limited = is_limited

    async def admit(self) -> None:
        self.raise_if_stopped()
        if self._is_limited and (pause := await self._channel.ask(0, "admit")) > 0:
            await asyncio.sleep(pause)
            self.raise_if_stopped()

    def raise_if_stopped(self) -> None:
        if self._channel.stop_error is not None:
            raise decode_error(*self._channel.stop_error)

    def spend(self, usage: Usage) -> None:
        self._channel.send(Event(0, "spent", usage))


class _RemoteAnswers:
    """A proxy of a store of answers, which the driver keeps."""

    def __init__(self, channel: _Channel, name: str) -> None:
        self._channel = channel
        self._name = name

    async def get(self, key: str) -> Answer | None:
        answer: Answer | None = await self._channel.ask(0, "get", (self._name, key))
        return answer

    async def put(self, key: str, answer: Answer) -> Answer:
        stored_answer: Answer = await self._channel.ask(0, "put", (self._name, key, answer))
        return stored_answer


class _RemoteJournal(KeptAnswers):
    """A proxy of a simulation's journal; `before_use` waits until the driver has written the entries."""

    def __init__(self, request: SimulationRequest, channel: _Channel) -> None:
        self._number, self._channel = request.number, channel
        super().__init__(request.entries or (), was_redrawn=request.was_redrawn)

    def add(self, entry: JournalEntry) -> None:
        self._channel.send(Event(self._number, "added", entry))

    async def before_use(self) -> None:
        await self._channel.ask(self._number, "use")


class RayActor:
    """Makes simulations in one process, all on one event loop.

    Attributes:
        project: The project, opened from its copy on the node.
        closers: Functions that close open resources before the process ends.
    """

    project: Project

    def __init__(self) -> None:
        self._running: dict[int, asyncio.Task[None]] = {}
        self.closers: list[Callable[[], Awaitable[None]]] = []
        self._factories: dict[Side, AgentFactory] = {}
        self._worlds: dict[str, World] = {}

    async def node(self) -> str:
        """The address of this process's node."""
        import ray

        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return address

    async def open(self, setup: Setup, secrets: Secrets) -> str:
        """Open the project and its models. Return the reason if this fails, otherwise an empty string."""
        if setup.version != pytest_trace2evolve.__version__:
            return (
                f"it has pytest-trace2evolve {pytest_trace2evolve.__version__}, but this machine has "
                f"{setup.version}; install the same version on all nodes"
            )
        os.environ.update(secrets.variables)
        self._channel = _Channel()
        self._meter = _RemoteMeter(self._channel, is_limited=setup.is_limited)
        try:
            self._open(setup, secrets)
        except (Trace2EvolveError, ImportError) as error:
            return str(error)
        return ""

    def _open(self, setup: Setup, secrets: Secrets) -> None:
        root = Path.cwd()
        self.project = project = Project(root, root / setup.suites_folder)
        extensions = project.extensions
        worlds = Worlds(extensions.worlds, root, project.find_agent_files)
        agents = {**BUILT_IN_AGENTS, **extensions.agents}
        stores: AnswerStores = {name: _RemoteAnswers(self._channel, name) for name in setup.stores}
        for name, suite in setup.suites.items():
            self._check_suite(suite, project, worlds, agents)
            self._worlds[name] = project.world(suite.locked.suite, worlds)
        for (name, side), live in secrets.sides.items():
            agent = setup.suites[name].agent
            if live is not None and agent == live.agent_name:
                factory = make_factory(live, self.closers.append, self._meter, **stores)
                self._factories[name, side] = factory
            else:
                self._factories[name, side] = agents[agent]

    @staticmethod
    def _check_suite(
        suite: RemoteSuite, project: Project, worlds: Worlds, agents: Mapping[str, AgentFactory]
    ) -> None:
        """Check that this process has the data and code that the driver locked and identified.

        Raises:
            ConfigError: the agent is not registered here, or code or data differ; the message names the
                difference.
            WorldError: the world cannot be opened here.
        """
        locked = suite.locked
        project.verify_world(locked.suite, locked.lock, worlds)
        if suite.agent not in agents and suite.agent != CHAT:
            raise ConfigError(f"agent {suite.agent!r} is not registered on the node")
        identity = identify(
            locked,
            suite.agent,
            suite.candidate,
            agents=agents,
            world=project.world(locked.suite, worlds),
            code=worlds.code(locked.suite.provider, locked.suite.domain),
            folders=find_code_folders(project.root),
        )
        own_codes = (identity.agent.code, identity.user.code, identity.world)
        driver_codes = (suite.identity.agent.code, suite.identity.user.code, suite.identity.world)
        names = [
            name for pair in zip(driver_codes, own_codes, strict=True) for name in code_differences(*pair)
        ]
        if names:
            raise ConfigError(
                f"code of suite {locked.name!r} differs from this machine's: {', '.join(names[:3])}"
            )

    async def send(self, messages: Sequence[Message]) -> None:
        """Handle messages of the driver."""
        for message in messages:
            match message:
                case SimulationRequest():
                    self._start(message.number, self._simulate(message))
                case Reply():
                    self._channel.resolve(message)
                case Cancel():
                    if task := self._running.get(message.simulation):
                        task.cancel()
                case Stop():
                    self._channel.stop_error = message.error

    async def exchange(self, messages: Sequence[Message], window: float) -> list[Event]:
        """Handle messages of the driver, and return the next events; see `_Channel.collect`."""
        await self.send(messages)
        return await self._channel.collect(window)

    async def close(self) -> None:
        """Cancel the running simulations, and close the models."""
        for task in self._running.values():
            task.cancel()
        for closer in self.closers:
            await closer()

    def _start(self, number: int, work: Awaitable[Any]) -> None:
        self._running[number] = asyncio.create_task(self._send_result(number, work))

    async def _send_result(self, number: int, work: Awaitable[Any]) -> None:
        try:
            self._channel.send(Event(number, "done", await work))
        except Exception as error:
            self._channel.send(Event(number, "failed", encode_error(error)))
        finally:
            self._running.pop(number, None)

    async def _simulate(self, request: SimulationRequest) -> Simulation:
        world = self._worlds[request.suite]
        assignment = Assignment(
            task=world.tasks()[request.task_id],
            world=world,
            factory=self._factories[request.suite, request.side],
            candidate=request.candidate,
            trial=request.trial,
            limits=request.limits,
            solo=request.solo,
            cache_partition=request.cache_partition,
        )
        if request.entries is None:
            return await simulate(assignment)
        journal = _RemoteJournal(request, self._channel)
        return await simulate(assignment, journal, journal.before_use)
