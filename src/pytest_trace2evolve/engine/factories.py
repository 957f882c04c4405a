"""Factories for the reference agents, the agent `chat` and their users, and their identities in evidence."""

import contextlib
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pytest_trace2evolve.agents.chat import ChatAgent, SoloChatAgent, solo_prompt
from pytest_trace2evolve.agents.chat import system_prompt as agent_prompt
from pytest_trace2evolve.agents.reference import CaseOracle, NopAgent, OracleAgent
from pytest_trace2evolve.agents.router import RoutedAgent, Router
from pytest_trace2evolve.engine.live import LiveSettings
from pytest_trace2evolve.evidence.answer_store import AnswerFile
from pytest_trace2evolve.evidence.identity import code_of
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.models.stored_answers import (
    JournaledModel,
    JournaledTokens,
    KeyedRequests,
    PlayedModel,
    StoredModel,
)
from pytest_trace2evolve.project.candidates import AgentFactory, Candidate
from pytest_trace2evolve.project.project import LockedSuite
from pytest_trace2evolve.records.adapter import NONE
from pytest_trace2evolve.records.completion import Side
from pytest_trace2evolve.records.evidence import (
    CHAT,
    DUMMY_USER,
    GOLD_USER,
    NOP,
    ORACLE,
    REPLAY,
    SCRIPTED_USER,
    Code,
    Identity,
    Settings,
)
from pytest_trace2evolve.records.protocols import (
    Agent,
    Answers,
    FirstTokens,
    Journal,
    Meter,
    Model,
    ToolSchema,
    User,
    World,
)
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Task, script_of
from pytest_trace2evolve.users.chat import ChatUser
from pytest_trace2evolve.users.chat import system_prompt as user_prompt
from pytest_trace2evolve.users.reference import DummyUser, GoldUser
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.utils.canonical import digest


def _oracle(
    task: Task, world: World, candidate: Candidate, trial: int, *, solo: bool = False
) -> tuple[Agent, User]:
    script = None if solo else script_of(task)
    if script is None:
        return OracleAgent(task, solo=solo), _user(task, trial, solo=solo)
    writes = [name for name, kind in world.tool_types().items() if kind is ToolType.WRITE]
    return CaseOracle(task, script, writes), _user(task, trial)


def _nop(
    task: Task, world: World, candidate: Candidate, trial: int, *, solo: bool = False
) -> tuple[Agent, User]:
    return NopAgent(solo=solo), _user(task, trial, solo=solo)


def _user(task: Task, trial: int, *, solo: bool = False) -> User:
    if solo:
        return DummyUser()
    script = script_of(task)
    return GoldUser(task) if script is None else ScriptedUser(script, seed=trial)


AnswerStores = dict[Literal["cache", "record"], Answers]

BUILT_IN_AGENTS: dict[str, AgentFactory] = {ORACLE: _oracle, NOP: _nop}


def takes_solo(factory: AgentFactory) -> bool:
    """Whether a factory can make an agent for a solo suite."""
    parameters = inspect.signature(factory).parameters
    return "solo" in parameters or any(value.kind is value.VAR_KEYWORD for value in parameters.values())


_USERS: Mapping[type, str] = {
    ScriptedUser: SCRIPTED_USER,
    GoldUser: GOLD_USER,
    DummyUser: DUMMY_USER,
    ChatUser: CHAT,
}
"""The names by which evidence records this package's users."""


