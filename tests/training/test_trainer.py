"""A step is the one that the paper's formula gives, computed by hand; and trl still has what it overrides."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl")

from trl import GRPOTrainer

from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.training import grpo
from pytest_trace2evolve.training.checkpoints import Checkpoint, save_checkpoint
from pytest_trace2evolve.training.grpo import StepCallback, TrainingPlan, train
from pytest_trace2evolve.training.trainer import PRIVATE_METHODS, CustomerTrainer
from tests.training.toy import by_letters, toy_plan

pytestmark = pytest.mark.filterwarnings("ignore")


class Recorded:
    """The last step of a training: its trainer, its batch, rewards and gradients."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[dict[str, Any]] = []
        self.rewards: list[float] = []
        self.gradients: dict[str, torch.Tensor] = {}
        self.trainer: Any = None
        recorded = self

        class RecordingTrainer(CustomerTrainer):
            def _generate_and_score_completions(self, inputs: Any) -> Any:
                batch = super()._generate_and_score_completions(inputs)
                recorded.batches.append(dict(batch))
                recorded.rewards = [environment.reward() for environment in self.played]
                recorded.trainer = self
                return dict(batch)

        class RecordingCallback(StepCallback):
            def on_pre_optimizer_step(self, *given: Any, model: Any = None, **others: Any) -> None:
                super().on_pre_optimizer_step(*given, model=model, **others)
                recorded.gradients = {
                    name: weight.grad.clone()
                    for name, weight in model.named_parameters()
                    if weight.requires_grad
                }

        monkeypatch.setattr(grpo, "CustomerTrainer", RecordingTrainer)
        monkeypatch.setattr(grpo, "StepCallback", RecordingCallback)

    @property
    def batch(self) -> dict[str, Any]:
        return self.batches[-1]


def start_from(plan: TrainingPlan, weights: dict[str, torch.Tensor]) -> None:
    """Let a training begin with these weights."""
    save_checkpoint(plan.checkpoint_folder, Checkpoint(0, [], weights, {}), plan.full_identity)


def adapter(base: Path, rank: int = 4) -> dict[str, torch.Tensor]:
    """Weights of an adapter that changes the model: with zeros half of the gradients would be zero."""
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
    from transformers import AutoModelForCausalLM

    torch.manual_seed(5)
    model: Any = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    weights = get_peft_model_state_dict(model)
    return {name: one + 0.05 * torch.randn_like(one) for name, one in weights.items()}


def by_hand(base: Path, weights: dict[str, torch.Tensor]) -> Any:
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
    from transformers import AutoModelForCausalLM

    model: Any = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    set_peft_model_state_dict(model, weights)
    return model.eval()


def rows(batch: dict[str, Any]) -> list[tuple[list[int], list[int], list[int]]]:
    """Prompt, answer and the agent's own tokens of each rollout, without padding."""
    found = []
    for row in range(len(batch["advantages"])):
        kept = batch["completion_mask"][row].bool()
        found.append(
            (
                batch["prompt_ids"][row][batch["prompt_mask"][row].bool()].tolist(),
                batch["completion_ids"][row][kept].tolist(),
                batch["tool_mask"][row][kept].tolist(),
            )
        )
    return found


def logps_by_hand(model: Any, prompt: list[int], answer: list[int], temperature: float) -> torch.Tensor:
    logits = model(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1] / temperature
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(answer).unsqueeze(-1)).squeeze(-1)


def advantages_by_hand(rewards: list[float], size: int) -> list[float]:
    found = []
    for first in range(0, len(rewards), size):
        group = torch.tensor(rewards[first : first + size])
        found += ((group - group.mean()) / (group.std() + 1e-4)).tolist()
    return found


def k3(now: torch.Tensor, base: torch.Tensor, own: list[int]) -> torch.Tensor:
    """An estimate of the divergence from the base, token by token of the agent's own."""
    return (torch.exp(base - now) - (base - now) - 1) * torch.tensor(own)


