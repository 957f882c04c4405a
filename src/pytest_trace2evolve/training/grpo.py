"""Trains an adapter with GRPO from a recipe, and resumes from checkpoints."""

import contextlib
import gc
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import datasets
import torch
from peft import LoraConfig, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig

from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.serving.folder import ModelFolder
from pytest_trace2evolve.serving.loading import load_model, load_tokenizer, silenced_libraries
from pytest_trace2evolve.training.chat_encoding import ChatEncoder
from pytest_trace2evolve.training.checkpoints import (
    Checkpoint,
    check_weights,
    load_checkpoint,
    optimizer_tensors,
    restore_optimizer,
    save_checkpoint,
)
from pytest_trace2evolve.training.recipe import DrawingBackend, Recipe
from pytest_trace2evolve.training.rollouts import StepStats
from pytest_trace2evolve.training.sampler import EngineSampler
from pytest_trace2evolve.training.trainer import CustomerTrainer
from pytest_trace2evolve.utils.files import ScratchFolder
from pytest_trace2evolve.utils.optional import require

MIN_INFORMATIVE_SHARE = 0.05
"""Share of groups with differing rewards that a training run must exceed over the last `patience` steps."""

SOLVED_REWARD = 0.9
"""Mean reward at or above which equal rewards in a group count as success, not as failure to learn."""

FALL_STEPS, MAX_FALL = 4, 0.2
"""A training run ends if the mean reward of this many steps is this much lower than the best such mean."""

BEST_FILE = "best.safetensors"
"""The adapter's weights after the steps with the best mean reward, next to the checkpoints."""

FINAL_RATE_SHARE = 0.1
"""Share of the learning rate that the schedule would reach one step after the last."""


@dataclass(frozen=True)
class TrainingPlan:
    """The plan of a training run.

    Attributes:
        base: The base model.
        identity: Facts that, like the recipe, must be unchanged before a training run can resume.
        environments: Factories of environments, by name.
        encoder: Converts conversations to tokens.
        end_tokens: Tokens that end an answer.
        checkpoint_folder: The folder for checkpoints.
    """

    recipe: Recipe
    base: ModelFolder
    identity: Mapping[str, Any]
    environments: Mapping[str, Callable[[], Any]]
    encoder: ChatEncoder
    end_tokens: frozenset[int]
    checkpoint_folder: Path

    @property
    def full_identity(self) -> dict[str, Any]:
        """`identity` and the recipe, as checkpoints record them."""
        return {"recipe": self.recipe.model_dump(mode="json"), **self.identity}


@dataclass
class TrainingResult:
    """The result of a training run.

    Attributes:
        model: The `PeftModel`.
        curve: The `StepStats` of each step, as JSON.
        is_main_process: Whether this process, of several that train together, writes the result.
        has_collapsed: Whether rewards dropped, so that training ended early with the best weights before.
    """

    model: Any
    curve: list[dict[str, Any]]
    is_main_process: bool = True
    has_collapsed: bool = False

    @property
    def rollouts(self) -> int:
        """The number of rollouts that were played, including those of replaced groups."""
        return sum(int(step["rollouts"]) for step in self.curve)

    @property
    def seconds(self) -> float:
        """The duration of all steps together."""
        return sum(float(step["seconds"]["step"]) for step in self.curve)


