"""An evolution as it is: sessions, a training and the router in processes of their own, on a small suite.

Two things are not left to chance, since a dozen tasks show neither: what is missing, and that an adapter of
one step is promoted.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.diagnose.diagnosis import Learnt
from pytest_trace2evolve.improve import stages
from pytest_trace2evolve.records.adapter import MANIFEST, AdapterState
from pytest_trace2evolve.records.improvement import Missing, Stage
from pytest_trace2evolve.session.adapters import note_verdict
from pytest_trace2evolve.utils.resources import has_embedded_model
from tests.ci_files import REPOSITORY

pytestmark = pytest.mark.skipif(not has_embedded_model(), reason="no embedded model ships yet")

NAME = "conditional_detail_retrieval"
FIRST = 11
"""Of the shipped cases, a capability a line: this one calls for it."""

SUITE = """\
provider = "trace2evolve"
domain = "support"
trials = 1
max_steps = 60

[splits]
discovery = { cases = "cases/discovery.jsonl" }
heldout = { cases = "cases/heldout.jsonl" }
"""

RECIPE = """\
groups = 2
rollouts = 2
redraws = 0
kl_every = 0
threads = 1
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with three cases of each split."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "PYTEST_ADDOPTS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")]))
    shutil.copytree(REPOSITORY / "candidates", tmp_path / "candidates")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -q\n")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "small.toml").write_text(SUITE)
    (tmp_path / "cases").mkdir()
    for split in ("discovery", "heldout"):
        lines = (REPOSITORY / "suites" / "support" / f"{split}.jsonl").read_text().splitlines()
        (tmp_path / "cases" / f"{split}.jsonl").write_text("\n".join(lines[FIRST : FIRST + 3]) + "\n")
    monkeypatch.chdir(tmp_path)
    assert main(["lock"]) == 0
    return tmp_path


def test_a_red_run_ends_with_a_trained_gated_and_routed_adapter(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(project: Any, run: str, here: Path, environments: Any) -> Learnt:
        told = json.loads((Path(run) / "run.json").read_text())
        found = Missing(name=NAME, delta=0.5, coverage=0.4)
        return Learnt(
            (found,), (told["run_id"],), ("small::discovery",), failed=3, traces=3, environments=(NAME,)
        )

    def promoted(project: Any, record: Any) -> None:
        adapter = note_verdict(project, record)
        assert adapter is not None
        changed = adapter.manifest.model_copy(update={"state": AdapterState.PROMOTED})
        (adapter.path / MANIFEST).write_text(changed.model_dump_json())

    monkeypatch.setattr(stages, "missing_of", missing)
    monkeypatch.setattr(stages, "note_verdict", promoted)
    monkeypatch.setattr(stages, "OPENINGS", 2)
    asked = ["evolve", "--candidate", "v6", "--config", "recipe.toml", "--steps", "1", "--most", "1"]
    asked += ["--heldout", "2", "--heldout-rollouts", "1", "--", "--t2e-trials=1", "--t2e-confirm=0"]
    assert main(asked) == 0, capsys.readouterr().err
    told = capsys.readouterr()
    assert told.err.startswith("evolving v6 on pocket: 1 adapter at most, up to 36 rollouts (")
    rows = [line.split()[0] for line in told.out.splitlines() if line.startswith("v6+")]
    assert rows == [f"v6+{NAME}", "v6+routed"]
    assert "router: right on " in told.out

    [folder] = (root / ".trace2evolve" / "evolving").iterdir()
    state = json.loads((folder / "state.json").read_text())
    assert state["done"] == list(Stage)
    assert set(state["judged"]) == {f"v6+{NAME}", "v6+routed"}
    manifest = json.loads((root / "adapters" / NAME / MANIFEST).read_text())
    assert manifest["evidence"] == state["runs"]
    assert manifest["informed_by"] == ["small::discovery"]
    assert (manifest["candidate"], manifest["steps"], len(manifest["heldout"])) == ("v6", 1, 6)
    assert manifest["verdict"]["candidate"] == f"v6+{NAME}"
    played = {
        name: [json.loads(file.read_text()) for file in (folder / name / "simulations").glob("*.json")]
        for name in ("run", f"gate-{NAME}", "gate-routed")
    }
    assert [len(simulations) for simulations in played.values()] == [6, 6, 6]
    routed = [
        [said["routing"]["chosen"] for said in one["messages"] if "routing" in said]
        for one in played["gate-routed"]
    ]
    assert [len(once) for once in routed] == [1] * 6
    assert {once[0] for once in routed} <= {NAME, "none"}

    written = {path: path.stat().st_mtime_ns for path in (root / "adapters").rglob("*")}
    assert main(asked) == 0
    again = capsys.readouterr()
    assert again.out == told.out
    assert "all of this was done before, and nothing is done now" in again.err
    assert written == {path: path.stat().st_mtime_ns for path in (root / "adapters").rglob("*")}
    assert main([*asked[:1], "--max-rollouts", "10", *asked[1:]]) == 2
    assert "--max-rollouts 10: up to 36 are needed (" in capsys.readouterr().err
