"""Pieces as they are made: each by the policy of its name, and once for real with the embedded model."""

import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.serving.folder import ADAPTER_CONFIG
from pytest_trace2evolve.utils.resources import embedded_model
from research.trace import run as course
from research.trace.agents import Policy
from research.trace.arms import (
    ARMS,
    MERGES,
    Chosen,
    Piece,
    adapter_at,
    environments_for,
    pieces_of,
    policy_of,
)
from research.trace.evaluate import Environmental, Evaluation
from research.trace.identity import tasks_digest
from research.trace.plan import POINTS
from research.trace.prompts import Found
from research.trace.store import Seed, read
from research.trace.tasks import Target, heldout_targets, validation_targets
from tests.experiments import made
from tests.experiments.made import NAMES
from tests.tiny_model import build_adapter

TARGETS = heldout_targets(made.PLAN.cells, 2)
FEWER = {"seeds": 1, "tasks": 2, "repeats": 1, "targets": tasks_digest(one.case.id for one in TARGETS)}
PLAN = made.PLAN.model_copy(update=FEWER)
BEST = ("share_conditional_detail_retrieval", "whole_precondition_verification", "weights_sum")


def drawn(policy: Policy, count: int) -> tuple[float, ...]:
    """Rewards that follow from who answers."""
    numbers = random.Random(repr(policy))
    return tuple(numbers.random() for _ in range(count))


class Pretender:
    """Plays nothing: gives each policy rewards of its own."""

    asked: Sequence[Target] = ()

    def __init__(self, settings: object, environments: object, capabilities: object, seed: int) -> None:
        self.seed = seed

    async def targets(self, policy: Policy, targets: Sequence[Target], first: int = 0) -> Any:
        Pretender.asked = targets
        return [float(policy.adapter in BEST)] * len(targets), [()] * len(targets)

    async def evaluate(self, policy: Policy, targets: Sequence[Target]) -> Evaluation:
        count = len(targets)
        return Evaluation(
            cells=tuple(one.cell.name for one in targets),
            tasks=tuple(one.case.id for one in targets),
            rewards=drawn(policy, count),
            wishes=(0.0,) * count,
            routed=("",) * count,
        )

    async def environmental(
        self, policy: Policy, difficulties: Mapping[str, int], scenarios: int, repeats: int
    ) -> Environmental:
        return Environmental(rewards={name: drawn(policy, scenarios) for name in difficulties})


