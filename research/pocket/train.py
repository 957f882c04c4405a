"""Training the pocket model: seeded, kept at intervals, and gone on with after whatever ended it.

What is learnt at a step follows from the seed and the step's number alone, so a run that was interrupted
and went on ends with the weights of one that was not.
"""

import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.errors import ConfigError, TrainingError
from pytest_trace2evolve.utils.optional import require
from pytest_trace2evolve.utils.reading import check_regular, read_json
from research.pocket.loop import Encoded, group_loss
from research.pocket.network import build_network
from research.pocket.recipe import Recipe, Stage

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

UNFINISHED = "unfinished"
"""The folder, beside the weights to come, that an interrupted run goes on from."""


Groups = Callable[[int, Stage], Sequence[Encoded]]
"""The dialogues of a step, by its number and stage."""


@dataclass
class Progress:
    """How far a training is.

    Attributes:
        step: Steps made.
        losses: Mean loss a token of each step, in nats.
        tokens: Tokens learnt from, prompts once a dialogue.
        seconds: Spent on it, over all runs.
    """

    step: int = 0
    losses: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0


def train(
    recipe: Recipe,
    groups: Groups,
    tokenizer: "PreTrainedTokenizerFast",
    folder: Path,
    *,
    told: Callable[[Progress], None] = lambda progress: None,
    every: int = 100,
) -> tuple["Qwen3ForCausalLM", Progress]:
    """Train a network, or go on with the training that `folder` holds.

    Args:
        recipe: What is trained.
        groups: What is learnt at a step.
        tokenizer: Whose tokens the dialogues are.
        folder: Where what is unfinished is kept.
        told: Hears of the progress after each step.
        every: Steps between two keepings.

    Raises:
        MissingExtraError: torch or transformers is not installed.
        ConfigError: what the folder holds is of another recipe, damaged, or the loss is no number any more.
    """
    torch: Any = require("torch", extra="local")
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    network: Any = build_network(recipe.size, tokenizer)
    optimizers = optimizers_of(network, recipe)
    kept = _kept(folder / UNFINISHED)
    progress = Progress() if kept is None else _load(kept, recipe, network, optimizers)
    network.train()
    while progress.step < recipe.steps:
        began = time.perf_counter()
        # A generator a step: which tokens are learnt from does not depend on where a run was interrupted.
        torch.manual_seed(recipe.seed * 1_000_003 + progress.step)
        stage, share = recipe.at(progress.step)
        group = groups(progress.step, stage)
        _set_rates(optimizers, recipe, share)
        loss = one_step(network, optimizers, group, tokenizer.pad_token_id, stage.context)
        if not math.isfinite(loss):
            raise ConfigError(
                f"the loss of step {progress.step + 1} is {loss}: the training came apart; lower the rate"
            )
        progress.step += 1
        progress.losses.append(loss)
        progress.tokens += sum(len(one.ids) for one in group)
        progress.seconds += time.perf_counter() - began
        told(progress)
        if progress.step % every == 0 or progress.step == recipe.steps:
            _keep(folder / UNFINISHED, recipe, network, optimizers, progress)
    network.eval()
    return network, progress


def optimizers_of(network: "Qwen3ForCausalLM", recipe: Recipe) -> list["torch.optim.Optimizer"]:
    """Muon for the matrices between layers, AdamW for embeddings and the scales of norms."""
    torch: Any = require("torch", extra="local")
    named = list(network.named_parameters())
    matrices = [one for name, one in named if one.dim() > 1 and "embed" not in name]
    embeddings = [one for name, one in named if one.dim() > 1 and "embed" in name]
    scales = [one for _, one in named if one.dim() < 2]
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


def _set_rates(optimizers: Sequence["torch.optim.Optimizer"], recipe: Recipe, share: float) -> None:
    for optimizer, highest in zip(optimizers, (recipe.rate, recipe.matrix_rate), strict=True):
        for one in optimizer.param_groups:
            one["lr"] = highest * share


def one_step(
    network: "Qwen3ForCausalLM",
    optimizers: Sequence["torch.optim.Optimizer"],
    group: Sequence[Encoded],
    pad: int,
    context: float,
) -> float:
    """Learn from one group at the rates that are set; the loss, in nats a token."""
    torch: Any = require("torch", extra="local")
    # Less time where the processor multiplies bfloat16 itself; the weights stay float32.
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=torch.cpu._is_avx512_bf16_supported()):
        total, weight = group_loss(network, group, pad, context)
    loss: Any = total / weight
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    network.zero_grad()
    return float(loss.detach())


def _keep(
    folder: Path,
    recipe: Recipe,
    network: "Qwen3ForCausalLM",
    optimizers: Sequence["torch.optim.Optimizer"],
    progress: Progress,
) -> None:
    """Write all that going on takes; what was kept before goes once that is whole."""
    safetensors: Any = require("safetensors.torch", extra="local")
    fresh, old = _beside(folder)
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    safetensors.save_model(network, fresh / "model.safetensors")
    moments = {
        f"{number}.{name}.{place}": value
        for number, optimizer in enumerate(optimizers)
        for place, kept in optimizer.state_dict()["state"].items()
        for name, value in kept.items()
    }
    safetensors.save_file(moments, fresh / "optimizer.safetensors")
    state = {"recipe": asdict(recipe), "progress": asdict(progress)}
    (fresh / "state.json").write_text(json.dumps(state), encoding="utf-8")
    if folder.exists():
        folder.replace(old)
    fresh.replace(folder)
    shutil.rmtree(old, ignore_errors=True)


def _kept(folder: Path) -> Path | None:
    """What was kept last: the older one where the process ended while the newer took its place."""
    _, old = _beside(folder)
    if old.is_dir() and not folder.is_dir():
        old.replace(folder)
    return folder if folder.is_dir() else None


def _beside(folder: Path) -> tuple[Path, Path]:
    """Where the next is written, and where the last one waits until that is whole."""
    return folder.with_name(f"{folder.name}.new"), folder.with_name(f"{folder.name}.old")


def forget(folder: Path) -> None:
    """Remove all that an unfinished training keeps in a model's folder."""
    unfinished = folder / UNFINISHED
    for one in (unfinished, *_beside(unfinished)):
        shutil.rmtree(one, ignore_errors=True)


def _load(
    folder: Path,
    recipe: Recipe,
    network: "Qwen3ForCausalLM",
    optimizers: Sequence["torch.optim.Optimizer"],
) -> Progress:
    safetensors: Any = require("safetensors.torch", extra="local")
    mend = f"remove {folder} to begin anew"
    try:
        state = read_json(folder / "state.json", TrainingError)
        for name in ("model.safetensors", "optimizer.safetensors"):
            check_regular(folder / name, TrainingError)
        if state["recipe"] != json.loads(json.dumps(asdict(recipe))):
            raise ConfigError(f"{folder}: holds a training with other settings; train with those, or {mend}")
        safetensors.load_model(network, folder / "model.safetensors")
        moments = safetensors.load_file(folder / "optimizer.safetensors")
        for number, optimizer in enumerate(optimizers):
            own: dict[int, dict[str, Any]] = {}
            for name, value in moments.items():
                whose, what, place = name.split(".")
                if int(whose) == number:
                    own.setdefault(int(place), {})[what] = value
            optimizer.load_state_dict({**optimizer.state_dict(), "state": own})
        return Progress(**state["progress"])
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{folder}: cannot be gone on with ({error}); {mend}") from None
