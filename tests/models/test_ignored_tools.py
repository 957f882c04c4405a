"""Endpoints that ignore tools or drop messages without an error are found out by their own token counts."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from pytest_trace2evolve.agents.chat import ChatAgent
from pytest_trace2evolve.errors import EndpointError
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings, Retries
from pytest_trace2evolve.records.message import Message
from tests.own_agents import WORLD, http_server

TOOLS = WORLD.tools("assistant")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "good")


class Counting:
    """Answers with text, and counts the tokens of a prompt as `count` does."""

    def __init__(self, count: Callable[[dict[str, Any]], int], **message: Any) -> None:
        self.count, self.message = count, message
        self.requests: list[dict[str, Any]] = []

    def __call__(self, method: str, record: Any) -> tuple[int, bytes]:
        self.requests.append(record)
        message = {"role": "assistant", "content": "Hello.", **self.message}
        usage = {"prompt_tokens": self.count(record), "completion_tokens": 2}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return 200, json.dumps({"choices": [choice], "usage": usage}).encode()


def converse(endpoint: Counting, turns: int = 1, **settings: Any) -> None:
    """Let an agent answer some messages, each with a longer history."""

    async def run(url: str) -> None:
        model = ChatModel(ModelSettings("m", base_url=url, retries=Retries(attempts=1), **settings))
        agent = ChatAgent(model, "Keep the notes tidy.", TOOLS)
        history: list[Message] = []
        try:
            for _ in range(turns):
                history.append(Message(role="user", content="Please look it up in my notes."))
                history.append(await agent.respond(history))
        finally:
            await model.close()

    with http_server(endpoint) as url:
        asyncio.run(run(url.removesuffix("/chat")))


def tokens(value: Any) -> int:
    return len(json.dumps(value)) // 6  # fewer than any doubt allows


def test_an_endpoint_that_ignores_tools_ends_the_run() -> None:
    endpoint = Counting(lambda request: tokens(request["messages"]))
    with pytest.raises(
        EndpointError, match=r"ignores the tools of model 'm': with and without 3 tools, "
    ) as caught:
        converse(endpoint)
    assert str(caught.value).endswith("chat template that knows tools, or give t2e_allow_ignored_tools")
    assert "\n" not in str(caught.value)
    assert ["tools" in request for request in endpoint.requests] == [True, False]


def test_such_an_endpoint_may_be_used_on_purpose() -> None:
    endpoint = Counting(lambda request: tokens(request["messages"]))
    converse(endpoint, turns=2, allows_ignored_tools=True)
    assert len(endpoint.requests) == 2


def test_a_doubt_costs_one_request() -> None:
    endpoint = Counting(lambda request: tokens([request["messages"], request.get("tools")]))
    converse(endpoint, turns=3)
    assert ["tools" in request for request in endpoint.requests] == [True, False, True, True]


@pytest.mark.parametrize("share", [2, 3, 5])
def test_there_is_no_doubt_about_usual_token_counts(share: int) -> None:
    endpoint = Counting(lambda request: len(json.dumps([request["messages"], request["tools"]])) // share + 9)
    converse(endpoint, turns=2)
    assert len(endpoint.requests) == 2
