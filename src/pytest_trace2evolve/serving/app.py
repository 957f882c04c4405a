"""The endpoint: routes, keys, and answers in the API's shapes."""

import asyncio
import hmac
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from pytest_trace2evolve.serving.chat_format import Prompt, Writer, call_id
from pytest_trace2evolve.serving.engine import Answer, BusyError, Engine, EngineError, Job, PromptError
from pytest_trace2evolve.serving.request import ApiError, ChatRequest
from pytest_trace2evolve.serving.sampling import TokenLogprob

LARGEST_BODY = 32 << 20
"""Bytes."""

MAX_BODIES = 256 << 20
"""Bytes of the bodies of all requests under way."""

BODY_SECONDS = 120.0
"""Seconds for a request's whole body."""

_LOOPBACK_HOST = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::[0-9]{1,5})?", re.IGNORECASE | re.ASCII)
"""What a Host header may say if no token is asked for."""

Handler = Callable[[Request], Awaitable[Response]]


class _Bodies:
    """The bytes of the bodies of all requests under way; the event loop's alone."""

    def __init__(self) -> None:
        self._held = 0

    @contextmanager
    def counted(self) -> Iterator[Callable[[int], None]]:
        """Count the body of a request for as long as this lasts, since what was read of it is kept so long.

        Yields:
            Takes the bytes of a further part; raises `ApiError` if all bodies together would be too large.
        """
        own = 0

        def take(count: int) -> None:
            nonlocal own
            if self._held + count > MAX_BODIES:
                told = f"the bodies of all requests under way are {MAX_BODIES >> 20} MiB at most: try again"
                raise ApiError(told, code="overloaded", status=503, retry_after=1)
            own += count
            self._held += count

        try:
            yield take
        finally:
            self._held -= own


