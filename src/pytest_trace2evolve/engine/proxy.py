"""A recording proxy for agents that call their models themselves.

The proxy listens on loopback and forwards requests to the endpoint of an OpenAI-compatible API. Each child
process has a base URL of its own, so every request belongs to one simulation. An
answer is counted and written to the journal of its simulation before the agent gets it. A simulation that
begins again after a kill or a loss gets the answers of its journal.
"""

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import h11

from pytest_trace2evolve.engine.proxied_answers import (
    STREAM_TYPE,
    answer_fault,
    is_complete,
    is_full,
    parse_object,
    usage_of_answer,
    without_usage_event,
)
from pytest_trace2evolve.errors import (
    BudgetError,
    ContextWindowError,
    EndpointError,
    InfrastructureError,
    StorageError,
    Trace2EvolveError,
)
from pytest_trace2evolve.models.api_errors import ApiError, Outcome, read_error
from pytest_trace2evolve.models.prices import PRICES_NAME, Price
from pytest_trace2evolve.models.settings import DEFAULT_ENDPOINT, ModelSettings, without_credentials
from pytest_trace2evolve.records.completion import (
    NO_USAGE,
    Answer,
    HttpAnswer,
    JournalEntry,
    Usage,
)
from pytest_trace2evolve.records.protocols import AnswerStore, Journal, Meter
from pytest_trace2evolve.utils.canonical import digest, digest_text, storable_text
from pytest_trace2evolve.utils.http import AnswerLimitError, ConnectError, HttpClient, HttpError
from pytest_trace2evolve.utils.http_server import JSON_TYPE, Connection, RequestLimitError
from pytest_trace2evolve.utils.secrets import Secrets

PLACEHOLDER_KEY = "key-of-the-proxy"
"""The API key in a child's environment. The proxy replaces it, so the agent never sees the real key."""

MAX_REQUEST_BYTES = 64 << 20
"""The largest number of bytes of a request, which may contain images as text."""

MAX_CONNECT_ATTEMPTS = 3
"""Failed connections after which an endpoint that never answered counts as unreachable."""

MAX_MODEL_NAME = 200
"""The largest number of characters of a model's name that are recorded."""

_REJECTED = 403
"""The status of a request that is not forwarded; clients do not retry it."""

_INVALID = 400
"""The status of a request that is not JSON; clients do not retry it."""

_CHATS = _CHAT, _RESPONSES = "/chat/completions", "/responses"

_PAYLOADS = {_CHAT: "choices", "/completions": "choices", _RESPONSES: "output", "/embeddings": "data"}
"""The list that an answer must contain, by the path of the API."""

_OWN_HEADERS = frozenset(
    """
    accept-encoding api-key authorization connection content-length cookie expect host keep-alive
    proxy-authorization proxy-connection te trailer transfer-encoding upgrade x-api-key
    """.split()  # noqa: SIM905 - a list of this length is unreadable
)
"""Headers of the agent's client that are not passed on: they belong to the connection, or hold a key."""

_PASSED_HEADERS = frozenset({"retry-after", "retry-after-ms", "x-request-id"})
"""Headers of an answer that are passed on."""