def identify(
    suite: LockedSuite,
    agent: str,
    candidate: Candidate,
    *,
    agents: Mapping[str, AgentFactory],
    world: World,
    code: Code,
) -> Identity:
    """Identify the agent, user and world of a suite's simulations.

    A plugin's factory is called once for each task of the suite, to learn which agents and users it returns.

    Args:
        agent: The name of the suite's agent.
        agents: Factories by name.
        code: The code behind the world's tools.
    """
    if agent == REPLAY:
        return Identity()
    if agent == CHAT:
        return Identity(world=code)
    factory = agents[agent]
    is_built_in = BUILT_IN_AGENTS.get(agent) is factory
    tasks = world.tasks()
    first, *others = (tasks[name].model_copy(deep=True) for name in suite.lock.tasks)
    options = {"solo": True} if suite.suite.solo else {}
    made: Agent | None = None
    try:
        made, user = factory(first, world, candidate, 0, **options)
        users = {type(user): _settings_of_user(user)}
        by_task = {first.id: type(user)}
        for task in () if is_built_in else others:
            with contextlib.suppress(Exception):  # the simulations of the task fail in the same way
                user = factory(task, world, candidate, 0, **options)[1]
                by_task[task.id] = type(user)
                if type(user) not in users:
                    users[type(user)] = _settings_of_user(user)
        user_settings = _settings_of_users(users, by_task)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # includes `SystemExit` and pytest's outcomes, as in a simulation
        # Simulations that fail in the same way keep the traceback. If they succeed, their user is unknown.
        raised = f"the factory of its agent raised {type(error).__name__}"
        user_settings = Settings(code=Code(unknown=raised))
    settings = Settings(implementation=agent)
    if not is_built_in:
        # The agent's class may depend on the candidate and the task; the factory's code covers all of them.
        update = {"implementation": agent, "code": code_of(factory)}
        settings = _declared(made).model_copy(update=update)
    return Identity(agent=settings, user=user_settings, world=code)


def _settings_of_user(user: User | None) -> Settings:
    if user is None:
        return Settings()
    name = _USERS.get(type(user))
    if name is not None:
        return Settings(implementation=name)
    return _declared(user).model_copy(update={"code": code_of(type(user), parts=True, owner=user)})


def _settings_of_users(users: Mapping[type, Settings], by_task: Mapping[str, type]) -> Settings:
    """The settings of all users of a suite; if there are several users, also the user of each task."""
    first, *others = users.values()
    if not others:
        return first
    names = {settings.implementation or "not recorded" for settings in users.values()}
    codes = [settings.code for settings in users.values() if settings.code is not None]
    if unknown := next((code.unknown for code in codes if code.unknown), None):
        return Settings(implementation=", ".join(sorted(names)), code=Code(unknown=unknown))
    files = {path: digest for code in codes for path, digest in code.files.items() if path != "(factory)"}
    files["(users by task)"] = digest(
        {name: users[kind].model_dump(mode="json") for name, kind in by_task.items()}
    )
    distributions = {name: version for code in codes for name, version in code.distributions.items()}
    return Settings(
        implementation=", ".join(sorted(names)), code=Code(files=files, distributions=distributions)
    )


def _declared(participant: object) -> Settings:
    """The settings that an agent or a user declares: its `settings`, or else only its `name`."""
    settings, name = getattr(participant, "settings", None), getattr(participant, "name", None)
    if isinstance(settings, Settings):
        return settings
    return Settings(implementation=name if isinstance(name, str) else None)


def open_cache(path: Path) -> AnswerFile:
    """Open a project's cache of answers.

    Raises:
        ConfigError: the cache is damaged.
    """
    return AnswerFile(path, "delete it: the cache starts anew")


@contextlib.contextmanager
def answer_stores(settings: LiveSettings | None, cache: Path, recording: Path) -> Iterator[AnswerStores]:
    """Open the stores of answers that a run uses, and close them after it.

    Raises:
        ConfigError: a store is damaged.
    """
    with contextlib.ExitStack() as stack:
        found: AnswerStores = {}
        if settings is not None and settings.cache:
            found["cache"] = stack.enter_context(contextlib.closing(open_cache(cache)))
        if settings is not None and settings.record:
            file = AnswerFile(recording, "record again")
            found["record"] = stack.enter_context(contextlib.closing(file))
        yield found


@dataclass(frozen=True)
class _Models:
    """The models of a simulation.

    Attributes:
        agent, user: The models of the two sides.
        routed: The models that a router chooses from, by capability; empty without a router.
        router: The model that chooses; None without a router.
    """

    agent: Model
    user: Model
    routed: Mapping[str, Model] = field(default_factory=dict)
    router: FirstTokens | None = None


