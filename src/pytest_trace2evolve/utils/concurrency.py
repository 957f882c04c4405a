"""Runs coroutines so that an error in one of them reaches its caller and ends nothing else."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

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