def loss_by_hand(
    kind: str,
    logps: list[torch.Tensor],
    olds: list[torch.Tensor],
    owns: list[list[int]],
    advantages: list[float],
    bases: list[torch.Tensor] | None = None,
    beta: float = 0.0,
) -> torch.Tensor:
    """−min(ratio · A, clip(ratio, 0.8, 1.28) · A) + beta · ratio · k3, averaged over the agent's own tokens.

    The ratio is 1 at the first pass over a step, and makes the gradient that of the divergence all the same.
    """
    each = []
    for row, (now, old, own, advantage) in enumerate(zip(logps, olds, owns, advantages, strict=True)):
        ratio = torch.exp(now - old)
        value = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
        if bases is not None:
            value = value + beta * ratio * k3(now, bases[row], own)
        each.append(value * torch.tensor(own))
    tokens = [sum(own) for own in owns]
    if kind == "grpo":
        return torch.stack([one.sum() / count for one, count in zip(each, tokens, strict=True)]).mean()
    return torch.stack([one.sum() for one in each]).sum() / sum(tokens)


@pytest.mark.parametrize(
    ("kind", "shared", "temperature", "beta", "backward"),
    [
        ("dapo", True, 0.9, 0.0, 0),
        ("grpo", True, 1.0, 0.0, 0),
        ("dapo", False, 1.0, 0.0, 0),
        ("dapo", True, 0.9, 0.2, 0),
        ("dapo", False, 1.0, 0.2, 2),
    ],
)
def test_a_step_is_the_one_computed_by_hand(
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    shared: bool,
    temperature: float,
    beta: float,
    backward: int,
) -> None:
    settings = {"loss": kind, "shared": shared, "temperature": temperature, "beta": beta}
    more = {"backward": backward, "redraws": 0, "clip_norm": 1e6}
    plan = toy_plan(base, tmp_path / "kept", steps=1, **settings, **more)
    weights = adapter(base)
    start_from(plan, weights)
    # Without a limit it does not matter whether the hook runs before or after trl clips the gradient.
    seen = Recorded(monkeypatch)
    done = train(plan)

    model = by_hand(base, weights)
    parts = rows(seen.batch)
    owns = [own for _, _, own in parts]
    assert any(0 in own and own[-1] == 1 for own in owns), "tools' and customer's tokens stand between"
    logps = [logps_by_hand(model, prompt, answer, temperature) for prompt, answer, _ in parts]
    # trl shuffles rows behind this hook, so the batch has the order of the environments.
    advantages = advantages_by_hand(seen.rewards, plan.recipe.rollouts)
    assert len({round(one, 4) for one in advantages}) > 2, "rewards differ"
    assert seen.batch["advantages"].tolist() == pytest.approx(advantages, abs=1e-5)
    with torch.no_grad(), model.disable_adapter():
        bases = [logps_by_hand(model, prompt, answer, temperature) for prompt, answer, _ in parts]
    differences = [
        float(k3(now, other, own).sum()) for now, other, own in zip(logps, bases, owns, strict=True)
    ]
    assert done.curve[0]["kl"] == pytest.approx(sum(differences) / sum(map(sum, owns)), rel=1e-3)
    loss = loss_by_hand(kind, logps, [one.detach() for one in logps], owns, advantages, bases, beta)
    loss.backward()
    pure = loss_by_hand(kind, logps, [one.detach() for one in logps], owns, advantages)
    assert (abs(float(loss.detach()) - float(pure.detach())) > 1e-5) == (beta > 0), "the divergence counts"
    assert done.curve[0]["loss"] == pytest.approx(float(loss.detach()), abs=1e-6)
    expected = dict(model.named_parameters())
    assert seen.gradients.keys() == {name for name, one in expected.items() if one.requires_grad}
    for name, gradient in seen.gradients.items():
        torch.testing.assert_close(gradient, expected[name].grad, atol=2e-6, rtol=2e-4, msg=name)
    optimizer = torch.optim.AdamW(
        [one for one in model.parameters() if one.requires_grad], lr=plan.recipe.rate, weight_decay=0.0
    )
    optimizer.step()
    # AdamW's first step is the gradient's sign: where that is next to nothing, rounding decides.
    clear = [name for name, one in seen.gradients.items() if bool((one.abs() > 1e-5).all())]
    assert clear
    trained = dict(done.model.named_parameters())
    for name in clear:
        torch.testing.assert_close(trained[name], expected[name], atol=1e-4, rtol=1e-3, msg=name)


