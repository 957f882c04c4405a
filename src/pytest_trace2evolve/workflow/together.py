"""Runs coroutines at once; the first error ends the others."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

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
