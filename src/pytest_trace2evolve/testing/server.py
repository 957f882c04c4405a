"""An OpenAI-compatible server on loopback, in its own thread, with answers from a script.

The server speaks HTTP through h11, the parser under the openai client, because a server framework could not
hang up in the middle of a body.
"""

import asyncio
import json
import math
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

import h11

from pytest_trace2evolve.utils.http_server import JSON_TYPE, Connection

STREAM_TYPE = "text/event-stream"

CHARACTERS_PER_TOKEN = 4
"""Characters of one token in `usage`."""

BYTE_PAUSE_SECONDS = 0.2
"""Pause between the bytes of a slow body."""

HOLD_POLL_SECONDS = 0.005
"""Seconds between two checks of whether a held request may be answered."""


class Fault(StrEnum):
    """A failure of an API."""

    RATE_LIMIT = "rate_limit"  # 429, with `Retry-After`
    SERVER_ERROR = "server_error"  # 500 with an error body
    OVERLOADED = "overloaded"  # 503 without a body
    BROKEN_BODY = "broken_body"  # 200 with half of the JSON
    NOT_JSON = "not_json"  # 200 with a page of HTML
    HANG_UP = "hang_up"  # the connection closes without an answer
    HANG_UP_HALFWAY = "hang_up_halfway"  # the connection closes in the middle of the body
    SLOW = "slow"  # the body comes byte by byte, slower than any timeout


@dataclass(frozen=True)
class Misbehaviour:
    """A fault to inject; for a rate limit, `retry_after` is the `Retry-After` header in seconds."""

    fault: Fault
    retry_after: float | None = None


@dataclass
class FaultPlan:
    """Draws a fault, or none, at random for each request.

    Attributes:
        rates: The chance of each fault per request; the sum is at most 1.
        seed: The same seed gives the same faults in the order of the requests.
        retry_after: The `Retry-After` header of a rate limit, in seconds.
    """

    rates: Mapping[Fault, float]
    seed: int = 0
    retry_after: float = 0.01
    _random: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if sum(self.rates.values()) > 1.0 + 1e-9:
            raise ValueError(
                f"the fault rates sum to {sum(self.rates.values()):.2f}, but must sum to at most 1"
            )
        self._random = random.Random(self.seed)

    def draw(self) -> Misbehaviour | None:
        """Return the fault for the next request; None if there is none."""
        chance = self._random.random()
        for fault, rate in self.rates.items():
            chance -= rate
            if chance < 0:
                return Misbehaviour(fault, self.retry_after if fault is Fault.RATE_LIMIT else None)
        return None


@dataclass(frozen=True)
class ChatRequest:
    """A request for a chat completion; header names are in lower case."""

    model: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    body: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def system(self) -> str:
        """The system prompt; empty if there is none."""
        prompts = (message.get("content") for message in self.messages if message.get("role") == "system")
        return str(next(prompts, ""))


@dataclass(frozen=True)
class Reply:
    """A script's answer: text, tool calls as (name, arguments), or both.

    Arguments given as text are sent unchanged, so a script can send broken JSON.

    Attributes:
        first_tokens: Log-probabilities of the likeliest first tokens, by text; empty to send none.
        message: The whole message, of any shape; None to build it from the other fields.
        finish_reason: The finish reason; None for "tool_calls" or "stop".
        error: Status and message of an error to send instead.
        headers: Further headers of the answer.
    """

    content: str | None = None
    tool_calls: tuple[tuple[str, dict[str, Any] | str], ...] = ()
    first_tokens: Mapping[str, float] = field(default_factory=dict)
    message: Any = None
    finish_reason: str | None = None
    error: tuple[int, str] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


Script = Callable[[ChatRequest], Reply]


@dataclass
class Count:
    """The server's work so far. Only complete, good answers count as served."""

    attempts: int = 0
    served: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    by_model: Counter[str] = field(default_factory=Counter)
    concurrent: int = 0
    max_concurrent: int = 0


