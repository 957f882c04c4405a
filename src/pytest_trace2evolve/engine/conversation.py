"""The half-duplex conversation of τ²: agent, user and world take turns until one of them ends it.

`Turns` decides the turns. A timeout is stricter than upstream: it also cuts off an answer that is awaited.
Code of an agent runs guarded: its failures are its own and end only its simulation.
"""

import asyncio
import contextvars
import errno
import socket
import ssl
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import dropwhile
from pathlib import Path
from typing import Any, TypeVar

from pytest_trace2evolve.engine.turns import Turns
from pytest_trace2evolve.errors import (
    AgentCodeError,
    BudgetError,
    ContextWindowError,
    EndpointError,
    InfrastructureError,
    ParticipantError,
    Trace2EvolveError,
    WorldError,
)
from pytest_trace2evolve.records.completion import dollars
from pytest_trace2evolve.records.message import Message, storable_message
from pytest_trace2evolve.records.protocols import Agent, User, World
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation, TerminationReason
from pytest_trace2evolve.utils.canonical import storable_text

T = TypeVar("T")

_PACKAGE_FOLDER = str(Path(__file__).resolve().parents[1])

MAX_FRAMES = 20
"""Frames of an agent's traceback that are kept."""

MAX_MESSAGE = 2_000
"""Characters of an exception's message that are kept."""

_ALLOWED = (BudgetError, EndpointError, InfrastructureError, ParticipantError)
"""Errors by which an agent, or a model of this package that it asks, may end its simulation or the run."""

_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""Errors of a disk, which are no failure of the agent."""


async def run_agent_code(
    owner: object, name: str, call: Callable[[], Awaitable[T]], world: object = None
) -> T:
    """Run code of an agent: an exception is the agent's failure, unless it is a network error.

    The code runs in a task of its own: `asyncio.current_task().cancel()` ends this task and no other.

    Args:
        owner: The agent, or its factory. If it belongs to this package, its exceptions are raised unchanged.
        name: The method that runs, for messages.
        call: Calls the method.
        world: The world that the agent may call; a `WorldError` that its code raises is the world's failure.

    Raises:
        AgentCodeError: it raised, `SystemExit` included, or cancelled its own task.
        InfrastructureError: it could not reach a service (see `is_network_error`), or the disk is full.
    """
    context = contextvars.copy_context()
    task = asyncio.create_task(_guarded(owner, name, call, world), context=context)
    try:
        return await task
    except asyncio.CancelledError:
        if _is_cancelled():
            raise
        raise AgentCodeError("CancelledError: the agent's code cancelled its own task") from None
    finally:
        for variable, value in context.items():  # its next call finds the variables that this one set
            if variable.get(None) is not value:
                variable.set(value)


async def _guarded(owner: object, name: str, call: Callable[[], Awaitable[T]], world: object) -> T:
    task = asyncio.current_task()
    try:
        return await call()
    except BaseException as error:
        is_ended = isinstance(error, asyncio.CancelledError) and _is_cancelled()
        # Python raises GeneratorExit in a coroutine that it discards; its task is not running then.
        is_discarded = isinstance(error, GeneratorExit) and not _is_running(task)
        if _is_own(owner) or is_ended or is_discarded:
            raise
        is_the_worlds = isinstance(error, WorldError) and _is_raised_by(world, error)
        if isinstance(error, _ALLOWED) or is_the_worlds:
            raise
        text = f"{type(error).__name__}: {_message(error)}".rstrip(": ")
        if is_network_error(error):
            raise InfrastructureError(f"the agent's {name} could not reach a service: {text}") from error
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            raise InfrastructureError(f"the agent's {name} could not write to the disk: {text}") from error
        raise AgentCodeError(text, _frames(error)) from error


def _is_running(task: asyncio.Task[object] | None) -> bool:
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # no event loop runs
        return False


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
    except Exception:  # a property of a third party's exception may raise anything
        return None


def _message(error: BaseException) -> str:
    """The message of an exception for files and terminals: control characters escaped, cut if it is long."""
    try:
        text = str(error)
    except Exception as other:
        return f"its message cannot be shown ({type(other).__name__})"
    start = text[:MAX_MESSAGE]
    shown = "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in start)
    if len(text) <= MAX_MESSAGE and len(shown) <= MAX_MESSAGE:
        return shown
    return f"{shown[:MAX_MESSAGE]}… ({len(text)} characters)"


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _frames(error: BaseException) -> str:
    """The traceback from the first frame of the agent's code on, the innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    own = list(dropwhile(lambda frame: frame.filename.startswith(_PACKAGE_FOLDER), frames)) or frames
    return "".join(traceback.format_list(own[-MAX_FRAMES:]))


