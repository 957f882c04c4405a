"""Makes each simulation of a run once, stores it, resumes interrupted simulations, and enforces budgets."""

import asyncio
import contextlib
import sqlite3
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pytest_trace2evolve.engine.budget import Account
from pytest_trace2evolve.engine.conversation import Assignment, simulate
from pytest_trace2evolve.engine.loop import LoopThread
from pytest_trace2evolve.errors import (
    BudgetError,
    EndpointError,
    InfrastructureError,
    ResultsError,
    StorageError,
)
from pytest_trace2evolve.evidence.draws import DrawStore, SimulationStore
from pytest_trace2evolve.evidence.journal import Journal
from pytest_trace2evolve.records.budget import RunTotals, SimulationState
from pytest_trace2evolve.records.completion import NO_USAGE, Usage, usage_of
from pytest_trace2evolve.records.trace import Simulation, TerminationReason

POLL_SECONDS = 0.05
"""Seconds between two checks for a simulation that another run is making."""


class StorageLocation(NamedTuple):
    """The store and the key of a simulation. Equal keys mean the same simulation of the same draw."""

    store: SimulationStore
    key: str


@dataclass(frozen=True)
class Job:
    """A simulation to make, with the facts that the engine needs about it.

    Attributes:
        declare: Records the draw in the ledger; called in a thread, before the first answer is used.
        location: The location of the stored simulation; None if the agent is not a model, because then no
            other run can use the simulation.
        expected_usage: The likely usage of the simulation; None if unknown.
        is_baseline: Whether the simulation is one of the baseline's fresh trials, which the ledger does not
            record.
    """

    assignment: Assignment
    declare: Callable[[], None]
    location: StorageLocation | None = None
    expected_usage: Usage | None = None
    is_baseline: bool = False


