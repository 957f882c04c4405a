"""An evolution as it is: runs, a training in a process of its own and the router, on a small suite.

The capability that is missing is given, since six tasks show none. The gate itself promotes the adapter: the
goal is to be no worse, the learning rate is so small that the adapter is as its base, and answers are greedy.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.cli import main
from pytest_trace2evolve.diagnose.diagnosis import Learnt
from pytest_trace2evolve.environments.calibration_store import keep
from pytest_trace2evolve.environments.generators.scenario import EASIEST
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.improve import stages
from pytest_trace2evolve.records.adapter import MANIFEST
from pytest_trace2evolve.records.environment import Calibration, Figures, Outcome, Tried
from pytest_trace2evolve.records.improvement import Missing, Stage
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.serving.folder import folder_digest
from pytest_trace2evolve.utils.resources import embedded_model, has_embedded_model
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
rate = 1e-30
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
    base = tmp_path / "base"
    shutil.copytree(embedded_model(), base)
    (base / "generation_config.json").write_text('{"do_sample": false, "max_new_tokens": 160}')
    keep(tmp_path / ".trace2evolve" / "environments", calibrated(base))
    return tmp_path


def calibrated(base: Path) -> Calibration:
    """A calibration of the environment for the base, which takes minutes to make."""
    digest = Environments().generator(NAME, EASIEST).digest
    figures = Figures(
        groups=2,
        rollouts=4,
        lost=0,
        mean=0.4,
        std=0.3,
        all_top=0.1,
        all_zero=0.1,
        informative=0.8,
        pass_at={1: 0.4},
    )
    tried = Tried(
        difficulty=EASIEST, digest=digest, figures=figures, outside=(), tokens=None, calls=3.0, seconds=1.0
    )
    return Calibration(
        capability=NAME,
        digest=digest,
        model="base",
        weights=folder_digest(base),
        candidate="",
        content=Content.TRAIN.value,
        temperature=0.0,
        seeds=2,
        group=2,
        outcome=Outcome.FITS,
        difficulty=EASIEST,
        tried=(tried,),
    )


def test_a_red_run_ends_with_a_trained_gated_and_routed_adapter(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(project: Any, run: str, here: Path, environments: Any) -> Learnt:
        told = json.loads((Path(run) / "run.json").read_text())
        found = Missing(name=NAME, delta=0.5, coverage=0.4)
        return Learnt(
            (found,), (told["run_id"],), ("small::discovery",), failed=3, traces=3, environments=(NAME,)
        )

    monkeypatch.setattr(stages, "missing_of", missing)
    monkeypatch.setattr(stages, "OPENINGS", 2)
    asked = ["evolve", "--candidate", "v6", "--config", "recipe.toml", "--steps", "1", "--most", "1"]
    asked += ["--base", "base"]
    asked += ["--heldout", "2", "--heldout-rollouts", "1", "--", "--t2e-trials=1", "--t2e-confirm=0"]
    asked += ["--t2e-goal=hold", "--t2e-gate=strict"]
    assert main(asked) == 0, capsys.readouterr().err
    told = capsys.readouterr()
    assert told.err.startswith("evolving v6 on base: 1 adapter at most, up to 996 rollouts (")
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
    assert "--max-rollouts 10: up to 996 are needed (" in capsys.readouterr().err
