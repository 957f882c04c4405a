"""The engine under load: clients that hang up, a full queue, prompts it does not know, and shared budgets."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn

from pytest_trace2evolve.serving.app import ChatApp
from pytest_trace2evolve.serving.chat_format import ChatFormat
from pytest_trace2evolve.serving.engine import (
    Engine,
    Generation,
    Job,
    PromptError,
    seeded_random,
)
from pytest_trace2evolve.serving.folder import read_model
from pytest_trace2evolve.serving.loading import LoadedModel
from tests.patience import HANG_SECONDS, until
from tests.serving.conftest import Client, error_message
from tests.tiny_model import dialogue

HELLO = [{"role": "user", "content": "Hello."}]


class GatedModel:
    """A model whose every forward pass waits until the test lets it through.

    Attributes:
        begun: Passes that began, including the one that waits.
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
    def end_tokens(self) -> frozenset[int]:
        return frozenset() if self.endless else self._model.end_tokens

    def forward(self, *args: Any) -> torch.Tensor:
        self.begun += 1
        assert self._permits.acquire(timeout=HANG_SECONDS), "the test never let it through"
        if self._open.is_set():
            self._permits.release()
        return self._model.forward(*args)

    def step(self) -> None:
        """Let the waiting pass through, and wait for the next."""
        begun = self.begun
        self._permits.release()
        until(lambda: self.begun > begun)

    def open(self) -> None:
        """Let all passes through from now on."""
        self._open.set()
        self._permits.release()


class RecordingEngine(Engine):
    """An engine that records its requests."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.futures: list[Future[Generation]] = []
        super().__init__(*args, **options)

    def submit(self, job: Job) -> Future[Generation]:
        self.futures.append(super().submit(job))
        return self.futures[-1]


@dataclass
class Served:
    model: Any
    engine: RecordingEngine
    client: Client

    def send(self, count: int) -> list[socket.socket]:
        """Send requests whose answers nobody reads yet."""
        return [
            self.send_body({"model": "base", "messages": HELLO, "temperature": 0, "max_tokens": 2000})
            for _ in range(count)
        ]

    def send_body(self, body: dict[str, Any]) -> socket.socket:
        host, port = self.client.base_url.removeprefix("http://").removesuffix("/v1").split(":")
        raw = json.dumps(body).encode()
        connection = socket.create_connection((host, int(port)))
        connection.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.client.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n".encode()
            + raw
        )
        return connection


@pytest.fixture(scope="module")
def loaded(models: Path) -> LoadedModel:
    return LoadedModel(read_model(models / "base"), device="cpu")


@pytest.fixture
def served(loaded: LoadedModel) -> Iterator[Served]:
    """Four rows, and a queue of six."""
    model: Any = GatedModel(loaded)
    engine = RecordingEngine(model, max_rows=4, max_waiting=6)
    chat_format = ChatFormat(model.tokenizer, model.end_tokens)
    app = ChatApp(engine, chat_format, name="base", context_length=model.context_length, token="t")
    config = uvicorn.Config(app.app, log_level="warning", access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        client = Client(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", "t")
        try:
            yield Served(model, engine, client)
        finally:
            model.open()
            client.http.close()
            server.should_exit = True
            thread.join()
            engine.close()


def test_each_prompt_draws_its_own_random_numbers_from_a_seed() -> None:
    """Else all turns of a dialogue, and all tasks of a trial, would share their luck."""
    jobs = [Job((1, 2), seed=5), Job((1, 3), seed=5), Job((1, 2), "one", seed=5), Job((1, 2), seed=-5)]
    drawn = [seeded_random(job).random() for job in jobs]
    assert len(set(drawn)) == 4
    assert drawn == [seeded_random(job).random() for job in jobs]
    assert seeded_random(Job((1, 2))).random() != seeded_random(Job((1, 2))).random()


def test_nothing_more_is_computed_for_a_client_that_hangs_up(served: Served) -> None:
    """Neither for requests that are being prefilled nor for those that wait."""
    model, engine = served.model, served.engine
    connections = served.send(1)
    until(lambda: model.begun == 1)
    connections += served.send(4)
    until(lambda: engine.waiting_count == 4)  # the first is in its first pass, and the gate is shut
    for connection in connections:
        connection.close()
    until(lambda: len(engine.futures) == 5 and all(future.cancelled() for future in engine.futures))
    assert model.begun == 1
    model.open()
    until(lambda: engine.running_count + engine.waiting_count == 0)
    assert model.begun == 1, "the pass that was running is the last"
    assert served.client.choice(messages=dialogue(1))["finish_reason"] == "tool_calls"


def test_a_full_queue_asks_clients_to_come_again(served: Served) -> None:
    model, engine = served.model, served.engine
    connections = served.send(1)
    until(lambda: model.begun == 1)
    connections += served.send(6)
    until(lambda: engine.waiting_count == 6)
    response = served.client.post(messages=HELLO)
    assert error_message(response, 503, "overloaded") == "6 requests are already waiting: try again"
    assert response.headers["retry-after"] == "1"
    for connection in connections:
        connection.close()
    until(lambda: all(future.cancelled() for future in engine.futures))
    further = served.send(1)  # those that hung up take no place
    until(lambda: len(engine.futures) == 8)
    assert engine.waiting_count == 1
    for connection in further:
        connection.close()
    model.open()
    served.client.choice(messages=HELLO)


def test_a_prompt_that_the_model_does_not_know_is_rejected(served: Served) -> None:
    served.model.open()
    last = served.model.vocabulary - 1
    whole = "the tokens of a prompt must be whole numbers"
    prompts: list[tuple[Any, str]] = [
        ([], "the prompt has no tokens; expected 1 or more"),
        *((prompt, whole) for prompt in ([1, 2.0], ["1"], [True], [1 << 70], [[1]])),
        ([1, -1], f"token -1 of the prompt is not in the model's vocabulary; expected 0 to {last}"),
        (
            [1, 1 << 40],
            f"token {1 << 40} of the prompt is not in the model's vocabulary; expected 0 to {last}",
        ),
    ]
    for prompt, message in prompts:
        with pytest.raises(PromptError, match=f"^{re.escape(message)}$"):
            served.engine.submit(Job(prompt))
    assert served.engine.submit(Job([0, last])).result(HANG_SECONDS).tokens
