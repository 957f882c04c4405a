"""The routed agent: who is asked, what is kept of the decision, and the table of a router."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.agents.router import RoutedAgent, Router
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.improve.routing import (
    Opening,
    RoutingResult,
    accuracy,
    make_openings,
    make_router_table,
    make_skills,
    route_all,
)
from pytest_trace2evolve.records.adapter import NO_CAPABILITY, Routing, Skill
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.serving.folder import read_model
from pytest_trace2evolve.utils.resources import embedded_model

READING, ADDING = "reading_first", "adding_up"
TABLE = (
    Skill(name=READING, description="The record is read first.", example="Cancel #1."),
    Skill(name=ADDING, description="Amounts are added up.", example="What do I pay in all?"),
)


class Knower:
    """A model that answers with the letter before a text, wherever it stands."""

    def __init__(self, wanted: Mapping[str, str]) -> None:
        self._wanted = wanted
        self.asked: list[str] = []

    async def first_tokens(self, messages: Sequence[Mapping[str, Any]]) -> Mapping[str, float]:
        request = str(messages[-1]["content"])
        self.asked.append(request)
        expected = next(
            (text for sign, text in self._wanted.items() if sign in request), "None of the others"
        )
        line = next(line for line in str(messages[0]["content"]).splitlines() if expected in line)
        return {line[0]: -0.1, "?": -3.0}


class Named:
    """An agent that says its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def respond(self, history: Sequence[Message]) -> Message:
        return Message(role="assistant", content=self.name)


AGENTS = {name: Named(name) for name in (READING, ADDING, NO_CAPABILITY)}
WANTED = {"sum": "Amounts are added", "cancel": "record is read"}


def said(*texts: str) -> list[Message]:
    return [Message(role="user", content=text) for text in texts]


def test_one_decision_a_task_from_how_it_opens() -> None:
    model = Knower(WANTED)
    agent = RoutedAgent(Router(model, TABLE), AGENTS)
    first = asyncio.run(agent.respond(said("Please cancel it.")))
    second = asyncio.run(agent.respond(said("Please cancel it.", "And what is the sum?")))
    assert (first.content, second.content) == (READING, READING)
    assert len(model.asked) == 3, "once in each order of three labels"
    routing = first.model_dump()["routing"]
    assert routing["chosen"] == READING
    assert routing["shares"][READING] > 0.9
    assert sum(routing["shares"].values()) == pytest.approx(1)
    assert "routing" not in second.model_dump()


def test_a_decision_a_turn_follows_the_customer() -> None:
    agent = RoutedAgent(Router(Knower(WANTED), TABLE), AGENTS, each_turn=True)
    opening = said("Please cancel it.")
    asyncio.run(agent.respond(opening))
    second = asyncio.run(agent.respond([*opening, *said("And what is the sum?")]))
    assert second.content == ADDING
    asked = [*opening, *said("And what is the sum?"), Message(role="tool", content="7", id="1")]
    third = asyncio.run(agent.respond(asked))
    assert third.content == ADDING
    assert "routing" not in third.model_dump(), "a tool's result is no turn of the customer"
    thanks = asyncio.run(agent.respond([*asked, *said("Thanks.")]))
    assert thanks.content == NO_CAPABILITY


def test_without_skills_nobody_is_asked() -> None:
    model = Knower(WANTED)
    agent = RoutedAgent(Router(model, ()), {NO_CAPABILITY: AGENTS[NO_CAPABILITY]})
    assert asyncio.run(agent.respond(said("Please cancel it."))).content == NO_CAPABILITY
    assert model.asked == []


def test_the_table_is_made_of_training_content_and_measured_on_held_out_content() -> None:
    environments = Environments()
    skills = make_skills(environments, environments.names)
    table = make_router_table(environments, environments.names, None, read_model(embedded_model()))
    held_out = make_openings(environments, table, 5)
    assert [one.name for one in skills] == environments.names
    assert all(one.example and one.description for one in skills)
    assert {one.label for one in held_out} == {*environments.names, NO_CAPABILITY}
    assert all(one.text for one in held_out)
    trained = {one.text for one in make_openings(environments, table, 5, Content.TRAIN)}
    assert not trained & {one.text for one in held_out}


def test_openings_are_routed_and_held_against_their_labels() -> None:
    environments = Environments()
    names = environments.names[:2]
    table = make_router_table(environments, names, None, read_model(embedded_model()))
    openings = make_openings(environments, table, 3)
    heard: list[int] = []
    found = asyncio.run(
        route_all(Knower({"": table[0].skill.description}), table, openings, on_progress=heard.append)
    )
    assert found.confusion.labels == (*sorted(names), NO_CAPABILITY)
    assert found.confusion.correct == 3
    assert found.confusion.total == 9
    assert found.silent_share == 0
    assert heard == list(range(1, 10))


def routed(pairs: Sequence[tuple[str, str]], choices: Sequence[str] = ()) -> RoutingResult:
    shares = dict.fromkeys(choices, 0.0)
    return RoutingResult(
        [Opening(label, "Hello.") for label, _ in pairs],
        [Routing(chosen=chosen, shares=shares) for _, chosen in pairs],
    )


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", NO_CAPABILITY]), st.sampled_from(["a", "c", NO_CAPABILITY])),
        max_size=30,
    )
)
def test_a_confusion_table_counts_every_task_once(pairs: list[tuple[str, str]]) -> None:
    found = routed(pairs).confusion
    assert found.total == len(pairs)
    assert found.correct == sum(label == chosen for label, chosen in pairs)
    assert found.labels[-1] == NO_CAPABILITY
    share = accuracy(found)
    assert (share is None) == (not pairs)
    if share is not None:
        assert 0 <= share[1] <= share[0] + 1e-12 <= share[2] + 1e-12 <= 1 + 2e-12


def test_a_choice_that_was_never_made_is_in_the_table() -> None:
    found = routed([("a", NO_CAPABILITY), ("b", "a")], ["a", "b", "both", NO_CAPABILITY]).confusion
    assert found.labels == ("a", "b", "both", NO_CAPABILITY)
    assert found.counts[2] == (0, 0, 0, 0)
    assert found.total == 2
