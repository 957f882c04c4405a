"""A recording proxy for agents that call their models themselves.

The proxy listens on loopback and forwards requests to the endpoint of an OpenAI-compatible API. Each child
process has a base URL of its own, so every request belongs to one simulation, whatever the agent does. An
answer is counted and written to the journal of its simulation before the agent gets it. A simulation that
begins again after a kill or a loss gets the answers of its journal.
"""

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import h11
import httpx2

from pytest_trace2evolve.errors import EndpointError, Trace2EvolveError
from pytest_trace2evolve.models.prices import Price
from pytest_trace2evolve.models.settings import ModelSettings, without_credentials
from pytest_trace2evolve.records.completion import (
    NO_USAGE,
    Answer,
    HttpAnswer,
    JournalEntry,
    Usage,
    parse_cached_tokens,
    parse_token_count,
)
from pytest_trace2evolve.records.protocols import AnswerStore, Journal, Meter
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.http import bounded_client, tls_context
from pytest_trace2evolve.utils.http_server import Connection

DEFAULT_ENDPOINT = "https://api.openai.com/v1"

PLACEHOLDER_KEY = "key-of-the-proxy"
"""The API key in a child's environment. The proxy replaces it, so the agent never sees the real key."""

_FATAL_STATUSES = frozenset({401, 402, 403})
"""Statuses that every further request would get."""

_CONFLICT = 409
"""The status of a request that is not forwarded, because the run was stopped."""

_STREAM = "text/event-stream"


@dataclass
class Exchange:
    """The requests of one simulation.

    Attributes:
        trial: The trial, which is part of the keys of stored answers.
        journal: Stores every answer before it is used; None if the simulation has no journal.
        before_use: Called before an answer is used.
        place: The part of the cache whose answers may be used; empty for the common part.
        usage: The usage since it was last taken, with that of stored answers.
        is_fresh: Whether a request was forwarded since the usage was last taken.
        failure: The error that ends the simulation or the run; None while there is none.
        pending: The number of requests without an answer.
    """

    trial: int
    journal: Journal | None
    before_use: Callable[[], Awaitable[None]]
    place: str = ""
    usage: Usage = NO_USAGE
    is_fresh: bool = False
    failure: Trace2EvolveError | None = None
    pending: int = 0
    failed: asyncio.Event = field(default_factory=asyncio.Event)

    def take_usage(self) -> tuple[Usage, bool]:
        """Return the usage since the last call, and whether all of it is of stored answers."""
        usage, is_cached = self.usage, not self.is_fresh and self.usage.calls > 0
        self.usage, self.is_fresh = NO_USAGE, False
        return usage, is_cached

    def fail(self, error: Trace2EvolveError) -> None:
        """End the simulation with an error."""
        self.failure = self.failure or error
        self.failed.set()


