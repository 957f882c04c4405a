"""Routing held-out openings against their oracle labels: the capability that each was made to call for.

Routers against oracle labels: which tasks were confused with which, and how often the choice was right.

What a router chooses from: capabilities, and how a task opens that calls for each.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pytest_trace2evolve.agents.chat import Router
from pytest_trace2evolve.cases.case import PRESSURE, generate
from pytest_trace2evolve.environments.registry import Environments, opening_of, skills_of
from pytest_trace2evolve.errors import AdapterError
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.protocols import FirstTokens
from pytest_trace2evolve.records.routing import NONE, Confusion, Routing, Skill
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.serving.folder import ModelFolder, folder_digest
from pytest_trace2evolve.serving.process import served


def confusion_of(pairs: Iterable[tuple[str, str]], choices: Iterable[str] = ()) -> Confusion:
    """The table of the oracle's labels and a router's choices, a pair a task.

    Args:
        choices: What the router could choose, whether it did or not.
    """
    counts = Counter(pairs)
    labels = sorted({label for pair in counts for label in pair} | set(choices))
    labels = [*(one for one in labels if one != NONE), NONE]
    return Confusion(
        labels=tuple(labels), counts=tuple(tuple(counts[row, column] for column in labels) for row in labels)
    )


def accuracy(confusion: Confusion, level: float = 0.95) -> tuple[float, float, float] | None:
    """The share of right choices with its interval (Wilson 1927); None where there is no task."""
    if not confusion.total:
        return None
    from scipy.stats import binomtest

    found = binomtest(confusion.right, confusion.total)
    bounds = found.proportion_ci(level, method="wilson")
    return confusion.right / confusion.total, float(bounds.low), float(bounds.high)


TASKS = 50
"""Openings a label, where nothing else is said."""

AT_ONCE = 16


@dataclass(frozen=True)
class Row:
    """A line of a router's table, and the capabilities whose scenarios call for it and for no other line."""

    skill: Skill
    capabilities: tuple[str, ...]

    @property
    def name(self) -> str:
        """What the router's choice is called."""
        return self.skill.name


@dataclass(frozen=True)
class Opening:
    """How a task opens, and what it calls for."""

    label: str
    text: str


@dataclass(frozen=True)
class Routed:
    """What a router made of openings, one routing each."""

    openings: Sequence[Opening]
    routings: Sequence[Routing]

    @property
    def confusion(self) -> Confusion:
        """Oracle labels against choices."""
        pairs = zip(self.openings, self.routings, strict=True)
        choices = {name for one in self.routings for name in one.shares}
        return confusion_of(((one.label, routing.chosen) for one, routing in pairs), choices)

    @property
    def silent(self) -> float:
        """In what share of all orders no letter was among the tokens that the model told."""
        asked = sum(len(one.shares) for one in self.routings)
        return sum(one.silent for one in self.routings) / asked if asked else 0.0


def openings_of(
    environments: Environments, table: Sequence[Row], tasks: int, content: Content = Content.HELDOUT
) -> list[Opening]:
    """Openings with their oracle labels, `tasks` each: scenarios of what each line of a table is for, and for
    `NONE` cases of the six families of pressure, which were made for no capability.

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
    return found + [Opening(NONE, one.script.turns[0].says) for one in plain]


async def route_all(
    model: FirstTokens,
    table: Sequence[Row],
    openings: Sequence[Opening],
    *,
    told: Callable[[int], None] = lambda done: None,
) -> Routed:
    """Route openings.

    Args:
        model: The base model.
        table: What is chosen from.
        openings: What is routed.
        told: Hears how many are done.

    Raises:
        EndpointError: no further request can succeed, or no log-probabilities are told.
        InfrastructureError: an opening could not be routed: of the others alone nothing is said.
    """
    router = Router(model, [row.skill for row in table])
    room = asyncio.Semaphore(AT_ONCE)
    done = 0

    async def routed(opening: Opening) -> Routing:
        nonlocal done
        async with room:
            found = await router.route(opening.text)
        done += 1
        told(done)
        return found

    routings = await asyncio.gather(*map(routed, openings))
    return Routed(openings, routings)


def route_locally(
    base: ModelFolder,
    table: Sequence[Row],
    openings: Sequence[Opening],
    *,
    told: Callable[[int], None] = lambda done: None,
) -> Routed:
    """Route openings by a base model in a folder, served for as long as that takes; see `route_all`.

    Raises:
        ModelFolderError: the base cannot be served.
        InfrastructureError: an opening could not be routed.
    """

    async def routed(settings: ModelSettings) -> Routed:
        model = ChatModel(settings)
        try:
            return await route_all(model, table, openings, told=told)
        finally:
            await model.close()

    with served(base, at_once=AT_ONCE) as settings:
        return asyncio.run(routed(settings))


def table_of(
    environments: Environments, given: Sequence[str], project: Project | None, base: ModelFolder
) -> list[Row]:
    """A router's table: of capabilities that are given, or the one that a routed candidate has, of a base's
    promoted adapters as their manifests describe them.

    Raises:
        GeneratorError: a capability has no environment.
        AdapterError: a manifest is damaged, or nothing is given and no adapter of the base is promoted.
    """
    if given:
        return [Row(one, (one.name,)) for one in skills_of(environments, list(dict.fromkeys(given)))]
    weights = folder_digest(base.path)
    routed = [] if project is None else project.adapters.routed()
    found = [one for one in routed if one.manifest.base_digest == weights and one.skill is not None]
    # A task that one adapter was trained for alone calls for that, and not for one that was for several.
    whose = {
        name: one.name
        for one in sorted(found, key=lambda one: (-len(one.manifest.environments), one.name))
        for name in one.manifest.environments
        if name in environments.names
    }
    if not whose:
        raise AdapterError(
            f"no adapter of base {base.name!r} is promoted, so there is no table: name capabilities, as in "
            f"trace2evolve routing {' '.join(environments.names[:2])}"
        )
    return [
        Row(one.skill, tuple(name for name, adapter in whose.items() if adapter == one.name))
        for one in found
        if one.skill is not None
    ]
