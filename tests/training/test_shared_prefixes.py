"""Common beginnings are computed once, and values and gradients are those of each row by itself."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, MistralConfig, Qwen3Config

from pytest_trace2evolve.training.shared_prefixes import Rows, build_trees, can_share, shared_logps

ROWS = {0: (1, 2, 3, 4), 1: (1, 2, 5), 2: (1, 2, 3, 4), 3: (7,), 4: (1, 2, 3), 5: (1, 2, 5, 6, 7)}


@pytest.mark.parametrize("most", [1, 3, 6, 100])
def test_each_rollout_is_a_path_and_a_node_sees_what_stands_above_it(most: int) -> None:
    trees = list(build_trees(ROWS, most))
    assert sorted(number for tree in trees for number in tree.paths) == sorted(ROWS)
    for tree in trees:
        assert len(tree.tokens) <= most or len(tree.paths) == 1
        seen = torch.zeros_like(tree.visible)
        for number, path in tree.paths.items():
            assert tuple(tree.tokens[node] for node in path) == ROWS[number]
            assert [tree.depths[node] for node in path] == list(range(len(path)))
            for depth, node in enumerate(path):
                seen[node, path[: depth + 1]] = True
        assert torch.equal(tree.visible, seen)


def test_what_several_begin_with_alike_stands_there_once() -> None:
    (tree,) = build_trees(ROWS, 100)
    assert sorted(tree.tokens) == [1, 2, 3, 4, 5, 6, 7, 7]
    assert not list(build_trees({}, 100))


@pytest.mark.filterwarnings("ignore")
def test_values_and_gradients_are_those_of_whole_rows(base: Path) -> None:
    network: Any = AutoModelForCausalLM.from_pretrained(base).eval()
    generator = torch.Generator().manual_seed(4)
    first, other = torch.randint(5, 60, (2, 12), generator=generator).tolist()
    prompts = [(*first, 9), (*first, 9), (*first, 9), (*first[:6], *other), (*first, 9)]
    answers = [(11, 12, 13, 14), (11, 12, 15), (11, 12, 13, 14, 16, 17), (11, 12), (18, 19, 20)]
    wanted = torch.zeros((5, 6), dtype=torch.bool)
    for row, answer in enumerate(answers[:4]):
        wanted[row, : len(answer)] = True
    wanted[2, 1] = False
    weight = torch.randn(wanted.shape, generator=generator)
    found, spread = shared_logps(network, Rows(prompts, answers, wanted), 0.8, entropies=True)
    (found * weight).sum().backward()
    gradients = {name: one.grad.clone() for name, one in network.named_parameters()}
    network.zero_grad()
    alone, entropies = torch.zeros_like(weight), torch.zeros_like(weight)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        logits = network(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1] / 0.8
        table = torch.log_softmax(logits, -1)
        mine = table.gather(-1, torch.tensor(answer).unsqueeze(-1)).squeeze(-1)
        alone[row, : len(answer)] = mine * wanted[row, : len(answer)]
        entropies[row, : len(answer)] = -(table.exp() * table).sum(-1) * wanted[row, : len(answer)]
    (alone * weight).sum().backward()
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-5)
    assert spread is not None
    torch.testing.assert_close(spread, entropies.detach(), atol=1e-5, rtol=1e-5)
    for name, one in network.named_parameters():
        torch.testing.assert_close(gradients[name], one.grad, atol=1e-5, rtol=1e-3, msg=name)


@pytest.mark.parametrize(
    ("config", "may"),
    [
        (Qwen3Config(), True),
        (Qwen3Config(use_sliding_window=True, sliding_window=64, max_window_layers=0), False),
        (MistralConfig(sliding_window=64), False),
        (MistralConfig(sliding_window=None), True),
    ],
)
def test_beginnings_are_shared_where_all_layers_attend_to_everything(config: Any, may: bool) -> None:
    assert can_share(config) is may
