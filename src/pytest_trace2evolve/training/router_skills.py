"""Builds a router's table, which describes capabilities and adapters with an example opening of each."""

from collections.abc import Sequence

from pytest_trace2evolve.environments.environment import EASIEST
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.records.adapter import Skill
from pytest_trace2evolve.records.capability import BUILT_IN_CAPABILITIES
from pytest_trace2evolve.records.task import Content

EXAMPLE_SEED = 0
"""The seed of the training scenario whose opening is the example."""


def make_skills(environments: Environments, capabilities: Sequence[str]) -> tuple[Skill, ...]:
    """Return a router's table with one line per capability.

    Raises:
        GeneratorError: a capability has no environment.
    """
    return tuple(make_skill(environments, name, [name]) for name in capabilities)


def make_skill(environments: Environments, name: str, capabilities: Sequence[str]) -> Skill:
    """Return the line of an adapter trained for `capabilities`, with an example from training content.

    Raises:
        GeneratorError: a capability has no environment.
    """
    built_in_descriptions = {capability.name: capability.description for capability in BUILT_IN_CAPABILITIES}

    def describe(capability: str) -> str:
        if capability in built_in_descriptions:
            return built_in_descriptions[capability]
        reward_text = environments.offer(capability).pays
        return f"{reward_text[:1].upper()}{reward_text[1:]}."

    return Skill(
        name=name,
        description=" ".join(map(describe, capabilities)),
        example=first_customer_message(environments, capabilities[0], EXAMPLE_SEED),
    )


def first_customer_message(
    environments: Environments, name: str, seed: int, content: Content = Content.TRAIN
) -> str:
    """Return the customer's first message in a scenario, or an empty string if the agent speaks first.

    Raises:
        GeneratorError: the capability has no environment.
    """
    history = environments.environment(name, EASIEST, content).reset(seed)
    return next((message.text for message in history if message.role == "user" and message.text), "")
