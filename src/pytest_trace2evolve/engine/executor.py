"""Executors do the work of the engine: each makes one simulation at a time, many at once."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from pytest_trace2evolve.engine.conversation import Limits, converse, failed_to_start, make_participants
from pytest_trace2evolve.engine.participants import ChatFactory
from pytest_trace2evolve.errors import AgentCodeError
from pytest_trace2evolve.evidence.journal import Journal
from pytest_trace2evolve.project.candidates import AgentFactory, Candidate
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.utils.concurrency import contained

REDRAWN = (
    "it was begun again after a kill or a loss, and its requests were others than before: its world is not "
    "deterministic, or its code was changed, and its first draw is unknown"
)
"""The note of a simulation whose answers are not all of its first draw."""


@dataclass(frozen=True)
class Assignment:
    """One simulation to be made.

    Attributes:
        task: What is simulated.
        world: The task's world.
        factory: Makes the agent and the user.
        candidate: Whose simulation it is.
        trial: The trial, which is also the seed.
        limits: Its budgets.
        solo: Whether the agent works on a ticket without a user.
        place: The suite and split of a sealed task, whose answers other places of a cache must not serve.
    """

    task: Task
    world: World
    factory: AgentFactory
    candidate: Candidate
    trial: int
    limits: Limits
    solo: bool = False
    place: str = ""


class Executor(Protocol):
    """Makes simulations, in this process or elsewhere."""

    async def simulate(
        self,
        assignment: Assignment,
        journal: Journal | None = None,
        before_use: Callable[[], Awaitable[None]] | None = None,
    ) -> Simulation:
        """Make one simulation.

        Args:
            assignment: What is simulated.
            journal: Takes every answer of a model before it is used, and gives those that it holds.
            before_use: Called before an answer is used.

        Raises:
            BudgetError, EndpointError: the run may send nothing more.
            InfrastructureError: an agent or a world raised what would end more than this simulation.
            WorldError: the task does not fit its world.
        """


class LocalExecutor:
    """Makes simulations in this process."""

    async def simulate(
        self,
        assignment: Assignment,
        journal: Journal | None = None,
        before_use: Callable[[], Awaitable[None]] | None = None,
    ) -> Simulation:
        """Make one simulation: see `Executor`."""
        what = f"task {assignment.task.id!r}"
        return await contained(what, _simulate(assignment, journal, before_use or _nothing))


async def _simulate(
    assignment: Assignment, journal: Journal | None, before_use: Callable[[], Awaitable[None]]
) -> Simulation:
    task, world, trial, limits = assignment.task, assignment.world, assignment.trial, assignment.limits
    make = assignment.factory
    if journal is not None:
        if limits.timeout is not None:
            limits = replace(limits, timeout=max(0.0, limits.timeout - journal.seconds))
        if isinstance(make, ChatFactory) and not make.plays:
            make = make.journaled(journal, before_use, assignment.place)
    # A factory without a solo mode takes no such argument.
    options = {"solo": True} if assignment.solo else {}
    try:
        agent, user = await make_participants(
            assignment.factory, lambda: make(task, world, assignment.candidate, trial, **options), world
        )
    except AgentCodeError as error:
        return failed_to_start(task, error, trial=trial, seed=trial)
    simulation = await converse(task, world, agent, user, limits=limits, trial=trial, seed=trial, **options)
    return simulation.as_redrawn(REDRAWN) if journal is not None and journal.redrawn else simulation


async def _nothing() -> None:
    """No ledger has to name the draw."""
