"""Adapters of a project: known by their manifests, and only promoted ones of the right base are routed to."""

from pathlib import Path

import pytest

from pytest_trace2evolve.adapters import Adapters
from pytest_trace2evolve.errors import AdapterError
from pytest_trace2evolve.records.adapter import ADAPTER_WEIGHTS, MANIFEST, AdapterManifest, AdapterState


def written(folder: Path, name: str, *, base: str = "b1", state: AdapterState = AdapterState.TRAINED) -> Path:
    path = folder / name
    path.mkdir(parents=True)
    manifest = AdapterManifest(
        capability=name,
        base="tiny",
        base_digest=base,
        environments={name: "e"},
        seed=1,
        recipe={},
        steps=1,
        rollouts=8,
        seconds=1.0,
        state=state,
    )
    (path / MANIFEST).write_text(manifest.model_dump_json(), encoding="utf-8")
    (path / ADAPTER_WEIGHTS).write_bytes(name.encode())
    return path


def test_only_promoted_adapters_of_the_base_are_routed_to(tmp_path: Path) -> None:
    written(tmp_path, "reading", state=AdapterState.PROMOTED)
    written(tmp_path, "adding")
    written(tmp_path, "asking", state=AdapterState.DISCARDED)
    written(tmp_path, "telling", state=AdapterState.PROMOTED, base="b2")
    (tmp_path / "pocket").mkdir()
    found = Adapters(tmp_path)
    assert list(found) == ["adding", "asking", "reading", "telling"]
    assert [one.name for one in found.promoted("b1")] == ["reading"]


def test_an_adapter_is_known_by_its_weights(tmp_path: Path) -> None:
    path = written(tmp_path, "reading")
    before = Adapters(tmp_path)["reading"].digest
    assert len(before) == 32
    assert Adapters(tmp_path)["reading"].digest == before
    (path / ADAPTER_WEIGHTS).write_bytes(b"others")
    assert Adapters(tmp_path)["reading"].digest != before
    (path / ADAPTER_WEIGHTS).unlink()
    with pytest.raises(AdapterError, match=r"safetensors: cannot be read: No such file .*train"):
        _ = Adapters(tmp_path)["reading"].digest


def test_what_is_unknown_or_damaged_is_told_in_one_line(tmp_path: Path) -> None:
    path = written(tmp_path, "reading")
    with pytest.raises(AdapterError, match=r"^unknown adapter 'raeding'; did you mean 'reading'\? in "):
        Adapters(tmp_path)["raeding"]
    (path / MANIFEST).write_text('{"capability": 1}', encoding="utf-8")
    with pytest.raises(AdapterError, match=r"manifest.json: damaged at capability: .*; train it again$"):
        Adapters(tmp_path)["reading"]
