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
from pytest_trace2evolve.agents.router import RoutedAgent
from pytest_trace2evolve.engine.live import LiveSettings
from pytest_trace2evolve.evidence.answer_store import AnswerFile
from pytest_trace2evolve.evidence.identity import agent_code, code_of, file_of
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.models.stored_answers import (
    JournaledFirstTokens,
    JournaledModel,
    PlaybackModel,
    RequestKeys,
    StoredModel,
)
from pytest_trace2evolve.project.candidates import AgentFactory, Candidate
from pytest_trace2evolve.project.project import LockedSuite
from pytest_trace2evolve.project.suites import Suite
from pytest_trace2evolve.records.adapter import NO_CAPABILITY
from pytest_trace2evolve.records.completion import ParticipantSide
from pytest_trace2evolve.records.evidence import (
    CHAT,
    DUMMY_USER,
    FILE_IDENTITY,
    GOLD_USER,
    NOP,
    ORACLE,
    REPLAY,
    SCRIPTED_USER,
    SLOT_USER,
    WORLD_TEXTS,
    Code,
    Identity,
    Settings,
    with_texts,
)
from pytest_trace2evolve.records.protocols import (
    Agent,
    AnswerStore,
    FirstTokens,
    Journal,
    Meter,
    Model,
    ToolSchema,
    User,
    World,
)
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Task, script_of, slot_script_of
from pytest_trace2evolve.users.chat import ChatUser, PromptedUser, prompts_of
from pytest_trace2evolve.users.chat import system_prompt as user_prompt
from pytest_trace2evolve.users.reference import DummyUser, GoldUser
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.users.slots import SlotUser
from pytest_trace2evolve.utils.canonical import digest, digest_text
from pytest_trace2evolve.utils.import_path import is_own_agent


def _make_oracle(
    task: Task, world: World, candidate: Candidate, trial: int, *, solo: bool = False
) -> tuple[Agent, User]:
    script = None if solo else script_of(task)
    if script is None:
        return OracleAgent(task, solo=solo), _make_user(task, trial, solo=solo)
    write_tools = [name for name, tool_type in world.tool_types().items() if tool_type is ToolType.WRITE]
    return CaseOracle(task, script, write_tools), _make_user(task, trial)


def _make_nop(
    task: Task, world: World, candidate: Candidate, trial: int, *, solo: bool = False
) -> tuple[Agent, User]:
    return NopAgent(solo=solo), _make_user(task, trial, solo=solo)


def _make_user(task: Task, trial: int, *, solo: bool = False) -> User:
    if solo:
        return DummyUser()
    return make_scripted_user(task, trial) or GoldUser(task)


def make_scripted_user(task: Task, trial: int) -> User | None:
    """Make the user that follows the script of a task; None if the task has no script."""
    if (slot_script := slot_script_of(task)) is not None:
        return SlotUser(slot_script, history=len(task.history))
    script = script_of(task)
    return None if script is None else ScriptedUser(script, seed=trial)


AnswerStores = dict[Literal["cache", "record"], AnswerStore]

BUILT_IN_AGENTS: dict[str, AgentFactory] = {ORACLE: _make_oracle, NOP: _make_nop}


def supports_solo(factory: AgentFactory) -> bool:
    """Whether a factory can make an agent for a solo suite."""
    parameters = inspect.signature(factory).parameters
    return "solo" in parameters or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )


_USER_NAMES: Mapping[type, str] = {
    ScriptedUser: SCRIPTED_USER,
    SlotUser: SLOT_USER,
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
    folders: Mapping[str, Path],
) -> Identity:
    """Identify the agent, user and world of a suite's simulations.

    A plugin's factory is called once for each task of the suite, to learn which agents and users it returns.

    Args:
        agent: The name of the suite's agent.
        agents: Factories by name.
        code: The code of the world's tools.
        folders: Further folders with code of the agent.
    """
    if agent == REPLAY:
        return Identity()
    texts = world_texts(suite.suite, world)
    if agent == CHAT or is_own_agent(agent):
        return Identity(agent=with_texts(Settings(), texts), world=code)
    factory = agents[agent]
    is_built_in = BUILT_IN_AGENTS.get(agent) is factory
    tasks = world.tasks()
    first_task, *other_tasks = (tasks[name].model_copy(deep=True) for name in suite.lock.tasks)
    options = {"solo": True} if suite.suite.solo else {}
    sample_agent: Agent | None = None
    try:
        sample_agent, user = factory(first_task, world, candidate, 0, **options)
        settings_by_type = {type(user): _user_settings(user, factory)}
        user_types = {first_task.id: type(user)}
        for task in () if is_built_in else other_tasks:
            with contextlib.suppress(Exception):  # the simulations of the task fail in the same way
                user = factory(task, world, candidate, 0, **options)[1]
                user_types[task.id] = type(user)
                if type(user) not in settings_by_type:
                    settings_by_type[type(user)] = _user_settings(user, factory)
        user_settings = _suite_user_settings(settings_by_type, user_types)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # includes `SystemExit` and pytest's outcomes, as in a simulation
        # Simulations that fail in the same way keep the traceback. If they succeed, their user is unknown.
        reason = f"the factory of its agent raised {type(error).__name__}"
        user_settings = Settings(code=Code(unknown=reason))
    settings = Settings(implementation=agent)
    if not is_built_in:
        # The agent's class may depend on the candidate and the task; the factory's code covers all of them.
        changes = {"implementation": agent, "code": agent_code(factory, folders)}
        settings = with_texts(_declared_settings(sample_agent).model_copy(update=changes), texts)
    return Identity(agent=settings, user=user_settings, world=code)