class ChatFactory:
    """Makes agent `chat` and its user for each simulation; all simulations share the models.

    Attributes:
        plays: Whether answers come from a cassette.

    Args:
        settings: The models of both sides, and whether answers are cached, recorded or played back.
        on_close: Registers a coroutine function that closes a model opened here.
        meter: Counts the usage of the endpoints, and admits each request.
        cache: The project's cache of answers; None if it is not used.
        record: The store in which the processes of the run record answers; None if nothing is recorded.

    Raises:
        EndpointError: a key is missing.
    """

    def __init__(
        self,
        settings: LiveSettings,
        on_close: Callable[[Callable[[], Coroutine[Any, Any, None]]], None],
        meter: Meter,
        *,
        cache: Answers | None = None,
        record: Answers | None = None,
    ) -> None:
        self._settings = settings
        self.plays = settings.cassette is not None
        if self.plays:
            self._models = _Models(self._played(settings.agent, "agent"), self._played(settings.user, "user"))
            return
        from pytest_trace2evolve.models.chat import ChatModel  # takes half a second to import

        def opened(model: ModelSettings) -> ChatModel:
            chat = ChatModel(model, meter)
            on_close(chat.close)
            return chat

        routes = settings.routes
        agent = opened(settings.agent if routes is None else routes.base)
        user = agent if settings.user == agent.settings else opened(settings.user)
        self._requests = {"agent": KeyedRequests(agent.settings), "user": KeyedRequests(user.settings)}
        self._models = _Models(agent, user)
        if routes is not None:
            routed = {NONE: agent, **{name: opened(model) for name, model in routes.models.items()}}
            self._requests |= {f"as {name}": KeyedRequests(model.settings) for name, model in routed.items()}
            self._models = _Models(agent, user, routed, agent)
        elif cache or record:
            self._models = _Models(
                StoredModel(agent, settings.agent, "agent", cache=cache, record=record),
                StoredModel(user, settings.user, "user", cache=cache, record=record),
            )

    def journaled(
        self, journal: Journal, before_use: Callable[[], Awaitable[None]], place: str = ""
    ) -> AgentFactory:
        """Return a factory for one simulation that journals all its answers.

        Args:
            journal: Stores every answer before it is used, and returns the answers that it already holds.
            before_use: Called before an answer is used.
            place: The part of the cache whose answers may be used; see `provenance.sealed_place`.
        """
        shared, requests = self._models, self._requests

        def wrapped(model: Model, name: str, side: Side) -> Model:
            stored = model.at(place) if isinstance(model, StoredModel) and place else model
            return JournaledModel(stored, requests[name], side, journal, before_use)

        models = _Models(
            wrapped(shared.agent, "agent", "agent"),
            wrapped(shared.user, "user", "user"),
            {name: wrapped(model, f"as {name}", "agent") for name, model in shared.routed.items()},
            shared.router and JournaledTokens(shared.router, requests["agent"], journal, before_use),
        )
        return partial(self._make, models)

    def __call__(
        self, task: Task, world: World, candidate: Candidate, trial: int, /, *, solo: bool = False
    ) -> tuple[Agent, User]:
        """Make the agent with the candidate's instruction, and the user of the task."""
        return self._make(self._models, task, world, candidate, trial, solo=solo)

    def _make(
        self,
        models: _Models,
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
            return SoloChatAgent(models.agent, prompt, tools, trial=trial), DummyUser()
        agent = self._agent(models, agent_prompt(world.policy(), *added), world.tools("assistant"), trial)
        script = script_of(task) if self._settings.scripts else None
        if script is not None:
            return agent, ScriptedUser(script, seed=trial)
        scenario = user_prompt(world.guidelines(), task.user_scenario)
        return agent, ChatUser(models.user, scenario, world.tools("user"), trial=trial)

    def _agent(self, models: _Models, prompt: str, tools: Sequence[ToolSchema], trial: int) -> Agent:
        routes = self._settings.routes
        if models.router is None or routes is None:
            return ChatAgent(models.agent, prompt, tools, trial=trial)
        agents = {name: ChatAgent(model, prompt, tools, trial=trial) for name, model in models.routed.items()}
        return RoutedAgent(Router(models.router, routes.skills), agents, each_turn=routes.each_turn)

    def _played(self, settings: ModelSettings, side: Side) -> PlayedModel:
        cassette = self._settings.cassette
        assert cassette is not None
        return PlayedModel(settings, side, cassette.answers, f"cassette {cassette.path}")
