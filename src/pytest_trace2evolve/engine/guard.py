"""Runs an agent's code, and attributes its failures to the agent, so that they end only its simulation."""

import asyncio
import contextvars
import errno
import socket
import ssl
import traceback
import types
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

T = TypeVar("T")

_PACKAGE_FOLDER = str(Path(__file__).resolve().parents[1])

MAX_FRAMES = 20
"""The largest number of frames kept of an agent's traceback."""

MAX_MESSAGE = 2_000
"""The largest number of characters kept of an exception's message."""

_ALLOWED = (BudgetError, EndpointError, InfrastructureError, ParticipantError)
"""Errors with which an agent, or a model of this package that it calls, may end its simulation or the run."""

_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""Disk errors, which do not count as failures of the agent."""


def is_of_package(owner: object) -> bool:
    """Whether an object is this package's code, by the definition of the object or of its class."""
    # Reading an attribute of an instance, even `__class__`, may raise.
    definition = owner if type(owner) in (types.FunctionType, types.MethodType) else type(owner)
    return _package(str(definition.__module__)) == _package(__name__)


def run_agent_code(
    owner: object, name: str, call: Callable[[], Awaitable[T]], world: object = None
) -> Awaitable[T]:
    """Run code of an agent. An exception is the agent's failure, unless it is a network error.

    The code runs in its own task, so `asyncio.current_task().cancel()` ends no other task. Code of this
    package is called directly, and its exceptions are raised unchanged.

    Args:
        owner: The agent, or its factory.
        name: The name of the method that runs, for error messages.
        call: Calls the method.
        world: The world that the agent may call; a `WorldError` that its code raises is the world's failure.

    Raises:
        AgentCodeError: the code raised an exception, which may be `SystemExit`, or cancelled its own task.
        InfrastructureError: the code could not reach a service (see `is_network_error`) or write to the disk.
    """
    if is_of_package(owner):
        return call()
    return _run_apart(name, call, world)


async def _run_apart(name: str, call: Callable[[], Awaitable[T]], world: object) -> T:
    context = contextvars.copy_context()
    task = asyncio.create_task(_guarded(name, call, world), context=context)
    try:
        return await task
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        raise AgentCodeError("CancelledError: the agent's code cancelled its own task") from None
    finally:
        for variable, value in context.items():  # the agent's next call finds the values that this call set
            if variable.get(None) is not value:
                variable.set(value)


async def _guarded(name: str, call: Callable[[], Awaitable[T]], world: object) -> T:
    task = asyncio.current_task()
    try:
        return await call()
    except BaseException as error:
        is_ended = isinstance(error, asyncio.CancelledError) and is_cancelled()
        # Python raises GeneratorExit in a coroutine that it discards; the coroutine's task does not run then.
        is_discarded = isinstance(error, GeneratorExit) and not _is_running(task)
        is_the_worlds = isinstance(error, WorldError) and _is_raised_by(world, error)
        if is_ended or is_discarded or is_the_worlds or isinstance(error, _ALLOWED):
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
    """Whether an exception, or one of its causes, says that a service was unreachable or overloaded.

    An exception group counts as a network error if each of its exceptions does.
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
        # A library may wrap an error without naming its cause. If a built-in exception such as `KeyError` is
        # raised while a network error is handled, the handler is defective.
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
    """The message of an exception with control characters escaped, cut after `MAX_MESSAGE` characters."""
    try:
        text = str(error)
    except Exception as other:
        return f"its message cannot be shown ({type(other).__name__})"
    start = text[:MAX_MESSAGE]
    shown = "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in start)
    if len(text) <= MAX_MESSAGE and len(shown) <= MAX_MESSAGE:
        return shown
    return f"{shown[:MAX_MESSAGE]}… ({len(text)} characters)"


def is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _frames(error: BaseException) -> str:
    """The traceback, starting at the first frame of the agent's code; the innermost frame is last."""
    frames = traceback.extract_tb(error.__traceback__)
    own = list(dropwhile(lambda frame: frame.filename.startswith(_PACKAGE_FOLDER), frames)) or frames
    return "".join(traceback.format_list(own[-MAX_FRAMES:]))


def _is_raised_by(world: object, error: BaseException) -> bool:
    """Whether the world's code, or the code of this package, raised an error."""
    frames = list(traceback.walk_tb(error.__traceback__))
    module = str(frames[-1][0].f_globals.get("__name__", "")) if frames else ""
    return module == type(world).__module__ or _package(module) == _package(__name__)


def _package(module: str) -> str:
    return module.partition(".")[0]
