"""What an unfinished training keeps, so that one that was killed goes on where it was.

A keeping is a folder `step-000040`: the adapter's weights and the optimiser's moments as safetensors, the
rest as JSON; nothing is pickled. It is written under another name, flushed to the disk, and renamed: a folder
of that name is whole. No state of random numbers is kept: every step seeds its own from its number.
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

_KEPT = re.compile(r"step-(\d{6})")
_WEIGHTS, _MOMENTS, _STATE = "adapter.safetensors", "moments.safetensors", "state.json"


@dataclass(frozen=True)
class Kept:
    """A keeping.

    Attributes:
        step: Steps made.
        curve: What each of them was like, as JSON.
        weights: Of the adapter, by name.
        moments: The optimiser's, by parameter and name.
    """

    step: int
    curve: Sequence[Mapping[str, Any]]
    weights: Mapping[str, torch.Tensor]
    moments: Mapping[str, torch.Tensor]


def keep(folder: Path, kept: Kept, identity: Mapping[str, Any]) -> None:
    """Write a keeping; earlier ones go once it is whole.

    Args:
        folder: Where keepings of this training lie.
        kept: What is kept.
        identity: What a training must have in common to go on from it.

    Raises:
        OSError: it cannot be written; what was kept before is still there.
    """
    name = f"step-{kept.step:06d}"
    fresh = folder / f".{name}.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    save_file({key: one.contiguous() for key, one in kept.weights.items()}, fresh / _WEIGHTS)
    save_file({key: one.contiguous() for key, one in kept.moments.items()}, fresh / _MOMENTS)
    state = {"step": kept.step, "identity": dict(identity), "curve": list(kept.curve)}
    (fresh / _STATE).write_text(json.dumps(state), encoding="utf-8")
    settle(fresh, folder / name)
    for one in folder.iterdir():
        if one.name != name and (_KEPT.fullmatch(one.name) or one.name.endswith(".new")):
            shutil.rmtree(one, ignore_errors=True)


def settle(fresh: Path, final: Path) -> None:
    """Flush a folder that has just been written to the disk, and give it its name.

    Raises:
        OSError: something could not be flushed, or there is such a folder already.
    """
    for file in sorted(fresh.rglob("*")):
        if file.is_file():
            _flush(file)
    _flush(fresh)
    fresh.rename(final)
    _flush(final.parent)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def last_kept(folder: Path, identity: Mapping[str, Any]) -> Kept | None:
    """The last keeping; None where there is none.

    Raises:
        TrainingError: it is of another training, or damaged; says how to begin anew.
    """
    names = (
        sorted(one.name for one in folder.iterdir() if _KEPT.fullmatch(one.name)) if folder.is_dir() else []
    )
    if not names:
        return None
    found = folder / names[-1]
    mend = f"remove {folder} to begin anew"
    try:
        state = read_json(found / _STATE, TrainingError)
        for name in (_WEIGHTS, _MOMENTS):
            check_regular(found / name, TrainingError)
        differs = _differing(state["identity"], json.loads(json.dumps(dict(identity))))
        weights, moments = load_file(found / _WEIGHTS), load_file(found / _MOMENTS)
        kept = Kept(int(state["step"]), state["curve"], weights, moments)
    except Exception as error:
        told = " ".join(str(error).split())[:200]
        raise TrainingError(f"{found}: cannot be gone on with ({told}); {mend}") from None
    if differs:
        raise TrainingError(f"{folder}: holds a training with {differs}; go on with that, or {mend}")
    return kept


def require_whole(folder: Path, kept: Kept, model: Mapping[str, torch.Tensor]) -> None:
    """Check that the weights are those of the model that goes on: a layer that lacks would begin anew.

    Args:
        folder: Where keepings of this training lie.
        kept: The keeping.
        model: The model's own weights, by name.

    Raises:
        TrainingError: they are not.
    """
    one, other = ({name: list(each.shape) for name, each in some.items()} for some in (kept.weights, model))
    if name := next(
        (name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)), ""
    ):
        raise TrainingError(
            f"{folder}: its weights of step {kept.step} have {one.get(name)} for {name!r}, and the model has "
            f"{other.get(name)}; remove {folder} to begin anew"
        )


def _differing(one: Mapping[str, Any], other: Mapping[str, Any], within: str = "") -> str:
    """The first value that differs, by its path, and what is asked for; empty where all are equal."""
    for name in [*one, *(name for name in other if name not in one)]:
        mine, yours = one.get(name), other.get(name)
        if mine == yours:
            continue
        path = f"{within}{name}"
        if isinstance(mine, dict) and isinstance(yours, dict):
            return _differing(mine, yours, f"{path}.")
        return f"{path} {mine!r}, and {yours!r} is asked for"
    return ""


def moments_of(optimizer: Any) -> dict[str, torch.Tensor]:
    """An optimiser's state as tensors by parameter's place and name."""
    state = optimizer.state_dict()["state"]
    return {
        f"{place}.{name}": torch.as_tensor(value).detach().cpu().clone()
        for place, kept in state.items()
        for name, value in kept.items()
    }


def restore(optimizer: Any, moments: Mapping[str, torch.Tensor]) -> None:
    """Give an optimiser the state that was kept."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in moments.items():
        place, _, name = key.partition(".")
        state.setdefault(int(place), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
