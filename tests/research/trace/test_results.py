"""Results: exact intervals, every figure from its own piece, and nothing of another experiment."""

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import pytest
from scipy.stats import norm, t

from pytest_trace2evolve.errors import ConfigError, TrainingError
from pytest_trace2evolve.records.adapter import MANIFEST_NAME
from research.trace.plan import ARMS, COUNTED, CURVED, Chosen, Piece
from research.trace.results import (
    Figures,
    Results,
    difference_of,
    earlier_seeds,
    mean_of,
    results_of,
    spent_rollouts,
)
from research.trace.store import Seed, read
from tests.research.trace.sample import NAMES, PLAN, TARGETS, environmental, evaluation, fill, manifest

SEEDS = (1, 2)
PLACES = range(len(TARGETS))
ALONE = [place for place, target in enumerate(TARGETS) if len(target.cell.capabilities) == 1]


# Intervals


def test_one_seed_has_students_interval_over_tasks() -> None:
    row = [0.0, 1.0, 1.0, 0.0, 0.5, 1.0]
    found = mean_of([row], ["a"] * 6)
    reach = t.ppf(0.975, 5) * stdev(row) / math.sqrt(6)
    assert (found.mean, found.seeds, found.tasks) == (fmean(row), 1, 6)
    assert found.low == pytest.approx(fmean(row) - reach)
    assert found.high == 1.0, "no reward is above"


def test_equal_tasks_leave_students_interval_over_seeds() -> None:
    seeds = [0.2, 0.5, 0.6]
    found = mean_of([[reward] * 4 for reward in seeds], ["a"] * 4)
    reach = t.ppf(0.975, 2) * stdev(seeds) / math.sqrt(3)
    assert found.low == pytest.approx(max(0.0, fmean(seeds) - reach))
    assert found.high == pytest.approx(fmean(seeds) + reach)


def test_differences_between_cells_are_no_spread() -> None:
    table = [[0.45, 0.47, 0.53, 0.55]]
    apart, together = (mean_of(table, cells) for cells in (["a", "a", "b", "b"], ["a"] * 4))
    assert apart.high is not None
    assert together.high is not None
    assert apart.high < together.high
    assert apart.mean == together.mean


def test_equal_rewards_are_not_certain() -> None:
    none = mean_of([[0.0] * 20] * 3, ["a"] * 20)
    assert none.low == pytest.approx(0.0, abs=1e-12)
    assert none.high == pytest.approx(0.161, abs=1e-3), "Wilson's of 0 of 20"
    alone = mean_of([[1.0]], ["a"])
    assert (alone.low, alone.high) == (None, None)


def test_a_difference_compares_tasks_with_themselves() -> None:
    base = [[0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0]]
    better = [[1.0, 1.0, 0.0, 1.0], [0.5, 1.0, 1.0, 1.0]]
    found = difference_of(better, base, ["a", "a", "b", "b"])
    assert found.mean == pytest.approx(1.5 / 8)
    assert found.low is not None
    assert -1 < found.low < found.mean
    same = difference_of(base, base, ["a", "a", "b", "b"])
    assert same.high == pytest.approx(0.49, abs=1e-2), "four tasks without a difference prove little"
    assert same.low == -same.high
    with pytest.raises(ValueError, match="zip"):
        difference_of(better, base[:1], ["a"] * 4)


def test_a_difference_has_the_paired_interval() -> None:
    # Tasks differ much and the gain hardly: unpaired, the interval would be several times as wide.
    base = [0.0, 0.2, 0.5, 0.9, 0.1, 0.7]
    better = [0.1, 0.2, 0.7, 1.0, 0.1, 0.8]
    gains = [after - before for after, before in zip(better, base, strict=True)]
    reach = t.ppf(0.975, 5) * stdev(gains) / math.sqrt(6)
    found = difference_of([better], [base], ["a"] * 6)
    assert found.low == pytest.approx(fmean(gains) - reach)
    assert found.high == pytest.approx(fmean(gains) + reach)


@pytest.mark.parametrize("table", [[], [[0.0, 1.0]], [[0.0], [0.0, 1.0]]])
def test_a_table_of_another_shape_is_rejected(table: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="needs a row for each seed, with a reward for each task"):
        mean_of(table, ["a"])


