"""Stores checkpoints of an unfinished training run, from which a killed run resumes.

A checkpoint is a folder like `step-000040`. It contains the adapter's weights and the optimizer's moments
as safetensors, and the rest as JSON; nothing is pickled. The folder is written under a temporary name,
flushed to the disk, and renamed, so a folder with its final name is complete. It contains no random state,
because every step is seeded with its number.
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

_FOLDER_NAME = re.compile(r"step-(\d{6})")
_WEIGHTS_FILE, _MOMENTS_FILE, _STATE_FILE = "adapter.safetensors", "moments.safetensors", "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training run after some steps.

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

    Only a training run with an equal `identity` can resume from the checkpoint.

    Raises:
        OSError: the checkpoint cannot be written; the earlier checkpoint is kept.
    """
    name = f"step-{checkpoint.step:06d}"
    temporary_folder = make_temporary_folder(folder / name)
    for file, tensors in ((_WEIGHTS_FILE, checkpoint.weights), (_MOMENTS_FILE, checkpoint.moments)):
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, temporary_folder / file)
    state = {"step": checkpoint.step, "identity": dict(identity), "curve": list(checkpoint.curve)}
    (temporary_folder / _STATE_FILE).write_text(json.dumps(state), encoding="utf-8")
    commit_folder(temporary_folder, folder / name)
    for entry in folder.iterdir():
        if entry.name != name and (_FOLDER_NAME.fullmatch(entry.name) or entry.name.endswith(".new")):
            shutil.rmtree(entry, ignore_errors=True)


def load_checkpoint(folder: Path, identity: Mapping[str, Any]) -> Checkpoint | None:
    """Load the last checkpoint; None if there is none.

    Raises:
        TrainingError: the checkpoint is damaged or belongs to a different training run. The message says
            how to start again.
    """
    latest_folder = max(
        (path for path in folder.glob("step-*") if _FOLDER_NAME.fullmatch(path.name)), default=None
    )
    if latest_folder is None:
        return None
    remedy = f"remove {folder} to start again"
    try:
        state = read_json(latest_folder / _STATE_FILE, TrainingError)
        for name in (_WEIGHTS_FILE, _MOMENTS_FILE):
            check_regular(latest_folder / name, TrainingError)
        difference = _describe_difference(state["identity"], json.loads(json.dumps(dict(identity))))
        weights, moments = load_file(latest_folder / _WEIGHTS_FILE), load_file(latest_folder / _MOMENTS_FILE)
        checkpoint = Checkpoint(int(state["step"]), state["curve"], weights, moments)
    except Exception as error:
        cause = " ".join(str(error).split())[:200]
        raise TrainingError(f"{latest_folder}: cannot be resumed ({cause}); {remedy}") from None
    if difference:
        raise TrainingError(
            f"{folder}: contains a training run with {difference}; resume that run, or {remedy}"
        )
    return checkpoint


def check_weights(folder: Path, checkpoint: Checkpoint, weights: Mapping[str, torch.Tensor]) -> None:
    """Check that a checkpoint has the model's weights by name and shape; a missing layer would be untrained.

    Raises:
        TrainingError: a name or a shape differs.
    """
    stored_shapes = {name: list(tensor.shape) for name, tensor in checkpoint.weights.items()}
    model_shapes = {name: list(tensor.shape) for name, tensor in weights.items()}
    for name in sorted(stored_shapes.keys() | model_shapes.keys()):
        if stored_shapes.get(name) != model_shapes.get(name):
            raise TrainingError(
                f"{folder}: its weights of step {checkpoint.step} have {stored_shapes.get(name)} for "
                f"{name!r}, but the model has {model_shapes.get(name)}; remove {folder} to start again"
            )


def make_temporary_folder(final: Path) -> Path:
    """Make an empty folder with a temporary name, which `commit_folder` later renames to `final`."""
    temporary_folder = final.with_name(f".{final.name}.new")
    shutil.rmtree(temporary_folder, ignore_errors=True)
    temporary_folder.mkdir(parents=True)
    return temporary_folder


def commit_folder(temporary: Path, final: Path) -> None:
    """Flush a new folder to the disk, and rename it to `final`.

    Raises:
        OSError: a file could not be flushed, or `final` exists already.
    """
    for file in sorted(temporary.rglob("*")):
        if file.is_file():
            _flush(file)
    _flush(temporary)
    temporary.rename(final)
    _flush(final.parent)


def optimizer_tensors(optimizer: Any) -> dict[str, torch.Tensor]:
    """Return an optimizer's state as tensors, named by the parameter's index and the value's name."""
    state = optimizer.state_dict()["state"]
    return {
        f"{index}.{name}": torch.as_tensor(value).detach().cpu().clone()
        for index, values in state.items()
        for name, value in values.items()
    }


def restore_optimizer(optimizer: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Load the tensors of `optimizer_tensors` into an optimizer."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _describe_difference(stored: Mapping[str, Any], requested: Mapping[str, Any], prefix: str = "") -> str:
    """Describe the first value that differs, with its path; empty if all are equal."""
    for name in [*stored, *(name for name in requested if name not in stored)]:
        old, new = stored.get(name), requested.get(name)
        if old == new:
            continue
        path = f"{prefix}{name}"
        if isinstance(old, dict) and isinstance(new, dict):
            return _describe_difference(old, new, f"{path}.")
        return f"{path} {old!r}, but {new!r} was requested"
    return ""
