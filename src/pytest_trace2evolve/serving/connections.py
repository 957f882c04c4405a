"""Connections of the server: how long one may wait without a whole request, and how many may wait at once.

Uvicorn limits the time between requests alone: a client that sends a byte of a request's head now and then,
or that connects and says nothing, would hold its connection for ever.
"""

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol


class GuardedConnection(H11Protocol):
    """One connection, closed if it does not send a whole head in time.

    Attributes:
        head_seconds: Seconds from the connection, or from the first byte of a further request, to the end of
            the request's head.
        max_idle: Connections without a request under way; beyond them the one that waits longest is closed.
    """

    head_seconds: ClassVar[float] = 30.0
    max_idle: ClassVar[int] = 512

    _timer: asyncio.TimerHandle | None = None
    _idle_since = 0.0

    @property
    def idle(self) -> bool:
        """Whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as theirs
        """Begin to wait for a request, and close another connection if too many wait."""
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._watch()
        idle = [one for one in self.connections if isinstance(one, GuardedConnection) and one.idle]
        if len(idle) > self.max_idle:
            min(idle, key=lambda one: one._idle_since).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take in a part of a request. The time does not begin anew with each part."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for a further request; until its first byte comes, uvicorn's own time counts."""
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time."""
        self._stop()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if not self.idle:
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_seconds, self._expire)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        if self.idle:
            self.transport.abort()