@dataclass
class Exchange:
    """The requests of one simulation.

    Attributes:
        trial: The trial, which is part of the keys of stored answers.
        journal: Stores every answer before it is used; None if the simulation has no journal.
        before_use: Called before an answer is used.
        place: The part of the cache whose answers may be used; empty for the common part.
        usage: The usage since the last `take_usage`, including the usage of stored answers.
        seconds: The time that the answers took since the last `take_usage`.
        models: The models that requests with an answer named, since the last `take_models`.
        is_fresh: Whether a request was forwarded since the last `take_usage`.
        has_stored: Whether a stored answer was given since the last `take_usage`.
        failure: The error that ends the simulation or the run; None while there is none.
        pending: The number of requests without an answer.
        repeats: The numbers of equal requests that are answered or pending, by key.
        tasks: The tasks that answer the pending requests.
    """

    trial: int
    journal: Journal | None
    before_use: Callable[[], Awaitable[None]]
    place: str = ""
    usage: Usage = NO_USAGE
    seconds: float = 0.0
    models: set[str] = field(default_factory=set)
    is_fresh: bool = False
    has_stored: bool = False
    failure: Trace2EvolveError | None = None
    pending: int = 0
    failed: asyncio.Event = field(default_factory=asyncio.Event)
    repeats: dict[str, set[int]] = field(default_factory=dict)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _faults: dict[str, tuple[float, InfrastructureError | ContextWindowError]] = field(default_factory=dict)

    def take_usage(self) -> tuple[Usage, float | None, bool]:
        """Return usage and seconds since the last `take_usage`, and whether all answers were stored ones.

        The seconds are None if only some answers were stored ones.
        """
        usage, is_cached = self.usage, not self.is_fresh and self.usage.calls > 0
        seconds = None if self.is_fresh and self.has_stored else self.seconds
        self.usage, self.seconds, self.is_fresh, self.has_stored = NO_USAGE, 0.0, False, False
        return usage, seconds, is_cached

    def take_models(self) -> list[str]:
        """Return the models that were called since the last `take_models`, in alphabetical order."""
        models, self.models = sorted(self.models), set()
        return models

    def note_usage(self, usage: Usage, model: str) -> None:
        """Count the usage of an answer, and note the model that the request named, if it named one."""
        self.usage += usage
        if usage.calls and model:
            self.models.add(model[:MAX_MODEL_NAME])

    def fail(self, error: Trace2EvolveError) -> None:
        """End the simulation with an error."""
        self.failure = self.failure or error
        self.failed.set()

    @property
    def outage(self) -> str:
        """The failure of a request that has had no answer since; empty if there is none."""
        errors = (error for _, error in self._faults.values())
        return next((str(error) for error in errors if isinstance(error, InfrastructureError)), "")

    def raise_if_unanswered(self, *, has_failed: bool = False) -> None:
        """Raise if a request has had no answer, even if the agent continued.

        A conversation that does not fit the model ends only an agent that has failed since.

        Raises:
            InfrastructureError: the endpoint failed to answer.
            ContextWindowError: the agent has failed, because its conversation does not fit the model.
        """
        if self.outage:
            raise InfrastructureError(f"the agent's model did not answer; {self.outage}")
        if has_failed and self._faults:
            raise next(error for _, error in self._faults.values())

    def note_fault(self, key: str, error: InfrastructureError | ContextWindowError) -> None:
        """Note that a request has no answer, because the endpoint failed or the request does not fit."""
        self._faults[key] = (time.monotonic(), error)

    def note_answer(self, key: str, start_time: float) -> None:
        """Forget the failures of an answered request, and all failures from before it was sent."""
        self._faults = {
            name: (failed_at, error)
            for name, (failed_at, error) in self._faults.items()
            if name != key and failed_at > start_time
        }


