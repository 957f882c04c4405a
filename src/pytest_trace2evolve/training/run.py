"""One training from its recipe to an adapter's weights; goes on from what an interrupted one kept.

What is looked at after each step: the curve, what ends a training, and when it is kept.
"""

import contextlib
import gc
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_trace2evolve.errors import ModelFolderError, TrainingError
from pytest_trace2evolve.training.protocols import Sampler, Talk
from pytest_trace2evolve.training.recipe import Drawing, Recipe
from pytest_trace2evolve.utils.files import Scratch
from pytest_trace2evolve.utils.optional import require


@dataclass(frozen=True)
class Plan:
    """What is trained.

    Attributes:
        base: The base model's folder.
        identity: What a training must have in common with one that goes on from it, beside the recipe.
        environments: Makes environments, by name.
        talk: Conversations as tokens.
        sampler: Makes who draws answers, of the base as it was loaded; where the recipe asks for one.
        unfinished: Where it is kept while it is unfinished.
    """

    recipe: Recipe
    base: Path
    identity: Mapping[str, Any]
    environments: Mapping[str, Callable[[], Any]]
    talk: Talk
    unfinished: Path
    sampler: Callable[[Any], Sampler] | None = None


@dataclass
class Trained:
    """A training that has come to its end.

    Attributes:
        model: The `PeftModel`.
        curve: What each step was like, see `played.Told`, as JSON.
        writes: Whether this process is the one that writes, of several that train together.
    """

    model: Any
    curve: list[dict[str, Any]] = field(default_factory=list)
    writes: bool = True

    @property
    def rollouts(self) -> int:
        """Rollouts that were played, redrawn ones included."""
        return sum(int(one["rollouts"]) for one in self.curve)

    @property
    def seconds(self) -> float:
        """Time of all steps."""
        return sum(float(one["seconds"]["step"]) for one in self.curve)


def train(plan: Plan, *, told: Callable[[Any], None] = lambda step: None) -> Trained:
    """Train an adapter, or go on with the training that was kept.

    Args:
        plan: What is trained.
        told: Hears what each step was like, a `played.Told`.

    Raises:
        MissingExtraError: trl, peft or torch is not installed.
        TrainingError: nothing is learnt, the training came apart, or what was kept is of another one.
        ModelFolderError: the base cannot be loaded.
    """
    for module in ("trl", "peft", "datasets"):
        require(module, extra="train")
    # Their own advice to experimenters is none for those who asked for exactly this.
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    with quiet(), contextlib.closing(Scratch()) as scratch:
        return _train(plan, scratch.path, told)


def _train(plan: Plan, scratch: Path, told: Callable[[Any], None]) -> Trained:
    import torch
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    from pytest_trace2evolve.training.checkpoints import (
        Kept,
        keep,
        last_kept,
        moments_of,
        require_whole,
        restore,
    )
    from pytest_trace2evolve.training.trainer import CustomerTrainer, share
    from pytest_trace2evolve.training.watch import Watch

    recipe = plan.recipe
    identity = {"recipe": recipe.model_dump(mode="json"), **plan.identity}
    kept = last_kept(plan.unfinished, identity)
    done = kept.step if kept else 0
    curve: list[dict[str, Any]] = [dict(one) for one in kept.curve] if kept else []
    if recipe.threads:
        torch.set_num_threads(recipe.threads)

    def write(step: int) -> None:
        if trainer.accelerator.is_main_process:
            weights = get_peft_model_state_dict(trainer.accelerator.unwrap_model(trainer.model))
            keep(plan.unfinished, Kept(step, curve, weights, moments_of(trainer.optimizer)), identity)
        trainer.accelerator.wait_for_everyone()

    watch = Watch(recipe, curve, told, write)
    watch.judge()  # what stopped a training at a keeping stops it again
    trainer = watch.trainer = _trainer(CustomerTrainer, plan, done, scratch, watch)
    optimizer = torch.optim.AdamW(
        [one for one in trainer.model.parameters() if one.requires_grad], lr=recipe.rate, weight_decay=0.0
    )
    if kept:
        require_whole(plan.unfinished, kept, get_peft_model_state_dict(trainer.model))
        set_peft_model_state_dict(trainer.model, dict(kept.weights))
        restore(optimizer, kept.moments)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: share(recipe, done + step))
    trainer.optimizer, trainer.lr_scheduler = optimizer, rates
    try:
        if done < recipe.steps:
            trainer.train()
    finally:
        trainer.close()
    model, writes = trainer.accelerator.unwrap_model(trainer.model), trainer.accelerator.is_main_process
    if torch.cuda.is_available():
        # Whoever measures next needs the room: a server of its own loads the base there.
        model = model.cpu()
        watch.trainer = None
        del trainer, optimizer
        gc.collect()
        torch.cuda.empty_cache()
    return Trained(model.eval(), curve, bool(writes))


