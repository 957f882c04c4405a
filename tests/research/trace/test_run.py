"""Pieces are made once, each by the policy of its name; what is missing is made, and errors are named."""

import random
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.errors import ConfigError, TrainingError
from pytest_trace2evolve.records.adapter import MANIFEST_NAME
from pytest_trace2evolve.serving.folder import ADAPTER_CONFIG_FILE
from pytest_trace2evolve.utils.resources import embedded_model
from research.trace import run
from research.trace.evaluate import Environmental, Evaluation
from research.trace.identity import tasks_digest
from research.trace.plan import (
    ARMS,
    MERGES,
    POINTS,
    Chosen,
    Piece,
    Plan,
    Policy,
    adapter_at,
    environments_for,
    pieces_of,
    policy_of,
)
from research.trace.prompts import Found
from research.trace.store import Seed, read, read_or_make
from research.trace.tasks import Target, cells_of, heldout_targets, validation_targets
from tests.research.trace import sample
from tests.research.trace.sample import NAMES, fill, manifest, tiny_recipe
from tests.tiny_model import build_adapter

# A whole experiment


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs that would be done in processes."""
    found: list[str] = []

    def run_jobs(jobs: Sequence[Any], parallel: int, on_poll: object) -> None:
        for job in jobs:
            subject, *rest = job.args
            name = job.func.__name__
            training = name == "train_one"
            what = f"{subject.seed}/{subject.training.name}" if training else f"{subject.number}/{name}"
            found.append("/".join([what, *map(str, rest)]))

    monkeypatch.setattr(run, "run_jobs", run_jobs)
    return found


def run_sample(out: Path, plan: Plan = sample.PLAN) -> list[Seed]:
    return run.run(plan, embedded_model(), out, 2, lambda done, total: None)


def test_a_finished_experiment_makes_nothing_again(tmp_path: Path, jobs: list[str]) -> None:
    seeds = fill(tmp_path)
    assert run_sample(tmp_path) == seeds
    assert jobs == []
    assert sum(seed.done for seed in seeds) == sum(len(seed.jobs) + len(seed.files) for seed in seeds)


def test_missing_pieces_are_made(tmp_path: Path, jobs: list[str]) -> None:
    seeds = fill(tmp_path)
    (seeds[1].adapters / "merged" / MANIFEST_NAME).unlink()
    (seeds[0].jobs[0].at(POINTS[0]) / ADAPTER_CONFIG_FILE).unlink()
    seeds[1].evaluation(Piece("routed", count=1)).unlink()
    run_sample(tmp_path)
    seeds[0].chosen.unlink()
    run_sample(tmp_path)
    first, second = ["1/measure/0/2", "1/measure/1/2"], ["2/measure/0/2", "2/measure/1/2"]
    trainings = ["1/direct", "2/merged"]
    assert jobs == [*trainings, *second, *trainings, "1/choose_adapters", *first, *second]


def test_an_adapter_of_another_training_is_found_before_anything_begins(
    tmp_path: Path, jobs: list[str]
) -> None:
    seeds = fill(tmp_path)
    seeds[0].chosen.unlink()
    job = seeds[1].jobs[1]
    other = manifest(job).model_copy(update={"base_digest": "another"})
    (job.out / MANIFEST_NAME).write_text(other.model_dump_json())
    with pytest.raises(
        TrainingError, match="was trained with another base model; remove the folder to start again"
    ):
        run_sample(tmp_path)
    assert jobs == []


def test_more_seeds_resume_an_experiment_of_fewer(tmp_path: Path, jobs: list[str]) -> None:
    fill(tmp_path)
    more = sample.PLAN.model_copy(update={"seeds": 3})
    run_sample(tmp_path, more)
    assert len(jobs) == len(more.trainings()) + len(("search", "choose", "measure", "measure"))
    assert all(job.startswith("3/") for job in jobs)


def test_a_piece_is_made_once_and_a_damaged_one_is_rejected(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> Found:
        made.append(1)
        return Found(instructions={"1": "Look."}, rollouts=7, candidates=1, score=0.5)

    file = tmp_path / "gepa.json"
    assert read_or_make(file, Found, make) == read_or_make(file, Found, make)
    assert made == [1]
    file.write_text("{")
    with pytest.raises(ConfigError, match="; remove it, and it is made again"):
        read_or_make(file, Found, make)


# Processes


def test_jobs_run_in_processes_and_a_failure_is_raised(tmp_path: Path) -> None:
    polls: list[None] = []
    run.run_jobs([(tmp_path / "one").touch, (tmp_path / "two").touch], 2, lambda: polls.append(None))
    assert (tmp_path / "one").exists()
    assert (tmp_path / "two").exists()
    assert polls
    with pytest.raises(FileNotFoundError):
        run.run_jobs([(tmp_path / "none" / "here").touch], 1, lambda: None)


def test_a_killed_process_is_one_line() -> None:
    # Three jobs, since the pool may start its second process only with the next job.
    jobs = [partial(signal.raise_signal, signal.SIGKILL), *[partial(time.sleep, 3600)] * 2]
    with pytest.raises(TrainingError) as raised:
        run.run_jobs(jobs, 2, lambda: None)
    assert str(raised.value) == (
        "experiment: one of 2 processes was killed, perhaps for lack of memory, and the others ended "
        "with it; rerun the same command to resume, with --parallel 1 in less memory"
    )
    assert not active_children()


def test_an_interruption_does_not_wait_for_jobs() -> None:
    polls: list[None] = []

    def interrupt() -> None:
        polls.append(None)
        if len(polls) > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.run_jobs([partial(time.sleep, 3600)] * 3, 2, interrupt)
    assert not active_children()


# Pieces

TARGETS = heldout_targets(cells_of(NAMES), 2)
PLAN = Plan(
    capabilities=NAMES,
    seeds=1,
    rollouts=32,
    recipe=tiny_recipe(),
    tasks=2,
    validation=1,
    scenarios=2,
    repeats=1,
    targets=tasks_digest(target.case.id for target in TARGETS),
)
BEST = ("share_conditional_detail_retrieval", "whole_precondition_verification", "weights_sum")
FOUND = Found(
    instructions={**{f"{point:g}": f"At {point}." for point in POINTS}, "1": "Look first."},
    rollouts=PLAN.rollouts,
    candidates=2,
    score=0.5,
)


def draw(policy: Policy, count: int) -> tuple[float, ...]:
    """Rewards that follow from the policy."""
    numbers = random.Random(repr(policy))
    return tuple(numbers.random() for _ in range(count))


class FakeEvaluator:
    """Plays nothing: gives each policy rewards of its own."""

    validated: Sequence[Target] = ()

    def __init__(self, settings: object, environments: object, capabilities: object, seed: int) -> None:
        self.seed = seed

    async def targets(self, policy: Policy, targets: Sequence[Target], first: int = 0) -> Any:
        FakeEvaluator.validated = targets
        return [float(policy.adapter in BEST)] * len(targets), [()] * len(targets)

    async def evaluate(self, policy: Policy, targets: Sequence[Target]) -> Evaluation:
        count = len(targets)
        return Evaluation(
            cells=tuple(target.cell.name for target in targets),
            tasks=tuple(target.case.id for target in targets),
            rewards=draw(policy, count),
            wishes=(0.0,) * count,
            routed=("",) * count,
        )

    async def environmental(
        self, policy: Policy, difficulties: Mapping[str, int], scenarios: int, repeats: int
    ) -> Environmental:
        return Environmental(rewards={name: draw(policy, scenarios) for name in difficulties})


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The adapters of each server that would be started; `FakeEvaluator` plays."""
    started: list[set[str]] = []

    @contextmanager
    def served(base: Any, adapters: Mapping[str, Path], *, seed: int, **settings: Any) -> Iterator[None]:
        assert base.path == embedded_model()
        assert all(folder.name == name for name, folder in adapters.items())
        assert seed == 0, "answers are drawn from the number of their simulation alone"
        started.append(set(adapters))
        yield

    monkeypatch.setattr(run, "serve_locally", served)
    monkeypatch.setattr(run, "Evaluator", FakeEvaluator)
    return started