class ChatServer:
    """Serves `/v1/chat/completions` and `/v1/models` on a free port of 127.0.0.1.

    Args:
        script: Answers each request.
        latency: Seconds before an answer.
        faults: The plan of faults to inject; None for no faults. The attribute `faults` may be replaced.
        keys: Accepted keys; None accepts any key.
        models: Known model names; None accepts any name. `/v1/models` lists no model, as on some endpoints.
        requests_per_second: A rate limit over all callers; requests above the limit get status 429.
        tools: Whether the models accept tools; if not, requests with tools get status 400.
    """

    def __init__(
        self,
        script: Script,
        *,
        latency: float = 0.0,
        faults: FaultPlan | None = None,
        keys: Collection[str] | None = None,
        models: Collection[str] | None = None,
        requests_per_second: float | None = None,
        tools: bool = True,
    ) -> None:
        self._script = script
        self._latency = latency
        self.faults = faults
        self._keys = keys
        self._models = models
        self._rate_limit = requests_per_second
        self._next_allowed_time = 0.0
        self._accepts_tools = tools
        self._lock = threading.Lock()
        self._answers_left: float = math.inf
        self.count = Count()
        self.requests: list[dict[str, Any]] = []
        self.port = 0
        self._is_ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    @property
    def base_url(self) -> str:
        """The base URL for an OpenAI client."""
        return f"http://127.0.0.1:{self.port}/v1"

    def hold(self) -> None:
        """Answer nothing until `release`. Meanwhile, requests are read, stored and counted as attempts."""
        self.release(0)

    def release(self, answers: int | None = None) -> None:
        """Answer again, and hold again after `answers` answers; None never holds again."""
        with self._lock:
            self._answers_left = math.inf if answers is None else answers

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        self._is_ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None:
            self._thread.join()

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        tasks: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            if task is not None:
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await self._serve(_Connection(reader, writer))

        server = await asyncio.start_server(accept, "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        self._is_ready.set()
        await self._stop.wait()
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, connection: "_Connection") -> None:
        try:
            while request := await connection.read():
                if not await self._answer(connection, *request) or not connection.prepare_for_reuse():
                    return
        except (ConnectionError, h11.ProtocolError, asyncio.CancelledError):
            return
        finally:
            connection.writer.close()

    async def _answer(self, connection: "_Connection", head: h11.Request, body: bytes) -> bool:
        """Answer one request; return False if the connection must close."""
        path = head.target.decode("ascii", "replace").partition("?")[0]
        if path.endswith("/models"):
            return await connection.send(200, {"object": "list", "data": []})
        self.count.attempts += 1
        self.count.concurrent += 1
        self.count.max_concurrent = max(self.count.max_concurrent, self.count.concurrent)
        try:
            return await self._complete(connection, head, body)
        finally:
            self.count.concurrent -= 1

    async def _complete(self, connection: "_Connection", head: h11.Request, body: bytes) -> bool:
        try:
            request_body = json.loads(body)
        except ValueError:
            request_body = None
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        if error := self._check_request(headers, request_body):
            return await connection.send(error[0], _error_body(error[1]))
        if self._rate_limit is not None and (milliseconds := self._rate_limit_milliseconds(self._rate_limit)):
            return await connection.send(
                429, _error_body("Rate limit reached."), [("retry-after-ms", milliseconds)]
            )
        self.requests.append(request_body)
        while connection.reader.at_eof() or not self._take_answer():
            if connection.reader.at_eof():  # the client has gone, and must not use up an answer
                return False
            await asyncio.sleep(HOLD_POLL_SECONDS)
        misbehaviour = self.faults.draw() if self.faults else None
        if self._latency:
            await asyncio.sleep(self._latency)
        if misbehaviour is not None:
            self.count.faults[misbehaviour.fault.value] += 1
        tools = request_body.get("tools") or []
        reply = self._script(
            ChatRequest(request_body["model"], request_body["messages"], tools, request_body, headers)
        )
        completion = _completion(reply, request_body["model"], len(self.requests), len(body))
        if misbehaviour is not None:
            return await connection.misbehave(misbehaviour, completion)
        if reply.error is not None:
            status, message = reply.error
            return await connection.send(status, _error_body(message), reply.headers.items())
        if request_body.get("stream"):
            asks_usage = bool((request_body.get("stream_options") or {}).get("include_usage"))
            content = _stream(completion, asks_usage=asks_usage)
            is_open = await connection.send(200, content, reply.headers.items(), STREAM_TYPE)
        else:
            is_open = await connection.send(200, completion, reply.headers.items())
        self.count.served += 1
        self.count.by_model[request_body["model"]] += 1
        self.count.prompt_tokens += completion["usage"]["prompt_tokens"]
        self.count.completion_tokens += completion["usage"]["completion_tokens"]
        return is_open

    def _take_answer(self) -> bool:
        with self._lock:
            if self._answers_left < 1:
                return False
            self._answers_left -= 1
            return True

    def _check_request(self, headers: Mapping[str, str], request_body: Any) -> tuple[int, str] | None:
        """Return the status and message of a rejection; None if the request is valid."""
        key = headers.get("authorization", "").removeprefix("Bearer ")
        if self._keys is not None and key not in self._keys:
            return 401, "Incorrect API key provided."
        model = request_body.get("model") if isinstance(request_body, dict) else None
        if not isinstance(model, str) or not isinstance(request_body.get("messages"), list):
            return 400, "The request is not a chat completion."
        if self._models is not None and model not in self._models:
            return 404, f"The model '{model}' does not exist."
        if not self._accepts_tools and request_body.get("tools"):
            return 400, f"The model '{model}' does not support tools."
        return None

    def _rate_limit_milliseconds(self, limit: float) -> str:
        """Return the milliseconds that a caller must wait; empty if the request is within the limit."""
        now = time.monotonic()
        if now < self._next_allowed_time:
            self.count.faults["rate_limited"] += 1
            return str(int(1000 / limit) + 1)
        self._next_allowed_time = max(now, self._next_allowed_time) + 1 / limit
        return ""


