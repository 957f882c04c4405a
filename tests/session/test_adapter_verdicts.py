"""What the gate said of an adapter goes into its manifest, if both are what they were."""

from pathlib import Path

import pytest

from pytest_trace2evolve.errors import AdapterError, ConfigError, ResultsError
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.adapter import MANIFEST_NAME, WEIGHTS_NAME, AdapterState, RewardChange
from pytest_trace2evolve.records.verdict import Decision, Goal, RunVerdict
from pytest_trace2evolve.session.promote import check_adapter_losses, record_adapter_verdict
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
        candidate=project.candidates[candidate].to_ref(),
    )


def measure(project: Project, change: float, high: float) -> None:
    """Write into the manifest what the adapter cost in a capability that it was not trained for."""
    path = project.adapters["reading"].path / MANIFEST_NAME
    cost = RewardChange(before=0.5, after=0.5 + change, rollouts=8, low=change - 0.05, high=high)
    manifest = project.adapters["reading"].manifest.model_copy(update={"heldout": {"adding": cost}})
    path.write_text(manifest.model_dump_json(), encoding="utf-8")


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
    record_adapter_verdict(own, judged(own, decision))
    manifest = own.adapters["reading"].manifest
    assert manifest.state is state
    assert manifest.verdict is not None
    assert (manifest.verdict.run, manifest.verdict.candidate) == ("r1", "v6+reading")
    assert own.adapters["reading"].is_promoted is (decision is Decision.PROMOTE)


def test_a_candidate_without_an_adapter_of_its_own_changes_nothing(own: Project) -> None:
    before = own.adapters["reading"].manifest
    assert record_adapter_verdict(own, judged(own, Decision.DISCARD, "v6")) is None
    record_adapter_verdict(own, judged(own, Decision.PROMOTE))
    assert record_adapter_verdict(own, judged(own, Decision.DISCARD, "v6+routed")) is None
    assert own.adapters["reading"].is_promoted
    assert before.state is AdapterState.TRAINED


def test_what_was_forgotten_is_not_promoted_by_hand(own: Project) -> None:
    record = judged(own, Decision.PROMOTE)
    check_adapter_losses(own, record)
    measure(own, -0.09, -0.02)
    message = (
        r"^adapters/reading: run r[12] was promoted by the gate, but the adapter forgot adding "
        r"\(−9.0 points\), so it is discarded; train an adapter that is measured elsewhere "
        r"and keeps its other capabilities$"
    )
    later = record.model_copy(update={"run": "r2"})
    for one in (record, later):
        with pytest.raises(ConfigError, match=message):
            check_adapter_losses(own, one)
    measure(own, -0.09, 0.01)
    with pytest.raises(
        ConfigError, match=r"the adapter perhaps forgot adding .*, so it is inconclusive; train"
    ):
        check_adapter_losses(own, later)
    check_adapter_losses(own, judged(own, Decision.PROMOTE, "v6"))


def test_what_was_never_measured_is_not_promoted(own: Project) -> None:
    write_adapter(own.root / "adapters", "adding", heldout={})
    record = judged(own, Decision.PROMOTE, "v6+adding")
    message = (
        r"^adapters/adding: .*, but the adapter was measured in no other environment, so it is "
        r"inconclusive; train "
    )
    with pytest.raises(ConfigError, match=message):
        check_adapter_losses(own, record)
    record_adapter_verdict(own, record)
    manifest = own.adapters["adding"].manifest
    assert manifest.state is AdapterState.INCONCLUSIVE
    assert manifest.verdict is not None
    assert manifest.verdict.why == "was measured in no other environment"


def test_no_verdict_of_another_run_lifts_what_was_forgotten(own: Project) -> None:
    measure(own, -0.09, -0.02)
    record_adapter_verdict(own, judged(own, Decision.PROMOTE))
    record_adapter_verdict(own, judged(own, Decision.PROMOTE).model_copy(update={"run": "r2"}))
    manifest = own.adapters["reading"].manifest
    assert manifest.state is AdapterState.DISCARDED
    assert manifest.verdict is not None
    assert (manifest.verdict.run, manifest.verdict.why) == ("r2", "forgot adding (−9.0 points)")


def test_a_run_that_was_not_whole_promotes_no_adapter(own: Project) -> None:
    record_adapter_verdict(own, judged(own, Decision.PROMOTE).model_copy(update={"partial": True}))
    assert own.adapters["reading"].manifest.state is AdapterState.INCONCLUSIVE


def test_a_verdict_on_other_weights_is_not_noted(own: Project) -> None:
    record = judged(own, Decision.PROMOTE)
    (own.adapters["reading"].path / WEIGHTS_NAME).write_bytes(b"others")
    with pytest.raises(ResultsError, match=r"adapters/reading: .* changed since run r1: .*; run it again$"):
        record_adapter_verdict(own, record)
    assert own.adapters["reading"].manifest.state is AdapterState.TRAINED
    (own.adapters["reading"].path / "manifest.json").unlink()
    with pytest.raises(AdapterError, match=r"^unknown adapter 'reading'; "):
        record_adapter_verdict(own, record)


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("v6", ["candidates/v6.md"]),
        ("v6+reading", ["candidates/v6.md", "adapters/reading"]),
        ("v6+routed", ["candidates/v6.md"]),
    ],
)
def test_a_candidate_with_an_adapter_has_the_files_of_both(own: Project, name: str, paths: list[str]) -> None:
    assert own.candidates.files(name) == [own.root / path for path in paths]
