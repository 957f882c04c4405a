"""Adapters: merged exactly in weight space, and a training whose adapters at points are kept."""

import json
import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.records.adapter import MANIFEST_NAME, WEIGHTS_NAME, AdapterManifest
from pytest_trace2evolve.utils.resources import embedded_model
from research.trace import adapters
from research.trace.adapters import merge_weights, train_one
from research.trace.plan import Plan
from research.trace.store import Job
from tests.research.trace.sample import NAMES, tiny_recipe
from tests.tiny_model import build_adapter, build_model

pytestmark = pytest.mark.filterwarnings("ignore")

SMALL = Plan(capabilities=NAMES, rollouts=64, recipe=tiny_recipe(2, 4))
SHARE = next(training for training in SMALL.trainings() if training.name == f"share_{NAMES[0]}")
SEED = 3
"""With this seed the rewards of every step differ, so each step changes the weights."""


def job_in(folder: Path) -> Job:
    return Job(SMALL, SHARE, SEED, embedded_model(), folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """An adapter, trained without an interruption."""
    job = job_in(tmp_path_factory.mktemp("trained"))
    assert not job.done
    train_one(job)
    return job


def changes(folder: Path) -> dict[str, Any]:
    """What an adapter adds to each layer's weight."""
    from safetensors.torch import load_file

    weights = load_file(folder / WEIGHTS_NAME)
    config = json.loads((folder / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / config["r"]
    return {
        name: scale * weights[name.replace("lora_A", "lora_B")] @ factor
        for name, factor in weights.items()
        if "lora_A" in name
    }


@pytest.mark.parametrize("weight", [0.5, 1.0])
def test_merged_weights_are_the_sum_of_what_each_adds(tmp_path: Path, weight: float) -> None:
    import torch

    torch.set_num_threads(1)
    base = build_model(tmp_path / "base", steps=1)
    parts = {
        name: build_adapter(base, tmp_path / name, seed=seed) for seed, name in enumerate(("one", "two"))
    }
    out = tmp_path / "sum"
    merge_weights(base, parts, weight, out)
    first, second, both = changes(parts["one"]), changes(parts["two"]), changes(out)
    assert set(both) == set(first)
    for name, found in both.items():
        torch.testing.assert_close(found, weight * (first[name] + second[name]), atol=1e-5, rtol=1e-4)
    written = (out / WEIGHTS_NAME).stat().st_mtime_ns
    merge_weights(base, parts, weight, out)
    assert (out / WEIGHTS_NAME).stat().st_mtime_ns == written


def test_an_adapter_gets_its_rollouts_and_is_kept_at_points(trained: Job) -> None:
    from safetensors.torch import load_file

    assert trained.done
    manifest = trained.manifest()
    assert (manifest.rollouts, manifest.steps) == (32, 4) == (SMALL.rollouts_of(SHARE), SHARE.steps)
    folders = (trained.at(0.25), trained.at(0.5), trained.out)
    assert [folder.name.removeprefix(SHARE.name) for folder in folders] == ["-000001", "-000002", ""]
    weights = [load_file(folder / WEIGHTS_NAME) for folder in folders]
    for first, second in combinations(weights, 2):
        assert {name: first[name].shape for name in first} == {name: second[name].shape for name in second}
        assert any((first[name] != second[name]).any() for name in first), "each is of its own step"


def test_a_finished_adapter_is_not_trained_again(trained: Job, tmp_path: Path) -> None:
    job = job_in(tmp_path / "adapters")
    shutil.copytree(trained.folder, job.folder)
    written = (job.out / WEIGHTS_NAME).stat().st_mtime_ns
    train_one(job)
    assert (job.out / WEIGHTS_NAME).stat().st_mtime_ns == written
    (job.at(0.5) / WEIGHTS_NAME).unlink()
    message = f"the adapter as it was at 50% of its steps is gone; remove {job.out}, and it is trained again"
    with pytest.raises(TrainingError, match=rf"^{job.at(0.5)}: {message}$"):
        train_one(job)
    manifest = AdapterManifest.model_validate_json((job.out / MANIFEST_NAME).read_text())
    (job.out / MANIFEST_NAME).write_text(manifest.model_copy(update={"rollouts": 20}).model_dump_json())
    with pytest.raises(TrainingError, match="20 rollouts were played, and the plan says 32"):
        train_one(job)


def test_an_interrupted_training_keeps_the_same_adapters(
    trained: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after a point, when its adapter is copied and no later checkpoint exists: it is reached again."""
    job = job_in(tmp_path)
    interrupted: list[int] = []
    train_adapter = adapters.train_adapter

    def interrupting(environments: Any, order: Any, *, on_step: Any) -> Any:
        def interrupt(stats: Any) -> None:
            on_step(stats)
            if stats.step in (2, 3) and stats.step not in interrupted:
                interrupted.append(stats.step)
                raise KeyboardInterrupt

        return train_adapter(environments, order, on_step=interrupt)

    monkeypatch.setattr(adapters, "train_adapter", interrupting)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train_one(job)
        assert not job.done
    train_one(job)
    assert job.done
    assert interrupted == [2, 3]
    for folder, expected in zip(
        (job.at(0.25), job.at(0.5), job.out), (trained.at(0.25), trained.at(0.5), trained.out), strict=True
    ):
        assert (folder / WEIGHTS_NAME).read_bytes() == (expected / WEIGHTS_NAME).read_bytes()
    assert not list(tmp_path.rglob("*.new"))
