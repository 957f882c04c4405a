"""Trainings: killed ones resume exactly, several processes train one adapter, and what ends one is said."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl")

from safetensors.torch import load_file
from trl import GRPOConfig, GRPOTrainer

from pytest_trace2evolve.errors import MissingExtraError, TrainingError
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.serving.chat_format import ChatFormat
from pytest_trace2evolve.serving.engine import Engine, Job
from pytest_trace2evolve.serving.folder import read_adapter, read_model
from pytest_trace2evolve.serving.loading import LoadedModel
from pytest_trace2evolve.serving.request import ChatRequest
from pytest_trace2evolve.training import grpo
from pytest_trace2evolve.training.checkpoints import load_checkpoint
from pytest_trace2evolve.training.grpo import (
    BEST_FILE,
    StepCallback,
    train,
    vllm_settings,
)
from pytest_trace2evolve.training.recipe import DrawingBackend, Recipe, VllmSettings
from pytest_trace2evolve.training.sampler import EngineSampler, MergedModel, OnAnswer
from pytest_trace2evolve.training.train import write_weights
from pytest_trace2evolve.training.trainer import CustomerTrainer
from tests.patience import HANG_SECONDS
from tests.tiny_model import TOOLS, dialogue
from tests.training.toy import KILLED, by_letters, toy_plan

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.filterwarnings("ignore")


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    from peft import get_peft_model_state_dict

    return {name: weight.detach().clone() for name, weight in get_peft_model_state_dict(model).items()}


def assert_equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], atol=0, rtol=0, msg=name)


KILLS = 2


@pytest.fixture(scope="module")
def trained(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the result of two processes in `together`, and a killed training in `killed`."""
    folder = tmp_path_factory.mktemp("processes")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.training.toy", base, folder, str(KILLS)],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")]),
            "TRL_EXPERIMENTAL_SILENCE": "1",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    (folder / "reached").write_text(done.stdout)
    return folder


def test_a_killed_training_ends_with_the_weights_of_one_that_was_not(
    trained: Path, base: Path, tmp_path: Path
) -> None:
    reached = [int(line) for line in (trained / "reached").read_text().split()]
    assert len(reached) == KILLS
    plan = toy_plan(base, trained / "killed", **KILLED)
    checkpoint = load_checkpoint(plan.checkpoint_folder, plan.full_identity)
    assert checkpoint is not None
    assert checkpoint.step >= max(reached) - 1, "at most the running step is lost"
    done, whole = train(plan), train(toy_plan(base, tmp_path / "whole", **KILLED))
    assert_equal(weights_of(whole.model), weights_of(done.model))
    names = ("step", "reward", "informative", "rollouts", "loss")
    assert [[step[name] for name in names] for step in done.curve] == [
        [step[name] for name in names] for step in whole.curve
    ]
    pickles = (".bin", ".pt", ".pth", ".pkl")
    assert not [file for file in plan.checkpoint_folder.rglob("*") if file.suffix in pickles]


def test_two_processes_train_one_adapter(trained: Path) -> None:
    files = [trained / "together" / f"rank-{rank}.json" for rank in (0, 1)]
    first, second = (json.loads(file.read_text()) for file in files)
    assert (first["writes"], second["writes"]) == (True, False)
    assert first["weights"] == second["weights"]
    names = ("reward", "informative", "rollouts", "loss", "kl", "tokens")
    curves = [[{name: step[name] for name in names} for step in rank["curve"]] for rank in (first, second)]
    assert curves[0] == curves[1]
    assert all(step["rollouts"] >= 16 and step["rollouts"] % 8 == 0 for step in first["curve"])
    assert first["curve"][1]["kl"] > 0


