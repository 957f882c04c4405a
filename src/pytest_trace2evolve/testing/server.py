"""An OpenAI-compatible server on loopback, in a thread of its own, whose answers come from a script.

It speaks HTTP through h11, the parser that the openai client stands on too: a server framework would not let
it hang up in the middle of a body.
"""

import asyncio
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import h11

from pytest_trace2evolve.testing.faults import Fault, FaultPlan, Misbehaviour

CHARACTERS_A_TOKEN = 4
"""What the server counts as a token, so that usage is deterministic."""

DRIP_SECONDS = 0.2
"""Pause between the drops of a slow body."""

HELD_SECONDS = 0.005
"""How often a request that is held asks whether it may be answered."""


@dataclass(frozen=True)
class ChatRequest:
    """One chat completion as it was asked for."""

    model: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    body: dict[str, Any]

    @property
    def system(self) -> str:
        """The system prompt; empty where there is none."""
        return next((str(one.get("content")) for one in self.messages if one.get("role") == "system"), "")


@dataclass(frozen=True)
class Reply:
    """What the script answers: text, tool calls as (name, arguments), or both.

    Arguments given as text are sent as they stand, so that a script can send broken JSON.

    Attributes:
        first_tokens: Log-probabilities of the likeliest first tokens, by text; told where there are any.
        message: The whole message as it is sent, of any shape; None makes it of the other fields.
    """

    content: str | None = None
    tool_calls: tuple[tuple[str, dict[str, Any] | str], ...] = ()
    first_tokens: Mapping[str, float] = field(default_factory=dict)
    message: Any = None


Script = Callable[[ChatRequest], Reply]


@dataclass
class Count:
    """What the server has done so far. Only whole, good answers count as served."""

    attempts: int = 0
    served: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    by_model: Counter[str] = field(default_factory=Counter)
    most_at_once: int = 0


