"""The agent `chat` and its user, put together from models, stores of answers, worlds and candidates."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pytest_trace2evolve.agents.chat import ChatAgent
from pytest_trace2evolve.agents.chat import system_prompt as agent_prompt
from pytest_trace2evolve.agents.routed import RoutedAgent, Router
from pytest_trace2evolve.agents.solo import SoloChatAgent, solo_prompt
from pytest_trace2evolve.candidates import Candidate
from pytest_trace2evolve.evidence.answers import AnswerFile
from pytest_trace2evolve.models.answers import (
    JournaledModel,
    JournaledTokens,
    KeyedRequests,
    PlayedModel,
    StoredModel,
)
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.answer import Side
from pytest_trace2evolve.records.protocols import (
    Agent,
    FirstTokens,
    Journal,
    Meter,
    Model,
    ToolSchema,
    User,
    World,
)
from pytest_trace2evolve.records.routing import NONE
from pytest_trace2evolve.records.script import script_of
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.users.chat import ChatUser
from pytest_trace2evolve.users.chat import system_prompt as user_prompt
from pytest_trace2evolve.users.dummy import DummyUser
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.workflow.planning.live import LiveSettings
from pytest_trace2evolve.workflow.running.agents import AgentFactory
from pytest_trace2evolve.workflow.running.pool import Pool


def open_cache(path: Path) -> AnswerFile:
    """A project's cache of answers.

    Raises:
        ConfigError: it is damaged.
    """
    return AnswerFile(path, "delete it: the cache starts anew")


@dataclass(frozen=True)
class _Voices:
    """The models of a simulation.

    Attributes:
        agent, user: Those of the two sides.
        routed: Those between which a router chooses, by capability; empty without one.
        router: The model that the router asks; None without one.
    """

    agent: Model
    user: Model
    routed: Mapping[str, Model]
    router: FirstTokens | None = None


class ChatFactory:
    """Makes the two who talk in a live simulation; their models are shared by all simulations.

    Attributes:
        plays: Whether answers come from a cassette, so that none is drawn.

    Args:
        settings: Who talks, and whether answers are cached, recorded or played back.
        pool: Where simulations run; closes what is opened here.
        meter: Counts what the endpoints answer, and says when they may be asked.
        cache: The project's cache of answers.
        recording: Where the run's processes gather what they record.

    Raises:
        EndpointError: a key is missing.
        ConfigError: a store of answers is damaged.
    """

    def __init__(
        self, settings: LiveSettings, pool: Pool, meter: Meter, *, cache: Path, recording: Path
    ) -> None:
        self._settings = settings
        self.plays = settings.cassette is not None
        if settings.cassette is not None:
            played = self._played(settings.agent, "agent"), self._played(settings.user, "user")
            self._voices = _Voices(*played, {})
            return
        # Half a second, which nobody else pays.
        from pytest_trace2evolve.models.chat import ChatModel

        def opened(one: ModelSettings) -> ChatModel:
            model = ChatModel(one, meter)
            pool.on_close(model.close)
            return model

        routes = settings.routes
        agent = opened(settings.agent if routes is None else routes.base)
        user = agent if settings.user == agent.settings else opened(settings.user)
        kept = self._closing(pool, open_cache(cache)) if settings.cache else None
        own = self._closing(pool, AnswerFile(recording, "record again")) if settings.record else None
        self._requests = {"agent": KeyedRequests(agent.settings), "user": KeyedRequests(settings.user)}
        if routes is not None:
            routed = {NONE: agent, **{name: opened(one) for name, one in routes.models.items()}}
            self._requests |= {f"as {name}": KeyedRequests(one.settings) for name, one in routed.items()}
            self._voices = _Voices(agent, user, routed, agent)
        elif kept or own:
            self._voices = _Voices(
                StoredModel(agent, settings.agent, "agent", cache=kept, record=own),
                StoredModel(user, settings.user, "user", cache=kept, record=own),
                {},
            )
        else:
            self._voices = _Voices(agent, user, {})

    def journaled(
        self, journal: Journal, before_use: Callable[[], Awaitable[None]], place: str = ""
    ) -> AgentFactory:
        """Makes the two who talk in the simulation of a journal.

        Args:
            journal: Takes every answer before it is used, and gives those that it holds.
            before_use: Called before an answer is used.
            place: The part of the cache whose answers may be taken: see `keys.sealed_place`.
        """
        shared, requests = self._voices, self._requests

        def model(own: Model, name: str, side: Side) -> Model:
            stored = own.at(place) if isinstance(own, StoredModel) and place else own
            return JournaledModel(stored, requests[name], side, journal, before_use)

        voices = _Voices(
            model(shared.agent, "agent", "agent"),
            model(shared.user, "user", "user"),
            {name: model(own, f"as {name}", "agent") for name, own in shared.routed.items()},
            shared.router and JournaledTokens(shared.router, requests["agent"], journal, before_use),
        )
        return partial(self._talkers, voices)

    def _talking(self, voices: _Voices, prompt: str, tools: Sequence[ToolSchema], trial: int) -> Agent:
        routes = self._settings.routes
        if voices.router is None or routes is None:
            return ChatAgent(voices.agent, prompt, tools, trial=trial)
        agents = {name: ChatAgent(model, prompt, tools, trial=trial) for name, model in voices.routed.items()}
        return RoutedAgent(Router(voices.router, routes.skills), agents, each_turn=routes.each_turn)

    def _played(self, settings: ModelSettings, side: Side) -> PlayedModel:
        assert self._settings.cassette is not None
        cassette = self._settings.cassette
        return PlayedModel(settings, side, cassette.answers, f"cassette {cassette.path}")

    @staticmethod
    def _closing(pool: Pool, answers: AnswerFile) -> AnswerFile:
        async def close() -> None:
            answers.close()

        pool.on_close(close)
        return answers

    def __call__(
        self, task: Task, world: World, candidate: Candidate, trial: int, /, *, solo: bool = False
    ) -> tuple[Agent, User]:
        """The agent with the candidate's instruction, and the user of the task."""
        return self._talkers(self._voices, task, world, candidate, trial, solo=solo)

    def _talkers(
        self,
        voices: _Voices,
        task: Task,
        world: World,
        candidate: Candidate,
        trial: int,
        /,
        *,
        solo: bool = False,
    ) -> tuple[Agent, User]:
        added = candidate.instruction, self._settings.extra_instruction
        if solo:
            prompt = solo_prompt(world.policy(solo=True), task.ticket or "", *added)
            tools = [*world.tools("assistant"), *world.tools("user")]
            return SoloChatAgent(voices.agent, prompt, tools, trial=trial), DummyUser()
        prompt = agent_prompt(world.policy(), *added)
        agent = self._talking(voices, prompt, world.tools("assistant"), trial)
        script = script_of(task) if self._settings.scripts else None
        if script is not None:
            return agent, ScriptedUser(script, seed=trial)
        scenario = user_prompt(world.guidelines(), task.user_scenario)
        return agent, ChatUser(voices.user, scenario, world.tools("user"), trial=trial)
