"""Adapters of a project: known by their manifests, and only promoted ones of the right base are routed to."""

from datetime import date
from pathlib import Path

import pytest

from pytest_trace2evolve.agents.probe import PROBE_FILE
from pytest_trace2evolve.errors import AdapterError, CandidateError
from pytest_trace2evolve.project.adapters import Adapters
from pytest_trace2evolve.project.candidates import Candidates
from pytest_trace2evolve.records.adapter import MANIFEST_NAME, WEIGHTS_NAME, AdapterState
from tests.adapter_folders import write_adapter
from tests.gate_helpers import write_candidate


def test_only_promoted_adapters_are_routed_to(tmp_path: Path) -> None:
    write_adapter(tmp_path, "reading", state=AdapterState.PROMOTED)
    write_adapter(tmp_path, "adding")
    write_adapter(tmp_path, "asking", state=AdapterState.DISCARDED)
    write_adapter(tmp_path, "telling", state=AdapterState.PROMOTED, base="b2")
    write_adapter(tmp_path, "writing", state=AdapterState.PROMOTED).rename(tmp_path / ".writing.new")
    (tmp_path / "pocket").mkdir()
    found = Adapters(tmp_path)
    assert list(found) == ["adding", "asking", "reading", "telling"]
    assert [item.name for item in found.routed_adapters()] == ["reading", "telling"]


def test_of_adapters_for_the_same_capabilities_the_last_promoted_is_routed_to(tmp_path: Path) -> None:
    promoted = {"state": AdapterState.PROMOTED}
    write_adapter(tmp_path, "reading", **promoted, promoted_on=3)
    write_adapter(tmp_path, "reading_2", capabilities=["reading"], **promoted, promoted_on=2)
    write_adapter(tmp_path, "both", capabilities=["reading", "adding"], **promoted, promoted_on=1)
    write_adapter(tmp_path, "foreign", capabilities=["reading"], base="b2", **promoted, promoted_on=1)
    write_adapter(tmp_path, "tried", capabilities=["reading"], promoted_on=9)
    found = Adapters(tmp_path)
    assert [item.name for item in found.routed_adapters()] == ["both", "foreign", "reading"]
    write_adapter(tmp_path, "reading_3", capabilities=["reading"], **promoted, promoted_on=4)
    assert [item.name for item in found.routed_adapters()] == ["both", "foreign", "reading_3"]


def test_what_is_unknown_or_damaged_is_told_in_one_line(tmp_path: Path) -> None:
    path = write_adapter(tmp_path, "reading")
    with pytest.raises(AdapterError, match=r"^unknown adapter 'raeding'; did you mean 'reading'\? in "):
        Adapters(tmp_path)["raeding"]
    (path / MANIFEST_NAME).write_text('{"capability": 1}', encoding="utf-8")
    with pytest.raises(AdapterError, match=r"manifest.json: damaged at capability: .*; train it again$"):
        Adapters(tmp_path)["reading"]


def test_a_candidate_talks_with_an_adapter(tmp_path: Path) -> None:
    adapters = Adapters(tmp_path / "adapters")
    write_adapter(adapters.folder, "reading")
    write_candidate(tmp_path, "v6", "frozen_at: 2026-10-01", "informed_by: [desk::heldout]", text="Be kind.")
    write_candidate(tmp_path, "v7", "parent: v6+reading", text="Be kinder.")
    known = Candidates(tmp_path, adapters)
    found = known["v6+reading"]
    assert (found.id, found.parent, found.adapter) == ("v6+reading", "v6", "reading")
    assert found.instruction == known["v6"].instruction
    assert found.digest != known["v6"].digest
    assert found.frozen_at == date(2026, 11, 22), "the later of both"
    assert found.informed_by == ("desk::heldout", "desk::discovery"), "and all that either had seen"
    assert [item.id for item in known.lineage("v7")] == ["v7", "v6+reading", "v6"]
    assert "v6+reading" in known
    assert "v6+adding" not in known
    assert list(known) == ["v6", "v7"]
    (adapters.folder / "reading" / WEIGHTS_NAME).write_bytes(b"others")
    assert known["v6+reading"].digest != found.digest


def test_a_routed_candidate_is_what_its_promoted_adapters_are(tmp_path: Path) -> None:
    adapters = Adapters(tmp_path / "adapters")
    write_candidate(tmp_path, "v6")
    known = Candidates(tmp_path, adapters)
    write_adapter(adapters.folder, "reading")
    assert "v6+routed" in known
    with pytest.raises(AdapterError, match=r"^\+routed: no adapter in .*adapters is promoted.*; train"):
        _ = known["v6+routed"]
    write_adapter(adapters.folder, "adding", state=AdapterState.PROMOTED)
    item = known["v6+routed"].digest
    write_adapter(adapters.folder, "asking", state=AdapterState.DISCARDED)
    assert known["v6+routed"].digest == item
    write_adapter(
        adapters.folder,
        "adding_1",
        state=AdapterState.PROMOTED,
        capabilities=["adding"],
        created_at="2026-11-01T10:00:00+00:00",
    )
    assert known["v6+routed"].digest == item, "the last promoted for a capability stands for it"
    write_adapter(adapters.folder, "telling", state=AdapterState.PROMOTED)
    assert known["v6+routed"].digest != item
    two = known["v6+routed"].digest
    (adapters.folder / PROBE_FILE).write_bytes(b"a router")
    assert known["v6+routed"].digest != two, "another router is another candidate"


@pytest.mark.parametrize("name", ["v6+nothing", "v6+Reading", "v8+reading", "v6+"])
def test_unknown_parts_of_a_candidate_are_named(tmp_path: Path, name: str) -> None:
    adapters = Adapters(tmp_path / "adapters")
    write_adapter(adapters.folder, "reading")
    write_candidate(tmp_path, "v6")
    with pytest.raises((AdapterError, CandidateError), match=r"^unknown (adapter|candidate) '"):
        _ = Candidates(tmp_path, adapters)[name]
