"""Training the pocket model: its loss, its initial weights, and trainings that are interrupted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.errors import ConfigError
from research.pocket.lessons import Encoded
from research.pocket.recipe import STAGES, Recipe, Size, Stage

if TYPE_CHECKING:
    import torch

TINY = Recipe(
    seed=3,
    stages=(
        Stage(2, (1.0, 0.5), whole_every=0, context=0.35),
        Stage(2, (0.5, 0.3)),
        Stage(2, (0.3, 0.1), whole_every=1),
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


@pytest.mark.parametrize(("min_shared", "batch"), [(1, 2), (1, 8), (100, 2)])
def test_loss_of_a_group_is_that_of_its_whole_dialogues(tokenizer: Any, min_shared: int, batch: int) -> None:
    """Whether their beginning is computed once or with each, and in batches of any size."""
    import torch

    from research.pocket.network import build_network
    from research.pocket.train import CONTEXT_WEIGHT, common_length, group_loss

    torch.manual_seed(1)
    network = build_network(TINY.size, tokenizer)
    group = groups(0, TINY.stages[-1])
    total, weight = group_loss(
        network, group, tokenizer.pad_token_id, 1.0, min_shared=min_shared, batch=batch
    )
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


@pytest.mark.parametrize(
    ("group", "common"),
    [([[1, 2, 3, 4], [1, 2, 5]], 2), ([[1, 2, 3], [1, 2, 3]], 2), ([[1, 2], [3, 4]], 0), ([[1, 2, 3]], 2)],
)
def test_common_length_of_a_group(group: list[list[int]], common: int) -> None:
    from research.pocket.train import common_length

    assert common_length([Encoded(ids, [0] * len(ids)) for ids in group]) == common


def test_stage_sets_the_weight_of_tokens_that_are_not_the_agents(tokenizer: Any) -> None:
    from research.pocket.network import build_network
    from research.pocket.train import common_length, group_loss

    group = groups(0, TINY.stages[-1])
    _, weight = group_loss(build_network(TINY.size, tokenizer), group, tokenizer.pad_token_id, 0.0)
    assert float(weight) == sum(sum(dialogue.weights[common_length(group) :]) for dialogue in group)


def test_an_untrained_network_copies(tokenizer: Any) -> None:
    import torch

    from research.pocket.network import build_network

    torch.manual_seed(0)
    network = build_network(Size(), tokenizer)
    network.eval()
    seen = torch.stack([torch.randperm(380)[:200] + 3 for _ in range(8)])
    with torch.no_grad():
        found = network(torch.cat((seen, seen), dim=1)).logits[:, 200:-1].argmax(-1)
    assert (found == seen[:, 1:]).float().mean() > 0.95


def test_a_network_too_small_to_copy_is_rejected(tokenizer: Any) -> None:
    from research.pocket.network import build_network

    with pytest.raises(ValueError, match="two layers and four heads"):
        build_network(Size(width=32, layers=1, heads=4, inner=32), tokenizer)


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


@pytest.mark.parametrize("interrupted_at", [1, 3])
def test_a_resumed_training_ends_with_the_same_weights(
    tokenizer: Any, tmp_path: Path, interrupted_at: int
) -> None:
    from research.pocket.train import Progress, train

    whole, _ = train(TINY, groups, tokenizer, tmp_path / "whole", keep_every=2)

    def interrupt(progress: Progress) -> None:
        if progress.step == interrupted_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(TINY, groups, tokenizer, tmp_path / "cut", on_step=interrupt, keep_every=2)
    cut, progress = train(TINY, groups, tokenizer, tmp_path / "cut", keep_every=2)
    assert equal(weights_of(whole), weights_of(cut))
    assert progress.step == len(progress.losses) == TINY.steps


def test_the_mean_of_weights_is_saved(tokenizer: Any, tmp_path: Path) -> None:
    import safetensors.torch
    import torch

    from research.pocket.train import CHECKPOINT, train

    network, _ = train(TINY, groups, tokenizer, tmp_path)
    last = safetensors.torch.load_file(tmp_path / CHECKPOINT / "model.safetensors")
    means = safetensors.torch.load_file(tmp_path / CHECKPOINT / "averages.safetensors")
    assert equal(weights_of(network), means)
    assert not all(last[name].equal(means[name]) for name in last.keys() & means.keys())
    assert all(torch.isfinite(weight).all() for weight in means.values())


def test_a_training_continues_from_the_weights_of_a_folder(tokenizer: Any, tmp_path: Path) -> None:
    from research.pocket.train import train

    first, _ = train(TINY, groups, tokenizer, tmp_path / "first")
    first.save_pretrained(tmp_path / "first")
    still = replace(TINY, rate=0.0, matrix_rate=0.0)
    second, _ = train(still, groups, tokenizer, tmp_path / "second", start=tmp_path / "first")
    for name, weight in weights_of(first).items():
        assert weight.allclose(weights_of(second)[name], atol=1e-6), name
    recipe = TINY.continuing("digest")
    assert (recipe.start, recipe.steps, recipe.stages[0].context) == ("digest", TINY.steps, 0.0)


def test_the_last_complete_checkpoint_is_used(tokenizer: Any, tmp_path: Path) -> None:
    from research.pocket.train import CHECKPOINT, train

    train(TINY, groups, tokenizer, tmp_path, keep_every=2)
    checkpoint = tmp_path / CHECKPOINT
    checkpoint.rename(tmp_path / f"{CHECKPOINT}.old")
    (tmp_path / f"{CHECKPOINT}.new").mkdir()
    steps: list[int] = []
    train(TINY, groups, tokenizer, tmp_path, on_step=lambda progress: steps.append(progress.step))
    assert steps == [], "all steps were made"
    assert checkpoint.is_dir()


def test_a_checkpoint_of_another_recipe_or_a_damaged_one_is_rejected(tokenizer: Any, tmp_path: Path) -> None:
    from research.pocket.train import CHECKPOINT, train

    train(TINY, groups, tokenizer, tmp_path)
    checkpoint = tmp_path / CHECKPOINT
    with pytest.raises(ConfigError, match=r"unfinished: holds a training with other settings; .* remove"):
        train(TINY.resized(5), groups, tokenizer, tmp_path)
    (checkpoint / "optimizer.safetensors").write_bytes(b"no weights")
    with pytest.raises(ConfigError, match=r"unfinished: cannot be resumed \(.*\); remove .* to start again"):
        train(TINY, groups, tokenizer, tmp_path)
    state = json.loads((checkpoint / "state.json").read_text())
    assert state["progress"]["step"] == TINY.steps, "the checkpoint is unchanged"


def test_a_diverging_training_is_an_error(tokenizer: Any, tmp_path: Path) -> None:
    from research.pocket.train import train

    with pytest.raises(
        ConfigError, match=r"the loss of step \d is \w+: the training diverged; lower the rate"
    ):
        train(replace(TINY, rate=1e30), groups, tokenizer, tmp_path)


def test_stages_follow_one_another() -> None:
    assert [TINY.at(step)[0] for step in range(6)] == [stage for stage in TINY.stages for _ in range(2)]
    with pytest.raises(IndexError, match="step 6 of 6"):
        TINY.at(6)


@given(st.integers(1, 9000))
def test_a_resized_recipe_keeps_the_proportions_of_its_stages(steps: int) -> None:
    recipe = Recipe().resized(steps)
    assert recipe.steps == steps
    for stage, default in zip(recipe.stages, STAGES, strict=True):
        assert stage.steps == pytest.approx(default.steps * steps / Recipe().steps, abs=1)


def test_rates_rise_once_and_are_linear_within_a_stage() -> None:
    stages = (Stage(100, (0.5, 0.25)), Stage(50, (0.1, 0.0)))
    shares = [Recipe(stages=stages, warm=10).at(step)[1] for step in range(150)]
    assert shares[0] == pytest.approx(0.05)
    assert shares[50] == pytest.approx(0.375)
    assert shares[100] == pytest.approx(0.1)
    assert shares[125] == pytest.approx(0.05)
