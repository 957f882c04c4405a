"""Makes simulations on a Ray cluster: the driver's side.

Each actor is a process with one event loop and up to `per_actor` simulations. The driver exchanges messages
with an actor in batches: one call of Ray carries the events of many simulations and the replies to earlier
ones. Everything that has to be counted once or stored stays here: budget, rate limit, journals, answers.
"""

import asyncio
import contextlib
import math
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest_trace2evolve
from pytest_trace2evolve.engine.budget import Account
from pytest_trace2evolve.engine.conversation import Assignment, nothing_to_declare
from pytest_trace2evolve.engine.loop import LoopThread
from pytest_trace2evolve.engine.ray_actor import (
    Call,
    Cancel,
    Event,
    Message,
    Order,
    Reply,
    Secrets,
    Setup,
    Stop,
    as_error,
    described,
)
from pytest_trace2evolve.engine.ray_cluster import (
    OPEN_SECONDS,
    Actor,
    ActorLost,
    Job,
    RayCluster,
    Work,
    check_opened,
    check_reachable,
    in_one_line,
    portable,
)
from pytest_trace2evolve.errors import (
    BudgetError,
    ClusterError,
    ConfigError,
    EndpointError,
    InfrastructureError,
    StorageError,
)
from pytest_trace2evolve.evidence.journal import Journal
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.utils.files import Scratch

T = TypeVar("T")

PER_ACTOR = 32
"""Simulations at once in one actor, by default."""

WINDOW = 0.02
"""Seconds that an actor waits for further events before it returns the first: fewer, larger batches."""

FLUSH_SECONDS = 0.005
"""Seconds that a message waits for others if no batch is about to be sent."""

START_TRIES = 3
"""How often the actors are started if a node is lost, or Ray cannot prepare it."""

MAX_LOSSES = 5
"""Losses of an actor after which its simulation is lost: it may be what ends the process."""