class Engine:
    """Makes the simulations of one run.

    Args:
        loop: The event loop of the simulations; its slots limit how many run at once.
        account: The budgets of the run, and its usage so far.
        folder: The folder of the stored simulations, for error messages.
        simulate: Makes a simulation, like `conversation.simulate`.
    """

    def __init__(
        self,
        loop: LoopThread,
        account: Account,
        folder: Path,
        simulate: Callable[..., Awaitable[Simulation]] = simulate,
    ) -> None:
        self.loop = loop
        self.account = account
        self._folder = folder
        self._simulate = simulate
        self._states: dict[str, SimulationState] = {}
        self._reservations = _Reservations()
        self._lost_simulations: dict[str, Simulation] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._journals: dict[str, tuple[str, Journal]] = {}
        self._state_changed = asyncio.Event()
        self._fresh_by_purpose: dict[str, int] = {}

    async def make(self, job: Job, *, urgent: bool = False) -> Simulation:
        """Make a simulation, or return the stored one.

        A lost simulation is returned unchanged until `retry` or `forget_lost` is called.

        Raises:
            BudgetError: the run's budget is spent, or the run was stopped.
            EndpointError: the endpoint rejects a request that every further simulation would send too.
            StorageError: the simulation cannot be stored, or a stored simulation was changed.
            InfrastructureError: the simulation was lost without a trace.
            WorldError: the task does not fit its world.
        """
        try:
            async with self.loop.slot(urgent=urgent):
                if job.location is None:
                    return await self._make_unstored(job)
                async with self._locks.setdefault(job.location.key, asyncio.Lock()):
                    return await self._make_stored(job, job.location)
        except sqlite3.Error as error:
            raise StorageError(
                f"{self.account.path}: the account of the run cannot be written ({error}); "
                "make room there, or set TMPDIR to a different folder"
            ) from None
        except StorageError as error:
            with contextlib.suppress(sqlite3.Error):
                self.account.stop(str(error), StorageError)
            raise

    async def retry(self, job: Job) -> Simulation:
        """Make a lost simulation again."""
        if job.location is not None:
            self._states.pop(job.location.key, None)
            self._lost_simulations.pop(job.location.key, None)
        return await self.make(job, urgent=True)

    def forget_lost(self) -> None:
        """Forget the lost simulations, so that `make` makes them again."""
        for key in self._lost_simulations:
            self._states.pop(key, None)
        self._lost_simulations.clear()

    def reserve_fresh(self, purpose: str, simulations: int, max_simulations: int) -> bool:
        """Reserve fresh simulations, and return whether they are reserved.

        Args:
            purpose: The purpose of the simulations. A second call with the same purpose reserves no more.
            simulations: The number of simulations.
            max_simulations: The number of fresh simulations that the run may make for all purposes.
        """
        if purpose in self._fresh_by_purpose:
            return True
        if sum(self._fresh_by_purpose.values()) + simulations > max_simulations:
            return False
        self._fresh_by_purpose[purpose] = simulations
        return True

    def totals(self) -> RunTotals:
        """The totals of the run so far; may be called from another thread."""
        states = Counter(self._states.copy().values())
        waits = {(journal.changed_at, task) for task, journal in self._journals.copy().values()}
        since, task = min(waits, default=(time.monotonic(), ""))
        return RunTotals(
            dict(states),
            self.account.usage,
            self.account.seconds,
            sum(self._fresh_by_purpose.values()),
            task,
            time.monotonic() - since,
        )

    async def _make_unstored(self, job: Job) -> Simulation:
        self.account.raise_if_stopped()
        simulation = await self._simulate(job.assignment)
        if not _is_lost(simulation):
            await asyncio.to_thread(job.declare)
        return simulation

    async def _make_stored(self, job: Job, location: StorageLocation) -> Simulation:
        key = location.key
        if key in self._lost_simulations:
            return self._lost_simulations[key]
        if (stored := await asyncio.to_thread(self._stored_simulation, job, location)) is not None:
            self._states.setdefault(key, SimulationState.KEPT)
            return stored
        await self._reserve(key, job.expected_usage)
        state, usage = None, NO_USAGE
        try:
            simulation = await self._make_with_journal(job, location)
            if simulation is None:
                state = SimulationState.KEPT
                simulation = await asyncio.to_thread(self._stored_simulation, job, location)
                assert simulation is not None
                return simulation
            state, usage = SimulationState.MADE, _fresh_usage(simulation)
            if _is_lost(simulation):
                state = SimulationState.LOST
                self._lost_simulations[key] = simulation
            return simulation
        except (BudgetError, StorageError, sqlite3.Error):
            raise
        except EndpointError as error:
            if job.is_baseline:  # the baseline's model may be gone; that must not end the candidate's run
                state = SimulationState.LOST
                raise InfrastructureError(f"the baseline: {error}") from None
            self.account.stop(str(error), EndpointError)
            raise
        except Exception as error:
            state = SimulationState.LOST
            await asyncio.to_thread(self._note_loss, location)
            raise InfrastructureError(f"{type(error).__name__}: {error}") from error
        finally:
            self._set_final_state(key, state, usage)

    async def _make_with_journal(self, job: Job, location: StorageLocation) -> Simulation | None:
        """Make a simulation and store it; None if another run stored it in the meantime."""
        journal = await self._begin_journal(location)
        if journal is None:
            return None
        is_declared = False

        async def declare() -> None:
            nonlocal is_declared
            if not is_declared:
                await asyncio.to_thread(self._declare, job)
                is_declared = True

        with journal:
            self._journals[location.key] = job.assignment.task.id, journal
            try:
                async with asyncio.timeout(self.account.seconds_left):
                    simulation = await self._simulate(job.assignment, journal, declare)
            except TimeoutError:
                self.account.raise_if_stopped()
                raise
            finally:
                del self._journals[location.key]
            # In a thread, because a flush to the disk would block every other conversation.
            return await asyncio.to_thread(self._store_simulation, job, location, simulation, journal)

    async def _begin_journal(self, location: StorageLocation) -> Journal | None:
        while True:
            # Another run may be making the simulation. This run then takes its result, or resumes it.
            with as_storage_error(self._folder), contextlib.suppress(BlockingIOError):
                return await asyncio.to_thread(location.store.begin_journal, location.key)
            await asyncio.sleep(POLL_SECONDS)
            self.account.raise_if_stopped()

    async def _reserve(self, key: str, expected_usage: Usage | None) -> None:
        """Wait until the budget suffices for one more simulation in addition to the running ones.

        Raises:
            BudgetError: the budget does not suffice, and no simulation is running.
        """
        while True:
            self.account.raise_if_stopped()
            shortage, usage = "", NO_USAGE
            if self.account.budgets.limits_usage:
                usage = expected_usage or self._reservations.mean
                shortage = self.account.shortage(usage, self._reservations.total)
            if not shortage:
                self._states[key] = SimulationState.RUNNING
                self._reservations.running[key] = usage
                return
            if not self._reservations.running:
                self.account.stop(shortage)
                raise BudgetError(shortage)
            self._state_changed.clear()
            await self._state_changed.wait()

    def _set_final_state(self, key: str, state: SimulationState | None, usage: Usage = NO_USAGE) -> None:
        """Record the final state of a simulation; state None means that it may run again."""
        self._reservations.release(key, usage, is_made=state is SimulationState.MADE)
        if state is None:
            self._states.pop(key, None)
        else:
            self._states[key] = state
        self._state_changed.set()

    def _stored_simulation(self, job: Job, location: StorageLocation) -> Simulation | None:
        with as_storage_error(self._folder):
            simulation = location.store.get(location.key)
        if simulation is not None:
            self._declare(job)
        return simulation

    @staticmethod
    def _declare(job: Job) -> None:
        if not job.is_baseline:
            job.declare()

    def _store_simulation(
        self, job: Job, location: StorageLocation, simulation: Simulation, journal: Journal
    ) -> Simulation:
        """Store a simulation, and return it with the number of runs that lost it before."""
        if _is_lost(simulation):
            self._note_loss(location)
            return simulation
        self._declare(job)
        with as_storage_error(self._folder):
            store = location.store
            if isinstance(store, DrawStore) and (lost := store.count_attempts(location.key, journal)):
                simulation = simulation.mark(lost=lost)
            store.put(location.key, simulation)
        return simulation

    def _note_loss(self, location: StorageLocation) -> None:
        if isinstance(location.store, DrawStore):
            with as_storage_error(location.store.path):
                location.store.record_loss(location.key)


