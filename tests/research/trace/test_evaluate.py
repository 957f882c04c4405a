"""Evaluations: who answers, every task once by its own reward, and answers that are drawn from numbers."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_trace2evolve.agents.reference import CaseOracle, NopAgent
from pytest_trace2evolve.agents.router import RoutedAgent
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import InfrastructureError
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.adapter import NO_CAPABILITY, Routing, Skill
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Agent
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.testing.server import ChatServer, Reply
from pytest_trace2evolve.worlds.support.world import SupportWorld
from research.trace.evaluate import TRIALS, Agents, Evaluator, LabelledAgent, Labels, label_by_turn
from research.trace.plan import CAPABILITIES, Policy
from research.trace.tasks import Cell, cells_of, target_of, targets_of
from tests.research.trace.test_tasks import WRITES

CELLS = cells_of(CAPABILITIES[:2])
TARGETS = [target for cell in CELLS for target in targets_of(cell, "evaluate", 3, Content.TRAIN)]
SETTINGS = ModelSettings(model="pocket", base_url="http://127.0.0.1:9/v1", token="x")


class NamedAgent:
    """Says its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def respond(self, history: Sequence[Message]) -> Message:
        return Message(role="assistant", content=self.name)


class RoutingAgent:
    """Adds a decision to its first message, as the routed agent does."""

    def __init__(self, agent: Agent) -> None:
        self.name, self._agent, self._first = "chat", agent, True

    async def respond(self, history: Sequence[Message]) -> Message:
        message = await self._agent.respond(history)
        if not self._first:
            return message
        self._first = False
        routing = Routing(chosen=CAPABILITIES[1], shares={}).model_dump(mode="json")
        return message.model_copy(update={"routing": routing})


class UnreachableAgent:
    """Gets no answer from its model."""

    name = "chat"

    async def respond(self, history: Sequence[Message]) -> Message:
        raise InfrastructureError("the line is cut")


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of all simulations; the oracle plays the adapter `expert`, an idle agent the others."""
    trials: list[int] = []

    def agent(self: Agents, policy: Policy, trial: int, labels: Labels | None = None) -> Any:
        trials.append(trial)
        if policy.adapter == "lost" or (policy.adapter == "lost once" and len(trials) == 5):
            return UnreachableAgent()
        if policy.adapter != "expert":
            return NopAgent()
        target = TARGETS[trial % TRIALS]
        return RoutingAgent(CaseOracle(target.case.task, target.case.script, WRITES))

    monkeypatch.setattr(Agents, "agent", agent)
    return trials


def evaluator(seed: int, settings: ModelSettings = SETTINGS) -> Evaluator:
    return Evaluator(settings, Environments(), CAPABILITIES[:2], seed)


def test_label_follows_the_customers_turns() -> None:
    target = target_of(Cell(CAPABILITIES[:2]), "1", Content.TRAIN)
    first, *_, last = target.labels
    assert first != last
    agents = {name: NamedAgent(name) for name in (*CAPABILITIES[:2], NO_CAPABILITY)}
    agent = LabelledAgent(agents, label_by_turn(target.case.script, target.labels))
    history = [
        Message(role="assistant", content="Hi!"),
        Message(role="user", content=target.case.script.turns[0].says),
        Message(role="user", content="Yes."),
    ]
    assert asyncio.run(agent.respond(history)).content == first
    history.append(Message(role="user", content=target.case.script.turns[-1].says))
    assert asyncio.run(agent.respond(history)).content == last


def test_base_answers_if_a_label_has_no_adapter() -> None:
    agent = LabelledAgent({NO_CAPABILITY: NamedAgent("base")}, lambda history: "adding_up")
    assert asyncio.run(agent.respond([])).content == "base"


def test_a_policy_decides_who_answers() -> None:
    skills = [Skill(name=name, description="It.", example="So.") for name in CAPABILITIES]
    table = tuple((name, f"share_{name}") for name in CAPABILITIES[:2])
    history = [Message(role="user", content="Hello.")]
    policies = {
        "merged": Policy(adapter="merged", instruction="Look first."),
        "pocket": Policy(),
        f"share_{CAPABILITIES[0]}": Policy(table=table, oracle=True),
    }

    async def respond(settings: ModelSettings) -> None:
        async with Agents(settings, SupportWorld(), skills) as agents:
            for policy in policies.values():
                await agents.agent(policy, 3, lambda history: CAPABILITIES[0]).respond(history)
            assert isinstance(agents.agent(Policy(table=table, each_turn=True), 3), RoutedAgent)

    with ChatServer(lambda request: Reply(content="Hi.")) as server:
        asyncio.run(respond(ModelSettings(model="pocket", base_url=server.base_url, token="x")))
    assert [request["model"] for request in server.requests] == list(policies)
    prompts = [request["messages"][0]["content"] for request in server.requests]
    assert ["Look first." in prompt for prompt in prompts] == [True, False, False]
    assert Policy(adapter="a", table=(("b", "c"),)).adapters == {"a", "c"}


def test_every_task_is_played_once_by_its_own_reward(trials: list[int]) -> None:
    found = asyncio.run(evaluator(2).evaluate(Policy(adapter="expert"), TARGETS))
    assert found.tasks == tuple(target.case.id for target in TARGETS)
    assert set(found.rewards) == set(found.wishes) == {1.0}
    assert set(found.routed) == {CAPABILITIES[1]}
    idle = asyncio.run(evaluator(2).evaluate(Policy(), TARGETS))
    assert set(idle.rewards) == {0.0}
    assert set(idle.routed) == {""}


def test_a_lost_simulation_is_no_reward(trials: list[int]) -> None:
    with pytest.raises(InfrastructureError, match="was lost: the line is cut"):
        asyncio.run(evaluator(1).evaluate(Policy(adapter="lost"), TARGETS))


def test_environments_give_a_reward_per_scenario(trials: list[int]) -> None:
    difficulties = dict.fromkeys(CAPABILITIES[:2], 1)
    found = asyncio.run(evaluator(1).environmental(Policy(), difficulties, 3, 2))
    assert {name: len(rewards) for name, rewards in found.rewards.items()} == dict.fromkeys(
        CAPABILITIES[:2], 3
    )
    assert len(trials) == 12
    assert max(max(rewards) for rewards in found.rewards.values()) <= 0.2


def test_one_lost_rollout_in_an_environment_is_an_error(trials: list[int]) -> None:
    """Its scenarios follow those that the recipe was chosen on: they begin with 10000."""
    message = (
        "environment 'precondition_verification': 1 of 60 rollouts were lost; first, of scenario 10002: "
        "the line is cut; start again"
    )
    with pytest.raises(InfrastructureError) as raised:
        asyncio.run(evaluator(1).environmental(Policy(adapter="lost once"), {CAPABILITIES[0]: 1}, 30, 2))
    assert str(raised.value) == message


def test_all_arms_of_a_seed_ask_by_the_same_numbers_and_no_two_seeds() -> None:
    numbers = []
    with ChatServer(lambda request: Reply(content="I cannot help you with that.")) as server:
        settings = ModelSettings(model="pocket", base_url=server.base_url, token="x", seed=0)
        for seed, policy in ((1, Policy()), (1, Policy(adapter="direct")), (2, Policy())):
            asyncio.run(evaluator(seed, settings).evaluate(policy, TARGETS))
            numbers.append({request.get("seed") for request in server.requests})
            server.requests.clear()
    assert numbers[0] == numbers[1] == set(range(TRIALS, TRIALS + len(TARGETS)))
    assert numbers[2] == set(range(2 * TRIALS, 2 * TRIALS + len(TARGETS)))
