"""Several things at once, of which the first that fails says why."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def all_of(jobs: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order; the first error ends the others, and is raised as it is.

    What fails for all fails for each in the same words, so one cause is enough to say.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(job) for job in jobs]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
