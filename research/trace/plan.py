"""The plan of an experiment, before anything runs: who trains on what and how much, and who answers."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from pytest_trace2evolve.environments.environment import EASIEST
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.score import UnitFloat
from pytest_trace2evolve.training.recipe import PRESETS, Recipe
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.reading import first_problem
from research.common import read_object
from research.trace.tasks import Cell, cells_of

CAPABILITIES = ("precondition_verification", "conditional_detail_retrieval", "tool_calling_precision")
CONTROL = "multi_step_task_completion"
"""The default capabilities."""

SEEDS, SHARE, TASKS = 3, 1024, 40
"""Default seeds, training rollouts of one of the routed adapters, and held-out tasks of a cell. 16 steps of
64: half as many as the preset `pocket` has, so that all of it takes less than three hours."""

POINTS = (0.25, 0.5)
"""Shares of the budget at which an arm is evaluated too."""

QUARTERS = 4
"""Equal parts of every training, at whose ends it writes a checkpoint."""

TARGET_TOKENS = 3072
"""Of a rollout of whole target tasks: about twice what the expert's longest takes (1,653 with room for an
answer, of 25 training tasks a cell), and with its prompt within the 4,096 that evaluation has. A rollout that
is cut short earns nothing, whatever it did."""

PLAN = "plan.json"

Count = Annotated[int, Field(ge=1)]


class Training(Record):
    """One adapter to be trained.

    Attributes:
        name: Its own, in snake_case.
        environments: What it is trained in, groups taking turns.
        steps: Optimizer steps.
        tokens: Of a rollout after its prompt, at most.
    """

    name: str
    environments: tuple[str, ...]
    steps: int
    tokens: int


def shared_recipe() -> Recipe:
    """What the recipes of all trainings have in common: the preset `pocket`, with one thread each.

    No group is replaced: its rollouts would exceed the budget.
    """
    return Recipe(**PRESETS["pocket"], redraws=0, kl_every=0, threads=1)


class Plan(Record):
    """One experiment.

    Attributes:
        capabilities: The selected ones, in the order in which adapters are added.
        control: One that was not selected.
        seeds: Trainings of everything, with seeds from 1 on.
        rollouts: Training rollouts of every arm, for each seed.
        tasks: Held-out tasks of a cell.
        validation: Tasks of a cell for choices within an arm.
        scenarios, repeats: Held-out scenarios of an environment, and rollouts of each.
        recipe: How every adapter is trained, except for what `recipe_of` changes.
        target_tokens: Of a rollout of whole target tasks, after its prompt, at most.
        base: Digest of the base model.
        code: Digest of the versions of all that makes the pieces; see `identity.code_digest`.
        targets: Digest of the ids of the held-out tasks, in order.
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
    def _check_consistency(self) -> Self:
        if len(self.capabilities) < 2 or len(set(self.capabilities)) < len(self.capabilities):
            given = ", ".join(self.capabilities) or "none"
            raise ValueError(
                f"two different capabilities or more are required, not {given}: one alone needs no router"
            )
        if self.control in self.capabilities:
            raise ValueError(
                f"the control {self.control!r} is among the selected capabilities; name another with "
                "--control"
            )
        if self.rollouts % self.unit:
            near = max(1, round(self.rollouts / self.unit)) * self.unit
            raise ValueError(
                f"{self.rollouts} rollouts cannot be divided equally: {len(self.capabilities)} adapters, "
                f"{QUARTERS} parts each, of steps of {self.step}; take a multiple of {self.unit}, "
                f"such as {near}"
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
    def cells(self) -> tuple[Cell, ...]:
        """The kinds of target task."""
        return cells_of(self.capabilities)

    @property
    def difficulty(self) -> int:
        """Of every environment: the one that calibration picked for the embedded model."""
        return EASIEST

    def trainings(self) -> tuple[Training, ...]:
        """The adapters of one seed, those first that take longest."""
        whole = self.rollouts // self.step

        def training(
            name: str, environments: tuple[str, ...], steps: int = whole, tokens: int = 0
        ) -> Training:
            tokens = tokens or self.recipe.rollout_tokens
            return Training(name=name, environments=environments, steps=steps, tokens=tokens)

        targets = tuple(f"target_{cell.name}" for cell in self.cells)
        share = whole // len(self.capabilities)
        return (
            training("direct", targets, tokens=self.target_tokens),
            training("merged", self.capabilities),
            training("control", (self.control,)),
            *(training(f"whole_{name}", (name,)) for name in self.capabilities),
            *(training(f"share_{name}", (name,), share) for name in self.capabilities),
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


def make_plan(**fields: object) -> Plan:
    """A plan; None leaves a field at its default.

    Raises:
        ConfigError: it cannot be carried out; says why.
    """
    try:
        return Plan.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        own = error.errors(include_url=False)[0].get("ctx", {}).get("error")
        raise ConfigError(f"experiment: {own or first_problem(error, 'plan')}") from None


def resumed_plan(plan: Plan, out: Path, *, seeds_given: bool = True) -> Plan:
    """The plan with which a folder's experiment resumes; it may have more seeds than before.

    Args:
        plan: What was asked for.
        out: The folder.
        seeds_given: Whether the number of seeds was asked for; else it is at least that of the folder.

    Raises:
        ConfigError: the folder holds another experiment, or more seeds than were asked for.
    """
    file = out / PLAN
    remedy = "give another --out"
    if not os.path.lexists(file):
        if out.is_dir() and any(entry for entry in out.iterdir() if entry.name != ".lock"):
            raise ConfigError(f"{out}: holds something else and no {PLAN}; {remedy}")
        return plan
    kept = read_object(file, remedy)
    # As it was written: a field that older code did not write is not at its default.
    for name, value in plan.model_dump(mode="json").items():
        if name != "seeds" and (name not in kept or kept[name] != value):
            what = {
                "code": "version of the code, of an environment or of a package below it",
                "base": "base model",
                "targets": "set of held-out tasks",
            }.get(name, name.replace("_", " "))
            raise ConfigError(f"{out}: holds an experiment with another {what}; resume that one, or {remedy}")
    begun = [int(entry.parent.name.removeprefix("seed-")) for entry in out.glob("seed-[1-9]*/*")]
    held = max(begun, default=0)
    if held > plan.seeds and seeds_given:
        raise ConfigError(
            f"--seeds {plan.seeds}: {out} holds {held}, and results of some would be reported as those of "
            f"all; leave it out, or {remedy}"
        )
    return plan.model_copy(update={"seeds": max(held, plan.seeds)})


def write_plan(plan: Plan, out: Path) -> None:
    """Write a folder's plan.

    Raises:
        OSError: it cannot be written.
    """
    write_atomic(out / PLAN, plan.model_dump_json(indent=1) + "\n")


# The arms

ARMS: Mapping[str, str] = {
    "base": "the base model, no training",
    "direct": "one adapter, by GRPO on training tasks of the target, with the target's reward",
    "merged": "one adapter, by GRPO in the environments of all selected capabilities together",
    "single": "the best of the routed arm's adapters alone, chosen on validation tasks",
    "weight-merge": "the routed arm's adapters added up in weight space",
    "routed": "an adapter per capability, the base model routes once per task",
    "routed-turns": "the same, routed anew after each message of the customer",
    "oracle-routed": "the same with known labels",
    "control": "one adapter for a capability that was not selected",
    "gepa": "no adapter: an instruction, evolved from sentences of the rulebook",
    "single-whole": "the best of single adapters that got the whole budget each: more than the others in all",
}
"""All arms, and what each is."""

BASE, ROUTED, PRIMARY = "base", "routed", "merged"
"""The primary comparison, named before any of it was measured: `routed` minus `merged`, on all target tasks.
Both train in the same environments with the same rollouts; an adapter for each, and a router, is the
difference."""

CALIBRATION_ROLLOUTS = 100 * 16
"""Rollouts of one environment's calibration, as in `docs/capabilities.md`."""

CURVED = ("direct", "merged", "routed", "oracle-routed", "control", "gepa", "single-whole")
"""Arms that are evaluated on the way too."""

COUNTED = ("routed", "oracle-routed")
"""Arms that are evaluated with fewer adapters too."""

MERGES = {"weights_mean": "1/N", "weights_sum": "1"}
"""Adapters that are sums of others, and the weight of each."""


class Chosen(Record):
    """What one seed chose on validation tasks.

    Attributes:
        single, whole: The capability of the best adapter.
        merge: The better of `MERGES`.
        figures: Mean reward of each adapter that could be chosen.
        rollouts: Spent on choosing, by arm.
    """

    single: str
    whole: str
    merge: str
    figures: dict[str, UnitFloat]
    rollouts: dict[str, int]


@dataclass(frozen=True)
class Policy:
    """A way to answer.

    Attributes:
        adapter: The adapter that answers, by its name at the server; empty: the base.
        instruction: What its prompt says after the domain's policy.
        table: The adapter of each capability; empty: nothing is routed.
        oracle: Whether labels are known; else the router decides.
        each_turn: Whether the router decides anew after each message of the customer.
    """

    adapter: str = ""
    instruction: str = ""
    table: tuple[tuple[str, str], ...] = ()
    oracle: bool = False
    each_turn: bool = False

    @property
    def adapters(self) -> set[str]:
        """All adapters that may answer."""
        return {name for name in (self.adapter, *dict(self.table).values()) if name}


@dataclass(frozen=True)
class Piece:
    """One evaluation.

    Attributes:
        point: The share of the budget that was spent.
        count: How many adapters are routed to; 0 for all.
    """

    arm: str
    point: float = 1.0
    count: int = 0

    @property
    def name(self) -> str:
        """The name of its file, without an ending."""
        at = f"-at-{self.point:g}" if self.point < 1 else ""
        return f"{self.arm}{at}{f'-with-{self.count}' if self.count else ''}"


def pieces_of(plan: Plan) -> tuple[Piece, ...]:
    """All evaluations of one seed."""
    return (
        *map(Piece, ARMS),
        *(Piece(arm, point) for arm in CURVED for point in POINTS),
        *(Piece(arm, count=count) for arm in COUNTED for count in range(1, len(plan.capabilities))),
    )


def candidates_of(plan: Plan) -> dict[str, tuple[str, ...]]:
    """The adapters between which validation chooses, by arm."""
    return {
        "single": tuple(f"share_{name}" for name in plan.capabilities),
        "single-whole": tuple(f"whole_{name}" for name in plan.capabilities),
        "weight-merge": tuple(MERGES),
    }


def choose(plan: Plan, figures: Mapping[str, float]) -> Chosen:
    """The best of each arm's candidates; of equal ones the first."""
    groups = candidates_of(plan)
    best = {arm: max(names, key=lambda name: figures[name]) for arm, names in groups.items()}
    each = plan.validation * len(plan.cells)
    return Chosen(
        single=best["single"].removeprefix("share_"),
        whole=best["single-whole"].removeprefix("whole_"),
        merge=best["weight-merge"],
        figures=dict(figures),
        rollouts={arm: each * len(names) for arm, names in groups.items()},
    )


def trained_for(plan: Plan, arm: str, whole: str) -> Sequence[Training]:
    """The trainings whose rollouts an arm spends; `whole` is what `single-whole` chose."""
    names = {f"whole_{whole}"} if arm == "single-whole" else {arm} & {"direct", "merged", "control"}
    if arm in ("single", "weight-merge", *COUNTED, "routed-turns"):
        names = {f"share_{name}" for name in plan.capabilities}
    return [training for training in plan.trainings() if training.name in names]


def label_of(plan: Plan, arm: str) -> str:
    """An arm's name in reports, with how much more than the others it gets."""
    return f"{arm} (×{len(plan.capabilities)})" if arm == "single-whole" else arm


def calibration_of(plan: Plan, arm: str) -> int:
    """Rollouts that calibrated the environments of an arm's adapters; in no budget."""
    if arm in (BASE, "direct", "gepa"):
        return 0
    return CALIBRATION_ROLLOUTS * (1 if arm == "control" else len(plan.capabilities))


def environments_for(plan: Plan, arm: str) -> tuple[str, ...]:
    """Where an arm is measured: the base and the control also where the control was trained."""
    return (*plan.capabilities, plan.control) if arm in (BASE, "control") else plan.capabilities


def scenarios_for(plan: Plan, arm: str) -> int:
    """Rollouts of an arm in environments, for each seed."""
    return len(environments_for(plan, arm)) * plan.scenarios * plan.repeats


def policy_of(plan: Plan, piece: Piece, chosen: Chosen, instructions: Mapping[str, str]) -> Policy:
    """Who answers in an evaluation.

    Args:
        plan: The experiment.
        piece: The evaluation.
        chosen: What was chosen on validation tasks.
        instructions: What prompt evolution found, by share of its budget.
    """
    if piece.arm == BASE:
        return Policy()
    if piece.arm == "gepa":
        return Policy(instruction=instructions[f"{piece.point:g}"])
    if piece.arm == "single":
        return Policy(adapter=f"share_{chosen.single}")
    if piece.arm == "weight-merge":
        return Policy(adapter=chosen.merge)
    known = {training.name: training for training in plan.trainings()}
    if piece.arm in (*COUNTED, "routed-turns"):
        used = plan.capabilities[: piece.count or len(plan.capabilities)]
        return Policy(
            table=tuple((name, adapter_at(known[f"share_{name}"], piece.point)) for name in used),
            oracle=piece.arm == "oracle-routed",
            each_turn=piece.arm == "routed-turns",
        )
    name = f"whole_{chosen.whole}" if piece.arm == "single-whole" else piece.arm
    return Policy(adapter=adapter_at(known[name], piece.point))


def adapter_at(training: Training, point: float) -> str:
    """The name of an adapter, and of its folder, at the end of its training or at a share of its steps."""
    return training.name if point == 1 else f"{training.name}-{round(point * training.steps):06d}"
