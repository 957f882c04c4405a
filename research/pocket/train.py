"""Trains the pocket model from a seed; resumes from a checkpoint after an interruption.

What is learned at a step follows from the seed and the step's number alone, so an interrupted training ends
with the weights of one that was not."""

import json
import math
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import transformers

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.serving.folder import folder_digest, read_model
from pytest_trace2evolve.worlds.support.world import SupportWorld
from research.pocket.lessons import (
    GROUP,
    Encoded,
    encode_for,
    lesson_group,
    template_messages,
    wire_tools,
)
from research.pocket.network import build_network, load_network
from research.pocket.recipe import Recipe, Stage
from research.pocket.tokenizer import CALL, END, START, build_tokenizer

VOCABULARY = 3072
"""Tokens; about a thousand are groups of digits."""

TOKENIZER_GROUPS = 300
"""Groups of lessons that the tokenizer is made from."""

TOKENIZER_STAGE = Stage(0, (0.0, 0.0), wordings=0)
"""The kind of these lessons: prompts with all wordings."""

MAX_ANSWER = 160
"""Tokens of an answer; well above the longest in lessons."""

TEMPERATURE = 0.7
"""At which its answers are drawn by default."""

TRAINING = "training.json"
"""The file next to the weights that says how they were made."""

CHECKPOINT = "unfinished"
"""The folder next to the weights-to-be from which an interrupted training resumes."""

CONTEXT_WEIGHT = 0.4
"""Weight of a token that is not the agent's, against 1 of one that is: predicting records teaches to copy."""

MIN_SHARED = 200
"""Common tokens from which on they are computed once: attention over a cache costs more per token."""

BATCH = 4
"""Dialogues of a group that are computed together: those of similar length, so that little is padding."""

LENGTH_STEP = 128
"""Rows are padded to a multiple of this, because torch compiles kernels for each length and keeps them."""

Groups = Callable[[int, Stage], Sequence[Encoded]]
"""The dialogues of a step, by its number and stage."""


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


def train_model(
    recipe: Recipe, folder: Path, *, start: Path | None = None, on_step: OnStep = lambda progress: None
) -> Progress:
    """Train a pocket model and write its folder, or resume what an interrupted run left there.

    Args:
        recipe: The settings.
        folder: The folder to write.
        start: The folder of a pocket model whose weights and tokenizer the training continues.
        on_step: Called after each step.

    Raises:
        ConfigError: the folder holds a checkpoint of another recipe or a damaged one, or training diverges.
        ModelFolderError: `start` is not a model folder.
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    world = SupportWorld()
    if start is None:
        tokenizer = make_tokenizer(f"{recipe.seed}", world)
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(start)
        recipe = recipe.continuing(folder_digest(read_model(start).path))
    tools = wire_tools(world)

    def groups(step: int, stage: Stage) -> Sequence[Encoded]:
        whole = stage.whole_every > 0 and step % stage.whole_every == 0
        lessons = lesson_group(f"{recipe.seed}", step, world, stage)
        return [encode_for(stage, lesson, tokenizer, tools, whole=whole) for lesson in lessons]

    network, progress = train(recipe, groups, tokenizer, folder, start=start, on_step=on_step)
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
    for path in _checkpoint_paths(folder):
        shutil.rmtree(path, ignore_errors=True)
    return progress


def make_tokenizer(
    seed: str, world: World, *, groups: int = TOKENIZER_GROUPS, vocabulary: int = VOCABULARY
) -> Any:
    """The tokenizer of a seed's first lessons, whole dialogues as they are rendered."""
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
    groups: Groups,
    tokenizer: Any,
    folder: Path,
    *,
    start: Path | None = None,
    on_step: OnStep = lambda progress: None,
    keep_every: int = 100,
) -> tuple[Any, Progress]:
    """Train a network, or resume the training whose checkpoint `folder` holds.

    Raises:
        ConfigError: the checkpoint is of another recipe or damaged, or the loss is not finite.
    """
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    network = load_network(start) if start else build_network(recipe.size, tokenizer)
    averages = {name: weight.detach().clone() for name, weight in network.named_parameters()}
    optimizers = make_optimizers(network, recipe)
    checkpoint, _, old = _checkpoint_paths(folder)
    if old.is_dir() and not checkpoint.is_dir():  # interrupted while a newer one took its place
        old.replace(checkpoint)
    progress = _load(checkpoint, recipe, network, averages, optimizers) if checkpoint.is_dir() else Progress()
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
        loss = train_step(network, optimizers, group, tokenizer.pad_token_id, stage.context)
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
            _save(folder, recipe, network, averages, optimizers, progress)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            weight.copy_(averages[name])
    network.eval()
    return network, progress