class _Reservations:
    """Tokens and dollars of all started simulations; running ones count with their expected usage.

    Attributes:
        running: The expected usage of each running simulation, by key.
    """

    def __init__(self) -> None:
        self.running: dict[str, Usage] = {}
        self._tokens, self._cost = 0, 0.0
        self._n_completed, self._completed_tokens, self._completed_cost = 0, 0, 0.0

    def release(self, key: str, usage: Usage, *, is_made: bool) -> None:
        del self.running[key]
        self._tokens += usage.tokens
        self._cost += usage.cost or 0.0
        if is_made:
            self._n_completed += 1
            self._completed_tokens += usage.tokens
            self._completed_cost += usage.cost or 0.0

    @property
    def total(self) -> Usage:
        tokens = self._tokens + sum(usage.tokens for usage in self.running.values())
        cost = self._cost + sum(usage.cost or 0.0 for usage in self.running.values())
        return Usage(calls=0, prompt_tokens=tokens, cost=cost)

    @property
    def mean(self) -> Usage:
        """The mean usage of the completed simulations; `NO_USAGE` before the first."""
        if not self._n_completed:
            return NO_USAGE
        tokens = round(self._completed_tokens / self._n_completed)
        return Usage(calls=0, prompt_tokens=tokens, cost=self._completed_cost / self._n_completed)


@contextlib.contextmanager
def as_storage_error(path: Path) -> Iterator[None]:
    """Convert errors of a store to `StorageError`, which ends the run.

    Raises:
        BlockingIOError: another run is making the simulation; raised unchanged.
        StorageError: a read or write failed, or a stored simulation was changed.
    """
    try:
        yield
    except BlockingIOError:
        raise
    except ResultsError as error:
        raise StorageError(str(error)) from None
    except OSError as error:
        raise StorageError.from_os_error(error, error.filename or path) from None


def _is_lost(simulation: Simulation) -> bool:
    return simulation.termination_reason == TerminationReason.INFRASTRUCTURE_ERROR


def _fresh_usage(simulation: Simulation) -> Usage:
    """The usage of a simulation in this run; answers from the cache cost nothing."""
    new_messages = [message for message in simulation.trace if not getattr(message, "cached", False)]
    return usage_of(new_messages, "assistant") + usage_of(new_messages, "user")
