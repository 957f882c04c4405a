"""The half-duplex conversation of τ²: agent, user and world take turns until one of them ends it.

Follows the orchestrator of tau2-bench 1.0.1: the agent greets, every message and every batch of tool calls
is one step, and the budgets are looked at only when no tool call is waiting. In solo mode nobody greets:
the agent works on a ticket, by tool calls only, until it says the stop mark. One thing is stricter than
upstream: a timeout also cuts off an answer that is being waited for.
"""

import asyncio
import errno
import socket
import ssl
import time
import traceback
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pytest_trace2evolve.errors import (
    AgentCodeError,
    ContextWindowError,
    InfrastructureError,
    ParticipantError,
    Trace2EvolveError,
)
from pytest_trace2evolve.records.message import GREETING, STOP, USER_STOPS, Message, ToolCall
from pytest_trace2evolve.records.protocols import Agent, User, World, WorldSession
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation, TerminationReason

MAX_FRAMES = 20
"""Frames of an agent's traceback that are kept."""

MAX_MESSAGE = 2_000
"""Characters of an exception's message that are kept."""


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
        The simulation, unscored. If the agent or the user raises `InfrastructureError` or
        `ParticipantError`, its termination reason says which, and whose, and its trace ends there. The same
        holds if the timeout passes while one of them is awaited. Any other exception of the agent is its own
        failure (`agent_error`), with the traceback in `info`; a network error is `InfrastructureError`.

    Raises:
        WorldError: the task's initial state does not fit the world.
        Exception: whatever the user or the world raises.
    """
    started_at = datetime.now(UTC).isoformat()
    session = world.open(solo=solo)
    session.initialise(task.initial_state)
    progress = _Progress()
    info: dict[str, str] = {}
    deadline = asyncio.timeout(limits.timeout)
    try:
        async with deadline:
            reason = await _turns(task, session, agent, None if solo else user, limits, progress)
    except TimeoutError:
        if not deadline.expired():
            raise
        reason = TerminationReason.TIMEOUT
    except InfrastructureError as error:
        reason, info = TerminationReason.INFRASTRUCTURE_ERROR, {"error": str(error)}
    except ContextWindowError as error:
        reason, info = TerminationReason.CONTEXT_WINDOW_EXCEEDED, {"error": str(error)}
    except AgentCodeError as error:
        reason, info = TerminationReason.AGENT_ERROR, _info_of(error)
    except ParticipantError as error:
        theirs = solo or _agent_is_next(progress.trace[-1])
        reason = TerminationReason.AGENT_ERROR if theirs else TerminationReason.USER_ERROR
        info = {"error": str(error)}
    return _simulation(task, reason, info, progress, started_at, trial, seed)


def failed_to_start(
    task: Task, error: AgentCodeError, *, trial: int = 0, seed: int | None = None
) -> Simulation:
    """The simulation of an agent that could not be made: `agent_error`, without messages."""
    started_at = datetime.now(UTC).isoformat()
    reason = TerminationReason.AGENT_ERROR
    return _simulation(task, reason, _info_of(error), _Progress(), started_at, trial, seed)


def _info_of(error: AgentCodeError) -> dict[str, str]:
    return {"error": str(error), **({"traceback": error.frames} if error.frames else {})}


def _simulation(
    task: Task,
    reason: TerminationReason,
    info: Mapping[str, str],
    progress: _Progress,
    started_at: str,
    trial: int,
    seed: int | None,
) -> Simulation:
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
    return Simulation.model_validate({**record, "info": info} if info else record)


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
        message = progress.say(await _reply(agent, progress.trace))
        if message.tool_calls:
            return None
        # There is nobody to read a text: one that is not the end is against the protocol.
        done = STOP in (message.content or "")
        return TerminationReason.AGENT_STOP if done else TerminationReason.AGENT_ERROR
    if _agent_is_next(progress.trace[-1]):
        message = progress.say(await _reply(agent, progress.trace))
        stops = not message.tool_calls and (message.content or "").strip() == STOP
        return TerminationReason.AGENT_STOP if stops else None
    message = progress.say(await user.respond(progress.trace))
    stops = not message.tool_calls and any(mark in (message.content or "") for mark in USER_STOPS)
    return TerminationReason.USER_STOP if stops else None


async def _reply(agent: Agent, trace: Sequence[Message]) -> Message:
    """The agent's next message.

    Raises:
        AgentCodeError: its code raised, or returned something else.
        InfrastructureError: it could not reach a service.
    """
    with agent_code(agent, "respond"):
        message = await agent.respond(trace)
    if not isinstance(message, Message):
        raise AgentCodeError(f"respond returned {type(message).__name__}, not a Message")
    return message


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""Codes of errors by which a disk, and not an agent, fails."""