@pytest.fixture(name="served")
def _served(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The adapters of each server that would be begun; the pretender plays."""
    begun: list[set[str]] = []

    @contextmanager
    def served(seed: Seed, adapters: Mapping[str, Path]) -> Iterator[None]:
        assert all(folder == seed.adapters / name for name, folder in adapters.items())
        begun.append(set(adapters))
        yield

    monkeypatch.setattr(course, "_served", served)
    monkeypatch.setattr(course, "Evaluator", Pretender)
    return begun


FOUND = Found(
    instructions={**{f"{point:g}": f"At {point}." for point in POINTS}, "1": "Look first."},
    rollouts=PLAN.rollouts,
    candidates=2,
    score=0.5,
)


def seed_in(out: Path) -> Seed:
    """A seed whose search is done."""
    seed = Seed(PLAN, 1, embedded_model(), out)
    seed.folder.mkdir(parents=True)
    seed.found.write_text(FOUND.model_dump_json())
    return seed


def test_what_is_best_on_validation_tasks_is_chosen(
    tmp_path: Path, served: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    merged: list[tuple[str, float, list[str]]] = []

    def merge(base: Path, adapters: Mapping[str, Path], weight: float, out: Path) -> None:
        merged.append((out.name, weight, list(adapters)))

    monkeypatch.setattr(course, "merge_weights", merge)
    seed = seed_in(tmp_path)
    course.choose(seed)
    chosen = read(seed.chosen, Chosen)
    assert (chosen.single, chosen.whole, chosen.merge) == (NAMES[1], NAMES[0], "weights_sum")
    assert Pretender.asked == validation_targets(PLAN.cells, 1)
    assert merged == [("weights_mean", 0.5, list(NAMES)), ("weights_sum", 1.0, list(NAMES))]
    assert served == [{f"{kind}_{name}" for kind in ("share", "whole") for name in NAMES} | set(MERGES)]


def test_every_piece_is_made_by_the_policy_that_it_is_named_after(
    tmp_path: Path, served: list[set[str]]
) -> None:
    seed = seed_in(tmp_path)
    chosen = Chosen(single=NAMES[1], whole=NAMES[0], merge="weights_sum", figures={}, rollouts={})
    seed.chosen.write_text(chosen.model_dump_json())
    for part in range(3):
        course.measure(seed, part, 3)
    assert all(file.is_file() for file in seed.files)
    for piece in pieces_of(PLAN):
        policy = policy_of(PLAN, piece, chosen, FOUND.instructions)
        found = read(seed.evaluation(piece), Evaluation)
        assert found.rewards == drawn(policy, len(TARGETS))
        assert tasks_digest(found.tasks) == PLAN.targets
        assert all(policy.adapters <= names for names in served)
    for arm in ARMS:
        policy = policy_of(PLAN, Piece(arm), chosen, FOUND.instructions)
        rolled = read(seed.environmental(arm), Environmental).rewards
        assert rolled == dict.fromkeys(environments_for(PLAN, arm), drawn(policy, 2))
    assert PLAN.control in environments_for(PLAN, "base")


def test_a_search_gets_its_budget_and_tasks_of_its_own(
    tmp_path: Path, served: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def evolve(evaluator: Pretender, tasks: Any, budget: int, number: int, *, points: Any) -> Found:
        given.extend([evaluator.seed, tasks, budget, number, points])
        return FOUND

    monkeypatch.setattr(course, "evolve", evolve)
    seed = seed_in(tmp_path)
    seed.found.unlink()
    course.search(seed)
    number, (minibatches, deciding), *rest = given
    assert (number, *rest) == (1, PLAN.rollouts, 1, POINTS)
    assert read(seed.found, Found) == FOUND
    assert served == [set()]
    ids = [{one.case.id for one in tasks} for tasks in (minibatches, deciding, TARGETS)]
    ids.append({one.case.id for one in validation_targets(PLAN.cells, 1)})
    assert len(set.union(*ids)) == sum(map(len, ids))


@pytest.mark.filterwarnings("ignore")
def test_choosing_and_measuring_with_the_embedded_model(tmp_path: Path) -> None:
    seed = seed_in(tmp_path)
    names = [adapter_at(one, point) for one in PLAN.trainings() for point in (1.0, *POINTS)]
    first, *others = (seed.adapters / name for name in names)
    build_adapter(seed.base, first, seed=1, strength=0.0)
    for folder in others:
        shutil.copytree(first, folder)
    course.choose(seed)
    chosen = read(seed.chosen, Chosen)
    assert set(chosen.figures) == {f"{kind}_{name}" for kind in ("share", "whole") for name in NAMES} | set(
        MERGES
    )
    assert all((seed.adapters / name / ADAPTER_CONFIG).is_file() for name in MERGES)
    part = list(ARMS).index("routed")
    course.measure(seed, part, len(ARMS))  # a part of them, the routed arm in it
    wanted = pieces_of(PLAN)[part :: len(ARMS)]
    assert Piece("routed") in wanted
    assert [piece for piece in pieces_of(PLAN) if seed.evaluation(piece).is_file()] == list(wanted)
    for piece in wanted:
        found = read(seed.evaluation(piece), Evaluation)
        assert tasks_digest(found.tasks) == PLAN.targets
        assert all(found.routed) == any(found.routed) == (piece.arm == "routed")
    rolled = read(seed.environmental("routed"), Environmental)
    assert {name: len(rewards) for name, rewards in rolled.rewards.items()} == dict.fromkeys(NAMES, 2)
