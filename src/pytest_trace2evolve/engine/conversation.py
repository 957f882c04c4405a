"""Runs one simulation: the half-duplex conversation of τ², in which agent, user and world take turns.

`Turns` decides whose turn it is. A timeout is stricter than in τ², because it also interrupts a pending
answer.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

from pytest_trace2evolve.engine.agent_code import is_cancelled, is_package_code, run_agent_code
from pytest_trace2evolve.engine.factories import ChatFactory
from pytest_trace2evolve.engine.function_agent import FunctionFactory
from pytest_trace2evolve.engine.own_agent import OwnAgent
from pytest_trace2evolve.engine.turns import Turns
from pytest_trace2evolve.errors import (
    AgentCodeError,
    ContextWindowError,
    InfrastructureError,
    ParticipantError,
    Trace2EvolveError,
)
from pytest_trace2evolve.project.candidates import AgentFactory, Candidate
from pytest_trace2evolve.records.completion import parse_dollars
from pytest_trace2evolve.records.message import Message, storable_message
from pytest_trace2evolve.records.protocols import Agent, Journal, User, World, WorldSession
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation, TerminationReason
from pytest_trace2evolve.scoring.reward import open_session
from pytest_trace2evolve.utils.canonical import storable_text


@dataclass(frozen=True)
class Limits:
    """Budgets of one simulation: steps, tool errors, and seconds of wall clock (None: no limit)."""

    max_steps: int = 200
    max_errors: int = 10
    timeout: float | None = None


REDRAWN_NOTE = (
    "it was restarted after a kill or a loss, but its requests differed from before: its world is not "
    "deterministic or its code was changed, so its first draw is unknown"
)
"""The note of a restarted simulation whose requests changed: its answers come from several draws."""


@dataclass(frozen=True)
class Assignment:
    """One simulation to run.

    Attributes:
        factory: Makes the agent and the user; None if the executor has its own factories.
        candidate: The candidate whose prompt and settings the agent uses.
        trial: The number of the trial, which is also the seed.
        solo: Whether the agent works on a ticket without a user.
        cache_partition: The suite and split of a sealed task, which must not get cached answers of other
            splits; empty for other tasks.
        suite: The suite of the simulation, for executors whose processes have their own factories.
        side: The side of the comparison, also for executors whose processes have their own factories.
    """

    task: Task
    world: World
    factory: AgentFactory | None
    candidate: Candidate
    trial: int
    limits: Limits
    solo: bool = False
    cache_partition: str = ""
    suite: str = ""
    side: Literal["baseline", "candidate"] = "candidate"


async def declare_nothing() -> None:
    """Do nothing. This is the default `before_use`, for runs whose draws are not recorded in a ledger."""


async def simulate(
    assignment: Assignment,
    journal: Journal | None = None,
    before_use: Callable[[], Awaitable[None]] = declare_nothing,
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
        raise _escaped_exception_error(assignment, error) from None


async def _simulate(
    assignment: Assignment, journal: Journal | None, before_use: Callable[[], Awaitable[None]]
) -> Simulation:
    task, world, trial, limits = assignment.task, assignment.world, assignment.trial, assignment.limits
    factory = assignment.factory
    assert factory is not None
    if journal is not None:
        if limits.timeout is not None:
            limits = replace(limits, timeout=max(0.0, limits.timeout - journal.seconds))
        if isinstance(factory, ChatFactory | FunctionFactory) and not factory.is_playback:
            factory = factory.with_journal(journal, before_use, assignment.cache_partition)
    # A user class of the project may consume the gold actions of its task one by one.
    factory_task = task if is_package_code(factory) else task.model_copy(deep=True)
    # A factory without a solo mode does not accept the argument `solo`.
    options = {"solo": True} if assignment.solo else {}

    async def make_participants() -> tuple[Agent, User]:
        agent, user = factory(factory_task, world, assignment.candidate, trial, **options)
        return agent, user

    agent: Agent | None = None
    try:
        participants = await run_agent_code(assignment.factory, "factory", make_participants, world)
        agent, user = participants
        simulation = await converse(
            task, world, agent, user, limits=limits, trial=trial, seed=trial, **options
        )
    except AgentCodeError as error:
        return failed_start_simulation(task, error, trial=trial, seed=trial)
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:  # asyncio would let this exception end the loop
        raise _escaped_exception_error(assignment, error) from None
    finally:
        if isinstance(agent, OwnAgent):
            await agent.close()
    return simulation.mark(redrawn=REDRAWN_NOTE) if journal is not None and journal.is_redrawn else simulation


def _escaped_exception_error(assignment: Assignment, error: BaseException) -> InfrastructureError:
    return InfrastructureError(
        f"the world or the agent raised {type(error).__name__}, which ends more than one simulation, in task "
        f"{assignment.task.id!r}; raise a subclass of Exception instead: {error!r}"
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
        The simulation, unscored. If the agent or the user raises `InfrastructureError` or `ParticipantError`,
        the termination reason names the kind of error and the side that raised it, and the trace ends there.
        The trace also ends there if the timeout passes while the agent or the user is awaited. Any other
        exception of the agent counts as a failure of the agent (`agent_error`), with the traceback in `info`.
        A network error counts as `InfrastructureError`.

    Raises:
        WorldError: the task's initial state does not fit the world.
        Exception: any other exception that the user or the world raises.
    """
    started_at = datetime.now(UTC).isoformat()
    with contextlib.ExitStack() as stack:
        session = open_session(world, stack, solo=solo)
        session.initialise(task.initial_state)
        return await _converse(task, session, agent, user, world, limits, trial, seed, started_at, solo=solo)