class ChatApp:
    """The API over one engine.

    Args:
        engine: Answers.
        writer: Writes prompts and reads answers.
        name: The base model's name.
        adapters: The adapters' names.
        context: Tokens that fit the model; None where nothing says.
        most: New tokens of an answer that names no limit; None: as many as fit.
        token: What requests must bring; None: nothing.
    """

    def __init__(
        self,
        engine: Engine,
        writer: Writer,
        *,
        name: str,
        adapters: Sequence[str] = (),
        context: int | None = None,
        most: int | None = None,
        token: str | None = None,
    ) -> None:
        self._engine = engine
        self._writer = writer
        self._name = name
        self._adapters = tuple(adapters)
        self._context = context
        self._most = most
        self._token = token
        self._started = int(time.time())
        self._bodies = _Bodies()
        # One thread: a tokenizer is used by one at a time anyhow, and the event loop stays free.
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="trace2evolve-writer")
        self.app = Starlette(
            routes=[
                Route("/health", _told(self._local(self.health)), methods=["GET"]),
                Route("/v1/models", _told(self._open(self.models)), methods=["GET"]),
                Route("/v1/models/{name:path}", _told(self._open(self.model)), methods=["GET"]),
                Route("/v1/chat/completions", _told(self._open(self.complete)), methods=["POST"]),
            ],
            exception_handlers={HTTPException: _unknown},  # type: ignore[dict-item]  # theirs is narrower
        )

    async def health(self, request: Request) -> Response:
        """Whether it serves, and how busy it is; needs no token."""
        return _json({"status": "ok", "running": self._engine.running, "waiting": self._engine.waiting})

    async def models(self, request: Request) -> Response:
        """The base and its adapters."""
        names = (self._name, *self._adapters)
        return _json({"object": "list", "data": [self._described(one) for one in names]})

    async def model(self, request: Request) -> Response:
        """One of them."""
        return _json(self._described(self._known(request.path_params["name"])))

    async def complete(self, request: Request) -> Response:
        """One chat completion."""
        with self._bodies.counted() as take:
            asked = ChatRequest.read(await _body(request, take))
            self._known(asked.model)
            loop = asyncio.get_running_loop()
            prompt = await loop.run_in_executor(self._writing, self._prompt, asked)
            answer = await _answered(request, self._engine.submit(self._job(asked, prompt)))
            if answer is None:
                return Response(status_code=499)  # nobody reads it
            return _json(await loop.run_in_executor(self._writing, self._completion, asked, prompt, answer))

    def _prompt(self, asked: ChatRequest) -> Prompt:
        prompt = self._writer.prompt(asked.messages, asked.tools, asked.tool_choice, asked.template)
        if not prompt.tokens:
            raise ApiError("the chat template writes nothing for this conversation", "messages")
        if self._context is not None and len(prompt.tokens) >= self._context:
            raise ApiError(
                f"this model's context length is {self._context} tokens, and the prompt has "
                f"{len(prompt.tokens)}",
                "messages",
                "context_length_exceeded",
            )
        return prompt

    def _job(self, asked: ChatRequest, prompt: Prompt) -> Job:
        room = None if self._context is None else self._context - len(prompt.tokens)
        limits = [limit for limit in (asked.most or self._most, room) if limit is not None]
        return Job(
            prompt=prompt.tokens,
            adapter=None if asked.model == self._name else asked.model,
            most=min(limits, default=1 << 20),
            temperature=asked.temperature,
            top_p=asked.top_p,
            seed=asked.seed,
            logprobs=asked.logprobs,
            stopped=self._writer.stopper(asked.stops),
        )

    def _completion(self, asked: ChatRequest, prompt: Prompt, answer: Answer) -> dict[str, Any]:
        said = self._writer.said(prompt, answer.tokens, asked.stops)
        calls = said.calls[:1] if asked.one_call else said.calls
        message: dict[str, Any] = {"role": "assistant", "content": said.content or None, "refusal": None}
        if not said.content and not calls:
            message["content"] = ""
        if said.reasoning:
            message["reasoning_content"] = said.reasoning
        if calls:
            message["tool_calls"] = [
                {
                    "id": call_id(prompt.tokens, answer.tokens, place),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for place, call in enumerate(calls)
            ]
        finish = "tool_calls" if calls and answer.finish == "stop" else answer.finish
        told = None if asked.logprobs is None else {"content": self._logprobs(answer), "refusal": None}
        return {
            "id": f"chatcmpl-{uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": asked.model,
            "choices": [{"index": 0, "message": message, "logprobs": told, "finish_reason": finish}],
            "usage": {
                "prompt_tokens": len(prompt.tokens),
                "completion_tokens": len(answer.tokens),
                "total_tokens": len(prompt.tokens) + len(answer.tokens),
                "prompt_tokens_details": {"cached_tokens": answer.reused},
            },
        }

    def _logprobs(self, answer: Answer) -> list[dict[str, Any]]:
        return [
            {
                **self._token_text(one),
                "top_logprobs": [self._token_text(TokenLogprob(*top)) for top in one.top],
            }
            for one in answer.logprobs
        ]

    def _token_text(self, one: TokenLogprob) -> dict[str, Any]:
        text = self._writer.token(one.token)
        # A part of a character has no text of its own.
        whole = None if "\ufffd" in text else list(text.encode())
        return {"token": text, "logprob": max(one.logprob, -9999.0), "bytes": whole}

    def _known(self, name: str) -> str:
        if name != self._name and name not in self._adapters:
            known = ", ".join((self._name, *self._adapters))
            raise ApiError(
                f"the model {name!r} does not exist; there are: {known}",
                "model",
                "model_not_found",
                status=404,
            )
        return name

    def _described(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._started,
            "owned_by": "trace2evolve",
            "parent": None if name == self._name else self._name,
            "max_model_len": self._context,
        }

    def _open(self, handler: Handler) -> Handler:
        """The same, for those who bring the token."""

        async def guarded(request: Request) -> Response:
            if self._token is not None:
                scheme, _, brought = request.headers.get("authorization", "").partition(" ")
                right = hmac.compare_digest(brought.strip().encode(), self._token.encode())
                if scheme.lower() != "bearer" or not right:
                    raise ApiError("the token is missing or wrong", code="invalid_api_key", status=401)
            return await handler(request)

        return self._local(guarded)

    def _local(self, handler: Handler) -> Handler:
        """The same, for programs of this machine and not for pages of a browser."""

        async def guarded(request: Request) -> Response:
            if self._token is None:
                _require_loopback(request)
            _require_own_origin(request)
            return await handler(request)

        return guarded


def _require_loopback(request: Request) -> None:
    """Check that the request names this machine.

    A page of a browser whose own name was pointed to a loopback address may send whatever it likes there.
    The header is compared as it was sent: a parser may take an invalid one for no name at all.

    Raises:
        ApiError: it does not, or not clearly.
    """
    hosts = request.headers.getlist("host")
    if len(hosts) != 1 or not _LOOPBACK_HOST.fullmatch(hosts[0]):
        host = ", ".join(hosts)[:200]
        told = "without a token only requests to 127.0.0.1, ::1 or localhost are served"
        raise ApiError(f"host {host!r}: {told}", code="forbidden_host", status=403)


def _require_own_origin(request: Request) -> None:
    """Check that no page of another origin sends the request; programs send no origin.

    Raises:
        ApiError: one does.
    """
    origins = request.headers.getlist("origin")
    if origins and origins != [f"{request.url.scheme}://{request.headers.get('host', '')}"]:
        origin = ", ".join(origins)[:200]
        raise ApiError(
            f"origin {origin!r}: pages of other origins are not served", code="forbidden_origin", status=403
        )


async def _body(request: Request, take: Callable[[int], None]) -> bytes:
    """A request's body; `take` counts its parts.

    Raises:
        ApiError: it is too large or too slow, alone or with others, or does not say that it is JSON.
    """
    kinds = [kind.partition(";")[0].strip().lower() for kind in request.headers.getlist("content-type")]
    if kinds != ["application/json"]:
        # A page of a browser can send other types, or none, to a loopback address without asking.
        raise ApiError("the content type must be application/json", status=415)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                if len(body) + len(part) > LARGEST_BODY:
                    raise ApiError(f"the body is larger than {LARGEST_BODY >> 20} MiB", status=413)
                take(len(part))
                body += part
    except TimeoutError:
        raise ApiError(f"the body did not come within {BODY_SECONDS:g} seconds", status=408) from None
    return bytes(body)


async def _answered(request: Request, future: "Future[Answer]") -> Answer | None:
    """What a request's row comes to; None where the client has gone, and then the row is given up."""
    answer = asyncio.wrap_future(future)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None
    finally:
        gone.cancel()
        answer.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _told(handler: Handler) -> Handler:
    """The same, with refusals in the API's shape."""

    async def safe(request: Request) -> Response:
        try:
            return await handler(request)
        except ApiError as error:
            return _refused(error)
        except BusyError as error:
            return _refused(ApiError(f"{error}: try again", code="overloaded", status=503, retry_after=1))
        except PromptError as error:
            return _refused(ApiError(str(error), "messages", "invalid_value"))
        except EngineError as error:
            return _refused(ApiError(str(error), code="engine_error", status=500))
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:  # a fault of ours: told in the API's shape, and this request's alone
            return _refused(ApiError(f"{type(error).__name__}: {error}", code="server_error", status=500))

    return safe


async def _unknown(request: Request, error: HTTPException) -> Response:
    told = f"{request.method} {request.url.path}: {error.detail}"
    code = "not_found" if error.status_code == 404 else None
    return _refused(ApiError(told, code=code, status=error.status_code))


def _refused(error: ApiError) -> Response:
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return _json(error.body(), status=error.status, headers=headers)


def _json(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    text = json.dumps(value, allow_nan=False)
    return Response(text, status, headers, media_type="application/json")
