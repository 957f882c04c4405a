"""Keeps the trouble of one conversation from ending more than itself.

Runs coroutines at once; the first error ends the others.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from pytest_trace2evolve.errors import InfrastructureError

T = TypeVar("T")


async def all_of(jobs: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order; the first error ends the others, and is raised as it is.

    An error that stops all of them has the same message in each, so the first one is enough.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(job) for job in jobs]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def contained(what: str, talk: Coroutine[Any, Any, T]) -> T:
    """Run a conversation in a task of its own; returns its result, or raises its exception.

    Args:
        what: Names the conversation in an error.
        talk: Agents, users and worlds of anybody.

    Raises:
        InfrastructureError: it raised what would end the thread or the slot in which it runs, or cancelled
            its own task; whoever waits for it would wait for ever.
    """
    task = asyncio.create_task(_guarded(what, talk))
    try:
        return await task
    except asyncio.CancelledError as error:
        this = asyncio.current_task()
        if this is not None and this.cancelling():
            raise
        raise _ended(what, error) from None


async def _guarded(what: str, talk: Coroutine[Any, Any, T]) -> T:
    try:
        return await talk
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:  # asyncio lets it end the loop, or the slot ends by it
        raise _ended(what, error) from None


def _ended(what: str, error: BaseException) -> InfrastructureError:
    return InfrastructureError(
        f"{what}: the world or the agent raised {error!r}, which ends more than one simulation; "
        "let it raise an Exception"
    )