class _Connection(Connection):
    """One client's connection, on which the server can misbehave."""

    async def misbehave(self, misbehaviour: Misbehaviour, reply: dict[str, Any]) -> bool:
        """Fail in the given way; return False if the connection must close."""
        content = json.dumps(reply).encode()
        middle = len(content) // 2
        match misbehaviour.fault:
            case Fault.RATE_LIMIT:
                headers = (
                    [("retry-after", str(misbehaviour.retry_after))]
                    if misbehaviour.retry_after is not None
                    else []
                )
                return await self.send(429, _error_body("Rate limit reached."), headers)
            case Fault.SERVER_ERROR:
                return await self.send(500, _error_body("The server had an error."))
            case Fault.OVERLOADED:
                return await self.send(503, b"")
            case Fault.BROKEN_BODY:
                return await self.send(200, content[:middle])
            case Fault.NOT_JSON:
                return await self.send(200, b"<html>Welcome to the gateway</html>", content_type="text/html")
            case Fault.HANG_UP:
                return False
            case Fault.HANG_UP_HALFWAY | Fault.SLOW:
                self.send_head(200, len(content), JSON_TYPE)
                self.writer.write(content[:middle])
                await self.writer.drain()
                for byte in content[middle:-1] if misbehaviour.fault is Fault.SLOW else b"":
                    await asyncio.sleep(BYTE_PAUSE_SECONDS)
                    self.writer.write(bytes([byte]))
                    await self.writer.drain()
                return False


def _error_body(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "test_server", "param": None, "code": None}}


def _stream(completion: Mapping[str, Any], *, asks_usage: bool) -> bytes:
    """Return a completion as a stream's events: the text word by word, and each tool call in two parts."""
    message = completion["choices"][0]["message"]
    message = message if isinstance(message, dict) else {}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": word} for word in re.findall(r"\s*\S+|\s+$", message.get("content") or "")]
    for index, call in enumerate(message.get("tool_calls") or ()):
        arguments = call["function"]["arguments"]
        head = {"name": call["function"]["name"], "arguments": ""}
        parts = [{"index": index, "id": call["id"], "type": "function", "function": head}]
        parts += [{"index": index, "function": {"arguments": arguments}}]
        deltas += [{"tool_calls": [part]} for part in parts]
    common = {name: completion[name] for name in ("id", "created", "model")}
    common["object"] = "chat.completion.chunk"
    reason = completion["choices"][0]["finish_reason"]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": reason})
    events = [{**common, "choices": [choice]} for choice in choices]
    if asks_usage:
        events.append({**common, "choices": [], "usage": completion["usage"]})
    return "".join(f"data: {text}\n\n" for text in [*map(json.dumps, events), "[DONE]"]).encode()


def _completion(reply: Reply, model: str, number: int, request_bytes: int) -> dict[str, Any]:
    """Return the reply to request `number`, which has `request_bytes` bytes, in the API's format."""
    calls = [
        {
            "id": f"call_{number}_{index}",
            "type": "function",
            "function": {
                "name": name,
                "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
            },
        }
        for index, (name, arguments) in enumerate(reply.tool_calls)
    ]
    message: Any = {"role": "assistant", "content": reply.content}
    if calls:
        message["tool_calls"] = calls
    if reply.message is not None:
        message = reply.message
    finish_reason = reply.finish_reason or ("tool_calls" if calls else "stop")
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    if reply.first_tokens:
        tokens = [{"token": token, "logprob": value} for token, value in reply.first_tokens.items()]
        choice["logprobs"] = {"content": [{**tokens[0], "top_logprobs": tokens}]}
    prompt_tokens = request_bytes // CHARACTERS_PER_TOKEN
    completion_tokens = len(json.dumps(message)) // CHARACTERS_PER_TOKEN
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }
