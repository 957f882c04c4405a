"""What an experiment found, as records: means of every arm with their intervals, and what goes with them."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.records.adapter import Confusion
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.utils.reading import read_record
from research.trace.arms import Chosen
from research.trace.intervals import Mean
from research.trace.plan import Plan

Natural = Annotated[int, Field(ge=0)]


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
        calibrated: Rollouts by which its environments were calibrated, before and once for all seeds.
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
    calibrated: Natural
    rewards: Figures
    change: Figures
    wishes: Figures
    environments: Mean
    cells: dict[str, Mean]


class Versus(Record):
    """`routed` less another arm, task by task."""

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
    """An arm somewhere on its way: with so many rollouts, or so many adapters."""

    arm: str
    at: Natural
    rewards: Figures
    wishes: Figures


class Results(Record):
    """All of an experiment.

    Attributes:
        against: The routed arm against each other; that against `PRIMARY` was named beforehand.
        control: What the control's adapter learnt in its own environment.
        curve: By rollouts of training; of `single-whole` by those of one of its adapters.
        adapters: By number of adapters that are routed to.
        choices: A seed each.
        instructions: What prompt evolution found, a seed each.
        confusion: Oracle labels against the router's first choice, on tasks of one capability, each once.
        rerouted: Tasks, of all cells, that not every seed routed alike.
        evaluated: Rollouts of all evaluations, which no budget holds.
        earlier: After how many seeds results were told before: whoever adds seeds has seen them.
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
    confusion: Confusion
    rerouted: Natural
    evaluated: Natural
    earlier: tuple[int, ...] = ()


def earlier_seeds(file: Path, seeds: int) -> tuple[int, ...]:
    """After how many seeds, other than so many, results were told before.

    Args:
        file: Results that were written last; where it is none, or cannot be read, none are known.
    """
    try:
        last = read_record(file, Results, ConfigError)
    except ConfigError:
        return ()
    return tuple(one for one in dict.fromkeys([*last.earlier, last.plan.seeds]) if one != seeds)