@contextmanager
def agent_code(owner: object, what: str) -> Iterator[None]:
    """Run code of an agent: an exception is the agent's failure, unless it is a network error.

    Args:
        owner: The agent, or its factory. An exception of one of this package is the package's own.
        what: The method that runs, for messages.

    Raises:
        AgentCodeError: it raised; `SystemExit` counts, and so does a cancellation that nobody asked for.
        InfrastructureError: it could not reach a service (see `is_network_error`), or the disk is full.
    """
    try:
        yield
    except Trace2EvolveError:
        raise
    except BaseException as error:
        is_own = str(getattr(owner, "__module__", "")).partition(".")[0] == __name__.partition(".")[0]
        is_ended = isinstance(error, asyncio.CancelledError) and _is_cancelled()
        if is_own or is_ended or isinstance(error, GeneratorExit):
            raise
        said = f"{type(error).__name__}: {_message(error)}".rstrip(": ")
        if is_network_error(error):
            raise InfrastructureError(f"the agent's {what} could not reach a service: {said}") from error
        if isinstance(error, OSError) and error.errno in _FULL:
            raise InfrastructureError(f"the agent's {what} could not write to the disk: {said}") from error
        raise AgentCodeError(said, _frames(error)) from error


def is_network_error(error: BaseException) -> bool:
    """Whether an exception, or one that caused it, says that a service was out of reach or overloaded.

    A group of exceptions says so if each of its exceptions does.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, ConnectionError | TimeoutError | socket.gaierror | ssl.SSLError):
            return True
        if isinstance(current, BaseExceptionGroup) and all(map(is_network_error, current.exceptions)):
            return True
        status = _status(current)
        if isinstance(status, int) and (status in (408, 429) or status >= 500):
            return True
        # A library may wrap an error without naming its cause. A built-in one, such as a `KeyError`, that is
        # raised while a network error is handled is a defect of the handler.
        is_wrapper = type(current).__module__ != "builtins" and not current.__suppress_context__
        current = current.__cause__ or (current.__context__ if is_wrapper else None)
    return False


def _status(error: BaseException) -> object:
    try:
        response = getattr(error, "response", None)
        return getattr(error, "status_code", getattr(response, "status_code", None))
    except Exception:  # a property of anybody's exception may raise anything
        return None


def _message(error: BaseException) -> str:
    """The message of an exception for files and terminals: control characters escaped, cut if it is long."""
    try:
        text = str(error)
    except Exception as other:
        return f"its message cannot be shown ({type(other).__name__})"
    start = text[:MAX_MESSAGE]
    shown = "".join(one if one.isprintable() or one in "\n\t" else repr(one)[1:-1] for one in start)
    if len(text) <= MAX_MESSAGE and len(shown) <= MAX_MESSAGE:
        return shown
    return f"{shown[:MAX_MESSAGE]}… ({len(text)} characters)"


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _frames(error: BaseException) -> str:
    """The frames of a traceback outside this module, the innermost last."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename != __file__]
    return "".join(traceback.format_list(frames[-MAX_FRAMES:]))


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
