"""The chat model: its requests, its retries, and its errors."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from pytest_trace2evolve.errors import ContextWindowError, EndpointError, InfrastructureError
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings, Retries, without_credentials
from pytest_trace2evolve.records.completion import Completion
from pytest_trace2evolve.records.protocols import ToolSchema
from pytest_trace2evolve.testing import ChatRequest, ChatServer, Fault, FaultPlan, Reply
from tests.own_agents import http_server

T = TypeVar("T")

ASK = [{"role": "user", "content": "Hello"}]
TOOL = ToolSchema(name="look", description="Look.", parameters={"type": "object", "properties": {}})
FAST = Retries(attempts=4, first_pause=0.001)


def echo(request: ChatRequest) -> Reply:
    return Reply(str(request.messages[-1]["content"]))


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "good")


def run_model(server: ChatServer, ask: Callable[[ChatModel], Coroutine[Any, Any, T]], **settings: Any) -> T:
    """Call a new model of a server."""

    async def run() -> T:
        fields = {"model": "m", "base_url": server.base_url, "retries": FAST, "timeout": 120.0, **settings}
        model = ChatModel(ModelSettings(**fields))
        try:
            return await ask(model)
        finally:
            await model.close()

    return asyncio.run(run())


def complete(server: ChatServer, **settings: Any) -> Completion:
    """One completion by a new model."""
    return run_model(server, lambda model: model.complete(ASK, [TOOL], trial=2), **settings)


def test_completion_has_its_usage() -> None:
    with ChatServer(echo) as server:
        completion = complete(server)
    assert completion.content == "Hello"
    assert completion.usage.prompt_tokens == server.count.prompt_tokens > 0
    assert completion.seconds > 0


def test_settings_are_sent_as_the_api_requires() -> None:
    with ChatServer(echo) as server:
        complete(server, temperature=0.7, seed=40, reasoning_effort="low", extra_body={"top_k": 5})
        complete(server, temperature=None)
    first, second = server.requests
    assert (first["temperature"], first["seed"], first["reasoning_effort"], first["top_k"]) == (
        0.7,
        42,
        "low",
        5,
    )
    assert first["tools"][0]["function"]["name"] == "look"
    assert first["tool_choice"] == "auto"
    assert not {"temperature", "seed", "reasoning_effort"} & set(second)


def test_a_parameter_that_the_endpoint_rejects_is_named() -> None:
    body = {
        "detail": [
            {"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}
        ]
    }

    async def ask(url: str) -> None:
        model = ChatModel(ModelSettings("m", base_url=url.removesuffix("/chat"), seed=1))
        try:
            await model.complete(ASK, [TOOL])
        finally:
            await model.close()

    with (
        http_server(lambda *_: (422, json.dumps(body).encode())) as url,
        pytest.raises(EndpointError) as caught,
    ):
        asyncio.run(ask(url))
    assert str(caught.value).endswith("422 Extra inputs are not permitted (seed); leave out parameter 'seed'")


LIMIT = {"max_tokens": 1000}
RENAMED = {"max_completion_tokens": 1000}

REFUSALS: dict[str, tuple[int, str, dict[str, int], bool]] = {
    "OpenAI, reasoning": (
        400,
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'.",
        RENAMED,
        True,
    ),
    "OpenAI, small model": (
        400,
        "max_tokens is too large: 1000. This model supports at most 400 completion tokens",
        {},
        True,
    ),
    "Bedrock": (400, "The maximum tokens you requested exceeds the limit of 400", {}, True),
    "vLLM, rest of the context": (
        400,
        "'max_tokens' is too large: 1000. This model's maximum context length is 1200 tokens",
        {},
        False,
    ),
    "Groq, plan": (413, "Request too large on tokens per minute (TPM): Limit 900, Requested 1100", {}, False),
    "OpenRouter, credits": (402, "This request requires more credits, or fewer max_tokens", {}, False),
}
"""Status and words of a refused limit, the limit that is sent instead, and whether later requests have it."""


@pytest.mark.parametrize("name", REFUSALS)
def test_a_default_limit_that_an_endpoint_refuses_is_changed(name: str) -> None:
    status, words, limit, is_remembered = REFUSALS[name]

    async def ask_twice(model: ChatModel) -> None:
        assert {(await model.complete(ASK, [TOOL])).content for _ in range(2)} == {"Hello"}

    with ChatServer(
        lambda request: Reply(error=(status, words)) if "max_tokens" in request.body else echo(request)
    ) as server:
        run_model(server, ask_twice, max_answer_tokens=1000)
        assert [limits(request) for request in server.requests] == (
            [LIMIT, limit, limit] if is_remembered else [LIMIT, limit, LIMIT, limit]
        )
        if not limit and status == 400:  # a limit that the user set stays, and the error names it
            with pytest.raises((EndpointError, ContextWindowError), match="tokens"):
                complete(server, max_answer_tokens=1000, parameters=LIMIT)


def limits(request: dict[str, Any]) -> dict[str, int]:
    return {name: value for name, value in request.items() if name in LIMIT | RENAMED}


def test_first_tokens_are_requested_by_one_token_at_temperature_0() -> None:
    logprobs = {"A": -0.5, " A": -2.0, "none": -1.5}
    with ChatServer(lambda request: Reply("A", first_tokens=logprobs)) as server:
        found = run_model(
            server, lambda model: model.first_tokens(ASK), temperature=0.7, reasoning_effort="low"
        )
    assert found == logprobs
    [request] = server.requests
    assert (request["max_tokens"], request["temperature"], request["logprobs"]) == (1, 0.0, True)
    assert request["top_logprobs"] >= len(logprobs)
    assert not {"tools", "reasoning_effort"} & set(request)


def test_endpoint_without_log_probabilities_cannot_route() -> None:
    with ChatServer(echo) as server, pytest.raises(EndpointError) as error:
        run_model(server, lambda model: model.first_tokens(ASK))
    assert str(error.value) == (
        f"model 'm' at {server.base_url} does not send log-probabilities, but routing needs those of the "
        "first token; use a different model for routing, or serve this model with log-probabilities"
    )
    assert server.count.attempts == 1


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.SLOW])
def test_transient_faults_are_retried(fault: Fault) -> None:
    with ChatServer(echo, faults=FaultPlan({fault: 0.5}, seed=3)) as server:
        completions = [complete(server, retries=Retries(attempts=30, first_pause=0.001)) for _ in range(4)]
    assert [completion.content for completion in completions] == ["Hello"] * 4
    assert server.count.served == 4
    assert server.count.faults[fault.value] == server.count.attempts - 4 > 0


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.SLOW])
def test_a_fault_in_every_attempt_is_an_infrastructure_error(fault: Fault) -> None:
    plan = FaultPlan({fault: 1.0}, retry_after=0.0)
    with ChatServer(echo, faults=plan) as server:
        with pytest.raises(
            InfrastructureError, match=r"model 'm' at http\S+ did not answer in 4 attempts; last problem: "
        ):
            complete(server)
        assert server.count.attempts == 4


def test_a_slow_body_times_out() -> None:
    plan = FaultPlan({Fault.SLOW: 1.0})
    patience = {"timeout": 0.3, "retries": Retries(attempts=2, first_pause=0.001)}
    with (
        ChatServer(echo, faults=plan) as server,
        pytest.raises(
            InfrastructureError, match=r"2 attempts; last problem: no answer within 0\.3 seconds \(--slow\)$"
        ),
    ):
        complete(server, **patience, timeout_option="--slow")


def test_pauses_respect_retry_after_and_grow() -> None:
    assert Retries(first_pause=0.0).pause(1, 7.0) == 7.0
    assert Retries(first_pause=0.0, max_pause=5.0).pause(1, 7.0) == 5.0
    assert all(0.25 <= Retries(first_pause=0.5).pause(1, None) <= 0.5 for _ in range(50))
    assert all(1.0 <= Retries(first_pause=0.5).pause(3, None) <= 2.0 for _ in range(50))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"model": "other"},
            "rejects model 'other': 404 The model 'other' does not exist.; check the model's name",
        ),
        ({"api_key_env": "WRONG_KEY"}, "rejects model 'm': 401 Incorrect API key provided.; check WRONG_KEY"),
        ({"api_key_env": "NO_KEY"}, "model 'm' needs a key: set NO_KEY"),
    ],
)
def test_permanent_errors_are_not_retried(
    settings: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRONG_KEY", "bad")
    with ChatServer(echo, keys={"good"}, models={"m"}) as server:
        with pytest.raises(EndpointError) as caught:
            complete(server, **settings)
        assert server.count.attempts <= 1
    assert text in str(caught.value)
    assert "bad" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["host:8000/v1", "localhost", "ftp://host/v1", "http://", "http://[::1", "http://me:pw@host:abc"]
)
def test_invalid_base_urls_are_rejected(url: str) -> None:
    with pytest.raises(
        EndpointError, match="model 'm' is not an http:// or https:// URL with a host"
    ) as caught:
        ModelSettings("m", base_url=url).require_url()
    assert "pw" not in str(caught.value)
    ModelSettings("m", base_url="https://me:pw@[::1]:8000/v1").require_url()


@pytest.mark.parametrize(
    ("given", "source"),
    [
        ({"base_url": "localhost", "url_option": "--judge-base-url"}, "--judge-base-url"),
        ({"base_url": None, "url_option": "--judge-base-url"}, "OPENAI_BASE_URL"),
        ({"base_url": "localhost"}, "it"),
    ],
)
def test_a_bad_base_url_is_reported_with_its_source(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], source: str
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "localhost")
    with pytest.raises(EndpointError, match=f" URL with a host; check {source}$"):
        ModelSettings("m", **given).require_url()


def test_an_unreachable_endpoint_is_an_endpoint_error() -> None:
    with ChatServer(echo) as server:
        pass
    with pytest.raises(EndpointError) as caught:
        complete(server)
    text = str(caught.value)
    assert text.startswith(f"cannot reach {server.base_url} for model 'm': ConnectError: ")
    assert text.endswith("; start the server, or check its URL and OPENAI_BASE_URL")
    with pytest.raises(EndpointError, match=r"; start the server, or check --base-url and OPENAI_BASE_URL$"):
        complete(server, url_option="--base-url")


def test_an_endpoint_that_stops_answering_is_an_infrastructure_error() -> None:
    async def run() -> None:
        with ChatServer(echo) as server:
            model = ChatModel(ModelSettings("m", base_url=server.base_url, retries=FAST))
            await model.complete(ASK, [TOOL])
        try:
            with pytest.raises(InfrastructureError, match="did not answer in 4 attempts; last problem: "):
                await model.complete(ASK, [TOOL])
        finally:
            await model.close()

    asyncio.run(run())


def test_a_full_context_is_the_conversations_end() -> None:
    full = Reply(error=(400, "This model's maximum context length is 8 tokens."))
    with (
        ChatServer(lambda _: full) as server,
        pytest.raises(ContextWindowError, match="maximum context length"),
    ):
        complete(server)


def test_urls_are_recorded_without_secrets() -> None:
    assert without_credentials("https://me:secret@host:8/v1?key=x") == "https://host:8/v1"
    settings = ModelSettings("m", base_url="https://me:secret@host/v1", seed=1)
    assert settings.to_record() == {"temperature": 0.0, "seed": 1, "endpoint": "https://host/v1"}
