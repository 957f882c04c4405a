"""Answers drawn by the engine are those of the model in training, adapter and all."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from pytest_trace2evolve.serving.engine import Job
from pytest_trace2evolve.training.sampler import EngineSampler, MergedModel
from tests.tiny_model import TOOLS, conversations

pytestmark = pytest.mark.filterwarnings("ignore")


def model_and_tokenizer(base: Path) -> tuple[Any, Any]:
    return AutoModelForCausalLM.from_pretrained(base).eval(), AutoTokenizer.from_pretrained(base)


def greedy(model: Any, prompt: list[int], ends: int) -> list[int]:
    with torch.no_grad():
        whole = model.generate(
            input_ids=torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=12,
            eos_token_id=ends,
        )
    found: list[int] = whole[0, len(prompt) :].tolist()
    return found


def drawn(
    sampler: EngineSampler, model: Any, prompts: list[list[int]], *, weights_changed: bool
) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    requests = [Job(prompt, seed=1, max_tokens=12, temperature=1e-6) for prompt in prompts]
    sampler.play(
        model,
        requests,
        lambda place, answer: found.setdefault(place, answer) and None,
        weights_changed=weights_changed,
    )
    return [found[place] for place in range(len(prompts))]


def test_it_draws_from_the_weights_as_they_are_now(base: Path) -> None:
    network, tokenizer = model_and_tokenizer(base)
    prompts = [
        list(tokenizer.apply_chat_template(one, tools=TOOLS, add_generation_prompt=True)["input_ids"])
        for one in conversations()
    ]
    sampler = EngineSampler(network, frozenset({tokenizer.eos_token_id}))
    torch.manual_seed(0)
    model: Any = get_peft_model(
        network, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    )
    first = drawn(sampler, model, prompts, weights_changed=True)
    assert first == [greedy(model, one, tokenizer.eos_token_id) for one in prompts]
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.add_(0.1 * torch.randn_like(weight))
    assert drawn(sampler, model, prompts, weights_changed=False) == first, (
        "the weights stay until they are folded in again"
    )
    now = drawn(sampler, model, prompts, weights_changed=True)
    assert now == [greedy(model, one, tokenizer.eos_token_id) for one in prompts]
    assert now != first


def test_a_rollout_continues_with_its_answer_and_seeds_decide_what_is_drawn(base: Path) -> None:
    network, tokenizer = model_and_tokenizer(base)
    adapted: Any = get_peft_model(network, LoraConfig(r=4, target_modules="all-linear"))
    prompt = list(tokenizer("<|im_start|>user\nTell me.<|im_end|>\n<|im_start|>assistant\n")["input_ids"])

    def play(seed: int) -> list[list[int]]:
        sampler = EngineSampler(network, frozenset({tokenizer.eos_token_id}))
        said: list[list[int]] = []

        def on_answer(place: int, answer: list[int]) -> Job | None:
            said.append(answer)
            following = Job(prompt + answer, seed=seed + len(said), max_tokens=6, temperature=1.5)
            return following if len(said) < 3 else None

        first = Job(prompt, seed=seed, max_tokens=6, temperature=1.5)
        sampler.play(adapted, [first], on_answer, weights_changed=True)
        return said

    assert len(play(1)) == 3
    assert play(1) == play(1)
    assert play(1) != play(100)


def test_equal_rollouts_are_prefilled_once_and_draw_on_their_own(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each draws what it draws alone, in whichever company."""
    network, tokenizer = model_and_tokenizer(base)
    adapted: Any = get_peft_model(network, LoraConfig(r=4, target_modules="all-linear"))
    prompts = [
        list(tokenizer(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")["input_ids"])
        for text in ("Tell me.", "Look at W3.", "Tell me.")
    ]
    widths: list[int] = []
    forward = MergedModel.forward

    def recorded(model: MergedModel, tokens: torch.Tensor, *others: Any) -> torch.Tensor:
        widths.extend([tokens.numel()] if tokens.shape[1] > 1 else [])
        return forward(model, tokens, *others)

    monkeypatch.setattr(MergedModel, "forward", recorded)

    def play(seeds: list[int]) -> dict[int, list[int]]:
        sampler = EngineSampler(network, frozenset({tokenizer.eos_token_id}))
        answers: dict[int, list[int]] = {}
        jobs = [Job(prompts[seed % 3], seed=seed, max_tokens=8, temperature=1.5) for seed in seeds]

        def on_answer(place: int, answer: list[int]) -> Job | None:
            answers.setdefault(seeds[place], []).extend(answer)
            return None

        sampler.play(adapted, jobs, on_answer, weights_changed=True)
        return answers

    together = play(list(range(12)))
    assert sum(widths) < 3 * max(map(len, prompts)), "two prompts, however many rollouts they have"
    assert len({tuple(answer) for answer in together.values()}) > 6
    alone = {seed: play([seed])[seed] for seed in range(12)}
    assert together == alone
