"""Making simulations, each once in a run, whichever of its processes gets to it first.

Live simulations are claimed in the run's account and kept by key, so that any process can make the one that
another waits for, and a later run need not make it again. Those of other agents have no key: each process
makes its own.
"""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from pytest_trace2evolve.engine.conversation import Limits, converse, failed_to_start, make_participants
from pytest_trace2evolve.engine.participants import AgentFactory, ChatFactory
from pytest_trace2evolve.engine.pool import Job, Pool
from pytest_trace2evolve.errors import (
    AgentCodeError,
    BudgetError,
    EndpointError,
    InfrastructureError,
    ResultsError,
    StorageError,
)
from pytest_trace2evolve.evidence.account import Account
from pytest_trace2evolve.evidence.draws import DrawStore, FinishedStore
from pytest_trace2evolve.evidence.journal import Journal
from pytest_trace2evolve.records.budget import DONE, Claim, Entry, State
from pytest_trace2evolve.records.completion import NOTHING_USED, Usage, usage_of
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.records.trace import Simulation, TerminationReason
from pytest_trace2evolve.session.draws import Draws, Place
from pytest_trace2evolve.session.estimate import Expected
from pytest_trace2evolve.session.plan import Plan, PlannedSuite
from pytest_trace2evolve.session.provenance import sealed_place
from pytest_trace2evolve.utils.concurrency import contained
from pytest_trace2evolve.worlds.registry import Worlds

REDRAWN = (
    "it was begun again after a kill or a loss, and its requests were others than before: its world is not "
    "deterministic, or its code was changed, and its first draw is unknown"
)
"""The note of a simulation whose answers are not all of its first draw."""

POLL_SECONDS = 0.05
"""How often a process looks for what another one makes."""

ALONE_SECONDS = 0.5
"""How often one looks that has no other beside it, and is told of what it makes."""


@dataclass(frozen=True)
class Live:
    """What the simulations of a live run share.

    Attributes:
        account: The run's, shared with its other processes.
        lost: Where the traces of lost ones are kept for this run.
        expected: What simulations are likely to use.
    """

    account: Account
    lost: FinishedStore
    expected: Expected


