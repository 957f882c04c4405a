"""Results: every figure from its own piece, counts from manifests, and nothing of another experiment."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from pytest_trace2evolve.errors import ConfigError, TrainingError
from pytest_trace2evolve.records.adapter import MANIFEST
from research.trace.arms import ARMS, COUNTED, CURVED, Chosen, Piece
from research.trace.figures import results_of, spent_of
from research.trace.intervals import difference_of
from research.trace.results import Figures
from research.trace.store import Seed, read
from tests.experiments.made import NAMES, PLAN, TARGETS, environmental, evaluation, fill, manifest

SEEDS = (1, 2)
PLACES = range(len(TARGETS))
ALONE = [place for place, one in enumerate(TARGETS) if len(one.cell.capabilities) == 1]


def mean(piece: Piece, what: str = "rewards", places: Sequence[int] = PLACES) -> float:
    """Of a piece, over both seeds, by hand."""
    return fmean(getattr(evaluation(piece, seed), what)[place] for seed in SEEDS for place in places)


def near(number: float) -> Any:
    return pytest.approx(number, abs=1e-9)


def holds(rewards: Figures, wishes: Figures, piece: Piece) -> None:
    """These are a piece's figures."""
    assert rewards.every.mean == near(mean(piece))
    assert rewards.one.mean == near(mean(piece, places=ALONE))
    both = [place for place in range(len(TARGETS)) if place not in ALONE]
    assert rewards.two.mean == near(mean(piece, places=both))
    assert wishes.every.mean == near(mean(piece, "wishes"))


def test_every_figure_comes_from_its_own_piece(tmp_path: Path) -> None:
    found = results_of(fill(tmp_path))
    assert [arm.name for arm in found.arms] == list(ARMS)
    for arm in found.arms:
        holds(arm.rewards, arm.wishes, Piece(arm.name))
        assert arm.change.every.mean == near(mean(Piece(arm.name)) - mean(Piece("base")))
        rolled = [environmental(arm.name, seed).rewards for seed in SEEDS]
        assert arm.environments.mean == near(fmean(r for one in rolled for name in NAMES for r in one[name]))
        for cell in PLAN.cells:
            places = [place for place, one in enumerate(TARGETS) if one.cell == cell]
            assert arm.cells[cell.name].mean == near(mean(Piece(arm.name), places=places))
    assert {(one.arm, one.at) for one in found.curve} == {(arm, at) for arm in CURVED for at in (8, 16, 32)}
    for one in found.curve:
        holds(one.rewards, one.wishes, Piece(one.arm, one.at / PLAN.rollouts))
    assert {(one.arm, one.at) for one in found.adapters} == {(arm, at) for arm in COUNTED for at in (1, 2)}
    for one in found.adapters:
        holds(one.rewards, one.wishes, Piece(one.arm, count=one.at % 2))


def test_the_routed_arm_is_compared_with_every_other_task_by_task(tmp_path: Path) -> None:
    found = results_of(fill(tmp_path))
    assert [one.arm for one in found.against] == [arm for arm in ARMS if arm != "routed"]
    tables = {arm: [evaluation(Piece(arm), seed).rewards for seed in SEEDS] for arm in ARMS}
    cells = [one.cell.name for one in TARGETS]
    for one in found.against:
        assert one.rewards.every == difference_of(tables["routed"], tables[one.arm], cells)
        assert one.wishes.every.mean == near(mean(Piece("routed"), "wishes") - mean(Piece(one.arm), "wishes"))


def test_what_the_control_learnt_is_told(tmp_path: Path) -> None:
    found = results_of(fill(tmp_path)).control
    name = PLAN.control
    before, after = (
        [environmental(arm, seed).rewards[name] for seed in SEEDS] for arm in ("base", "control")
    )
    assert found.environment == name
    assert found.before.mean == near(fmean(reward for row in before for reward in row))
    assert found.after.mean == near(fmean(reward for row in after for reward in row))
    assert found.change == difference_of(after, before, [name] * 2)