def _trainer(kind: Any, plan: Plan, done: int, scratch: Path, watch: Any) -> Any:
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import PrinterCallback
    from trl.chat_template_utils import qwen3_template

    from pytest_trace2evolve.training.rollouts import Course

    recipe = plan.recipe
    model, tokenizer = _loaded(plan.base, recipe)
    if getattr(tokenizer, "response_template", None) is None:
        # trl wants to read answers by one; ours are read as the server reads them.
        tokenizer.response_template = qwen3_template
    sampler = plan.sampler(model) if plan.sampler and recipe.drawing is Drawing.ENGINE else None
    names = list(plan.environments)
    # trl asks for rows; what is played follows from a step's number, see `Course.rows`.
    rows = [
        {"prompt": [{"role": "user", "content": ""}], "environment": names[0]} for _ in range(recipe.groups)
    ]
    given = {
        "model": model,
        "args": _settings(recipe, recipe.steps - done, scratch),
        "train_dataset": Dataset.from_list(rows),
        "processing_class": tokenizer,
        "environment_factory": dict(plan.environments),
        "peft_config": LoraConfig(
            r=recipe.rank,
            lora_alpha=recipe.alpha,
            lora_dropout=0.0,
            target_modules=recipe.targets if isinstance(recipe.targets, str) else list(recipe.targets),
            task_type="CAUSAL_LM",
        ),
        "callbacks": [watch],
    }
    try:
        trainer = kind(Course(recipe, names, plan.talk, sampler, done), **given)
    except ValueError as error:
        told = " ".join(str(error).split())[:300]
        raise TrainingError(f"{plan.base}: cannot be trained so: {told}; change the recipe") from None
    trainer.remove_callback(PrinterCallback)
    return trainer


def _settings(recipe: Recipe, steps: int, scratch: Path) -> Any:
    """trl's own settings; `scratch` stays empty, since nothing is saved by it."""
    import torch
    from trl import GRPOConfig

    processes = int(os.environ.get("WORLD_SIZE", "1"))
    rollouts = recipe.groups * recipe.rollouts
    if recipe.groups % processes:
        raise TrainingError(
            f"{recipe.groups} groups a step cannot be shared out to {processes} processes: none is cut; set "
            f"groups to a multiple of {processes}"
        )
    each = recipe.backward or rollouts // processes
    if rollouts % (each * processes):
        raise TrainingError(
            f"{rollouts} rollouts a step cannot be shared out to {processes} processes, {each} a backward "
            f"pass; set backward to what divides {rollouts // processes}"
        )
    vllm = _vllm(recipe)
    most = "max_tokens" if vllm else "max_new_tokens"
    on_cpu = not torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(scratch),
        use_cpu=on_cpu,
        bf16=recipe.autocast and (not on_cpu or torch.cpu._is_avx512_bf16_supported()),
        gradient_checkpointing=recipe.checkpointing,
        per_device_train_batch_size=each,
        gradient_accumulation_steps=rollouts // (each * processes),
        num_generations=recipe.rollouts,
        max_completion_length=recipe.rollout_tokens,
        generation_kwargs={most: recipe.answer_tokens},
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
        **vllm,
    )


def _vllm(recipe: Recipe) -> dict[str, Any]:
    """trl's settings of vLLM; none where it does not draw."""
    import torch

    if not recipe.drawing.value.startswith("vllm"):
        return {}
    if not torch.cuda.is_available():
        raise TrainingError(
            f"drawing {recipe.drawing.value} needs a GPU, and torch finds none; use --preset pocket, or set "
            f"drawing to {Drawing.TRANSFORMERS.value}"
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


def _loaded(base: Path, recipe: Recipe) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            base, padding_side="left", trust_remote_code=False, local_files_only=True
        )
        model = AutoModelForCausalLM.from_pretrained(
            base,
            dtype=getattr(torch, recipe.dtype),
            trust_remote_code=False,
            local_files_only=True,
            use_safetensors=True,
        )
    except Exception as error:
        told = " ".join(str(error).split())[:300]
        raise ModelFolderError(f"{base}: cannot be loaded: {type(error).__name__}: {told}") from None
    return model, tokenizer


@contextmanager
def quiet() -> Iterator[None]:
    """Without the progress bars and the advice of what works underneath."""
    import datasets
    import transformers

    before = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # theirs
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # theirs
    datasets.disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.utils.logging.set_verbosity(before)
