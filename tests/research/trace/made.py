"""An experiment whose pieces were drawn: two seeds, two capabilities, hardly any rollouts; no two alike."""

import random
from pathlib import Path

from pytest_trace2evolve.records.adapter import MANIFEST, AdapterManifest
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.serving.folder import ADAPTER_CONFIG
from pytest_trace2evolve.training.recipe import Recipe
from research.trace.adapters import Job
from research.trace.arms import ARMS, MERGES, Piece, chosen_of, environments_for, pieces_of
from research.trace.evaluate import Environmental, Evaluation
from research.trace.figures import results_of
from research.trace.identity import digests_of, tasks_digest
from research.trace.plan import POINTS, Plan, shared_recipe, write_plan
from research.trace.prompts import Found
from research.trace.results import Results
from research.trace.store import Seed
from research.trace.tasks import cells_of, heldout_targets

NAMES = ("precondition_verification", "conditional_detail_retrieval")

TARGETS = heldout_targets(cells_of(NAMES), 4)


def tiny_recipe(groups: int = 2, size: int = 2) -> Recipe:
    """That of an experiment, with steps of hardly any rollouts."""
    return shared_recipe().model_copy(update={"groups": groups, "rollouts": size})


PLAN = Plan(
    capabilities=NAMES,
    seeds=2,
    rollouts=32,
    recipe=tiny_recipe(),
    tasks=4,
    validation=1,
    scenarios=2,
    targets=tasks_digest(one.case.id for one in TARGETS),
)


def manifest(job: Job, rollouts: int | None = None) -> AdapterManifest:
    """What lies beside an adapter's weights."""
    plan, training = job.plan, job.training
    return AdapterManifest(
        capability=training.name,
        base="pocket",
        base_digest=plan.base,
        environments=digests_of(plan, training),
        seed=job.seed,
        recipe=plan.recipe_of(training, job.seed).model_dump(mode="json"),
        steps=training.steps,
        rollouts=plan.rollouts_of(training) if rollouts is None else rollouts,
        seconds=1.0,
        created_at="2026-01-01T00:00:00+00:00",
    )


def drawn(what: str, seed: int, count: int) -> tuple[float, ...]:
    """Rewards that no other piece has; the base passes half of what calls for one capability, and no more."""
    if what == "base":
        alone = PLAN.tasks * len(NAMES)
        return tuple(float(place < alone and place % 2) for place in range(count))
    numbers = random.Random(f"{what}/{seed}")
    return tuple(round(numbers.random(), 3) for _ in range(count))


def evaluation(piece: Piece, seed: int) -> Evaluation:
    """What a piece holds."""
    return Evaluation(
        cells=tuple(one.cell.name for one in TARGETS),
        tasks=tuple(one.case.id for one in TARGETS),
        rewards=drawn(piece.name, seed, len(TARGETS)),
        wishes=drawn(f"{piece.name}, wishes", seed, len(TARGETS)),
        routed=tuple(NAMES[0] if piece.arm == "routed" else "" for _ in TARGETS),
    )


def environmental(arm: str, seed: int) -> Environmental:
    """What an arm's file of environments holds."""
    names = environments_for(PLAN, arm)
    return Environmental(rewards={name: drawn(f"{arm} in {name}", seed, 2) for name in names})


def fill(out: Path) -> list[Seed]:
    """Write every piece."""
    write_plan(PLAN, out)
    return [_filled(Seed(PLAN, number, out / "base", out)) for number in (1, 2)]


def results(out: Path) -> Results:
    """What such an experiment found."""
    return results_of(fill(out))


def _filled(seed: Seed) -> Seed:
    for job in seed.jobs:
        for folder in (job.out, *map(job.at, POINTS)):
            folder.mkdir(parents=True)
            (folder / ADAPTER_CONFIG).touch()
        (job.out / MANIFEST).write_text(manifest(job).model_dump_json())
    figures = {f"{kind}_{name}": 0.5 for kind in ("share", "whole") for name in NAMES}
    chosen = chosen_of(PLAN, {**figures, **dict.fromkeys(MERGES, 0.1)})
    found = Found(
        instructions={**{f"{point:g}": "" for point in POINTS}, "1": "Read the order first, then act."},
        rollouts=PLAN.rollouts,
        candidates=2,
        score=0.5,
    )
    files: dict[Path, Record] = {seed.chosen: chosen, seed.found: found}
    files |= {seed.evaluation(piece): evaluation(piece, seed.number) for piece in pieces_of(PLAN)}
    files |= {seed.environmental(arm): environmental(arm, seed.number) for arm in ARMS}
    for file, record in files.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(record.model_dump_json())
    return seed
