"""Routing: an adapter answers if the router is sure of it, and the router is asked at each customer turn."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.agents.router import MIN_MARGIN, RoutedAgent, choose_adapter
from pytest_trace2evolve.records.adapter import NO_CAPABILITY
from pytest_trace2evolve.records.message import Message

READING, ADDING = "reading_first", "adding_up"
OWNERS = {"reads": READING, "checks": READING, "adds": ADDING}


def logprobs(**shares: float) -> dict[str, float]:
    return {label: math.log(share) for label, share in shares.items()}


@given(st.lists(st.floats(0.001, 1), min_size=5, max_size=5))
def test_shares_are_those_of_the_labels_of_an_adapter(weights: list[float]) -> None:
    shares = dict(zip(("reads", "checks", "adds", "unknown", NO_CAPABILITY), weights, strict=True))
    found = choose_adapter(logprobs(**shares), OWNERS)
    total = sum(weights)
    assert found.shares == pytest.approx(
        {
            READING: (shares["reads"] + shares["checks"]) / total,
            ADDING: shares["adds"] / total,
            NO_CAPABILITY: (shares["unknown"] + shares[NO_CAPABILITY]) / total,
        }
    )
    second, best = sorted(found.shares.values())[-2:]
    assert found.chosen == NO_CAPABILITY or (
        found.shares[found.chosen] == best and best - second >= MIN_MARGIN
    )


@pytest.mark.parametrize(
    ("shares", "chosen"),
    [
        ({"reads": 0.4, "checks": 0.2, "adds": 0.3, "none": 0.1}, READING),
        ({"reads": 0.4, "adds": 0.2, "none": 0.4}, NO_CAPABILITY),
        ({"reads": 0.45, "adds": 0.35, "none": 0.2}, NO_CAPABILITY),
    ],
)
def test_a_router_that_is_not_sure_leaves_it_to_the_base(shares: dict[str, float], chosen: str) -> None:
    assert choose_adapter(logprobs(**shares), OWNERS).chosen == chosen


def test_an_answer_without_labels_chooses_the_base() -> None:
    assert choose_adapter({}, OWNERS).chosen == NO_CAPABILITY


class Listener:
    """A router that finds a capability in the last message it reads."""

    def __init__(self) -> None:
        self.asked: list[list[Any]] = []

    async def first_tokens(self, messages: Sequence[Mapping[str, Any]]) -> Mapping[str, float]:
        self.asked.append([message["content"] for message in messages])
        last = self.asked[-1][-1]
        label = "adds" if "sum" in last else "reads" if "cancel" in last else NO_CAPABILITY
        return logprobs(**{label: 0.9, "checks": 0.1})


class Named:
    """An agent that says its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def respond(self, history: Sequence[Message]) -> Message:
        return Message(role="assistant", content=self.name)


def said(*texts: str) -> list[Message]:
    return [Message(role="user", content=text) for text in texts]


def test_the_router_reads_all_that_the_customer_said_at_each_turn() -> None:
    router = Listener()
    agents = {name: Named(name) for name in (READING, ADDING, NO_CAPABILITY)}
    agent = RoutedAgent(router, OWNERS, agents)
    assert asyncio.run(agent.respond([])).content == NO_CAPABILITY, "the agent speaks first"
    opening = said("Please cancel it.")
    first = asyncio.run(agent.respond(opening))
    assert first.content == READING
    assert first.model_dump()["routing"]["chosen"] == READING
    looked_up = [*opening, Message(role="tool", content="7", id="1")]
    second = asyncio.run(agent.respond(looked_up))
    assert second.content == READING
    assert "routing" not in second.model_dump(), "a tool's result is no turn of the customer"
    third = asyncio.run(agent.respond([*looked_up, *said("And what is the sum?")]))
    assert third.content == ADDING
    assert router.asked == [["Please cancel it."], ["Please cancel it.", "And what is the sum?"]]
