"""Trains the pocket model from a seed; resumes from a checkpoint after an interruption.

What is learned at a step follows from the seed and the step's number alone, so an interrupted training ends
with the weights of one that was not."""

import itertools
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.worlds.support.world import SupportWorld
from research.pocket.lessons import GROUP, Encoded, encode_for, lesson_group, template_messages, wire_tools
from research.pocket.network import build_network
from research.pocket.recipe import Recipe, Stage
from research.pocket.tokenizer import CALL, END, START, build_tokenizer

TOKENIZER_STAGE = Stage(0, (0.0, 0.0), wordings=0)
"""The kind of lessons that the tokenizer is made from: prompts with all wordings."""

MAX_ANSWER = 160
"""Tokens of an answer; well above the longest in lessons."""

TEMPERATURE = 0.7
"""At which its answers are drawn by default."""

TRAINING = "training.json"
"""The file next to the weights that says how they were made."""

CHECKPOINT = "unfinished.safetensors"
"""The file next to the weights-to-be from which an interrupted training resumes."""

CONTEXT_WEIGHT = 0.4
"""Weight of a token that is not the agent's, against 1 of one that is: predicting records teaches to copy."""


@dataclass
class Progress:
    """How far a training is.

    Attributes:
        step: Steps made.
        losses: Mean loss per token of each step, in nats.
        tokens: Tokens learned from, prompts once per dialogue.
        seconds: Time spent, over all runs.
    """

    step: int = 0
    losses: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0


OnStep = Callable[[Progress], None]


def train_model(recipe: Recipe, folder: Path, *, on_step: OnStep = lambda progress: None) -> Progress:
    """Train a pocket model and write its folder, or resume what an interrupted run left there.

    Args:
        recipe: The settings.
        folder: The folder to write.
        on_step: Called after each step.

    Raises:
        ConfigError: the folder holds a checkpoint of another recipe or a damaged one, or training diverges.
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    world = SupportWorld()
    tokenizer = make_tokenizer(f"{recipe.seed}", world)
    tools = wire_tools(world)

    def groups(step: int, stage: Stage) -> Sequence[Encoded]:
        whole = stage.whole_every > 0 and step % stage.whole_every == 0
        lessons = lesson_group(f"{recipe.seed}", step, world, stage)
        return [encode_for(stage, lesson, tokenizer, tools, whole=whole) for lesson in lessons]

    network, progress = train(recipe, groups, tokenizer, folder, on_step=on_step)
    network.generation_config.update(
        do_sample=True, temperature=TEMPERATURE, top_k=0, top_p=1.0, max_new_tokens=MAX_ANSWER
    )
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    record = {
        "recipe": asdict(recipe),
        "parameters": network.num_parameters(),
        "vocabulary": len(tokenizer),
        "dialogues": progress.step * GROUP,
        **asdict(progress),
    }
    (folder / TRAINING).write_text(json.dumps(record) + "\n", encoding="utf-8")
    (folder / CHECKPOINT).unlink(missing_ok=True)
    return progress


def make_tokenizer(seed: str, world: World, *, groups: int = 300, vocabulary: int = 3072) -> Any:
    """The tokenizer of a seed's first groups of lessons; about a thousand tokens are groups of digits."""
    tools = wire_tools(world)
    renderer = build_tokenizer([], 300)
    marks = re.compile("|".join(map(re.escape, (START, END, *CALL))))
    lessons = (
        lesson
        for number in range(groups)
        for lesson in lesson_group(f"{seed}/tokenizer", number, world, TOKENIZER_STAGE)
    )
    rendered = (
        str(renderer.apply_chat_template(template_messages(lesson.messages), tools=tools, tokenize=False))
        for lesson in lessons
    )
    # No token crosses a mark of dialogues.
    return build_tokenizer((part for text in rendered for part in marks.split(text)), vocabulary)


def train(
    recipe: Recipe,
    groups: Callable[[int, Stage], Sequence[Encoded]],
    tokenizer: Any,
    folder: Path,
    *,
    on_step: OnStep = lambda progress: None,
    keep_every: int = 100,
) -> tuple[Any, Progress]:
    """Train a network on the dialogues that `groups` returns for each step and its stage, or resume.

    Raises:
        ConfigError: the checkpoint is of another recipe or damaged, or the loss is not finite.
    """
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    network = build_network(recipe.size, tokenizer)
    averages = {name: weight.detach().clone() for name, weight in network.named_parameters()}
    optimizers = make_optimizers(network, recipe)
    checkpoint = folder / CHECKPOINT
    progress = _load(checkpoint, recipe, network, averages, optimizers) if checkpoint.exists() else Progress()
    network.train()
    while progress.step < recipe.steps:
        began = time.perf_counter()
        # The random state of a step does not depend on where a run was interrupted.
        torch.manual_seed(recipe.seed * 1_000_003 + progress.step)
        stage, share = recipe.at(progress.step)
        group = groups(progress.step, stage)
        for optimizer, rate in zip(optimizers, (recipe.rate, recipe.matrix_rate), strict=True):
            for parameters in optimizer.param_groups:
                parameters["lr"] = rate * share
        loss = train_step(network, optimizers, group, stage.context)
        if not math.isfinite(loss):
            raise ConfigError(
                f"the loss of step {progress.step + 1} is {loss}: the training diverged; lower the rate"
            )
        progress.step += 1
        with torch.no_grad():  # few steps are averaged at first, so that the mean does not keep the start
            share = 1 - min(recipe.average, progress.step / (progress.step + 10))
            for name, weight in network.named_parameters():
                averages[name].lerp_(weight, share)
        progress.losses.append(loss)
        progress.tokens += sum(len(dialogue.ids) for dialogue in group)
        progress.seconds += time.perf_counter() - began
        on_step(progress)
        if progress.step % keep_every == 0 or progress.step == recipe.steps:
            _save(checkpoint, recipe, network, averages, optimizers, progress)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            weight.copy_(averages[name])
    return network.eval(), progress


