"""Compares the router's choices with oracle labels, the capabilities that tasks were made to require."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from pytest_trace2evolve.agents.router import Router
from pytest_trace2evolve.cases.case import PRESSURE, generate
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import AdapterError
from pytest_trace2evolve.gate.intervals import LEVEL, wilson
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.adapter import NONE, Confusion, Routing, Skill
from pytest_trace2evolve.records.protocols import FirstTokens
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.serving.folder import ModelFolder, folder_digest
from pytest_trace2evolve.serving.process import served
from pytest_trace2evolve.training.router_skills import opening_of, skills_of

OPENINGS = 50
"""Default number of openings per label."""

AT_ONCE = 16
"""Openings that are routed concurrently."""


@dataclass(frozen=True)
class Row:
    """A line of a router's table, and the capabilities whose scenarios require this line and no other."""

    skill: Skill
    capabilities: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the router's choice."""
        return self.skill.name


@dataclass(frozen=True)
class Opening:
    """The first words of a task, and the task's correct label."""

    label: str
    text: str


@dataclass(frozen=True)
class Routed:
    """Openings with one routing each."""

    openings: Sequence[Opening]
    routings: Sequence[Routing]

    @property
    def confusion(self) -> Confusion:
        """The table of oracle labels against the router's choices."""
        labels = [opening.label for opening in self.openings]
        chosen = [routing.chosen for routing in self.routings]
        counts = Counter(zip(labels, chosen, strict=True))
        names = {*labels, *chosen, *(name for routing in self.routings for name in routing.shares)}
        ordered = (*sorted(names - {NONE}), NONE)
        table = tuple(tuple(counts[label, choice] for choice in ordered) for label in ordered)
        return Confusion(labels=ordered, counts=table)

    @property
    def silent(self) -> float:
        """The share of all orders of choices for which the model's likely tokens held no letter."""
        asked = sum(len(routing.shares) for routing in self.routings)
        return sum(routing.silent for routing in self.routings) / asked if asked else 0.0


def accuracy(confusion: Confusion, level: float = LEVEL) -> tuple[float, float, float] | None:
    """The share of correct choices, with its interval (Wilson, 1927); None without tasks."""
    if not confusion.total:
        return None
    share = confusion.right / confusion.total
    return share, *wilson(share, confusion.total, NormalDist().inv_cdf((1 + level) / 2))


def table_of(
    environments: Environments, given: Sequence[str], project: Project | None, base: ModelFolder
) -> list[Row]:
    """Make a router's table from the given capabilities, or else from the promoted adapters of a base.

    Raises:
        GeneratorError: a capability has no environment.
        AdapterError: a manifest is damaged, or no capability is given and no adapter of the base is promoted.
    """
    if given:
        return [Row(skill, (skill.name,)) for skill in skills_of(environments, list(dict.fromkeys(given)))]
    weights = folder_digest(base.path)
    routed = [] if project is None else project.adapters.routed()
    adapters = [adapter for adapter in routed if adapter.manifest.base_digest == weights]
    # A capability belongs to the adapter that was trained for the fewest capabilities.
    owners = {
        capability: adapter.name
        for adapter in sorted(
            (adapter for adapter in adapters if adapter.skill is not None),
            key=lambda adapter: (-len(adapter.manifest.environments), adapter.name),
        )
        for capability in adapter.manifest.environments
        if capability in environments.names
    }
    if not owners:
        raise AdapterError(
            f"no adapter of base {base.name!r} is promoted, so there is no table: name capabilities, as in "
            f"trace2evolve eval-router {' '.join(environments.names[:2])}"
        )
    return [
        Row(adapter.skill, tuple(name for name, owner in owners.items() if owner == adapter.name))
        for adapter in adapters
        if adapter.skill is not None
    ]


def openings_of(
    environments: Environments, table: Sequence[Row], tasks: int, content: Content = Content.HELDOUT
) -> list[Opening]:
    """Make openings with their oracle labels, `tasks` per label.

    The openings of a line come from scenarios of its capabilities. The openings of `NONE` come from cases of
    the six families of pressure, which require no capability.

    Raises:
        GeneratorError: a capability has no environment.
    """
    found = [
        Opening(
            row.name, opening_of(environments, row.capabilities[seed % len(row.capabilities)], seed, content)
        )
        for row in table
        if row.capabilities
        for seed in range(tasks)
    ]
    plain = generate(f"routing/{content.value}", tasks, content, tuple(PRESSURE))
    return found + [Opening(NONE, case.script.turns[0].says) for case in plain]


async def route_all(
    model: FirstTokens,
    table: Sequence[Row],
    openings: Sequence[Opening],
    *,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Routed:
    """Route openings; `on_progress` gets the number of finished openings.

    Raises:
        EndpointError: no further request can succeed, or the model sends no log-probabilities.
        InfrastructureError: an opening could not be routed, so the table would be incomplete.
    """
    router = Router(model, [row.skill for row in table])
    room = asyncio.Semaphore(AT_ONCE)
    done = 0

    async def route(opening: Opening) -> Routing:
        nonlocal done
        async with room:
            routing = await router.route(opening.text)
        done += 1
        on_progress(done)
        return routing

    return Routed(openings, await asyncio.gather(*map(route, openings)))


def route_locally(
    base: ModelFolder,
    table: Sequence[Row],
    openings: Sequence[Opening],
    *,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Routed:
    """Route openings with a base model, which is temporarily served from its folder; see `route_all`.

    Raises:
        ModelFolderError: the base cannot be served.
        InfrastructureError: an opening could not be routed.
    """

    async def route(settings: ModelSettings) -> Routed:
        model = ChatModel(settings)
        try:
            return await route_all(model, table, openings, on_progress=on_progress)
        finally:
            await model.close()

    with served(base, at_once=AT_ONCE) as settings:
        return asyncio.run(route(settings))
