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
from pytest_trace2evolve.gate.intervals import CONFIDENCE_LEVEL, wilson
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.adapter import NO_CAPABILITY, ConfusionMatrix, Routing, Skill
from pytest_trace2evolve.records.protocols import FirstTokens
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.serving.folder import ModelFolder, folder_digest
from pytest_trace2evolve.serving.process import serve_locally
from pytest_trace2evolve.training.router_skills import first_customer_message, make_skills

OPENINGS_PER_LABEL = 50
"""Default number of openings per label."""

MAX_CONCURRENT_ROUTINGS = 16
"""Maximum number of openings that are routed concurrently."""


@dataclass(frozen=True)
class RouterRow:
    """A row of a router's table, and the capabilities whose scenarios require this row and no other."""

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
class RoutingResult:
    """Openings, and the router's choice for each opening."""

    openings: Sequence[Opening]
    routings: Sequence[Routing]

    @property
    def confusion(self) -> ConfusionMatrix:
        """The table of oracle labels against the router's choices."""
        labels = [opening.label for opening in self.openings]
        choices = [routing.chosen for routing in self.routings]
        counts = Counter(zip(labels, choices, strict=True))
        names = {*labels, *choices, *(name for routing in self.routings for name in routing.shares)}
        ordered_labels = (*sorted(names - {NO_CAPABILITY}), NO_CAPABILITY)
        table = tuple(tuple(counts[label, choice] for choice in ordered_labels) for label in ordered_labels)
        return ConfusionMatrix(labels=ordered_labels, counts=table)

    @property
    def silent_share(self) -> float:
        """The share of questions for which no answer letter was among the model's likely tokens."""
        question_count = sum(len(routing.shares) for routing in self.routings)
        return sum(routing.silent for routing in self.routings) / question_count if question_count else 0.0


def accuracy(
    confusion: ConfusionMatrix, level: float = CONFIDENCE_LEVEL
) -> tuple[float, float, float] | None:
    """Return the share of correct choices, with its interval (Wilson, 1927); None without tasks."""
    if not confusion.total:
        return None
    share = confusion.correct / confusion.total
    return share, *wilson(share, confusion.total, NormalDist().inv_cdf((1 + level) / 2))


def make_router_table(
    environments: Environments, capabilities: Sequence[str], project: Project | None, base: ModelFolder
) -> list[RouterRow]:
    """Make a router's table from the given capabilities, or else from the promoted adapters of a base.

    Raises:
        GeneratorError: a capability has no environment.
        AdapterError: a manifest is damaged, or no capability is given and no adapter of the base is promoted.
    """
    if capabilities:
        return [
            RouterRow(skill, (skill.name,))
            for skill in make_skills(environments, list(dict.fromkeys(capabilities)))
        ]
    base_digest = folder_digest(base.path)
    routed_adapters = [] if project is None else project.adapters.routed_adapters()
    adapters = [adapter for adapter in routed_adapters if adapter.manifest.base_digest == base_digest]
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
            f"no adapter of base {base.name!r} is promoted, so the router has no table; name capabilities, "
            f"for example: trace2evolve eval-router {' '.join(environments.names[:2])}"
        )
    return [
        RouterRow(adapter.skill, tuple(name for name, owner in owners.items() if owner == adapter.name))
        for adapter in adapters
        if adapter.skill is not None
    ]


def make_openings(
    environments: Environments,
    table: Sequence[RouterRow],
    count_per_label: int,
    content: Content = Content.HELDOUT,
) -> list[Opening]:
    """Make openings with their oracle labels, `count_per_label` per label.

    The openings of a row come from scenarios of its capabilities. The openings of `NO_CAPABILITY` come from
    cases of the six families of pressure, which require no capability.

    Raises:
        GeneratorError: a capability has no environment.
    """
    openings = [
        Opening(
            row.name,
            first_customer_message(
                environments, row.capabilities[seed % len(row.capabilities)], seed, content
            ),
        )
        for row in table
        if row.capabilities
        for seed in range(count_per_label)
    ]
    pressure_cases = generate(f"routing/{content.value}", count_per_label, content, tuple(PRESSURE))
    return openings + [Opening(NO_CAPABILITY, case.script.turns[0].says) for case in pressure_cases]


async def route_all(
    model: FirstTokens,
    table: Sequence[RouterRow],
    openings: Sequence[Opening],
    *,
    on_progress: Callable[[int], None] = lambda finished_count: None,
) -> RoutingResult:
    """Route openings; `on_progress` gets the number of finished openings.

    Raises:
        EndpointError: no further request can succeed, or the model sends no log-probabilities.
        InfrastructureError: an opening could not be routed, so the table would be incomplete.
    """
    router = Router(model, [row.skill for row in table])
    semaphore = asyncio.Semaphore(MAX_CONCURRENT_ROUTINGS)
    finished_count = 0

    async def route(opening: Opening) -> Routing:
        nonlocal finished_count
        async with semaphore:
            routing = await router.route(opening.text)
        finished_count += 1
        on_progress(finished_count)
        return routing

    return RoutingResult(openings, await asyncio.gather(*map(route, openings)))


def route_locally(
    base: ModelFolder,
    table: Sequence[RouterRow],
    openings: Sequence[Opening],
    *,
    on_progress: Callable[[int], None] = lambda done: None,
) -> RoutingResult:
    """Route openings with a base model, which is temporarily served from its folder; see `route_all`.

    Raises:
        ModelFolderError: the base cannot be served.
        InfrastructureError: an opening could not be routed.
    """

    async def route(settings: ModelSettings) -> RoutingResult:
        model = ChatModel(settings)
        try:
            return await route_all(model, table, openings, on_progress=on_progress)
        finally:
            await model.close()

    with serve_locally(base, max_connections=MAX_CONCURRENT_ROUTINGS) as settings:
        return asyncio.run(route(settings))
