"""HTTP clients that limit an answer's size as sent, its size once expanded, and its time.

Limits of the HTTP library apply to single reads. A server that sends a byte now and then never reaches a read
timeout, and a few megabytes of gzip expand to gigabytes within one read.
"""

import asyncio
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import httpx2

MAX_ANSWER = 16 << 20
"""Maximum bytes of an answer from a chat model or a judge; a million tokens are about four million bytes."""

ENCODINGS = {"accept-encoding": "gzip"}
"""The request header that asks for gzip and no other encoding."""

_CHUNK = 1 << 16
"""Bytes that are expanded and passed on together; a list of single bytes takes 40 times more memory."""

_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32

T = TypeVar("T")


class AnswerLimitError(httpx2.TransportError):
    """An answer is larger than allowed, or comes in an encoding that cannot be bounded."""


@cache
def tls_context() -> ssl.SSLContext:
    """Load the certificates that this process trusts, once, as loading takes longer than a short request."""
    return httpx2.create_ssl_context()


def bounded_client(max_bytes: int = MAX_ANSWER, **options: Any) -> httpx2.AsyncClient:
    """Create an asynchronous client that limits the size of answers; limit time with `asyncio.timeout`.

    Args:
        max_bytes: Maximum bytes of an answer, both as sent and expanded.
        options: Arguments of `httpx2.AsyncClient`.
    """

    async def bound(response: httpx2.Response) -> None:
        encodings = response.headers.get_list("content-encoding", split_commas=True)
        names = [name.strip().lower() for name in encodings if name.strip().lower() not in ("", "identity")]
        stream = response.stream
        if not isinstance(stream, httpx2.AsyncByteStream):
            raise TypeError(f"an answer's stream is a {type(stream).__name__}, which is not asynchronous")
        if names not in ([], ["gzip"], ["x-gzip"], ["deflate"]):
            raise AnswerLimitError(f"the answer is encoded as {', '.join(names)[:80]!r}; only gzip is read")
        # The library would expand a whole read at once.
        for header in ("content-encoding", "content-length"):
            response.headers.pop(header, None)
        response.stream = _BoundedStream(stream, max_bytes, is_compressed=bool(names))

    headers = {**ENCODINGS, **options.pop("headers", {})}
    return httpx2.AsyncClient(headers=headers, event_hooks={"response": [bound]}, **options)


def answered_within(seconds: float, ask: Callable[[], Awaitable[T]]) -> T:
    """Run one request to completion from synchronous code.

    Args:
        seconds: Time for the whole request.
        ask: Starts the request with a client of its own, since a client belongs to one event loop.

    Raises:
        TimeoutError: the request took longer.
    """

    async def bounded() -> T:
        async with asyncio.timeout(seconds):
            return await ask()

    # A separate thread, because the caller's thread may already run an event loop.
    with ThreadPoolExecutor(1, thread_name_prefix="trace2evolve-http") as thread:
        return thread.submit(lambda: asyncio.run(bounded())).result()


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int, *, is_compressed: bool) -> None:
        self._stream, self._max_bytes = stream, max_bytes
        self._expander = zlib.decompressobj(_GZIP_OR_ZLIB) if is_compressed else None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = expanded = 0
        waiting = bytearray()
        async for part in self._stream:
            received += len(part)
            if received > self._max_bytes:
                raise self._too_large("")
            while part:
                part, piece = self._expand(part)
                expanded += len(piece)
                if expanded > self._max_bytes:
                    raise self._too_large(" once it is expanded")
                waiting += piece
                if len(waiting) >= _CHUNK:
                    yield bytes(waiting)
                    waiting.clear()
        if self._expander is not None and received and not self._expander.eof:
            raise httpx2.DecodingError("the answer is gzip and ends in the middle")
        if waiting:
            yield bytes(waiting)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _expand(self, part: bytes) -> tuple[bytes, bytes]:
        """Expand a part's beginning to at most `_CHUNK` bytes; returns the part's rest and these bytes."""
        if self._expander is None:
            return b"", part
        if self._expander.eof:
            return b"", b""  # bytes after the end of gzip are ignored
        try:
            piece = self._expander.decompress(part, _CHUNK)
        except zlib.error as error:
            raise httpx2.DecodingError(f"the answer is not the gzip that it says it is: {error}") from None
        return self._expander.unconsumed_tail, piece

    def _too_large(self, when: str) -> AnswerLimitError:
        limit = f"{self._max_bytes >> 20} MiB" if self._max_bytes >= 1 << 20 else f"{self._max_bytes} bytes"
        return AnswerLimitError(f"the answer is larger than {limit}{when}")
