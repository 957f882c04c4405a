"""The public test server: what an openai client sees of it, and what it counts."""

import contextlib
import threading
from collections.abc import Iterator

import httpx2
import openai
import pytest

from pytest_trace2evolve.testing import ChatRequest, ChatServer, Fault, FaultPlan, Reply
from tests.patience import HANG_SECONDS, until

ASK = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]


def echo(request: ChatRequest) -> Reply:
    """Says the last message back, or calls the first tool where one is offered."""
    if request.tools:
        return Reply(tool_calls=((request.tools[0]["function"]["name"], {"x": 1}),))
    return Reply(f"{request.system} {request.messages[-1]['content']}")


@contextlib.contextmanager
def client(server: ChatServer, key: str = "any", timeout: float = HANG_SECONDS) -> Iterator[openai.OpenAI]:
    """A client that does not retry."""
    with openai.OpenAI(base_url=server.base_url, api_key=key, max_retries=0, timeout=timeout) as one:
        yield one


def ask(one: openai.OpenAI, model: str = "m", **more: object) -> openai.types.chat.ChatCompletion:
    """One completion."""
    return one.chat.completions.create(model=model, messages=ASK, **more)  # type: ignore[call-overload]


def test_a_script_answers_and_its_answers_are_counted() -> None:
    with ChatServer(echo) as server, client(server) as one:
        first = ask(one)
        second = ask(one)
    assert first.choices[0].message.content == "Be kind. Hello"
    assert first.usage is not None
    assert second.usage is not None
    assert (server.count.attempts, server.count.served) == (2, 2)
    assert server.count.prompt_tokens == first.usage.prompt_tokens + second.usage.prompt_tokens
    assert server.count.completion_tokens == first.usage.completion_tokens + second.usage.completion_tokens
    assert [record["messages"] for record in server.requests] == [ASK, ASK]


def test_keys_and_models_are_refused_as_the_api_refuses_them() -> None:
    with ChatServer(echo, keys={"good"}, models={"m"}) as server:
        with client(server, "bad") as one, pytest.raises(openai.AuthenticationError):
            ask(one)
        with (
            client(server, "good") as one,
            pytest.raises(openai.NotFoundError, match="'other' does not exist"),
        ):
            ask(one, "other")
        with client(server, "good") as one:
            assert list(one.models.list()) == []
            assert ask(one).choices
    assert (server.count.attempts, server.count.served) == (3, 1)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.RATE_LIMIT, openai.RateLimitError),
        (Fault.SERVER_ERROR, openai.InternalServerError),
        (Fault.OVERLOADED, openai.InternalServerError),
        (Fault.HANG_UP, openai.APIConnectionError),
        (Fault.HANG_UP_HALFWAY, openai.APIConnectionError),
        (Fault.SLOW, openai.APITimeoutError),
        (Fault.BROKEN_BODY, ValueError),
    ],
)
def test_a_fault_reaches_the_client_as_such(fault: Fault, error: type[Exception]) -> None:
    plan = FaultPlan({fault: 1.0})
    with ChatServer(echo, faults=plan) as server:
        with (
            client(server, timeout=0.15 if fault is Fault.SLOW else HANG_SECONDS) as one,
            pytest.raises(error),
        ):
            ask(one)
        # A slow body is given up by the clock, perhaps before the server has begun it.
        until(lambda: server.count.faults == {fault.value: 1})
    assert server.count.served == 0


def test_requests_are_served_side_by_side() -> None:
    with ChatServer(echo) as server, client(server) as one:
        server.hold()
        threads = [threading.Thread(target=ask, args=(one,)) for _ in range(16)]
        for thread in threads:
            thread.start()
        until(lambda: server.count.attempts == 16)
        assert server.count.served == 0
        server.release(10)
        until(lambda: server.count.served == 10)
        server.release()
        for thread in threads:
            thread.join()
    assert (server.count.served, server.count.max_concurrent) == (16, 16)


def test_a_request_that_is_no_completion_gets_the_apis_error_shape() -> None:
    with ChatServer(echo) as server:
        answer = httpx2.post(f"{server.base_url}/chat/completions", content=b"{")
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "The request is not a chat completion."


def test_a_script_sees_headers_and_answers_with_errors_and_headers_of_its_own() -> None:
    def script(request: ChatRequest) -> Reply:
        key = request.headers["authorization"]
        return Reply(
            "Hello.", error=(418, f"No tea for {key}.") if "bad" in key else None, headers={"x-a": "b"}
        )

    body = {"model": "m", "messages": []}
    with ChatServer(script) as server:
        url = f"{server.base_url}/chat/completions"
        good, bad = (httpx2.post(url, json=body, headers={"authorization": key}) for key in ("ok", "bad"))
    assert (good.status_code, good.headers["x-a"]) == (200, "b")
    assert (bad.status_code, bad.headers["x-a"]) == (418, "b")
    assert bad.json()["error"]["message"] == "No tea for bad."
    assert (server.count.served, server.count.attempts, server.count.concurrent) == (1, 2, 0)
