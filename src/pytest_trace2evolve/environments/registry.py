"""Environments by name: built-in, installed, registered by a hook, and written by a model."""

import functools
from collections.abc import Iterable, Mapping, Sequence

from pytest_trace2evolve.environments.environment import ScenarioEnvironment
from pytest_trace2evolve.environments.generators.address import AccountAddressInference
from pytest_trace2evolve.environments.generators.conditional import ConditionalDetailRetrieval
from pytest_trace2evolve.environments.generators.multi_step import MultiStepTaskCompletion
from pytest_trace2evolve.environments.generators.precision import ToolCallingPrecision
from pytest_trace2evolve.environments.generators.precondition import PreconditionVerification
from pytest_trace2evolve.environments.generators.structured import StructuredDataReasoning
from pytest_trace2evolve.environments.generators.support import SupportGenerator
from pytest_trace2evolve.environments.generators.whole_tasks import WholeTasks
from pytest_trace2evolve.errors import ConfigError, GeneratorError, name_suggestion
from pytest_trace2evolve.project.extensions import environment_entry_points
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.adapter import WHOLE_TASKS
from pytest_trace2evolve.records.protocols import Generator, Offer, World
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.worlds.registry import WorldName, Worlds

BUILT_IN: tuple[type[SupportGenerator], ...] = (
    PreconditionVerification,
    StructuredDataReasoning,
    MultiStepTaskCompletion,
    ToolCallingPrecision,
    AccountAddressInference,
    ConditionalDetailRetrieval,
)
"""The generators of the built-in environments."""

BUILT_IN_NAMES = frozenset(generator.capability for generator in BUILT_IN)
"""The capabilities that have a built-in environment."""


class Environments:
    """All known environments.

    Args:
        extra_offers: Further environments by capability: from `pytest_t2e_environments`, or synthesized.
        worlds: Opens the worlds in which environments are played.
        project: The project that offers the environments of `extra_offers`, for processes that recreate them.
    """

    def __init__(
        self,
        extra_offers: Mapping[str, Offer] | None = None,
        worlds: Worlds | None = None,
        project: Project | None = None,
    ) -> None:
        built_in_offers = {generator.capability: Offer(generator, generator.pays) for generator in BUILT_IN}
        self._offers: dict[str, Offer] = {**built_in_offers, **_installed_offers(), **(extra_offers or {})}
        self._worlds = worlds or Worlds()
        self.project = project

    def close(self) -> None:
        """End the processes that environments have started."""
        for offer in self._offers.values():
            offer.close()

    @property
    def names(self) -> list[str]:
        """The capabilities, built-in ones first."""
        return list(self._offers)

    def names_with_tools_of(self, worlds: Iterable[WorldName]) -> tuple[str, ...]:
        """Names of the environments that have the tools of every given world."""
        interfaces = {self._worlds.interface_of(*world) for world in worlds}
        return tuple(
            name
            for name, offer in self._offers.items()
            if interfaces <= {self._worlds.interface_of(offer.provider, offer.domain)}
        )

    def require_tools_of(self, source: str, world: WorldName) -> None:
        """Check that some environment has the tools of a world; see `require_same_tools`."""
        environment_worlds = dict.fromkeys((offer.provider, offer.domain) for offer in self._offers.values())
        require_same_tools(source, world, list(environment_worlds), self._worlds)

    def offer(self, name: str) -> Offer:
        """The offer for a capability.

        Raises:
            GeneratorError: no environment has this name; the message suggests similar names.
        """
        if name == WHOLE_TASKS:  # no capability, so it is in no list of them
            return Offer(WholeTasks, WholeTasks.pays)
        if name not in self._offers:
            raise GeneratorError(f"unknown environment {name!r}; {name_suggestion(name, self.names)}")
        return self._offers[name]

    def generator(self, name: str, difficulty: int, content: Content = Content.TRAIN) -> Generator:
        """The generator of a capability."""
        return self.offer(name).make(difficulty, content)

    def world(self, name: str) -> World:
        """The world in which a capability's scenarios are played."""
        offer = self.offer(name)
        return self._worlds.open(offer.provider, offer.domain)

    def environment(
        self, name: str, difficulty: int, content: Content = Content.TRAIN, *, ends_early: bool = True
    ) -> ScenarioEnvironment:
        """Create an environment; many environments can be played concurrently."""
        return ScenarioEnvironment(
            self.generator(name, difficulty, content), self.world(name), ends_early=ends_early
        )


def require_same_tools(
    source: str, world: WorldName, environment_worlds: Sequence[WorldName], worlds: Worlds
) -> None:
    """Check that environments have the tools of the world from which an agent learns.

    In an environment with different tools, an agent would learn calls that its own world does not have.

    Args:
        source: The name of the run or suite that uses the world, for the message, such as `run 7c2f`.
        environment_worlds: The worlds in which the environments are played.
    """
    if worlds.interface_of(*world) in {worlds.interface_of(*other) for other in environment_worlds}:
        return
    raise ConfigError(
        f"{source} uses {_describe_world(world, worlds)}, but no environment has its tools; "
        f"environments use {', '.join(_describe_world(other, worlds) for other in environment_worlds)}; "
        "name a run or suite of one of these worlds, or let a model write an environment for this world: "
        "trace2evolve environment synthesize --suite SUITE"
    )


def _describe_world(world: WorldName, worlds: Worlds) -> str:
    """Describe a world for a message, and name the other world whose tools it shares, if any."""
    provider, domain = world
    owner_provider, owner_domain = worlds.interface_of(provider, domain)
    tools_note = f", with the tools of {owner_provider} {owner_domain}" if owner_domain != domain else ""
    return f"{domain} (provider {provider}{tools_note})"


@functools.cache
def _installed_offers() -> Mapping[str, Offer]:
    offers: dict[str, Offer] = {}
    for entry_point in environment_entry_points().values():
        label = f"environment {entry_point.name!r} of entry point {entry_point.value!r}"
        try:
            offer = entry_point.load()
        except Exception as error:
            raise GeneratorError(
                f"{label} cannot be loaded: {type(error).__name__}: {error}; fix or remove its package"
            ) from None
        if not isinstance(offer, Offer):
            raise GeneratorError(f"{label} must be an Offer, not a {type(offer).__name__}")
        offers[entry_point.name] = offer
    return offers
