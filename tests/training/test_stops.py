"""What ends a training, in one line."""

import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.serving.in_process import FoldedModel
from pytest_trace2evolve.training.run import Watch, train
from tests.training.toy import toy_plan

pytestmark = pytest.mark.filterwarnings("ignore")


def test_rewards_that_never_differ_end_it_whenever_it_is_asked(base: Path, tmp_path: Path) -> None:
    told: list[int] = []
    plan = toy_plan(base, tmp_path, lambda trace: 0.2, steps=2, patience=2, kl_every=0, rollouts=8)
    for _ in range(2):
        with pytest.raises(TrainingError) as error:
            train(plan, told=lambda step: told.append(step.step))
        assert str(error.value) == (
            "step 2: rewards differed in no group so far (mean reward 0.20): there is nothing to learn from; "
            "calibrate the environment, or change its difficulty"
        )
    assert told == [1, 2], "nothing is made of what was kept"


def test_top_rewards_do_not_end_it(base: Path, tmp_path: Path) -> None:
    done = train(toy_plan(base, tmp_path, lambda trace: 1.0, steps=3, patience=2, kl_every=0))
    assert [one["reward"] for one in done.curve] == [1.0] * 3
    assert [one["rollouts"] for one in done.curve] == [16] * 3, "drawn anew, as often as the recipe says"


def test_groups_that_each_have_one_reward_end_it(base: Path, tmp_path: Path) -> None:
    """All rollouts of a group are worth the same, and the next group's are worth something else."""

    def by_order(trace: Sequence[Message]) -> float:
        return int((trace[0].content or "")[-2]) / 10

    plan = toy_plan(base, tmp_path, by_order, steps=9, patience=3, kl_every=0, redraws=0)
    with pytest.raises(
        TrainingError, match=r"^step 3: rewards differed in no group so far \(mean reward 0\."
    ):
        train(plan)


def test_groups_that_differ_no_more_end_it(base: Path, tmp_path: Path) -> None:
    rewards, made = itertools.cycle([0.0, 0.8, 0.5]), [0]

    def at_first(trace: Sequence[Message]) -> float:
        return 0.2 if any(made) else next(rewards)

    plan = toy_plan(base, tmp_path, at_first, steps=9, patience=3, kl_every=0, redraws=0)
    with pytest.raises(TrainingError) as error:
        train(plan, told=lambda step: made.append(step.step))
    assert str(error.value) == (
        "step 4: rewards differed in 0.0% of the groups of 3 steps (mean reward 0.20): nothing is learnt any "
        "more; lower the rate, or change the difficulty"
    )


def test_a_gradient_that_is_no_number_ends_it_before_it_reaches_the_weights(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss can be finite where its gradient is not."""
    seen: list[torch.Tensor] = []
    before = Watch.on_pre_optimizer_step

    def broken(watch: Watch, *given: Any, model: Any = None, **others: Any) -> None:
        weights = [one for one in model.parameters() if one.grad is not None]
        weights[-1].grad.view(-1)[0] = float("inf")
        seen[:] = [weights[-1], weights[-1].detach().clone()]
        before(watch, *given, model=model, **others)

    monkeypatch.setattr(Watch, "on_pre_optimizer_step", broken)
    with pytest.raises(TrainingError) as error:
        train(toy_plan(base, tmp_path, steps=2))
    assert str(error.value) == ("step 1: the gradient is no number: the training came apart; lower the rate")
    assert torch.equal(*seen)


def test_a_reward_that_is_no_number_ends_it(base: Path, tmp_path: Path) -> None:
    rewards = itertools.chain([0.5, 0.2, float("inf")], itertools.repeat(0.2))
    with pytest.raises(TrainingError) as error:
        train(toy_plan(base, tmp_path, lambda trace: next(rewards), steps=1))
    assert str(error.value) == "step 1: environment 'toy' gave a reward of inf; mend its grade"


def test_layers_that_are_not_there_are_told(base: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError) as error:
        train(toy_plan(base, tmp_path, steps=1, targets=["q_porj"]))
    assert str(error.value).startswith(f"{base}: cannot be trained so: Target modules ")
    assert str(error.value).endswith("; change the recipe")


def test_a_model_without_numbers_draws_nothing(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(model: FoldedModel, tokens: torch.Tensor, *others: object) -> torch.Tensor:
        raise RuntimeError("the model gave no numbers")

    monkeypatch.setattr(FoldedModel, "forward", broken)
    with pytest.raises(TrainingError) as error:
        train(toy_plan(base, tmp_path, steps=1))
    assert str(error.value) == (
        "answers cannot be drawn: RuntimeError: the model gave no numbers; lower the rate where these are no "
        "numbers, and groups or rollouts where memory is short"
    )


def test_a_template_that_refuses_is_told(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "base"
    shutil.copytree(base, folder)
    template = folder / "chat_template.jinja"
    unkind = "{%- for one in messages if 'all well' in (one.content or '') %}{{ raise_exception('No.') }}"
    template.write_text(unkind + "{%- endfor %}" + template.read_text())
    with pytest.raises(TrainingError) as error:
        train(toy_plan(folder, tmp_path / "kept", steps=1))
    assert str(error.value).startswith("the base's chat template cannot write what follows an answer: ")
    assert str(error.value).endswith("No.; mend the template, or train another base")


def test_a_loss_that_is_no_number_ends_it_before_the_weights_change(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import trl
    from safetensors.torch import load_file

    before = trl.GRPOTrainer.compute_loss

    def broken(trainer: object, *given: object, **named: object) -> object:
        loss = before(trainer, *given, **named)
        return loss * float("nan") if trainer.number == 2 else loss  # type: ignore[attr-defined]  # ours

    monkeypatch.setattr(trl.GRPOTrainer, "compute_loss", broken)
    with pytest.raises(TrainingError) as error:
        train(toy_plan(base, tmp_path, steps=4))
    assert str(error.value) == "step 3: the loss is nan: the training came apart; lower the rate"
    kept = load_file(tmp_path / "step-000002" / "adapter.safetensors")
    assert all(bool(one.isfinite().all()) for one in kept.values())
