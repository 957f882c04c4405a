"""What an experiment will do, as plain numbers, before it does anything: who trains on what, and how much."""

import os
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from pytest_trace2evolve.environments.environment import EASIEST
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.records.base import Record, complaint
from pytest_trace2evolve.training.recipe import PRESETS, Recipe
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.reading import read_json
from research.trace.tasks import Cell, cells_of

CAPABILITIES = ("precondition_verification", "conditional_detail_retrieval", "tool_calling_precision")
CONTROL = "multi_step_task_completion"
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
        tokens: A rollout has at most, after its prompt.
    """

    name: str
    environments: tuple[str, ...]
    steps: int
    tokens: int


def shared_recipe() -> Recipe:
    """What the recipes of all trainings have in common: the preset `pocket`, for one thread each.

    No group is drawn anew: its rollouts would be more than the budget.
    """
    return Recipe(**PRESETS["pocket"], redraws=0, kl_every=0, threads=1)


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
        recipe: How every adapter is trained, but for what `recipe_of` changes.
        target_tokens: Of a rollout of whole target tasks at most, after its prompt.
        base: Digest of the base model.
        code: Digest of the versions of what makes its pieces; see `identity.code_digest`.
        targets: Digest of the ids of the held-out tasks, in their order.
    """

    capabilities: tuple[str, ...] = CAPABILITIES
    control: str = CONTROL
    seeds: Count = SEEDS
    rollouts: Count = len(CAPABILITIES) * SHARE
    tasks: Annotated[int, Field(ge=2)] = TASKS
    validation: Count = 10
    scenarios: Annotated[int, Field(ge=2)] = 40
    repeats: Count = 2
    recipe: Recipe = Field(default_factory=shared_recipe)
    target_tokens: Count = TARGET_TOKENS
    base: str = ""
    code: str = ""
    targets: str = ""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if len(self.capabilities) < 2 or len(set(self.capabilities)) < len(self.capabilities):
            told = ", ".join(self.capabilities) or "none"
            raise ValueError(
                f"two different capabilities or more are wanted, not {told}: one alone needs no router"
            )
        if self.control in self.capabilities:
            raise ValueError(
                f"the control {self.control!r} is among the selected capabilities; name another with "
                "--control"
            )
        if self.rollouts % self.unit:
            near = max(1, round(self.rollouts / self.unit)) * self.unit
            raise ValueError(
                f"{self.rollouts} rollouts cannot be shared out equally: {len(self.capabilities)} adapters, "
                f"{QUARTERS} parts each, of steps of {self.step}; take a multiple of "
                f"{self.unit}, such as {near}"
            )
        return self

    @property
    def step(self) -> int:
        """Rollouts of a step."""
        return self.recipe.groups * self.recipe.rollouts

    @property
    def unit(self) -> int:
        """What a budget must be a multiple of."""
        return self.step * len(self.capabilities) * QUARTERS

    @property
    def steps(self) -> int:
        """Steps of an adapter that gets the whole budget."""
        return self.rollouts // self.step

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

        def within(name: str, environments: tuple[str, ...], steps: int) -> Training:
            return Training(
                name=name, environments=environments, steps=steps, tokens=self.recipe.rollout_tokens
            )

        return (
            Training(name="direct", environments=targets, steps=self.steps, tokens=self.target_tokens),
            within("merged", self.capabilities, self.steps),
            within("control", (self.control,), self.steps),
            *(within(f"whole_{one}", (one,), self.steps) for one in self.capabilities),
            *(within(f"share_{one}", (one,), share) for one in self.capabilities),
        )

    def recipe_of(self, training: Training, seed: int) -> Recipe:
        """How an adapter is trained: exactly `step` rollouts a step, and nothing ends it early."""
        own = {
            "steps": training.steps,
            "rollout_tokens": training.tokens,
            "patience": training.steps + 1,
            "keep_every": training.steps // QUARTERS,
            "seed": seed,
        }
        return Recipe.model_validate({**self.recipe.model_dump(), **own})

    def rollouts_of(self, training: Training) -> int:
        """Training rollouts of one adapter."""
        return training.steps * self.step


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


def plan_in(plan: Plan, out: Path, *, seeds_given: bool = True) -> Plan:
    """The plan with which a folder's experiment goes on: more seeds go on with fewer.

    Args:
        seeds_given: Whether somebody asked for so many; else as many as the folder has begun are taken.

    Raises:
        ConfigError: the folder holds another experiment, or more seeds than are asked for.
    """
    file = out / PLAN
    if not os.path.lexists(file):
        if out.is_dir() and any(out.iterdir()):
            raise ConfigError(f"{out}: holds something else and no {PLAN}; give another --out")
        return plan
    kept = read_json(file, ConfigError, "give another --out", unique=True)
    if not isinstance(kept, dict):
        raise ConfigError(f"{file}: damaged: not a JSON object; give another --out")
    # As it was written: a value that a plan of older code does not tell is no default of this one.
    own = plan.model_dump(mode="json")
    differing = [name for name in own if name != "seeds" and (name not in kept or kept[name] != own[name])]
    if differing:
        raise ConfigError(
            f"{out}: holds an experiment with another {_named(differing[0])}; go on with that, or give "
            "another --out"
        )
    begun = [int(one.parent.name.removeprefix("seed-")) for one in out.glob("seed-[1-9]*/*")]
    held = max(begun, default=0)
    if held > plan.seeds and seeds_given:
        raise ConfigError(
            f"--seeds {plan.seeds}: {out} holds {held}, and results of some would stand for those of all; "
            "leave it out, or give another --out"
        )
    return plan.model_copy(update={"seeds": max(held, plan.seeds)})


def write_plan(plan: Plan, out: Path) -> None:
    """Write down what a folder's experiment is.

    Raises:
        OSError: it cannot be written.
    """
    write_atomic(out / PLAN, plan.model_dump_json(indent=1) + "\n")


def _named(field: str) -> str:
    """How a field of the plan is called where it differs."""
    return {
        "code": "version of the code, of an environment or of a package below it",
        "base": "base model",
        "targets": "set of held-out tasks",
    }.get(field, field.replace("_", " "))
