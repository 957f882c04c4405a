"""Routing held-out openings against their oracle labels: the capability that each was made to call for."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_trace2evolve.agents.routed import Router
from pytest_trace2evolve.cases.case import PRESSURE, generate
from pytest_trace2evolve.errors import AdapterError
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.protocols import FirstTokens
from pytest_trace2evolve.records.routing import NONE, Confusion, Routing
from pytest_trace2evolve.records.script import Content
from pytest_trace2evolve.routing.confusion import confusion_of
from pytest_trace2evolve.serving.folder import ModelFolder, folder_digest
from pytest_trace2evolve.workflow.environments.registry import Environments
from pytest_trace2evolve.workflow.project import Project
from pytest_trace2evolve.workflow.routing.skills import opening_of, skills_of
from pytest_trace2evolve.workflow.served import served

TASKS = 50
"""Openings a label, where nothing else is said."""

AT_ONCE = 16


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
        return confusion_of(
            (one.label, routing.chosen) for one, routing in zip(self.openings, self.routings, strict=True)
        )

    @property
    def silent(self) -> float:
        """In what share of all orders no letter was among the tokens that the model told."""
        asked = sum(len(one.shares) for one in self.routings)
        return sum(one.silent for one in self.routings) / asked if asked else 0.0


def openings_of(
    environments: Environments, names: Sequence[str], tasks: int, content: Content = Content.HELDOUT
) -> list[Opening]:
    """Openings with their oracle labels, `tasks` each: scenarios of each capability, and for `NONE` cases of
    the six families of pressure, which were made for no capability.

    Raises:
        GeneratorError: a capability has no environment.
    """
    found = [
        Opening(name, opening_of(environments, name, seed, content))
        for name in names
        for seed in range(tasks)
    ]
    plain = generate(f"routing/{content.value}", tasks, content, tuple(PRESSURE))
    return found + [Opening(NONE, one.script.turns[0].says) for one in plain]


async def route_all(
    model: FirstTokens,
    environments: Environments,
    names: Sequence[str],
    openings: Sequence[Opening],
    *,
    told: Callable[[int], None] = lambda done: None,
) -> Routed:
    """Route openings.

    Args:
        model: The base model.
        environments: Where examples of the table come from.
        names: The capabilities of the table.
        openings: What is routed.
        told: Hears how many are done.

    Raises:
        EndpointError: no further request can succeed, or no log-probabilities are told.
        InfrastructureError: an opening could not be routed: of the others alone nothing is said.
    """
    router = Router(model, skills_of(environments, names))
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
    environments: Environments,
    names: Sequence[str],
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
            return await route_all(model, environments, names, openings, told=told)
        finally:
            await model.close()

    with served(base, at_once=AT_ONCE) as settings:
        return asyncio.run(routed(settings))


def table_of(
    environments: Environments, given: Sequence[str], project: Project | None, base: ModelFolder
) -> list[str]:
    """The capabilities of a table: those that are given, or those of a base's promoted adapters.

    Raises:
        GeneratorError: a capability has no environment.
        AdapterError: a manifest is damaged, or nothing is given and no adapter of the base is promoted.
    """
    for name in given:
        environments.offer(name)
    if given:
        return list(dict.fromkeys(given))
    weights = folder_digest(base.path)
    promoted = [] if project is None else project.adapters.promoted()
    names = [
        name
        for one in promoted
        if one.manifest.base_digest == weights
        for name in one.manifest.environments
        if name in environments.names
    ]
    if not names:
        raise AdapterError(
            f"no adapter of base {base.name!r} is promoted, so there is no table: name capabilities, as in "
            f"trace2evolve routing {' '.join(environments.names[:2])}"
        )
    return list(dict.fromkeys(names))
