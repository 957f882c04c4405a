"""The embedded default, as who installed the wheel meets it: no key, no option, and a model that talks."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.evidence.baselines import read_evidence
from pytest_trace2evolve.evidence.results import read_results
from pytest_trace2evolve.serving.folder import folder_digest
from pytest_trace2evolve.utils.resources import embedded_model, has_embedded_model
from tests.ci_files import REPOSITORY
from tests.e2e.test_shipped import installed
from tests.patience import HANG_SECONDS

__all__ = ["installed"]

pytestmark = pytest.mark.skipif(not has_embedded_model(), reason="no embedded model ships yet")


@pytest.fixture
def laid_out(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of the installed package."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    made = run(tmp_path, "-m", "pytest_trace2evolve.cli", "init", "project")
    assert made.stdout.splitlines()[-1] == "next: cd project && pytest --candidate v7 -n 2"
    return tmp_path / "project"


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=HANG_SECONDS
    )


def said(folder: Path) -> dict[str, Any]:
    """Everything that was said and called in a run, by task and trial."""
    return {
        f"{one.task_id} {one.trial}": [(said.role, said.content, said.tool_calls) for said in one.trace]
        for one in read_results(folder).simulations
    }


def test_a_model_talks_where_nobody_is_named(laid_out: Path) -> None:
    """Real conversations; that a seed gives the same ones again is tested of smaller models."""
    done = run(
        laid_out,
        *("-m", "pytest", "--candidate", "v6", "-k", "policy_edge", "-n", "1"),
        *("--t2e-seed", "7", "--t2e-concurrency", "1", "--t2e-fresh", "--t2e-gate=off", "--t2e-trials=1"),
        *("-m", "not heldout", "--t2e-run-folder", "one"),
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = said(laid_out / "one")
    assert len(found) >= 4
    calls = [call for talk in found.values() for _, _, made in talk for call in made or ()]
    assert len(calls) >= len(found)
    assert "v6" in (laid_out / "one" / "run.json").read_text()


def test_the_baseline_that_ships_is_of_the_model_that_ships() -> None:
    path = REPOSITORY / "baselines" / "support" / "v0.json"
    agent = read_evidence(path).provenance.agent
    assert agent.arguments["weights"] == folder_digest(embedded_model())
    recorded = json.loads(path.read_text(encoding="utf-8"))
    assert recorded["provenance"]["candidate"]["id"] == "v0"
