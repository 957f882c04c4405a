"""Adapters: merged in weight space as their very sum, and a training that is kept at its points."""

from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.records.adapter import ADAPTER_WEIGHTS, MANIFEST, AdapterManifest
from pytest_trace2evolve.shipped import embedded_model
from pytest_trace2evolve.workflow.experiments.adapters import Job, merge_weights, train_one
from pytest_trace2evolve.workflow.experiments.plan import Plan
from tests.experiments.made import tiny_recipe
from tests.tiny_model import build_adapter, build_model

pytestmark = pytest.mark.filterwarnings("ignore")


def changes(folder: Path) -> dict[str, Any]:
    """What an adapter adds to each layer's weight."""
    import json

    from safetensors.torch import load_file

    weights = load_file(folder / ADAPTER_WEIGHTS)
    config = json.loads((folder / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / config["r"]
    return {
        name: scale * weights[name.replace("lora_A", "lora_B")] @ one
        for name, one in weights.items()
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
    one, two, both = changes(parts["one"]), changes(parts["two"]), changes(out)
    assert set(both) == set(one)
    for name, found in both.items():
        torch.testing.assert_close(found, weight * (one[name] + two[name]), atol=1e-5, rtol=1e-4)
    written = (out / ADAPTER_WEIGHTS).stat().st_mtime_ns
    merge_weights(base, parts, weight, out)
    assert (out / ADAPTER_WEIGHTS).stat().st_mtime_ns == written


def test_an_adapter_gets_its_rollouts_is_kept_at_points_and_trained_once(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    names = ("precondition_verification", "conditional_detail_retrieval")
    plan = Plan(capabilities=names, rollouts=32, recipe=tiny_recipe())
    training = next(one for one in plan.trainings() if one.name == "share_precondition_verification")
    job = Job(plan, training, 1, embedded_model(), tmp_path)
    assert not job.done
    train_one(job)
    assert job.done
    manifest = AdapterManifest.model_validate_json((job.out / MANIFEST).read_text())
    assert (manifest.rollouts, manifest.steps) == (16, 4) == (plan.rollouts_of(training), training.steps)
    folders = (job.at(0.25), job.at(0.5), job.out)
    assert [one.name.removeprefix(training.name) for one in folders] == ["-000001", "-000002", ""]
    kept = [load_file(one / ADAPTER_WEIGHTS) for one in folders]
    assert {name: one.shape for name, one in kept[0].items()} == {
        name: one.shape for name, one in kept[2].items()
    }
    written = (job.out / ADAPTER_WEIGHTS).stat().st_mtime_ns
    train_one(job)
    assert (job.out / ADAPTER_WEIGHTS).stat().st_mtime_ns == written
    (job.out / MANIFEST).write_text(manifest.model_copy(update={"rollouts": 20}).model_dump_json())
    with pytest.raises(TrainingError, match="20 rollouts were played, and the plan says 16"):
        train_one(job)