def world_texts(suite: Suite, world: World) -> dict[str, str]:
    """Return digests of the world's texts that the suite does not lock, by the keys of `WORLD_TEXTS`."""
    policy_key, tools_key = WORLD_TEXTS
    texts = {}
    if not suite.is_locked("policy"):
        texts[policy_key] = digest_text(world.policy(solo=suite.solo))
    if not suite.is_locked("tools"):
        tools = [*world.tools("assistant"), *world.tools("user")]
        texts[tools_key] = digest([tool.model_dump(mode="json") for tool in tools])
    return texts


def _user_settings(user: User | None, factory: AgentFactory) -> Settings:
    if user is None:
        return Settings()
    name = _USER_NAMES.get(type(user))
    if name is not None:
        return Settings(implementation=name)
    agent_file = file_of(factory)
    code = code_of(type(user), owner=user, shared=() if agent_file is None else (agent_file,))
    return _declared_settings(user).model_copy(update={"code": code})


def _suite_user_settings(
    settings_by_type: Mapping[type, Settings], user_types: Mapping[str, type]
) -> Settings:
    """Combine the settings of a suite's users. If the users differ, the code lists the user of each task."""
    first_settings, *other_settings = settings_by_type.values()
    if not other_settings:
        return first_settings
    names = {settings.implementation or "not recorded" for settings in settings_by_type.values()}
    codes = [settings.code for settings in settings_by_type.values() if settings.code is not None]
    if unknown_reason := next((code.unknown for code in codes if code.unknown), None):
        return Settings(implementation=", ".join(sorted(names)), code=Code(unknown=unknown_reason))
    files = {path: digest for code in codes for path, digest in code.files.items()}
    files["(users by task)"] = digest(
        {name: settings_by_type[user_type].model_dump(mode="json") for name, user_type in user_types.items()}
    )
    distributions = {name: version for code in codes for name, version in code.distributions.items()}
    code = Code(files=files, distributions=distributions, identity=FILE_IDENTITY)
    return Settings(implementation=", ".join(sorted(names)), code=code)


def _declared_settings(participant: object) -> Settings:
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
    return AnswerFile(path, "delete it; the next run starts a new cache")


@contextlib.contextmanager
def open_answer_stores(settings: LiveSettings | None, cache: Path, recording: Path) -> Iterator[AnswerStores]:
    """Open the stores of answers that a run uses, and close them after it.

    Raises:
        ConfigError: a store is damaged.
    """
    with contextlib.ExitStack() as stack:
        stores: AnswerStores = {}
        if settings is not None and settings.uses_cache:
            stores["cache"] = stack.enter_context(contextlib.closing(open_cache(cache)))
        if settings is not None and settings.record:
            answer_file = AnswerFile(recording, "record again")
            stores["record"] = stack.enter_context(contextlib.closing(answer_file))
        yield stores


@dataclass(frozen=True)
class _Models:
    """The models of a simulation.

    Attributes:
        agent, user: The models of the two sides.
        routed_models: The models that a router chooses from, by adapter; empty without a router.
        router_model: The router; None without one.
    """

    agent: Model
    user: Model
    routed_models: Mapping[str, Model] = field(default_factory=dict)
    router_model: FirstTokens | None = None


