"""The driver's side of simulations on a Ray cluster.

Each actor is a process with one event loop and up to `per_actor` simulations. The driver exchanges messages
with an actor in batches: one call of Ray carries the events of many simulations, and the replies to earlier
events. The driver keeps everything that is counted or stored: budget, rate limit, journals and answers.
"""

import asyncio
import contextlib
import math
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest_trace2evolve
from pytest_trace2evolve.engine.conversation import Assignment, declare_nothing
from pytest_trace2evolve.engine.loop import LoopThread
from pytest_trace2evolve.engine.ray_actor import (
    Cancel,
    Event,
    Message,
    Reply,
    Secrets,
    Setup,
    SimulationRequest,
    Stop,
    decode_error,
    encode_error,
)
from pytest_trace2evolve.engine.ray_cluster import (
    MAX_OPEN_SECONDS,
    Actor,
    ActorLost,
    Job,
    RayCluster,
    RunContext,
    check_opened,
    check_reachable,
    one_line_message,
    to_portable,
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
from pytest_trace2evolve.records.trace import Simulation

DEFAULT_PER_ACTOR = 32
"""The default number of concurrent simulations in one actor."""

BATCH_SECONDS = 0.02
"""Seconds that an actor waits for further events before it returns the first, which makes batches larger."""

FLUSH_SECONDS = 0.005
"""Seconds that a message waits for further messages while an exchange with its actor is under way."""

MAX_START_ATTEMPTS = 3
"""Maximum number of attempts to start the actors if a node is lost or Ray cannot prepare it."""

MAX_LOSSES = 5
"""Number of lost actors after which their simulation counts as lost, because it may have ended them."""


class RayExecutor:
    """Makes simulations on a Ray cluster.

        run = evaluate(project, candidate="v6", model="m", executor=RayExecutor("ray.example.org:6379"))

    An executor serves one run. If this process is already connected to Ray, the executor uses that connection
    and its runtime environment, and `pip` has to be empty.

    Args:
        address: The cluster's address. With `auto`, Ray uses RAY_ADDRESS, or a cluster that runs on this
            machine, or starts a cluster here.
        per_actor: The number of concurrent simulations in one actor. An actor takes one CPU of the cluster.
        pip: Requirements that nodes install for the run, or the path of a requirements file.
        env: Names of the environment variables that are passed to the nodes.

    Attributes:
        losses: The number of actors that ended before the run did.
        resumed: The number of times that a simulation was continued on another actor.
    """

    def __init__(
        self,
        address: str = "auto",
        *,
        per_actor: int = DEFAULT_PER_ACTOR,
        pip: Sequence[str] | str | Path = (),
        env: Sequence[str] = (),
    ) -> None:
        self.address = address
        self.losses = self.resumed = 0
        self._per_actor = per_actor
        self._cluster = RayCluster(address, str(pip) if isinstance(pip, str | Path) else list(pip))
        self._env = env
        self._actors: list[Actor] = []
        self._exchange_tasks: set[asyncio.Task[None]] = set()
        self._reply_tasks: set[asyncio.Task[None]] = set()
        self._actor_freed = asyncio.Condition()
        self._last_number = 0
        self._n_starting = 0
        self._stop_message: Stop | None = None
        self._failure: Exception | None = None
        self._exit_stack = contextlib.ExitStack()
        self._loop: LoopThread | None = None

    @property
    def notes(self) -> list[str]:
        """Notes for the user after a run, one line each."""
        if not self.losses:
            return []
        processes = f"{self.losses} process{'es' if self.losses > 1 else ''}"
        note = f"Ray: {processes} ended during simulations; {self.resumed} were resumed on other processes; "
        return [note + "answers in transit are not counted"]

    # ---- before the first simulation

    def open(self, context: RunContext) -> None:
        """Connect to the cluster and start the actors.

        Raises:
            MissingExtraError: Ray is not installed.
            ConfigError: the cluster cannot be reached, has no free CPU, or a node cannot run the project.
        """
        if unset_names := [name for name in self._env if name not in os.environ]:
            raise ConfigError(
                f"environment variable {unset_names[0]} cannot be passed to Ray's nodes because it is not "
                "set; set it or leave it out"
            )
        variables = {name: os.environ[name] for name in self._env}
        self._context = context
        self._setup = Setup(
            version=pytest_trace2evolve.__version__,
            suites_folder=os.path.relpath(context.project.suites_folder, context.project.root),
            suites=context.suites,
            is_limited=context.account.budgets.requests_per_minute is not None,
            stores=tuple(context.stores),
        )
        sides = {side: live and live.map_models(to_portable) for side, live in context.sides.items()}
        self._secrets = Secrets(sides, variables)
        self._exit_stack.callback(self._cluster.close)
        with self._cluster.one_line_errors():
            self._cluster.connect(context.project.root)
            n_actors = min(self._cluster.count_cpus(), math.ceil(context.concurrency / self._per_actor))
            errors = self._cluster.errors
            for tries_left in reversed(range(MAX_START_ATTEMPTS)):
                try:
                    self._start_actors(n_actors)
                    return
                except (errors.RuntimeEnvSetupError, errors.RayActorError, FileNotFoundError):
                    # A node was lost meanwhile, or nodes share a disk. On a shared disk, a node that unpacks
                    # the project's folder deletes the copy of actors that other nodes have started.
                    self._kill_actors()
                    if not tries_left:
                        raise

    def _start_actors(self, n_actors: int) -> None:
        self._actors = [Actor(self._cluster.create_actor(), "") for _ in range(n_actors)]
        nodes = [actor.handle.node.remote() for actor in self._actors]
        for actor, node in zip(self._actors, nodes, strict=True):
            actor.node = self._cluster.get(node)
            check_reachable(self._cluster, actor.node, self._context.all_models)
        # Not earlier, because every node must have unpacked the project's folder.
        problems = [actor.handle.open.remote(self._setup, self._secrets) for actor in self._actors]
        for actor, problem in zip(self._actors, problems, strict=True):
            check_opened(actor.node, self._cluster.get(problem))

    def _kill_actors(self) -> None:
        for actor in self._actors:
            self._cluster.kill(actor.handle)
        self._actors.clear()

    # ---- simulations

    def start(self, loop: LoopThread) -> None:
        """Start to exchange messages with the actors, on the run's event loop."""
        self._loop = loop
        loop.run(self._start_exchanges())

    async def _start_exchanges(self) -> None:
        for actor in self._actors:
            self._serve(actor)

    async def simulate(
        self,
        assignment: Assignment,
        journal: Journal | None = None,
        before_use: Callable[[], Awaitable[None]] | None = None,
    ) -> Simulation:
        """Make a simulation on a node, like `conversation.simulate`.

        Raises:
            ClusterError: no node is left.
            InfrastructureError: the simulation lost its actor `MAX_LOSSES` times.
        """
        request = SimulationRequest(
            number=0,
            suite=assignment.suite,
            side=assignment.side,
            task_id=assignment.task.id,
            candidate=assignment.candidate,
            trial=assignment.trial,
            limits=assignment.limits,
            solo=assignment.solo,
            cache_partition=assignment.cache_partition,
        )

        def make_message(number: int) -> SimulationRequest:
            if journal is None:
                return replace(request, number=number)
            entries = tuple(journal.entries)
            return replace(request, number=number, entries=entries, was_redrawn=journal.was_redrawn)

        for _ in range(MAX_LOSSES):
            actor = await self._wait_for_actor()
            self._last_number += 1
            message = make_message(self._last_number)
            future = asyncio.get_running_loop().create_future()
            job = Job(future, journal, before_use or declare_nothing)
            actor.jobs[message.number] = job
            self._post(actor, message)
            try:
                simulation: Simulation = await job.future
                return simulation
            except ActorLost:
                self.resumed += 1
            except asyncio.CancelledError:
                self._post(actor, Cancel(message.number))
                raise
            finally:
                actor.jobs.pop(message.number, None)
                async with self._actor_freed:
                    self._actor_freed.notify_all()
        raise InfrastructureError(
            f"task {assignment.task.id!r}: its process on a Ray node ended {MAX_LOSSES} times"
        )

    async def _wait_for_actor(self) -> Actor:
        """Wait until an actor has room, and return the one with the fewest jobs."""
        async with self._actor_freed:
            while True:
                if self._failure is not None:
                    raise self._failure
                if not self._actors and not self._n_starting:
                    raise ClusterError(
                        f"the Ray cluster at {self.address} has no node left that can run the project; "
                        "start nodes, then rerun the same command to resume"
                    )
                free_actors = [actor for actor in self._actors if len(actor.jobs) < self._per_actor]
                if free_actors:
                    return min(free_actors, key=lambda actor: len(actor.jobs))
                await self._actor_freed.wait()

    def _post(self, actor: Actor, message: Message) -> None:
        actor.outbox.append(message)
        if actor.is_exchanging and actor.flush_timer is None:
            actor.flush_timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush, actor)

    def _flush(self, actor: Actor) -> None:
        actor.flush_timer = None
        if actor.outbox and actor in self._actors:
            messages, actor.outbox = actor.outbox, []
            actor.handle.send.options(num_returns=0).remote(messages)

    def _serve(self, actor: Actor) -> None:
        task = asyncio.get_running_loop().create_task(self._exchange_until_lost(actor))
        self._exchange_tasks.add(task)
        task.add_done_callback(self._exchange_tasks.discard)

    async def _exchange_until_lost(self, actor: Actor) -> None:
        """Exchange messages with an actor until the actor is lost; any other error ends the run."""
        errors = self._cluster.errors
        try:
            while True:
                await self._exchange(actor)
        except errors.RayActorError:
            await self._on_loss(actor)
        except errors.RayError as error:
            self._fail_all_jobs(
                ClusterError(
                    f"node {actor.node} of the Ray cluster cannot send a simulation: "
                    f"{one_line_message(error)}; make room there, then rerun the same command to resume"
                )
            )
        except Exception as error:  # such as a full disk when the account is written
            self._fail_all_jobs(error)

    async def _exchange(self, actor: Actor) -> None:
        """Send an actor's waiting messages, and handle the actor's next events."""
        messages, actor.outbox = actor.outbox, []
        actor.is_exchanging = True
        events = await actor.handle.exchange.remote(messages, BATCH_SECONDS)
        actor.is_exchanging = False
        reply_tasks = [task for event in events if (task := self._handle_event(actor, event)) is not None]
        self._broadcast_stop()
        if reply_tasks:
            # Most replies are ready at once, and are sent with the next batch.
            await asyncio.wait(reply_tasks, timeout=FLUSH_SECONDS)

    def _handle_event(self, actor: Actor, event: Event) -> "asyncio.Task[None] | None":
        """Handle an event; if it is a question, return the task that answers it."""
        if event.question_number:
            task = asyncio.get_running_loop().create_task(self._send_reply(actor, event))
            self._reply_tasks.add(task)
            task.add_done_callback(self._reply_tasks.discard)
            return task
        if event.kind == "spent":
            self._context.account.spend(event.content)
            return None
        job = actor.jobs.get(event.simulation)
        if job is None or job.future.done():  # the job was cancelled
            return None
        try:
            match event.kind:
                case "added":
                    assert job.journal is not None
                    job.journal.add(event.content)
                case "done":
                    job.future.set_result(event.content)
                case "failed":
                    job.future.set_exception(decode_error(*event.content))
        except StorageError as error:
            job.future.set_exception(error)
            self._post(actor, Cancel(event.simulation))
        return None

    async def _send_reply(self, actor: Actor, event: Event) -> None:
        try:
            reply = Reply(event.question_number, await self._reply_value(actor, event))
        except Exception as error:
            reply = Reply(event.question_number, error=encode_error(error))
        self._post(actor, reply)

    async def _reply_value(self, actor: Actor, event: Event) -> Any:
        match event.kind:
            case "use":
                if job := actor.jobs.get(event.simulation):
                    await job.before_use()
            case "admit":
                return self._context.account.pause_before_request()
            case "get":
                name, key = event.content
                return await self._context.stores[name].get(key)
            case "put":
                name, key, answer = event.content
                return await self._context.stores[name].put(key, answer)
        return None

    def _broadcast_stop(self) -> None:
        """Forbid all actors further requests once the run is stopped, such as by a spent budget."""
        if self._stop_message is not None:
            return
        try:
            self._context.account.raise_if_stopped()
        except (BudgetError, EndpointError, StorageError) as error:
            self._stop_message = Stop(encode_error(error))
            for actor in self._actors:
                self._post(actor, self._stop_message)

    # ---- losses

    def _fail_all_jobs(self, error: Exception) -> None:
        """End all current and later jobs with an error."""
        self._failure = error
        for actor in self._actors:
            for job in actor.jobs.values():
                if not job.future.done():
                    job.future.set_exception(error)

    async def _on_loss(self, actor: Actor) -> None:
        """Reassign a lost actor's jobs to other actors, and start a replacement actor."""
        self._actors.remove(actor)
        self.losses += 1
        self._cluster.kill(actor.handle)  # an unreachable actor may still run, and must not call models
        self._n_starting += 1
        for job in actor.jobs.values():
            if not job.future.done():
                job.future.set_exception(ActorLost())
        try:
            await self._start_replacement()
        finally:
            self._n_starting -= 1
            async with self._actor_freed:
                self._actor_freed.notify_all()

    async def _start_replacement(self) -> None:
        handle = self._cluster.create_actor()
        try:
            async with asyncio.timeout(MAX_OPEN_SECONDS if not self._actors else None):
                node = await handle.node.remote()
                check_opened(node, await handle.open.remote(self._setup, self._secrets))
        except (self._cluster.errors.RayError, ConfigError, TimeoutError):
            self._cluster.kill(handle)
            return
        actor = Actor(handle, node)
        if self._stop_message is not None:
            actor.outbox.append(self._stop_message)
        self._actors.append(actor)
        self._serve(actor)

    # ---- the end

    async def _cancel_tasks(self) -> None:
        tasks = [*self._exchange_tasks, *self._reply_tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """End the actors, and close the connection if `open` made it."""
        if self._loop is not None:  # not after Ray's shutdown, because a call would start a cluster
            self._loop.run(self._cancel_tasks())
            self._loop = None
        self._kill_actors()
        self._exit_stack.close()
