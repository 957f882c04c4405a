"""What an experiment will do, as plain numbers, before it does anything: who trains on what, and how much."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.evidence.atomic import write_atomic
from pytest_trace2evolve.records.base import Record, complaint
from pytest_trace2evolve.training.grpo.recipe import PRESETS, Recipe
from pytest_trace2evolve.workflow.environments.generator import EASIEST
from pytest_trace2evolve.workflow.experiments.tasks import Cell, cells_of

CAPABILITIES = ("precondition_verification", "conditional_detail_retrieval", "tool_calling_precision")
CONTROL = "structured_data_reasoning"
"""What is compared where nothing else is said."""

SEEDS, SHARE, TASKS = 3, 1024, 40
"""Seeds, training rollouts of one of the routed adapters, and held-out tasks a cell, where nothing else is
said. 16 steps of 64: half as many as the preset `pocket` has, so that all of it takes less than three
hours."""

POINTS = (0.25, 0.5)
"""Shares of the budget at which an arm is evaluated too, beside the whole of it."""

QUARTERS = 4
"""Every training is made of so many equal parts, at whose ends it is kept."""

TARGET_TOKENS = 3072
"""Of a rollout of whole target tasks: about twice what the expert's longest takes (1,653 with room for an
answer, of 25 training tasks a cell), and with its prompt inside of the 4,096 that evaluation has. One that
is cut short is paid nothing, whatever it did."""

PLAN = "plan.json"

Count = Annotated[int, Field(ge=1)]


class Training(Record):
    """One adapter that is to be trained.

    Attributes:
        name: Its own, in snake_case.
        environments: What it is trained in, groups taking turns.
        steps: Of the optimiser.
        tokens: A rollout has at most.
    """

    name: str
    environments: tuple[str, ...]
    steps: int
    tokens: int = 512


class Plan(Record):
    """One experiment.

    Attributes:
        capabilities: Those that were selected, in the order in which adapters are added.
        control: One that was not.
        seeds: Trainings of everything, seeds from 1 on.
        rollouts: Training rollouts of every arm, for each seed.
        tasks: Held-out tasks a cell.
        validation: Tasks a cell for choices within an arm.
        scenarios, repeats: Held-out scenarios an environment, and rollouts of each.
        groups, size: Groups a step of a training, and rollouts of a group.
        base: Digest of the base model.
        sources: Digest of what tasks and scenarios are made by.
    """

    capabilities: tuple[str, ...] = CAPABILITIES
    control: str = CONTROL
    seeds: Count = SEEDS
    rollouts: Count = len(CAPABILITIES) * SHARE
    tasks: Annotated[int, Field(ge=2)] = TASKS
    validation: Count = 10
    scenarios: Annotated[int, Field(ge=2)] = 40
    repeats: Count = 2
    groups: Count = 8
    size: Annotated[int, Field(ge=2)] = 8
    base: str = ""
    sources: str = ""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if len(self.capabilities) < 2 or len(set(self.capabilities)) < len(self.capabilities):
            raise ValueError("two different capabilities or more are wanted: one alone needs no router")
        if self.control in self.capabilities:
            raise ValueError(f"the control {self.control!r} is among the selected capabilities")
        if self.rollouts % self.unit:
            near = max(1, round(self.rollouts / self.unit)) * self.unit
            raise ValueError(
                f"{self.rollouts} rollouts cannot be shared out equally: {len(self.capabilities)} adapters, "
                f"{QUARTERS} parts each, of steps of {self.groups * self.size}; take a multiple of "
                f"{self.unit}, such as {near}"
            )
        return self

    @property
    def unit(self) -> int:
        """What a budget must be a multiple of."""
        return self.groups * self.size * len(self.capabilities) * QUARTERS

    @property
    def steps(self) -> int:
        """Steps of an adapter that gets the whole budget."""
        return self.rollouts // (self.groups * self.size)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The kinds of target task."""
        return cells_of(self.capabilities)

    @property
    def difficulty(self) -> int:
        """Of every environment: the one that calibration picked for the embedded model."""
        return EASIEST

    def trainings(self) -> tuple[Training, ...]:
        """The adapters of one seed, those first that take longest."""
        targets = tuple(f"target_{cell.name}" for cell in self.cells)
        share = self.steps // len(self.capabilities)
        return (
            Training(name="direct", environments=targets, steps=self.steps, tokens=TARGET_TOKENS),
            Training(name="merged", environments=self.capabilities, steps=self.steps),
            Training(name="control", environments=(self.control,), steps=self.steps),
            *(
                Training(name=f"whole_{one}", environments=(one,), steps=self.steps)
                for one in self.capabilities
            ),
            *(Training(name=f"share_{one}", environments=(one,), steps=share) for one in self.capabilities),
        )

    def recipe(self, training: Training, seed: int) -> Recipe:
        """How an adapter is trained: exactly `groups` × `size` rollouts a step.

        No group is drawn anew, and nothing ends a training early: both would make budgets differ.
        """
        return Recipe(
            beta=PRESETS["pocket"]["beta"],
            groups=self.groups,
            rollouts=self.size,
            steps=training.steps,
            rollout_tokens=training.tokens,
            redraws=0,
            patience=training.steps + 1,
            kl_every=0,
            keep_every=training.steps // QUARTERS,
            threads=1,
            seed=seed,
        )

    def rollouts_of(self, training: Training) -> int:
        """Training rollouts of one adapter."""
        return training.steps * self.groups * self.size


def made_plan(**given: object) -> Plan:
    """A plan; None leaves a value.

    Raises:
        ConfigError: it cannot be carried out; says why.
    """
    try:
        return Plan.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        own = first.get("ctx", {}).get("error")
        raise ConfigError(f"experiment: {own or complaint(error, 'plan')}") from None


def settle_plan(plan: Plan, out: Path) -> None:
    """Write the plan down, or see that the folder holds this very one; more seeds go on with fewer.

    Raises:
        ConfigError: the folder holds another experiment.
    """
    file = out / PLAN
    if not file.exists():
        if out.is_dir() and any(out.iterdir()):
            raise ConfigError(f"{out}: holds something else and no {PLAN}; give another --out")
        write_atomic(file, plan.model_dump_json(indent=1) + "\n")
        return
    try:
        kept = Plan.model_validate_json(file.read_text(encoding="utf-8"))
    except ValueError:
        raise ConfigError(f"{file}: damaged; give another --out") from None
    differing = [name for name in _telling() if getattr(kept, name) != getattr(plan, name)]
    if differing:
        raise ConfigError(
            f"{out}: holds an experiment with another {differing[0]}; go on with that, or give another --out"
        )
    write_atomic(file, plan.model_dump_json(indent=1) + "\n")


def _telling() -> Sequence[str]:
    return [name for name in Plan.model_fields if name != "seeds"]
