"""Evaluates policies: whole target tasks by their own reward, and scenarios of the environments by theirs."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import groupby
from statistics import fmean
from typing import Self

from pytest_trace2evolve.agents.chat import ChatAgent, system_prompt
from pytest_trace2evolve.agents.router import RoutedAgent, Router
from pytest_trace2evolve.engine.conversation import converse
from pytest_trace2evolve.environments.environment import ScenarioEnvironment, play_groups
from pytest_trace2evolve.environments.generators.support import Trajectory, is_write
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import InfrastructureError
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.adapter import NO_CAPABILITY, Skill
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Agent, World
from pytest_trace2evolve.records.score import UnitFloat
from pytest_trace2evolve.records.task import Action, Content, Script, Turn
from pytest_trace2evolve.records.trace import TerminationReason
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.training.router_skills import make_skills
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.worlds.support.world import SupportWorld
from research.pocket.lessons import LIMITS
from research.trace.plan import Policy
from research.trace.tasks import Target

AT_ONCE = 48
"""Conversations at once."""

TRIALS = 1_000_000
"""Trials that a seed has room for: no two seeds ask for answers by the same numbers."""

FIRST_SCENARIO = 10_000
"""Of the held-out scenarios: after those that the recipe was chosen on (docs/training.md: 0 to 99)."""

Labels = Callable[[Sequence[Message]], str]
"""The capability that a conversation calls for at its end."""


class Evaluation(Record):
    """Figures of a policy on target tasks.

    Attributes:
        cells: (tasks,) each task's cell, and `tasks` its id.
        rewards: (tasks,) τ²'s reward of one simulation of each.
        wishes: (tasks,) share of the customer's wishes that were fulfilled, see `subgoal_success`.
        routed: (tasks,) the capability that a router chose first; empty without a router.
    """

    cells: tuple[str, ...]
    tasks: tuple[str, ...]
    rewards: tuple[UnitFloat, ...]
    wishes: tuple[UnitFloat, ...]
    routed: tuple[str, ...]


class Environmental(Record):
    """Figures of a policy in environments: (scenarios,) mean rewards, by capability."""

    rewards: dict[str, tuple[UnitFloat, ...]]


class LabelledAgent:
    """Lets the agent of the required capability answer each time: routing by known labels."""

    name = "chat"

    def __init__(self, agents: Mapping[str, Agent], labels: Labels) -> None:
        self._agents, self._labels = agents, labels

    async def respond(self, history: Sequence[Message]) -> Message:
        """The next message of the label's agent, or of the base if the label has none.

        Raises:
            ParticipantError: the model answered with neither text nor a tool call.
            InfrastructureError: no answer was received.
        """
        return await self._agents.get(self._labels(history), self._agents[NO_CAPABILITY]).respond(history)


def label_by_turn(script: Script, labels: Sequence[str]) -> Labels:
    """The label of the last of the script's turns that the customer has taken."""

    def label(history: Sequence[Message]) -> str:
        turn = 0
        for message in history:
            if message.role == "user":
                later = range(turn + 1, len(script.turns))
                turn = next((place for place in later if message.content == script.turns[place].says), turn)
        return labels[turn]

    return label


