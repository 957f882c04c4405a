"""Making simulations, each once in a run, whichever of its processes gets to it first.

Live simulations are claimed in the run's account and kept by key, so that any process can make the one that
another waits for, and a later run need not make it again. Those of other agents have no key: each process
makes its own.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice

from pytest_trace2evolve.errors import AgentCodeError, BudgetError, EndpointError, InfrastructureError
from pytest_trace2evolve.evidence.account import Account
from pytest_trace2evolve.evidence.resume import FinishedStore
from pytest_trace2evolve.records.account import DONE, Claim, Entry, State
from pytest_trace2evolve.records.completion import NOTHING_USED, Usage
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.records.trace import Simulation, TerminationReason
from pytest_trace2evolve.records.wire import usage_of
from pytest_trace2evolve.rollout.agent_code import make_participants
from pytest_trace2evolve.rollout.conversation import Limits, converse, failed_to_start
from pytest_trace2evolve.workflow.planning.plan import Plan, PlannedSuite
from pytest_trace2evolve.workflow.running.agents import AgentFactory
from pytest_trace2evolve.workflow.running.estimate import Expected
from pytest_trace2evolve.workflow.running.guard import contained
from pytest_trace2evolve.workflow.running.keys import key_of
from pytest_trace2evolve.workflow.running.pool import Job, Pool
from pytest_trace2evolve.worlds.registry import Worlds

POLL_SECONDS = 0.05
"""How often a process looks for what another one makes."""

ALONE_SECONDS = 0.5
"""How often one looks that has no other beside it, and is told of what it makes."""


@dataclass(frozen=True)
class Live:
    """What the simulations of a live run share.

    Attributes:
        account: The run's, shared with its other processes.
        finished: Where simulations are kept for later runs.
        lost: Where the traces of lost ones are kept for this run.
        expected: What simulations are likely to use.
    """

    account: Account
    finished: FinishedStore
    lost: FinishedStore
    expected: Expected


class Simulations:
    """Makes the simulations that items of this process wait for, and in free slots those ahead.

    Args:
        plan: What to run.
        worlds: Opens worlds.
        agents: Who can talk, by name.
        pool: Where simulations run.
        live: What a live run shares; None where the agents are no models.
        baselines: Who talks in fresh trials of the baselines, by suite.
    """

    def __init__(
        self,
        plan: Plan,
        worlds: Worlds,
        agents: Mapping[str, AgentFactory],
        pool: Pool,
        live: Live | None,
        baselines: Mapping[str, AgentFactory] | None = None,
    ) -> None:
        self._plan = plan
        self._worlds = worlds
        self._agents = agents
        self._baselines = baselines or {}
        self._pool = pool
        self._live = live
        self._news = threading.Event()
        self._asked: set[Job] = set()
        self._futures: dict[Job, Future[Simulation]] = {}
        self._begun: set[Job] = set()
        self._keys: dict[Job, str] = {}
        self._broken = ""
        pool.begin(self._perform)

    @property
    def shared(self) -> bool:
        """Whether any process of the run can make the simulation of any task."""
        return self._live is not None

    def need(self, suite: str, task_id: str) -> list[Job]:
        """Put a task's trials before all others."""
        jobs = self.jobs(suite, task_id)
        self.ask(jobs)
        return jobs

    def ask(self, jobs: list[Job]) -> None:
        """Put simulations before all others."""
        # Of one that was begun and handed out nothing is left: an item that runs again makes its own.
        self._begun -= {job for job in jobs if job in self._begun and job not in self._futures}
        self._ask(jobs)

    def again(self, jobs: list[Job]) -> None:
        """Ask once more for simulations that were lost."""
        if self._live is not None:
            self._live.account.forget_lost([self._key(job) for job in jobs])
        self.ask(jobs)

    def jobs(self, suite: str, task_id: str) -> list[Job]:
        """A task's trials."""
        return [Job(suite, task_id, trial) for trial in range(self._plan.suites[suite].trials)]

    def ahead(self, jobs: Iterator[Job]) -> None:
        """Make these in free slots; of unshared ones no more than can be kept in memory until asked for."""
        if self._live is None:
            jobs = islice(jobs, max(0, 2 * self._pool.slots - len(self._futures)))
        self._pool.ahead(jobs)

    def outcome(self, job: Job) -> Simulation:
        """Wait for a simulation.

        Raises:
            BudgetError: it is not made, since the run's budget is spent or the run was stopped.
            EndpointError: the endpoint refuses what every further simulation would ask too.
            InfrastructureError: it was lost without a trace.
        """
        if self._live is None:
            try:
                return self._future(job).result()
            finally:
                self._futures.pop(job, None)
        return self._awaited(job, self._live)

    def first_to_tell(self) -> bool:
        """Whether this process is the first of the run to report what stopped it."""
        return self._live is None or self._live.account.first_to_tell()

    def close(self) -> None:
        """Cancel what runs and close what was opened."""
        self._pool.close()

    def drain(self) -> None:
        """Start nothing more, and wait for what runs: another process may need it."""
        if self._live is not None:
            account = self._live.account
            self._pool.drain(lambda: not account.stopped)

    def _awaited(self, job: Job, live: Live) -> Simulation:
        key = self._key(job)
        pause = ALONE_SECONDS if live.account.alone else POLL_SECONDS
        while True:
            self._news.clear()
            if self._broken:
                raise InfrastructureError(self._broken)
            entry = live.account.entries([key]).get(key)
            if entry is not None:
                if (found := _settled(entry, key, live)) is not None:
                    return found
            elif self._kept(key, live):
                continue  # before the account is asked: what is finished stays, whatever stopped the run
            else:
                live.account.stand()
                self._ask([job])  # again, where a process died that had claimed it
            self._news.wait(pause)

    def _kept(self, key: str, live: Live) -> bool:
        """Whether an earlier run finished a simulation that this one may take."""
        kept = not self._plan.fresh and live.finished.holds(key)
        if kept:
            live.account.keep(key)
        return kept

    def _ask(self, jobs: list[Job]) -> None:
        wanted = [job for job in jobs if job not in self._asked]
        self._asked.update(wanted)
        self._pool.urgent(wanted)

    async def _perform(self, job: Job) -> None:
        self._asked.discard(job)
        if self._live is None:
            await self._own(job)
            return
        try:
            await self._shared(job, self._live)
        except (BudgetError, EndpointError):
            pass  # whoever waits asks the account and is told the same
        except Exception as error:
            self._lose(job, self._live.account, error)
        finally:
            self._news.set()

    def _lose(self, job: Job, account: Account, error: Exception) -> None:
        try:
            account.settle(self._key(job), State.LOST, note=f"{type(error).__name__}: {error}")
        except sqlite3.Error as trouble:
            self._broken = (
                f"{account.path}: the account of the run cannot be written ({trouble}); "
                "make room there, or set TMPDIR to another folder"
            )

    async def _own(self, job: Job) -> None:
        if job in self._begun:
            return
        future = self._future(job)
        self._begun.add(job)
        try:
            future.set_result(await self._talk(job))
        except asyncio.CancelledError:
            future.cancel()
            raise
        except BaseException as error:
            future.set_exception(error)

    async def _shared(self, job: Job, live: Live) -> None:
        key, account = self._key(job), live.account
        if self._kept(key, live):
            return
        while (claim := account.claim(key, self._expected(job, live))) is Claim.LATER:
            await asyncio.sleep(POLL_SECONDS)
        if claim is Claim.TAKEN:
            return
        try:
            simulation = await self._in_time(job, account)
            used = _used(simulation)
            lost = simulation.termination_reason == TerminationReason.INFRASTRUCTURE_ERROR
            # In a thread: a flush to the disk would hold up every other conversation.
            await asyncio.to_thread((live.lost if lost else live.finished).put, key, simulation)
        except (BudgetError, EndpointError, asyncio.CancelledError) as error:
            if isinstance(error, EndpointError) and job.baseline:
                # The baseline's model may be gone; the run is the candidate's.
                account.settle(key, State.LOST, note=f"the baseline's side: {error}")
                return
            if isinstance(error, EndpointError):
                account.stop(str(error), refused=True)
            account.unclaim(key)
            raise
        account.settle(key, State.LOST if lost else State.MADE, used)

    async def _in_time(self, job: Job, account: Account) -> Simulation:
        """The simulation, given up where the run's minutes are over.

        Raises:
            BudgetError: they are.
        """
        try:
            async with asyncio.timeout(account.seconds_left):
                return await self._talk(job)
        except TimeoutError:
            account.stand()
            raise

    async def _talk(self, job: Job) -> Simulation:
        return await contained(f"task {job.task_id!r}", self._conversation(job))

    async def _conversation(self, job: Job) -> Simulation:
        planned = self._plan.suites[job.suite]
        world = self._world(planned)
        task = world.tasks()[job.task_id]
        suite = planned.suite
        limits = Limits(suite.max_steps, suite.max_errors, suite.timeout)
        alone = {"solo": True} if suite.solo else {}
        party = self._plan.party(job.suite, baseline=job.baseline)
        made_by = self._baselines[job.suite] if job.baseline else self._agents[planned.agent]
        try:
            agent, user = await make_participants(
                made_by, lambda: made_by(task, world, party.candidate, job.trial, **alone), world
            )
        except AgentCodeError as error:
            return failed_to_start(task, error, trial=job.trial, seed=job.trial)
        return await converse(
            task, world, agent, user, limits=limits, trial=job.trial, seed=job.trial, **alone
        )

    def _future(self, job: Job) -> Future[Simulation]:
        return self._futures.setdefault(job, Future())

    def _expected(self, job: Job, live: Live) -> Usage:
        """What a simulation is likely to use: as in the baseline, else as those made so far."""
        if not live.account.budgets.limited:
            return NOTHING_USED
        return live.expected.of(job.suite, job.task_id) or live.account.mean_used()

    def _key(self, job: Job) -> str:
        if job not in self._keys:
            planned = self._plan.suites[job.suite]
            task = self._world(planned).tasks()[job.task_id]
            party = self._plan.party(job.suite, baseline=job.baseline)
            self._keys[job] = key_of(self._plan, planned, task, job.trial, party)
        return self._keys[job]

    def _world(self, planned: PlannedSuite) -> World:
        return self._plan.project.world(planned.suite, self._worlds)


def _settled(entry: Entry, key: str, live: Live) -> Simulation | None:
    """What came of a claimed simulation; None while it runs."""
    if entry.state is State.RUNNING:
        return None
    found = (live.finished if entry.state in DONE else live.lost).get(key)
    if found is None:
        raise InfrastructureError(entry.note or f"simulation {key} is gone from {live.finished.folder}")
    return found


def _used(simulation: Simulation) -> Usage:
    """What a simulation used in this run: answers from a cache cost nothing again."""
    fresh = [message for message in simulation.trace if not getattr(message, "cached", False)]
    return usage_of(fresh, "assistant") + usage_of(fresh, "user")
