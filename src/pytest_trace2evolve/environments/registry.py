"""Environments by name: the built-in ones, those of installed packages, and those that a hook brings."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_trace2evolve.environments.environment import Customer, PlayedEnvironment
from pytest_trace2evolve.environments.generators.address import AccountAddressInference
from pytest_trace2evolve.environments.generators.conditional import ConditionalDetailRetrieval
from pytest_trace2evolve.environments.generators.multi_step import MultiStepTaskCompletion
from pytest_trace2evolve.environments.generators.precision import ToolCallingPrecision
from pytest_trace2evolve.environments.generators.precondition import PreconditionVerification
from pytest_trace2evolve.environments.generators.scenario import SupportGenerator
from pytest_trace2evolve.environments.generators.structured import StructuredDataReasoning
from pytest_trace2evolve.errors import CaseError, ConfigError, GeneratorError, nearest
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.protocols import Generator, World
from pytest_trace2evolve.records.task import Content, Task, script_of
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.utils.optional import described, entry_points
from pytest_trace2evolve.worlds.registry import WorldName, Worlds

ENTRY_POINTS = "trace2evolve.environments"
"""Entry-point group in which an installed package offers an environment: its capability and an `Offer`."""


@dataclass(frozen=True)
class Offer:
    """What a project or a package offers for one capability.

    Attributes:
        make: Makes the generator of a difficulty from 1 (easiest) to 5, of a content.
        pays: What it pays, in one line.
        provider: Who provides the world that it is played in.
        domain: That world's domain.
        elsewhere: Makes the generator in another process; None where a new process of ours does that.
        close: Ends the processes that its generators hold; what is asked later starts them anew.
    """

    make: Callable[[int, Content], Generator]
    pays: str
    provider: str = "trace2evolve"
    domain: str = "support"
    elsewhere: Callable[[int, Content], Generator] | None = None
    close: Callable[[], None] = lambda: None


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


def registered() -> dict[str, str]:
    """The environments that no hook registers, with their owners.

    Raises:
        ConfigError: a capability is registered twice.
    """
    installed = entry_points(ENTRY_POINTS, "environment", BUILT_IN_NAMES)
    own = dict.fromkeys(BUILT_IN_NAMES, "pytest-trace2evolve")
    return own | {name: described(point) for name, point in installed.items()}


@functools.cache
def _installed() -> Mapping[str, Offer]:
    found: dict[str, Offer] = {}
    for point in entry_points(ENTRY_POINTS, "environment", BUILT_IN_NAMES).values():
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