class Simulations:
    """Makes the simulations that items of this process wait for, and in free slots those ahead.

    Args:
        plan: What to run.
        worlds: Opens worlds.
        agents: Who can talk, by name.
        pool: Where simulations run.
        draws: Where those of a live run are stored, and what is declared before any can be seen.
        live: What a live run shares; None where the agents are no models.
        baselines: Who talks in fresh trials of the baselines, by suite.
    """

    def __init__(
        self,
        plan: Plan,
        worlds: Worlds,
        agents: Mapping[str, AgentFactory],
        pool: Pool,
        draws: Draws,
        live: Live | None,
        baselines: Mapping[str, AgentFactory] | None = None,
    ) -> None:
        self._plan = plan
        self._worlds = worlds
        self._agents = agents
        self._baselines = baselines or {}
        self._pool = pool
        self.draws = draws
        self._live = live
        self._news = threading.Event()
        self._asked: set[Job] = set()
        self._futures: dict[Job, Future[Simulation]] = {}
        self._begun: set[Job] = set()
        self._places: dict[Job, Place] = {}
        self._declared: set[Job] = set()
        self._broken = ""
        pool.begin(self._perform)

    @property
    def shared(self) -> bool:
        """Whether any process of the run can make the simulation of any task."""
        return self._live is not None

    @property
    def journaled(self) -> bool:
        """Whether a simulation that is made again goes on from the answers that had arrived."""
        return self._live is not None and not self._plan.plays

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
        assert self.journaled or not jobs
        if self._live is not None:
            self._live.account.forget_lost([self._place(job).key for job in jobs])
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
            StorageError: it cannot be stored, or what was stored was changed.
            InfrastructureError: it was lost without a trace.
        """
        if self._live is None:
            try:
                return self._future(job).result()
            finally:
                self._futures.pop(job, None)
        try:
            return self._awaited(job, self._live)
        except sqlite3.Error as error:
            raise StorageError(_full(self._live.account, error)) from None

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
        key = self._place(job).key
        pause = ALONE_SECONDS if live.account.alone else POLL_SECONDS
        while True:
            self._news.clear()
            if self._broken:
                raise StorageError(self._broken)
            entry = live.account.entries([key]).get(key)
            if entry is not None:
                if (found := self._settled(entry, job, live)) is not None:
                    return found
            elif self._kept(job, live):
                continue  # before the account is asked: what is finished stays, whatever stopped the run
            else:
                live.account.stand()
                self._ask([job])  # again, where a process died that had claimed it
            self._news.wait(pause)

    def _kept(self, job: Job, live: Live) -> bool:
        """Whether an earlier run finished a simulation that this one may take."""
        store, key = self._place(job)
        with _stored():
            kept = store.holds(key)
        if kept:
            self._declare(job)
            live.account.keep(key)
        return kept

    def _declare(self, job: Job) -> None:
        if not job.baseline:
            self.draws.declare(job.suite, job.task_id)

    def _settled(self, entry: Entry, job: Job, live: Live) -> Simulation | None:
        """What came of a claimed simulation; None while it runs."""
        if entry.state is State.RUNNING:
            return None
        store, key = self._place(job)
        with _stored():
            found = (store if entry.state in DONE else live.lost).get(key)
        if found is None:
            raise InfrastructureError(entry.note or f"simulation {key} is gone from the store")
        return found

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
        except StorageError as error:
            self._stop(error, self._live.account)
        except Exception as error:
            self._lose(job, self._live.account, error)
        finally:
            self._news.set()

    def _lose(self, job: Job, account: Account, error: Exception) -> None:
        try:
            account.settle(self._place(job).key, State.LOST, note=f"{type(error).__name__}: {error}")
            self._note_loss(job)
        except StorageError as trouble:
            self._stop(trouble, account)
        except sqlite3.Error as trouble:
            self._broken = _full(account, trouble)

    def _stop(self, error: StorageError, account: Account) -> None:
        try:
            account.stop(str(error), unstored=True)
        except sqlite3.Error:
            self._broken = str(error)

    def _note_loss(self, job: Job) -> None:
        store, key = self._place(job)
        if isinstance(store, DrawStore):
            with _stored(store.path):
                store.lose(key)

    async def _own(self, job: Job) -> None:
        if job in self._begun:
            return
        future = self._future(job)
        self._begun.add(job)
        try:
            simulation = await self._talk(job)
            if simulation.termination_reason != TerminationReason.INFRASTRUCTURE_ERROR:
                await asyncio.to_thread(self._declare, job)
            future.set_result(simulation)
        except asyncio.CancelledError:
            future.cancel()
            raise
        except BaseException as error:
            future.set_exception(error)

    async def _shared(self, job: Job, live: Live) -> None:
        key, account = self._place(job).key, live.account
        if self._kept(job, live):
            return
        while (claim := account.claim(key, self._expected(job, live))) is Claim.LATER:
            await asyncio.sleep(POLL_SECONDS)
        if claim is Claim.TAKEN:
            return
        try:
            journal = await self._begin_journal(job, account)
            if journal is None:
                account.unclaim(key)
                self._kept(job, live)
                return
            with journal:
                simulation = await self._in_time(job, account, journal)
                # In a thread: a flush to the disk would hold up every other conversation.
                await asyncio.to_thread(self._put, job, simulation, live)
        except (BudgetError, EndpointError, StorageError, asyncio.CancelledError) as error:
            if isinstance(error, EndpointError) and job.baseline:
                # The baseline's model may be gone; the run is the candidate's.
                account.settle(key, State.LOST, note=f"the baseline's side: {error}")
                return
            if isinstance(error, EndpointError):
                account.stop(str(error), refused=True)
            account.unclaim(key)
            raise
        lost = simulation.termination_reason == TerminationReason.INFRASTRUCTURE_ERROR
        account.settle(key, State.LOST if lost else State.MADE, _used(simulation))

    async def _begin_journal(self, job: Job, account: Account) -> Journal | None:
        """The journal of a simulation; None if another run stored the simulation in the meantime.

        Raises:
            BudgetError, EndpointError, StorageError: the run was stopped while another run made it.
            StorageError: the journal cannot be written, or was changed.
        """
        store, key = self._place(job)
        while True:
            # Another run may be making it: this one waits, and takes what came of it or goes on with it.
            with _stored(self._plan.project.finished_folder), contextlib.suppress(BlockingIOError):
                return await asyncio.to_thread(store.begin, key)
            await asyncio.sleep(POLL_SECONDS)
            account.stand()

    def _put(self, job: Job, simulation: Simulation, live: Live) -> None:
        store, key = self._place(job)
        if simulation.termination_reason == TerminationReason.INFRASTRUCTURE_ERROR:
            with _stored(live.lost.folder):
                live.lost.put(key, simulation)
            self._note_loss(job)
            return
        self._declare(job)
        with _stored(self._plan.project.finished_folder):
            store.put(key, simulation)

    async def _in_time(self, job: Job, account: Account, journal: Journal) -> Simulation:
        """The simulation, given up where the run's minutes are over.

        Raises:
            BudgetError: they are.
        """
        try:
            async with asyncio.timeout(account.seconds_left):
                return await self._talk(job, journal)
        except TimeoutError:
            account.stand()
            raise

    async def _talk(self, job: Job, journal: Journal | None = None) -> Simulation:
        return await contained(f"task {job.task_id!r}", self._conversation(job, journal))

    async def _conversation(self, job: Job, journal: Journal | None) -> Simulation:
        planned = self._plan.suites[job.suite]
        world = self._world(planned)
        task = world.tasks()[job.task_id]
        suite = planned.suite
        timeout = suite.timeout
        if timeout is not None and journal is not None:
            timeout = max(0.0, timeout - journal.seconds)
        limits = Limits(suite.max_steps, suite.max_errors, timeout)
        alone = {"solo": True} if suite.solo else {}
        party = self._plan.party(job.suite, baseline=job.baseline)
        made_by = self._baselines[job.suite] if job.baseline else self._agents[planned.agent]
        make = made_by
        if journal is not None and isinstance(made_by, ChatFactory) and not made_by.plays:
            place = sealed_place(self._plan, planned, job.task_id)
            make = made_by.journaled(journal, partial(self._declare_early, job), place)
        try:
            agent, user = await make_participants(
                made_by, lambda: make(task, world, party.candidate, job.trial, **alone), world
            )
        except AgentCodeError as error:
            return failed_to_start(task, error, trial=job.trial, seed=job.trial)
        simulation = await converse(
            task, world, agent, user, limits=limits, trial=job.trial, seed=job.trial, **alone
        )
        return simulation if journal is None or not journal.redrawn else simulation.as_redrawn(REDRAWN)

    async def _declare_early(self, job: Job) -> None:
        """Have the ledger name the draw before the first answer of its simulations is used."""
        if job not in self._declared:
            await asyncio.to_thread(self._declare, job)
            self._declared.add(job)

    def _future(self, job: Job) -> Future[Simulation]:
        return self._futures.setdefault(job, Future())

    def _expected(self, job: Job, live: Live) -> Usage:
        """What a simulation is likely to use: as in the baseline, else as those made so far."""
        if not live.account.budgets.limited:
            return NOTHING_USED
        return live.expected.of(job.suite, job.task_id) or live.account.mean_used()

    def _place(self, job: Job) -> Place:
        if job not in self._places:
            with _stored(self._plan.project.draws_folder):
                place = self.draws.place(job.suite, job.task_id, job.trial, baseline=job.baseline)
            self._places[job] = place
        return self._places[job]

    def _world(self, planned: PlannedSuite) -> World:
        return self._plan.project.world(planned.suite, self._worlds)


def _full(account: Account, error: sqlite3.Error) -> str:
    return (
        f"{account.path}: the account of the run cannot be written ({error}); "
        "make room there, or set TMPDIR to another folder"
    )


@contextlib.contextmanager
def _stored(place: Path | None = None) -> Iterator[None]:
    """Report trouble with a store as what ends the run.

    Raises:
        StorageError: a write failed, or what was stored was changed.
    """
    try:
        yield
    except ResultsError as error:
        raise StorageError(str(error)) from None
    except OSError as error:
        raise StorageError.of(error, error.filename or place or "the store") from None


def _used(simulation: Simulation) -> Usage:
    """What a simulation used in this run: answers from a cache cost nothing again."""
    fresh = [message for message in simulation.trace if not getattr(message, "cached", False)]
    return usage_of(fresh, "assistant") + usage_of(fresh, "user")