def seed_in(out: Path) -> Seed:
    """A seed whose search is done."""
    seed = Seed(PLAN, 1, embedded_model(), out)
    seed.folder.mkdir(parents=True)
    seed.found.write_text(FOUND.model_dump_json())
    return seed


def test_the_best_on_validation_tasks_is_chosen(
    tmp_path: Path, servers: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    merged: list[tuple[str, float, list[str]]] = []

    def merge(base: Path, adapters: Mapping[str, Path], weight: float, out: Path) -> None:
        merged.append((out.name, weight, list(adapters)))

    monkeypatch.setattr(run, "merge_weights", merge)
    seed = seed_in(tmp_path)
    run.choose_adapters(seed)
    chosen = read(seed.chosen, Chosen)
    assert (chosen.single, chosen.whole, chosen.merge) == (NAMES[1], NAMES[0], "weights_sum")
    assert FakeEvaluator.validated == validation_targets(PLAN.cells, 1)
    assert merged == [("weights_mean", 0.5, list(NAMES)), ("weights_sum", 1.0, list(NAMES))]
    assert servers == [{f"{kind}_{name}" for kind in ("share", "whole") for name in NAMES} | set(MERGES)]


def test_every_piece_is_made_by_the_policy_of_its_name(tmp_path: Path, servers: list[set[str]]) -> None:
    seed = seed_in(tmp_path)
    chosen = Chosen(single=NAMES[1], whole=NAMES[0], merge="weights_sum", figures={}, rollouts={})
    seed.chosen.write_text(chosen.model_dump_json())
    for part in range(3):
        run.measure(seed, part, 3)
    assert all(file.is_file() for file in seed.files)
    for piece in pieces_of(PLAN):
        policy = policy_of(PLAN, piece, chosen, FOUND.instructions)
        found = read(seed.evaluation(piece), Evaluation)
        assert found.rewards == draw(policy, len(TARGETS))
        assert tasks_digest(found.tasks) == PLAN.targets
        assert all(policy.adapters <= names for names in servers)
    for arm in ARMS:
        policy = policy_of(PLAN, Piece(arm), chosen, FOUND.instructions)
        rewards = read(seed.environmental(arm), Environmental).rewards
        assert rewards == dict.fromkeys(environments_for(PLAN, arm), draw(policy, 2))
    assert PLAN.control in environments_for(PLAN, "base")


def test_a_search_gets_its_budget_and_tasks_of_its_own(
    tmp_path: Path, servers: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def evolve(
        evaluator: FakeEvaluator, minibatches: Any, deciding: Any, budget: int, seed: int, *, points: Any
    ) -> Found:
        calls.append((evaluator.seed, minibatches, deciding, budget, seed, points))
        return FOUND

    monkeypatch.setattr(run, "evolve", evolve)
    seed = seed_in(tmp_path)
    seed.found.unlink()
    run.search(seed)
    [(number, minibatches, deciding, *rest)] = calls
    assert (number, *rest) == (1, PLAN.rollouts, 1, POINTS)
    assert read(seed.found, Found) == FOUND
    assert servers == [set()]
    groups = (minibatches, deciding, TARGETS, validation_targets(PLAN.cells, 1))
    ids = [target.case.id for group in groups for target in group]
    assert len(set(ids)) == len(ids)


@pytest.mark.usefixtures("forked_servers")
@pytest.mark.filterwarnings("ignore")
def test_choosing_and_measuring_with_the_embedded_model(tmp_path: Path) -> None:
    seed = seed_in(tmp_path)
    names = [adapter_at(training, point) for training in PLAN.trainings() for point in (1.0, *POINTS)]
    first, *others = (seed.adapters / name for name in names)
    build_adapter(seed.base, first, seed=1, strength=0.0)
    for folder in others:
        shutil.copytree(first, folder)
    run.choose_adapters(seed)
    chosen = read(seed.chosen, Chosen)
    shares = {f"{kind}_{name}" for kind in ("share", "whole") for name in NAMES}
    assert set(chosen.figures) == shares | set(MERGES)
    assert all((seed.adapters / name / ADAPTER_CONFIG_FILE).is_file() for name in MERGES)
    part = list(ARMS).index("routed")
    run.measure(seed, part, len(ARMS))  # the part with the routed arm
    pieces = pieces_of(PLAN)[part :: len(ARMS)]
    assert Piece("routed") in pieces
    assert [piece for piece in pieces_of(PLAN) if seed.evaluation(piece).is_file()] == list(pieces)
    for piece in pieces:
        found = read(seed.evaluation(piece), Evaluation)
        assert tasks_digest(found.tasks) == PLAN.targets
        assert all(found.routed) == any(found.routed) == (piece.arm == "routed")
    environmental = read(seed.environmental("routed"), Environmental)
    assert {name: len(rewards) for name, rewards in environmental.rewards.items()} == dict.fromkeys(NAMES, 2)
