"""Trainings from the first step to an adapter that is served; killed ones go on as if nothing had been."""

import os
import subprocess
import sys
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from trl import GRPOConfig

from pytest_trace2evolve.errors import MissingExtraError, TrainingError
from pytest_trace2evolve.training import run
from pytest_trace2evolve.training.checkpoints import Kept, keep, last_kept
from pytest_trace2evolve.training.recipe import Drawing, Recipe, Vllm
from pytest_trace2evolve.training.run import train
from pytest_trace2evolve.training.trainer import CustomerTrainer
from tests.training.toy import toy_plan

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.filterwarnings("ignore")


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    from peft import get_peft_model_state_dict

    return {name: one.detach().clone() for name, one in get_peft_model_state_dict(model).items()}


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], atol=0, rtol=0, msg=name)


def test_a_training_that_is_killed_ends_with_the_weights_of_one_that_is_not(
    base: Path, tmp_path: Path
) -> None:
    steps = 8
    whole = train(toy_plan(base, tmp_path / "whole", steps=steps))
    folder = tmp_path / "killed"
    killed = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.training.toy", base, folder, str(steps), "3"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])},
        capture_output=True,
        text=True,
        check=True,
    )
    reached = max(map(int, killed.stdout.split()))
    assert len(killed.stdout.split()) == 3
    identity = toy_plan(base, folder, steps=steps)
    kept = last_kept(folder, {"recipe": identity.recipe.model_dump(mode="json"), **identity.identity})
    assert kept is not None
    assert kept.step >= reached - 1, "at most the step that was under way is lost"
    done = train(toy_plan(base, folder, steps=steps))
    assert_equal(weights_of(whole.model), weights_of(done.model))
    told = ("step", "reward", "informative", "rollouts", "loss")
    assert [[one[name] for name in told] for one in done.curve] == [
        [one[name] for name in told] for one in whole.curve
    ]
    assert not [one for one in folder.rglob("*") if one.suffix in (".bin", ".pt", ".pth", ".pkl")]


def test_what_is_half_written_is_never_loaded(tmp_path: Path) -> None:
    kept = Kept(3, [{"step": 3}], {"w": torch.ones(2)}, {"0.exp_avg": torch.zeros(2)})
    keep(tmp_path, kept, {"base": "a"})
    half = tmp_path / ".step-000004.new"
    half.mkdir()
    (half / "state.json").write_text("{")
    found = last_kept(tmp_path, {"base": "a"})
    assert found is not None
    assert (found.step, found.curve) == (3, [{"step": 3}])
    keep(tmp_path, Kept(5, [], kept.weights, kept.moments), {"base": "a"})
    assert [one.name for one in tmp_path.iterdir()] == ["step-000005"], "what is older is gone"


def test_a_keeping_of_another_training_or_a_damaged_one_is_refused_by_name(tmp_path: Path) -> None:
    kept = Kept(3, [], {"w": torch.ones(2)}, {})
    keep(tmp_path, kept, {"recipe": {"rate": 0.1, "rank": 4}, "base": "a"})
    mend = f"go on with that, or remove {tmp_path} to begin anew"
    with pytest.raises(TrainingError) as error:
        last_kept(tmp_path, {"recipe": {"rate": 0.2, "rank": 4}, "base": "a"})
    assert (
        str(error.value) == f"{tmp_path}: holds a training with recipe.rate 0.1, and 0.2 is asked for; {mend}"
    )
    with pytest.raises(
        TrainingError, match="holds a training with base 'a', and 'b' is asked for; go on with"
    ):
        last_kept(tmp_path, {"recipe": {"rate": 0.1, "rank": 4}, "base": "b"})
    (tmp_path / "step-000003" / "moments.safetensors").write_bytes(b"no weights")
    with pytest.raises(
        TrainingError, match=r"step-000003: cannot be gone on with \(.*\); remove .* to begin"
    ):
        last_kept(tmp_path, {"base": "a"})


def test_without_an_engine_transformers_draws_and_all_else_is_the_same(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[Any] = []
    before = CustomerTrainer._generate_and_score_completions

    def seen(trainer: Any, inputs: Any) -> Any:
        found = before(trainer, inputs)
        batches.append({"texts": [list(one._history()) for one in trainer.environments], **found})
        return found

    monkeypatch.setattr(CustomerTrainer, "_generate_and_score_completions", seen)
    plan = toy_plan(base, tmp_path / "kept", steps=1, redraws=0, drawing=Drawing.TRANSFORMERS)
    done = train(plan)
    assert done.curve[0]["rollouts"] == 8
    [batch] = batches
    said = [sum(one.role == "user" for one in trace) for trace in batch["texts"]]
    assert 2 in said, "the customer answered, and the rollout went on"
    for row, trace in enumerate(batch["texts"]):
        own = batch["completion_mask"][row] * batch["tool_mask"][row]
        edges = int((own[1:] > own[:-1]).sum()) + 1
        assert edges == sum(one.role == "assistant" for one in trace), "as many stretches as answers"


def test_vllm_wants_a_gpu(base: Path, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(TrainingError) as error:
        train(toy_plan(base, tmp_path, drawing=Drawing.VLLM_COLOCATE))
    assert str(error.value) == (
        "drawing vllm-colocate needs a GPU, and torch finds none; use --preset pocket, or set drawing to "
        "transformers"
    )


def test_vllm_is_reached_as_the_recipe_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(run, "require", lambda module, extra: None)
    own = Vllm(server="http://127.0.0.1:8000", parallel=2, memory=0.5, length=9000)
    told = run._vllm(Recipe(drawing=Drawing.VLLM_SERVER, vllm=own))
    assert told == {
        "use_vllm": True,
        "vllm_mode": "server",
        "vllm_server_base_url": "http://127.0.0.1:8000",
        "vllm_tensor_parallel_size": 2,
        "vllm_gpu_memory_utilization": 0.5,
        "vllm_max_model_length": 9000,
    }
    assert told.keys() <= {one.name for one in fields(GRPOConfig)}, "trl knows them"
    plain = run._vllm(Recipe(drawing=Drawing.VLLM_COLOCATE))
    assert (plain["vllm_mode"], plain["vllm_server_base_url"], plain["vllm_max_model_length"]) == (
        "colocate",
        None,
        None,
    )
    assert run._vllm(Recipe()) == {}


def test_vllm_wants_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("vllm") is not None:
        pytest.skip("vllm is installed")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(MissingExtraError) as error:
        run._vllm(Recipe(drawing=Drawing.VLLM_COLOCATE))
    assert str(error.value) == "'vllm' is not installed; run: pip install 'pytest-trace2evolve[vllm]'"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="vLLM draws on a GPU, and torch finds none")
def test_vllm_draws(base: Path, tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="vllm is not installed")
    done = train(toy_plan(base, tmp_path, steps=1, drawing=Drawing.VLLM_COLOCATE, shared=False))
    assert done.curve[0]["rollouts"] >= 8
