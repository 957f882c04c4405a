"""The half-duplex conversation of τ²: agent, user and world take turns until one of them ends it.

Follows the orchestrator of tau2-bench 1.0.1: the agent greets, every message and every batch of tool calls
is one step, and the budgets are looked at only when no tool call is waiting. In solo mode nobody greets:
the agent works on a ticket, by tool calls only, until it says the stop mark. One thing is stricter than
upstream: a timeout also cuts off an answer that is being waited for.
"""

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pytest_trace2evolve.errors import ContextWindowError, InfrastructureError, ParticipantError
from pytest_trace2evolve.records.message import GREETING, STOP, USER_STOPS, Message, ToolCall
from pytest_trace2evolve.records.protocols import Agent, User, World, WorldSession
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation, TerminationReason


@dataclass(frozen=True)
class Limits:
    """Budgets of one simulation: steps, tool errors, and seconds of wall clock (None: no limit)."""

    max_steps: int = 200
    max_errors: int = 10
    timeout: float | None = None


@dataclass
class _Progress:
    trace: list[Message] = field(default_factory=list)
    steps: int = 0
    errors: int = 0
    started: float = field(default_factory=time.perf_counter)

    def say(self, message: Message) -> Message:
        stamped = message.model_copy(
            update={"timestamp": datetime.now(UTC).isoformat(), "turn_idx": len(self.trace)}
        )
        self.trace.append(stamped)
        return stamped


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
    """Run one simulation of `task`; in solo mode `user` is never asked.

    Returns:
        The simulation, unscored. Where the agent or the user raises `InfrastructureError` or
        `ParticipantError`, its termination reason says which, and whose, and its trace ends there. So it
        does where the timeout passes while one of them is waited for.

    Raises:
        WorldError: the task's initial state does not fit the world.
    """
    started_at = datetime.now(UTC).isoformat()
    session = world.open(solo=solo)
    session.initialise(task.initial_state)
    progress = _Progress()
    note = None
    deadline = asyncio.timeout(limits.timeout)
    try:
        async with deadline:
            reason = await _turns(task, session, agent, None if solo else user, limits, progress)
    except TimeoutError:
        if not deadline.expired():
            raise
        reason = TerminationReason.TIMEOUT
    except InfrastructureError as error:
        reason, note = TerminationReason.INFRASTRUCTURE_ERROR, str(error)
    except ContextWindowError as error:
        reason, note = TerminationReason.CONTEXT_WINDOW_EXCEEDED, str(error)
    except ParticipantError as error:
        theirs = solo or _agent_is_next(progress.trace[-1])
        reason = TerminationReason.AGENT_ERROR if theirs else TerminationReason.USER_ERROR
        note = str(error)
    record = {
        "id": str(uuid.uuid4()),
        "task_id": task.id,
        "timestamp": started_at,
        "start_time": started_at,
        "end_time": datetime.now(UTC).isoformat(),
        "duration": time.perf_counter() - progress.started,
        "termination_reason": reason.value,
        "agent_cost": _cost(progress.trace, "assistant"),
        "user_cost": _cost(progress.trace, "user"),
        "reward_info": None,
        "messages": progress.trace,
        "trial": trial,
        "seed": seed,
    }
    return Simulation.model_validate(record if note is None else {**record, "info": {"error": note}})


async def _turns(
    task: Task, session: WorldSession, agent: Agent, user: User | None, limits: Limits, progress: _Progress
) -> TerminationReason:
    if task.history:
        progress.trace.extend(task.history)
        _replay(session, task.history)
    elif user is None:
        if ended := await _speak(agent, user, progress):
            return ended
    else:
        progress.say(Message(role="assistant", content=GREETING))
    session.sync()
    while True:
        message = progress.trace[-1]
        if message.tool_calls:
            _answer(session, message.tool_calls, progress)
        elif ended := await _speak(agent, user, progress):
            return ended
        progress.steps += 1
        ended = None if progress.trace[-1].tool_calls else _exhausted(limits, progress)
        if ended is not None:
            return ended


async def _speak(agent: Agent, user: User | None, progress: _Progress) -> TerminationReason | None:
    """Let whoever's turn it is say the next message; why the simulation ends with it, if it does."""
    if user is None:
        message = progress.say(await agent.respond(progress.trace))
        if message.tool_calls:
            return None
        # There is nobody to read a text: one that is not the end is against the protocol.
        done = STOP in (message.content or "")
        return TerminationReason.AGENT_STOP if done else TerminationReason.AGENT_ERROR
    if _agent_is_next(progress.trace[-1]):
        message = progress.say(await agent.respond(progress.trace))
        stops = not message.tool_calls and (message.content or "").strip() == STOP
        return TerminationReason.AGENT_STOP if stops else None
    message = progress.say(await user.respond(progress.trace))
    stops = not message.tool_calls and any(mark in (message.content or "") for mark in USER_STOPS)
    return TerminationReason.USER_STOP if stops else None


def _agent_is_next(last: Message) -> bool:
    return last.requestor == "assistant" if last.role == "tool" else last.role == "user"


def _answer(session: WorldSession, calls: Sequence[ToolCall], progress: _Progress) -> None:
    for call in calls:
        result = session.call(call.name, call.arguments, call.requestor)
        progress.errors += result.error
        progress.say(result.answering(call))
    session.sync()


def _replay(session: WorldSession, history: Sequence[Message]) -> None:
    for message in history:
        for call in message.tool_calls or ():
            session.call(call.name, call.arguments, call.requestor)


def _exhausted(limits: Limits, progress: _Progress) -> TerminationReason | None:
    """The budget that has run out; where several have, the one that tau2 would name."""
    if limits.timeout is not None and time.perf_counter() - progress.started >= limits.timeout:
        return TerminationReason.TIMEOUT
    if progress.errors >= limits.max_errors:
        return TerminationReason.TOO_MANY_ERRORS
    if progress.steps >= limits.max_steps:
        return TerminationReason.MAX_STEPS
    return None


def _cost(trace: Sequence[Message], role: str) -> float | None:
    """What one side's messages cost in US dollars; None where no message says."""
    costs = [getattr(message, "cost", None) for message in trace if message.role == role]
    known = [cost for cost in costs if isinstance(cost, int | float)]
    return float(sum(known)) if known else None