async def _converse(
    task: Task,
    session: WorldSession,
    agent: Agent,
    user: User,
    world: World,
    limits: Limits,
    trial: int,
    seed: int | None,
    started_at: str,
    *,
    solo: bool,
) -> Simulation:
    turns = Turns(
        task,
        session,
        max_steps=limits.max_steps,
        max_errors=limits.max_errors,
        timeout=limits.timeout,
        solo=solo,
        stamp=_stamp_message,
    )
    views = {"assistant": _HistoryView(agent, turns.trace), "user": _HistoryView(user, turns.trace)}
    error: Trace2EvolveError | None = None
    deadline = asyncio.timeout(limits.timeout)
    try:
        async with deadline:
            turns.begin()
            while turns.end_reason is None:
                history = views[turns.speaker].history()
                if turns.speaker == "assistant":
                    turns.say(
                        await run_agent_code(
                            agent, "respond", partial(_request_agent_reply, agent, history), world
                        )
                    )
                else:
                    turns.say(_check_user_reply(await user.respond(history)))
            reason = turns.end_reason
    except TimeoutError:
        if not deadline.expired():
            raise
        reason = TerminationReason.TIMEOUT
    except (InfrastructureError, ParticipantError) as participant_error:
        reason, error = _termination_reason(participant_error, turns.speaker), participant_error
    duration = time.perf_counter() - turns.start_time
    return _build_simulation(task, reason, turns.trace, started_at, duration, trial, seed, error)


class _HistoryView:
    """The messages that one participant receives. Code of a project gets its own copies."""

    def __init__(self, participant: object, trace: Sequence[Message]) -> None:
        self._trace = trace
        self._copies: list[Message] | None = None if is_package_code(participant) else []

    def history(self) -> list[Message]:
        if self._copies is None:
            return list(self._trace)
        self._copies += [message.model_copy(deep=True) for message in self._trace[len(self._copies) :]]
        return list(self._copies)


def _termination_reason(error: InfrastructureError | ParticipantError, speaker: str) -> TerminationReason:
    if isinstance(error, InfrastructureError):
        return TerminationReason.INFRASTRUCTURE_ERROR
    if isinstance(error, ContextWindowError):
        return TerminationReason.CONTEXT_WINDOW_EXCEEDED
    if isinstance(error, AgentCodeError) or speaker == "assistant":
        return TerminationReason.AGENT_ERROR
    return TerminationReason.USER_ERROR


def failed_start_simulation(
    task: Task, error: AgentCodeError, *, trial: int = 0, seed: int | None = None
) -> Simulation:
    """Return the simulation of an agent that could not be created: `agent_error`, without messages."""
    started_at = datetime.now(UTC).isoformat()
    return _build_simulation(task, TerminationReason.AGENT_ERROR, [], started_at, 0.0, trial, seed, error)


def _build_simulation(
    task: Task,
    reason: TerminationReason,
    trace: Sequence[Message],
    started_at: str,
    duration: float,
    trial: int,
    seed: int | None,
    error: Exception | None,
) -> Simulation:
    fields: dict[str, Any] = {
        "id": str(uuid.uuid4()),
        "task_id": task.id,
        "timestamp": started_at,
        "start_time": started_at,
        "end_time": datetime.now(UTC).isoformat(),
        "duration": duration,
        "termination_reason": reason.value,
        "agent_cost": _side_cost(trace, "assistant"),
        "user_cost": _side_cost(trace, "user"),
        "reward_info": None,
        "messages": trace,
        "trial": trial,
        "seed": seed,
    }
    if error is not None:
        fields["info"] = {"error": storable_text(str(error))}
        if isinstance(error, AgentCodeError):
            fields["info"] |= {"cause": storable_text(error.cause)}
        if frames := getattr(error, "frames", ""):
            fields["info"] |= {"traceback": storable_text(frames)}
    return Simulation.model_validate(fields)


def _stamp_message(message: Message, index: int) -> Message:
    update: dict[str, object] = {"timestamp": datetime.now(UTC).isoformat(), "turn_idx": index}
    if message.role == "tool":
        update["content"] = storable_text(message.content or "")
    return message.model_copy(update=update)


async def _request_agent_reply(agent: Agent, history: Sequence[Message]) -> Message:
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
        cause, separator, detail = str(error).partition(": ")
        raise AgentCodeError(f"respond returned {cause}", separator + detail) from None


def _check_user_reply(reply: Message) -> Message:
    """Return the user's reply in the form that is stored.

    Raises:
        InfrastructureError: the user returned a reply that is not a message of the user, or that cannot be
            stored.
    """
    try:
        return storable_message(reply, "user")
    except ValueError as error:
        raise InfrastructureError(f"the user's respond returned {error}") from None


def _side_cost(trace: Sequence[Message], role: str) -> float | None:
    """The cost of the agent's or the user's messages in US dollars; None if no message states a cost."""
    costs = [parse_dollars(getattr(message, "cost", None)) for message in trace if message.role == role]
    known_costs = [cost for cost in costs if cost is not None]
    return float(sum(known_costs)) if known_costs else None
