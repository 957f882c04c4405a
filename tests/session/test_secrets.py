"""Planted secrets: none that an endpoint echoes reaches a file, a log, a report or the screen."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator

import pytest

from pytest_trace2evolve.testing import ChatRequest, ChatServer, Reply
from tests.plugin.conftest import DeskProject, project
from tests.session.test_live import SOLVED

__all__ = ["project"]

KEY = "sk-planted/0123456789+key"
PASSWORD = "planted-pass-77"
EXTRA = "planted-extra-8899"
USER = f"me:{PASSWORD}@"
BASIC = "Basic bWU6cGxhbnRlZC1wYXNzLTc3"
PLANTED = (KEY, PASSWORD, EXTRA, BASIC.split()[1])
ESCAPED = "".join(f"\\u{ord(letter):04x}" for letter in KEY)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def echo(request: ChatRequest) -> Reply:
    """An agent that tells all secrets, in its text and in arguments of a tool, and solves nothing."""
    if "<scenario>" in request.system:
        return SOLVED(request)
    expected = sum(message["role"] == "assistant" for message in request.messages)
    if expected == 1:
        return Reply(tool_calls=(("get_ticket", f'{{"ticket_id": "{ESCAPED}", "{KEY}": "{EXTRA}"}}'),))
    return Reply(f"Your key is {KEY}, your password {PASSWORD}, and more: {request.body['api_key']}")


@contextlib.contextmanager
def echoing(*, reject: bool = False) -> Iterator[tuple[ChatServer, set[str]]]:
    """A server that echoes what it knows in answers, response headers and, if it rejects, in errors.

    With it, the authorizations that it was sent.
    """
    authorizations: set[str] = set()

    def script(request: ChatRequest) -> Reply:
        sent = request.headers["authorization"]
        authorizations.add(sent)
        error = (401, f"Not allowed: {sent} {json.dumps(KEY)}") if reject else None
        return dataclasses.replace(echo(request), error=error, headers={"x-echo": f"Bearer {KEY}"})

    with ChatServer(script) as server:
        yield server, authorizations


def arguments(server: ChatServer, *, user: str = "") -> list[str]:
    """A session's options, with everything that could tell turned on."""
    return [
        "--t2e-model=m",
        f"--t2e-base-url={server.base_url.replace('//', f'//{user}')}",
        f'-ot2e_extra_body={{"api_key": "{EXTRA}", "top_k": 1}}',
        "--t2e-cache",
        "--t2e-record=cassette.jsonl",
        "--t2e-fresh",
        "-vv",
        "--showlocals",
        "--log-level=DEBUG",
        "--junitxml=report.xml",
        "-ojunit_logging=all",
    ]


def leaks(project: DeskProject, result: pytest.RunResult) -> list[str]:
    """Where a planted secret lies, of all that a session printed and wrote."""
    texts = {"stdout": result.stdout.str(), "stderr": result.stderr.str()}
    for path in project.root.rglob("*"):
        if path.is_file():
            texts[str(path)] = path.read_bytes().decode("utf-8", "replace")
    assert len(texts) > 15
    forms = [form for one in PLANTED for form in (one, json.dumps(one)[1:-1].replace("/", "\\/"))]
    return [name for name, text in texts.items() for form in (*forms, ESCAPED) if form in text]


def test_what_an_endpoint_echoes_reaches_nothing(project: DeskProject) -> None:
    with echoing() as (server, sent):
        result = project.spread(*arguments(server, user=USER))
        assert sent == {BASIC}
    assert result.parseoutcomes()["failed"] >= 5
    cassette = (project.root / "cassette.jsonl").read_text()
    assert "Your key is [removed], your password [removed], and more: [removed]" in cassette
    assert '"extra_body":{"api_key":"[removed]","top_k":1}' in cassette
    assert leaks(project, result) == []


def test_an_error_that_echoes_the_header_reaches_nothing(project: DeskProject) -> None:
    with echoing(reject=True) as (server, _):
        result = project.pytester.runpytest_inprocess(*arguments(server))
    assert result.ret not in (0, 10)
    result.stdout.fnmatch_lines(["*rejects model 'm': 401 Not allowed: Bearer [[]removed] *[[]removed]*"])
    assert leaks(project, result) == []


@pytest.mark.parametrize("side", ["", "user_", "baseline_"])
def test_a_key_where_its_variables_name_belongs_is_not_shown(project: DeskProject, side: str) -> None:
    result = project.pytester.runpytest_inprocess("--t2e-model=m", f"-ot2e_{side}api_key_env={KEY}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: t2e_api_key_env, t2e_user_api_key_env and t2e_baseline_api_key_env take the name *"]
    )
    assert KEY not in result.stderr.str() + result.stdout.str()


def test_a_base_url_that_is_none_is_not_shown(project: DeskProject) -> None:
    url = f"http://me:{PASSWORD}@host:port{PASSWORD}/v1"
    result = project.pytester.runpytest_inprocess("--t2e-model=m", f"--t2e-base-url={url}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: the base URL of model 'm' is not an http:// or https:// URL *"])
    assert PASSWORD not in result.stderr.str() + result.stdout.str()