@pytest.mark.parametrize(("seeds", "tasks", "rest"), [(0.0, 0.3, 0.3), (0.1, 0.2, 0.3), (0.2, 0.1, 0.2)])
def test_intervals_cover_the_mean(seeds: float, tasks: float, rest: float) -> None:
    draws = random.Random(1)
    covered, reaches = 0, []
    for _ in range(500):
        of_task = [draws.gauss(0, tasks) for _ in range(30)]
        table = [
            [of_seed + effect + draws.gauss(0, rest) for effect in of_task]
            for of_seed in [draws.gauss(0, seeds) for _ in range(3)]
        ]
        found = mean_of(table, ["a", "b"] * 15, minimum=-9.0)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0 <= found.high
        reaches.append((found.high - found.low) / 2)
    assert covered / 500 > 0.91
    # Student's factor has between two degrees of freedom, those of three seeds, and infinitely many.
    deviation = math.sqrt(seeds**2 / 3 + tasks**2 / 30 + rest**2 / 90)
    assert norm.ppf(0.975) <= median(reaches) / deviation <= t.ppf(0.975, 2)


# Figures


def mean(piece: Piece, figure: str = "rewards", places: Sequence[int] = PLACES) -> float:
    """Of a piece, over both seeds, by hand."""
    return fmean(getattr(evaluation(piece, seed), figure)[place] for seed in SEEDS for place in places)


def near(number: float) -> Any:
    return pytest.approx(number, abs=1e-9)


def check_figures(rewards: Figures, wishes: Figures, piece: Piece) -> None:
    """Check that figures are those of a piece."""
    assert rewards.every.mean == near(mean(piece))
    assert rewards.one.mean == near(mean(piece, places=ALONE))
    both = [place for place in PLACES if place not in ALONE]
    assert rewards.two.mean == near(mean(piece, places=both))
    assert wishes.every.mean == near(mean(piece, "wishes"))


def test_every_figure_comes_from_its_own_piece(results: Results) -> None:
    assert [arm.name for arm in results.arms] == list(ARMS)
    for arm in results.arms:
        check_figures(arm.rewards, arm.wishes, Piece(arm.name))
        assert arm.change.every.mean == near(mean(Piece(arm.name)) - mean(Piece("base")))
        rewards = [environmental(arm.name, seed).rewards for seed in SEEDS]
        assert arm.environments.mean == near(fmean(r for by in rewards for name in NAMES for r in by[name]))
        for cell in PLAN.cells:
            places = [place for place, target in enumerate(TARGETS) if target.cell == cell]
            assert arm.cells[cell.name].mean == near(mean(Piece(arm.name), places=places))
    shares = (128, 256, 512)
    assert {(p.arm, p.at) for p in results.curve} == {(arm, at) for arm in CURVED for at in shares}
    for point in results.curve:
        check_figures(point.rewards, point.wishes, Piece(point.arm, point.at / PLAN.rollouts))
    assert {(p.arm, p.at) for p in results.adapters} == {(arm, at) for arm in COUNTED for at in (1, 2)}
    for point in results.adapters:
        check_figures(point.rewards, point.wishes, Piece(point.arm, count=point.at % 2))


def test_the_routed_arm_is_compared_with_every_other_task_by_task(results: Results) -> None:
    assert [versus.arm for versus in results.against] == [arm for arm in ARMS if arm != "routed"]
    tables = {arm: [evaluation(Piece(arm), seed).rewards for seed in SEEDS] for arm in ARMS}
    cells = [target.cell.name for target in TARGETS]
    for versus in results.against:
        assert versus.rewards.every == difference_of(tables["routed"], tables[versus.arm], cells)
        wishes = mean(Piece("routed"), "wishes") - mean(Piece(versus.arm), "wishes")
        assert versus.wishes.every.mean == near(wishes)


def test_the_control_is_measured_in_its_own_environment(results: Results) -> None:
    name = PLAN.control
    before, after = (
        [environmental(arm, seed).rewards[name] for seed in SEEDS] for arm in ("base", "control")
    )
    assert results.control.environment == name
    assert results.control.before.mean == near(fmean(reward for row in before for reward in row))
    assert results.control.after.mean == near(fmean(reward for row in after for reward in row))
    assert results.control.change == difference_of(after, before, [name] * PLAN.scenarios)


def test_counts_are_equal_and_rollouts_outside_budgets_are_reported(results: Results) -> None:
    arms = {arm.name: arm for arm in results.arms}
    assert {arm.trained for name, arm in arms.items() if name != "base"} == {PLAN.rollouts}
    assert {name: arm.besides for name, arm in arms.items() if arm.besides} == {"single-whole": PLAN.rollouts}
    environments = {"base": 0, "direct": 0, "gepa": 0, "control": 1}
    calibrated = {name: 1600 * environments.get(name, 2) for name in ARMS}
    assert {name: arm.calibrated for name, arm in arms.items()} == calibrated
    # 11 arms, 7 of them at 2 points, 2 with one adapter; 12 tasks. Environments: 2; 3 of base and control.
    assert results.evaluated == 2 * ((11 + 14 + 2) * 12 + (11 * 2 + 2) * PLAN.scenarios * PLAN.repeats)


