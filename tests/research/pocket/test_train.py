"""Training the pocket model: its loss, its initial weights, and trainings that are interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from research.pocket.lessons import Encoded
from research.pocket.recipe import Recipe, Size, Stage

if TYPE_CHECKING:
    import torch

TINY = Recipe(
    seed=3,
    stages=(
        Stage(7, (1.0, 0.5), whole_every=0, context=0.35),
        Stage(7, (0.5, 0.3)),
        Stage(6, (0.3, 0.1), whole_every=1),
    ),
    warm=2,
    threads=1,
    size=Size(width=32, layers=2, heads=4, inner=32),
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from research.pocket.tokenizer import build_tokenizer

    return build_tokenizer([f"{number:03}" for number in range(1000)], 800)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def groups(step: int, stage: Stage) -> list[Encoded]:
    """Three dialogues with a common beginning."""
    import torch

    random = torch.Generator().manual_seed(step)
    start = torch.randint(3, 300, (9 if stage.whole_every == 1 else 3,), generator=random).tolist()
    tails = [torch.randint(3, 300, (length,), generator=random).tolist() for length in (5, 8, 6)]
    return [
        Encoded(start + tail, [0] * len(start) + [3.0, 0] * (len(tail) // 2) + [1] * (len(tail) % 2))
        for tail in tails
    ]


def weights_of(network: Any) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in network.named_parameters()}


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(value.equal(second[name]) for name, value in first.items())


@pytest.mark.parametrize("min_shared", [1, 100])
def test_loss_of_a_group_is_that_of_its_whole_dialogues(tokenizer: Any, min_shared: int) -> None:
    """Whether their beginning is computed once or with each."""
    import torch

    from research.pocket.network import build_network
    from research.pocket.train import CONTEXT_WEIGHT, common_length, group_loss

    torch.manual_seed(1)
    network = build_network(TINY.size, tokenizer)
    group = groups(0, TINY.stages[-1])
    total, weight = group_loss(network, group, 1.0, min_shared=min_shared)
    (total / weight).backward()
    found = {name: parameter.grad.clone() for name, parameter in network.named_parameters()}
    network.zero_grad()
    start = common_length(group) if min_shared == 1 else 1
    expected, weights = torch.zeros(()), 0.0
    for dialogue in group:
        logits = network(torch.tensor([dialogue.ids])).logits[0, start - 1 : -1]
        targets = torch.tensor(dialogue.ids[start:])
        losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
        own = torch.tensor([float(weight or CONTEXT_WEIGHT) for weight in dialogue.weights[start:]])
        expected = expected + (losses * own).sum()
        weights += float(own.sum())
    assert float(weight) == pytest.approx(weights)
    assert float(total.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    (expected / weights).backward()
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-5, rtol=1e-3)


def test_equal_seeds_give_equal_weights(tokenizer: Any, tmp_path: Path) -> None:
    from research.pocket.train import train

    first, progress = train(TINY, groups, tokenizer, tmp_path / "a")
    again, _ = train(TINY, groups, tokenizer, tmp_path / "b")
    other, _ = train(replace(TINY, seed=4), groups, tokenizer, tmp_path / "c")
    assert equal(weights_of(first), weights_of(again))
    assert not equal(weights_of(first), weights_of(other))
    assert progress.step == len(progress.losses) == TINY.steps
    dialogues = [dialogue for step in range(TINY.steps) for dialogue in groups(step, TINY.at(step)[0])]
    assert progress.tokens == sum(len(dialogue.ids) for dialogue in dialogues)


@pytest.mark.parametrize("interrupted_at", [1, 13])
def test_a_resumed_training_ends_with_the_same_weights(
    tokenizer: Any, tmp_path: Path, interrupted_at: int
) -> None:
    from research.pocket.train import Progress, train

    whole, _ = train(TINY, groups, tokenizer, tmp_path / "whole", keep_every=5)

    def interrupt(progress: Progress) -> None:
        if progress.step == interrupted_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(TINY, groups, tokenizer, tmp_path / "cut", on_step=interrupt, keep_every=5)
    cut, progress = train(TINY, groups, tokenizer, tmp_path / "cut", keep_every=5)
    assert equal(weights_of(whole), weights_of(cut))
    assert progress.step == len(progress.losses) == TINY.steps
