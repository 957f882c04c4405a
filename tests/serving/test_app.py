"""The API: answers are those of transformers, whoever else is served, and errors have the API's shape."""

import asyncio
import math
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from pytest_trace2evolve.errors import ContextWindowError
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings
from tests.serving.conftest import Client, error_message
from tests.tiny_model import CONTEXT, dialogue

References = list[dict[str, Any]]
HELLO = [{"role": "user", "content": "Hello."}]


def check_answer(client: Client, reference: dict[str, Any]) -> None:
    """Compare a greedy answer, and its log-probabilities, with that of transformers."""
    choice = client.choice(
        model=reference["model"], messages=reference["messages"], logprobs=True, top_logprobs=5
    )
    logprobs = choice["logprobs"]["content"]
    assert [entry["token"] for entry in logprobs] == reference["tokens"]
    assert [entry["logprob"] for entry in logprobs] == pytest.approx(reference["logprobs"], abs=1e-4)
    for entry, top in zip(logprobs, reference["top"], strict=True):
        assert [best["logprob"] for best in entry["top_logprobs"]] == pytest.approx(top, abs=1e-4)
    message = choice["message"]
    if "tool_calls" not in message:
        assert message["content"] == reference["text"]
    complete = "tool_calls" if "tool_calls" in message else "stop"
    assert choice["finish_reason"] == ("length" if len(reference["tokens"]) == 40 else complete)


def test_answers_are_those_of_transformers(client: Client, references: References) -> None:
    for reference in references:
        check_answer(client, reference)
    with ThreadPoolExecutor(24) as pool:  # a crowd of mixed adapters and lengths
        list(pool.map(lambda reference: check_answer(client, reference), references * 2))
    assert len({reference["text"] for reference in references}) > 12, "the adapters say too much alike"


def test_calls_are_read_and_the_conversation_continues(client: Client) -> None:
    messages = dialogue(3)
    message = client.choice(messages=messages)["message"]
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": '{"id": "W3"}'}
    assert message["content"] is None
    result = {"role": "tool", "tool_call_id": call["id"], "content": "W3 is open"}
    choice = client.choice(messages=[*messages, message, result])
    assert (choice["message"]["content"], choice["finish_reason"]) == ("W3 is open, all is well.", "stop")


def test_a_seed_decides_whoever_shares_the_batch(client: Client) -> None:
    def drawn(seed: int | None) -> str:
        fields = {"messages": [{"role": "user", "content": "Go on."}], "temperature": 1.5, "seed": seed}
        return str(client.choice(**fields, tools=None, model="one")["message"]["content"])

    alone = [drawn(seed) for seed in range(4)]
    with ThreadPoolExecutor(12) as pool:
        crowd = list(pool.map(drawn, [*range(4), *range(100, 108), *range(4)]))
    assert crowd[:4] == alone == crowd[-4:]
    assert len(set(alone)) == 4
    # Two random seeds may draw the same short answer, so only equality of all of them is an error.
    assert len({drawn(None) for _ in range(8)}) > 1


@pytest.mark.parametrize(("temperature", "top_p"), [(0.5, 1.0), (1.0, 0.6)])
def test_tokens_are_drawn_as_often_as_they_are_likely(
    client: Client, temperature: float, top_p: float
) -> None:
    fields: dict[str, Any] = {
        "messages": [{"role": "user", "content": "x"}],
        "model": "two",
        "max_tokens": 1,
        "logprobs": True,
        "top_logprobs": 20,
        "temperature": temperature,
        "top_p": top_p,
    }
    with ThreadPoolExecutor(16) as pool:
        drawn = list(
            pool.map(lambda seed: client.choice(**fields, seed=seed)["logprobs"]["content"][0], range(200))
        )
    table = {entry["token"]: entry["logprob"] for entry in drawn[0]["top_logprobs"]}
    weights = {token: math.exp(logprob / temperature) for token, logprob in table.items()}
    total = sum(weights.values())  # the twenty likeliest hold nearly all
    kept, mass = {}, 0.0
    for token, weight in weights.items():
        if mass < top_p:
            kept[token] = weight / total
        mass += weight / total
    counts = Counter(entry["token"] for entry in drawn)
    if top_p < 1.0:
        assert set(counts) <= set(kept)
    for token, share in kept.items():
        expected = share / sum(kept.values())
        assert counts[token] / 200 == pytest.approx(expected, abs=4.5 * math.sqrt(expected / 200) + 0.03)
    # The reported log-probabilities are the model's own, at any temperature.
    known = [entry for entry in drawn if entry["token"] in table]
    assert all(entry["logprob"] == pytest.approx(table[entry["token"]], abs=1e-4) for entry in known)


