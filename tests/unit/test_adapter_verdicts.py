"""What the gate said of an adapter goes into its manifest, if both are what they were."""

from pathlib import Path

import pytest

from pytest_trace2evolve.errors import AdapterError, ConfigError, ResultsError
from pytest_trace2evolve.records.adapter import ADAPTER_WEIGHTS, AdapterState
from pytest_trace2evolve.records.run_verdict import RunVerdict
from pytest_trace2evolve.records.verdict import Decision, Goal
from pytest_trace2evolve.workflow.judging.adapters import note_verdict
from pytest_trace2evolve.workflow.judging.promote import _refuse_forgetting
from pytest_trace2evolve.workflow.project import Project
from tests.adapter_folders import write_adapter
from tests.gate_helpers import write_candidate


@pytest.fixture
def own(tmp_path: Path) -> Project:
    (tmp_path / "candidates").mkdir()
    write_candidate(tmp_path / "candidates", "v6", text="Be kind.")
    write_adapter(tmp_path / "adapters", "reading")
    return Project(root=tmp_path, suites_folder=tmp_path / "suites")


def judged(project: Project, decision: Decision | None, candidate: str = "v6+reading") -> RunVerdict:
    return RunVerdict(
        run="r1",
        time="2026-11-22T10:00:00+00:00",
        verdict=decision,
        partial=False,
        policy="calibrated",
        goal=Goal.HOLD,
        candidate=project.candidates[candidate].ref(),
    )


@pytest.mark.parametrize(
    ("decision", "state"),
    [
        (Decision.PROMOTE, AdapterState.PROMOTED),
        (Decision.DISCARD, AdapterState.DISCARDED),
        (Decision.INCONCLUSIVE, AdapterState.INCONCLUSIVE),
        (None, AdapterState.INCONCLUSIVE),
    ],
)
def test_the_manifest_says_what_the_gate_said(
    own: Project, decision: Decision | None, state: AdapterState
) -> None:
    note_verdict(own, judged(own, decision))
    manifest = own.adapters["reading"].manifest
    assert manifest.state is state
    assert manifest.verdict is not None
    assert (manifest.verdict.run, manifest.verdict.candidate) == ("r1", "v6+reading")
    assert own.adapters["reading"].promoted is (decision is Decision.PROMOTE)


def test_a_candidate_without_an_adapter_of_its_own_changes_nothing(own: Project) -> None:
    before = own.adapters["reading"].manifest
    assert note_verdict(own, judged(own, Decision.DISCARD, "v6")) is None
    note_verdict(own, judged(own, Decision.PROMOTE))
    assert note_verdict(own, judged(own, Decision.DISCARD, "v6+routed")) is None
    assert own.adapters["reading"].promoted
    assert before.state is AdapterState.TRAINED


def test_what_was_forgotten_is_not_promoted_by_hand(own: Project) -> None:
    record = judged(own, Decision.PROMOTE)
    _refuse_forgetting(own, record)
    note_verdict(own, record, state=AdapterState.DISCARDED, why="forgot adding (−9.0 points)")
    with pytest.raises(ConfigError, match=r"^adapters/reading: the gate promoted run r1, and the adapter f"):
        _refuse_forgetting(own, record)
    later = record.model_copy(update={"run": "r2"})
    _refuse_forgetting(own, later)
    _refuse_forgetting(own, judged(own, Decision.PROMOTE, "v6"))


def test_a_verdict_on_other_weights_is_not_noted(own: Project) -> None:
    record = judged(own, Decision.PROMOTE)
    (own.adapters["reading"].path / ADAPTER_WEIGHTS).write_bytes(b"others")
    with pytest.raises(ResultsError, match=r"adapters/reading: .* changed since run r1: .*; run it again$"):
        note_verdict(own, record)
    assert own.adapters["reading"].manifest.state is AdapterState.TRAINED
    (own.adapters["reading"].path / "manifest.json").unlink()
    with pytest.raises(AdapterError, match=r"^unknown adapter 'reading'; "):
        note_verdict(own, record)
