"""Whom a server answers: names, origins, content types, and connections that only wait."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.errors import ModelFolderError
from pytest_trace2evolve.serving import app as serving_app
from pytest_trace2evolve.serving.app import ChatApp
from pytest_trace2evolve.serving.folder import require_name
from pytest_trace2evolve.serving.server import GuardedConnection
from tests.patience import HANG_SECONDS, until


@contextmanager
def server(connection: type[GuardedConnection] = GuardedConnection) -> Iterator[int]:
    """The port of a server without a model and without a token."""
    engine = cast("Any", SimpleNamespace(running=0, waiting=0))
    app = ChatApp(engine, cast("Any", None), name="base")
    config = uvicorn.Config(
        app.app, http=connection, ws="none", log_level="critical", access_log=False, lifespan="off"
    )
    running = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            running.should_exit = True
            running.force_exit = True
            thread.join()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with server() as found:
        yield found


def ask(port: int, *headers: bytes, method: str = "GET", path: str = "/v1/models", body: bytes = b"") -> int:
    """The status of an answer to exactly these headers."""
    lines = [f"{method} {path} HTTP/1.1".encode(), *headers, b"Connection: close"]
    if body:
        lines.append(b"Content-Length: %d" % len(body))
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_SECONDS) as one:
        one.sendall(b"\r\n".join([*lines, b"", b""]) + body)
        got = b""
        while part := one.recv(65_536):
            got += part
    return int(got.split(b" ", 2)[1])


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:80", "localhost", "LOCALHOST:65535", "[::1]:1"])
def test_a_name_of_this_machine_is_served(port: int, host: str) -> None:
    assert ask(port, f"Host: {host}".encode()) == 200


FOREIGN = [
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


@pytest.mark.parametrize("host", FOREIGN, ids=lambda host: ascii(host)[:40])
@pytest.mark.parametrize("path", ["/v1/models", "/health"])
def test_any_other_host_is_refused(port: int, host: bytes, path: str) -> None:
    assert ask(port, b"Host: " + host, path=path) in (400, 403)


def test_two_hosts_or_none_are_refused(port: int) -> None:
    assert ask(port, b"Host: localhost", b"Host: evil.com") in (400, 403)
    assert ask(port, b"Host: evil.com", b"Host: localhost") in (400, 403)
    assert ask(port) in (400, 403)


@given(host=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30))
def test_no_host_but_the_three_is_served(port: int, host: str) -> None:
    name = host.lower()
    for allowed in ("127.0.0.1", "localhost", "[::1]"):
        rest = name.removeprefix(allowed)
        if rest != name and (not rest or (rest[0] == ":" and rest[1:].isdecimal() and len(rest) < 7)):
            return
    assert ask(port, b"Host: " + host.encode()) in (400, 403)


LOCAL = b"Host: localhost:1"
JSON = b"Content-Type: application/json"
CHAT = json.dumps({"model": "other", "messages": [{"role": "user", "content": "?"}]}).encode()


def post(port: int, *headers: bytes) -> int:
    return ask(port, LOCAL, *headers, method="POST", path="/v1/chat/completions", body=CHAT)


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
def test_a_page_of_another_origin_is_refused(port: int, origin: bytes) -> None:
    assert post(port, JSON, b"Origin: " + origin) == 403
    assert ask(port, LOCAL, b"Origin: " + origin) == 403


def test_the_own_origin_is_served_and_two_are_not(port: int) -> None:
    own = b"Origin: http://localhost:1"
    assert post(port, JSON, own) == 404
    assert post(port, JSON, own, own) == 403


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=HANG_SECONDS)


def closed(one: socket.socket) -> bool:
    """Whether the server has closed a connection that it answered nothing on."""
    with suppress(ConnectionError):
        return one.recv(1) == b""
    return True


def answered(one: socket.socket) -> bytes:
    """A whole answer, which is a JSON object."""
    got = b""
    while not got.endswith(b"}"):
        part = one.recv(65_536)
        assert part, got
        got += part
    return got


class Hasty(GuardedConnection):
    head_seconds = 0.2


def test_a_head_that_drips_or_never_comes_ends_the_connection() -> None:
    with server(Hasty) as port:
        with connect(port) as silent:
            assert closed(silent)
        with connect(port) as slow:
            with suppress(ConnectionError):
                slow.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
                for number in range(10_000):  # each byte comes well within the time
                    slow.sendall(b"x")
                    threading.Event().wait(0.02)
                    assert number < 5_000
            assert closed(slow)
        with connect(port) as further:
            further.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answered(further).startswith(b"HTTP/1.1 200")
            further.sendall(b"G")
            assert closed(further)


def test_a_body_that_is_never_sent_holds_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_app, "BODY_SECONDS", 0.2)
    with server(Hasty) as port, connect(port) as one:
        one.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{"
        )
        assert answered(one).startswith(b"HTTP/1.1 408")
        with suppress(ConnectionError):
            one.sendall(b"x")  # nobody reads it any more
        assert closed(one)


class Few(GuardedConnection):
    max_idle = 3


def test_too_many_idle_connections_cost_the_one_that_waits_longest() -> None:
    with server(Few) as port:
        waiting = [connect(port) for _ in range(3)]
        assert ask(port, LOCAL) == 200, "a client that asks is served"
        assert closed(waiting[0])
        for one in waiting[1:]:
            one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answered(one).startswith(b"HTTP/1.1 200")
        for one in waiting:
            one.close()
        until(lambda: ask(port, LOCAL) == 200)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/../b",
        "/etc",
        "a//b",
        "a\\b",
        "a\nb",
        "\x1b[31mb",
        " a",
        "\u202eb",
        "a" * 201,
    ],
    ids=ascii,
)
def test_a_name_that_is_a_path_or_steers_a_terminal_is_refused(name: str) -> None:
    with pytest.raises(ModelFolderError, match=r"^adapter .*: not a name: take at most 200") as caught:
        require_name("adapter", name)
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize("name", ["v1", "org/model-7b.q4", "Möwe", "a b", "a" * 200])
def test_a_plain_name_is_taken(name: str) -> None:
    require_name("adapter", name)


def test_serve_refuses_such_names(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pytest_trace2evolve.cli.main import main

    base = str(models / "base")
    for arguments in (["--adapter", f"../x={models / 'one'}"], ["--name", "a\x1b[2J"]):
        assert main(["serve", base, *arguments]) == 2
        err = capsys.readouterr().err
        assert "not a name: take at most 200 printable characters" in err
        assert "\x1b" not in err