def test_counts_are_equal_and_what_is_in_no_budget_is_told(tmp_path: Path) -> None:
    found = results_of(fill(tmp_path))
    arms = {arm.name: arm for arm in found.arms}
    assert {arm.trained for name, arm in arms.items() if name != "base"} == {PLAN.rollouts}
    assert {name: arm.besides for name, arm in arms.items() if arm.besides} == {"single-whole": 32}
    none, one = {"base", "direct", "gepa"}, {"control"}
    wanted = {name: 0 if name in none else 1600 if name in one else 3200 for name in ARMS}
    assert {name: arm.calibrated for name, arm in arms.items()} == wanted
    # 11 arms, 7 of them at 2 points, 2 with one adapter; 12 tasks. Environments: 2; 3 of base and control.
    assert found.evaluated == 2 * ((11 + 14 + 2) * 12 + (11 * 2 + 2) * 2 * 2)


def test_the_router_is_held_against_each_task_once(tmp_path: Path) -> None:
    seeds = fill(tmp_path)
    found = results_of(seeds)
    assert (found.confusion.right, found.confusion.total, found.rerouted) == (4, 8, 0)
    file = seeds[1].evaluation(Piece("routed"))
    other = evaluation(Piece("routed"), 2)
    file.write_text(other.model_copy(update={"routed": (NAMES[1], *other.routed[1:])}).model_dump_json())
    again = results_of(seeds)
    assert again.confusion == found.confusion
    assert again.rerouted == 1


@pytest.mark.parametrize("rollouts", [31, 33])
def test_an_arm_with_other_rollouts_than_the_plans_is_no_result(tmp_path: Path, rollouts: int) -> None:
    seeds = fill(tmp_path)
    [job] = [job for job in seeds[1].jobs if job.training.name == "merged"]
    (job.out / MANIFEST).write_text(manifest(job, rollouts).model_dump_json())
    told = f"merged: {rollouts} rollouts were played, and the plan says 32; remove the folder to begin anew"
    with pytest.raises(TrainingError, match=told):
        results_of(seeds)
    with pytest.raises(TrainingError, match=f"arm 'merged' got {rollouts} rollouts, and the plan gives 32"):
        spent_of(seeds[1], "merged", read(seeds[1].chosen, Chosen))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"recipe": {"beta": 0.0}}, "groups None, and the plan says 2"),
        ({"environments": {NAMES[0]: "0"}}, "another version of its environments"),
    ],
)
def test_an_adapter_that_was_trained_otherwise_is_no_result(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    seeds = fill(tmp_path)
    job = seeds[0].jobs[-1]
    (job.out / MANIFEST).write_text(manifest(job).model_copy(update=change).model_dump_json())
    with pytest.raises(TrainingError) as raised:
        results_of(seeds)
    assert str(raised.value) == f"{job.out}: was trained with {told}; remove the folder to begin anew"


def test_another_weight_of_the_divergence_is_named(tmp_path: Path) -> None:
    seeds = fill(tmp_path)
    job = seeds[0].jobs[0]
    kept = manifest(job)
    other = kept.model_copy(update={"recipe": {**kept.recipe, "beta": 0.5}})
    (job.out / MANIFEST).write_text(other.model_dump_json())
    with pytest.raises(TrainingError, match=r"trained with beta 0\.5, and the plan says 0\.05; remove "):
        results_of(seeds)
    (job.out / MANIFEST).write_text("{")
    with pytest.raises(ConfigError, match="; remove the folder, and it is trained again"):
        results_of(seeds)


def test_other_tasks_than_the_plans_are_no_result(tmp_path: Path) -> None:
    seeds = fill(tmp_path)
    file = seeds[1].evaluation(Piece("gepa", 0.5))
    other = evaluation(Piece("gepa", 0.5), 2)
    file.write_text(other.model_copy(update={"tasks": other.tasks[::-1]}).model_dump_json())
    with pytest.raises(ConfigError) as raised:
        results_of(seeds)
    assert str(raised.value) == (
        f"{file}: other tasks were played than the plan's; remove it, and it is made again"
    )


def test_counts_come_from_manifests(tmp_path: Path) -> None:
    seed: Seed
    [seed, _] = fill(tmp_path)
    chosen = read(seed.chosen, Chosen)
    for arm in ("single", "weight-merge", "routed", "single-whole", "gepa"):
        assert spent_of(seed, arm, chosen) == PLAN.rollouts
    assert spent_of(seed, "base", chosen) == 0
