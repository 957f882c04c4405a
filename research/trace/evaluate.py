"""Evaluations: whole target tasks by their own reward, and scenarios of the environments by theirs."""

import asyncio
from collections.abc import Mapping, Sequence
from statistics import fmean

from pytest_trace2evolve.engine.conversation import converse
from pytest_trace2evolve.environments.environment import ScenarioEnvironment
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.environments.rollouts import Group, roll_groups
from pytest_trace2evolve.errors import InfrastructureError
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Agent
from pytest_trace2evolve.records.score import Unit
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.records.trace import TerminationReason
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.training.skills import skills_of
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.worlds.support.world import SupportWorld
from research.pocket.lessons import LIMITS
from research.trace.agents import Agents, Policy, label_by_turn
from research.trace.subgoal_success import wishes_of
from research.trace.tasks import Target

AT_ONCE = 48
"""Conversations at once."""

TRIALS = 1_000_000
"""Trials that a seed has room for: no two seeds ask for answers by the same numbers."""

FIRST_SCENARIO = 10_000
"""Of the held-out scenarios: behind those that the recipe was chosen on (docs/training.md: 0 to 99)."""


class Evaluation(Record):
    """What a policy got on target tasks.

    Attributes:
        cells: (tasks,) each task's cell, and `tasks` its id.
        rewards: (tasks,) τ²'s reward of one simulation of each.
        wishes: (tasks,) share of the customer's wishes that were fulfilled, see `wishes_of`.
        routed: (tasks,) the capability that a router chose first; empty where none was asked.
    """

    cells: tuple[str, ...]
    tasks: tuple[str, ...]
    rewards: tuple[Unit, ...]
    wishes: tuple[Unit, ...]
    routed: tuple[str, ...]


class Environmental(Record):
    """What a policy got in environments: (scenarios,) mean rewards, by capability."""

    rewards: dict[str, tuple[Unit, ...]]


def _routed(trace: Sequence[Message]) -> str:
    """What a router chose first."""
    told = (getattr(one, "routing", None) for one in trace)
    return next((str(one["chosen"]) for one in told if isinstance(one, dict)), "")


class Evaluator:
    """Plays policies, many conversations at once.

    Args:
        settings: How the base is asked; answers can be drawn again where these hold a seed.
        environments: Where a router's examples and scenarios come from.
        capabilities: Those that a router may have in its table.
        seed: Of the draws. All policies of one seed ask for a task's answers by the same number, from which a
            server draws together with the adapter's name: no two adapters draw alike.
    """

    def __init__(
        self, settings: ModelSettings, environments: Environments, capabilities: Sequence[str], seed: int
    ) -> None:
        self._settings = settings
        self._environments = environments
        self._skills = skills_of(environments, capabilities)
        self._first = seed * TRIALS
        self._world = SupportWorld()

    async def targets(
        self, policy: Policy, targets: Sequence[Target], first: int = 0
    ) -> tuple[list[float], list[Sequence[Message]]]:
        """One simulation of each task.

        Args:
            policy: Who answers.
            targets: The tasks.
            first: Number of the first simulation, by which its answers are asked for.

        Returns:
            (tasks,) rewards, and (tasks,) traces.

        Raises:
            InfrastructureError: a simulation was lost: of the others alone nothing is said.
        """
        room = asyncio.Semaphore(AT_ONCE)

        async def one(place: int, target: Target, talkers: Agents) -> tuple[float, Sequence[Message]]:
            async with room:
                labels = label_by_turn(target.case.script, target.labels)
                agent = talkers.agent(policy, self._first + first + place, labels)
                user = ScriptedUser(target.case.script, seed=place)
                found = await converse(target.case.task, self._world, agent, user, limits=LIMITS)
            if found.termination_reason == TerminationReason.INFRASTRUCTURE_ERROR:
                raise InfrastructureError(f"task {target.case.id!r} was lost: {found.trouble}; start again")
            reward = score(found, target.case.task, self._world).reward
            if reward is None:
                raise InfrastructureError(f"task {target.case.id!r} cannot be scored")
            return reward, found.trace

        async with Agents(self._settings, self._world, self._skills) as talkers:
            jobs = [one(place, target, talkers) for place, target in enumerate(targets)]
            found = await asyncio.gather(*jobs)
        return [reward for reward, _ in found], [trace for _, trace in found]

    async def evaluate(self, policy: Policy, targets: Sequence[Target]) -> Evaluation:
        """One simulation of each task, kept.

        Raises:
            InfrastructureError: a simulation was lost.
        """
        rewards, traces = await self.targets(policy, targets)
        return Evaluation(
            cells=tuple(one.cell.name for one in targets),
            tasks=tuple(one.case.id for one in targets),
            rewards=tuple(rewards),
            wishes=tuple(wishes_of(*both) for both in zip(targets, traces, strict=True)),
            routed=tuple(map(_routed, traces)),
        )

    async def environmental(
        self, policy: Policy, difficulties: Mapping[str, int], scenarios: int, repeats: int
    ) -> Environmental:
        """Held-out scenarios of environments, `repeats` rollouts each.

        Raises:
            InfrastructureError: a rollout was lost: of the others alone nothing is said.
        """
        found: dict[str, tuple[float, ...]] = {}
        async with Agents(self._settings, self._world, self._skills) as talkers:
            for capability, difficulty in difficulties.items():
                generator = self._environments.generator(capability, difficulty, Content.HELDOUT)

                def agent(number: int, capability: str = capability) -> Agent:
                    return talkers.agent(policy, self._first + number, lambda history: capability)

                groups = await roll_groups(
                    lambda generator=generator: ScenarioEnvironment(generator, self._world),  # type: ignore[misc]
                    agent,
                    range(FIRST_SCENARIO, FIRST_SCENARIO + scenarios),
                    repeats,
                    at_once=AT_ONCE,
                )
                _refuse_lost(capability, groups)
                found[capability] = tuple(fmean(one.rewards) for one in groups)
        return Environmental(rewards=found)


def _refuse_lost(capability: str, groups: Sequence[Group]) -> None:
    rollouts = [one for group in groups for one in group.rollouts]
    lost = [one for one in rollouts if one.reward is None]
    if lost:
        raise InfrastructureError(
            f"environment {capability!r}: {len(lost)} of {len(rollouts)} rollouts were lost; first, of "
            f"scenario {lost[0].seed}: {lost[0].trouble}; start again"
        )
