"""Plays the rollouts of environments with the actors of a Ray cluster."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from pytest_trace2evolve.agents.chat import ChatAgent, system_prompt
from pytest_trace2evolve.engine.ray_actor import RayActor
from pytest_trace2evolve.engine.ray_cluster import to_portable
from pytest_trace2evolve.engine.ray_executor import RayExecutor
from pytest_trace2evolve.environments.environment import Rollout, ScenarioEnvironment, play_rollout
from pytest_trace2evolve.environments.generated import project_environments
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.task import Content


@dataclass(frozen=True)
class RolloutSpec:
    """An environment and the agent that plays in it.

    Attributes:
        settings: The agent's model, with the API key.
        instruction: The candidate's instruction, which follows the policy in the prompt.
    """

    capability: str
    difficulty: int
    content: Content
    settings: ModelSettings
    instruction: str = ""


@dataclass(frozen=True)
class RolloutCluster:
    """A cluster whose actors play rollouts with one model."""

    executor: RayExecutor
    settings: ModelSettings

    def player_for(
        self, capability: str, difficulty: int, content: Content, instruction: str
    ) -> Callable[[int, int], Awaitable[Rollout]]:
        """Return a function that plays a scenario of an environment, given its seed and a rollout number."""
        spec = RolloutSpec(capability, difficulty, content, to_portable(self.settings), instruction)
        return partial(self.executor.call, play_on_node, spec)


async def play_on_node(actor: RayActor, spec: RolloutSpec, seed: int, number: int) -> Rollout:
    """Play a scenario in the process of an actor, with an agent made for the rollout's number."""
    generator_key = (spec.capability, spec.difficulty, spec.content)
    if generator_key not in actor.shared_objects:
        environments = actor_environments(actor)
        generator = environments.generator(spec.capability, spec.difficulty, spec.content)
        actor.shared_objects[generator_key] = generator, environments.world(spec.capability)
    generator, world = actor.shared_objects[generator_key]
    model_key = ("model", spec.settings.model, spec.settings.weights)
    if model_key not in actor.shared_objects:
        actor.shared_objects[model_key] = ChatModel(spec.settings)
        actor.closers.append(actor.shared_objects[model_key].close)
    prompt = system_prompt(world.policy(), spec.instruction)
    agent = ChatAgent(actor.shared_objects[model_key], prompt, world.tools("assistant"), trial=number)
    return await play_rollout(ScenarioEnvironment(generator, world), agent, seed)


def actor_environments(actor: RayActor) -> Environments:
    """Return the project's environments in the process of an actor; the first call creates them."""
    if "environments" not in actor.shared_objects:
        environments = actor.shared_objects["environments"] = project_environments(actor.project)

        async def close() -> None:
            environments.close()

        actor.closers.append(close)
    shared_environments: Environments = actor.shared_objects["environments"]
    return shared_environments
