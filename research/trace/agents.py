"""Who talks in an experiment: the base, an adapter, an instruction, or several adapters behind a router."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Self

from pytest_trace2evolve.agents.chat import ChatAgent, system_prompt
from pytest_trace2evolve.agents.router import RoutedAgent, Router
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Agent, World
from pytest_trace2evolve.records.routing import NONE, Skill
from pytest_trace2evolve.records.task import Script


@dataclass(frozen=True)
class Policy:
    """A way to answer.

    Attributes:
        adapter: The adapter that answers, by its name at the server; empty: the base.
        instruction: What its prompt says behind the domain's policy.
        table: By capability, the adapter that it is routed to; empty: nothing is routed.
        oracle: Whether labels are known; else the router decides.
        each_turn: Whether the router decides anew after each message of the customer.
    """

    adapter: str = ""
    instruction: str = ""
    table: tuple[tuple[str, str], ...] = ()
    oracle: bool = False
    each_turn: bool = False

    @property
    def adapters(self) -> set[str]:
        """All adapters that may answer."""
        return {name for name in (self.adapter, *dict(self.table).values()) if name}


Labels = Callable[[Sequence[Message]], str]
"""The capability that a conversation calls for where it stands."""


class LabelledAgent:
    """Leaves each answer to the agent of the capability that is called for: routing by known labels."""

    name = "chat"

    def __init__(self, agents: Mapping[str, Agent], labels: Labels) -> None:
        self._agents, self._labels = agents, labels

    async def respond(self, history: Sequence[Message]) -> Message:
        """The next message of whom the label names; of the base where nobody is there for it.

        Raises:
            ParticipantError: the model answered with neither text nor a tool call.
            InfrastructureError: no answer could be had.
        """
        return await self._agents.get(self._labels(history), self._agents[NONE]).respond(history)


def label_by_turn(script: Script, labels: Sequence[str]) -> Labels:
    """The label of the last of the script's turns that the customer has taken."""

    def label(history: Sequence[Message]) -> str:
        place = 0
        for message in history:
            if message.role == "user":
                later = range(place + 1, len(script.turns))
                place = next((one for one in later if message.content == script.turns[one].says), place)
        return labels[place]

    return label


class Agents:
    """Makes agents over one server.

    Args:
        settings: How the base is asked there.
        world: Whose policy and tools they have.
        skills: What a router's table says of each capability.
    """

    def __init__(self, settings: ModelSettings, world: World, skills: Sequence[Skill]) -> None:
        self._settings, self._world = settings, world
        self._skills = {one.name: one for one in skills}
        self._models: dict[str, ChatModel] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._stack.aclose()

    def agent(self, policy: Policy, trial: int, labels: Labels | None = None) -> Agent:
        """An agent for one conversation.

        Args:
            policy: Who answers.
            trial: Its number, from which answers are drawn.
            labels: The oracle's, which only a policy with one asks.
        """
        if not policy.table:
            return self._chat(policy.adapter, policy.instruction, trial)
        agents: dict[str, Agent] = {NONE: self._chat("", policy.instruction, trial)}
        for capability, adapter in policy.table:
            agents[capability] = self._chat(adapter, policy.instruction, trial)
        if policy.oracle:
            assert labels is not None
            return LabelledAgent(agents, labels)
        router = Router(self._model(""), [self._skills[name] for name, _ in policy.table])
        return RoutedAgent(router, agents, each_turn=policy.each_turn)

    def _chat(self, adapter: str, instruction: str, trial: int) -> Agent:
        prompt = system_prompt(self._world.policy(), instruction)
        return ChatAgent(self._model(adapter), prompt, self._world.tools("assistant"), trial=trial)

    def _model(self, adapter: str) -> ChatModel:
        if adapter not in self._models:
            settings = replace(self._settings, model=adapter) if adapter else self._settings
            self._models[adapter] = ChatModel(settings)
            self._stack.push_async_callback(self._models[adapter].close)
        return self._models[adapter]
