"""What the server refuses, in the API's own shape; and what clients do that no server should mind."""

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
import torch
import uvicorn

from pytest_trace2evolve.errors import ContextWindowError
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.serving import app as serving_app
from pytest_trace2evolve.serving.app import ChatApp
from pytest_trace2evolve.serving.chat_format import Writer
from pytest_trace2evolve.serving.engine import MAX_PROMPT, Answer, Engine, Job, PromptError
from pytest_trace2evolve.serving.folder import read_model
from pytest_trace2evolve.serving.loading import LoadedModel
from pytest_trace2evolve.serving.process import LocalServer
from tests.patience import HANG_SECONDS, until
from tests.serving.conftest import Asking, refusal
from tests.tiny_model import dialogue

HELLO = [{"role": "user", "content": "Hello."}]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"n": 2}, "n is not supported"),
        ({"stream": True}, "stream is not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format is not supported"),
        ({"frequency_penalty": 0.5}, "frequency_penalty is not supported"),
        ({"logit_bias": {"5": 100}}, "logit_bias is not supported"),
        ({"repetition_penalty": 1.3}, "repetition_penalty is not supported"),
        ({"foo": 1}, "foo is not supported: leave it out"),
        ({"messages": []}, "messages must be a list of one message or more"),
        ({"messages": "hi"}, "messages must be"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "messages[0].role must be one of"),
        ({"messages": [{"role": "user"}]}, "messages[0].content must be a string"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content must be"),
        ({"messages": [1, 2]}, "messages[0] must be an object"),
        ({"messages": [{"role": "user", "content": [1, 2]}]}, "messages[0].content[0] must be"),
        ({"messages": HELLO, "prompt": [1, 2]}, "prompt is not supported: leave it out"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "nothing else is served"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
        ({"temperature": "hot"}, "temperature must be a number from 0 to 2"),
        ({"temperature": True}, "temperature must be"),
        ({"temperature": -1}, "temperature must be"),
        ({"temperature": 10**400}, "temperature must be a number from 0 to 2"),
        ({"top_p": 1.5}, "top_p must be"),
        ({"max_tokens": 0}, "max_tokens must be a whole number of 1 or more"),
        ({"max_tokens": 2.5}, "max_tokens must be"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "differ"),
        ({"seed": "x"}, "seed must be"),
        ({"stop": [""]}, "stop must be"),
        ({"stop": 5}, "stop must be"),
        ({"top_logprobs": 3}, "top_logprobs needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs must be a whole number from 0 to 20"),
        ({"logprobs": "yes"}, "logprobs must be true or false"),
        ({"tools": {}}, "tools must be a list"),
        ({"tools": [{"type": "function"}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
            "tools[0].function.strict is not supported: leave it out",
        ),
        (
            {"messages": [{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}]},
            "messages[0].function_call is not supported: use tool_calls",
        ),
        ({"tool_choice": "maybe"}, "tool_choice must be"),
        ({"tool_choice": {"type": "function", "function": {"name": "fly"}}}, "names 'fly'"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice needs tools"),
        ({"chat_template_kwargs": {"tools": []}}, "must not hold 'tools'"),
        ({"chat_template_kwargs": {"return_dict": True}}, "must not hold 'return_dict'"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs must be an object"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_named(asking: Asking, fields: dict[str, Any], told: str) -> None:
    response = asking.post(**{"messages": HELLO, **fields})
    assert response.status_code == 400
    error = response.json()["error"]
    assert told in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] in {*fields, "max_tokens"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b'{"temperature": NaN}',
        b'{"a": "\\ud800"}',
        b"[" * 100_000,
        b"1" * 10_000,
    ],
    ids=repr,
)
def test_what_is_no_json_object_is_refused(asking: Asking, body: bytes) -> None:
    response = asking.client.post(
        "/chat/completions", content=body, headers={"Content-Type": "application/json"}
    )
    refusal(response, 400, None)


def test_a_body_of_tiny_values_is_refused_before_it_is_parsed(asking: Asking) -> None:
    body = b'{"metadata":[' + b"[]," * 1_000_000 + b"0]}"
    response = asking.client.post(
        "/chat/completions", content=body, headers={"Content-Type": "application/json"}
    )
    assert "more than 500,000 lists and objects" in refusal(response, 413, None)


@pytest.mark.parametrize("arguments", ['{"a": "\\ud800"}', '{"\\udfff": 1}', '{"a": NaN}'])
def test_arguments_that_no_template_can_write_stay_text(asking: Asking, arguments: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "find", "arguments": arguments}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    found = {"role": "tool", "tool_call_id": "1", "content": "x"}
    response = asking.post(messages=[*HELLO, said, found], max_tokens=2)
    assert response.status_code in (200, 400), response.text  # templates may want objects; never a fault


def test_a_prompt_that_cannot_fit_is_not_tokenized(asking: Asking) -> None:
    told = asking.refused(
        400, "context_length_exceeded", messages=[{"role": "user", "content": "a " * 1_000_000}]
    )
    assert "characters, too many for this model's context length" in told


def test_missing_fields_are_named(asking: Asking) -> None:
    for fields, name in (({"messages": HELLO}, "model"), ({"model": "base"}, "messages")):
        response = asking.client.post("/chat/completions", json=fields)
        assert refusal(response, 400, "missing_required_parameter") == f"{name} is missing"


def test_unknown_models_and_places_are_404(asking: Asking) -> None:
    told = asking.refused(404, "model_not_found", messages=HELLO, model="gpt")
    assert told == "the model 'gpt' does not exist; there are: base, one, two"
    refusal(asking.client.get("/models/gpt"), 404, "model_not_found")
    refusal(asking.client.get("/embeddings"), 404, "not_found")
    refusal(asking.client.get("/chat/completions"), 405, None)
    assert [one["id"] for one in asking.client.get("/models").json()["data"]] == ["base", "one", "two"]
    assert asking.client.get("/models/one").json()["parent"] == "base"


def test_a_prompt_that_does_not_fit_is_told_as_our_client_knows_it(asking: Asking) -> None:
    long = [{"role": "user", "content": "Hello. " * 900}]
    told = asking.refused(400, "context_length_exceeded", messages=long)
    assert told.startswith("this model's context length is 1024 tokens, and the prompt has ")
    settings = ModelSettings(model="base").served(asking.server.base_url, asking.server.token)

    async def asked() -> None:
        model = ChatModel(settings)
        try:
            await model.complete([{"role": "user", "content": "Hello. " * 900}], [], trial=0)
        finally:
            await model.close()

    with pytest.raises(ContextWindowError, match="context length is 1024 tokens"):
        asyncio.run(asked())


def test_only_who_brings_the_token_is_served(asking: Asking) -> None:
    url = asking.server.base_url
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {asking.server.token}"}):
        response = httpx2.post(f"{url}/chat/completions", json={}, headers=headers)
        refusal(response, 401, "invalid_api_key")
        refusal(httpx2.get(f"{url}/models", headers=headers), 401, "invalid_api_key")
    assert asking.health()["status"] == "ok"


def test_pages_of_a_browser_cannot_post_without_asking(asking: Asking) -> None:
    response = asking.client.post("/chat/completions", content=b"{}", headers={"Content-Type": "text/plain"})
    refusal(response, 415, None)


def test_too_large_a_body_is_refused(asking: Asking) -> None:
    response = asking.client.post("/chat/completions", json={"messages": "x" * (33 << 20)})
    refusal(response, 413, None)


class Gated:
    """A model whose every forward waits until the test lets it through.

    Attributes:
        begun: Forwards that began, the one that waits included.
        endless: Whether no token ends an answer.
    """

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._open = threading.Event()
        self._permits = threading.Semaphore(0)
        self.begun = 0
        self.endless = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    @property
    def ends(self) -> frozenset[int]:
        return frozenset() if self.endless else self._model.ends

    def forward(self, *given: Any) -> torch.Tensor:
        self.begun += 1
        assert self._permits.acquire(timeout=HANG_SECONDS), "the test never let it through"
        if self._open.is_set():
            self._permits.release()
        return self._model.forward(*given)

    def step(self) -> None:
        """Let the forward that waits through, and wait for the next."""
        begun = self.begun
        self._permits.release()
        until(lambda: self.begun > begun)

    def open(self) -> None:
        """Let all forwards through from now on."""
        self._open.set()
        self._permits.release()


class Kept(Engine):
    """An engine that records its requests."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.futures: list[Future[Answer]] = []
        super().__init__(*given, **named)

    def submit(self, job: Job) -> Future[Answer]:
        self.futures.append(super().submit(job))
        return self.futures[-1]


@dataclass
class Served:
    """A server in this process, over a model that moves only while its gate is open."""

    model: Gated
    engine: Kept
    asking: Asking

    def send(self, count: int) -> list[socket.socket]:
        """Requests whose answers nobody reads yet."""
        body = {"model": "base", "messages": HELLO, "temperature": 0, "max_tokens": 2000}
        return [send(self.asking, body) for _ in range(count)]


@pytest.fixture
def served(models: Path) -> Iterator[Served]:
    """Four rows, and a queue of six."""
    model = Gated(LoadedModel(read_model(models / "base"), device="cpu"))
    engine = Kept(model, rows=4, waiting=6)
    app = ChatApp(engine, Writer(model.tokenizer, model.ends), name="base", context=model.context, token="t")
    config = uvicorn.Config(app.app, log_level="warning", access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        asking = Asking(cast("LocalServer", SimpleNamespace(base_url=url, token="t")))
        try:
            yield Served(model, engine, asking)
        finally:
            model.open()
            asking.client.close()
            server.should_exit = True
            thread.join()
            engine.close()


def send(asking: Asking, body: dict[str, Any]) -> socket.socket:
    """A request whose answer nobody reads yet."""
    host, port = asking.server.base_url.removeprefix("http://").removesuffix("/v1").split(":")
    raw = json.dumps(body).encode()
    found = socket.create_connection((host, int(port)))
    found.sendall(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {asking.server.token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n".encode()
        + raw
    )
    return found


def test_who_hangs_up_is_worked_for_no_longer(served: Served) -> None:
    """Of requests that run and of one that waits, not a token more is worked out."""
    model, engine = served.model, served.engine
    sockets = served.send(1)
    until(lambda: model.begun == 1)
    sockets += served.send(4)
    until(lambda: engine.waiting == 4)  # the first is in its first forward, and the gate is shut
    for one in sockets:
        one.close()
    until(lambda: len(engine.futures) == 5 and all(one.cancelled() for one in engine.futures))
    assert model.begun == 1
    model.open()
    until(lambda: engine.running + engine.waiting == 0)
    assert model.begun == 1, "the forward that was under way is the last"
    assert served.asking.choice(messages=dialogue(1))["finish_reason"] == "tool_calls"


def test_rows_that_run_are_given_up_when_their_clients_hang_up(served: Served) -> None:
    model, engine = served.model, served.engine
    sockets = served.send(1)
    until(lambda: model.begun == 1)
    sockets += served.send(3)
    until(lambda: engine.waiting == 3)
    model.endless = True
    while engine.running < 4:
        model.step()
    assert len(engine.futures) == 4
    for one in sockets:
        one.close()
    until(lambda: all(one.cancelled() for one in engine.futures))
    begun, model.endless = model.begun, False
    model.open()
    until(lambda: engine.running + engine.waiting == 0)
    assert model.begun == begun, "the forward that was under way is the last"
    assert served.asking.choice(messages=dialogue(1))["finish_reason"] == "tool_calls"


def test_half_a_request_holds_nobody_up(asking: Asking) -> None:
    with send(asking, {"x": 1}) as one, ThreadPoolExecutor(4) as pool:
        one.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{")
        list(pool.map(lambda number: asking.choice(messages=dialogue(number)), range(1, 5)))


def test_who_comes_when_the_queue_is_full_is_told_to_come_again(served: Served) -> None:
    model, engine = served.model, served.engine
    sockets = served.send(1)
    until(lambda: model.begun == 1)
    sockets += served.send(6)
    until(lambda: engine.waiting == 6)
    response = served.asking.post(messages=HELLO)
    assert refusal(response, 503, "overloaded") == "6 requests wait already: try again"
    assert response.headers["retry-after"] == "1"
    for one in sockets:
        one.close()
    until(lambda: all(one.cancelled() for one in engine.futures))
    further = served.send(1)  # those that hung up hold no place
    until(lambda: len(engine.futures) == 8)
    assert engine.waiting == 1
    for one in further:
        one.close()
    model.open()
    served.asking.choice(messages=HELLO)


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        ([], "a prompt has from 1 to 1,048,576 tokens, and this one 0"),
        (range(MAX_PROMPT + 1), "a prompt has from 1 to 1,048,576 tokens, and this one 1,048,577"),
        ([1, 2.0], "the tokens of a prompt must be whole numbers"),
        (["1"], "the tokens of a prompt must be whole numbers"),
        ([True], "the tokens of a prompt must be whole numbers"),
        ([1 << 70], "the tokens of a prompt must be whole numbers"),
        ([[1]], "the tokens of a prompt must be whole numbers"),
        ([1, -1], "token -1 of the prompt is none of the model's: they are from 0 to {last}"),
        ([1, 1 << 40], f"token {1 << 40} of the prompt is none of the model's: they are from 0 to {{last}}"),
    ],
    ids=lambda it: str(it)[:20],
)
def test_tokens_that_the_model_does_not_know_are_refused(served: Served, prompt: Any, told: str) -> None:
    served.model.open()
    last = served.model.vocabulary - 1
    with pytest.raises(PromptError, match=f"^{re.escape(told.format(last=last))}$"):
        served.engine.submit(Job(prompt))
    assert served.engine.submit(Job([0, last])).result(HANG_SECONDS).tokens


def test_a_tokenizer_with_more_tokens_than_the_model_fails_its_request_alone(served: Served) -> None:
    """As one whose tokens were added without the model's."""
    served.model.tokenizer.add_tokens(["<added>"] * 1 + [f"<added {one}>" for one in range(5000)])
    said = [{"role": "user", "content": "<added 4999>"}]
    message = served.asking.refused(400, "invalid_value", messages=said, model="base", tools=None)
    assert re.fullmatch(r"token \d+ of the prompt is none of the model's: they are from 0 to \d+", message)
    served.model.open()
    assert served.asking.choice(messages=HELLO)["message"]["role"] == "assistant"


def test_bodies_of_all_requests_share_a_budget(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_app, "MAX_BODIES", 3 << 20)
    large = [{"role": "user", "content": "Hello." + " " * (2 << 20)}]
    body = {"model": "base", "messages": HELLO, "user": "x" * (2 << 20), "max_tokens": 2000}
    holder = send(served.asking, body)
    until(lambda: served.model.begun == 1)
    response = served.asking.post(messages=large)
    assert refusal(response, 503, "overloaded") == (
        "the bodies of all requests under way are 3 MiB at most: try again"
    )
    assert response.headers["retry-after"] == "1"
    assert served.asking.client.get("/models").status_code == 200
    holder.close()  # what it held is free again
    until(lambda: served.asking.post(messages=large).status_code != 503)
