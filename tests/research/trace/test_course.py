"""Pieces are made once: what is there is read, what is missing is made, what is wrong is told."""

import signal
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.errors import ConfigError, TrainingError
from pytest_trace2evolve.records.adapter import MANIFEST
from pytest_trace2evolve.serving.folder import ADAPTER_CONFIG
from research.trace import run as course
from research.trace.arms import Piece
from research.trace.plan import POINTS
from research.trace.prompts import Found
from research.trace.store import kept
from tests.experiments.made import PLAN, fill, manifest


@pytest.fixture(name="asked")
def _asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would be done in processes."""
    asked: list[str] = []

    def at_once(jobs: Sequence[Any], parallel: int, seeds: object, told: object) -> None:
        for job in jobs:
            one, *rest = job.args
            name = job.func.__name__
            what = f"{one.seed}/{one.training.name}" if name == "train_one" else f"{one.number}/{name}"
            asked.append("/".join([what, *map(str, rest)]))

    monkeypatch.setattr(course, "_at_once", at_once)
    return asked


def quiet(done: int, whole: int) -> None:
    """Hears nothing."""


def test_an_experiment_that_is_whole_does_nothing_twice(tmp_path: Path, asked: list[str]) -> None:
    seeds = fill(tmp_path)
    assert course.run(PLAN, tmp_path / "base", tmp_path, 2, quiet) == seeds
    assert asked == []
    assert sum(seed.done for seed in seeds) == sum(len(seed.jobs) + len(seed.files) for seed in seeds)


def test_what_was_interrupted_goes_on_with_what_is_missing(tmp_path: Path, asked: list[str]) -> None:
    seeds = fill(tmp_path)
    (seeds[1].adapters / "merged" / MANIFEST).unlink()
    job = seeds[0].jobs[0]
    (job.at(POINTS[0]) / ADAPTER_CONFIG).unlink()
    seeds[1].evaluation(Piece("routed", count=1)).unlink()
    course.run(PLAN, tmp_path / "base", tmp_path, 2, quiet)
    seeds[0].chosen.unlink()
    course.run(PLAN, tmp_path / "base", tmp_path, 2, quiet)
    whole = ["1/measure/0/2", "1/measure/1/2", "2/measure/0/2", "2/measure/1/2"]
    assert asked == [
        *("1/direct", "2/merged", *whole[2:]),
        *("1/direct", "2/merged", "1/choose", *whole),
    ]


def test_an_adapter_of_another_training_is_told_before_anything_begins(
    tmp_path: Path, asked: list[str]
) -> None:
    seeds = fill(tmp_path)
    seeds[0].chosen.unlink()
    other = manifest(seeds[1].jobs[1]).model_copy(update={"base_digest": "another"})
    (seeds[1].jobs[1].out / MANIFEST).write_text(other.model_dump_json())
    plan = PLAN.model_copy(update={"base": "this"})
    (tmp_path / "plan.json").write_text(plan.model_dump_json())
    with pytest.raises(
        TrainingError, match="was trained with another base model; remove the folder to begin"
    ):
        course.run(plan, tmp_path / "base", tmp_path, 2, quiet)
    assert asked == []


def test_more_seeds_go_on_with_fewer(tmp_path: Path, asked: list[str]) -> None:
    fill(tmp_path)
    more = PLAN.model_copy(update={"seeds": 3})
    course.run(more, tmp_path / "base", tmp_path, 2, quiet)
    assert len(asked) == len(more.trainings()) + len(("search", "choose", "measure", "measure"))
    assert all(one.startswith("3/") for one in asked)


def test_a_piece_is_made_once_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> Found:
        made.append(1)
        return Found(instructions={"1": "Look."}, rollouts=7, candidates=1, score=0.5)

    file = tmp_path / "gepa.json"
    assert kept(file, Found, make) == kept(file, Found, make)
    assert made == [1]
    file.write_text("{")
    with pytest.raises(ConfigError, match="; remove it, and it is made again"):
        kept(file, Found, make)


def test_processes_do_their_jobs_and_a_failure_is_the_experiments(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    course._at_once(
        [(tmp_path / "one").touch, (tmp_path / "two").touch], 2, [], lambda *one: told.append(one)
    )
    assert (tmp_path / "one").exists()
    assert (tmp_path / "two").exists()
    assert set(told) == {(0, 0)}
    with pytest.raises(FileNotFoundError):
        course._at_once([(tmp_path / "none" / "here").touch], 1, [], lambda *one: None)


def test_a_process_that_is_killed_is_told_in_one_line(tmp_path: Path) -> None:
    # Three, since the pool may hear of its second process with the next job alone.
    jobs = [partial(signal.raise_signal, signal.SIGKILL), *[partial(time.sleep, 3600)] * 2]
    with pytest.raises(TrainingError) as raised:
        course._at_once(jobs, 2, [], lambda *one: None)
    assert str(raised.value) == (
        "experiment: one of 2 processes was killed, for want of memory perhaps, and the others ended "
        "with it; the same command goes on, with --parallel 1 in less memory"
    )
    assert not active_children()


def test_whoever_stops_it_does_not_wait() -> None:
    asked = []

    def told(done: int, whole: int) -> None:
        asked.append(done)
        if len(asked) > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        course._at_once([partial(time.sleep, 3600)] * 3, 2, [], told)
    assert not active_children()
