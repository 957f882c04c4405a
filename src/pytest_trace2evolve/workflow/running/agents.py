"""Who can talk: the factories of agents, and which of them know solo mode."""

import inspect
from collections.abc import Mapping
from typing import Protocol

from pytest_trace2evolve.agents.case_oracle import CaseOracle
from pytest_trace2evolve.agents.nop import NopAgent
from pytest_trace2evolve.agents.oracle import OracleAgent
from pytest_trace2evolve.candidates import Candidate
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.records.evidence import DUMMY_USER, GOLD_USER, ORACLE, SCRIPTED_USER, Settings
from pytest_trace2evolve.records.protocols import Agent, User, World
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.script import script_of
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.users.dummy import DummyUser
from pytest_trace2evolve.users.gold import GoldUser
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.workflow.planning.plan import Plan, PlannedSuite


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


BUILT_IN_AGENTS: dict[str, AgentFactory] = {ORACLE: _oracle, "nop": _nop}


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
    if planned.suite.scripted and (plan.live is None or plan.live.scripts):
        return Settings(implementation=SCRIPTED_USER)
    if plan.live is None:
        return Settings(implementation=GOLD_USER)
    return plan.live.user_settings().model_copy(update={"guidelines": planned.guidelines})
