"""What a router chooses from: capabilities, and how a task opens that calls for each."""

from collections.abc import Sequence

from pytest_trace2evolve.capabilities.dictionary import BUILT_IN
from pytest_trace2evolve.records.routing import Skill
from pytest_trace2evolve.records.script import Content
from pytest_trace2evolve.workflow.environments.generator import EASIEST
from pytest_trace2evolve.workflow.environments.registry import Environments

_DESCRIBED = {one.name: one.description for one in BUILT_IN}

EXAMPLE = 0
"""The training scenario whose opening is the example."""


def skills_of(environments: Environments, names: Sequence[str]) -> tuple[Skill, ...]:
    """A router's table.

    Args:
        environments: Where examples come from: content that is trained on, never held-out.
        names: The capabilities.

    Raises:
        GeneratorError: a capability has no environment.
    """
    return tuple(skill_of(environments, name, [name]) for name in names)


def skill_of(environments: Environments, name: str, capabilities: Sequence[str]) -> Skill:
    """What a router's table says of an adapter that was trained for some capabilities.

    Raises:
        GeneratorError: a capability has no environment.
    """
    return Skill(
        name=name,
        description=" ".join(_described(environments, one) for one in capabilities),
        example=opening_of(environments, capabilities[0], EXAMPLE),
    )


def _described(environments: Environments, capability: str) -> str:
    if known := _DESCRIBED.get(capability):
        return known
    pays = environments.offer(capability).pays
    return f"{pays[:1].upper()}{pays[1:]}."


def opening_of(environments: Environments, name: str, seed: int, content: Content = Content.TRAIN) -> str:
    """What the customer says first in a scenario; empty where they say nothing before the agent's turn.

    Raises:
        GeneratorError: the capability has no environment.
    """
    history = environments.environment(name, EASIEST, content).reset(seed)
    return next((one.text for one in history if one.role == "user" and one.text), "")
