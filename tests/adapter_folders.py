"""Adapters' folders as training leaves them, without training."""

import shutil
from pathlib import Path

from pytest_trace2evolve.records.adapter import ADAPTER_WEIGHTS, MANIFEST, AdapterManifest, AdapterState
from pytest_trace2evolve.records.routing import Skill


def write_adapter(
    folder: Path,
    name: str,
    *,
    base: str = "b1",
    state: AdapterState = AdapterState.TRAINED,
    weights: Path | None = None,
) -> Path:
    """An adapter with its manifest; its weights are those of a folder, or its name's letters."""
    path = folder / name
    if weights is None:
        path.mkdir(parents=True)
        (path / ADAPTER_WEIGHTS).write_bytes(name.encode())
    else:
        shutil.copytree(weights, path)
    manifest = AdapterManifest(
        capability=name,
        base="base",
        base_digest=base,
        environments={name: "e"},
        informed_by=("desk::discovery",),
        skill=Skill(name=name, description=f"What {name} is.", example=f"Please {name}."),
        seed=1,
        recipe={},
        steps=1,
        rollouts=8,
        seconds=1.0,
        state=state,
        created_at="2026-11-22T10:00:00+00:00",
    )
    (path / MANIFEST).write_text(manifest.model_dump_json(), encoding="utf-8")
    return path
