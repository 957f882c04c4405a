"""An experiment whose pieces were drawn, no two alike: two seeds, two capabilities, few rollouts."""

import random
from pathlib import Path

from pytest_trace2evolve.records.adapter import MANIFEST_NAME, AdapterManifest
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.serving.folder import ADAPTER_CONFIG_FILE, folder_digest
from pytest_trace2evolve.training.recipe import Recipe
from pytest_trace2evolve.utils.resources import embedded_model
from research.trace.evaluate import Environmental, Evaluation
from research.trace.identity import code_digest, environment_digests, tasks_digest
from research.trace.plan import (
    ARMS,
    MERGES,
    POINTS,
    Piece,
    choose,
    environments_for,
    make_plan,
    pieces_of,
    shared_recipe,
    write_plan,
)
from research.trace.prompts import Found
from research.trace.store import Job, Seed
from research.trace.tasks import cells_of, heldout_targets

NAMES = ("precondition_verification", "conditional_detail_retrieval")

TARGETS = heldout_targets(cells_of(NAMES), 4)

PLAN = make_plan(
    capabilities=NAMES,
    seeds=2,
    rollouts=512,
    tasks=4,
    base=folder_digest(embedded_model()),
    code=code_digest(),
    targets=tasks_digest(target.case.id for target in TARGETS),
)

OPTIONS = ("--capability", *NAMES, "--seeds", "2", "--rollouts", "512", "--tasks", "4")
"""The options of the command that give this plan."""


def tiny_recipe(groups: int = 2, size: int = 2) -> Recipe:
    """The recipe of an experiment, with steps of few rollouts."""
    return shared_recipe().model_copy(update={"groups": groups, "rollouts": size})


def manifest(job: Job, rollouts: int | None = None) -> AdapterManifest:
    """The manifest of a finished adapter."""
    plan, training = job.plan, job.training
    return AdapterManifest(
        capability=training.name,
        base="pocket",
        base_digest=plan.base,
        environments=environment_digests(plan, training),
        seed=job.seed,
        recipe=plan.recipe_of(training, job.seed).model_dump(mode="json"),
        steps=training.steps,
        rollouts=plan.rollouts_of(training) if rollouts is None else rollouts,
        seconds=1.0,
        created_at="2026-01-01T00:00:00+00:00",
    )


def draw(name: str, seed: int, count: int) -> tuple[float, ...]:
    """Rewards that no other piece has; the base passes half of the tasks of one capability, and no others."""
    if name == "base":
        alone = PLAN.tasks * len(NAMES)
        return tuple(float(place < alone and place % 2) for place in range(count))
    numbers = random.Random(f"{name}/{seed}")
    return tuple(round(numbers.random(), 3) for _ in range(count))


def evaluation(piece: Piece, seed: int) -> Evaluation:
    """The evaluation of a piece."""
    return Evaluation(
        cells=tuple(target.cell.name for target in TARGETS),
        tasks=tuple(target.case.id for target in TARGETS),
        rewards=draw(piece.name, seed, len(TARGETS)),
        wishes=draw(f"{piece.name}, wishes", seed, len(TARGETS)),
        routed=tuple(NAMES[0] if piece.arm == "routed" else "" for _ in TARGETS),
    )


def environmental(arm: str, seed: int) -> Environmental:
    """An arm's rewards in environments."""
    names = environments_for(PLAN, arm)
    return Environmental(rewards={name: draw(f"{arm} in {name}", seed, PLAN.scenarios) for name in names})


def fill(out: Path) -> list[Seed]:
    """Write every piece."""
    write_plan(PLAN, out)
    seeds = [Seed(PLAN, number, embedded_model(), out) for number in (1, 2)]
    for seed in seeds:
        _fill(seed)
    return seeds


def _fill(seed: Seed) -> None:
    for job in seed.jobs:
        for folder in (job.out, *map(job.at, POINTS)):
            folder.mkdir(parents=True)
            (folder / ADAPTER_CONFIG_FILE).touch()
        (job.out / MANIFEST_NAME).write_text(manifest(job).model_dump_json())
    figures = {f"{kind}_{name}": 0.5 for kind in ("share", "whole") for name in NAMES}
    found = Found(
        instructions={**{f"{point:g}": "" for point in POINTS}, "1": "Read the order first, then act."},
        rollouts=PLAN.rollouts,
        candidates=2,
        score=0.5,
    )
    chosen = choose(PLAN, {**figures, **dict.fromkeys(MERGES, 0.1)})
    files: dict[Path, Record] = {seed.chosen: chosen, seed.found: found}
    files |= {seed.evaluation(piece): evaluation(piece, seed.number) for piece in pieces_of(PLAN)}
    files |= {seed.environmental(arm): environmental(arm, seed.number) for arm in ARMS}
    for file, record in files.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(record.model_dump_json())