def _is_own(owner: object) -> bool:
    """Whether an agent is one of this package."""
    return _package(str(getattr(owner, "__module__", ""))) == _package(__name__)


def _is_raised_by(world: object, error: BaseException) -> bool:
    """Whether the code of a world, or of this package, raised an error."""
    frames = list(traceback.walk_tb(error.__traceback__))
    module = str(frames[-1][0].f_globals.get("__name__", "")) if frames else ""
    return module == type(world).__module__ or _package(module) == _package(__name__)


def _package(module: str) -> str:
    return module.partition(".")[0]


@dataclass(frozen=True)
class Limits:
    """Budgets of one simulation: steps, tool errors, and seconds of wall clock (None: no limit)."""

    max_steps: int = 200
    max_errors: int = 10
    timeout: float | None = None


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
    turns = Turns(
        task,
        session,
        max_steps=limits.max_steps,
        max_errors=limits.max_errors,
        timeout=limits.timeout,
        solo=solo,
        stamp=_stamped,
    )
    error: Trace2EvolveError | None = None
    deadline = asyncio.timeout(limits.timeout)
    try:
        async with deadline:
            turns.begin()
            while turns.end is None:
                if turns.speaker == "assistant":
                    turns.say(await _agents_reply(agent, world, turns.trace))
                else:
                    turns.say(await _users_reply(user, turns.trace))
            reason = turns.end
    except TimeoutError:
        if not deadline.expired():
            raise
        reason = TerminationReason.TIMEOUT
    except (InfrastructureError, ParticipantError) as caught:
        reason, error = _reason_of(caught, turns.speaker), caught
    duration = time.perf_counter() - turns.started
    return _simulation(task, reason, turns.trace, started_at, duration, trial, seed, error)


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
    """The simulation of an agent that could not be made: `agent_error`, without messages."""
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


async def _agents_reply(agent: Agent, world: World, trace: Sequence[Message]) -> Message:
    """The agent's next message, as it is stored.

    Raises:
        AgentCodeError: its code raised, or returned something else, or a message that is not the agent's.
        InfrastructureError: it could not reach a service.
    """
    message = await run_agent_code(agent, "respond", lambda: agent.respond(list(trace)), world)
    if not isinstance(message, Message):
        raise AgentCodeError(f"respond returned {type(message).__name__}, not a Message")
    try:
        return storable_message(message, "assistant")
    except ValueError as error:
        raise AgentCodeError(f"respond returned {error}") from None


async def _users_reply(user: User, trace: Sequence[Message]) -> Message:
    """The user's next message, as it is stored.

    Raises:
        InfrastructureError: it is not the user's message, or cannot be stored: a defect of the user's code.
    """
    try:
        return storable_message(await user.respond(list(trace)), "user")
    except ValueError as error:
        raise InfrastructureError(f"the user's respond returned {error}") from None


def _cost(trace: Sequence[Message], role: str) -> float | None:
    """What one side's messages cost in US dollars; None where no message says."""
    costs = [dollars(getattr(message, "cost", None)) for message in trace if message.role == role]
    known = [cost for cost in costs if cost is not None]
    return float(sum(known)) if known else None
