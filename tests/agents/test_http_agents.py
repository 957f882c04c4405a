"""Agents behind HTTP: the protocol, and what every kind of bad answer ends in."""

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.engine.http_agent import read_version
from pytest_trace2evolve.records.completion import usage_of
from tests.own_agents import Runner, calls_of, chat_server, http_server, texts_of


class Bot:
    """An agent that reads note N1, and then writes two notes at once; it keeps all requests."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    def __call__(self, method: str, record: Any) -> tuple[int, bytes]:
        if method == "GET":
            return 200, b'{"version": "1.4"}'
        self.requests.append(record)
        return 200, json.dumps(self.answer(record)).encode()

    def answer(self, record: dict[str, Any]) -> dict[str, Any]:
        if "end" in record:
            return {}
        if "results" in record:
            return {"reply": " ".join(result["content"] for result in record["results"])}
        if "N1" in record["message"]:
            return {"calls": [{"id": "a", "name": "read_note", "arguments": '{"note_id": "N1"}'}]}
        call = {"name": "write_note", "arguments": {"note_id": "N2", "text": "x"}}
        return {"calls": [{**call, "id": "b"}, {"name": "absent", "arguments": "no JSON"}]}


def test_a_conversation_over_http(tmp_path: Path) -> None:
    bot = Bot()
    with http_server(bot) as url:
        runner = Runner(url, tmp_path, parameters={"temperature": 0.5})
        first, second = runner.run(2)
    assert texts_of(first) == texts_of(second)
    assert texts_of(first) == ["milk", "N2 is written. Error: Tool 'absent' not found."]
    assert calls_of(first)[1:] == [
        ("write_note", {"note_id": "N2", "text": "x"}),
        ("absent", {"malformed_arguments": "no JSON"}),
    ]
    opening, results, message, more_results, end = bot.requests[:5]
    session = opening["session"]
    assert session != bot.requests[5]["session"]
    assert opening["candidate"] == {
        "id": "v0",
        "prompt": "Keep the notes tidy.\n\nBe brief.",
        "instruction": "Be brief.",
        "model": "gpt-test",
        "parameters": {"temperature": 0.5},
        "trial": 0,
    }
    assert [tool["name"] for tool in opening["tools"]] == ["read_note", "write_note", "sign"]
    assert opening["tools"][0]["parameters"]["required"] == ["note_id"]
    assert results == {"session": session, "results": [{"id": "a", "content": "milk", "error": False}]}
    assert message == {"session": session, "message": "Please write note N2."}
    assert [result["error"] for result in more_results["results"]] == [False, True]
    assert end == {"session": session, "end": True}


def test_requests_to_models_through_the_proxy_count(tmp_path: Path) -> None:
    urls: dict[str, str] = {}

    class Asking(Bot):
        def answer(self, record: dict[str, Any]) -> dict[str, Any]:
            if "end" in record:
                return {}
            if "model_api" in record:
                urls[record["session"]] = record["model_api"]["base_url"]
            body = json.dumps({"model": "m", "messages": [{"role": "user", "content": record["message"]}]})
            url = urls[record["session"]] + "/chat/completions"
            with urllib.request.urlopen(urllib.request.Request(url, body.encode())) as response:
                return {"reply": json.load(response)["choices"][0]["message"].get("content") or "none"}

    with chat_server() as server, http_server(Asking()) as url:
        (done,) = Runner(url, tmp_path, server.base_url).run()
        count = server.count
    assert done.termination_reason == "user_stop", done.error_text
    used = usage_of(done.trace, "assistant")
    assert (used.prompt_tokens, used.completion_tokens) == (count.prompt_tokens, count.completion_tokens)


BAD: dict[str, tuple[int, bytes, str]] = {
    "no JSON": (200, b"<html>", "sent no JSON object: '<html>'"),
    "a list": (200, b"[]", "sent no JSON object"),
    "nothing": (200, b"{}", "the answer has not exactly one of 'reply' and 'calls'"),
    "both": (200, b'{"reply": "x", "calls": [{"name": "x"}]}', "not exactly one of"),
    "no text": (200, b'{"reply": 5}', "'reply' is a JSON int, not a text"),
    "no list": (200, b'{"calls": "x"}', "'calls' is not a list of at most 128 calls"),
    "no name": (200, b'{"calls": [{"id": "1"}]}', "a call has no 'name'"),
    "equal ids": (200, b'{"calls": [{"id": "1", "name": "a"}, {"id": "1", "name": "b"}]}', "the same id"),
    "a long reply": (200, b'{"reply": "' + b"x" * 2_000_000 + b'"}', "'reply' has 2,000,000 characters"),
    "too many bytes": (200, b"x" * (9 << 20), "the answer is larger than 8 MiB"),
    "not found": (404, b"no such bot", "answered 404: 'no such bot'"),
    "its own error": (500, b"Traceback", "answered 500: 'Traceback'"),
    "a redirect": (302, b"", "answered 302"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_is_the_agents_failure(tmp_path: Path, name: str) -> None:
    status, content, problem = BAD[name]
    with http_server(lambda *_: (status, content)) as url:
        (done,) = Runner(url, tmp_path).run()
    assert done.termination_reason == "agent_error"
    assert problem in done.error_text


@pytest.mark.parametrize("status", [0, 408, 429, 502, 503])
def test_a_service_that_fails_loses_the_simulation(tmp_path: Path, status: int) -> None:
    with http_server(lambda *_: (status, b"busy")) as url:
        (done,) = Runner(url, tmp_path).run()
    assert done.termination_reason == "infrastructure_error"
    assert url in done.error_text


def test_an_endpoint_that_is_gone_or_silent_loses_the_simulation(tmp_path: Path) -> None:
    import threading

    with http_server(Bot()) as url:
        pass
    (done,) = Runner(url, tmp_path).run()
    assert done.error_text.startswith(f"{url} cannot be reached: ConnectError")
    ended = threading.Event()

    def wait(*_: Any) -> tuple[int, bytes]:
        ended.wait()
        return 0, b""

    with http_server(wait) as url:
        (done,) = Runner(url, tmp_path, timeout=3.0).run()
        ended.set()
    assert done.termination_reason == "infrastructure_error"
    assert "gave no answer within 3 seconds" in done.error_text


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        (lambda *_: (200, b'{"version": "1.4"}'), "1.4"),
        (lambda *_: (200, b'{"version": 7}'), "7"),
        (lambda *_: (200, b"hello"), ""),
        (lambda *_: (200, b'{"version": ["x"]}'), ""),
        (lambda *_: (405, b""), ""),
        (lambda *_: (200, b'{"version": "' + b"9" * 999 + b'"}'), "9" * 200),
    ],
)
def test_a_version_identifies_an_agent(answer: Callable[..., tuple[int, bytes]], version: str) -> None:
    with http_server(answer) as url:
        assert read_version(url) == version
