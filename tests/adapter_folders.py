"""Adapters' folders as training leaves them, without training."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_trace2evolve.agents.probe import POOLED_LAYERS
from pytest_trace2evolve.records.adapter import (
    MANIFEST_NAME,
    WEIGHTS_NAME,
    AdapterManifest,
    AdapterState,
    AdapterVerdict,
    RewardChange,
)
from pytest_trace2evolve.records.verdict import Decision
from pytest_trace2evolve.serving.folder import folder_digest


def write_adapter(
    folder: Path,
    name: str,
    *,
    base: str = "b1",
    state: AdapterState = AdapterState.TRAINED,
    weights: Path | None = None,
    capabilities: Sequence[str] = (),
    promoted_on: int = 0,
    **changes: Any,
) -> Path:
    """An adapter with its manifest; its weights are those of a folder, or its name's letters.

    Args:
        capabilities: What it was trained for; what its name says unless given.
        promoted_on: The day of November on which its verdict's run began; 0 leaves it without a verdict.
        changes: What else its manifest says.
    """
    path = folder / name
    if weights is None:
        path.mkdir(parents=True)
        (path / WEIGHTS_NAME).write_bytes(name.encode())
    else:
        shutil.copytree(weights, path)
    manifest = AdapterManifest(
        capability=name,
        base="base",
        base_digest=base,
        environments=dict.fromkeys(capabilities or [name], "e"),
        informed_by=("desk::discovery",),
        seed=1,
        recipe={},
        steps=1,
        rollouts=8,
        seconds=1.0,
        heldout={"elsewhere": RewardChange(before=0.5, after=0.5, rollouts=8, low=-0.1, high=0.1)},
        state=state,
        created_at="2026-11-22T10:00:00+00:00",
    ).model_copy(update=changes)
    if promoted_on:
        time = f"2026-11-{promoted_on:02}T10:00:00+00:00"
        verdict = AdapterVerdict(decision=Decision.PROMOTE, run="r", candidate=f"v6+{name}", time=time)
        manifest = manifest.model_copy(update={"verdict": verdict})
    (path / MANIFEST_NAME).write_text(manifest.model_dump_json(), encoding="utf-8")
    return path


def write_router(
    path: Path,
    base: Path,
    chosen: str,
    labels: Sequence[str] = ("one", "two", "none"),
    base_digest: str | None = None,
) -> None:
    """A router's file for a base, which always chooses one label."""
    import numpy as np
    from safetensors.numpy import save_file

    width = json.loads((base / "config.json").read_text())["hidden_size"]
    matrix = np.zeros((len(POOLED_LAYERS) * 3 * width + 1, len(labels)), dtype=np.float32)
    matrix[-1, labels.index(chosen)] = 1
    digest = base_digest or folder_digest(base)
    path.parent.mkdir(exist_ok=True)
    save_file({"probe": matrix}, path, metadata={"labels": json.dumps(labels), "base_digest": digest})