class RecordingProxy:
    """Serves the child processes of one run.

    Args:
        settings: The endpoint, its key and the timeout of one request.
        prices: Prices of models by name.
        meter: Counts the usage, and decides when a request may be sent.
        needs_prices: Whether a request to a model without a price ends the run.
        cache: Answers of earlier runs, which replace requests; None if the cache is not used.
        record: The store of all answers of this run; None if nothing is recorded.
        played: The answers of a cassette, by key; None to ask the endpoint.
    """

    def __init__(
        self,
        settings: ModelSettings,
        prices: Mapping[str, Price],
        meter: Meter,
        *,
        needs_prices: bool = False,
        cache: AnswerStore | None = None,
        record: AnswerStore | None = None,
        played: Mapping[str, Answer] | None = None,
    ) -> None:
        self._settings = settings
        self._prices = prices
        self._meter = meter
        self._needs_prices = needs_prices
        self._cache = cache
        self._record = record
        self._played = played
        self._endpoint = (settings.endpoint() or DEFAULT_ENDPOINT).rstrip("/")
        self._public_url = without_credentials(self._endpoint)
        self._key = settings.token or os.environ.get(settings.api_key_env, "")
        self._secrets = Secrets.of_endpoint(self._endpoint, self._key)
        self._restore_logs: Callable[[], None] = lambda: None
        self._exchanges: dict[str, Exchange] = {}
        self._strays: set[str] = set()
        self._client = HttpClient(max_connections=0)
        self._server: asyncio.Server | None = None
        self._opening = asyncio.Lock()
        self._is_reached = False
        self._answered_models: set[str] = set()
        self._n_failed_connections = 0

    @property
    def api_key_env(self) -> str:
        """The environment variable that holds the key of the endpoint."""
        return self._settings.api_key_env

    async def open(self) -> None:
        """Listen on a free port of loopback, if the proxy does not listen yet."""
        async with self._opening:
            if self._server is None:
                self._restore_logs = self._secrets.filter_logs()
                try:
                    self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=1024)
                except OSError as error:
                    raise InfrastructureError(f"the proxy for models cannot listen: {error}") from None

    def new_token(self) -> str:
        """A secret that identifies a child process in its base URL."""
        return secrets.token_urlsafe(16)

    def base_url(self, token: str) -> str:
        """The base URL for the client of a child process."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/{token}/v1"

    def attach(self, token: str, exchange: Exchange) -> None:
        """Assign the requests of a child process to a simulation."""
        self._exchanges[token] = exchange

    def detach(self, token: str) -> None:
        """Reject the pending and all further requests of a child process."""
        if (exchange := self._exchanges.pop(token, None)) is not None:
            for task in list(exchange.tasks):
                task.cancel()

    def has_strayed(self, token: str) -> bool:
        """Whether a child process sent a request while it worked on no simulation."""
        return token in self._strays

    async def close(self) -> None:
        """Stop listening, and close the connections to the endpoint."""
        if self._server is not None:
            self._server.close()
        await self._client.close()
        self._restore_logs()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        try:
            while request := await connection.read(MAX_REQUEST_BYTES):
                await self._serve(connection, *request)
                if not connection.prepare_for_reuse():
                    return
        except RequestLimitError as error:
            with contextlib.suppress(ConnectionError, h11.ProtocolError):
                await connection.send(413, _error(str(error)))
        except (ConnectionError, h11.ProtocolError, asyncio.CancelledError):  # the last when the run ends
            return
        finally:
            writer.close()

    async def _serve(self, connection: Connection, head: h11.Request, body: bytes) -> None:
        token, _, path = head.target.decode("ascii", "replace").lstrip("/").partition("/v1")
        exchange = self._exchanges.get(token)
        if exchange is None:
            self._strays.add(token)
            await connection.send(_REJECTED, _error("no simulation runs in this process"))
            return
        # Answers are stored even if the client no longer waits, as long as the simulation runs.
        answer_task = asyncio.create_task(self._answer(exchange, head, path, body))
        exchange.tasks.add(answer_task)
        exchange.pending += 1
        try:
            answer = await answer_task
        except asyncio.CancelledError:
            if not answer_task.cancelled():
                raise
            answer = _rejection("the simulation has ended")
        finally:
            exchange.pending -= 1
            exchange.tasks.discard(answer_task)
        await connection.send(answer.status, answer.content, answer.headers, answer.content_type)

    async def _answer(self, exchange: Exchange, head: h11.Request, path: str, body: bytes) -> "_Response":
        method = head.method.decode("ascii")
        request = parse_object(body)
        try:
            base_key = digest(
                [exchange.trial, method, path, digest_text(body.hex()) if request is None else request]
            )
        except ValueError:  # Python's JSON has these numbers, and reads 1e999 as Infinity
            message = "the request contains NaN or Infinity, which JSON does not have; send finite numbers"
            return _Response(_INVALID, JSON_TYPE, json.dumps(_error(message)).encode())
        # An agent may repeat a request on purpose, to get several answers. Equal requests are numbered in the
        # order of their arrival. The retry of a failed request gets the number of that request.
        numbers = exchange.repeats.setdefault(base_key, set())
        number = next(number for number in itertools.count() if number not in numbers)
        numbers.add(number)
        key = digest([base_key, number]) if number else base_key
        start_time = time.monotonic()
        fault: ApiError | None = None
        own_text = ""
        try:
            reply = await self._find_or_forward(exchange, key, _Request(method, path, head, body, request))
        except (BudgetError, EndpointError, StorageError) as error:
            exchange.fail(error)
            return _rejection(str(error))
        except Trace2EvolveError as error:
            # A retry cannot change the content of a cassette.
            status = 503 if self._played is None else _REJECTED
            reply = _Response(status, JSON_TYPE, json.dumps(_error(str(error))).encode())
            fault, own_text = ApiError(status, str(error), Outcome.RETRY), str(error)
        if fault is None and reply.status >= 400:
            fault = read_error(reply.status, reply.content)
        if fault is None:
            exchange.note_answer(base_key, start_time)
            return reply
        numbers.remove(number)
        text = own_text or self._secrets.remove_from(f"{fault.status}: {fault.text}".rstrip(": "))
        if fault.outcome is Outcome.RETRY or (fault.outcome is Outcome.MISSING and path.startswith(_CHATS)):
            exchange.note_fault(base_key, InfrastructureError(text))
            # Clients do not retry every status by themselves.
            should_retry = () if self._played is not None else (("x-should-retry", "true"),)
            return replace(reply, headers=(*reply.headers, *should_retry))
        if fault.outcome in (Outcome.OVERFLOW, Outcome.TOO_LARGE):
            text = f"the agent's conversation does not fit its model: {text}"
            exchange.note_fault(base_key, ContextWindowError(text))
        return reply

    async def _find_or_forward(self, exchange: Exchange, key: str, request: "_Request") -> "_Response":
        """The stored answer to a request, or else the endpoint's.

        Raises:
            BudgetError, EndpointError, StorageError: the run must not send further requests.
            InfrastructureError: the endpoint did not answer, or a store could not be read.
        """
        start_time = time.monotonic()
        name = f"agent {key}"
        entry = exchange.journal.take(name) if exchange.journal is not None else None
        answer = entry.answer if entry is not None else None
        is_journaled = answer is not None
        # The address of a local server changes with each run, and may be that of another model later.
        cache_key = digest([key, self._settings.weights or self._public_url, exchange.place])
        if answer is None:
            answer = await self._find_stored(key, cache_key)
        exchange.has_stored |= answer is not None
        if answer is None:
            reply = await self._forward(request)
            if reply.status >= 400:
                self._raise_if_fatal(reply, request)
                return reply
            usage = self._count_usage(reply, request)
            exchange.is_fresh = True
            try:
                text = reply.content.decode("utf-8")
            except UnicodeDecodeError:  # sound or an image, which cannot be stored as text
                await exchange.before_use()
                exchange.note_usage(usage, request.model)
                return reply
            http = HttpAnswer(
                content_type=reply.content_type,
                body=text,
                usage=usage,
                seconds=time.monotonic() - start_time,
            )
            answer = Answer(trial=exchange.trial, side="agent", model=request.model, http=http)
            if self._cache is not None and is_complete(reply.content_type, reply.content):
                answer = await self._cache.put(cache_key, answer)
        if self._record is not None and not is_journaled:
            answer = await self._record.put(key, answer)
        if answer.http is None:
            raise EndpointError("a stored answer of the agent is not an HTTP answer; delete the cache")
        if exchange.journal is not None and not is_journaled:
            exchange.journal.add(JournalEntry(name, answer))
        await exchange.before_use()
        exchange.note_usage(answer.http.usage, request.model)
        exchange.seconds += answer.http.seconds
        return _Response(200, answer.http.content_type, answer.http.body.encode())

    async def _find_stored(self, key: str, cache_key: str) -> Answer | None:
        if self._played is not None:
            answer = self._played.get(key)
            if answer is None:
                raise InfrastructureError(
                    "the cassette has no answer to a request of the agent; record it again with --t2e-record"
                )
            return answer
        for store, place in ((self._record, key), (self._cache, cache_key)):
            if store is not None and (answer := await store.get(place)) is not None:
                return answer
        return None

    async def _forward(self, request: "_Request") -> "_Response":
        """Send a request to the endpoint.

        Raises:
            BudgetError, EndpointError, StorageError: no further requests may be sent.
            InfrastructureError: the endpoint did not answer.
        """
        if self._needs_prices and request.is_paid and request.model not in self._prices:
            raise EndpointError(
                f"--t2e-max-cost needs the price of model {request.model or 'that a request leaves out'!r}, "
                f"which the agent called: add it to {PRICES_NAME}"
            )
        await self._meter.admit()
        body, asks_usage = request.body, True
        if request.json_body is not None and request.is_stream and request.path.startswith(_CHAT):
            options = request.json_body.get("stream_options")
            options = options if isinstance(options, dict) else {}
            asks_usage = bool(options.get("include_usage"))
            new_body = {**request.json_body, "stream_options": {**options, "include_usage": True}}
            body = json.dumps(new_body).encode()
        try:
            async with asyncio.timeout(self._settings.timeout):
                response = await self._client.request(
                    request.method,
                    f"{self._endpoint}{request.path}",
                    content=body,
                    headers=request.headers | self._authorization(),
                )
        except AnswerLimitError as error:
            raise InfrastructureError(f"{self._public_url}: {error}") from None
        except TimeoutError:
            raise InfrastructureError(
                f"{self._public_url} gave no answer within {self._settings.timeout:g} seconds "
                "(t2e_call_timeout)"
            ) from None
        except HttpError as error:
            raise self._connection_error(error) from None
        self._is_reached = True
        kind = response.headers.get("content-type", JSON_TYPE)
        content = self._remove_secrets(response.content)
        if response.status < 400:
            if is_full(content):
                self._count_usage(_Response(200, kind, content), request)
                return _overflow("the conversation fills the model's context window")
            needs_json, is_stream = request.path.startswith(_CHATS), request.is_stream
            if fault := answer_fault(
                request.payload_name, kind, content, is_stream=is_stream, needs_json=needs_json
            ):
                status, read_fault = response.status, read_error(response.status, content)
                if read_fault.outcome is Outcome.OVERFLOW:
                    return _overflow(read_fault.text)
                raise InfrastructureError(
                    f"{self._public_url} answered {status} with something that is no answer: {fault}"
                )
        if not asks_usage and kind.startswith(STREAM_TYPE):
            usage = usage_of_answer(kind, content)
            return _Response(response.status, kind, without_usage_event(content), usage=usage)
        headers = tuple(
            (name, value) for name in _PASSED_HEADERS if (value := response.headers.get(name)) is not None
        )
        return _Response(response.status, kind, content, headers)

    def _connection_error(self, error: Exception) -> Trace2EvolveError:
        text = self._secrets.remove_from(f"{type(error).__name__}: {error}".rstrip(": "))
        if not self._is_reached and isinstance(error, ConnectError):
            self._n_failed_connections += 1
            if self._n_failed_connections >= MAX_CONNECT_ATTEMPTS:
                return EndpointError(
                    f"cannot reach {self._public_url} for a model of the agent: {text}; start the server, or "
                    "check --t2e-base-url and OPENAI_BASE_URL"
                )
        return InfrastructureError(f"{self._public_url}: {text}")

    def _remove_secrets(self, content: bytes) -> bytes:
        """An answer without the key of the endpoint, if the endpoint repeats it."""
        if not self._key or self._key.encode() not in content:
            return content
        with contextlib.suppress(UnicodeDecodeError):
            return str(self._secrets.remove_from_answer(content.decode("utf-8"))).encode()
        return content

    def _authorization(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._key}"} if self._key else {}

    def _raise_if_fatal(self, reply: "_Response", request: "_Request") -> None:
        fault = read_error(reply.status, reply.content)
        is_first = request.model not in self._answered_models
        is_unknown = fault.outcome is Outcome.MISSING and request.path.startswith(_CHATS)
        if fault.outcome is not Outcome.FATAL and not (
            is_first and (is_unknown or fault.outcome is Outcome.FORBIDDEN)
        ):
            return
        text = self._secrets.remove_from(str(fault))
        remedy = "the model's name and --t2e-base-url" if fault.status == 404 else self._settings.api_key_env
        raise EndpointError(
            f"{self._public_url} rejects model {request.model!r}, which the agent called: {text}; "
            f"check {remedy}"
        )

    def _count_usage(self, reply: "_Response", request: "_Request") -> Usage:
        if not request.is_paid:
            return NO_USAGE
        self._answered_models.add(request.model)
        usage = reply.usage or usage_of_answer(reply.content_type, reply.content)
        price = self._prices.get(request.model)
        if price is not None and usage.cost is None:
            usage = usage.model_copy(update={"cost": price.cost(usage)})
        self._meter.spend(usage)
        return usage


@dataclass(frozen=True)
class _Request:
    """A request of an agent. `json_body` is the body as a JSON object; None if it is not an object."""

    method: str
    path: str
    head: h11.Request
    body: bytes
    json_body: dict[str, Any] | None

    @property
    def model(self) -> str:
        """The name of the model; empty if the request names none."""
        model = (self.json_body or {}).get("model", "")
        return storable_text(model) if isinstance(model, str) else ""

    @property
    def is_paid(self) -> bool:
        """Whether the request counts as a call of a model, as every POST request does."""
        return self.method == "POST"

    @property
    def is_stream(self) -> bool:
        """Whether the request asks for a stream."""
        return bool((self.json_body or {}).get("stream"))

    @property
    def payload_name(self) -> str:
        """The name of the list that must not be empty in an answer; empty if the API is unknown."""
        path = self.path.partition("?")[0].rstrip("/")
        return _PAYLOADS.get(path, "") if self.method == "POST" else ""

    @property
    def headers(self) -> dict[str, str]:
        """The headers to pass on."""
        raw_headers: list[tuple[bytes, bytes]] = list(self.head.headers)
        decoded = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw_headers}
        return {name: value for name, value in decoded.items() if name not in _OWN_HEADERS}


@dataclass(frozen=True)
class _Response:
    """An answer of the endpoint or of the proxy; `usage` is set if the event with the usage was removed."""

    status: int
    content_type: str
    content: bytes
    headers: tuple[tuple[str, str], ...] = ()
    usage: Usage | None = None


def _rejection(message: str) -> _Response:
    return _Response(_REJECTED, JSON_TYPE, json.dumps(_error(message)).encode())


def _overflow(message: str) -> _Response:
    return _Response(_INVALID, JSON_TYPE, json.dumps(_error(message, "context_length_exceeded")).encode())


def _error(message: str, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "trace2evolve", "param": None, "code": code}}
