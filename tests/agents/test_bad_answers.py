"""Endpoints that answer 200 with something that is no answer lose the simulation; the agent is not at fault.

The agents use the client of OpenAI, with and without streams, as agents of a project do.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.engine.proxied_answers import stream_fault
from pytest_trace2evolve.records.trace import Simulation
from tests.own_agents import Runner, http_server, texts_of

BOT = """
import os
import openai

def ask(message, stream, model="m"):
    client = openai.OpenAI(max_retries=0)
    messages = [{"role": "user", "content": message}]
    answer = client.chat.completions.create(model=model, messages=messages, stream=stream)
    if not stream:
        return answer.choices[0].message.content
    return "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)

def agent(run):
    return lambda tools, candidate: lambda message: run(message, candidate.parameters["stream"])

def swallow(message, stream):
    try:
        return ask(message, stream)
    except Exception:
        return "I cannot help."

def retry(message, stream):
    for _ in range(3):
        try:
            return ask(message, stream)
        except openai.APIError:
            pass
    raise RuntimeError("no answer")

def fall_back(message, stream):
    try:
        return ask(message, stream)
    except openai.APIError:
        return ask(message, stream, "n")

def leave(message, stream):
    try:
        return ask(message, stream)
    except Exception:
        os._exit(1)

def return_nothing(message, stream):
    try:
        return ask(message, stream)
    except Exception:
        return None

raises, swallows, retries, falls_back, exits, returns_nothing = map(
    agent, (ask, swallow, retry, fall_back, leave, return_nothing))
