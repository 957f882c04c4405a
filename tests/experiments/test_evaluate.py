"""Evaluations: every task once, by its own reward, and answers that are drawn from numbers."""

import asyncio
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.agents.reference import CaseOracle, NopAgent
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.environments.rollouts import Group, Rollout
from pytest_trace2evolve.errors import InfrastructureError
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.adapter import Routing
from pytest_trace2evolve.records.completion import Usage
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Agent
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.testing.server import ChatServer, Reply
from research.trace import evaluate
from research.trace import run as course
from research.trace.agents import Agents, Labels, Policy
from research.trace.evaluate import TRIALS, Evaluator
from research.trace.plan import CAPABILITIES, Plan
from research.trace.store import Seed
from research.trace.tasks import cells_of, targets_of
from tests.experiments.test_tasks import WRITES

CELLS = cells_of(CAPABILITIES[:2])
TARGETS = [one for cell in CELLS for one in targets_of(cell, "evaluate", 3, Content.TRAIN)]


class Routed:
    """Carries a decision on its first message, as the routed agent does."""

    def __init__(self, agent: Agent) -> None:
        self.name, self._agent, self._first = "chat", agent, True

    async def respond(self, history: Sequence[Message]) -> Message:
        said = await self._agent.respond(history)
        decided, self._first = self._first, False
        routing = Routing(chosen=CAPABILITIES[1], shares={}).model_dump(mode="json")
        return said.model_copy(update={"routing": routing}) if decided else said


class Lost:
    """Cannot be reached."""

    name = "chat"

    async def respond(self, history: Sequence[Message]) -> Message:
        raise InfrastructureError("the line is cut")


@pytest.fixture(name="trials")
def _trials(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of all simulations; the oracle plays where an adapter is named, and nobody elsewhere."""
    trials: list[int] = []

    def agent(self: Agents, policy: Policy, trial: int, labels: Labels | None = None) -> Any:
        trials.append(trial)
        if policy.adapter == "lost" or (policy.adapter == "lost once" and len(trials) == 5):
            return Lost()
        if policy.adapter != "expert":
            return NopAgent()
        target = TARGETS[trial % TRIALS]
        return Routed(CaseOracle(target.case.task, target.case.script, WRITES))

    monkeypatch.setattr(Agents, "agent", agent)
    return trials


def evaluator(seed: int) -> Evaluator:
    settings = ModelSettings(model="pocket", base_url="http://127.0.0.1:9/v1", token="x")
    return Evaluator(settings, Environments(), CAPABILITIES[:2], seed)


def test_every_task_once_by_its_own_reward(trials: list[int]) -> None:
    found = asyncio.run(evaluator(2).evaluate(Policy(adapter="expert"), TARGETS))
    assert found.tasks == tuple(one.case.id for one in TARGETS)
    assert set(found.rewards) == set(found.wishes) == {1.0}
    assert set(found.routed) == {CAPABILITIES[1]}
    idle = asyncio.run(evaluator(2).evaluate(Policy(), TARGETS))
    assert set(idle.rewards) == {0.0}
    assert set(idle.routed) == {""}
    assert trials[: len(TARGETS)] == trials[len(TARGETS) :]  # arms of a seed ask by the same numbers
    asyncio.run(evaluator(3).evaluate(Policy(), TARGETS))
    assert not set(trials[: len(TARGETS)]) & set(trials[-len(TARGETS) :])  # seeds do not


def test_a_lost_simulation_is_no_reward(trials: list[int]) -> None:
    with pytest.raises(InfrastructureError, match="was lost: the line is cut"):
        asyncio.run(evaluator(1).evaluate(Policy(adapter="lost"), TARGETS))


def test_environments_give_a_reward_a_scenario(trials: list[int]) -> None:
    difficulties = dict.fromkeys(CAPABILITIES[:2], 1)
    found = asyncio.run(evaluator(1).environmental(Policy(), difficulties, 3, 2))
    assert {name: len(rewards) for name, rewards in found.rewards.items()} == dict.fromkeys(
        CAPABILITIES[:2], 3
    )
    assert len(trials) == 12
    assert max(max(rewards) for rewards in found.rewards.values()) <= 0.2


def test_one_lost_rollout_in_an_environment_is_told(trials: list[int]) -> None:
    told = (
        "environment 'precondition_verification': 1 of 60 rollouts were lost; first, of scenario 10002: "
        "the line is cut; start again"
    )
    with pytest.raises(InfrastructureError) as raised:
        asyncio.run(evaluator(1).environmental(Policy(adapter="lost once"), {CAPABILITIES[0]: 1}, 30, 2))
    assert str(raised.value) == told


def test_scenarios_are_others_than_a_recipe_is_chosen_on(
    trials: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    async def rolled(make: object, agents: object, seeds: Sequence[int], group: int, **given: object) -> Any:
        asked.extend(seeds)
        return [Group(seed, [Rollout(seed, 1.0, (), Usage(), 0)]) for seed in seeds]

    monkeypatch.setattr(evaluate, "roll_groups", rolled)
    asyncio.run(evaluator(1).environmental(Policy(), {CAPABILITIES[0]: 1}, 3, 1))
    assert asked == [10_000, 10_001, 10_002]


def test_answers_are_asked_for_by_the_same_numbers_in_every_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ChatServer(lambda asked: Reply(content="I cannot help you with that.")) as server:

        @contextmanager
        def served(base: object, adapters: object, *, seed: int | None = None, **given: object) -> Any:
            yield ModelSettings(model="pocket", base_url=server.base_url, token="x", seed=seed)

        monkeypatch.setattr(course, "served", served)
        monkeypatch.setattr(course, "read_model", lambda folder: None)
        sent = []
        for number, policy in ((1, Policy()), (1, Policy(adapter="direct")), (2, Policy())):
            with course._served(Seed(Plan(), number, tmp_path, tmp_path), {}) as settings:
                playing = Evaluator(settings, Environments(), CAPABILITIES[:2], number)
                asyncio.run(playing.evaluate(policy, TARGETS))
            sent.append({one.get("seed") for one in server.requests})
            server.requests.clear()
    assert sent[0] == sent[1] == set(range(TRIALS, TRIALS + len(TARGETS)))
    assert sent[2] == set(range(2 * TRIALS, 2 * TRIALS + len(TARGETS)))
