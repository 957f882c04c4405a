"""Creates HTTP clients that limit the compressed and decompressed size of an answer and the time for it.

Limits of the HTTP library apply to single reads. A server that sends a byte now and then never reaches a read
timeout, and a few megabytes of gzip expand to gigabytes within one read.
"""

import asyncio
import base64
import io
import os
import platform
import ssl
import zlib
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Self, TypeVar
from urllib.request import getproxies, proxy_bypass

import aiohttp
import truststore
import yarl

MAX_ANSWER_BYTES = 16 << 20
"""Maximum bytes of an answer from a chat model or a judge; a million tokens are about four million bytes."""

CONNECT_SECONDS = 10.0
"""Seconds for a connection, including TLS."""

_CHUNK_BYTES = 1 << 16
"""Maximum bytes that are decompressed at once."""

_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32

_MAX_HEADER_BYTES = 1 << 16

_LONG_BYTES = 1 << 20

_LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")

T = TypeVar("T")


class HttpError(Exception):
    """A request has no answer."""


class ConnectError(HttpError):
    """No connection could be opened."""


class AnswerLimitError(HttpError):
    """An answer is larger than allowed, or has an encoding whose decoded size cannot be limited."""


class DecodingError(HttpError):
    """The compressed data of an answer is damaged."""


@dataclass(frozen=True)
class HttpAnswer:
    """An answer.

    Attributes:
        headers: Values by names in any case.
        content: The decompressed body.
    """

    status: int
    headers: Mapping[str, str]
    content: bytes


@cache
def tls_context() -> ssl.SSLContext:
    """Load the trusted certificates only once, because loading takes longer than a short request."""
    has_own = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
    if platform.system() in ("Windows", "Darwin") and not has_own:
        # OpenSSL does not read the system's store there.
        return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return ssl.create_default_context()


class HttpClient:
    """A client with a pool of connections that limits the size of answers; limit time with `asyncio.timeout`.

    It follows no redirects, keeps no cookies, and uses the proxy of the environment, except for this machine.

    Args:
        max_bytes: Maximum bytes of an answer, both as sent and expanded.
        max_connections: Maximum open connections; 0 means no limit.
    """

    def __init__(self, max_bytes: int = MAX_ANSWER_BYTES, max_connections: int = 100) -> None:
        self._max_bytes, self._max_connections = max_bytes, max_connections
        self._session: aiohttp.ClientSession | None = None
        self._targets: dict[str, _Target] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def request(
        self, method: str, url: str, *, content: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        """Send one request.

        Raises:
            ConnectError: no connection could be opened.
            AnswerLimitError: the answer is too large, or its encoding is not gzip.
            HttpError: the URL is invalid, or the connection or the answer broke.
        """
        if self._session is None:
            self._session = self._open()
        try:
            if (target := self._targets.get(url)) is None:
                target = self._targets[url] = _Target.of(url)
            async with self._session.request(
                method,
                target.url,
                # The library warns of long bytes, because it sends them in one piece.
                data=io.BytesIO(content) if content and len(content) > _LONG_BYTES else content,
                headers={**(headers or {}), **target.headers},
                proxy=target.proxy,
                allow_redirects=False,
            ) as response:
                return HttpAnswer(response.status, response.headers, await self._read(response))
        except (aiohttp.ClientConnectionError, aiohttp.InvalidURL, OSError) as error:
            is_connecting = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
            text = str(error) or type(error).__name__
            raise (ConnectError if is_connecting else HttpError)(text) from None
        except (aiohttp.ClientError, ValueError) as error:
            raise HttpError(f"{type(error).__name__}: {error}") from None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._max_connections, ssl=tls_context()),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"accept-encoding": "gzip"},
            auto_decompress=False,  # the library would expand a whole read at once
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
        )

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        names = ",".join(response.headers.getall("content-encoding", [])).lower().split(",")
        encodings = [name.strip() for name in names if name.strip() not in ("", "identity")]
        if encodings not in ([], ["gzip"], ["x-gzip"], ["deflate"]):
            raise AnswerLimitError(
                f"the answer is encoded as {', '.join(encodings)[:80]!r}; expected gzip or no encoding"
            )
        body = _Body(self._max_bytes, is_compressed=bool(encodings))
        async for part in response.content.iter_any():
            body.add(part)
        return body.finish()


@dataclass(frozen=True)
class _Target:
    """A URL without its credentials, the header that carries them, and the proxy of the environment.

    The library's own search for proxies also adds credentials of ~/.netrc to requests.
    """

    url: yarl.URL
    headers: Mapping[str, str]
    proxy: str | None

    @classmethod
    def of(cls, text: str) -> Self:
        url = yarl.URL(text)
        host, proxies = url.host or "", getproxies()
        proxy = proxies.get(url.scheme) or proxies.get("all") or ""
        is_direct = host in _LOCAL_HOSTS or not proxy or proxy_bypass(host)
        proxy = proxy if "://" in proxy else f"http://{proxy}"
        headers = {}
        if url.user or url.password:
            token = base64.b64encode(f"{url.user or ''}:{url.password or ''}".encode())
            headers["authorization"] = f"Basic {token.decode()}"
        return cls(url.with_user(None), headers, None if is_direct else proxy)


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


class _Body:
    """The bytes of an answer as they arrive, expanded."""

    def __init__(self, max_bytes: int, *, is_compressed: bool) -> None:
        self._max_bytes = max_bytes
        self._decompressor = zlib.decompressobj(_GZIP_OR_ZLIB) if is_compressed else None
        self._received_bytes = 0
        self._buffer = bytearray()

    def add(self, part: bytes) -> None:
        self._received_bytes += len(part)
        if self._received_bytes > self._max_bytes:
            raise self._too_large_error("")
        while part:
            part, piece = self._decompress(part)
            self._buffer += piece
            if len(self._buffer) > self._max_bytes:
                raise self._too_large_error(" after decompression")

    def finish(self) -> bytes:
        if self._decompressor is not None and self._received_bytes and not self._decompressor.eof:
            raise DecodingError("the answer is cut off in the middle of its gzip data")
        return bytes(self._buffer)

    def _decompress(self, part: bytes) -> tuple[bytes, bytes]:
        """Decompress at most `_CHUNK_BYTES` of a part, and return the rest of the part and the new bytes."""
        if self._decompressor is None:
            return b"", part
        if self._decompressor.eof:
            return b"", b""  # bytes after the end of gzip are ignored
        try:
            piece = self._decompressor.decompress(part, _CHUNK_BYTES)
        except zlib.error as error:
            raise DecodingError(f"the answer is marked as gzip but is not valid gzip: {error}") from None
        return self._decompressor.unconsumed_tail, piece

    def _too_large_error(self, suffix: str) -> AnswerLimitError:
        limit = f"{self._max_bytes >> 20} MiB" if self._max_bytes >= 1 << 20 else f"{self._max_bytes} bytes"
        return AnswerLimitError(f"the answer is larger than {limit}{suffix}")
