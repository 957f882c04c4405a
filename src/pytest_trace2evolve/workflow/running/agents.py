"""Who can talk: the factories of agents, and which of them know solo mode."""

import inspect
from collections.abc import Mapping
from typing import Protocol

from pytest_trace2evolve.agents.case_oracle import CaseOracle
from pytest_trace2evolve.agents.nop import NopAgent
from pytest_trace2evolve.agents.oracle import OracleAgent
from pytest_trace2evolve.candidates import Candidate
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.identity import code_of
from pytest_trace2evolve.records.evidence import (
    DUMMY_USER,
    GOLD_USER,
    NOP,
    ORACLE,
    SCRIPTED_USER,
    Code,
    Identity,
    Settings,
)
from pytest_trace2evolve.records.protocols import Agent, User, World
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.script import script_of
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.users.chat import ChatUser
from pytest_trace2evolve.users.dummy import DummyUser
from pytest_trace2evolve.users.gold import GoldUser
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.workflow.locked import LockedSuite
from pytest_trace2evolve.workflow.planning.live import CHAT
from pytest_trace2evolve.workflow.planning.plan import REPLAY, Plan, PlannedSuite


class AgentFactory(Protocol):
    """Makes the two who talk in one simulation, of a task's trial: the agent of a candidate, and a user.

    In a solo suite it is called with `solo=True`, otherwise without: one that takes no `solo` still serves
    every other suite.
    """

    def __call__(
        self, task: Task, world: World, candidate: Candidate, trial: int, /, *, solo: bool = False
    ) -> tuple[Agent, User]:
        """The agent, and the user, who in solo mode is never asked."""


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


BUILT_IN_AGENTS: dict[str, AgentFactory] = {ORACLE: _oracle, NOP: _nop}


def refuse_without_solo(plan: Plan, agents: Mapping[str, AgentFactory]) -> None:
    """Every agent that talks in a solo suite must be made for it.

    Raises:
        ConfigError: a factory takes no `solo`; names the suite and the agent.
    """
    for name, planned in plan.suites.items():
        factory = agents.get(planned.agent)
        if planned.suite.solo and factory is not None and not _takes_solo(factory):
            raise ConfigError(
                f"suite {name!r} is a solo suite, and agent {planned.agent!r} has no solo mode: "
                "its factory takes no keyword 'solo'"
            )


def _takes_solo(factory: AgentFactory) -> bool:
    parameters = inspect.signature(factory).parameters
    return "solo" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def user_settings(plan: Plan, planned: PlannedSuite) -> Settings:
    """What evidence records of whoever plays the user in a suite that is not replayed."""
    if planned.suite.solo:
        return Settings(implementation=DUMMY_USER)
    if plan.live is None:
        return planned.identity.user
    if planned.suite.scripted and plan.live.scripts:
        return Settings(implementation=SCRIPTED_USER)
    return plan.live.user_settings().model_copy(update={"guidelines": planned.guidelines})


_USERS: Mapping[type, str] = {
    ScriptedUser: SCRIPTED_USER,
    GoldUser: GOLD_USER,
    DummyUser: DUMMY_USER,
    ChatUser: CHAT,
}
"""Names of this package's users in evidence."""


def identify(
    suite: LockedSuite,
    agent: str,
    candidate: Candidate,
    *,
    agents: Mapping[str, AgentFactory],
    world: World,
    code: Code,
) -> Identity:
    """Find agent, user and world of the simulations of a suite.

    An agent of a plugin is made once for the suite's first task, to see which agent and which user its
    factory returns.

    Args:
        suite: The suite.
        agent: The name of its agent.
        candidate: Whose run it is.
        agents: Factories by name.
        world: The suite's world.
        code: The code behind the world's tools.
    """
    if agent == REPLAY:
        return Identity()
    if agent == CHAT:
        return Identity(world=code)
    factory = agents[agent]
    task = world.tasks()[next(iter(suite.lock.tasks))]
    alone = {"solo": True} if suite.suite.solo else {}
    talker: Agent | None = None
    user: User | None  # a solo suite needs none
    try:
        talker, user = factory(task, world, candidate, 0, **alone)
        played_by = _user_of(user)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # `SystemExit` and the outcomes of pytest count, as in a simulation
        # Simulations that fail in the same way keep the traceback. If they succeed, their user is unknown.
        raised = f"the factory of its agent raised {type(error).__name__}"
        played_by = Settings(code=Code(unknown=raised))
    settings = Settings(implementation=agent)
    if BUILT_IN_AGENTS.get(agent) is not factory:
        # The agent's class may depend on the candidate and the task; the factory's code covers all of them.
        update = {"implementation": agent, "code": code_of(factory)}
        settings = _declared(talker).model_copy(update=update)
    return Identity(agent=settings, user=played_by, world=code)


def _user_of(user: User | None) -> Settings:
    if user is None:
        return Settings()
    name = _USERS.get(type(user))
    if name is not None:
        return Settings(implementation=name)
    return _declared(user).model_copy(update={"code": code_of(type(user), parts=True, owner=user)})


def _declared(participant: object) -> Settings:
    """The declaration of an agent or a user: its `settings`, or else its `name`."""
    settings, name = getattr(participant, "settings", None), getattr(participant, "name", None)
    if isinstance(settings, Settings):
        return settings
    return Settings(implementation=name if isinstance(name, str) else None)