class RecordingProxy:
    """Serves the child processes of one run.

    Args:
        settings: The endpoint, its key and the timeout of one request.
        prices: Prices of models by name.
        meter: Counts the usage, and decides when a request may be sent.
        cache: AnswerStore of earlier runs, which replace requests; None if the cache is not used.
        record: All answers of this run; None if nothing is recorded.
        played: The answers of a cassette, by key; None to ask the endpoint.
    """

    def __init__(
        self,
        settings: ModelSettings,
        prices: Mapping[str, Price],
        meter: Meter,
        *,
        cache: AnswerStore | None = None,
        record: AnswerStore | None = None,
        played: Mapping[str, Answer] | None = None,
    ) -> None:
        self._settings = settings
        self._prices = prices
        self._meter = meter
        self._cache = cache
        self._record = record
        self._played = played
        self._endpoint = (settings.endpoint() or DEFAULT_ENDPOINT).rstrip("/")
        self._exchanges: dict[str, Exchange] = {}
        self._client: httpx2.AsyncClient | None = None
        self._server: asyncio.Server | None = None
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """Listen on a free port of loopback, if the proxy does not listen yet."""
        async with self._opening:
            if self._server is None:
                timeout = httpx2.Timeout(self._settings.timeout, connect=10.0)
                self._client = bounded_client(timeout=timeout, verify=tls_context())
                self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    def new_token(self) -> str:
        """A secret that identifies a child process in its base URL."""
        return secrets.token_urlsafe(16)

    def base_url(self, token: str) -> str:
        """The base URL for the client of a child process."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/{token}/v1"

    def attach(self, token: str, exchange: Exchange) -> None:
        """Let the requests of a child process belong to a simulation."""
        self._exchanges[token] = exchange

    def detach(self, token: str) -> None:
        """Reject further requests of a child process."""
        self._exchanges.pop(token, None)

    async def close(self) -> None:
        """Stop listening, and close the connections to the endpoint."""
        if self._server is not None:
            self._server.close()
        if self._client is not None:
            await self._client.aclose()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        try:
            while request := await connection.read():
                await self._serve(connection, *request)
                if not connection.prepare_for_reuse():
                    return
        except (ConnectionError, h11.ProtocolError, asyncio.CancelledError):  # the last when the run ends
            return
        finally:
            writer.close()

    async def _serve(self, connection: Connection, head: h11.Request, body: bytes) -> None:
        token, _, path = head.target.decode("ascii", "replace").lstrip("/").partition("/v1")
        exchange = self._exchanges.get(token)
        if exchange is None:
            await connection.send(_CONFLICT, _error("no simulation runs in this process"))
            return
        exchange.pending += 1
        try:
            status, kind, content = await self._answer(exchange, head, path, body)
        except Trace2EvolveError as error:
            exchange.fail(error)
            status, kind, content = _CONFLICT, "application/json", json.dumps(_error(str(error))).encode()
        except (httpx2.HTTPError, TimeoutError) as error:
            text = f"{type(error).__name__}: {error}".rstrip(": ")
            status, kind, content = 503, "application/json", json.dumps(_error(text)).encode()
        finally:
            exchange.pending -= 1
        await connection.send(status, content, content_type=kind)

    async def _answer(
        self, exchange: Exchange, head: h11.Request, path: str, body: bytes
    ) -> tuple[int, str, bytes]:
        """The status, content type and body of the answer to a request."""
        method = head.method.decode("ascii")
        request = _parsed(body)
        key = digest([exchange.trial, method, path, request if request is not None else body.hex()])
        entry = exchange.journal.take(f"agent {key}") if exchange.journal is not None else None
        answer = entry.answer if entry is not None else None
        is_journaled = answer is not None
        cache_key = digest([key, self._endpoint, exchange.place])
        if answer is None:
            answer = await self._stored(key, cache_key)
        if answer is None:
            status, kind, content = await self._forward(method, path, head, body, request)
            if status >= 400:
                self._raise_if_fatal(status, content)
                return status, kind, content
            model = str((request or {}).get("model", ""))
            usage = self._metered(kind, content, model)
            text = content.decode("utf-8", "replace")
            http = HttpAnswer(content_type=kind, body=text, usage=usage)
            answer = Answer(trial=exchange.trial, side="agent", model=model, http=http)
            exchange.is_fresh = True
            if self._cache is not None:
                answer = await self._cache.put(cache_key, answer)
        if self._record is not None and not is_journaled:
            answer = await self._record.put(key, answer)
        if answer.http is None:
            raise EndpointError("a stored answer of the agent is not an HTTP answer; delete the cache")
        if exchange.journal is not None and not is_journaled:
            exchange.journal.add(JournalEntry(f"agent {key}", answer))
        await exchange.before_use()
        exchange.usage += answer.http.usage
        return 200, answer.http.content_type, answer.http.body.encode()

    async def _stored(self, key: str, cache_key: str) -> Answer | None:
        if self._played is not None:
            answer = self._played.get(key)
            if answer is None:
                raise EndpointError(
                    "the cassette holds no answer to a request of the agent; "
                    "record it again with --t2e-record"
                )
            return answer
        for store, place in ((self._record, key), (self._cache, cache_key)):
            if store is not None and (answer := await store.get(place)) is not None:
                return answer
        return None

    async def _forward(
        self, method: str, path: str, head: h11.Request, body: bytes, request: dict[str, Any] | None
    ) -> tuple[int, str, bytes]:
        assert self._client is not None
        await self._meter.admit()
        names = _decoded_headers(head)
        headers = self._authorization()
        headers |= {name: names[name] for name in ("accept", "content-type", "openai-beta") if name in names}
        asks_usage = True
        if request is not None and request.get("stream") and path.startswith("/chat/completions"):
            options = request.get("stream_options") or {}
            asks_usage = bool(options.get("include_usage"))
            body = json.dumps({**request, "stream_options": {**options, "include_usage": True}}).encode()
        response = await self._client.request(
            method, f"{self._endpoint}{path}", content=body, headers=headers
        )
        kind = response.headers.get("content-type", "application/json")
        content = response.content
        if not asks_usage and kind.startswith(_STREAM):
            content = _without_usage_event(content)
        return response.status_code, kind, content

    def _authorization(self) -> dict[str, str]:
        key = self._settings.token or os.environ.get(self._settings.api_key_env, "")
        return {"authorization": f"Bearer {key}"} if key else {}

    def _raise_if_fatal(self, status: int, content: bytes) -> None:
        if status not in _FATAL_STATUSES:
            return
        error = (_parsed(content) or {}).get("error")
        text = error.get("message", "") if isinstance(error, dict) else ""
        raise EndpointError(
            f"{without_credentials(self._endpoint)} refuses a request of the agent: {status} {text}; "
            f"check {self._settings.api_key_env} and --t2e-base-url"
        )

    def _metered(self, kind: str, content: bytes, model: str) -> Usage:
        usage = read_usage(kind, content)
        price = self._prices.get(model)
        if price is not None and usage.cost is None:
            usage = usage.model_copy(update={"cost": price.cost(usage)})
        self._meter.spend(usage)
        return usage


def read_usage(kind: str, content: bytes) -> Usage:
    """Read the usage from an answer of the chat-completions or the responses API, streamed or not.

    An answer without usage counts as one call without tokens.
    """
    record: Any = None
    if kind.startswith(_STREAM):
        for line in content.splitlines():
            event = _parsed(line.removeprefix(b"data:").strip()) if line.startswith(b"data:") else None
            if event is not None and (event.get("usage") or (event.get("response") or {}).get("usage")):
                record = event
    else:
        record = _parsed(content)
    if record is None:
        return Usage()
    usage = record.get("usage") or (record.get("response") or {}).get("usage")
    if not isinstance(usage, dict):
        return Usage()
    return Usage(
        prompt_tokens=parse_token_count(usage.get("prompt_tokens", usage.get("input_tokens"))),
        completion_tokens=parse_token_count(usage.get("completion_tokens", usage.get("output_tokens"))),
        cached_tokens=parse_cached_tokens(usage),
    )


def _without_usage_event(content: bytes) -> bytes:
    """A stream without the event that holds only the usage, which the agent did not ask for."""
    events = content.split(b"\n\n")
    return b"\n\n".join(event for event in events if not _is_usage_event(event))


def _is_usage_event(event: bytes) -> bool:
    record = _parsed(event.removeprefix(b"data:").strip())
    return record is not None and record.get("choices") == [] and bool(record.get("usage"))


def _parsed(content: bytes) -> dict[str, Any] | None:
    """A JSON object; None if the bytes hold anything else."""
    with contextlib.suppress(ValueError, RecursionError):
        record = json.loads(content)
        return record if isinstance(record, dict) else None
    return None


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "trace2evolve", "param": None, "code": None}}


def _decoded_headers(head: h11.Request) -> dict[str, str]:
    raw_headers: list[tuple[bytes, bytes]] = list(head.headers)
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in raw_headers}
