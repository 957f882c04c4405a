"""Runs code of an agent, so that its failures are its own and end nothing but its simulation."""

import asyncio
import contextvars
import errno
import socket
import ssl
import traceback
from collections.abc import Awaitable, Callable
from itertools import dropwhile
from pathlib import Path
from typing import TypeVar

from pytest_trace2evolve.errors import (
    AgentCodeError,
    BudgetError,
    EndpointError,
    InfrastructureError,
    ParticipantError,
    WorldError,
)
from pytest_trace2evolve.records.protocols import Agent, User

T = TypeVar("T")

_FOLDER = str(Path(__file__).resolve().parents[1])
"""Of this package."""

MAX_FRAMES = 20
"""Frames of an agent's traceback that are kept."""

MAX_MESSAGE = 2_000
"""Characters of an exception's message that are kept."""

_ALLOWED = (BudgetError, EndpointError, InfrastructureError, ParticipantError)
"""Errors by which an agent, or a model of this package that it asks, may end its simulation or the run."""


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""Codes of errors by which a disk, and not an agent, fails."""


async def run_agent_code(
    owner: object, name: str, call: Callable[[], Awaitable[T]], world: object = None
) -> T:
    """Run code of an agent: an exception is the agent's failure, unless it is a network error.

    The code runs in a task of its own: `asyncio.current_task().cancel()` ends this task and no other.

    Args:
        owner: The agent, or its factory. An exception of one of this package is the package's own.
        name: The method that runs, for messages.
        call: Calls the method.
        world: The world that the agent may call; a `WorldError` that its code raises is the world's failure.

    Raises:
        AgentCodeError: it raised; `SystemExit` counts, and so does a cancellation that nobody asked for.
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
        for variable, value in context.items():  # what it set, its next call finds
            if variable.get(None) is not value:
                variable.set(value)


async def make_participants(
    factory: object, make: Callable[[], tuple[Agent, User]], world: object
) -> tuple[Agent, User]:
    """The agent and the user of one simulation.

    Args:
        factory: An agent's factory.
        make: Calls it.
        world: The world that it may call.

    Raises:
        AgentCodeError: the factory raised, or returned something else.
        InfrastructureError: it could not reach a service.
    """

    async def made() -> tuple[Agent, User]:
        agent, user = make()
        return agent, user

    return await run_agent_code(factory, "factory", made, world)


async def _guarded(owner: object, name: str, call: Callable[[], Awaitable[T]], world: object) -> T:
    """Run the code, and turn what it raises into the errors of `run_agent_code`."""
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
        said = f"{type(error).__name__}: {_message(error)}".rstrip(": ")
        if is_network_error(error):
            raise InfrastructureError(f"the agent's {name} could not reach a service: {said}") from error
        if isinstance(error, OSError) and error.errno in _FULL:
            raise InfrastructureError(f"the agent's {name} could not write to the disk: {said}") from error
        raise AgentCodeError(said, _frames(error)) from error


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
    """The frames of a traceback from where the agent's code begins, the innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    own = list(dropwhile(lambda frame: frame.filename.startswith(_FOLDER), frames)) or frames
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
