"""What an experiment found: means of every arm with their intervals, from the pieces that are kept."""

from collections.abc import Callable, Sequence
from typing import Annotated

from pydantic import Field

from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.records.adapter import MANIFEST, AdapterManifest
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.routing import NONE, Confusion
from pytest_trace2evolve.routing.confusion import confusion_of
from pytest_trace2evolve.workflow.experiments.arms import (
    ARMS,
    COUNTED,
    CURVED,
    Chosen,
    Piece,
    pieces_of,
    trained_for,
)
from pytest_trace2evolve.workflow.experiments.evaluate import Environmental, Evaluation
from pytest_trace2evolve.workflow.experiments.intervals import Mean, difference_of, mean_of
from pytest_trace2evolve.workflow.experiments.kept import Seed, read
from pytest_trace2evolve.workflow.experiments.plan import POINTS, Plan
from pytest_trace2evolve.workflow.experiments.prompts import Found

Natural = Annotated[int, Field(ge=0)]

BASE = "base"


class Figures(Record):
    """What a policy got on target tasks: of one capability, of two, and of all cells; 0 to 1."""

    one: Mean
    two: Mean
    every: Mean


class Arm(Record):
    """One arm.

    Attributes:
        trained: Rollouts of training that its budget holds, for each seed.
        besides: Rollouts of training of other adapters, that it could have chosen.
        choosing: Rollouts on validation tasks, for each seed.
        rewards: τ²'s reward of whole tasks.
        change: The same less the base's, task by task.
        wishes: Share of wishes fulfilled.
        environments: Mean reward on held-out scenarios of the environments.
        cells: τ²'s reward, by cell.
    """

    name: str
    trained: Natural
    besides: Natural
    choosing: Natural
    rewards: Figures
    change: Figures
    wishes: Figures
    environments: Mean
    cells: dict[str, Mean]


class Point(Record):
    """An arm somewhere on its way: with so many rollouts, or so many adapters."""

    arm: str
    at: Natural
    rewards: Figures
    wishes: Figures


class Results(Record):
    """All of an experiment.

    Attributes:
        curve: By rollouts of training.
        adapters: By number of adapters that are routed to.
        choices: A seed each.
        instructions: What prompt evolution found, a seed each.
        confusion: Oracle labels against the router's first choice, on tasks of one capability.
        evaluated: Rollouts of all evaluations, which no budget holds.
    """

    schema_version: int = 1
    plan: Plan
    arms: tuple[Arm, ...]
    curve: tuple[Point, ...]
    adapters: tuple[Point, ...]
    choices: tuple[Chosen, ...]
    instructions: tuple[str, ...]
    confusion: Confusion
    evaluated: Natural


def results_of(seeds: Sequence[Seed]) -> Results:
    """Put the pieces together.

    Raises:
        TrainingError: an arm did not get the rollouts that the plan gives it.
        ConfigError: a piece is damaged.
    """
    plan = seeds[0].plan
    choices = tuple(read(seed.chosen, Chosen) for seed in seeds)
    points = [
        Point(
            arm=arm,
            at=round(share * plan.rollouts),
            rewards=_figures(plan, _read(seeds, Piece(arm, share)), _reward),
            wishes=_figures(plan, _read(seeds, Piece(arm, share)), _wish),
        )
        for arm in CURVED
        for share in (*POINTS, 1.0)
    ]
    whole = len(plan.capabilities)
    counted = [
        Point(
            arm=arm,
            at=count,
            rewards=_figures(plan, _read(seeds, Piece(arm, count=count % whole)), _reward),
            wishes=_figures(plan, _read(seeds, Piece(arm, count=count % whole)), _wish),
        )
        for arm in COUNTED
        for count in range(1, whole + 1)
    ]
    return Results(
        plan=plan,
        arms=tuple(_arm(seeds, choices, name) for name in ARMS),
        curve=tuple(points),
        adapters=tuple(counted),
        choices=choices,
        instructions=tuple(read(seed.found, Found).instructions["1"] for seed in seeds),
        confusion=_confusion(plan, _read(seeds, Piece("routed"))),
        evaluated=_evaluated(seeds),
    )