def test_the_router_is_compared_with_each_task_once(tmp_path: Path) -> None:
    seeds = fill(tmp_path)
    found = results_of(seeds)
    assert (found.confusion.correct, found.confusion.total, found.rerouted) == (4, 8, 0)
    file = seeds[1].evaluation(Piece("routed"))
    other = evaluation(Piece("routed"), 2)
    file.write_text(other.model_copy(update={"routed": (NAMES[1], *other.routed[1:])}).model_dump_json())
    again = results_of(seeds)
    assert again.confusion == found.confusion
    assert again.rerouted == 1


def test_rollouts_are_counted_by_manifests(tmp_path: Path) -> None:
    seed, _ = fill(tmp_path)
    chosen = read(seed.chosen, Chosen)
    for arm in ("single", "weight-merge", "routed", "single-whole", "gepa"):
        assert spent_rollouts(seed, arm, chosen) == PLAN.rollouts
    assert spent_rollouts(seed, "base", chosen) == 0


def test_an_arm_with_other_rollouts_than_the_plans_is_rejected(tmp_path: Path) -> None:
    seeds = fill(tmp_path)
    [job] = [job for job in seeds[1].jobs if job.training.name == "merged"]
    (job.out / MANIFEST_NAME).write_text(manifest(job, 511).model_dump_json())
    message = "merged: 511 rollouts were played, and the plan says 512; remove the folder to start again"
    with pytest.raises(TrainingError, match=message):
        results_of(seeds)
    with pytest.raises(TrainingError, match="arm 'merged' got 511 rollouts, and the plan gives 512"):
        spent_rollouts(seeds[1], "merged", read(seeds[1].chosen, Chosen))


def other_beta(seed: Seed) -> dict[str, Any]:
    return {"recipe": {**manifest(seed.jobs[-1]).recipe, "beta": 0.5}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda seed: {"recipe": {"beta": 0.0}}, "groups None, and the plan says 8"),
        (other_beta, "beta 0.5, and the plan says 0.05"),
        (lambda seed: {"environments": {NAMES[0]: "0"}}, "another version of its environments"),
        (lambda seed: {"base_digest": "another"}, "another base model"),
    ],
)
def test_an_adapter_of_another_training_is_rejected(
    tmp_path: Path, change: Callable[[Seed], dict[str, Any]], message: str
) -> None:
    seeds = fill(tmp_path)
    job = seeds[0].jobs[-1]
    other = manifest(job).model_copy(update=change(seeds[0]))
    (job.out / MANIFEST_NAME).write_text(other.model_dump_json())
    with pytest.raises(TrainingError) as raised:
        results_of(seeds)
    assert str(raised.value) == f"{job.out}: was trained with {message}; remove the folder to start again"


def test_a_damaged_manifest_is_rejected(tmp_path: Path) -> None:
    seeds = fill(tmp_path)
    (seeds[0].jobs[0].out / MANIFEST_NAME).write_text("{")
    with pytest.raises(ConfigError, match="; remove the folder, and it is trained again"):
        results_of(seeds)


def test_other_tasks_than_the_plans_are_rejected(tmp_path: Path) -> None:
    seeds = fill(tmp_path)
    file = seeds[1].evaluation(Piece("gepa", 0.5))
    other = evaluation(Piece("gepa", 0.5), 2)
    file.write_text(other.model_copy(update={"tasks": other.tasks[::-1]}).model_dump_json())
    with pytest.raises(ConfigError) as raised:
        results_of(seeds)
    assert str(raised.value) == (
        f"{file}: other tasks were played than the plan's; remove it, and it is made again"
    )


def test_earlier_numbers_of_seeds_are_remembered(results: Results, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    assert earlier_seeds(file, 2) == ()
    for seeds, earlier in ((1, ()), (2, (1,)), (2, (1,)), (3, (1, 2))):
        assert earlier_seeds(file, seeds) == earlier
        fields = {"plan": PLAN.model_copy(update={"seeds": seeds}), "earlier": earlier}
        file.write_text(results.model_copy(update=fields).model_dump_json())
    file.write_text("{")
    assert earlier_seeds(file, 2) == ()
