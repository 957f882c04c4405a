"""What keeps one conversation's trouble from ending more than itself."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from pytest_trace2evolve.errors import InfrastructureError

T = TypeVar("T")


async def contained(what: str, talk: Coroutine[Any, Any, T]) -> T:
    """What `talk` returns, or the exception that it raises.

    Args:
        what: Names the conversation in an error.
        talk: Agents, users and worlds of anybody.

    Raises:
        InfrastructureError: it raised what would end the thread or the slot in which it runs; whoever waits
            for it would wait for ever.
    """
    try:
        return await talk
    except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
        this = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and this is not None and this.cancelling():
            raise
        raise InfrastructureError(
            f"{what}: the world or the agent raised {error!r}, which ends more than one simulation; "
            "let it raise an Exception"
        ) from None
