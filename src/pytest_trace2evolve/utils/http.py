"""Creates HTTP clients that limit the compressed and decompressed size of an answer and the time for it.

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

MAX_ANSWER_BYTES = 16 << 20
"""Maximum bytes of an answer from a chat model or a judge; a million tokens are about four million bytes."""

ACCEPT_ENCODING = {"accept-encoding": "gzip"}
"""The request header that asks for gzip and no other encoding."""

_CHUNK_BYTES = 1 << 16
"""Maximum bytes that are decompressed and passed on together; single bytes take 40 times more memory."""

_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32

T = TypeVar("T")


class AnswerLimitError(httpx2.TransportError):
    """An answer is larger than allowed, or has an encoding whose decoded size cannot be limited."""


@cache
def tls_context() -> ssl.SSLContext:
    """Load the trusted certificates only once, because loading takes longer than a short request."""
    return httpx2.create_ssl_context()


def bounded_client(max_bytes: int = MAX_ANSWER_BYTES, **options: Any) -> httpx2.AsyncClient:
    """Create an asynchronous client that limits the size of answers; limit time with `asyncio.timeout`.

    Args:
        max_bytes: Maximum bytes of an answer, both as sent and expanded.
        options: Arguments of `httpx2.AsyncClient`.
    """

    async def limit_response(response: httpx2.Response) -> None:
        header_values = response.headers.get_list("content-encoding", split_commas=True)
        encodings = [
            name.strip().lower() for name in header_values if name.strip().lower() not in ("", "identity")
        ]
        stream = response.stream
        if not isinstance(stream, httpx2.AsyncByteStream):
            raise TypeError(f"an answer's stream is a {type(stream).__name__}, which is not asynchronous")
        if encodings not in ([], ["gzip"], ["x-gzip"], ["deflate"]):
            raise AnswerLimitError(
                f"the answer is encoded as {', '.join(encodings)[:80]!r}; expected gzip or no encoding"
            )
        # The library would expand a whole read at once.
        for header in ("content-encoding", "content-length"):
            response.headers.pop(header, None)
        response.stream = _BoundedStream(stream, max_bytes, is_compressed=bool(encodings))

    headers = {**ACCEPT_ENCODING, **options.pop("headers", {})}
    return httpx2.AsyncClient(headers=headers, event_hooks={"response": [limit_response]}, **options)


def run_with_timeout(seconds: float, send_request: Callable[[], Awaitable[T]]) -> T:
    """Run one request to completion from synchronous code.

    Args:
        seconds: Time for the whole request.
        send_request: Starts the request with a client of its own, since a client belongs to one event loop.

    Raises:
        TimeoutError: the request took longer.
    """

    async def send_within_limit() -> T:
        async with asyncio.timeout(seconds):
            return await send_request()

    # A separate thread, because the caller's thread may already run an event loop.
    with ThreadPoolExecutor(1, thread_name_prefix="trace2evolve-http") as thread:
        return thread.submit(lambda: asyncio.run(send_within_limit())).result()


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int, *, is_compressed: bool) -> None:
        self._stream, self._max_bytes = stream, max_bytes
        self._decompressor = zlib.decompressobj(_GZIP_OR_ZLIB) if is_compressed else None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received_bytes = expanded_bytes = 0
        buffer = bytearray()
        async for part in self._stream:
            received_bytes += len(part)
            if received_bytes > self._max_bytes:
                raise self._too_large_error("")
            while part:
                part, piece = self._decompress(part)
                expanded_bytes += len(piece)
                if expanded_bytes > self._max_bytes:
                    raise self._too_large_error(" after decompression")
                buffer += piece
                if len(buffer) >= _CHUNK_BYTES:
                    yield bytes(buffer)
                    buffer.clear()
        if self._decompressor is not None and received_bytes and not self._decompressor.eof:
            raise httpx2.DecodingError("the answer is cut off in the middle of its gzip data")
        if buffer:
            yield bytes(buffer)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _decompress(self, part: bytes) -> tuple[bytes, bytes]:
        """Decompress at most `_CHUNK_BYTES` of a part, and return the rest of the part and the new bytes."""
        if self._decompressor is None:
            return b"", part
        if self._decompressor.eof:
            return b"", b""  # bytes after the end of gzip are ignored
        try:
            piece = self._decompressor.decompress(part, _CHUNK_BYTES)
        except zlib.error as error:
            raise httpx2.DecodingError(
                f"the answer is marked as gzip but is not valid gzip: {error}"
            ) from None
        return self._decompressor.unconsumed_tail, piece

    def _too_large_error(self, suffix: str) -> AnswerLimitError:
        limit = f"{self._max_bytes >> 20} MiB" if self._max_bytes >= 1 << 20 else f"{self._max_bytes} bytes"
        return AnswerLimitError(f"the answer is larger than {limit}{suffix}")
