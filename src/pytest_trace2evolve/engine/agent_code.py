"""Runs an agent's code. A failure of the code counts as the agent's, and ends only the agent's simulation."""

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
"""Maximum number of frames that are kept from an agent's traceback."""

MAX_MESSAGE_LENGTH = 2_000
"""Maximum number of characters that are kept from an exception's message."""

_EXPECTED_ERRORS = (BudgetError, EndpointError, InfrastructureError, ParticipantError)
"""Errors with which an agent, or a model of this package that it calls, may end its simulation or the run."""

_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""Disk errors, which do not count as failures of the agent."""


def is_package_code(owner: object) -> bool:
    """Whether this package defines a function, a method or the class of an object."""
    # Reading an attribute of an instance, even `__class__`, may raise.
    definition = owner if type(owner) in (types.FunctionType, types.MethodType) else type(owner)
    return _top_level_package(str(definition.__module__)) == _top_level_package(__name__)


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
    if is_package_code(owner):
        return call()
    return _run_in_own_task(name, call, world)


async def _run_in_own_task(name: str, call: Callable[[], Awaitable[T]], world: object) -> T:
    context = contextvars.copy_context()
    task = asyncio.create_task(_attribute_errors(name, call, world), context=context)
    try:
        return await task
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        raise AgentCodeError("CancelledError: the agent's code cancelled its own task") from None
    finally:
        for variable, value in context.items():  # the agent's next call must see these values
            if variable.get(None) is not value:
                variable.set(value)


async def _attribute_errors(name: str, call: Callable[[], Awaitable[T]], world: object) -> T:
    task = asyncio.current_task()
    try:
        return await call()
    except BaseException as error:
        is_cancellation = isinstance(error, asyncio.CancelledError) and is_cancelled()
        # Python raises GeneratorExit in a coroutine that it discards; the coroutine's task does not run then.
        is_discarded = isinstance(error, GeneratorExit) and not _is_running(task)
        is_world_error = isinstance(error, WorldError) and _is_raised_by(world, error)
        if is_cancellation or is_discarded or is_world_error or isinstance(error, _EXPECTED_ERRORS):
            raise
        cause, detail = type(error).__name__, f": {_error_message(error)}".rstrip(": ")
        text = cause + detail
        if is_network_error(error):
            raise InfrastructureError(f"the agent's {name} could not reach a service: {text}") from error
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            raise InfrastructureError(f"the agent's {name} could not write to the disk: {text}") from error
        raise AgentCodeError(cause, detail, frames=_format_frames(error)) from error


def _is_running(task: asyncio.Task[object] | None) -> bool:
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # no event loop runs
        return False


def is_network_error(error: BaseException) -> bool:
    """Whether an exception, or one of its causes, says that a service was unreachable or overloaded.

    An exception group counts as a network error if each of its exceptions does.
    """
    seen_ids: set[int] = set()
    current_error: BaseException | None = error
    while current_error is not None and id(current_error) not in seen_ids:
        seen_ids.add(id(current_error))
        if isinstance(current_error, ConnectionError | TimeoutError | socket.gaierror | ssl.SSLError):
            return True
        if isinstance(current_error, BaseExceptionGroup) and all(
            map(is_network_error, current_error.exceptions)
        ):
            return True
        status = _http_status(current_error)
        if isinstance(status, int) and (status in (408, 429) or status >= 500):
            return True
        # A library may wrap an error without naming its cause. If a built-in exception such as `KeyError` is
        # raised while a network error is handled, the handler is defective.
        is_wrapper = type(current_error).__module__ != "builtins" and not current_error.__suppress_context__
        current_error = current_error.__cause__ or (current_error.__context__ if is_wrapper else None)
    return False


def _http_status(error: BaseException) -> object:
    try:
        response = getattr(error, "response", None)
        return getattr(error, "status_code", getattr(response, "status_code", None))
    except Exception:  # a property of a third party's exception may raise anything
        return None


def _error_message(error: BaseException) -> str:
    """Return an exception's message with control characters escaped, cut after `MAX_MESSAGE_LENGTH`."""
    try:
        text = str(error)
    except Exception as str_error:
        return f"its message cannot be shown ({type(str_error).__name__})"
    start = text[:MAX_MESSAGE_LENGTH]
    printable = "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in start)
    if len(text) <= MAX_MESSAGE_LENGTH and len(printable) <= MAX_MESSAGE_LENGTH:
        return printable
    return f"{printable[:MAX_MESSAGE_LENGTH]}… ({len(text)} characters)"


def is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _format_frames(error: BaseException) -> str:
    """The traceback, starting at the first frame of the agent's code; the innermost frame is last."""
    frames = traceback.extract_tb(error.__traceback__)
    agent_frames = list(dropwhile(lambda frame: frame.filename.startswith(_PACKAGE_FOLDER), frames)) or frames
    return "".join(traceback.format_list(agent_frames[-MAX_FRAMES:]))


def _is_raised_by(world: object, error: BaseException) -> bool:
    """Whether the world's code, or the code of this package, raised an error."""
    frames = list(traceback.walk_tb(error.__traceback__))
    module = str(frames[-1][0].f_globals.get("__name__", "")) if frames else ""
    return module == type(world).__module__ or _top_level_package(module) == _top_level_package(__name__)


def _top_level_package(module: str) -> str:
    return module.partition(".")[0]