class Agents:
    """Makes agents over one server.

    Args:
        settings: How the base is asked there.
        world: Whose policy and tools they have.
        skills: A router's description of each capability.
    """

    def __init__(self, settings: ModelSettings, world: World, skills: Sequence[Skill]) -> None:
        self._settings, self._world = settings, world
        self._skills = {skill.name: skill for skill in skills}
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
            trial: The conversation's number, from which answers are drawn.
            labels: The known labels, for a policy that uses them.
        """
        if not policy.table:
            return self._chat(policy.adapter, policy.instruction, trial)
        agents: dict[str, Agent] = {NO_CAPABILITY: self._chat("", policy.instruction, trial)}
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


class Evaluator:
    """Plays policies, many conversations at once.

    Args:
        settings: How the base is asked; answers can be drawn again if these hold a seed.
        environments: Where a router's examples and scenarios come from.
        capabilities: Those that a router may have in its table.
        seed: Of the draws. All policies of one seed ask for a task's answers by the same number; the server
            draws from it and the adapter's name, so no two adapters draw alike.
    """

    def __init__(
        self, settings: ModelSettings, environments: Environments, capabilities: Sequence[str], seed: int
    ) -> None:
        self._settings = settings
        self._environments = environments
        self._skills = make_skills(environments, capabilities)
        self._first = seed * TRIALS
        self._world = SupportWorld()

    async def targets(
        self, policy: Policy, targets: Sequence[Target], first: int = 0
    ) -> tuple[list[float], list[Sequence[Message]]]:
        """One simulation of each task: (tasks,) rewards, and (tasks,) traces.

        Args:
            policy: Who answers.
            targets: The tasks.
            first: Number of the first simulation, by which its answers are asked for.

        Raises:
            InfrastructureError: a simulation was lost, so nothing is reported.
        """
        slots = asyncio.Semaphore(AT_ONCE)

        async def simulate(place: int, target: Target, agents: Agents) -> tuple[float, Sequence[Message]]:
            case = target.case
            async with slots:
                labels = label_by_turn(case.script, target.labels)
                agent = agents.agent(policy, self._first + first + place, labels)
                user = ScriptedUser(case.script, seed=place)
                simulation = await converse(case.task, self._world, agent, user, limits=LIMITS)
            if simulation.termination_reason == TerminationReason.INFRASTRUCTURE_ERROR:
                raise InfrastructureError(f"task {case.id!r} was lost: {simulation.error_text}; start again")
            reward = score(simulation, case.task, self._world).reward
            if reward is None:
                raise InfrastructureError(f"task {case.id!r} cannot be scored")
            return reward, simulation.trace

        async with Agents(self._settings, self._world, self._skills) as agents:
            jobs = [simulate(place, target, agents) for place, target in enumerate(targets)]
            found = await asyncio.gather(*jobs)
        return [reward for reward, _ in found], [trace for _, trace in found]

    async def evaluate(self, policy: Policy, targets: Sequence[Target]) -> Evaluation:
        """One simulation of each task, as a record.

        Raises:
            InfrastructureError: a simulation was lost.
        """
        rewards, traces = await self.targets(policy, targets)
        return Evaluation(
            cells=tuple(target.cell.name for target in targets),
            tasks=tuple(target.case.id for target in targets),
            rewards=tuple(rewards),
            wishes=tuple(subgoal_success(*pair) for pair in zip(targets, traces, strict=True)),
            routed=tuple(map(_first_choice, traces)),
        )

    async def environmental(
        self, policy: Policy, difficulties: Mapping[str, int], scenarios: int, repeats: int
    ) -> Environmental:
        """Held-out scenarios of environments, `repeats` rollouts each.

        Raises:
            InfrastructureError: a rollout was lost, so nothing is reported.
        """
        found: dict[str, tuple[float, ...]] = {}
        async with Agents(self._settings, self._world, self._skills) as agents:
            for capability, difficulty in difficulties.items():
                generator = self._environments.generator(capability, difficulty, Content.HELDOUT)

                def agent(number: int, capability: str = capability) -> Agent:
                    return agents.agent(policy, self._first + number, lambda history: capability)

                groups = await play_groups(
                    lambda generator=generator: ScenarioEnvironment(generator, self._world),  # type: ignore[misc]
                    agent,
                    range(FIRST_SCENARIO, FIRST_SCENARIO + scenarios),
                    repeats,
                    concurrency=AT_ONCE,
                )
                rollouts = [rollout for group in groups for rollout in group.rollouts]
                if lost := [rollout for rollout in rollouts if rollout.reward is None]:
                    raise InfrastructureError(
                        f"environment {capability!r}: {len(lost)} of {len(rollouts)} rollouts were lost; "
                        f"first, of scenario {lost[0].seed}: {lost[0].trouble}; start again"
                    )
                found[capability] = tuple(fmean(group.rewards) for group in groups)
        return Environmental(rewards=found)


def _first_choice(trace: Sequence[Message]) -> str:
    routings = (getattr(message, "routing", None) for message in trace)
    return next((str(routing["chosen"]) for routing in routings if isinstance(routing, dict)), "")


def subgoal_success(target: Target, trace: Sequence[Message]) -> float:
    """The share of the customer's wishes that were fulfilled, each of one capability.

    A wish is fulfilled if the changes made to its records are its gold ones and no others, and its answers
    were given. This says nothing of other records, and includes conversations without an end: it is a second
    figure next to the reward, never a replacement."""
    trajectory = Trajectory(target.case.task, trace)
    texts = [message.content or "" for message in trace if message.role == "assistant"]
    said = " ".join(texts).replace(",", "").lower()
    actions = list(target.case.task.actions)
    fulfilled = []
    turns = zip(target.labels, target.case.script.turns, strict=True)
    for _, group in groupby(turns, key=lambda pair: pair[0]):
        own = [turn for _, turn in group]
        count = sum(turn.actions for turn in own)
        gold, actions = actions[:count], actions[count:]
        answers = [request.answer for turn in own for request in turn.requests if request.answer]
        answered = all(answer.lower() in said for answer in answers)
        fulfilled.append(answered and _changed_as_wished(trajectory, own, gold))
    return fmean(fulfilled)


def _changed_as_wished(trajectory: Trajectory, turns: Sequence[Turn], gold: Sequence[Action]) -> bool:
    records = {record for turn in turns for request in turn.requests for record in request.about}
    wanted = [action for action in gold if is_write(action.name)]
    by_order = all("order_id" in action.arguments for action in wanted)
    keys = ("order_id",) if by_order else ("order_id", "user_id")
    made = [
        call
        for call in trajectory.changes
        if not call.has_failed and any(call.arguments.get(key) in records for key in keys)
    ]
    return len(made) == len(wanted) and all(any(call.matches(action) for call in made) for action in wanted)
