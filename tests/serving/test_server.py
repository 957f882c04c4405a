"""The server's process and its connections: how it starts and ends, and which requests it never serves."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.serving import app as serving_app
from pytest_trace2evolve.serving.app import ChatApp, TimeLimitedConnection
from tests.patience import HANG_SECONDS, until
from tests.serving.conftest import REPOSITORY


@contextmanager
def running(connection: type[TimeLimitedConnection] = TimeLimitedConnection) -> Iterator[int]:
    """The port of a server without a model and without a token."""
    engine = cast("Any", SimpleNamespace(running_count=0, waiting_count=0))
    app = ChatApp(engine, cast("Any", None), name="base")
    config = uvicorn.Config(
        app.app, http=connection, ws="none", log_level="critical", access_log=False, lifespan="off"
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            server.force_exit = True
            thread.join()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with running() as found:
        yield found


def ask(
    port: int, *headers: bytes, method: str = "GET", path: str = "/v1/models", body: bytes = b""
) -> tuple[int, bytes]:
    """The status of an answer to exactly these headers, and the answer."""
    lines = [f"{method} {path} HTTP/1.1".encode(), *headers, b"Connection: close"]
    if body:
        lines.append(b"Content-Length: %d" % len(body))
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_SECONDS) as connection:
        connection.sendall(b"\r\n".join([*lines, b"", b""]) + body)
        answer = b""
        while part := connection.recv(65_536):
            answer += part
    return int(answer.split(b" ", 2)[1]), answer


def status(port: int, *headers: bytes, **request: Any) -> int:
    return ask(port, *headers, **request)[0]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:80", "localhost", "LOCALHOST:65535", "[::1]:1"])
def test_a_host_that_names_this_machine_is_served(port: int, host: str) -> None:
    assert status(port, f"Host: {host}".encode()) == 200


FOREIGN_HOSTS = [
    b"a{b}.evil.com",
    b"evil.example",
    b"",
    b" ",
    b"localhost.",
    b"localhost.evil.com",
    b"127.0.0.1.evil.com",
    b"127.0.0.1@evil.com",
    b"evil.com@127.0.0.1",
    b"127.0.0.1:80@evil.com",
    b"localhost:",
    b"localhost:80:80",
    b"localhost:1e3",
    b"localhost:\xb2",
    b"localhost:123456",
    b"127.1",
    b"2130706433",
    b"0x7f.0.0.1",
    b"0.0.0.0",
    b"::1",
    b"[::1",
    b"[::1]evil.com",
    b"[::ffff:127.0.0.1]",
    b"[0:0:0:0:0:0:0:1]",
    b"localhost/evil.com",
    b"localhost#.evil.com",
    b"localhost?.evil.com",
    b"localhost,evil.com",
    b"localhost evil.com",
    b"loc%61lhost",
    b"\xff",
    b"a" * 5000,
]


@pytest.mark.parametrize("host", FOREIGN_HOSTS, ids=lambda host: ascii(host)[:40])
def test_any_other_host_is_rejected(port: int, host: bytes) -> None:
    for path in ("/v1/models", "/health"):
        assert status(port, b"Host: " + host, path=path) in (400, 403)


@settings(max_examples=30)
@given(host=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30))
def test_no_host_but_the_three_is_served(port: int, host: str) -> None:
    name = host.lower()
    for allowed in ("127.0.0.1", "localhost", "[::1]"):
        rest = name.removeprefix(allowed)
        if rest != name and (not rest or (rest[0] == ":" and rest[1:].isdecimal() and len(rest) < 7)):
            return
    assert status(port, b"Host: " + host.encode()) in (400, 403)


LOCAL = b"Host: localhost:1"
JSON = b"Content-Type: application/json"
CHAT = json.dumps({"model": "other", "messages": [{"role": "user", "content": "?"}]}).encode()


def post(port: int, *headers: bytes) -> int:
    return status(port, LOCAL, *headers, method="POST", path="/v1/chat/completions", body=CHAT)


def test_a_post_must_say_that_it_is_json(port: int) -> None:
    assert post(port, JSON) == 404, "there is no such model"
    assert post(port, b"Content-Type: application/json; charset=utf-8") == 404
    for wrong in (b"", b"text/plain", b"application/json, text/plain", b"application/jsonp", b"*/*"):
        assert post(port, b"Content-Type: " + wrong) == 415
    assert post(port) == 415
    assert post(port, JSON, b"Content-Type: text/plain") == 415


@pytest.mark.parametrize(
    "origin",
    [b"null", b"http://evil.example", b"", b"http://localhost:2", b"https://localhost:1", b"localhost:1"],
    ids=repr,
)
def test_a_page_of_another_origin_is_rejected(port: int, origin: bytes) -> None:
    assert post(port, JSON, b"Origin: " + origin) == 403
    assert status(port, LOCAL, b"Origin: " + origin) == 403


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=HANG_SECONDS)


def closed(connection: socket.socket) -> bool:
    """Whether the server has closed a connection without an answer."""
    with suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


def answered(connection: socket.socket) -> bytes:
    """A complete answer, which is a JSON object."""
    answer = b""
    while not answer.endswith(b"}"):
        part = connection.recv(65_536)
        assert part, answer
        answer += part
    return answer


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Hasty(TimeLimitedConnection):
    head_seconds = 0.2


def test_a_head_that_drips_or_never_comes_ends_the_connection() -> None:
    with running(Hasty) as port:
        with connect(port) as silent:
            assert closed(silent)
        with connect(port) as slow:
            with suppress(ConnectionError):
                slow.sendall(HEALTH[:-2])
                for number in range(10_000):  # each byte comes well within the time
                    slow.sendall(b"x")
                    threading.Event().wait(0.02)
                    assert number < 5_000
            assert closed(slow)
        with connect(port) as further:
            further.sendall(HEALTH)
            assert answered(further).startswith(b"HTTP/1.1 200")
            further.sendall(b"G")
            assert closed(further)


def test_a_body_that_is_never_sent_holds_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_app, "MAX_BODY_SECONDS", 0.2)
    with running(Hasty) as port, connect(port) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{"
        )
        assert answered(connection).startswith(b"HTTP/1.1 408")
        with suppress(ConnectionError):
            connection.sendall(b"x")  # nobody reads it any more
        assert closed(connection)


class Few(TimeLimitedConnection):
    max_idle = 3


def test_too_many_idle_connections_cost_the_one_that_waits_longest() -> None:
    with running(Few) as port:
        waiting = [connect(port) for _ in range(3)]
        assert status(port, LOCAL) == 200, "a client that asks is served"
        assert closed(waiting[0])
        for connection in waiting[1:]:
            connection.sendall(HEALTH)
            assert answered(connection).startswith(b"HTTP/1.1 200")
        for connection in waiting:
            connection.close()
        until(lambda: status(port, LOCAL) == 200)


def environment(*places: Path) -> dict[str, str]:
    path = [*map(str, places), str(REPOSITORY), str(REPOSITORY / "src")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def test_a_missing_package_is_reported_with_its_extra(models: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['torch'] = None")
    done = subprocess.run(
        [sys.executable, "-m", "pytest_trace2evolve.cli", "serve", str(models / "base")],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "trace2evolve: 'torch' is not installed; run: pip install 'pytest-trace2evolve[local]'\n"
    )


def test_a_server_prints_its_address_and_ends_by_a_signal_in_good_order(models: Path) -> None:
    command = ["-m", "pytest_trace2evolve.cli", "serve", str(models / "base")]
    with subprocess.Popen(
        [sys.executable, *command],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        line, token = server.stdout.readline(), server.stdout.readline()
        url = re.fullmatch(r"serving base on cpu at (http://127\.0\.0\.1:\d+/v1)\n", line)
        assert url is not None, line
        key = token.removeprefix("token: ").strip()
        models_list = httpx2.get(f"{url[1]}/models", headers={"Authorization": f"Bearer {key}"}).json()
        assert models_list["data"][0]["id"] == "base"
        server.send_signal(signal.SIGTERM)
        assert server.wait(HANG_SECONDS) == 0
        assert (server.stdout.read(), server.stderr.read()) == ("", "")


HANGING = """
import sys, time
from pytest_trace2evolve.serving import chat_format, loading, server
def hang():
    print("hangs", flush=True)
    while True:
        time.sleep(3600)