def test_groups_of_equal_rewards_are_replaced_and_teach_nothing(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight times 0.2 has another mean than 0.2 in float32, and counts as equal all the same."""

    def worth(trace: Sequence[Message]) -> float:
        return by_letters(trace) if "W4" in str(trace[0].content) else 0.2

    plan = toy_plan(base, tmp_path / "kept", worth, steps=4, groups=3, rollouts=8, redraws=2, kl_every=0)
    seen = Recorded(monkeypatch)
    done = train(plan)
    differing = []
    for batch, step in zip(seen.batches, done.curve, strict=True):
        groups = batch["advantages"].reshape(3, 8).abs().amax(dim=1)
        assert set((groups > 0.01).tolist()) == set((groups > 0).tolist()), "all or nothing"
        differing.append(int((groups > 0).sum()))
        played = step["rollouts"] // 8
        assert played > 3, "groups were replaced"
        assert step["informative"] >= differing[-1] / played > 0 or differing[-1] == 0
    assert 0 < sum(differing) < 12


def test_ratios_are_clipped_and_the_divergence_is_that_from_the_base(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = toy_plan(base, tmp_path / "kept", steps=1, redraws=0, rate=1e-9)
    weights = adapter(base)
    start_from(plan, weights)
    seen = Recorded(monkeypatch)
    done = train(plan)
    model = by_hand(base, weights)
    parts = rows(seen.batch)
    owns = [own for _, _, own in parts]
    with torch.no_grad():
        logps = [logps_by_hand(model, prompt, answer, 1.0) for prompt, answer, _ in parts]
        with model.disable_adapter():
            others = [logps_by_hand(model, prompt, answer, 1.0) for prompt, answer, _ in parts]
    # Old log-probabilities far enough away that both ends of the clipping are reached.
    olds = [now + 0.5 * torch.sin(torch.arange(len(now)) * 2.0) for now in logps]
    wide = torch.nn.utils.rnn.pad_sequence(olds, batch_first=True)
    trained = {name: one for name, one in seen.trainer.model.named_parameters() if one.requires_grad}
    for one in trained.values():
        one.grad = None
    loss = seen.trainer.compute_loss(seen.trainer.model, {**seen.batch, "old_per_token_logps": wide})
    loss.backward()
    advantages = seen.batch["advantages"].tolist()
    alive = [logps_by_hand(model, prompt, answer, 1.0) for prompt, answer, _ in parts]
    clipped = loss_by_hand("dapo", alive, olds, owns, advantages)
    clipped.backward()
    free = loss_by_hand("dapo", logps, logps, owns, advantages)
    assert float(loss.detach()) == pytest.approx(float(clipped.detach()), abs=1e-5)
    assert abs(float(clipped.detach()) - float(free)) > 1e-3, "the ratios count"
    expected = dict(model.named_parameters())
    for name, one in trained.items():
        assert one.grad is not None
        torch.testing.assert_close(one.grad, expected[name].grad, atol=2e-6, rtol=2e-4, msg=name)
    differences = [
        float(k3(now, other, own).sum()) for now, other, own in zip(logps, others, owns, strict=True)
    ]
    divergence = sum(differences) / sum(map(sum, owns))
    assert divergence > 1e-4
    assert done.curve[0]["kl"] == pytest.approx(divergence, rel=1e-3)


# What is used of trl


@pytest.mark.parametrize("name", PRIVATE_METHODS)
def test_the_private_methods_that_are_used_have_their_parameters(name: str) -> None:
    parameters = tuple(inspect.signature(getattr(GRPOTrainer, name)).parameters)
    assert parameters == ("self", *PRIVATE_METHODS[name]), f"trl has changed {name}: read it, then fix ours"


def test_what_the_trainer_reads_of_trl_is_set_there() -> None:
    source = inspect.getsource(GRPOTrainer)
    for name in ("self._tokenizer", "self.eos_token_ids"):
        assert f"{name} = " in source, f"trl sets no {name} any more"
    assert '"tool_mask"' in source
    assert 'extra_fields.pop("env_mask"' in source
    assert 'output["old_per_token_logps"]' in source