"""

CHUNKS = [
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {"content": "fine"}, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1}},
]


def events(*records: Any, end: bytes = b"data: [DONE]\n\n") -> bytes:
    return b"".join(b"data: " + json.dumps(record).encode() + b"\n\n" for record in records) + end


def completion(**changes: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}
    record = {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [choice],
        **changes,
    }
    return json.dumps({name: value for name, value in record.items() if value != "absent"}).encode()


GOOD = {False: completion(), True: events(*CHUNKS)}

ERROR = {"error": {"message": "upstream is overloaded", "code": 502}}

BAD_PLAIN = {
    "an error": json.dumps(ERROR).encode(),
    "an error as text": b'{"error": "upstream is overloaded"}',
    "an error next to a message": completion(**ERROR),
    "empty choices": completion(choices=[]),
    "null choices": completion(choices=None),
    "no choices": completion(choices="absent"),
    "a null choice": completion(choices=[None]),
    "a null message": completion(choices=[{"index": 0, "message": None, "finish_reason": "stop"}]),
    "no message": completion(choices=[{"index": 0, "finish_reason": "stop"}]),
    "a choice that failed": completion(
        choices=[{"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "error"}]
    ),
    "a choice with a failure": completion(
        choices=[{"index": 0, "message": {"role": "assistant", "content": "fi"}, **ERROR}]
    ),
    "a page": b"<html>Welcome to the gateway</html>",
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "half of the JSON": completion()[:-40],
    "a stream": events(*CHUNKS),
}

BAD_STREAMS = {
    "an error": json.dumps(ERROR).encode(),
    "an error first": events(ERROR),
    "an error later": events(*CHUNKS[:2], ERROR),
    "an error in a chunk": events(CHUNKS[0], {**CHUNKS[1], **ERROR}),
    "an error event": b"event: error\n" + events(ERROR, end=b""),
    "an error with a type": events(*CHUNKS[:2], {"type": "error", "message": "overloaded"}),
    "no events": events(),
    "empty choices only": events({"choices": []}),
    "null choices": events({"choices": None}),
    "no choices": events({"id": "x"}),
    "a null delta": events({"choices": [{"index": 0, "delta": None}]}),
    "a page": b"<html>Welcome to the gateway</html>",
    "nothing": b"",
    "a chunk that failed": events(
        *CHUNKS[:2], {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}]}
    ),
    "cut in a chunk": events(*CHUNKS)[:-70],
    "cut between chunks": events(*CHUNKS[:2], end=b""),
    "one of two choices ends": events(
        {"choices": [{"index": 1, "delta": {"content": "a"}}]}, *CHUNKS[:3], end=b""
    ),
    "odd choices": events({"choices": 5}),
    "no stream": completion(),
}

BAD = [(False, name) for name in BAD_PLAIN] + [(True, name) for name in BAD_STREAMS]


def body_of(is_stream: bool, name: str) -> bytes:
    return (BAD_STREAMS if is_stream else BAD_PLAIN)[name]


def simulate(folder: Path, agent: str, is_stream: bool, answers: Iterator[bytes]) -> Simulation:
    (folder / "bot.py").write_text(BOT)
    with http_server(lambda method, record: (200, next(answers))) as url:
        runner = Runner(
            f"bot:{agent}",
            folder,
            url.removesuffix("/chat"),
            messages=["Hello."],
            parameters={"stream": is_stream},
        )
        (done,) = runner.run()
    return done


def repeated(body: bytes) -> Iterator[bytes]:
    while True:
        yield body


@pytest.mark.parametrize(("is_stream", "name"), BAD)
def test_a_simulation_without_an_answer_is_lost(tmp_path: Path, is_stream: bool, name: str) -> None:
    done = simulate(tmp_path, "swallows", is_stream, repeated(body_of(is_stream, name)))
    assert done.termination_reason == "infrastructure_error", done
    assert "answered 200 with something that is no answer: " in done.error_text
    assert ("overloaded" in done.error_text) == ("an error" in name)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("agent", ["raises", "swallows", "retries", "falls_back", "exits", "returns_nothing"])
def test_it_is_lost_whatever_the_agent_does_then(tmp_path: Path, agent: str, is_stream: bool) -> None:
    done = simulate(tmp_path, agent, is_stream, repeated(body_of(is_stream, "an error")))
    assert done.termination_reason == "infrastructure_error", done


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("agent", ["retries", "falls_back"])
def test_an_agent_that_gets_an_answer_in_the_end_is_measured(
    tmp_path: Path, agent: str, is_stream: bool
) -> None:
    answers = iter([body_of(is_stream, "an error"), GOOD[is_stream]])
    done = simulate(tmp_path, agent, is_stream, answers)
    assert done.termination_reason == "user_stop", done.error_text
    assert texts_of(done) == ["fine"]


GOOD_STREAMS = {
    "usual": GOOD[True],
    "CRLF and comments": b": processing\r\n\r\n" + GOOD[True].replace(b"\n", b"\r\n"),
    "no [DONE]": events(*CHUNKS, end=b""),
    "no finish reason": events(*CHUNKS[:2]),
    "no blank line at the end": events(*CHUNKS, end=b"data: [DONE]"),
}


@pytest.mark.parametrize("name", GOOD_STREAMS)
def test_streams_that_are_complete_are_answers(tmp_path: Path, name: str) -> None:
    done = simulate(tmp_path, "raises", True, repeated(GOOD_STREAMS[name]))
    assert done.termination_reason == "user_stop", done.error_text
    assert texts_of(done) == ["fine"]


@given(st.data())
def test_a_stream_that_is_cut_anywhere_before_its_last_choice_is_no_answer(data: st.DataObject) -> None:
    content = GOOD[True]
    end = content.index(b'"stop"') + len(b'"stop"}]}')
    assert stream_fault("choices", content[:end]) == ""
    cut = data.draw(st.integers(0, end - 1))
    assert stream_fault("choices", content[:cut])


RESPONSES = {
    "a failed response": {"object": "response", "status": "failed", "output": [], "error": {"message": "x"}},
    "no output": {"object": "response", "status": "completed", "output": []},
    "an error": ERROR,
}


class Asking:
    """An HTTP agent that asks its model at a path, and answers 500 if that fails."""

    def __init__(self, path: str, record: dict[str, Any]) -> None:
        self.path, self.record = path, record

    def __call__(self, method: str, record: Any) -> tuple[int, bytes]:
        if record is None or "model_api" not in record:
            return 200, b"{}"
        request = urllib.request.Request(
            record["model_api"]["base_url"] + self.path, json.dumps(self.record).encode()
        )
        try:
            with urllib.request.urlopen(request) as response:
                return 200, json.dumps({"reply": response.read().decode()}).encode()
        except urllib.error.HTTPError:
            return 500, b"my model failed"


def ask_over_http(folder: Path, path: str, record: dict[str, Any], body: bytes) -> Simulation:
    with http_server(lambda *_: (200, body)) as model, http_server(Asking(path, record)) as url:
        (done,) = Runner(url, folder, model.removesuffix("/chat"), messages=["Hello."]).run()
    return done


@pytest.mark.parametrize("name", RESPONSES)
def test_an_agent_over_http_that_fails_without_its_model_is_lost(tmp_path: Path, name: str) -> None:
    done = ask_over_http(tmp_path, "/responses", {"model": "m"}, json.dumps(RESPONSES[name]).encode())
    assert done.termination_reason == "infrastructure_error", done


STREAMS_OF_RESPONSES: dict[str, tuple[bytes, str]] = {
    "completed": (events({"type": "response.completed", "response": {"output": []}}, end=b""), "user_stop"),
    "cut": (events({"type": "response.output_text.delta"}, end=b""), "infrastructure_error"),
    "failed": (events({"type": "response.failed", "response": {}}, end=b""), "infrastructure_error"),
    "an error": (events({"type": "error", "message": "x"}, end=b""), "infrastructure_error"),
}


@pytest.mark.parametrize("name", STREAMS_OF_RESPONSES)
def test_streams_of_the_responses_api(tmp_path: Path, name: str) -> None:
    body, expected = STREAMS_OF_RESPONSES[name]
    done = ask_over_http(tmp_path, "/responses", {"model": "m", "stream": True}, body)
    assert done.termination_reason == expected, done.error_text


OTHER_PATHS: dict[str, Callable[[], tuple[str, bytes, str]]] = {
    "embeddings": lambda: ("/embeddings", b'{"data": [{"embedding": [1.0]}]}', "user_stop"),
    "no embeddings": lambda: ("/embeddings", json.dumps(ERROR).encode(), "infrastructure_error"),
    "texts": lambda: ("/completions", b'{"choices": [{"text": "a"}]}', "user_stop"),
    "an unknown API": lambda: ("/rerank", b'{"results": [], "error": "none"}', "user_stop"),
}


@pytest.mark.parametrize("name", OTHER_PATHS)
def test_other_apis(tmp_path: Path, name: str) -> None:
    path, body, expected = OTHER_PATHS[name]()
    assert ask_over_http(tmp_path, path, {"model": "m"}, body).termination_reason == expected
