"""Makes one simulation: its agent and user, the conversation, and the journal of its models' answers."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from pytest_trace2evolve.engine.conversation import Limits, converse, failed_to_start, run_agent_code
from pytest_trace2evolve.engine.participants import ChatFactory
from pytest_trace2evolve.errors import AgentCodeError
from pytest_trace2evolve.evidence.journal import Journal
from pytest_trace2evolve.project.candidates import AgentFactory, Candidate
from pytest_trace2evolve.records.protocols import Agent, User, World
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
        factory: Makes the agent and the user.
        candidate: The candidate that the agent plays.
        trial: The trial, which is also the seed.
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


async def _nothing() -> None:
    """No ledger has to name the draw."""


async def simulate(
    assignment: Assignment,
    journal: Journal | None = None,
    before_use: Callable[[], Awaitable[None]] = _nothing,
) -> Simulation:
    """Make one simulation in this process.

    Args:
        assignment: What to simulate.
        journal: Takes every answer of a model before it is used, and returns those that it holds.
        before_use: Called before an answer is used.

    Raises:
        BudgetError, EndpointError: the run may send nothing more.
        InfrastructureError: an agent or a world raised what would end more than this simulation.
        WorldError: the task does not fit its world.
    """
    conversation = _simulate(assignment, journal, before_use)
    return await contained(f"task {assignment.task.id!r}", conversation)


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

    async def participants() -> tuple[Agent, User]:
        agent, user = make(task, world, assignment.candidate, trial, **options)
        return agent, user

    try:
        agent, user = await run_agent_code(assignment.factory, "factory", participants, world)
    except AgentCodeError as error:
        return failed_to_start(task, error, trial=trial, seed=trial)
    simulation = await converse(task, world, agent, user, limits=limits, trial=trial, seed=trial, **options)
    return simulation.as_redrawn(REDRAWN) if journal is not None and journal.redrawn else simulation
