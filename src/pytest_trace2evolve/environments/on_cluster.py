"""Environments on the nodes of a Ray cluster, whose actors play the rollouts."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from pytest_trace2evolve.agents.chat import ChatAgent, system_prompt
from pytest_trace2evolve.engine.ray_actor import RayActor
from pytest_trace2evolve.engine.ray_cluster import portable
from pytest_trace2evolve.engine.ray_executor import RayExecutor
from pytest_trace2evolve.environments.environment import Rollout, ScenarioEnvironment, roll
from pytest_trace2evolve.environments.generated import project_environments
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.task import Content


@dataclass(frozen=True)
class RolloutSpec:
    """An environment and the agent that plays in it.

    Attributes:
        settings: The agent's model, with its key.
        instruction: The candidate's instruction, which follows the policy in the prompt.
    """

    capability: str
    difficulty: int
    content: Content
    settings: ModelSettings
    instruction: str = ""


@dataclass(frozen=True)
class Players:
    """A cluster whose actors play rollouts with one model."""

    executor: RayExecutor
    settings: ModelSettings

    def of(
        self, capability: str, difficulty: int, content: Content, instruction: str
    ) -> Callable[[int, int], Awaitable[Rollout]]:
        """Return a function that plays a scenario of an environment, given its seed and a rollout number."""
        spec = RolloutSpec(capability, difficulty, content, portable(self.settings), instruction)
        return partial(self.executor.call, roll_there, spec)


async def roll_there(actor: RayActor, spec: RolloutSpec, seed: int, number: int) -> Rollout:
    """Play a scenario in the process of an actor, with an agent made from the rollout's number."""
    place = (spec.capability, spec.difficulty, spec.content)
    if place not in actor.kept:
        environments = environments_on(actor)
        generator = environments.generator(spec.capability, spec.difficulty, spec.content)
        actor.kept[place] = generator, environments.world(spec.capability)
    generator, world = actor.kept[place]
    named = ("model", spec.settings.model, spec.settings.weights)
    if named not in actor.kept:
        actor.kept[named] = ChatModel(spec.settings)
        actor.closers.append(actor.kept[named].close)
    prompt = system_prompt(world.policy(), spec.instruction)
    agent = ChatAgent(actor.kept[named], prompt, world.tools("assistant"), trial=number)
    return await roll(ScenarioEnvironment(generator, world), agent, seed)


def environments_on(actor: RayActor) -> Environments:
    """The environments of the project in the process of an actor, which are created once."""
    if "environments" not in actor.kept:
        environments = actor.kept["environments"] = project_environments(actor.project)

        async def close() -> None:
            environments.close()

        actor.closers.append(close)
    found: Environments = actor.kept["environments"]
    return found