class RayExecutor:
    """Makes simulations on a Ray cluster.

        run = evaluate(project, candidate="v6", model="m", executor=RayExecutor("ray.example.org:6379"))

    An executor serves one run. If this process is connected to Ray already, that connection is used with its
    runtime environment, and `pip` has to be empty.

    Args:
        address: The cluster's address; `auto` is RAY_ADDRESS, or a cluster that runs on this machine, or one
            that is started here.
        per_actor: Simulations at once in one actor. An actor takes one CPU of the cluster.
        pip: Requirements that nodes install for the run, or the path of a file of them.
        env: Names of environment variables that are handed to the nodes.

    Attributes:
        losses: How many actors ended before the run did.
        resumed: How many simulations were continued elsewhere.
    """

    def __init__(
        self,
        address: str = "auto",
        *,
        per_actor: int = PER_ACTOR,
        pip: Sequence[str] | str | Path = (),
        env: Sequence[str] = (),
    ) -> None:
        self.address = address
        self.losses = self.resumed = 0
        self._per_actor = per_actor
        self._cluster = RayCluster(address, str(pip) if isinstance(pip, str | Path) else list(pip))
        self._env = env
        self._actors: list[Actor] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._replying: set[asyncio.Task[None]] = set()
        self._free = asyncio.Condition()
        self._number = 0
        self._starting = 0
        self._stop: Stop | None = None
        self._failure: Exception | None = None
        self._closing = contextlib.ExitStack()
        self._loop: LoopThread | None = None

    @property
    def notes(self) -> list[str]:
        """What the user should know after a run, a line each."""
        if not self.losses:
            return []
        lost = f"{self.losses} process{'es' if self.losses > 1 else ''}"
        note = f"Ray: {lost} ended with simulations under way; {self.resumed} were resumed on others; "
        return [note + "answers that were on their way are not counted"]

    # ---- before the first simulation

    def open(self, work: Work) -> None:
        """Connect to the cluster and start the actors.

        Raises:
            MissingExtraError: Ray is not installed.
            ConfigError: the cluster cannot be reached, has no free CPU, or a node cannot run the project.
        """
        if unset := [name for name in self._env if name not in os.environ]:
            raise ConfigError(
                f"variable {unset[0]} is to be handed to Ray's nodes and is not set; set it, or leave it out"
            )
        variables = {name: os.environ[name] for name in self._env}
        self._work = work
        self._setup = Setup(
            version=pytest_trace2evolve.__version__,
            suites_folder=os.path.relpath(work.project.suites_folder, work.project.root),
            suites=work.suites,
            is_limited=work.account.budgets.requests_per_minute is not None,
            stores=tuple(work.stores),
        )
        sides = {side: live and live.map_models(portable) for side, live in work.sides.items()}
        self._secrets = Secrets(sides, variables)
        self._closing.callback(self._cluster.close)
        with self._cluster.one_line():
            self._cluster.connect(work.project.root)
            count = min(self._cluster.cpus(), math.ceil(work.concurrency / self._per_actor))
            errors = self._cluster.errors
            for tries_left in reversed(range(START_TRIES)):
                try:
                    self._start_actors(count)
                    return
                except (errors.RuntimeEnvSetupError, errors.RayActorError, FileNotFoundError):
                    # A node was lost meanwhile. Or nodes share a disk: each one unpacks the project's folder
                    # anew when it first needs it, and so deletes that of actors which others have started.
                    self._kill_actors()
                    if not tries_left:
                        raise

    def _start_actors(self, count: int) -> None:
        self._actors = [Actor(self._cluster.create_actor(), "") for _ in range(count)]
        places = [actor.handle.node.remote() for actor in self._actors]
        for actor, place in zip(self._actors, places, strict=True):
            actor.node = self._cluster.get(place)
            check_reachable(self._cluster, actor.node, self._work.all_models)
        # Only now: every node has unpacked the project's folder.
        opened = [actor.handle.open.remote(self._setup, self._secrets) for actor in self._actors]
        for actor, problem in zip(self._actors, opened, strict=True):
            check_opened(actor.node, self._cluster.get(problem))

    def _kill_actors(self) -> None:
        for actor in self._actors:
            self._cluster.kill(actor.handle)
        self._actors.clear()

    # ---- simulations

    @classmethod
    @contextlib.contextmanager
    def opened(
        cls, address: str, project: Project | None, concurrency: int, models: Sequence[ModelSettings] = ()
    ) -> "Iterator[RayExecutor]":
        """An executor for calls; `run` runs the coroutine that makes them.

        Raises:
            MissingExtraError, ConfigError: as `open`.
        """
        if project is None:
            raise ConfigError("a Ray cluster needs a project, whose folder travels; give --root")
        with contextlib.ExitStack() as stack:
            scratch = Scratch()
            stack.callback(scratch.close)
            account = Account(scratch.path / "account.sqlite")
            stack.callback(account.close)
            loop = LoopThread(concurrency)
            stack.callback(loop.close)
            executor = cls(address)
            stack.callback(executor.close)
            executor.open(Work(project, account, concurrency, models=tuple(models)))
            executor.start(loop)
            yield executor

    def start(self, loop: LoopThread) -> None:
        """Begin to exchange messages with the actors, on the loop of the run."""
        self._loop = loop
        loop.run(self._start())

    async def _start(self) -> None:
        for actor in self._actors:
            self._serve(actor)

    async def simulate(
        self,
        assignment: Assignment,
        journal: Journal | None = None,
        before_use: Callable[[], Awaitable[None]] | None = None,
    ) -> Simulation:
        """Make a simulation on a node: see `conversation.simulate`.

        Raises:
            ClusterError: no node is left.
            InfrastructureError: it was lost with several nodes, one after the other.
        """
        order = Order(
            number=0,
            suite=assignment.suite,
            side=assignment.side,
            task_id=assignment.task.id,
            candidate=assignment.candidate,
            trial=assignment.trial,
            limits=assignment.limits,
            solo=assignment.solo,
            place=assignment.place,
        )

        def numbered(number: int) -> Order:
            if journal is None:
                return replace(order, number=number)
            return replace(order, number=number, entries=journal.rewind(), redrawn=journal.redrawn)

        what = f"task {assignment.task.id!r}"
        simulation: Simulation = await self._make(what, numbered, journal, before_use or nothing_to_declare)
        return simulation

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that makes calls, and wait for its result."""
        assert self._loop is not None, "start comes first"
        return self._loop.run(work)

    async def call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Call a function of a module on a node: `await function(actor, *arguments)`.

        It is called again if its node is lost.

        Raises:
            ClusterError: no node is left.
            InfrastructureError: it was lost with several nodes, one after the other.
            Exception: what it raises, if this package defines it; any other is an `InfrastructureError`.
        """
        name = getattr(function, "__name__", "a function")
        result: T = await self._make(name, lambda number: Call(number, function, arguments))
        return result

    async def _make(
        self,
        what: str,
        numbered: Callable[[int], Order | Call],
        journal: Journal | None = None,
        before_use: Callable[[], Awaitable[None]] = nothing_to_declare,
    ) -> Any:
        for _ in range(MAX_LOSSES):
            actor = await self._place()
            self._number += 1
            message = numbered(self._number)
            job = Job(asyncio.get_running_loop().create_future(), journal, before_use)
            actor.jobs[message.number] = job
            self._post(actor, message)
            try:
                return await job.finished
            except ActorLost:
                self.resumed += 1
            except asyncio.CancelledError:
                self._post(actor, Cancel(message.number))
                raise
            finally:
                actor.jobs.pop(message.number, None)
                async with self._free:
                    self._free.notify_all()
        raise InfrastructureError(f"{what}: its process on a Ray node ended {MAX_LOSSES} times")

    async def _place(self) -> Actor:
        """The actor with the fewest simulations, once one has room."""
        async with self._free:
            while True:
                if self._failure is not None:
                    raise self._failure
                if not self._actors and not self._starting:
                    raise ClusterError(
                        f"the Ray cluster at {self.address} has no node left that can run the project; start "
                        "nodes, then run the same again to resume"
                    )
                free = [actor for actor in self._actors if len(actor.jobs) < self._per_actor]
                if free:
                    return min(free, key=lambda actor: len(actor.jobs))
                await self._free.wait()

    def _post(self, actor: Actor, message: Message) -> None:
        actor.outbox.append(message)
        if actor.exchanging and actor.flush is None:
            actor.flush = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush, actor)

    def _flush(self, actor: Actor) -> None:
        actor.flush = None
        if actor.outbox and actor in self._actors:
            messages, actor.outbox = actor.outbox, []
            actor.handle.send.options(num_returns=0).remote(messages)

    def _serve(self, actor: Actor) -> None:
        task = asyncio.get_running_loop().create_task(self._exchange_until_lost(actor))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _exchange_until_lost(self, actor: Actor) -> None:
        """Exchange messages with an actor until it ends; any other trouble ends the run."""
        errors = self._cluster.errors
        try:
            while True:
                await self._exchange(actor)
        except errors.RayActorError:
            await self._on_loss(actor)
        except errors.RayError as error:
            self._fail(
                ClusterError(
                    f"node {actor.node} of the Ray cluster cannot send a simulation: {in_one_line(error)}; "
                    "make room there, then run the same again to resume"
                )
            )
        except Exception as error:  # such as a full disk under the account
            self._fail(error)

    async def _exchange(self, actor: Actor) -> None:
        """Send what waits for an actor, and handle its next events."""
        messages, actor.outbox = actor.outbox, []
        actor.exchanging = True
        events = await actor.handle.exchange.remote(messages, WINDOW)
        actor.exchanging = False
        questions = [task for event in events if (task := self._take(actor, event)) is not None]
        self._stop_if_stopped()
        if questions:
            # Most replies are there at once, and travel with the next batch.
            await asyncio.wait(questions, timeout=FLUSH_SECONDS)

    def _take(self, actor: Actor, event: Event) -> "asyncio.Task[None] | None":
        """Handle an event; a question is answered in a task of its own."""
        if event.ask:
            task = asyncio.get_running_loop().create_task(self._answer(actor, event))
            self._replying.add(task)
            task.add_done_callback(self._replying.discard)
            return task
        if event.kind == "spent":
            self._work.account.spend(event.content)
            return None
        job = actor.jobs.get(event.simulation)
        if job is None or job.finished.done():  # it was cancelled
            return None
        try:
            match event.kind:
                case "took":
                    assert job.journal is not None
                    job.journal.take(event.content)
                case "added":
                    assert job.journal is not None
                    job.journal.add(event.content)
                case "done":
                    job.finished.set_result(event.content)
                case "failed":
                    job.finished.set_exception(as_error(*event.content))
        except StorageError as error:
            job.finished.set_exception(error)
            self._post(actor, Cancel(event.simulation))
        return None

    async def _answer(self, actor: Actor, event: Event) -> None:
        try:
            reply = Reply(event.ask, await self._value(actor, event))
        except Exception as error:
            reply = Reply(event.ask, error=described(error))
        self._post(actor, reply)

    async def _value(self, actor: Actor, event: Event) -> Any:
        match event.kind:
            case "use":
                if job := actor.jobs.get(event.simulation):
                    await job.before_use()
            case "admit":
                return self._work.account.pause_before_request()
            case "get":
                name, key = event.content
                return await self._work.stores[name].get(key)
            case "put":
                name, key, answer = event.content
                return await self._work.stores[name].put(key, answer)
        return None

    def _stop_if_stopped(self) -> None:
        """Let no actor send anything more once the budget is spent."""
        if self._stop is not None:
            return
        try:
            self._work.account.raise_if_stopped()
        except (BudgetError, EndpointError, StorageError) as error:
            self._stop = Stop(described(error))
            for actor in self._actors:
                self._post(actor, self._stop)

    # ---- losses

    def _fail(self, error: Exception) -> None:
        """Let every simulation, and every further one, end with an error."""
        self._failure = error
        for actor in self._actors:
            for job in actor.jobs.values():
                if not job.finished.done():
                    job.finished.set_exception(error)

    async def _on_loss(self, actor: Actor) -> None:
        """Let the simulations of an actor be made elsewhere, and start another one."""
        self._actors.remove(actor)
        self.losses += 1
        self._cluster.kill(actor.handle)  # it may be unreachable only, and must ask no model any more
        self._starting += 1
        for job in actor.jobs.values():
            if not job.finished.done():
                job.finished.set_exception(ActorLost())
        try:
            await self._replace()
        finally:
            self._starting -= 1
            async with self._free:
                self._free.notify_all()

    async def _replace(self) -> None:
        handle = self._cluster.create_actor()
        try:
            async with asyncio.timeout(OPEN_SECONDS if not self._actors else None):
                node = await handle.node.remote()
                check_opened(node, await handle.open.remote(self._setup, self._secrets))
        except (self._cluster.errors.RayError, ConfigError, TimeoutError):
            self._cluster.kill(handle)
            return
        actor = Actor(handle, node)
        if self._stop is not None:
            actor.outbox.append(self._stop)
        self._actors.append(actor)
        self._serve(actor)

    # ---- the end

    async def _end(self) -> None:
        tasks = [*self._serving, *self._replying]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """End the actors, and the connection if `open` made it."""
        if self._loop is not None:  # Ray must not be asked once it is shut down: it would start a cluster
            self._loop.run(self._end())
            self._loop = None
        self._kill_actors()
        self._closing.close()
