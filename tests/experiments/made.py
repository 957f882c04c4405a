"""An experiment whose pieces were written by hand: two seeds, two capabilities, hardly any rollouts."""

from pathlib import Path

from pytest_trace2evolve.records.adapter import MANIFEST, AdapterManifest
from pytest_trace2evolve.serving.folder import ADAPTER_CONFIG
from pytest_trace2evolve.workflow.experiments.arms import ARMS, MERGES, chosen_of, pieces_of
from pytest_trace2evolve.workflow.experiments.evaluate import Environmental, Evaluation
from pytest_trace2evolve.workflow.experiments.figures import Results, results_of
from pytest_trace2evolve.workflow.experiments.kept import Seed
from pytest_trace2evolve.workflow.experiments.plan import POINTS, Plan, settle_plan
from pytest_trace2evolve.workflow.experiments.prompts import Found

NAMES = ("precondition_verification", "conditional_detail_retrieval")

PLAN = Plan(capabilities=NAMES, seeds=2, rollouts=32, groups=2, size=2, tasks=4, validation=1, scenarios=2)


def manifest(name: str, rollouts: int) -> AdapterManifest:
    """What lies beside an adapter's weights."""
    return AdapterManifest(
        capability=name,
        base="pocket",
        base_digest="0",
        environments={},
        seed=1,
        recipe={},
        steps=1,
        rollouts=rollouts,
        seconds=1.0,
        created_at="2026-01-01T00:00:00+00:00",
    )


def fill(out: Path) -> list[Seed]:
    """Write every piece; the base passes half of what calls for one capability, others all of it and half
    of the rest."""
    settle_plan(PLAN, out)
    return [_filled(Seed(PLAN, number, out / "base", out)) for number in (1, 2)]


def results(out: Path) -> Results:
    """What such an experiment found."""
    return results_of(fill(out))


def _filled(seed: Seed) -> Seed:
    for job in seed.jobs:
        for folder in (job.out, *map(job.at, POINTS)):
            folder.mkdir(parents=True)
            (folder / ADAPTER_CONFIG).touch()
        text = manifest(job.training.name, PLAN.rollouts_of(job.training)).model_dump_json()
        (job.out / MANIFEST).write_text(text)
    figures = {f"{kind}_{name}": 0.5 for kind in ("share", "whole") for name in NAMES}
    chosen = chosen_of(PLAN, {**figures, **dict.fromkeys(MERGES, 0.1)})
    found = Found(
        instructions={**{f"{point:g}": "" for point in POINTS}, "1": "Read the order first, then act."},
        rollouts=PLAN.rollouts,
        candidates=2,
        score=0.5,
    )
    for file, record in ((seed.chosen, chosen), (seed.found, found)):
        file.write_text(record.model_dump_json())
    cells = tuple(cell.name for cell in PLAN.cells for _ in range(PLAN.tasks))
    for piece in pieces_of(PLAN):
        alone = [0.0, 1.0] if piece.arm == "base" else [1.0, 1.0]
        both = [0.0, 0.0] if piece.arm == "base" else [0.0, 1.0]
        rewards = [*alone * PLAN.tasks, *both * (PLAN.tasks // 2)]
        made = Evaluation(
            cells=cells,
            tasks=tuple(map(str, range(len(cells)))),
            rewards=tuple(rewards),
            wishes=tuple(rewards),
            routed=tuple(NAMES[0] if piece.arm == "routed" else "" for _ in cells),
        )
        file = seed.evaluation(piece)
        file.parent.mkdir(exist_ok=True)
        file.write_text(made.model_dump_json())
    for arm in ARMS:
        file = seed.environmental(arm)
        file.parent.mkdir(exist_ok=True)
        file.write_text(Environmental(rewards=dict.fromkeys(NAMES, (0.2, 0.8)), rollouts=8).model_dump_json())
    return seed
