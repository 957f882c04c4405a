"""Who answers: known labels follow the customer's turns, and a policy is carried out as it says."""

import asyncio
from collections.abc import Sequence

from pytest_trace2evolve.agents.chat import ChatAgent
from pytest_trace2evolve.agents.router import RoutedAgent
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.routing import NONE, Skill
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.worlds.support.world import SupportWorld
from research.trace.agents import Agents, LabelledAgent, Policy, label_by_turn
from research.trace.plan import CAPABILITIES
from research.trace.tasks import Cell, target_of


class Named:
    """Says its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def respond(self, history: Sequence[Message]) -> Message:
        return Message(role="assistant", content=self.name)


def test_the_oracles_label_follows_the_customers_turns() -> None:
    target = target_of(Cell(CAPABILITIES[:2]), "1", Content.TRAIN)
    first, *_, last = target.labels
    assert first != last
    agent = LabelledAgent(
        {name: Named(name) for name in (*CAPABILITIES[:2], NONE)},
        label_by_turn(target.case.script, target.labels),
    )
    said = [
        Message(role="assistant", content="Hi!"),
        Message(role="user", content=target.case.script.turns[0].says),
        Message(role="user", content="Yes."),
    ]
    assert asyncio.run(agent.respond(said)).content == first
    said.append(Message(role="user", content=target.case.script.turns[-1].says))
    assert asyncio.run(agent.respond(said)).content == last


def test_where_no_adapter_is_there_for_a_label_the_base_answers() -> None:
    agent = LabelledAgent({NONE: Named("base")}, lambda history: "adding_up")
    assert asyncio.run(agent.respond([])).content == "base"


def test_a_policy_is_carried_out() -> None:
    skills = [Skill(name=name, description="It.", example="So.") for name in CAPABILITIES]
    settings = ModelSettings(model="pocket", base_url="http://127.0.0.1:9/v1", token="x")

    async def made() -> None:
        async with Agents(settings, SupportWorld(), skills) as talkers:
            plain = talkers.agent(Policy(adapter="merged", instruction="Look first."), 3)
            assert isinstance(plain, ChatAgent)
            assert plain._model.settings.model == "merged"  # type: ignore[attr-defined]
            assert "Look first." in plain._system["content"]
            base = talkers.agent(Policy(), 3)
            assert base._model.settings.model == "pocket"  # type: ignore[attr-defined]
            table = tuple((name, f"share_{name}") for name in CAPABILITIES[:2])
            routed = talkers.agent(Policy(table=table, each_turn=True), 3)
            assert isinstance(routed, RoutedAgent)
            assert set(routed._agents) == {NONE, *CAPABILITIES[:2]}
            known = talkers.agent(Policy(table=table, oracle=True), 3, lambda history: NONE)
            assert isinstance(known, LabelledAgent)

    asyncio.run(made())
    assert Policy(adapter="a", table=(("b", "c"),)).adapters == {"a", "c"}
