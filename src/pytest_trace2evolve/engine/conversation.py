"""One simulation: the half-duplex conversation of τ² in which agent, user and world take turns.

`Turns` decides the turns. A timeout is stricter than upstream, because it also interrupts a pending answer.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

from pytest_trace2evolve.engine.factories import ChatFactory
from pytest_trace2evolve.engine.guard import is_cancelled, is_of_package, run_agent_code
from pytest_trace2evolve.engine.turns import Turns
from pytest_trace2evolve.errors import (
    AgentCodeError,
    ContextWindowError,
    InfrastructureError,
    ParticipantError,
    Trace2EvolveError,
)
from pytest_trace2evolve.project.candidates import AgentFactory, Candidate
from pytest_trace2evolve.records.completion import dollars
from pytest_trace2evolve.records.message import Message, storable_message
from pytest_trace2evolve.records.protocols import Agent, Journal, User, World
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation, TerminationReason
from pytest_trace2evolve.utils.canonical import storable_text


@dataclass(frozen=True)
class Limits:
    """Budgets of one simulation: steps, tool errors, and seconds of wall clock (None: no limit)."""

    max_steps: int = 200
    max_errors: int = 10
    timeout: float | None = None


REDRAWN = (
    "it was begun again after a kill or a loss, and its requests were others than before: its world is not "
    "deterministic, or its code was changed, and its first draw is unknown"
)
"""The note of a restarted simulation whose requests changed, so not all its answers are of its first draw."""


@dataclass(frozen=True)
class Assignment:
    """One simulation to run.

    Attributes:
        factory: Makes the agent and the user; None if the executor has its own factories.
        candidate: The candidate that the agent plays.
        trial: The trial, which is also the seed.
        solo: Whether the agent works on a ticket without a user.
        place: The suite and split of a sealed task, which must not get cached answers from other places.
        suite: The suite of the simulation, for executors whose processes have their own factories.
        side: The side of the simulation, for the same executors.
    """

    task: Task
    world: World
    factory: AgentFactory | None
    candidate: Candidate
    trial: int
    limits: Limits
    solo: bool = False
    place: str = ""
    suite: str = ""
    side: Literal["baseline", "candidate"] = "candidate"


async def nothing_to_declare() -> None:
    """Do nothing, because no ledger has to name the draw."""


async def simulate(
    assignment: Assignment,
    journal: Journal | None = None,
    before_use: Callable[[], Awaitable[None]] = nothing_to_declare,
) -> Simulation:
    """Run one simulation in its own asyncio task.

    Args:
        assignment: The simulation to run.
        journal: Stores every answer of a model before the answer is used, and replays stored answers.
        before_use: Called before an answer is used.

    Raises:
        BudgetError, EndpointError: the run must not send further requests.
        InfrastructureError: an agent or a world raised an exception that would end more than this simulation.
        WorldError: the task does not fit its world.
    """
    try:
        return await asyncio.create_task(_simulate(assignment, journal, before_use))
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise _ends_too_much(assignment, error) from None


async def _simulate(
    assignment: Assignment, journal: Journal | None, before_use: Callable[[], Awaitable[None]]
) -> Simulation:
    task, world, trial, limits = assignment.task, assignment.world, assignment.trial, assignment.limits
    make = assignment.factory
    assert make is not None
    if journal is not None:
        if limits.timeout is not None:
            limits = replace(limits, timeout=max(0.0, limits.timeout - journal.seconds))
        if isinstance(make, ChatFactory) and not make.plays:
            make = make.journaled(journal, before_use, assignment.place)
    # A user class of the project may consume the gold actions of its task one by one.
    handed = task if is_of_package(make) else task.model_copy(deep=True)
    # A factory without a solo mode does not accept the argument `solo`.
    options = {"solo": True} if assignment.solo else {}

    async def participants() -> tuple[Agent, User]:
        agent, user = make(handed, world, assignment.candidate, trial, **options)
        return agent, user

    try:
        agent, user = await run_agent_code(assignment.factory, "factory", participants, world)
        simulation = await converse(
            task, world, agent, user, limits=limits, trial=trial, seed=trial, **options
        )
    except AgentCodeError as error:
        return failed_to_start(task, error, trial=trial, seed=trial)
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:  # asyncio would let this exception end the loop
        raise _ends_too_much(assignment, error) from None
    return simulation.as_redrawn(REDRAWN) if journal is not None and journal.redrawn else simulation


def _ends_too_much(assignment: Assignment, error: BaseException) -> InfrastructureError:
    return InfrastructureError(
        f"task {assignment.task.id!r}: the world or the agent raised {error!r}, which ends more than one "
        "simulation; let it raise an Exception"
    )


async def converse(
    task: Task,
    world: World,
    agent: Agent,
    user: User,
    *,
    limits: Limits,
    trial: int = 0,
    seed: int | None = None,
    solo: bool = False,
) -> Simulation:
    """Run one simulation of `task`; in solo mode, `user` is never called.

    Returns:
        The simulation, unscored. If the agent or the user raises `InfrastructureError` or
        `ParticipantError`, the termination reason names the kind of error and the side that raised it, and
        the trace ends there. If the timeout passes while a side is awaited, the trace ends in the same way.
        Any other exception of the agent counts as a failure of the agent (`agent_error`), with the traceback
        in `info`. A network error counts as `InfrastructureError`.

    Raises:
        WorldError: the task's initial state does not fit the world.
        Exception: any other exception that the user or the world raises.
    """
    started_at = datetime.now(UTC).isoformat()
    session = world.open(solo=solo)
    session.initialise(task.initial_state)
    turns = Turns(
        task,
        session,
        max_steps=limits.max_steps,
        max_errors=limits.max_errors,
        timeout=limits.timeout,
        solo=solo,
        stamp=_stamped,
    )
    views = {"assistant": _View(agent, turns.trace), "user": _View(user, turns.trace)}
    error: Trace2EvolveError | None = None
    deadline = asyncio.timeout(limits.timeout)
    try:
        async with deadline:
            turns.begin()
            while turns.end is None:
                history = views[turns.speaker].history()
                if turns.speaker == "assistant":
                    turns.say(await run_agent_code(agent, "respond", partial(_reply, agent, history), world))
                else:
                    turns.say(_users_message(await user.respond(history)))
            reason = turns.end
    except TimeoutError:
        if not deadline.expired():
            raise
        reason = TerminationReason.TIMEOUT
    except (InfrastructureError, ParticipantError) as caught:
        reason, error = _reason_of(caught, turns.speaker), caught
    duration = time.perf_counter() - turns.started
    return _simulation(task, reason, turns.trace, started_at, duration, trial, seed, error)


class _View:
    """The messages that one participant receives. Code of a project gets its own copies."""

    def __init__(self, participant: object, trace: Sequence[Message]) -> None:
        self._trace = trace
        self._copies: list[Message] | None = None if is_of_package(participant) else []

    def history(self) -> list[Message]:
        if self._copies is None:
            return list(self._trace)
        self._copies += [message.model_copy(deep=True) for message in self._trace[len(self._copies) :]]
        return list(self._copies)


def _reason_of(error: InfrastructureError | ParticipantError, speaker: str) -> TerminationReason:
    if isinstance(error, InfrastructureError):
        return TerminationReason.INFRASTRUCTURE_ERROR
    if isinstance(error, ContextWindowError):
        return TerminationReason.CONTEXT_WINDOW_EXCEEDED
    if isinstance(error, AgentCodeError) or speaker == "assistant":
        return TerminationReason.AGENT_ERROR
    return TerminationReason.USER_ERROR


def failed_to_start(
    task: Task, error: AgentCodeError, *, trial: int = 0, seed: int | None = None
) -> Simulation:
    """Return the simulation of an agent that could not be created: `agent_error`, without messages."""
    started_at = datetime.now(UTC).isoformat()
    return _simulation(task, TerminationReason.AGENT_ERROR, [], started_at, 0.0, trial, seed, error)


def _simulation(
    task: Task,
    reason: TerminationReason,
    trace: Sequence[Message],
    started_at: str,
    duration: float,
    trial: int,
    seed: int | None,
    error: Exception | None,
) -> Simulation:
    record: dict[str, Any] = {
        "id": str(uuid.uuid4()),
        "task_id": task.id,
        "timestamp": started_at,
        "start_time": started_at,
        "end_time": datetime.now(UTC).isoformat(),
        "duration": duration,
        "termination_reason": reason.value,
        "agent_cost": _cost(trace, "assistant"),
        "user_cost": _cost(trace, "user"),
        "reward_info": None,
        "messages": trace,
        "trial": trial,
        "seed": seed,
    }
    if error is not None:
        record["info"] = {"error": storable_text(str(error))}
        if frames := getattr(error, "frames", ""):
            record["info"] |= {"traceback": storable_text(frames)}
    return Simulation.model_validate(record)


def _stamped(message: Message, index: int) -> Message:
    stamp: dict[str, object] = {"timestamp": datetime.now(UTC).isoformat(), "turn_idx": index}
    if message.role == "tool":
        stamp["content"] = storable_text(message.content or "")
    return message.model_copy(update=stamp)


async def _reply(agent: Agent, history: Sequence[Message]) -> Message:
    """Return the agent's reply in the form that is stored.

    Raises:
        AgentCodeError: the reply is not a message, or is not a message of the agent.
    """
    reply: object = await agent.respond(history)
    if not isinstance(reply, Message):
        raise AgentCodeError(f"respond returned {type(reply).__name__}, not a Message")
    try:
        return storable_message(reply, "assistant")
    except ValueError as error:
        raise AgentCodeError(f"respond returned {error}") from None


def _users_message(reply: Message) -> Message:
    """Return the user's reply in the form that is stored.

    Raises:
        InfrastructureError: the user's code returned a reply that is not its message or cannot be stored.
    """
    try:
        return storable_message(reply, "user")
    except ValueError as error:
        raise InfrastructureError(f"the user's respond returned {error}") from None


def _cost(trace: Sequence[Message], role: str) -> float | None:
    """The cost of one side's messages in US dollars; None if no message states a cost."""
    costs = [dollars(getattr(message, "cost", None)) for message in trace if message.role == role]
    known = [cost for cost in costs if cost is not None]
    return float(sum(known)) if known else None