class StepCallback(TrainerCallback):
    """Checks gradients, records each step, writes checkpoints and ends a training run that learns nothing.

    Args:
        recipe: The recipe of the training run.
        curve: The figures of earlier steps, to which each step is appended.
        on_step: Called after each step.
        save_step: Writes the checkpoint of a step.
        save_best: Writes the weights as the best so far.
    """

    def __init__(
        self,
        recipe: Recipe,
        curve: list[dict[str, Any]],
        on_step: Callable[[StepStats], None],
        save_step: Callable[[int], None],
        save_best: Callable[[], None],
    ) -> None:
        self._recipe, self._curve, self._on_step, self._save_step = recipe, curve, on_step, save_step
        self._save_best = save_best
        self._start_time, self._start_processor_time = time.perf_counter(), time.process_time()
        self.trainer: CustomerTrainer | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clocks."""
        self._start_time, self._start_processor_time = time.perf_counter(), time.process_time()

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Check the gradient before it reaches the weights.

        Raises:
            TrainingError: the gradient is not finite.
        """
        norms = [weight.grad.norm() for weight in model.parameters() if weight.grad is not None]
        if norms and not bool(torch.isfinite(torch.stack(norms)).all()):
            step = self._current_stats.step
            raise TrainingError(
                f"step {step}: the gradient is not finite, so the training diverged; lower the rate"
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the step.

        Raises:
            TrainingError: nothing is learned any more.
        """
        stats = self._current_stats
        stats.seconds["step"] = time.perf_counter() - self._start_time
        stats.seconds["processor"] = time.process_time() - self._start_processor_time
        self._curve.append({name: value for name, value in asdict(stats).items() if value is not None})
        self._on_step(stats)
        means = self._recent_means()
        if means and means[-1] == max(means):
            self._save_best()
        control.should_training_stop |= self.has_collapsed
        if (
            stats.step % self._recipe.keep_every == 0
            or stats.step == self._recipe.steps
            or self.has_collapsed
        ):
            self._save_step(stats.step)
        self.check_progress()

    @property
    def has_collapsed(self) -> bool:
        """Whether rewards dropped so far that training on would make the adapter worse."""
        means = self._recent_means()
        return bool(means) and means[-1] < max(means) - MAX_FALL

    def _recent_means(self) -> list[float]:
        """Return the mean reward of each `FALL_STEPS` steps in a row."""
        rewards = [float(step["reward"]) for step in self._curve]
        ends = range(FALL_STEPS, len(rewards) + 1)
        return [math.fsum(rewards[end - FALL_STEPS : end]) / FALL_STEPS for end in ends]

    @property
    def _current_stats(self) -> StepStats:
        assert self.trainer is not None
        return self.trainer.stats

    def check_progress(self) -> None:
        """Check that the last steps had something to learn from.

        Raises:
            TrainingError: the last steps had nothing to learn from.
        """
        recipe, recent_steps = self._recipe, self._curve[-self._recipe.patience :]
        if len(recent_steps) < recipe.patience:
            return
        informative_share = math.fsum(step["informative"] for step in recent_steps) / len(recent_steps)
        mean_reward = math.fsum(step["reward"] for step in recent_steps) / len(recent_steps)
        if mean_reward >= SOLVED_REWARD or informative_share > MIN_INFORMATIVE_SHARE:
            return
        step = recent_steps[-1]["step"]
        if not any(step["informative"] for step in self._curve):
            raise TrainingError(
                f"step {step}: so far, the rewards differed in no group (mean reward {mean_reward:.2f}), "
                "so there is nothing to learn from; calibrate the environment, or change its difficulty"
            )
        raise TrainingError(
            f"step {step}: rewards differed in {informative_share:.1%} of the groups of {recipe.patience} "
            "steps "
            f"(mean reward {mean_reward:.2f}), so nothing is learned any more; lower the rate, or change the "
            "difficulty"
        )


def train(plan: TrainingPlan, *, on_step: Callable[[StepStats], None] = lambda stats: None) -> TrainingResult:
    """Train an adapter, or resume its training from the checkpoints in `plan.checkpoint_folder`.

    Raises:
        MissingExtraError: vLLM is not installed and the recipe asks for it.
        TrainingError: nothing is learned, the training diverged, or the checkpoints belong to another run.
        ModelFolderError: the base cannot be loaded.
    """
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    datasets.disable_progress_bars()
    with silenced_libraries(), contextlib.closing(ScratchFolder()) as scratch:
        return _train(plan, scratch.path, on_step)


def _train(plan: TrainingPlan, scratch: Path, on_step: Callable[[StepStats], None]) -> TrainingResult:
    recipe = plan.recipe
    checkpoint = load_checkpoint(plan.checkpoint_folder, plan.full_identity)
    steps_done = checkpoint.step if checkpoint else 0
    curve = [dict(step) for step in checkpoint.curve] if checkpoint else []
    if recipe.threads:
        torch.set_num_threads(recipe.threads)

    def save_step(step: int) -> None:
        if trainer.accelerator.is_main_process:
            weights = get_peft_model_state_dict(trainer.accelerator.unwrap_model(trainer.model))
            moments = optimizer_tensors(trainer.optimizer)
            save_checkpoint(
                plan.checkpoint_folder, Checkpoint(step, curve, weights, moments), plan.full_identity
            )
        trainer.accelerator.wait_for_everyone()

    def save_best() -> None:
        if trainer.accelerator.is_main_process:
            weights = get_peft_model_state_dict(trainer.accelerator.unwrap_model(trainer.model))
            save_file({name: tensor.contiguous() for name, tensor in weights.items()}, best_path)

    best_path = plan.checkpoint_folder / BEST_FILE
    callback = StepCallback(recipe, curve, on_step, save_step, save_best)
    callback.check_progress()  # a run that had stopped learning before the checkpoint ends again
    trainer = callback.trainer = _make_trainer(plan, steps_done, scratch, callback)
    optimizer = torch.optim.AdamW(
        [weight for weight in trainer.model.parameters() if weight.requires_grad],
        lr=recipe.rate,
        weight_decay=0.0,
    )
    if checkpoint:
        check_weights(plan.checkpoint_folder, checkpoint, get_peft_model_state_dict(trainer.model))
        set_peft_model_state_dict(trainer.model, dict(checkpoint.weights))
        restore_optimizer(optimizer, checkpoint.moments)
    trainer.optimizer = optimizer
    trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: rate_share(recipe, steps_done + step)
    )
    if steps_done < recipe.steps and not callback.has_collapsed:
        trainer.train()
    if callback.has_collapsed:
        trainer.accelerator.wait_for_everyone()
        set_peft_model_state_dict(trainer.accelerator.unwrap_model(trainer.model), load_file(best_path))
    model, is_main_process = (
        trainer.accelerator.unwrap_model(trainer.model),
        trainer.accelerator.is_main_process,
    )
    if torch.cuda.is_available():
        # A separate server loads the base model on the GPU next.
        model = model.cpu()
        callback.trainer = None
        del trainer, optimizer
        gc.collect()
        torch.cuda.empty_cache()
    return TrainingResult(model.eval(), curve, bool(is_main_process), callback.has_collapsed)


def rate_share(recipe: Recipe, step: int) -> float:
    """Return the share of the recipe's learning rate at a step; steps count from 0."""
    if step < recipe.warm:
        return (step + 1) / (recipe.warm + 1)
    remaining_share = max(0.0, 1.0 - (step - recipe.warm) / max(1, recipe.steps - recipe.warm))
    return FINAL_RATE_SHARE + (1.0 - FINAL_RATE_SHARE) * remaining_share


def _make_trainer(
    plan: TrainingPlan, steps_done: int, scratch: Path, callback: StepCallback
) -> CustomerTrainer:
    recipe = plan.recipe
    model, tokenizer = load_model(plan.base, recipe.dtype), load_tokenizer(plan.base)
    tokenizer.padding_side = "left"
    try:
        trainer = CustomerTrainer(
            recipe,
            plan.environments,
            plan.encoder,
            EngineSampler(model, plan.end_tokens) if recipe.drawing is DrawingBackend.ENGINE else None,
            steps_done,
            model=model,
            args=_trl_config(recipe, recipe.steps - steps_done, scratch),
            # trl requires rows, but the scenarios that are played follow from a step's number.
            train_dataset=datasets.Dataset.from_list([{"prompt": ""}] * recipe.groups),
            processing_class=tokenizer,
            peft_config=LoraConfig(
                r=recipe.rank,
                lora_alpha=recipe.alpha,
                lora_dropout=0.0,
                target_modules=recipe.targets if isinstance(recipe.targets, str) else list(recipe.targets),
                task_type="CAUSAL_LM",
            ),
            callbacks=[callback],
        )
    except ValueError as error:
        cause = " ".join(str(error).split())[:300]
        raise TrainingError(
            f"{plan.base.path}: cannot be trained with this recipe: {cause}; change the recipe"
        ) from None
    trainer.remove_callback(PrinterCallback)
    return trainer


def _trl_config(recipe: Recipe, steps: int, scratch: Path) -> GRPOConfig:
    """Return trl's settings; `scratch` stays empty, because trl saves nothing."""
    process_count = int(os.environ.get("WORLD_SIZE", "1"))
    rollouts_per_step = recipe.groups * recipe.rollouts
    if recipe.groups % process_count:
        raise TrainingError(
            f"{recipe.groups} groups per step cannot be distributed over {process_count} processes, "
            f"because a group is not split; set groups to a multiple of {process_count}"
        )
    batch_size = recipe.backward or rollouts_per_step // process_count
    if rollouts_per_step % (batch_size * process_count):
        raise TrainingError(
            f"{rollouts_per_step} rollouts per step cannot be distributed over {process_count} processes, "
            f"{batch_size} per "
            f"backward pass; set backward to a divisor of {rollouts_per_step // process_count}"
        )
    vllm_options = vllm_settings(recipe)
    is_on_cpu = not torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(scratch),
        use_cpu=is_on_cpu,
        bf16=recipe.autocast and (not is_on_cpu or torch.cpu._is_avx512_bf16_supported()),
        gradient_checkpointing=recipe.checkpointing,
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=rollouts_per_step // (batch_size * process_count),
        num_generations=recipe.rollouts,
        max_completion_length=recipe.rollout_tokens,
        generation_kwargs={"max_tokens" if vllm_options else "max_new_tokens": recipe.answer_tokens},
        temperature=recipe.temperature,
        top_k=0,
        top_p=1.0,
        learning_rate=recipe.rate,
        max_grad_norm=recipe.clip_norm,
        max_steps=steps,
        epsilon=recipe.clip_low,
        epsilon_high=recipe.clip_high,
        beta=recipe.beta,
        use_bias_correction_kl=True,
        loss_type=recipe.loss,
        scale_rewards=recipe.scale,
        logging_strategy="no",
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=recipe.seed,
        dataloader_pin_memory=False,
        **vllm_options,
    )


def vllm_settings(recipe: Recipe) -> dict[str, Any]:
    """Return trl's settings of vLLM; empty if the recipe does not draw answers with vLLM.

    Raises:
        MissingExtraError: vLLM is not installed.
        TrainingError: torch finds no GPU.
    """
    if not recipe.drawing.value.startswith("vllm"):
        return {}
    if not torch.cuda.is_available():
        raise TrainingError(
            f"drawing {recipe.drawing.value} needs a GPU, but torch finds none; use --preset pocket, or set "
            f"drawing to {DrawingBackend.TRANSFORMERS.value}"
        )
    require("vllm", extra="vllm")
    return {
        "use_vllm": True,
        "vllm_mode": recipe.drawing.value.partition("-")[2],
        "vllm_server_base_url": recipe.vllm.server or None,
        "vllm_tensor_parallel_size": recipe.vllm.parallel,
        "vllm_gpu_memory_utilization": recipe.vllm.memory,
        "vllm_max_model_length": recipe.vllm.length or None,
    }