def make_optimizers(network: Any, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between layers, AdamW for embeddings and the scales of norms."""
    named = list(network.named_parameters())
    matrices = [weight for name, weight in named if weight.dim() > 1 and "embed" not in name]
    embeddings = [weight for name, weight in named if weight.dim() > 1 and "embed" in name]
    scales = [weight for _, weight in named if weight.dim() < 2]
    return [
        torch.optim.AdamW(
            [
                {"params": embeddings, "weight_decay": recipe.decay},
                {"params": scales, "weight_decay": 0.0},
            ],
            lr=recipe.rate,
            betas=(0.9, 0.98),
        ),
        torch.optim.Muon(matrices, lr=recipe.matrix_rate, weight_decay=recipe.decay, adjust_lr_fn="original"),
    ]


def train_step(
    network: Any,
    optimizers: Sequence[torch.optim.Optimizer],
    group: Sequence[Encoded],
    pad: int,
    context: float,
) -> float:
    """Learn from one group at the rates that are set; returns the loss, in nats per token."""
    # Faster on processors that multiply bfloat16 themselves; the weights stay float32.
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=torch.cpu._is_avx512_bf16_supported()):
        total, weight = group_loss(network, group, pad, context)
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
    first = group[0].ids
    places = (
        place for place in range(shortest) if any(dialogue.ids[place] != first[place] for dialogue in group)
    )
    return next(places, shortest)


def group_loss(
    network: Any,
    group: Sequence[Encoded],
    pad: int,
    context: float,
    *,
    min_shared: int = MIN_SHARED,
    batch: int = BATCH,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weighted loss of a group of dialogues.

    Whole prompts begin with the same tools and policy. That is computed once per group, and what follows it
    once per dialogue on top of its keys and values: the gradients are those of whole dialogues, at little
    more than half the cost.

    Args:
        network: The network.
        group: The dialogues.
        pad: The token that fills shorter rows.
        context: Share of the tokens that are not the agent's which are learned, drawn anew each time.

    Returns:
        The sum of the weighted losses of the tokens after the common beginning, and the sum of the weights.
    """
    common = common_length(group)
    # The last common token is computed with the rest: it predicts the first that differs.
    start = max(common - 1, 0) if common >= min_shared else 0
    beginning = None
    if start:
        beginning = transformers.DynamicCache(config=network.config)
        ids = torch.tensor([list(group[0].ids[:start])])
        network.model(input_ids=ids, cache=beginning, use_cache=True)
    total, weight = torch.zeros(()), torch.zeros(())
    ordered = sorted(group, key=lambda dialogue: len(dialogue.ids))
    for first in range(0, len(ordered), batch):
        losses, weights = _batch_loss(network, beginning, ordered[first : first + batch], start, pad, context)
        total, weight = total + losses, weight + weights
    return total, weight


def _batch_loss(
    network: Any, beginning: Any, rows: Sequence[Encoded], start: int, pad: int, context: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted losses of the tokens after `start`, and their weights, summed over some dialogues."""
    cache = None
    if beginning is not None:
        cache = transformers.DynamicCache(config=network.config)
        for place, layer in enumerate(beginning.layers):
            keys_values = (part.expand(len(rows), -1, -1, -1) for part in (layer.keys, layer.values))
            cache.update(*keys_values, place)
    longest = math.ceil((max(len(row.ids) for row in rows) - start) / LENGTH_STEP) * LENGTH_STEP
    ids = torch.full((len(rows), longest), pad)
    weights = torch.zeros((len(rows), longest))
    others = (torch.rand((len(rows), longest)) < context) * CONTEXT_WEIGHT
    for number, row in enumerate(rows):
        tail = row.ids[start:]
        ids[number, : len(tail)] = torch.tensor(tail)
        own = torch.tensor(row.weights[start:], dtype=torch.float32)
        weights[number, : len(tail)] = torch.where(own > 0, own, others[number, : len(tail)])
    hidden = network.model(input_ids=ids[:, :-1], cache=cache).last_hidden_state
    weights = weights[:, 1:]
    learned = weights > 0
    logits = network.lm_head(hidden[learned])
    losses = torch.nn.functional.cross_entropy(logits.float(), ids[:, 1:][learned], reduction="none")
    return (losses * weights[learned]).sum(), weights.sum()


def _checkpoint_paths(folder: Path) -> tuple[Path, Path, Path]:
    """The checkpoint, where the next is written, and where the last waits until that is complete."""
    return folder / CHECKPOINT, folder / f"{CHECKPOINT}.new", folder / f"{CHECKPOINT}.old"


def _save(
    folder: Path,
    recipe: Recipe,
    network: Any,
    averages: Mapping[str, torch.Tensor],
    optimizers: Sequence[torch.optim.Optimizer],
    progress: Progress,
) -> None:
    checkpoint, fresh, old = _checkpoint_paths(folder)
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    safetensors.torch.save_model(network, str(fresh / "model.safetensors"))
    safetensors.torch.save_file(dict(averages), fresh / "averages.safetensors")
    moments = {
        f"{number}.{name}.{place}": value
        for number, optimizer in enumerate(optimizers)
        for place, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }
    safetensors.torch.save_file(moments, fresh / "optimizer.safetensors")
    state = {"recipe": asdict(recipe), "progress": asdict(progress)}
    (fresh / "state.json").write_text(json.dumps(state), encoding="utf-8")
    if checkpoint.exists():
        checkpoint.replace(old)
    fresh.replace(checkpoint)
    shutil.rmtree(old, ignore_errors=True)


def _load(
    checkpoint: Path,
    recipe: Recipe,
    network: Any,
    averages: dict[str, torch.Tensor],
    optimizers: Sequence[torch.optim.Optimizer],
) -> Progress:
    remedy = f"remove {checkpoint} to start again"
    try:
        state = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
        same_recipe = state["recipe"] == json.loads(json.dumps(asdict(recipe)))
        if same_recipe:
            safetensors.torch.load_model(network, str(checkpoint / "model.safetensors"))
            averages.update(safetensors.torch.load_file(checkpoint / "averages.safetensors"))
            moments = safetensors.torch.load_file(checkpoint / "optimizer.safetensors")
            for number, optimizer in enumerate(optimizers):
                own: dict[int, dict[str, Any]] = {}
                for key, value in moments.items():
                    whose, name, place = key.split(".")
                    if int(whose) == number:
                        own.setdefault(int(place), {})[name] = value
                optimizer.load_state_dict({**optimizer.state_dict(), "state": own})
        progress = Progress(**state["progress"])
    except Exception as error:
        raise ConfigError(f"{checkpoint}: cannot be resumed ({error}); {remedy}") from None
    if not same_recipe:
        raise ConfigError(
            f"{checkpoint}: holds a training with other settings; train with those, or {remedy}"
        )
    return progress