def test_no_group_is_cut(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(TrainingError) as error:
        train(toy_plan(base, tmp_path, groups=3))
    assert str(error.value) == (
        "3 groups per step cannot be distributed over 2 processes, because a group is not split; set "
        "groups to a multiple of 2"
    )


# Other ways to draw


def test_transformers_can_draw_instead_of_the_engine(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[Any] = []

    class Recording(CustomerTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            batch = super()._generate_and_score_completions(inputs)
            batches.append({"texts": [list(one.trace) for one in self.played], **batch})
            return batch

    monkeypatch.setattr(grpo, "CustomerTrainer", Recording)
    done = train(toy_plan(base, tmp_path / "kept", steps=1, redraws=0, drawing=DrawingBackend.TRANSFORMERS))
    assert done.curve[0]["rollouts"] == 8
    [batch] = batches
    users = [sum(message.role == "user" for message in trace) for trace in batch["texts"]]
    assert 2 in users, "the customer answered, and the rollout continued"
    for row, trace in enumerate(batch["texts"]):
        own = batch["completion_mask"][row] * batch["tool_mask"][row]
        stretches = int((own[1:] > own[:-1]).sum()) + 1
        assert stretches == sum(message.role == "assistant" for message in trace)


def test_vllm_gets_the_recipes_settings_and_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(drawing=DrawingBackend.VLLM_COLOCATE)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(TrainingError) as error:
        vllm_settings(recipe)
    assert str(error.value) == (
        "drawing vllm-colocate needs a GPU, but torch finds none; use --preset pocket, or set drawing to "
        "transformers"
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    if find_spec("vllm") is None:
        with pytest.raises(MissingExtraError) as missing:
            vllm_settings(recipe)
        assert str(missing.value) == ("'vllm' is not installed; run: pip install 'pytest-trace2evolve[vllm]'")
    monkeypatch.setattr(grpo, "require", lambda module, extra: None)
    own = VllmSettings(server="http://127.0.0.1:8000", parallel=2, memory=0.5, length=9000)
    settings = vllm_settings(Recipe(drawing=DrawingBackend.VLLM_SERVER, vllm=own))
    assert settings == {
        "use_vllm": True,
        "vllm_mode": "server",
        "vllm_server_base_url": "http://127.0.0.1:8000",
        "vllm_tensor_parallel_size": 2,
        "vllm_gpu_memory_utilization": 0.5,
        "vllm_max_model_length": 9000,
    }
    assert settings.keys() <= {field.name for field in fields(GRPOConfig)}, "trl knows them"
    defaults = vllm_settings(recipe)
    assert (defaults["vllm_server_base_url"], defaults["vllm_max_model_length"]) == (None, None)
    assert vllm_settings(Recipe()) == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="vLLM draws on a GPU, and torch finds none")
def test_vllm_draws(base: Path, tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="vllm is not installed")
    done = train(toy_plan(base, tmp_path, steps=1, drawing=DrawingBackend.VLLM_COLOCATE, shared=False))
    assert done.curve[0]["rollouts"] >= 8


# A real architecture

CALL = '<tool_call>\n{"name": "look", "arguments": {"id": "W2"}}\n</tool_call><|im_end|>'


def test_qwen3_rolls_out_reads_calls_learns_is_saved_and_served(
    qwen3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peft import get_peft_model_state_dict
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    call: list[int] = AutoTokenizer.from_pretrained(qwen3)(CALL, add_special_tokens=False)["input_ids"]

    class CallingSampler(EngineSampler):
        """Every other rollout begins with the call: an untrained model would never make one."""

        def play(self, model: Any, requests: Sequence[Job], on_answer: OnAnswer, **options: Any) -> None:
            running = []
            for place, request in enumerate(requests):
                following = on_answer(place, list(call)) if place % 2 else request
                if following is not None:
                    running.append((place, following))
            super().play(
                model,
                [request for _, request in running],
                lambda row, answer: on_answer(running[row][0], answer),
                **options,
            )

    traces: list[list[Message]] = []

    def worth(trace: Sequence[Message]) -> float:
        traces.append(list(trace))
        return by_letters(trace)

    monkeypatch.setattr(grpo, "EngineSampler", CallingSampler)
    done = train(toy_plan(qwen3, tmp_path / "kept", worth, redraws=0, rollout_tokens=400))
    assert [step["rollouts"] for step in done.curve] == [8, 8]
    called = [trace for trace in traces if trace[1].tool_calls]
    assert called, "calls were read as calls"
    for trace in called:
        assert [(one.name, one.arguments) for one in trace[1].tool_calls or ()] == [("look", {"id": "W2"})]
        assert (trace[2].role, trace[2].content) == ("tool", "W2 is open")
        assert len(trace) > 3, "the rollout continued"
    changed = [
        name for name, one in done.model.named_parameters() if "lora_B" in name and one.abs().max() > 0
    ]
    assert len(changed) == 3 * 7, "all linear layers of all layers"
    folder = tmp_path / "adapter"
    folder.mkdir()
    write_weights(done.model, "qwen3", folder)
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == "qwen3"
    assert str(tmp_path) not in (folder / "adapter_config.json").read_text()
    read_adapter("trained", folder, read_model(qwen3))
    assert_equal(load_file(folder / "adapter_model.safetensors"), get_peft_model_state_dict(done.model))
    half = tmp_path / "half"
    half.mkdir()
    write_weights(done.model, "qwen3", half, 0.5)
    for name, tensor in load_file(half / "adapter_model.safetensors").items():
        share = 0.5 if ".lora_B." in name else 1.0
        assert torch.equal(tensor, share * get_peft_model_state_dict(done.model)[name])
    served, expected = served_logprobs(qwen3, folder), transformers_logprobs(qwen3, folder)
    assert len(served) == len(expected) == 12
    assert served == pytest.approx(expected, abs=1e-4)


def served_logprobs(base: Path, adapter: Path) -> list[float]:
    """Log-probabilities of an adapter's greedy answer by the server's engine."""
    folder = read_model(base)
    model = LoadedModel(folder, [read_adapter("trained", adapter, folder)], device="cpu")
    asked = {"model": "trained", "messages": dialogue(2), "tools": TOOLS}
    prompt = ChatFormat(model.tokenizer, model.end_tokens).prompt(
        ChatRequest.parse(json.dumps(asked).encode())
    )
    engine = Engine(model)
    try:
        job = Job(prompt.tokens, "trained", max_tokens=12, temperature=0.0, logprobs=0)
        return [token.logprob for token in engine.submit(job).result().logprobs]
    finally:
        engine.close()


def transformers_logprobs(base: Path, adapter: Path) -> list[float]:
    """The same by transformers and peft."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    prompt = AutoTokenizer.from_pretrained(base).apply_chat_template(
        dialogue(2), tools=TOOLS, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    model: Any = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).eval()
    with torch.no_grad():
        whole = model.generate(**prompt, do_sample=False, max_new_tokens=12)
        length = prompt["input_ids"].shape[1]
        table = torch.log_softmax(model(input_ids=whole).logits[0, length - 1 : -1], -1)
    found: list[float] = table.gather(-1, whole[0, length:].unsqueeze(-1)).squeeze(-1).tolist()
    return found


# What ends a training


def message(plan: Any, **options: Any) -> str:
    with pytest.raises(TrainingError) as error:
        train(plan, **options)
    return str(error.value)


def test_rewards_that_never_differ_end_it_each_time(base: Path, tmp_path: Path) -> None:
    steps: list[int] = []
    plan = toy_plan(base, tmp_path, lambda trace: 0.2, steps=2, patience=2, kl_every=0, rollouts=8)
    for _ in range(2):
        assert message(plan, on_step=lambda stats: steps.append(stats.step)) == (
            "step 2: so far, the rewards differed in no group (mean reward 0.20), so there is nothing to "
            "learn from; "
            "calibrate the environment, or change its difficulty"
        )
    assert steps == [1, 2], "no step is made from the checkpoint"


def test_a_training_whose_rewards_fall_keeps_the_best_weights(base: Path, tmp_path: Path) -> None:
    """The worth of all texts falls after three steps: the training ends, also when it is resumed."""
    said = itertools.count()

    def falling(trace: Sequence[Message]) -> float:
        return by_letters(trace) if next(said) < 60 else by_letters(trace) / 100

    plan = toy_plan(base, tmp_path / "kept", falling, steps=20, redraws=0)
    done = train(plan)
    assert done.has_collapsed
    assert 3 < len(done.curve) < 20
    best = load_file(tmp_path / "kept" / BEST_FILE)
    assert_equal(weights_of(done.model), best)
    last = load_checkpoint(plan.checkpoint_folder, plan.full_identity)
    assert last is not None
    assert any(not torch.equal(last.weights[name], weight) for name, weight in best.items())
    resumed = train(plan)
    assert (resumed.has_collapsed, resumed.curve) == (True, done.curve)
    assert_equal(weights_of(resumed.model), best)


def test_an_infinite_gradient_ends_it_before_it_reaches_the_weights(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss can be finite while its gradient is not."""
    seen: list[torch.Tensor] = []
    check = StepCallback.on_pre_optimizer_step

    def broken(callback: StepCallback, *given: Any, model: Any = None, **others: Any) -> None:
        weights = [weight for weight in model.parameters() if weight.grad is not None]
        weights[-1].grad.view(-1)[0] = float("inf")
        seen[:] = [weights[-1], weights[-1].detach().clone()]
        check(callback, *given, model=model, **others)

    monkeypatch.setattr(StepCallback, "on_pre_optimizer_step", broken)
    assert message(toy_plan(base, tmp_path, steps=2)) == (
        "step 1: the gradient is not finite, so the training diverged; lower the rate"
    )
    assert torch.equal(*seen)


def test_a_loss_that_is_not_finite_ends_it_before_the_weights_change(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    compute = GRPOTrainer.compute_loss

    def broken(trainer: Any, *given: object, **named: object) -> object:
        loss = compute(trainer, *given, **named)
        return loss * float("nan") if trainer.step == 2 else loss

    monkeypatch.setattr(GRPOTrainer, "compute_loss", broken)
    assert message(toy_plan(base, tmp_path, steps=4)) == (
        "step 3: the loss is nan, so the training diverged; lower the rate"
    )
    kept = load_file(tmp_path / "step-000002" / "adapter.safetensors")
    assert all(bool(weight.isfinite().all()) for weight in kept.values())


def test_a_model_that_returns_nan_draws_nothing(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(model: MergedModel, tokens: torch.Tensor, *others: object) -> torch.Tensor:
        raise RuntimeError("the model returned NaN")

    monkeypatch.setattr(MergedModel, "forward", broken)
    assert message(toy_plan(base, tmp_path, steps=1)) == (
        "answers cannot be drawn: RuntimeError: the model returned NaN; lower the rate if the model "
        "returns NaN, or groups or rollouts if memory is insufficient"
    )
