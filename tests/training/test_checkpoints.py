"""Checkpoints are complete or absent, and of one training."""

from pathlib import Path

import pytest
import torch

from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.training.checkpoints import (
    Checkpoint,
    check_weights,
    load_checkpoint,
    save_checkpoint,
)

WEIGHTS = {"w": torch.ones(2)}


def test_a_half_written_checkpoint_is_never_loaded(tmp_path: Path) -> None:
    moments = {"0.exp_avg": torch.zeros(2)}
    save_checkpoint(tmp_path, Checkpoint(3, [{"step": 3}], WEIGHTS, moments), {"base": "a"})
    half = tmp_path / ".step-000004.new"
    half.mkdir()
    (half / "state.json").write_text("{")
    found = load_checkpoint(tmp_path, {"base": "a"})
    assert found is not None
    assert (found.step, found.curve) == (3, [{"step": 3}])
    save_checkpoint(tmp_path, Checkpoint(5, [], WEIGHTS, moments), {"base": "a"})
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-000005"], "older ones are removed"


def test_a_checkpoint_of_another_training_or_a_damaged_one_is_rejected_by_name(tmp_path: Path) -> None:
    save_checkpoint(
        tmp_path, Checkpoint(3, [], WEIGHTS, {}), {"recipe": {"rate": 0.1, "rank": 4}, "base": "a"}
    )
    for identity, difference in (
        ({"recipe": {"rate": 0.2, "rank": 4}, "base": "a"}, "recipe.rate 0.1, but 0.2 was requested"),
        ({"recipe": {"rate": 0.1, "rank": 4}, "base": "b"}, "base 'a', but 'b' was requested"),
    ):
        with pytest.raises(TrainingError) as error:
            load_checkpoint(tmp_path, identity)
        remedy = f"resume that run, or remove {tmp_path} to start again"
        assert str(error.value) == f"{tmp_path}: contains a training run with {difference}; {remedy}"
    (tmp_path / "step-000003" / "moments.safetensors").write_bytes(b"no weights")
    with pytest.raises(
        TrainingError, match=r"step-000003: cannot be resumed \(.*\); remove .* to start again"
    ):
        load_checkpoint(tmp_path, {"base": "a"})


def test_a_training_resumes_with_complete_weights_alone(tmp_path: Path) -> None:
    model = {"a.lora_A": torch.ones(2, 3), "a.lora_B": torch.ones(3, 2)}
    check_weights(tmp_path, Checkpoint(4, [], model, {}), model)
    for weights in (
        {"a.lora_A": torch.ones(2, 3)},
        {**model, "b": torch.ones(1)},
        {**model, "a.lora_B": torch.ones(3, 1)},
    ):
        with pytest.raises(TrainingError, match=r"its weights of step 4 have .* to start again"):
            check_weights(tmp_path, Checkpoint(4, [], weights, {}), model)
