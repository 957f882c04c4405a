"""The server's HTTP API: routes, access checks, responses in the API's format, and limits of connections."""

import asyncio
import hmac
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar
from uuid import uuid4

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from pytest_trace2evolve.agents.probe import Router
from pytest_trace2evolve.serving.chat_format import ChatFormat, Prompt, call_id
from pytest_trace2evolve.serving.engine import BusyError, Engine, EngineError, Generation, Job, PromptError
from pytest_trace2evolve.serving.request import ApiError, ChatRequest
from pytest_trace2evolve.serving.sampling import TokenLogprob

MAX_BODY_BYTES = 32 << 20
"""Maximum bytes of a request's body."""

MAX_TOTAL_BODY_BYTES = 256 << 20
"""Maximum bytes of the bodies of all running requests together."""

MAX_BODY_SECONDS = 120.0
"""Maximum seconds for receiving a request's whole body."""

UNLIMITED_TOKENS = 1 << 20
"""Maximum new tokens if nothing else sets a limit."""

CLIENT_CLOSED_STATUS = 499
"""The status of a response whose client has disconnected."""

_LOOPBACK_HOST_HEADER = re.compile(
    r"(?:127\.0\.0\.1|localhost|\[::1\])(?::[0-9]{1,5})?", re.IGNORECASE | re.ASCII
)
"""The Host headers that are accepted if no token is required."""

Handler = Callable[[Request], Awaitable[Response]]


