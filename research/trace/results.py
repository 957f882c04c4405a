"""What an experiment found: means of every arm with their intervals, from the pieces that are kept.

All arms of a seed play the same tasks, so a measurement is a table (seeds, tasks), and both seeds and tasks
are draws from more. The variance of its mean has three parts: of seeds, of tasks within their cell, and of
the rest. They are estimated by analysis of variance for two crossed random factors, a negative part counting
as none; the interval is Student's with Satterthwaite's degrees of freedom. Cells are fixed: nothing is said
of other capabilities."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from scipy.stats import t

from pytest_trace2evolve.errors import ConfigError, TrainingError
from pytest_trace2evolve.gate.intervals import CONFIDENCE_LEVEL, wilson
from pytest_trace2evolve.records.adapter import MANIFEST_NAME, NO_CAPABILITY, AdapterManifest, ConfusionMatrix
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.utils.reading import read_record
from research.trace.evaluate import Environmental, Evaluation
from research.trace.identity import tasks_digest
from research.trace.plan import (
    ARMS,
    BASE,
    COUNTED,
    CURVED,
    POINTS,
    ROUTED,
    Chosen,
    Piece,
    Plan,
    calibration_of,
    pieces_of,
    scenarios_for,
    trained_for,
)
from research.trace.prompts import Found
from research.trace.store import Seed, read

Natural = Annotated[int, Field(ge=0)]
Table = Sequence[Sequence[float]]
"""(seeds, tasks) rewards."""

Figure = Literal["rewards", "wishes"]
"""A figure of `Evaluation`."""


class Mean(Record):
    """A mean with its interval.

    Attributes:
        low, high: Ends of the interval; None if only one task was played.
        seeds, tasks: How many it rests on. The spread over seeds is not in the interval of one seed.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int
    tasks: int


def mean_of(table: Table, cells: Sequence[str], *, minimum: float = 0.0) -> Mean:
    """The mean of a table of rewards.

    Args:
        table: (seeds, tasks) rewards of at most 1.
        cells: (tasks,) the cell of each; means of cells weigh as their tasks do.
        minimum: The lowest possible reward; −1 for differences.

    Raises:
        ValueError: rows are not as long as `cells`, or there is nothing.
    """
    if not table or not cells or any(len(row) != len(cells) for row in table):
        raise ValueError("the table needs a row for each seed, with a reward for each task")
    values = np.asarray(table, dtype=float)
    seeds, tasks = values.shape
    mean = float(values.mean())
    if tasks <= len(set(cells)):
        return Mean(mean=mean, low=None, high=None, seeds=seeds, tasks=tasks)
    variance, freedom = _variance(values, cells)
    if variance == 0:
        low, high = _bounds_without_spread(mean, tasks, minimum)
    else:
        reach = float(t.ppf((1 + CONFIDENCE_LEVEL) / 2, freedom)) * math.sqrt(variance)
        low, high = max(minimum, mean - reach), min(1.0, mean + reach)
    return Mean(mean=mean, low=low, high=high, seeds=seeds, tasks=tasks)


def difference_of(after: Table, before: Table, cells: Sequence[str]) -> Mean:
    """The mean of `after` minus `before`, of the same seeds and tasks: each pair is compared with itself.

    Raises:
        ValueError: the tables have different shapes.
    """
    table = [[new - old for new, old in zip(*rows, strict=True)] for rows in zip(after, before, strict=True)]
    return mean_of(table, cells, minimum=-1.0)


def _variance(values: np.ndarray, cells: Sequence[str]) -> tuple[float, float]:
    """The variance of a table's mean, and its degrees of freedom."""
    seeds, tasks = values.shape
    mean, by_seed, by_task = values.mean(), values.mean(axis=1), values.mean(axis=0)
    members = np.asarray(cells)
    by_cell = np.array([by_task[members == cell].mean() for cell in cells])
    residuals = values - by_seed[:, None] - by_task + mean
    freedoms = (seeds - 1, tasks - len(set(cells)), (seeds - 1) * (tasks - 1))
    sums = (
        tasks * ((by_seed - mean) ** 2).sum(),
        seeds * ((by_task - by_cell) ** 2).sum(),
        (residuals**2).sum(),
    )
    of_seeds, of_tasks, rest = (
        float(total) / freedom if freedom else 0.0 for total, freedom in zip(sums, freedoms, strict=True)
    )
    # The rest is part of both larger squares, and counts once. A smaller square is a draw of the rest alone.
    squares = (max(of_seeds, rest), max(of_tasks, rest), rest)
    total = squares[0] + squares[1] - rest
    if total <= 0:
        return 0.0, math.inf
    weight = sum(square**2 / free for square, free in zip(squares, freedoms, strict=True) if free)
    return total / (seeds * tasks), total**2 / weight


