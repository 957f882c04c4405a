"""Checkpoints of an unfinished training, from which a killed training resumes.

A checkpoint is a folder like `step-000040`. It holds the adapter's weights and the optimizer's moments as
safetensors, and the rest as JSON; nothing is pickled. The folder is written under a temporary name, flushed
to the disk, and renamed, so a folder with its final name is complete. No random state is kept, because every
step seeds its own random state from its number.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.utils.reading import check_regular, read_json

_NAME = re.compile(r"step-(\d{6})")
_WEIGHTS, _MOMENTS, _STATE = "adapter.safetensors", "moments.safetensors", "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training after some steps.

    Attributes:
        step: The number of completed steps.
        curve: The figures of each step, as JSON.
        weights: The adapter's weights, by name.
        moments: The optimizer's moments, by parameter and name.
    """

    step: int
    curve: Sequence[Mapping[str, Any]]
    weights: Mapping[str, torch.Tensor]
    moments: Mapping[str, torch.Tensor]


def save_checkpoint(folder: Path, checkpoint: Checkpoint, identity: Mapping[str, Any]) -> None:
    """Write a checkpoint, then remove the earlier checkpoints.

    Only a training with an equal `identity` can resume from the checkpoint.

    Raises:
        OSError: the checkpoint cannot be written; the earlier checkpoint is kept.
    """
    name = f"step-{checkpoint.step:06d}"
    fresh = new_folder(folder / name)
    for file, tensors in ((_WEIGHTS, checkpoint.weights), (_MOMENTS, checkpoint.moments)):
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, fresh / file)
    state = {"step": checkpoint.step, "identity": dict(identity), "curve": list(checkpoint.curve)}
    (fresh / _STATE).write_text(json.dumps(state), encoding="utf-8")
    commit_folder(fresh, folder / name)
    for entry in folder.iterdir():
        if entry.name != name and (_NAME.fullmatch(entry.name) or entry.name.endswith(".new")):
            shutil.rmtree(entry, ignore_errors=True)


def load_checkpoint(folder: Path, identity: Mapping[str, Any]) -> Checkpoint | None:
    """Load the last checkpoint; None if there is none.

    Raises:
        TrainingError: the checkpoint is damaged or belongs to a different training. The message says how to
            start again.
    """
    last = max((path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)), default=None)
    if last is None:
        return None
    remedy = f"remove {folder} to start again"
    try:
        state = read_json(last / _STATE, TrainingError)
        for name in (_WEIGHTS, _MOMENTS):
            check_regular(last / name, TrainingError)
        difference = _difference(state["identity"], json.loads(json.dumps(dict(identity))))
        weights, moments = load_file(last / _WEIGHTS), load_file(last / _MOMENTS)
        checkpoint = Checkpoint(int(state["step"]), state["curve"], weights, moments)
    except Exception as error:
        cause = " ".join(str(error).split())[:200]
        raise TrainingError(f"{last}: cannot be resumed ({cause}); {remedy}") from None
    if difference:
        raise TrainingError(f"{folder}: holds a training with {difference}; resume that one, or {remedy}")
    return checkpoint


def check_complete(folder: Path, checkpoint: Checkpoint, weights: Mapping[str, torch.Tensor]) -> None:
    """Check that a checkpoint has the model's weights by name and shape; a missing layer would start again.

    Raises:
        TrainingError: a name or a shape differs.
    """
    kept = {name: list(tensor.shape) for name, tensor in checkpoint.weights.items()}
    own = {name: list(tensor.shape) for name, tensor in weights.items()}
    for name in sorted(kept.keys() | own.keys()):
        if kept.get(name) != own.get(name):
            raise TrainingError(
                f"{folder}: its weights of step {checkpoint.step} have {kept.get(name)} for {name!r}, and "
                f"the model has {own.get(name)}; remove {folder} to start again"
            )


def new_folder(final: Path) -> Path:
    """Make an empty folder with a temporary name, which `commit_folder` later renames to `final`."""
    fresh = final.with_name(f".{final.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    return fresh


def commit_folder(fresh: Path, final: Path) -> None:
    """Flush a new folder to the disk, and rename it to `final`.

    Raises:
        OSError: a file could not be flushed, or `final` exists already.
    """
    for file in sorted(fresh.rglob("*")):
        if file.is_file():
            _flush(file)
    _flush(fresh)
    fresh.rename(final)
    _flush(final.parent)


def optimizer_tensors(optimizer: Any) -> dict[str, torch.Tensor]:
    """An optimizer's state as tensors, named by the parameter's place and the value's name."""
    state = optimizer.state_dict()["state"]
    return {
        f"{place}.{name}": torch.as_tensor(value).detach().cpu().clone()
        for place, values in state.items()
        for name, value in values.items()
    }


def restore_optimizer(optimizer: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Load the tensors of `optimizer_tensors` into an optimizer."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        place, _, name = key.partition(".")
        state.setdefault(int(place), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _difference(kept: Mapping[str, Any], wanted: Mapping[str, Any], within: str = "") -> str:
    """The first value that differs, with its path; empty if all are equal."""
    for name in [*kept, *(name for name in wanted if name not in kept)]:
        old, new = kept.get(name), wanted.get(name)
        if old == new:
            continue
        path = f"{within}{name}"
        if isinstance(old, dict) and isinstance(new, dict):
            return _difference(old, new, f"{path}.")
        return f"{path} {old!r}, and {new!r} was requested"
    return ""