class ChatApp:
    """The HTTP API of one engine.

    Args:
        engine: Generates answers.
        chat_format: Writes prompts and reads answers.
        name: The base model's name.
        adapters: The adapters' names.
        routers: Routers by name, which return the log-probabilities of labels for the tokens of a text.
        context_length: The model's context length in tokens; None if unknown.
        default_limit: Maximum new tokens if the request sets no limit; None means as many as fit.
        token: The bearer token that requests must send; None requires no token.
    """

    def __init__(
        self,
        engine: Engine,
        chat_format: ChatFormat,
        *,
        name: str,
        adapters: Sequence[str] = (),
        routers: Mapping[str, Router] | None = None,
        context_length: int | None = None,
        default_limit: int | None = None,
        token: str | None = None,
    ) -> None:
        self._engine = engine
        self._chat_format = chat_format
        self._routers = routers or {}
        self._names = (name, *adapters, *self._routers)
        self._context_length = context_length
        self._default_limit = default_limit
        self._token = token
        self._start_time = int(time.time())
        self._body_bytes = 0
        # One thread, because only one thread at a time may use a tokenizer. The event loop stays free.
        self._format_executor = ThreadPoolExecutor(1, thread_name_prefix="trace2evolve-format")
        self.app = Starlette(
            routes=[
                Route("/health", self._with_access_checks(self.health, is_public=True), methods=["GET"]),
                Route("/v1/models", self._with_access_checks(self.models), methods=["GET"]),
                Route("/v1/models/{name:path}", self._with_access_checks(self.model), methods=["GET"]),
                Route("/v1/chat/completions", self._with_access_checks(self.complete), methods=["POST"]),
            ],
            exception_handlers={HTTPException: _handle_http_error},  # type: ignore[dict-item]  # type is narrower
        )

    async def health(self, request: Request) -> Response:
        """Return the server's status and its numbers of running and waiting requests; needs no token."""
        return _json_response(
            {"status": "ok", "running": self._engine.running_count, "waiting": self._engine.waiting_count}
        )

    async def models(self, request: Request) -> Response:
        """Return the list of the base model and its adapters."""
        return _json_response(
            {"object": "list", "data": [self._describe_model(name) for name in self._names]}
        )

    async def model(self, request: Request) -> Response:
        """Return one of the models."""
        return _json_response(self._describe_model(request.path_params["name"]))

    async def complete(self, request: Request) -> Response:
        """Return one chat completion."""
        body = bytearray()
        try:
            await self._read_body(request, body)
            chat = ChatRequest.parse(body)
            self._describe_model(chat.model)
            loop = asyncio.get_running_loop()
            if (route := self._routers.get(chat.model)) is not None:
                answer = loop.run_in_executor(self._format_executor, self._answer_as_router, chat, route)
                return _json_response(await answer)
            prompt = await loop.run_in_executor(self._format_executor, self._make_prompt, chat)
            generation = await _wait_for_generation(
                request, self._engine.submit(self._make_job(chat, prompt))
            )
            if generation is None:
                return Response(status_code=CLIENT_CLOSED_STATUS)
            return _json_response(
                await loop.run_in_executor(
                    self._format_executor, self._render_completion, chat, prompt, generation
                )
            )
        finally:
            self._body_bytes -= len(body)

    async def _read_body(self, request: Request, body: bytearray) -> None:
        """Append a request's body to `body`, and count its bytes towards `MAX_TOTAL_BODY_BYTES`."""
        content_types = [
            header.partition(";")[0].strip().lower() for header in request.headers.getlist("content-type")
        ]
        if content_types != ["application/json"]:
            # A web page can send other types, or none, to a loopback address without a preflight request.
            raise ApiError("the content type must be application/json", status=415)
        try:
            async with asyncio.timeout(MAX_BODY_SECONDS):
                async for part in request.stream():
                    if len(body) + len(part) > MAX_BODY_BYTES:
                        raise ApiError(f"the body is larger than {MAX_BODY_BYTES >> 20} MiB", status=413)
                    if self._body_bytes + len(part) > MAX_TOTAL_BODY_BYTES:
                        limit = MAX_TOTAL_BODY_BYTES >> 20
                        raise _overloaded_error(f"the bodies of all running requests exceed {limit} MiB")
                    body += part
                    self._body_bytes += len(part)
        except TimeoutError:
            raise ApiError(
                f"the body did not arrive within {MAX_BODY_SECONDS:g} seconds", status=408
            ) from None

    def _make_prompt(self, chat: ChatRequest) -> Prompt:
        prompt = self._chat_format.prompt(chat)
        length = len(prompt.tokens)
        if not length:
            raise ApiError("the chat template renders an empty prompt for this conversation", "messages")
        if self._context_length is not None and length >= self._context_length:
            raise ApiError(
                f"this model's context length is {self._context_length} tokens, and the prompt has {length}",
                "messages",
                "context_length_exceeded",
            )
        return prompt

    def _make_job(self, chat: ChatRequest, prompt: Prompt) -> Job:
        free_tokens = None if self._context_length is None else self._context_length - len(prompt.tokens)
        limits = (chat.token_limit or self._default_limit, free_tokens)
        return Job(
            prompt=prompt.tokens,
            adapter=None if chat.model == self._names[0] else chat.model,
            max_tokens=min((limit for limit in limits if limit is not None), default=UNLIMITED_TOKENS),
            temperature=chat.temperature,
            top_p=chat.top_p,
            seed=chat.seed,
            logprobs=chat.reported_logprobs,
            is_stopped=self._chat_format.make_stop_check(chat.stop),
        )

    def _render_completion(self, chat: ChatRequest, prompt: Prompt, generation: Generation) -> dict[str, Any]:
        tokens = generation.tokens
        answer = self._chat_format.parse(prompt, tokens, chat.stop)
        calls = answer.calls if chat.parallel_tool_calls else answer.calls[:1]
        content = answer.content or (None if calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if calls:
            message["tool_calls"] = [
                {
                    "id": call_id(prompt.tokens, tokens, index),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for index, call in enumerate(calls)
            ]
        finish_reason = (
            "tool_calls" if calls and generation.finish_reason == "stop" else generation.finish_reason
        )
        logprobs = list(map(self._render_logprob, generation.logprobs))
        counts = len(prompt.tokens), len(tokens), generation.reused_tokens
        return _render_answer(chat, message, logprobs, finish_reason, counts)

    def _answer_as_router(self, chat: ChatRequest, route: Router) -> dict[str, Any]:
        """Answer with the label of the user's messages, as if it were one token."""
        text = "\n".join(message.content or "" for message in chat.messages if message.role == "user")
        tokens = self._chat_format.encode(text)
        top = [
            {"token": label, "logprob": logprob, "bytes": list(label.encode())}
            for label, logprob in sorted(route(tokens).items(), key=lambda pair: -pair[1])
        ]
        message = {"role": "assistant", "content": top[0]["token"], "refusal": None}
        return _render_answer(chat, message, [{**top[0], "top_logprobs": top}], "stop", (len(tokens), 1, 0))

    def _render_logprob(self, token_logprob: TokenLogprob) -> dict[str, Any]:
        top = [self._render_token(token, logprob) for token, logprob in token_logprob.top]
        return {**self._render_token(token_logprob.token, token_logprob.logprob), "top_logprobs": top}

    def _render_token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._chat_format.token_text(token)
        # A token that is part of a character has no text of its own.
        utf8_bytes = None if "\ufffd" in text else list(text.encode())
        return {"token": text, "logprob": max(logprob, -9999.0), "bytes": utf8_bytes}

    def _describe_model(self, name: str) -> dict[str, Any]:
        if name not in self._names:
            raise ApiError(
                f"the model {name!r} does not exist; available: {', '.join(self._names)}",
                "model",
                "model_not_found",
                status=404,
            )
        return {
            "id": name,
            "object": "model",
            "created": self._start_time,
            "owned_by": "trace2evolve",
            "parent": None if name == self._names[0] else self._names[0],
            "max_model_len": self._context_length,
        }

    def _with_access_checks(self, handler: Handler, *, is_public: bool = False) -> Handler:
        """Wrap a handler in the access checks and in error handling; a public handler needs no token."""

        async def checked_handler(request: Request) -> Response:
            try:
                if self._token is None:
                    _require_loopback(request)
                _require_own_origin(request)
                if self._token is not None and not is_public:
                    _require_token(request, self._token)
                return await handler(request)
            except ClientDisconnect:
                return Response(status_code=CLIENT_CLOSED_STATUS)
            except Exception as error:  # affects this request only, even if it is a fault of the server
                return _error_response(_to_api_error(error))

        return checked_handler


def _render_answer(
    chat: ChatRequest,
    message: Mapping[str, Any],
    logprobs: Sequence[Mapping[str, Any]],
    finish_reason: str,
    counts: tuple[int, int, int],
) -> dict[str, Any]:
    """Render an answer; `counts` are the tokens of prompt, answer, and the prompt's cached part."""
    prompt, answer, cached = counts
    content = {"content": logprobs, "refusal": None} if chat.logprobs else None
    choice = {"index": 0, "message": message, "logprobs": content, "finish_reason": finish_reason}
    return {
        "id": f"chatcmpl-{uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": chat.model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
            "prompt_tokens_details": {"cached_tokens": cached},
        },
    }


def _require_loopback(request: Request) -> None:
    """Reject a request whose Host header does not name this machine.

    Without this check, a web page could reach a server without a token if the page's host name resolves to a
    loopback address. The raw header is compared, because a parser may treat an invalid header as missing.
    """
    hosts = request.headers.getlist("host")
    if len(hosts) != 1 or not _LOOPBACK_HOST_HEADER.fullmatch(hosts[0]):
        raise ApiError(
            f"host {', '.join(hosts)[:200]!r}: a server without a token accepts only requests to "
            "127.0.0.1, ::1 or localhost",
            code="forbidden_host",
            status=403,
        )


def _require_own_origin(request: Request) -> None:
    """Reject a request from a web page of a different origin; programs send no origin."""
    origins = request.headers.getlist("origin")
    if origins and origins != [f"{request.url.scheme}://{request.headers.get('host', '')}"]:
        raise ApiError(
            f"origin {', '.join(origins)[:200]!r}: requests from web pages of other origins are rejected",
            code="forbidden_origin",
            status=403,
        )


def _require_token(request: Request, token: str) -> None:
    scheme, _, sent_token = request.headers.get("authorization", "").partition(" ")
    if not hmac.compare_digest(sent_token.strip().encode(), token.encode()) or scheme.lower() != "bearer":
        raise ApiError("the token is missing or wrong", code="invalid_api_key", status=401)


async def _wait_for_generation(request: Request, future: "Future[Generation]") -> Generation | None:
    """Wait for a generation. If the client disconnects, cancel the generation and return None."""
    wrapped_future = asyncio.wrap_future(future)
    disconnect = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait((wrapped_future, disconnect), return_when=asyncio.FIRST_COMPLETED)
        return wrapped_future.result() if wrapped_future.done() else None
    finally:
        disconnect.cancel()
        wrapped_future.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _overloaded_error(cause: str) -> ApiError:
    return ApiError(f"{cause}: try again", code="overloaded", status=503, retry_after=1)


def _to_api_error(error: Exception) -> ApiError:
    match error:
        case ApiError():
            return error
        case BusyError():
            return _overloaded_error(str(error))
        case PromptError():
            return ApiError(str(error), "messages", "invalid_value")
        case EngineError():
            return ApiError(str(error), code="engine_error", status=500)
    return ApiError(f"{type(error).__name__}: {error}", code="server_error", status=500)


async def _handle_http_error(request: Request, error: HTTPException) -> Response:
    code = "not_found" if error.status_code == 404 else None
    cause = f"{request.method} {request.url.path}: {error.detail}"
    return _error_response(ApiError(cause, code=code, status=error.status_code))


def _error_response(error: ApiError) -> Response:
    response = _json_response(error.body(), status=error.status)
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _json_response(value: object, *, status: int = 200) -> Response:
    return Response(json.dumps(value, allow_nan=False), status, media_type="application/json")


class TimeLimitedConnection(H11Protocol):
    """A connection that is closed if it sends no complete request head in time.

    Uvicorn limits only the time between requests. Without this class, a client that sends nothing, or a byte
    of a head now and then, would occupy its connection for ever.

    Attributes:
        head_seconds: Seconds from the connection, or from the first byte of a further request, to the end of
            the request's head.
        max_idle: Maximum connections without a running request; beyond it, the longest idle one is closed.
    """

    head_seconds: ClassVar[float] = 30.0
    max_idle: ClassVar[int] = 512

    _timer: asyncio.TimerHandle | None = None
    _idle_since = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether no request is running."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's
        """Wait for a request; close the longest idle connection if too many are idle."""
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._update_timer()
        idle_connections = [
            connection
            for connection in self.connections
            if isinstance(connection, TimeLimitedConnection) and connection.is_idle
        ]
        if len(idle_connections) > self.max_idle:
            min(idle_connections, key=lambda connection: connection._idle_since).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Process a part of a request; further parts do not restart the timer."""
        super().data_received(data)
        self._update_timer()

    def on_response_complete(self) -> None:
        """Wait for a further request; uvicorn's own timeout counts until its first byte."""
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._cancel_timer()
        super().connection_lost(exc)

    def _update_timer(self) -> None:
        if not self.is_idle:
            self._cancel_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_seconds, self._abort_if_idle)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _abort_if_idle(self) -> None:
        self._timer = None
        if self.is_idle:
            self.transport.abort()
