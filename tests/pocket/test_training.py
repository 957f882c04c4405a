"""Training the pocket model: its loss, its beginning, and runs that are interrupted."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.errors import ConfigError
from research.pocket import loop
from research.pocket.loop import Encoded, common_beginning, group_loss
from research.pocket.network import Size, build_network
from research.pocket.recipe import COURSE, Prompt, Recipe, Stage
from research.pocket.tokenizer import build_tokenizer
from research.pocket.train import UNFINISHED, Progress, forget, train

STAGES = (
    Stage(2, Prompt.NONE, (1.0, 0.5), context=0.35),
    Stage(2, Prompt.RULES, (0.5, 0.3)),
    Stage(2, Prompt.WHOLE, (0.3, 0.1)),
)
TINY = Recipe(seed=3, stages=STAGES, warm=2, threads=1, size=Size(width=32, layers=2, heads=4, inner=32))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer([f"{number:03}" for number in range(1000)], 800)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def groups(step: int, stage: Stage) -> list[Encoded]:
    """Three dialogues that begin alike."""
    random = torch.Generator().manual_seed(step)
    start = torch.randint(3, 300, (9 if stage.prompt is Prompt.WHOLE else 3,), generator=random).tolist()
    tails = [torch.randint(3, 300, (length,), generator=random).tolist() for length in (5, 8, 6)]
    return [
        Encoded(start + tail, [0] * len(start) + [3.0, 0] * (len(tail) // 2) + [1] * (len(tail) % 2))
        for tail in tails
    ]


@pytest.mark.parametrize("shared", [1, 100])
@pytest.mark.parametrize("together", [2, 8])
def test_a_groups_loss_is_that_of_its_dialogues_read_whole(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, shared: int, together: int
) -> None:
    """Whether their beginning is read once or with each, and however many are read side by side."""
    monkeypatch.setattr(loop, "SHARED_LEAST", shared)
    monkeypatch.setattr(loop, "TOGETHER", together)
    torch.manual_seed(1)
    network = build_network(TINY.size, tokenizer)
    group = groups(0, STAGES[-1])
    total, weight = group_loss(network, group, tokenizer.pad_token_id, 1.0)
    (total / weight).backward()
    found = {name: one.grad.clone() for name, one in network.named_parameters()}
    network.zero_grad()
    start = common_beginning(group) if shared == 1 else 1
    expected, weights = torch.zeros(()), 0.0
    for one in group:
        logits = network(torch.tensor([one.ids])).logits[0, start - 1 : -1]
        losses = torch.nn.functional.cross_entropy(logits, torch.tensor(one.ids[start:]), reduction="none")
        own = torch.tensor([float(mine or loop.CONTEXT_WEIGHT) for mine in one.own[start:]])
        expected = expected + (losses * own).sum()
        weights += float(own.sum())
    assert float(weight) == pytest.approx(weights)
    assert float(total.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    (expected / weights).backward()
    for name, one in network.named_parameters():
        torch.testing.assert_close(found[name], one.grad, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize(
    ("group", "common"),
    [([[1, 2, 3, 4], [1, 2, 5]], 2), ([[1, 2, 3], [1, 2, 3]], 2), ([[1, 2], [3, 4]], 0), ([[1, 2, 3]], 2)],
)
def test_a_group_has_a_common_beginning(group: list[list[int]], common: int) -> None:
    assert common_beginning([Encoded(ids, [0] * len(ids)) for ids in group]) == common


def test_a_network_copies_before_it_has_learnt_anything(tokenizer: Any) -> None:
    torch.manual_seed(0)
    network = build_network(Size(), tokenizer)
    network.eval()
    seen = torch.stack([torch.randperm(380)[:200] + 3 for _ in range(8)])
    with torch.no_grad():
        found = network(torch.cat((seen, seen), dim=1)).logits[:, 200:-1].argmax(-1)
    assert (found == seen[:, 1:]).float().mean() > 0.95


def test_a_network_too_small_to_copy_is_refused(tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="two layers and four heads"):
        build_network(Size(width=32, layers=1, heads=4, inner=32), tokenizer)


def weights(network: Any) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in network.named_parameters()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_one_seed_gives_equal_weights_and_another_does_not(tokenizer: Any, tmp_path: Path) -> None:
    first, progress = train(TINY, groups, tokenizer, tmp_path / "a")
    again, _ = train(TINY, groups, tokenizer, tmp_path / "b")
    other, _ = train(Recipe(**{**TINY.__dict__, "seed": 4}), groups, tokenizer, tmp_path / "c")
    assert equal(weights(first), weights(again))
    assert not equal(weights(first), weights(other))
    assert progress.step == len(progress.losses) == TINY.steps
    assert progress.tokens == sum(len(one.ids) for step in range(6) for one in groups(step, TINY.at(step)[0]))


class KilledError(Exception):
    """Ends a training from within."""


@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_an_interrupted_training_ends_with_the_same_weights(tokenizer: Any, tmp_path: Path, at: int) -> None:
    whole, _ = train(TINY, groups, tokenizer, tmp_path / "whole", every=2)

    def told(progress: Progress) -> None:
        if progress.step == at:
            raise KilledError

    with pytest.raises(KilledError):
        train(TINY, groups, tokenizer, tmp_path / "cut", told=told, every=2)
    cut, progress = train(TINY, groups, tokenizer, tmp_path / "cut", every=2)
    assert equal(weights(whole), weights(cut))
    assert progress.step == len(progress.losses) == TINY.steps


def test_what_was_kept_last_counts_where_the_next_was_half_written(tokenizer: Any, tmp_path: Path) -> None:
    train(TINY, groups, tokenizer, tmp_path, every=2)
    kept = tmp_path / UNFINISHED
    kept.rename(tmp_path / f"{UNFINISHED}.old")
    (tmp_path / f"{UNFINISHED}.new").mkdir()
    steps: list[int] = []
    train(TINY, groups, tokenizer, tmp_path, told=lambda progress: steps.append(progress.step))
    assert steps == [], "all steps were made"
    assert kept.is_dir(), "it has its place again, which the next one takes once that is whole"
    kept.rename(tmp_path / f"{UNFINISHED}.old")
    forget(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_another_recipe_or_damage_is_refused_by_name(tokenizer: Any, tmp_path: Path) -> None:
    train(TINY, groups, tokenizer, tmp_path)
    kept = tmp_path / UNFINISHED
    with pytest.raises(ConfigError, match=r"unfinished: holds a training with other settings; .* remove"):
        train(TINY.shortened(5), groups, tokenizer, tmp_path)
    (kept / "optimizer.safetensors").write_bytes(b"no weights")
    with pytest.raises(
        ConfigError, match=r"unfinished: cannot be gone on with \(.*\); remove .* to begin anew"
    ):
        train(TINY, groups, tokenizer, tmp_path)
    state = json.loads((kept / "state.json").read_text())
    assert state["progress"]["step"] == TINY.steps, "nothing is lost by the refusal"


def test_a_training_that_comes_apart_says_so(tokenizer: Any, tmp_path: Path) -> None:
    wild = Recipe(**{**TINY.__dict__, "rate": 1e30})
    with pytest.raises(
        ConfigError, match=r"the loss of step \d is \w+: the training came apart; lower the rate"
    ):
        train(wild, groups, tokenizer, tmp_path)


def test_the_stages_follow_one_another() -> None:
    assert [TINY.at(step)[0] for step in range(6)] == [one for one in STAGES for _ in range(2)]
    with pytest.raises(IndexError, match="step 6 of 6"):
        TINY.at(6)


@given(st.integers(1, 9000))
def test_a_course_of_any_length_has_its_stages_in_proportion(steps: int) -> None:
    recipe = Recipe().shortened(steps)
    assert recipe.steps == steps
    for one, other in zip(recipe.stages, COURSE, strict=True):
        assert one.steps == pytest.approx(other.steps * steps / Recipe().steps, abs=1)


def test_rates_rise_once_and_go_on_a_line_within_a_stage() -> None:
    stages = (Stage(100, Prompt.NONE, (0.5, 0.25)), Stage(50, Prompt.RULES, (0.1, 0.0)))
    shares = [Recipe(stages=stages, warm=10).at(step)[1] for step in range(150)]
    assert shares[0] == pytest.approx(0.05)
    assert shares[50] == pytest.approx(0.375)
    assert shares[100] == pytest.approx(0.1)
    assert shares[125] == pytest.approx(0.05)


def test_others_words_are_learnt_from_as_the_stage_has_it(tokenizer: Any) -> None:
    network = build_network(TINY.size, tokenizer)
    group = groups(0, STAGES[-1])
    start = common_beginning(group)
    _, weight = group_loss(network, group, tokenizer.pad_token_id, 0.0)
    assert float(weight) == sum(sum(one.own[start:]) for one in group)
