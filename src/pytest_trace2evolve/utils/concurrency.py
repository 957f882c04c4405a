"""Runs coroutines so that an error in one of them reaches its caller and ends nothing else."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from pytest_trace2evolve.errors import InfrastructureError

T = TypeVar("T")


async def all_of(jobs: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently; returns their results in order.

    The first error cancels the others and is raised as it is, without an exception group.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(job) for job in jobs]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def contained(name: str, conversation: Coroutine[Any, Any, T]) -> T:
    """Run a conversation of third-party agents, users and worlds in a task of its own; returns its result.

    Args:
        name: Names the conversation in an error.

    Raises:
        InfrastructureError: it raised an exception that would end the event loop, or cancelled its own task.
    """

    def ended(error: BaseException) -> InfrastructureError:
        return InfrastructureError(
            f"{name}: the world or the agent raised {error!r}, which ends more than one simulation; "
            "let it raise an Exception"
        )

    async def guarded() -> T:
        try:
            return await conversation
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:  # asyncio would let it end the loop
            raise ended(error) from None

    try:
        return await asyncio.create_task(guarded())
    except asyncio.CancelledError as error:
        caller = asyncio.current_task()
        if caller is not None and caller.cancelling():
            raise
        raise ended(error) from None