class ChatFactory:
    """Makes agent `chat` and its user for each simulation; all simulations share the models.

    Attributes:
        is_playback: Whether answers come from a cassette.

    Args:
        settings: The models of both sides, and whether answers are cached, recorded or played back.
        on_close: Called with a coroutine function that closes a model, for each model opened here.
        meter: Counts the usage of the endpoints, and decides when a request may be sent.
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
        cache: AnswerStore | None = None,
        record: AnswerStore | None = None,
    ) -> None:
        self._settings = settings
        self.is_playback = settings.cassette is not None
        if self.is_playback:
            self._models = _Models(
                self._open_playback(settings.agent, "agent"), self._open_playback(settings.user, "user")
            )
            return
        from pytest_trace2evolve.models.chat import ChatModel  # takes half a second to import

        def open_model(model: ModelSettings) -> ChatModel:
            chat_model = ChatModel(model, meter)
            on_close(chat_model.close)
            return chat_model

        routes = settings.routes
        agent = open_model(settings.agent if routes is None else routes.base)
        user = agent if settings.user == agent.settings else open_model(settings.user)
        self._requests = {"agent": RequestKeys(agent.settings), "user": RequestKeys(user.settings)}
        self._models = _Models(agent, user)
        if routes is not None:
            routed_models = {
                NO_CAPABILITY: agent,
                **{name: open_model(model) for name, model in routes.models.items()},
            }
            self._requests |= {
                f"as {name}": RequestKeys(model.settings) for name, model in routed_models.items()
            }
            router = open_model(routes.router)
            self._requests["router"] = RequestKeys(router.settings)
            self._models = _Models(agent, user, routed_models, router)
        elif cache or record:
            self._models = _Models(
                StoredModel(agent, settings.agent, "agent", cache=cache, record=record),
                StoredModel(user, settings.user, "user", cache=cache, record=record),
            )

    def with_journal(
        self, journal: Journal, before_use: Callable[[], Awaitable[None]], cache_partition: str = ""
    ) -> AgentFactory:
        """Return a factory for one simulation, in which every answer of a model is journaled.

        Args:
            journal: Stores every answer before it is used, and returns the answers that it already holds.
            before_use: Called before an answer is used.
            cache_partition: The part of the cache whose answers may be used; see
                `provenance.sealed_split_name`.
        """
        return partial(self._make, self._journaled_models(journal, before_use, cache_partition))

    def user_maker(
        self,
        journal: Journal | None = None,
        before_use: Callable[[], Awaitable[None]] | None = None,
        cache_partition: str = "",
    ) -> Callable[[Task, World, int], User]:
        """Return a function that makes the user of a task and trial, for an agent that is not `chat`.

        The arguments are those of `with_journal`. A simulation without a journal needs none of them.
        """
        models = self._models
        if journal is not None and before_use is not None and not self.is_playback:
            models = self._journaled_models(journal, before_use, cache_partition)
        return partial(self._make_user, models)

    def _journaled_models(
        self, journal: Journal, before_use: Callable[[], Awaitable[None]], cache_partition: str
    ) -> _Models:
        shared_models, requests = self._models, self._requests

        def wrap(model: Model, name: str, side: ParticipantSide) -> Model:
            inner = (
                model.with_cache_partition(cache_partition)
                if isinstance(model, StoredModel) and cache_partition
                else model
            )
            return JournaledModel(inner, requests[name], side, journal, before_use)

        return _Models(
            wrap(shared_models.agent, "agent", "agent"),
            wrap(shared_models.user, "user", "user"),
            {name: wrap(model, f"as {name}", "agent") for name, model in shared_models.routed_models.items()},
            shared_models.router_model
            and JournaledFirstTokens(shared_models.router_model, requests["router"], journal, before_use),
        )

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
        instructions = candidate.instruction, self._settings.extra_instruction
        own_tools = candidate.task_tools(world, task)
        if solo:
            policy = candidate.prompt or world.policy(solo=True)
            prompt = solo_prompt(policy, task.ticket or "", *instructions)
            tools = [*own_tools, *world.tools("user")]
            return SoloChatAgent(models.agent, prompt, tools, trial=trial), DummyUser()
        policy = candidate.prompt or world.policy()
        if getattr(world, "has_bare_prompt", False):
            prompt = "\n\n".join(text for text in (policy, *instructions) if text)
        else:
            prompt = agent_prompt(policy, *instructions)
        agent = self._make_agent(models, prompt, own_tools, trial)
        return agent, self._make_user(models, task, world, trial)

    def _make_user(self, models: _Models, task: Task, world: World, trial: int) -> User:
        user = make_scripted_user(task, trial) if self._settings.uses_scripts else None
        if user is not None:
            return user
        if prompts := prompts_of(task):
            return PromptedUser(models.user, prompts, world.tools("user"), trial=trial)
        user_system_prompt = user_prompt(world.guidelines(), task.user_scenario)
        return ChatUser(models.user, user_system_prompt, world.tools("user"), trial=trial)

    def _make_agent(self, models: _Models, prompt: str, tools: Sequence[ToolSchema], trial: int) -> Agent:
        routes = self._settings.routes
        if models.router_model is None or routes is None:
            return ChatAgent(models.agent, prompt, tools, trial=trial)
        agents = {
            name: ChatAgent(model, prompt, tools, trial=trial) for name, model in models.routed_models.items()
        }
        return RoutedAgent(models.router_model, routes.owners, agents)

    def _open_playback(self, settings: ModelSettings, side: ParticipantSide) -> PlaybackModel:
        cassette = self._settings.cassette
        assert cassette is not None
        return PlaybackModel(settings, side, cassette.answers, f"cassette {cassette.path}")