def make_optimizers(network: Any, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between layers, AdamW for embeddings and the scales of norms."""
    named = list(network.named_parameters())
    matrices = [weight for name, weight in named if weight.dim() > 1 and "embed" not in name]
    embeddings = [weight for name, weight in named if weight.dim() > 1 and "embed" in name]
    scales = [weight for _, weight in named if weight.dim() < 2]
    return [
        torch.optim.AdamW(
            [{"params": embeddings, "weight_decay": recipe.decay}, {"params": scales, "weight_decay": 0.0}],
            lr=recipe.rate,
            betas=(0.9, 0.98),
        ),
        torch.optim.Muon(matrices, lr=recipe.matrix_rate, weight_decay=recipe.decay, adjust_lr_fn="original"),
    ]


def train_step(
    network: Any,
    optimizers: Sequence[torch.optim.Optimizer],
    group: Sequence[Encoded],
    context: float,
) -> float:
    """Learn from one group at the rates that are set; returns the loss, in nats per token."""
    # Faster on processors that multiply bfloat16 themselves; the weights stay float32.
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=torch.cpu._is_avx512_bf16_supported()):
        total, weight = group_loss(network, group, context)
    loss: Any = total / weight
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    network.zero_grad()
    return float(loss.detach())


def common_length(group: Sequence[Encoded]) -> int:
    """Tokens with which all dialogues of a group begin; each has at least one more."""
    shortest = min(len(dialogue.ids) for dialogue in group) - 1
    rows = (dialogue.ids[:shortest] for dialogue in group)
    return sum(1 for _ in itertools.takewhile(lambda tokens: len(set(tokens)) == 1, zip(*rows, strict=True)))


def group_loss(
    network: Any, group: Sequence[Encoded], context: float, *, min_shared: int = 200
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weighted loss of a group of dialogues, packed in one row without padding.

    Whole prompts begin with the same tools and policy. That is computed once per group, and each dialogue
    attends to it and to itself: the gradients are those of whole dialogues.

    Args:
        network: The network.
        group: The dialogues.
        context: Share of the tokens that are not the agent's which are learned, drawn anew each time.
        min_shared: Common tokens from which on they are computed once.

    Returns:
        The sum of the weighted losses of the tokens after the common beginning, and the sum of the weights.
    """
    common = common_length(group)
    # The last common token is computed with each dialogue: it predicts the first that differs.
    start = max(common - 1, 0) if common >= min_shared else 0
    lengths = [len(dialogue.ids) - start - 1 for dialogue in group]
    inputs = [*group[0].ids[:start], *(token for row in group for token in row.ids[start:-1])]
    positions = [*range(start), *(start + place for length in lengths for place in range(length))]
    targets = torch.tensor([token for row in group for token in row.ids[start + 1 :]])
    own = torch.tensor([weight for row in group for weight in row.weights[start + 1 :]], dtype=torch.float32)
    others = (torch.rand(len(own)) < context) * CONTEXT_WEIGHT
    weights = torch.where(own > 0, own, others)
    hidden = network.model(
        input_ids=torch.tensor([inputs]),
        position_ids=torch.tensor([positions]),
        use_cache=False,
        lengths=(start, *lengths),
    ).last_hidden_state[0, start:]
    learned = weights > 0
    logits = network.lm_head(hidden[learned])
    losses = torch.nn.functional.cross_entropy(logits.float(), targets[learned], reduction="none")
    return (losses * weights[learned]).sum(), weights.sum()


def _save(
    path: Path,
    recipe: Recipe,
    network: Any,
    averages: Mapping[str, torch.Tensor],
    optimizers: Sequence[torch.optim.Optimizer],
    progress: Progress,
) -> None:
    """Write a checkpoint, a file of safetensors, in place of an earlier one."""
    moments = {
        f"{number}/{name}/{place}": value
        for number, optimizer in enumerate(optimizers)
        for place, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }
    tensors = {f"weights/{name}": weight for name, weight in network.named_parameters()}
    tensors |= {f"averages/{name}": weight for name, weight in averages.items()} | moments
    state = {"recipe": asdict(recipe), "progress": asdict(progress)}
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    safetensors.torch.save_file(tensors, fresh, metadata={"state": json.dumps(state)})
    fresh.replace(path)


def _load(
    path: Path,
    recipe: Recipe,
    network: Any,
    averages: Mapping[str, torch.Tensor],
    optimizers: Sequence[torch.optim.Optimizer],
) -> Progress:
    remedy = f"remove {path} to start again"
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            state = json.loads(file.metadata()["state"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        progress = Progress(**state["progress"])
        if state["recipe"] == json.loads(json.dumps(asdict(recipe))):
            with torch.no_grad():
                for name, weight in network.named_parameters():
                    weight.copy_(tensors.pop(f"weights/{name}"))
                    averages[name].copy_(tensors.pop(f"averages/{name}"))
            for number, optimizer in enumerate(optimizers):
                own: dict[int, dict[str, Any]] = {}
                for key, value in tensors.items():
                    whose, name, place = key.split("/")
                    if int(whose) == number:
                        own.setdefault(int(place), {})[name] = value
                optimizer.load_state_dict({**optimizer.state_dict(), "state": own})
            return progress
    except Exception as error:
        raise ConfigError(f"{path}: cannot be resumed ({error}); {remedy}") from None
    raise ConfigError(f"{path}: holds a training with other settings; train with those, or {remedy}")
