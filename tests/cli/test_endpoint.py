"""`trace2evolve check --model` against endpoints that support, ignore and refuse features."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from pytest_trace2evolve.cli.main import main
from tests.own_agents import http_server

Answer = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "good")


def check(capsys: pytest.CaptureFixture[str], answer: Answer) -> tuple[int, list[str], str]:
    """The exit status, the lines, and the URL of the endpoint."""

    def reply(method: str, record: Any) -> tuple[int, bytes]:
        status, body = answer(record)
        return status, json.dumps(body).encode()

    with http_server(reply) as url:
        base_url = url.removesuffix("/chat")
        status = main(["check", "--model", "m", "--base-url", base_url])
    return status, [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()], base_url


def completion(content: str, n_calls: int = 0, prompt_tokens: int = 5_000) -> tuple[int, dict[str, Any]]:
    function = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    calls = [{"id": f"c{n}", "type": "function", "function": function} for n in range(n_calls)]
    message = {"role": "assistant", "content": content, "tool_calls": calls}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 3}
    return 200, {"choices": [{"index": 0, "message": message}], "usage": usage}


def capable(record: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    text = record["messages"][-1]["content"]
    n_calls = 2 if "Rome" in text else int("tool" in text or record.get("tool_choice") == "required")
    return completion(f"The sea {record.get('seed')}.", n_calls)


def test_an_endpoint_with_every_feature(capsys: pytest.CaptureFixture[str]) -> None:
    status, lines, _ = check(capsys, capable)
    assert status == 0
    names = ("plain", "tools", "forced tool", "two calls at once", "long history", "seed")
    assert lines == [f"{name} works" for name in names]


def test_an_endpoint_that_ignores_everything(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = itertools.count()
    status, lines, url = check(
        capsys, lambda record: completion(f"Number {next(numbers)}.", prompt_tokens=len(record["messages"]))
    )
    assert status == 1
    assert lines[0] == "plain works"
    assert lines[1].startswith(
        f"tools refused {url} ignores the tools of model 'm': with and without 1 tools,"
    )
    assert lines[2:] == [
        "forced tool ignored suites with solo = true need it",
        "two calls at once ignored tasks take more turns",
        "long history ignored messages are dropped silently",
        "seed ignored --t2e-seed does not make runs repeatable",
    ]


def test_an_endpoint_that_refuses_tools(capsys: pytest.CaptureFixture[str]) -> None:
    def answer(record: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if "tools" in record:
            return 400, {"error": {"message": "m does not support tools", "type": "api_error"}}
        return completion("The sea.")

    status, lines, url = check(capsys, answer)
    assert status == 1
    problem = f"{url} rejects the request to model 'm': unknown error of the endpoint: 400 m does not support"
    assert [line.split(problem)[0] for line in lines] == [
        "plain works",
        "tools refused ",
        "forced tool refused ",
        "two calls at once refused ",
        "long history refused ",
        "seed works",
    ]


def test_an_endpoint_that_refuses_the_key_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    status, lines, url = check(capsys, lambda record: (401, {"error": {"message": "No such key."}}))
    assert status == 1
    assert lines == [f"plain refused {url} rejects model 'm': 401 No such key.; check OPENAI_API_KEY"]


def test_a_base_url_that_is_none_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--model", "m", "--base-url", "localhost"]) == 2
    assert capsys.readouterr().err == (
        "trace2evolve: the base URL of model 'm' is not an http:// or https:// URL with a host; "
        "check --base-url\n"
    )