def _bounds_without_spread(mean: float, tasks: int, minimum: float) -> tuple[float, float]:
    """Wilson's interval of tasks, each counted once; for differences, what it allows if none differs."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE_LEVEL) / 2)
    if minimum < 0:
        reach = wilson(0.0, tasks, z)[1]
        return max(minimum, mean - reach), min(1.0, mean + reach)
    return wilson(mean, tasks, z)


class Figures(Record):
    """A figure of a policy on target tasks: of one capability, of two, and of all cells; 0 to 1."""

    one: Mean
    two: Mean
    every: Mean


class Arm(Record):
    """One arm.

    Attributes:
        trained: Rollouts of training in its budget, for each seed.
        besides: Rollouts of training other adapters that it could have chosen.
        choosing: Rollouts on validation tasks, for each seed.
        calibrated: Rollouts by which its environments were calibrated, once for all seeds.
        rewards: τ²'s reward of whole tasks.
        change: The same minus the base's, task by task.
        wishes: Share of wishes fulfilled.
        environments: Mean reward on held-out scenarios of the environments.
        cells: τ²'s reward, by cell.
    """

    name: str
    trained: Natural
    besides: Natural
    choosing: Natural
    calibrated: Natural
    rewards: Figures
    change: Figures
    wishes: Figures
    environments: Mean
    cells: dict[str, Mean]


class Versus(Record):
    """`routed` minus another arm, task by task."""

    arm: str
    rewards: Figures
    wishes: Figures


class Learnt(Record):
    """Mean reward on held-out scenarios of one environment: the base's, an adapter's, and the difference."""

    environment: str
    before: Mean
    after: Mean
    change: Mean


class Point(Record):
    """An arm with so many rollouts, or so many adapters."""

    arm: str
    at: Natural
    rewards: Figures
    wishes: Figures


class Results(Record):
    """All results of an experiment.

    Attributes:
        against: The routed arm against each other one; that against `PRIMARY` was named beforehand.
        control: What the control's adapter learned in its own environment.
        curve: By rollouts of training; for `single-whole` by those of one of its adapters.
        adapters: By number of adapters that are routed to.
        choices: One per seed.
        instructions: What prompt evolution found, one per seed.
        confusion: Known labels against the router's first choice, on tasks of one capability, each once.
        rerouted: Tasks, of all cells, that not every seed routed alike.
        evaluated: Rollouts of all evaluations, which no budget holds.
        earlier: The numbers of seeds after which results were reported before.
    """

    schema_version: int = 1
    plan: Plan
    arms: tuple[Arm, ...]
    against: tuple[Versus, ...]
    control: Learnt
    curve: tuple[Point, ...]
    adapters: tuple[Point, ...]
    choices: tuple[Chosen, ...]
    instructions: tuple[str, ...]
    confusion: ConfusionMatrix
    rerouted: Natural
    evaluated: Natural
    earlier: tuple[int, ...] = ()


def earlier_seeds(file: Path, seeds: int) -> tuple[int, ...]:
    """The other numbers of seeds of which results were reported before, if `file` holds such results."""
    try:
        last = read_record(file, Results, ConfigError)
    except ConfigError:
        return ()
    return tuple(count for count in dict.fromkeys([*last.earlier, last.plan.seeds]) if count != seeds)


def results_of(seeds: Sequence[Seed], earlier: Sequence[int] = ()) -> Results:
    """Combine the pieces.

    Args:
        seeds: All seeds of the experiment.
        earlier: The numbers of seeds after which results were reported before.

    Raises:
        TrainingError: an adapter was trained differently than the plan says, or an arm did not get the
            rollouts that the plan gives it.
        ConfigError: a piece is damaged, or other tasks were played than the plan's.
    """
    plan = seeds[0].plan
    for job in (job for seed in seeds for job in seed.jobs):
        job.manifest()
    choices = tuple(read(seed.chosen, Chosen) for seed in seeds)
    routed = _read(seeds, Piece(ROUTED))
    whole = len(plan.capabilities)
    return Results(
        plan=plan,
        arms=tuple(_arm(seeds, choices, name) for name in ARMS),
        against=tuple(
            Versus(
                arm=name,
                rewards=_figures(plan, routed, "rewards", _read(seeds, Piece(name))),
                wishes=_figures(plan, routed, "wishes", _read(seeds, Piece(name))),
            )
            for name in ARMS
            if name != ROUTED
        ),
        control=_learned(seeds),
        curve=tuple(
            _point(seeds, Piece(arm, share), round(share * plan.rollouts))
            for arm in CURVED
            for share in (*POINTS, 1.0)
        ),
        adapters=tuple(
            _point(seeds, Piece(arm, count=count % whole), count)
            for arm in COUNTED
            for count in range(1, whole + 1)
        ),
        choices=choices,
        instructions=tuple(read(seed.found, Found).instructions["1"] for seed in seeds),
        confusion=_confusion(plan, routed[0]),
        # If two labels are equally likely, rounding decides.
        rerouted=sum(
            len(set(chosen)) > 1 for chosen in zip(*(evaluation.routed for evaluation in routed), strict=True)
        ),
        evaluated=len(seeds)
        * (
            len(pieces_of(plan)) * plan.tasks * len(plan.cells)
            + sum(scenarios_for(plan, arm) for arm in ARMS)
        ),
        earlier=tuple(earlier),
    )


def spent_rollouts(seed: Seed, arm: str, chosen: Chosen) -> int:
    """Rollouts of training that an arm got, by its adapters' manifests and its search.

    Raises:
        TrainingError: they are not what the plan gives it.
        ConfigError: a piece is damaged.
    """
    if arm == BASE:
        return 0
    if arm == "gepa":
        spent = read(seed.found, Found).rollouts
    else:
        trainings = trained_for(seed.plan, arm, chosen.whole)
        files = [seed.adapters / training.name / MANIFEST_NAME for training in trainings]
        spent = sum(read(file, AdapterManifest).rollouts for file in files)
    if spent != seed.plan.rollouts:
        raise TrainingError(
            f"{seed.folder}: arm {arm!r} got {spent} rollouts, and the plan gives {seed.plan.rollouts}"
        )
    return spent


def _arm(seeds: Sequence[Seed], choices: Sequence[Chosen], name: str) -> Arm:
    plan = seeds[0].plan
    own, base = _read(seeds, Piece(name)), _read(seeds, Piece(BASE))
    [spent] = {spent_rollouts(seed, name, chosen) for seed, chosen in zip(seeds, choices, strict=True)}
    others = plan.rollouts * (len(plan.capabilities) - 1) if name == "single-whole" else 0
    places = {
        cell.name: [place for place, its_cell in enumerate(own[0].cells) if its_cell == cell.name]
        for cell in plan.cells
    }
    rolled = [read(seed.environmental(name), Environmental).rewards for seed in seeds]
    return Arm(
        name=name,
        trained=spent,
        besides=others,
        choosing=choices[0].rollouts.get(name, 0),
        calibrated=calibration_of(plan, name),
        rewards=_figures(plan, own, "rewards"),
        change=_figures(plan, own, "rewards", base),
        wishes=_figures(plan, own, "wishes"),
        environments=mean_of(
            [
                [reward for capability in plan.capabilities for reward in rewards[capability]]
                for rewards in rolled
            ],
            [capability for capability in plan.capabilities for _ in rolled[0][capability]],
        ),
        cells={cell: _mean(own, "rewards", places[cell]) for cell in places},
    )


def _point(seeds: Sequence[Seed], piece: Piece, at: int) -> Point:
    plan, found = seeds[0].plan, _read(seeds, piece)
    rewards, wishes = _figures(plan, found, "rewards"), _figures(plan, found, "wishes")
    return Point(arm=piece.arm, at=at, rewards=rewards, wishes=wishes)


def _read(seeds: Sequence[Seed], piece: Piece) -> list[Evaluation]:
    found = []
    for seed in seeds:
        file = seed.evaluation(piece)
        found.append(read(file, Evaluation))
        if tasks_digest(found[-1].tasks) != seed.plan.targets:
            raise ConfigError(
                f"{file}: other tasks were played than the plan's; remove it, and it is made again"
            )
    return found


def _figures(
    plan: Plan, found: Sequence[Evaluation], figure: Figure, base: Sequence[Evaluation] = ()
) -> Figures:
    sizes = {cell.name: len(cell.capabilities) for cell in plan.cells}
    of_size = [[place for place, cell in enumerate(found[0].cells) if sizes[cell] == size] for size in (1, 2)]
    one, two, every = (
        _mean(found, figure, places, base) for places in (*of_size, sorted(of_size[0] + of_size[1]))
    )
    return Figures(one=one, two=two, every=every)


def _mean(
    found: Sequence[Evaluation], figure: Figure, places: Sequence[int], base: Sequence[Evaluation] = ()
) -> Mean:
    cells = [found[0].cells[place] for place in places]
    tables = [[[getattr(row, figure)[place] for place in places] for row in side] for side in (found, base)]
    return difference_of(tables[0], tables[1], cells) if base else mean_of(tables[0], cells)


def _learned(seeds: Sequence[Seed]) -> Learnt:
    name = seeds[0].plan.control
    before, after = (
        [read(seed.environmental(arm), Environmental).rewards[name] for seed in seeds]
        for arm in (BASE, "control")
    )
    cells = [name] * len(before[0])
    return Learnt(
        environment=name,
        before=mean_of(before, cells),
        after=mean_of(after, cells),
        change=difference_of(after, before, cells),
    )


def _confusion(plan: Plan, found: Evaluation) -> ConfusionMatrix:
    """Of one seed: the base routes, which no training changes, so another seed says the same of a task."""
    pairs = Counter(
        (cell, chosen or NO_CAPABILITY)
        for cell, chosen in zip(found.cells, found.routed, strict=True)
        if cell in plan.capabilities
    )
    labels = (*sorted({label for pair in pairs for label in pair} - {NO_CAPABILITY}), NO_CAPABILITY)
    return ConfusionMatrix(
        labels=labels, counts=tuple(tuple(pairs[row, column] for column in labels) for row in labels)
    )