class ChatServer:
    """Serves `/v1/chat/completions` and `/v1/models` on a free port of 127.0.0.1.

    Args:
        script: Answers each request.
        latency: Seconds before an answer.
        faults: Draws misbehaviours; None serves everything well.
        keys: Accepted keys; None accepts any.
        models: Known model names; None knows all. `/v1/models` lists none of them, as some endpoints do.
        requests_per_second: A rate limit over all callers; above it requests get 429.
        tools: Whether the models take tools; requests with tools get 400 where they do not.
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
        self._faults = faults
        self._keys = keys
        self._models = models
        self._allowance = requests_per_second
        self._allowed_at = 0.0
        self._tools = tools
        self._at_once = 0
        self._allowed = threading.Lock()
        self._answers: float = math.inf
        self.count = Count()
        self.requests: list[dict[str, Any]] = []
        self.port = 0
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as its base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    def hold(self) -> None:
        """Answer nothing until `release`. Requests are read, kept and counted as attempts meanwhile."""
        self.release(0)

    def release(self, answers: int | None = None) -> None:
        """Answer again.

        Args:
            answers: Hold again after so many answers; None: never.
        """
        with self._allowed:
            self._answers = math.inf if answers is None else answers

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        self._ready.wait()
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
            await self._converse(reader, writer)

        server = await asyncio.start_server(accept, "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER)
        try:
            while True:
                request = await _read(connection, reader)
                if request is None or not await self._answer(connection, reader, writer, *request):
                    return
                if connection.our_state is h11.MUST_CLOSE:
                    return
                connection.start_next_cycle()
        except (ConnectionError, h11.ProtocolError, asyncio.CancelledError):
            return
        finally:
            writer.close()

    async def _answer(
        self,
        connection: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        head: h11.Request,
        body: bytes,
    ) -> bool:
        """Answer one request; False where the connection is to be closed."""
        path = head.target.decode("ascii", "replace").partition("?")[0]
        if path.endswith("/models"):
            return await _send(connection, writer, 200, {"object": "list", "data": []})
        self.count.attempts += 1
        self._at_once += 1
        self.count.most_at_once = max(self.count.most_at_once, self._at_once)
        try:
            return await self._complete(connection, reader, writer, head, body)
        finally:
            self._at_once -= 1

    async def _complete(
        self,
        connection: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        head: h11.Request,
        body: bytes,
    ) -> bool:
        try:
            record = json.loads(body)
        except ValueError:
            record = None
        refusal = self._refusal(head, record)
        if refusal is not None:
            status, message, headers = refusal
            return await _send(connection, writer, status, _error(message), headers)
        self.requests.append(record)
        while reader.at_eof() or not self._may_answer():
            if reader.at_eof():  # the client has gone, and takes no answer from another one
                return False
            await asyncio.sleep(HELD_SECONDS)
        misbehaviour = self._faults.draw() if self._faults else None
        if self._latency:
            await asyncio.sleep(self._latency)
        if misbehaviour is not None:
            self.count.faults[misbehaviour.fault.value] += 1
        reply = self._reply(record, len(body))
        if misbehaviour is not None:
            return await _misbehave(connection, writer, misbehaviour, reply)
        sent = await _send(connection, writer, 200, reply)
        self.count.served += 1
        self.count.by_model[record["model"]] += 1
        self.count.prompt_tokens += reply["usage"]["prompt_tokens"]
        self.count.completion_tokens += reply["usage"]["completion_tokens"]
        return sent

    def _may_answer(self) -> bool:
        with self._allowed:
            if self._answers < 1:
                return False
            self._answers -= 1
            return True

    def _refusal(self, head: h11.Request, record: Any) -> tuple[int, str, list[tuple[str, str]]] | None:
        key = dict(head.headers).get(b"authorization", b"").decode("latin-1").removeprefix("Bearer ")
        if self._keys is not None and key not in self._keys:
            return 401, "Incorrect API key provided.", []
        model = record.get("model") if isinstance(record, dict) else None
        if not isinstance(model, str) or not isinstance(record.get("messages"), list):
            return 400, "The request is not a chat completion.", []
        if self._models is not None and model not in self._models:
            return 404, f"The model '{model}' does not exist.", []
        if not self._tools and record.get("tools"):
            return 400, f"The model '{model}' does not support tools.", []
        if self._allowance is not None:
            now = time.monotonic()
            if now < self._allowed_at:
                self.count.faults["rate_limited"] += 1
                return 429, "Rate limit reached.", [("retry-after-ms", str(int(1000 / self._allowance) + 1))]
            self._allowed_at = max(now, self._allowed_at) + 1 / self._allowance
        return None

    def _reply(self, record: dict[str, Any], size: int) -> dict[str, Any]:
        request = ChatRequest(record["model"], record["messages"], record.get("tools") or [], record)
        reply = self._script(request)
        number = len(self.requests)
        calls = [
            {
                "id": f"call_{number}_{position}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
                },
            }
            for position, (name, arguments) in enumerate(reply.tool_calls)
        ]
        message: dict[str, Any] = {"role": "assistant", "content": reply.content}
        if calls:
            message["tool_calls"] = calls
        if reply.message is not None:
            message = reply.message
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        if reply.first_tokens:
            told = [{"token": token, "logprob": value} for token, value in reply.first_tokens.items()]
            choice["logprobs"] = {"content": [{**told[0], "top_logprobs": told}]}
        prompt = size // CHARACTERS_A_TOKEN
        completion = len(json.dumps(message)) // CHARACTERS_A_TOKEN
        return {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "created": 0,
            "model": record["model"],
            "choices": [choice],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
            },
        }


async def _read(connection: h11.Connection, reader: asyncio.StreamReader) -> tuple[h11.Request, bytes] | None:
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(65536))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            return head, bytes(body)
        else:
            return None


async def _send(
    connection: h11.Connection,
    writer: asyncio.StreamWriter,
    status: int,
    body: object,
    headers: Collection[tuple[str, str]] = (),
    kind: str = "application/json",
) -> bool:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = [("content-type", kind), ("content-length", str(len(content))), *headers]
    writer.write(connection.send(h11.Response(status_code=status, headers=fields)) or b"")
    writer.write(connection.send(h11.Data(data=content)) or b"")
    writer.write(connection.send(h11.EndOfMessage()) or b"")
    await writer.drain()
    return True


async def _misbehave(
    connection: h11.Connection, writer: asyncio.StreamWriter, how: Misbehaviour, reply: dict[str, Any]
) -> bool:
    content = json.dumps(reply).encode()
    match how.fault:
        case Fault.RATE_LIMIT:
            after = [("retry-after", str(how.retry_after))] if how.retry_after is not None else []
            return await _send(connection, writer, 429, _error("Rate limit reached."), after)
        case Fault.SERVER_ERROR:
            return await _send(connection, writer, 500, _error("The server had an error."))
        case Fault.OVERLOADED:
            return await _send(connection, writer, 503, b"")
        case Fault.BROKEN_BODY:
            return await _send(connection, writer, 200, content[: len(content) // 2])
        case Fault.NOT_JSON:
            page = b"<html>Welcome to the gateway</html>"
            return await _send(connection, writer, 200, page, kind="text/html")
        case Fault.HANG_UP:
            return False
        case Fault.HANG_UP_HALFWAY | Fault.SLOW:
            fields = [("content-type", "application/json"), ("content-length", str(len(content)))]
            writer.write(connection.send(h11.Response(status_code=200, headers=fields)) or b"")
            writer.write(content[: len(content) // 2])
            await writer.drain()
            for byte in content[len(content) // 2 : -1] if how.fault is Fault.SLOW else b"":
                await asyncio.sleep(DRIP_SECONDS)
                writer.write(bytes([byte]))
                await writer.drain()
            return False
    raise AssertionError(how)


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "test_server", "param": None, "code": None}}
