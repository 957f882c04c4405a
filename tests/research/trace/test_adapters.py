"""Adapters: merged in weight space as their very sum, and a training that is kept at its points."""

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.records.adapter import ADAPTER_WEIGHTS, MANIFEST, AdapterManifest
from pytest_trace2evolve.utils.resources import embedded_model
from research.trace import adapters
from research.trace.adapters import Job, merge_weights, train_one
from research.trace.plan import Plan
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


NAMES = ("precondition_verification", "conditional_detail_retrieval")
SMALL = Plan(capabilities=NAMES, rollouts=64, recipe=tiny_recipe(2, 4))
SEED = 3
"""With which rewards of every step differ, so that each changes the weights."""

SHARE = next(one for one in SMALL.trainings() if one.name == f"share_{NAMES[0]}")


def test_an_adapter_gets_its_rollouts_is_kept_at_points_and_trained_once(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    job = Job(SMALL, SHARE, SEED, embedded_model(), tmp_path)
    assert not job.done
    train_one(job)
    assert job.done
    manifest = AdapterManifest.model_validate_json((job.out / MANIFEST).read_text())
    assert (manifest.rollouts, manifest.steps) == (32, 4) == (SMALL.rollouts_of(SHARE), SHARE.steps)
    folders = (job.at(0.25), job.at(0.5), job.out)
    assert [one.name.removeprefix(SHARE.name) for one in folders] == ["-000001", "-000002", ""]
    kept = [load_file(one / ADAPTER_WEIGHTS) for one in folders]
    for one, other in combinations(kept, 2):
        assert {name: one[name].shape for name in one} == {name: other[name].shape for name in other}
        assert any((one[name] != other[name]).any() for name in one), "each is of its own step"
    written = (job.out / ADAPTER_WEIGHTS).stat().st_mtime_ns
    train_one(job)
    assert (job.out / ADAPTER_WEIGHTS).stat().st_mtime_ns == written
    (job.at(0.5) / ADAPTER_WEIGHTS).unlink()
    told = f"the adapter as it was at 50% of its steps is gone; remove {job.out}, and it is trained again"
    with pytest.raises(TrainingError, match=rf"^{job.at(0.5)}: {told}$"):
        train_one(job)
    (job.out / MANIFEST).write_text(manifest.model_copy(update={"rollouts": 20}).model_dump_json())
    with pytest.raises(TrainingError, match="20 rollouts were played, and the plan says 32"):
        train_one(job)


def test_what_was_killed_is_kept_at_its_points_as_if_it_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right behind a point, when it is copied and nothing later is kept: it comes by it again."""
    whole, cut = (Job(SMALL, SHARE, SEED, embedded_model(), tmp_path / name) for name in ("whole", "cut"))
    train_one(whole)
    stepped = adapters._Keeper.stepped

    def killed(keeper: Any, step: Any) -> None:
        stepped(keeper, step)
        if step.step in (2, 3) and step.step not in died:
            died.append(step.step)
            raise KeyboardInterrupt

    died: list[int] = []
    monkeypatch.setattr(adapters._Keeper, "stepped", killed)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train_one(cut)
        assert not cut.done
    train_one(cut)
    assert cut.done
    assert died == [2, 3]
    for point in (0.25, 0.5):
        assert (cut.at(point) / ADAPTER_WEIGHTS).read_bytes() == (
            whole.at(point) / ADAPTER_WEIGHTS
        ).read_bytes()
    assert (cut.out / ADAPTER_WEIGHTS).read_bytes() == (whole.out / ADAPTER_WEIGHTS).read_bytes()
    assert not list(tmp_path.rglob("*.new"))
