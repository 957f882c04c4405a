"""Turns jobs into simulations: makes each one once, resumes it if interrupted, stores it, and budgets it."""

import asyncio
import contextlib
import sqlite3
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
from pytest_trace2evolve.evidence.draws import DrawStore, Store
from pytest_trace2evolve.evidence.journal import Journal
from pytest_trace2evolve.records.budget import State, Totals
from pytest_trace2evolve.records.completion import NOTHING_USED, Usage, usage_of
from pytest_trace2evolve.records.trace import Simulation, TerminationReason

POLL_SECONDS = 0.05
"""Seconds between two checks for a simulation that another run is making."""


class Place(NamedTuple):
    """The place where a simulation is stored. Equal keys mean the same simulation of the same draw."""

    store: Store
    key: str


@dataclass(frozen=True)
class Job:
    """A simulation to make, with the facts that the engine needs about it.

    Attributes:
        declare: Makes the ledger name the draw; called in a thread, before the first answer is used.
        place: The place of the stored simulation; None if the agent is not a model, because no other run can
            use the simulation then.
        expected: The likely usage of the simulation; None if unknown.
        is_baseline: Whether the simulation is one of the baseline's fresh trials, which the ledger does not
            name.
    """

    assignment: Assignment
    declare: Callable[[], None]
    place: Place | None = None
    expected: Usage | None = None
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
        self._states: dict[str, State] = {}
        self._reservations = _Reservations()
        self._lost: dict[str, Simulation] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._changed = asyncio.Event()
        self._fresh: dict[str, int] = {}

    async def make(self, job: Job, *, urgent: bool = False) -> Simulation:
        """Make a simulation, or return the stored one.

        A simulation that infrastructure ended is returned unchanged. Only `retry` makes it again.

        Raises:
            BudgetError: the run's budget is spent, or the run was stopped.
            EndpointError: the endpoint rejects a request that every further simulation would send too.
            StorageError: the simulation cannot be stored, or a stored simulation was changed.
            InfrastructureError: the simulation was lost without a trace.
            WorldError: the task does not fit its world.
        """
        try:
            async with self.loop.slot(urgent=urgent):
                if job.place is None:
                    return await self._make_unstored(job)
                async with self._locks.setdefault(job.place.key, asyncio.Lock()):
                    return await self._make_stored(job, job.place)
        except sqlite3.Error as error:
            raise StorageError(
                f"{self.account.path}: the account of the run cannot be written ({error}); "
                "make room there, or set TMPDIR to another folder"
            ) from None
        except StorageError as error:
            with contextlib.suppress(sqlite3.Error):
                self.account.stop(str(error), StorageError)
            raise

    async def retry(self, job: Job) -> Simulation:
        """Make a lost simulation again."""
        if job.place is not None:
            self._states.pop(job.place.key, None)
            self._lost.pop(job.place.key, None)
        return await self.make(job, urgent=True)

    def forget_lost(self) -> None:
        """Forget the lost simulations, so that `make` makes them again."""
        for key in self._lost:
            self._states.pop(key, None)
        self._lost.clear()

    def reserve_fresh(self, purpose: str, simulations: int, limit: int) -> bool:
        """Reserve fresh simulations, and return whether they are reserved.

        Args:
            purpose: The purpose of the simulations. A second call with the same purpose reserves no more.
            simulations: The number of simulations.
            limit: The number of fresh simulations that the run may make for all purposes.
        """
        if purpose in self._fresh:
            return True
        if sum(self._fresh.values()) + simulations > limit:
            return False
        self._fresh[purpose] = simulations
        return True

    def totals(self) -> Totals:
        """The totals of the run so far; may be called from another thread."""
        states = Counter(self._states.copy().values())
        return Totals(dict(states), self.account.used, self.account.seconds, sum(self._fresh.values()))

    async def _make_unstored(self, job: Job) -> Simulation:
        self.account.raise_if_stopped()
        simulation = await self._simulate(job.assignment)
        if not _is_lost(simulation):
            await asyncio.to_thread(job.declare)
        return simulation

    async def _make_stored(self, job: Job, place: Place) -> Simulation:
        key = place.key
        if key in self._lost:
            return self._lost[key]
        if (kept := await asyncio.to_thread(self._kept, job, place)) is not None:
            self._states.setdefault(key, State.KEPT)
            return kept
        await self._reserve(key, job.expected)
        state, used = None, NOTHING_USED
        try:
            simulation = await self._journaled(job, place)
            if simulation is None:
                state = State.KEPT
                simulation = await asyncio.to_thread(self._kept, job, place)
                assert simulation is not None
                return simulation
            state, used = State.MADE, _used(simulation)
            if _is_lost(simulation):
                state = State.LOST
                self._lost[key] = simulation
            return simulation
        except (BudgetError, StorageError, sqlite3.Error):
            raise
        except EndpointError as error:
            if job.is_baseline:  # the baseline's model may be gone; that must not end the candidate's run
                state = State.LOST
                raise InfrastructureError(f"the baseline's side: {error}") from None
            self.account.stop(str(error), EndpointError)
            raise
        except Exception as error:
            state = State.LOST
            await asyncio.to_thread(self._note_loss, place)
            raise InfrastructureError(f"{type(error).__name__}: {error}") from error
        finally:
            self._settle(key, state, used)

    async def _journaled(self, job: Job, place: Place) -> Simulation | None:
        """Make a simulation and store it; None if another run stored it in the meantime."""
        journal = await self._begin_journal(place)
        if journal is None:
            return None
        is_declared = False

        async def declare() -> None:
            nonlocal is_declared
            if not is_declared:
                await asyncio.to_thread(self._declare, job)
                is_declared = True

        with journal:
            try:
                async with asyncio.timeout(self.account.seconds_left):
                    simulation = await self._simulate(job.assignment, journal, declare)
            except TimeoutError:
                self.account.raise_if_stopped()
                raise
            # In a thread, because a flush to the disk would block every other conversation.
            await asyncio.to_thread(self._put, job, place, simulation)
        return simulation

    async def _begin_journal(self, place: Place) -> Journal | None:
        while True:
            # Another run may be making the simulation. This run then takes its result, or resumes it.
            with _as_storage_error(self._folder), contextlib.suppress(BlockingIOError):
                return await asyncio.to_thread(place.store.begin, place.key)
            await asyncio.sleep(POLL_SECONDS)
            self.account.raise_if_stopped()

    async def _reserve(self, key: str, expected: Usage | None) -> None:
        """Wait until the budget suffices for one more simulation in addition to the running ones.

        Raises:
            BudgetError: the budget does not suffice, and no simulation is running.
        """
        while True:
            self.account.raise_if_stopped()
            shortage, usage = "", NOTHING_USED
            if self.account.budgets.limited:
                usage = expected or self._reservations.mean
                shortage = self.account.shortage(usage, self._reservations.total)
            if not shortage:
                self._states[key] = State.RUNNING
                self._reservations.running[key] = usage
                return
            if not self._reservations.running:
                self.account.stop(shortage)
                raise BudgetError(shortage)
            self._changed.clear()
            await self._changed.wait()

    def _settle(self, key: str, state: State | None, used: Usage = NOTHING_USED) -> None:
        """Record the final state of a simulation; state None means that it may run again."""
        self._reservations.close(key, used, is_made=state is State.MADE)
        if state is None:
            self._states.pop(key, None)
        else:
            self._states[key] = state
        self._changed.set()

    def _kept(self, job: Job, place: Place) -> Simulation | None:
        with _as_storage_error(self._folder):
            kept = place.store.get(place.key)
        if kept is not None:
            self._declare(job)
        return kept

    @staticmethod
    def _declare(job: Job) -> None:
        if not job.is_baseline:
            job.declare()

    def _put(self, job: Job, place: Place, simulation: Simulation) -> None:
        if _is_lost(simulation):
            self._note_loss(place)
            return
        self._declare(job)
        with _as_storage_error(self._folder):
            place.store.put(place.key, simulation)

    def _note_loss(self, place: Place) -> None:
        if isinstance(place.store, DrawStore):
            with _as_storage_error(place.store.path):
                place.store.lose(place.key)


