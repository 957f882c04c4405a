"""What the failures of a run lack, and one clear line if there is nothing to learn from it."""

import json
from pathlib import Path

import pytest

from benchmarks.deficits import Deficit
from pytest_trace2evolve.cases.case import Case
from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.diagnose.diagnosis import diagnose_run
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.evidence import Provenance
from pytest_trace2evolve.records.trace import Simulation
from tests.diagnose.deficient import cases, simulated, write_run

PRECISION, VERIFICATION = "tool_calling_precision", "precondition_verification"
ORIGIN = Provenance(domain="support", provider="trace2evolve", run_id="r1")

Made = list[tuple[Case, Simulation]]


@pytest.fixture(scope="module")
def deficient() -> Made:
    """Thirty cases: each lacks one of two capabilities, one of them more often, or none."""
    lacks = [{PRECISION: Deficit.HARM}, {VERIFICATION: Deficit.HARM}, {PRECISION: Deficit.HARM}, {}, {}]
    found = [*cases("missing_order_id", 40), *cases("precondition_verification", 20)]
    return [(case, simulated(case, lacks[place % 5])) for place, case in enumerate(found)]


@pytest.fixture
def own(tmp_path: Path) -> Project:
    return Project(root=tmp_path, suites_folder=tmp_path / "suites")


def test_the_capabilities_that_failures_lack_are_missing_by_their_contrast(
    own: Project, deficient: Made
) -> None:
    run = write_run(own.root / "run.json", deficient, ORIGIN)
    found = diagnose_run(own, str(run), own.root, Environments())
    assert {one.name for one in found.missing} == {PRECISION, VERIFICATION}
    assert [one.delta for one in found.missing] == sorted((one.delta for one in found.missing), reverse=True)
    assert (found.runs, found.splits, found.traces) == (("r1",), (), 60)
    assert 10 < found.failed < 40
    assert found.trainable_capabilities == found.missing


def test_the_splits_that_were_read_are_named(own: Project, deficient: Made) -> None:
    run = write_run(own.root / "run.json", deficient, ORIGIN)
    own.suites_folder.mkdir()
    lines = [json.dumps(case.task.model_dump(mode="json")) for case, _ in deficient]
    (own.root / "cases.jsonl").write_text("\n".join(lines))
    (own.suites_folder / "desk.toml").write_text(
        'provider = "trace2evolve"\ndomain = "support"\n[splits]\ndiscovery = { cases = "cases.jsonl" }\n'
    )
    assert main(["lock", "--root", str(own.root)]) == 0
    project = Project(root=own.root, suites_folder=own.suites_folder)
    assert diagnose_run(project, str(run), own.root, Environments()).splits == ("desk::discovery",)


def test_if_nothing_failed_there_is_nothing_to_learn(own: Project) -> None:
    made = [(case, simulated(case)) for case in cases("missing_order_id", 3)]
    run = write_run(own.root / "run.json", made, ORIGIN)
    with pytest.raises(
        ConfigError, match=r"none of its 3 traces outside sealed splits failed, so there is no"
    ):
        diagnose_run(own, str(run), own.root, Environments())


def test_if_no_capability_is_missing_by_contrast_it_says_so(own: Project) -> None:
    made = [(case, simulated(case, breaks=True)) for case in cases("missing_order_id", 4)]
    run = write_run(own.root / "run.json", made, ORIGIN)
    with pytest.raises(
        ConfigError, match=r"4 of 4 traces failed, but the contrast with the passed traces shows no miss"
    ):
        diagnose_run(own, str(run), own.root, Environments())
