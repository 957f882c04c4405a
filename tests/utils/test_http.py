"""Hostile HTTP answers on loopback: every client of the project bounds their size and their time."""

import gzip
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Self

import pytest

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n"
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


def bomb() -> Iterator[bytes]:
    """A gigabyte of zeros as a megabyte of gzip."""
    packed = gzip.compress(bytes(64 * MIB)) * 16
    yield HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed


def double_bomb() -> Iterator[bytes]:
    """Gzip within gzip."""
    packed = gzip.compress(gzip.compress(bytes(64 * MIB), 1), 1)
    yield HEAD + b"Content-Encoding: gzip, gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed


def endless_chunks() -> Iterator[bytes]:
    yield CHUNKED + b"\r\n"
    while True:
        yield b"%x\r\n%s\r\n" % (len(PIECE), PIECE)


def endless_body() -> Iterator[bytes]:
    yield HEAD + b"Connection: close\r\n\r\n"
    while True:
        yield PIECE


def long_body() -> Iterator[bytes]:
    yield HEAD + b"Content-Length: 1000000000000\r\n\r\n"
    while True:
        yield PIECE


def endless_error() -> Iterator[bytes]:
    yield CHUNKED.replace(b"200 OK", b"500 Bad") + b"\r\n"
    while True:
        yield b"%x\r\n%s\r\n" % (len(PIECE), PIECE)


def single_bytes() -> Iterator[bytes]:
    """As many chunks of a byte as the limit has bytes: a list of them would cost forty times more."""
    yield CHUNKED + b"\r\n"
    yield from itertools.repeat(b"1\r\na\r\n" * 10_000, 200)
    yield b"0\r\n\r\n"


def other_encoding() -> Iterator[bytes]:
    yield HEAD + b"Content-Encoding: zstd\r\nContent-Length: 4\r\n\r\nabcd"


def broken_gzip() -> Iterator[bytes]:
    yield HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd"


def cut_gzip() -> Iterator[bytes]:
    packed = gzip.compress(json.dumps(["a" * 1000]).encode())[:-9]
    yield HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed


def deep() -> Iterator[bytes]:
    yield HEAD + b"Content-Length: 1000000\r\n\r\n" + b"[" * 1_000_000


def drops() -> Iterator[bytes]:
    yield CHUNKED + b"\r\n"
    while True:
        threading.Event().wait(0.05)
        yield b"1\r\n \r\n"


def dropped_head() -> Iterator[bytes]:
    yield HEAD
    for number in itertools.count():
        threading.Event().wait(0.05)
        yield b"x-%d: y\r\n" % number


def endless_informational() -> Iterator[bytes]:
    while True:
        threading.Event().wait(0.05)
        yield b"HTTP/1.1 102 Processing\r\n\r\n"


CLIENT = """
import asyncio, json, resource, sys
from pytest_trace2evolve.errors import GitHubError, InfrastructureError, JudgeError
from pytest_trace2evolve.judges.chat import ChatJudge
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings, Retries
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.report.github_comment import GitHub

def ask_model(url, timeout):
    settings = ModelSettings("m", base_url=url, timeout=timeout, retries=Retries(attempts=1))
    async def ask():
        chat = ChatModel(settings)
        try:
            await chat.complete([{"role": "user", "content": "?"}], ())
        finally:
            await chat.close()
    asyncio.run(ask())

def ask_judge(url, timeout):
    judge = ChatJudge("m", base_url=url, api_key="key", timeout=timeout)
    judge.judge(["a"], [Message(role="user", content="?")])

def ask_github(url, timeout):
    GitHub("a/b", "token", api_url=url, sleep=lambda pause: None, timeout=timeout).pull_request("a:b", "c")

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

ask = {"model": ask_model, "judge": ask_judge, "github": ask_github}[sys.argv[1]]
before = peak()
for url, timeout in json.loads(sys.argv[2]):
    try:
        ask(url, timeout)
    except (GitHubError, InfrastructureError, JudgeError) as error:
        print(json.dumps([peak() - before, type(error).__name__, str(error)]))
"""

ERRORS = {"model": "InfrastructureError", "judge": "JudgeError", "github": "GitHubError"}

HOSTILE: dict[str, list[Body]] = {
    "model": [
        bomb,
        double_bomb,
        endless_chunks,
        endless_body,
        long_body,
        endless_error,
        single_bytes,
        other_encoding,
        broken_gzip,
        cut_gzip,
    ],  # a deep answer is what the model said
    "judge": [bomb, endless_chunks, endless_error, other_encoding, cut_gzip, deep],
    "github": [bomb, endless_error, deep],
}
DRIPPING: dict[str, Body] = {"model": drops, "judge": endless_informational, "github": dropped_head}

CAUSES = {
    bomb: "the answer is larger than 16 MiB once it is expanded",
    endless_chunks: "the answer is larger than 16 MiB",
    other_encoding: "the answer is encoded as 'zstd'; only gzip is read",
    cut_gzip: "the answer is gzip and ends in the middle",
}


def errors_of(client: str, bodies: list[Body], timeout: float) -> list[tuple[int, str, str]]:
    """Of each answer: growth of the client's memory so far in KiB, the kind of the error and its text."""
    with ExitStack() as stack:
        urls = [(stack.enter_context(RawServer(body)).url, timeout) for body in bodies]
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, client, json.dumps(urls)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OPENAI_API_KEY": "key", "NO_PROXY": "127.0.0.1", "PYTHONWARNINGS": "error"},
        )
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("client", ["model", "judge", "github"])
def test_no_answer_costs_more_memory_than_the_limit_or_more_than_one_line(client: str) -> None:
    found = errors_of(client, HOSTILE[client], 600.0)
    limit = 64 if client == "github" else 16
    for body, (grown, kind, text) in zip(HOSTILE[client], found, strict=True):
        assert kind == ERRORS[client]
        assert "\n" not in text
        assert len(text) < 2_000
        # The parts, and their join; and what the libraries load for the first request.
        assert grown < (2 * limit + 48) * 1024, f"{body.__name__}: {grown >> 10} MiB more"
        if client == "judge":
            assert text.endswith(CAUSES.get(body, ""))


@pytest.mark.parametrize("client", ["model", "judge", "github"])
def test_a_dripping_answer_ends_at_the_deadline(client: str) -> None:
    ((_, kind, text),) = errors_of(client, [DRIPPING[client]], 1.5)
    assert kind == ERRORS[client]
    assert "within 1.5 seconds" in text
