"""Hostile HTTP answers on loopback: every client of the project bounds their size and their time."""

import asyncio
import functools
import gzip
import itertools
import json
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Self

import pytest

from pytest_trace2evolve.errors import InfrastructureError, JudgeError, Trace2EvolveError
from pytest_trace2evolve.judges.chat import ChatJudge
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings, Retries
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.testing import ChatServer, Reply
from pytest_trace2evolve.utils.http import HttpClient, HttpError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
MIB = 1 << 20
PIECE = b"a" * 65_536

Body = Callable[[], Iterator[bytes]]


class RawServer:
    """Reads a request's head, and answers it with the bytes of `body`, however many they are."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._ended = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.connections = 0
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}/v1"

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with suppress(OSError):
            socket.create_connection(self._listening.getsockname()).close()
        for thread in self._threads:
            thread.join()
        self._listening.close()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            if self._ended.is_set():
                connection.close()
                return
            self.connections += 1
            self._threads.append(threading.Thread(target=self._answer, args=(connection,), daemon=True))
            self._threads[-1].start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            got = b""
            while b"\r\n\r\n" not in got:
                got += connection.recv(65_536)
            for part in self._body():
                if self._ended.is_set():
                    return
                connection.sendall(part)


@functools.cache
def packed_zeros() -> bytes:
    """More than any client accepts, in less than half a megabyte."""
    return gzip.compress(bytes(80 * MIB), 1)


def bomb() -> Iterator[bytes]:
    packed = packed_zeros()
    yield HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed


def endless_error() -> Iterator[bytes]:
    yield b"HTTP/1.1 500 Bad\r\nTransfer-Encoding: chunked\r\n\r\n"
    yield from itertools.repeat(b"%x\r\n%s\r\n" % (len(PIECE), PIECE))


def deep() -> Iterator[bytes]:
    yield HEAD + b"Content-Length: 100000\r\n\r\n" + b"[" * 100_000


def drops() -> Iterator[bytes]:
    yield HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    while True:
        threading.Event().wait(0.05)
        yield b"1\r\n \r\n"


def endless_informational() -> Iterator[bytes]:
    while True:
        threading.Event().wait(0.05)
        yield b"HTTP/1.1 102 Processing\r\n\r\n"


@pytest.mark.parametrize(
    ("encoding", "parts", "problem"),
    [
        pytest.param("", itertools.repeat(PIECE), "larger than 262144 bytes", id="endless"),
        # A list of them would cost forty times more.
        pytest.param("", itertools.repeat(b"a"), "larger than 262144 bytes", id="single bytes"),
        pytest.param(
            "gzip",
            [gzip.compress(bytes(16 * MIB))],
            "larger than 262144 bytes after decompression",
            id="bomb",
        ),
        pytest.param(
            "gzip, gzip", [], "is encoded as 'gzip, gzip'; expected gzip or no encoding", id="double bomb"
        ),
        pytest.param(
            "zstd", [b"abcd"], "is encoded as 'zstd'; expected gzip or no encoding", id="other encoding"
        ),
        pytest.param("gzip", [b"abcd"], "is marked as gzip but is not valid gzip", id="broken"),
        pytest.param(
            "gzip", [gzip.compress(b"a")[:-9]], "is cut off in the middle of its gzip data", id="cut"
        ),
    ],
)
def test_no_answer_costs_more_memory_than_the_limit(
    encoding: str, parts: Iterable[bytes], problem: str
) -> None:
    def body() -> Iterator[bytes]:
        yield HEAD + b"Content-Encoding: %s\r\nTransfer-Encoding: chunked\r\n\r\n" % encoding.encode()
        for part in parts:
            yield b"%x\r\n%s\r\n" % (len(part), part)
        yield b"0\r\n\r\n"

    async def ask(url: str) -> None:
        async with HttpClient(MIB // 4) as client:
            await client.request("GET", url)

    tracemalloc.start()
    try:
        with RawServer(body) as server, pytest.raises(HttpError, match=problem):
            asyncio.run(ask(server.url))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * MIB  # the limit, in parts and joined, and what the library needs


def test_a_long_request_is_sent_without_a_warning() -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a" * 2 * MIB}]}).encode()

    async def ask(url: str) -> int:
        async with HttpClient() as client:
            return (await client.request("POST", url, content=body)).status

    with ChatServer(lambda request: Reply("Yes.")) as server:
        assert asyncio.run(ask(f"{server.base_url}/chat/completions")) == 200
    assert len(server.requests[0]["messages"][0]["content"]) == 2 * MIB


def ask_model(url: str, timeout: float) -> None:
    async def ask() -> None:
        chat = ChatModel(ModelSettings("m", base_url=url, timeout=timeout, retries=Retries(attempts=1)))
        try:
            await chat.complete([{"role": "user", "content": "?"}], ())
        finally:
            await chat.close()

    asyncio.run(ask())


def ask_judge(url: str, timeout: float) -> None:
    judge = ChatJudge("m", base_url=url, api_key="key", timeout=timeout)
    judge.judge(["a"], [Message(role="user", content="?")])


Ask = Callable[[str, float], None]
ERRORS: dict[Ask, type[Trace2EvolveError]] = {
    ask_model: InfrastructureError,
    ask_judge: JudgeError,
}


def problem_of(ask: Ask, body: Body, timeout: float) -> str:
    """The line with which a client reports an answer."""
    with RawServer(body) as server, pytest.raises(ERRORS[ask]) as caught:
        ask(server.url, timeout)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 2_000
    return line


@pytest.fixture(autouse=True)
def _endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.mark.parametrize(
    ("ask", "body", "problem"),
    [
        (ask_model, bomb, "the answer is larger than 16 MiB after decompression"),
        (ask_model, endless_error, "the answer is larger than 16 MiB"),
        (ask_judge, bomb, "the answer is larger than 16 MiB after decompression"),
        (ask_judge, endless_error, "the answer is larger than 16 MiB"),
        (ask_judge, deep, ""),  # of a model, a deep answer is what it said
    ],
)
def test_every_client_bounds_an_answer_and_reports_it_in_a_line(ask: Ask, body: Body, problem: str) -> None:
    assert problem in problem_of(ask, body, 600.0)


def test_a_dripping_answer_ends_at_the_deadline() -> None:
    dripping = {ask_model: drops, ask_judge: endless_informational}
    with ThreadPoolExecutor(len(dripping)) as threads:
        lines = threads.map(lambda ask: problem_of(ask, dripping[ask], 1.0), dripping)
    assert all("within 1 seconds" in line for line in lines)