def spent_of(seed: Seed, arm: str, chosen: Chosen) -> int:
    """Rollouts of training that an arm got, as its adapters' manifests and its search tell.

    Raises:
        TrainingError: they are not what the plan gives it.
        ConfigError: a piece is damaged.
    """
    if arm == BASE:
        return 0
    if arm == "gepa":
        spent = read(seed.found, Found).rollouts
    else:
        files = [seed.adapters / one.name / MANIFEST for one in trained_for(seed.plan, arm, chosen.whole)]
        spent = sum(read(file, AdapterManifest).rollouts for file in files)
    if spent != seed.plan.rollouts:
        raise TrainingError(
            f"{seed.folder}: arm {arm!r} got {spent} rollouts, and the plan gives {seed.plan.rollouts}"
        )
    return spent


def _arm(seeds: Sequence[Seed], choices: Sequence[Chosen], name: str) -> Arm:
    plan = seeds[0].plan
    own, base = _read(seeds, Piece(name)), _read(seeds, Piece(BASE))
    [spent] = {spent_of(seed, name, chosen) for seed, chosen in zip(seeds, choices, strict=True)}
    others = plan.rollouts * (len(plan.capabilities) - 1) if name == "single-whole" else 0
    cells = own[0].cells
    return Arm(
        name=name,
        trained=spent,
        besides=others,
        choosing=choices[0].rollouts.get(name, 0),
        rewards=_figures(plan, own, _reward),
        change=_figures(plan, own, _reward, base),
        wishes=_figures(plan, own, _wish),
        environments=_environments(seeds, name),
        cells={
            cell.name: _mean(own, _reward, [place for place, one in enumerate(cells) if one == cell.name])
            for cell in plan.cells
        },
    )


def _read(seeds: Sequence[Seed], piece: Piece) -> list[Evaluation]:
    return [read(seed.evaluation(piece), Evaluation) for seed in seeds]


Value = Callable[[Evaluation], Sequence[float]]


def _reward(found: Evaluation) -> Sequence[float]:
    return found.rewards


def _wish(found: Evaluation) -> Sequence[float]:
    return found.wishes


def _figures(
    plan: Plan, found: Sequence[Evaluation], value: Value, base: Sequence[Evaluation] = ()
) -> Figures:
    sizes = {cell.name: len(cell.capabilities) for cell in plan.cells}
    places = {
        size: [place for place, cell in enumerate(found[0].cells) if sizes[cell] == size] for size in (1, 2)
    }
    one, two, every = (
        _mean(found, value, own, base) for own in (places[1], places[2], sorted(places[1] + places[2]))
    )
    return Figures(one=one, two=two, every=every)


def _mean(
    found: Sequence[Evaluation], value: Value, places: Sequence[int], base: Sequence[Evaluation] = ()
) -> Mean:
    cells = [found[0].cells[place] for place in places]
    table = [[value(one)[place] for place in places] for one in found]
    if not base:
        return mean_of(table, cells)
    return difference_of(table, [[value(one)[place] for place in places] for one in base], cells)


def _environments(seeds: Sequence[Seed], arm: str) -> Mean:
    found = [read(seed.environmental(arm), Environmental) for seed in seeds]
    names = seeds[0].plan.capabilities
    table = [[reward for name in names for reward in one.rewards[name]] for one in found]
    return mean_of(table, [name for name in names for _ in found[0].rewards[name]])


def _confusion(plan: Plan, found: Sequence[Evaluation]) -> Confusion:
    alone = set(plan.capabilities)
    pairs = [
        (cell, chosen or NONE)
        for one in found
        for cell, chosen in zip(one.cells, one.routed, strict=True)
        if cell in alone
    ]
    return confusion_of(pairs)


def _evaluated(seeds: Sequence[Seed]) -> int:
    plan = seeds[0].plan
    each = len(pieces_of(plan)) * plan.tasks * len(plan.cells)
    rolled = len(ARMS) * plan.scenarios * plan.repeats * len(plan.capabilities)
    return len(seeds) * (each + rolled)