def test_a_stop_text_ends_the_answer_and_is_not_part_of_it(client: Client) -> None:
    messages = dialogue(2, done=True)[:4]
    choice = client.choice(messages=messages, stop=["never", ", all"])
    assert (choice["message"]["content"], choice["finish_reason"]) == ("W2 is open", "stop")


def test_usage_and_limits_are_counted_in_tokens(client: Client, references: References) -> None:
    one = references[0]
    usage = client.usage(messages=one["messages"])
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (one["prompt_tokens"], len(one["tokens"]))
    assert usage["total_tokens"] == one["prompt_tokens"] + len(one["tokens"])
    for name in ("max_tokens", "max_completion_tokens"):
        response = client.post(messages=dialogue(2), **{"max_tokens": None, name: 3}).json()
        assert response["usage"]["completion_tokens"] == 3
        assert response["choices"][0]["finish_reason"] == "length"
    assert client.usage(messages=dialogue(1), max_tokens=None)["completion_tokens"] == 12, "the model's own"
    usage = client.usage(messages=[{"role": "user", "content": "all is well " * 240}], max_tokens=5000)
    assert usage["prompt_tokens"] < usage["total_tokens"] <= CONTEXT


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
def test_a_required_call_is_begun_for_the_model(client: Client, choice: object) -> None:
    found = client.choice(messages=dialogue(4), tool_choice=choice)
    assert found["message"]["tool_calls"][0]["function"]["name"] == "look"
    assert found["finish_reason"] == "tool_calls"


def test_errors_have_the_apis_shape(client: Client) -> None:
    headers = {"Content-Type": "application/json"}
    error_message(client.http.post("/chat/completions", content=b"{", headers=headers), 400, None)
    assert client.error(400, "unknown_parameter", messages=HELLO, foo=1) == "foo is not supported: remove it"
    message = client.error(404, "model_not_found", messages=HELLO, model="gpt")
    assert message == "the model 'gpt' does not exist; available: base, one, two"
    error_message(client.http.get("/models/gpt"), 404, "model_not_found")
    error_message(client.http.get("/embeddings"), 404, "not_found")
    error_message(client.http.get("/chat/completions"), 405, None)
    error_message(client.http.post("/chat/completions", json={"messages": "x" * (33 << 20)}), 413, None)
    assert [model["id"] for model in client.http.get("/models").json()["data"]] == ["base", "one", "two"]
    assert client.http.get("/models/one").json()["parent"] == "base"


def test_a_prompt_that_does_not_fit_is_rejected_as_our_client_expects(client: Client) -> None:
    message = client.error(
        400, "context_length_exceeded", messages=[{"role": "user", "content": "a " * 1_000_000}]
    )
    assert "characters, too many for this model's context length" in message, "it was not even tokenized"
    long = [{"role": "user", "content": "Hello. " * 900}]
    message = client.error(400, "context_length_exceeded", messages=long)
    assert message.startswith("this model's context length is 1024 tokens, and the prompt has ")

    async def ask() -> None:
        model = ChatModel(ModelSettings(model="base").with_server(client.base_url, client.token))
        try:
            await model.complete(long, [], trial=0)
        finally:
            await model.close()

    with pytest.raises(ContextWindowError, match="context length is 1024 tokens"):
        asyncio.run(ask())


def test_only_requests_with_the_token_are_served(client: Client) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {client.token}"}):
        response = httpx2.post(f"{client.base_url}/chat/completions", json={}, headers=headers)
        error_message(response, 401, "invalid_api_key")
        assert response.headers["www-authenticate"] == "Bearer"
        error_message(httpx2.get(f"{client.base_url}/models", headers=headers), 401, "invalid_api_key")
    health = httpx2.get(client.base_url.removesuffix("/v1") + "/health").json()
    assert health["status"] == "ok"


def test_half_a_request_delays_no_other(client: Client) -> None:
    host, port = client.base_url.removeprefix("http://").removesuffix("/v1").split(":")
    with socket.create_connection((host, int(port))) as slow, ThreadPoolExecutor(4) as pool:
        slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{")
        list(pool.map(lambda number: client.choice(messages=dialogue(number)), range(1, 5)))