forward, prompt = loading.Decoder.forward, chat_format.ChatFormat.prompt
def pass_or_hang(self, tokens, *given):
    return hang() if tokens.shape[1] > 2 else forward(self, tokens, *given)
def prompt_or_hang(self, request):
    return hang() if request.max_tokens == 7 else prompt(self, request)
loading.Decoder.forward, chat_format.ChatFormat.prompt = pass_or_hang, prompt_or_hang
server.END_SECONDS = server.GRACE_SECONDS = 0.2
from pytest_trace2evolve.cli.main import main
sys.exit(main(["serve", sys.argv[1], "--no-token"]))
"""


def test_a_server_ends_though_its_threads_hang(models: Path) -> None:
    """The model's thread and the template's cannot be ended; the process is."""
    with subprocess.Popen(
        [sys.executable, "-c", HANGING, str(models / "base")],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            url = re.search(r"http://127\.0\.0\.1:(\d+)", server.stdout.readline())
            assert url is not None
            assert server.stdout.readline().startswith("no token: ")
            for limit in (1, 7):
                asked = {"model": "base", "messages": [{"role": "user", "content": "?"}], "max_tokens": limit}
                body = json.dumps(asked).encode()
                with connect(int(url[1])) as connection:
                    connection.sendall(
                        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
                    )
                    assert server.stdout.readline() == "hangs\n"
            server.send_signal(signal.SIGINT)
            assert server.wait(HANG_SECONDS) == 130
        finally:
            server.kill()


def test_a_server_whose_parent_gave_it_no_pipe_ends(models: Path) -> None:
    line = f"exec {sys.executable} -m pytest_trace2evolve serve {models / 'base'} --parent-pipe <&-"
    done = subprocess.run(["sh", "-c", line], env=environment(), capture_output=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