class _Reservations:
    """Tokens and dollars of all started simulations; running ones count with their expected usage.

    Attributes:
        running: The expected usage of each running simulation, by key.
    """

    def __init__(self) -> None:
        self.running: dict[str, Usage] = {}
        self._tokens, self._cost = 0, 0.0
        self._made, self._made_tokens, self._made_cost = 0, 0, 0.0

    def close(self, key: str, used: Usage, *, is_made: bool) -> None:
        del self.running[key]
        self._tokens += used.tokens
        self._cost += used.cost or 0.0
        if is_made:
            self._made += 1
            self._made_tokens += used.tokens
            self._made_cost += used.cost or 0.0

    @property
    def total(self) -> Usage:
        tokens = self._tokens + sum(usage.tokens for usage in self.running.values())
        cost = self._cost + sum(usage.cost or 0.0 for usage in self.running.values())
        return Usage(calls=0, prompt_tokens=tokens, cost=cost)

    @property
    def mean(self) -> Usage:
        """The mean usage of the completed simulations; `NOTHING_USED` before the first."""
        if not self._made:
            return NOTHING_USED
        tokens = round(self._made_tokens / self._made)
        return Usage(calls=0, prompt_tokens=tokens, cost=self._made_cost / self._made)


@contextlib.contextmanager
def _as_storage_error(place: Path) -> Iterator[None]:
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
        raise StorageError.of(error, error.filename or place) from None


def _is_lost(simulation: Simulation) -> bool:
    return simulation.termination_reason == TerminationReason.INFRASTRUCTURE_ERROR


def _used(simulation: Simulation) -> Usage:
    """The usage of a simulation in this run, without answers from the cache, which cost nothing again."""
    fresh = [message for message in simulation.trace if not getattr(message, "cached", False)]
    return usage_of(fresh, "assistant") + usage_of(fresh, "user")
