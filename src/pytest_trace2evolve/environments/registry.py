"""Environments by name: the built-in ones, those of installed packages, and those that a hook brings."""

import functools
from collections.abc import Iterable, Mapping, Sequence

from pytest_trace2evolve.environments.environment import Customer, PlayedEnvironment
from pytest_trace2evolve.environments.generators.address import AccountAddressInference
from pytest_trace2evolve.environments.generators.conditional import ConditionalDetailRetrieval
from pytest_trace2evolve.environments.generators.multi_step import MultiStepTaskCompletion
from pytest_trace2evolve.environments.generators.precision import ToolCallingPrecision
from pytest_trace2evolve.environments.generators.precondition import PreconditionVerification
from pytest_trace2evolve.environments.generators.scenario import EASIEST, SupportGenerator
from pytest_trace2evolve.environments.generators.structured import StructuredDataReasoning
from pytest_trace2evolve.errors import CaseError, ConfigError, GeneratorError, nearest
from pytest_trace2evolve.project.extensions import environment_entry_points
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.capability import BUILT_IN as CAPABILITIES
from pytest_trace2evolve.records.protocols import Generator, Offer, World
from pytest_trace2evolve.records.routing import Skill
from pytest_trace2evolve.records.task import Content, Task, script_of
from pytest_trace2evolve.users.scripted import ScriptedUser
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

BUILT_IN_NAMES = frozenset(kind.capability for kind in BUILT_IN)
"""The capabilities that have a built-in environment."""


class Environments:
    """All environments that are known.

    Args:
        extra: Further ones by capability: those of the hook `pytest_t2e_environments`, and those that a model
            wrote.
        worlds: Opens the worlds that they are played in.
        project: The project whose hooks registered some of `extra`; another process that makes the same
            environments loads its hooks.
    """

    def __init__(
        self,
        extra: Mapping[str, Offer] | None = None,
        worlds: Worlds | None = None,
        project: Project | None = None,
    ) -> None:
        built_in = {kind.capability: Offer(kind, kind.pays) for kind in BUILT_IN}
        self._offers: dict[str, Offer] = {**built_in, **_installed(), **(extra or {})}
        self._worlds = worlds or Worlds()
        self.project = project

    def close(self) -> None:
        """End the processes that environments hold."""
        for offer in self._offers.values():
            offer.close()

    @property
    def names(self) -> list[str]:
        """The capabilities, built-in ones first."""
        return list(self._offers)

    def with_tools_of(self, worlds: Iterable[WorldName]) -> tuple[str, ...]:
        """Names of the environments that have the tools of every one of some worlds."""
        wanted = {self._worlds.interface(*world) for world in worlds}
        return tuple(
            name
            for name, offer in self._offers.items()
            if wanted <= {self._worlds.interface(offer.provider, offer.domain)}
        )

    def require_tools_of(self, what: str, world: WorldName) -> None:
        """Check that some environment has the tools of a world; see `require_same_tools`.

        Raises:
            ConfigError: none has.
        """
        played_in = dict.fromkeys((offer.provider, offer.domain) for offer in self._offers.values())
        require_same_tools(what, world, list(played_in), self._worlds)

    def offer(self, name: str) -> Offer:
        """What is offered for a capability.

        Raises:
            GeneratorError: nothing is; the message names the nearest.
        """
        if name not in self._offers:
            raise GeneratorError(f"unknown environment {name!r}; {nearest(name, self.names)}")
        return self._offers[name]

    def generator(self, name: str, difficulty: int, content: Content = Content.TRAIN) -> Generator:
        """The generator of a capability.

        Raises:
            GeneratorError: it is unknown, or has no such difficulty.
        """
        return self.offer(name).make(difficulty, content)

    def world(self, name: str) -> World:
        """The world in which a capability's scenarios are played.

        Raises:
            GeneratorError: nothing is offered for it.
            WorldError: that world cannot be opened.
        """
        offer = self.offer(name)
        return self._worlds.open(offer.provider, offer.domain)

    def environment(
        self, name: str, difficulty: int, content: Content = Content.TRAIN, *, early: bool = True
    ) -> PlayedEnvironment:
        """A new environment; many can be played at once.

        Raises:
            GeneratorError: it is unknown, or has no such difficulty.
        """
        return played(self.generator(name, difficulty, content), self.world(name), early=early)


def require_same_tools(what: str, world: WorldName, played_in: Sequence[WorldName], worlds: Worlds) -> None:
    """Check that environments have the tools of the world from which an agent learns.

    In an environment with other tools an agent would learn calls that its own world does not have.

    Args:
        what: What is of the world, such as `run 7c2f`.
        world: The world of a run or of a suite.
        played_in: The worlds in which the environments are played.
        worlds: Says which worlds have the same tools.

    Raises:
        ConfigError: no environment has the tools of the world.
    """
    if worlds.interface(*world) in {worlds.interface(*one) for one in played_in}:
        return
    raise ConfigError(
        f"{what} is of {_named(world, worlds)}, and no environment has its tools: environments are played in "
        f"{', '.join(_named(one, worlds) for one in played_in)}; name a run or a suite of such a world, or "
        "offer an environment that is played in this one (docs/environments.md, 'Your own')"
    )


def _named(world: WorldName, worlds: Worlds) -> str:
    """A world for a message, with the world whose tools it has if that is another one."""
    provider, domain = world
    owner, same = worlds.interface(provider, domain)
    tools = f", with the tools of {owner} {same}" if same != domain else ""
    return f"{domain} (provider {provider}{tools})"


def played(generator: Generator, world: World, *, early: bool = True) -> PlayedEnvironment:
    """A new environment of a generator, its customers scripted."""
    return PlayedEnvironment(generator, world, scripted, early=early)


def scripted(task: Task, seed: int) -> Customer:
    """The customer of a scenario.

    Raises:
        CaseError: the scenario has no customer script.
    """
    script = script_of(task)
    if script is None:
        raise CaseError(f"scenario {task.id!r} has no customer script: write user_scenario.script")
    return ScriptedUser(script, seed=seed)


_DESCRIBED = {one.name: one.description for one in CAPABILITIES}

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


@functools.cache
def _installed() -> Mapping[str, Offer]:
    found: dict[str, Offer] = {}
    for point in environment_entry_points().values():
        try:
            offer = point.load()
        except Exception as error:
            raise GeneratorError(
                f"environment {point.name!r} of entry point {point.value!r} cannot be loaded: "
                f"{type(error).__name__}: {error}; mend or remove its package"
            ) from None
        if not isinstance(offer, Offer):
            raise GeneratorError(
                f"environment {point.name!r} of entry point {point.value!r} is a {type(offer).__name__}; "
                "an Offer is wanted"
            )
        found[point.name] = offer
    return found
