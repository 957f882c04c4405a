"""`pytest --t2e-evolve` as it is, with a real training of one step, in the process of the test."""

import json
import os

import pytest

from pytest_trace2evolve.records.adapter import MANIFEST
from pytest_trace2evolve.records.improvement import Stage
from pytest_trace2evolve.utils.resources import has_embedded_model
from tests.ci_files import REPOSITORY
from tests.improve.evolutions import CAPABILITY, write_project

pytestmark = pytest.mark.skipif(not has_embedded_model(), reason="no embedded model ships yet")

RECIPE = "groups = 2\nrollouts = 2\nredraws = 0\nkl_every = 0\nthreads = 1\n"
OPTIONS = "--config recipe.toml --steps 1 --most 1 --heldout 2 --heldout-rollouts 1"


def test_a_red_session_ends_with_a_trained_and_gated_adapter(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = pytester.path
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "PYTEST_ADDOPTS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")]))
    write_project(root)
    (root / "recipe.toml").write_text(RECIPE)
    pytester.makeini("[pytest]\naddopts = -q --t2e-trials=1 --t2e-confirm=0\n")

    result = pytester.runpytest_inprocess("--candidate=v6", "--t2e-evolve", f"--t2e-evolve-options={OPTIONS}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED, "the session's own status"
    result.stdout.fnmatch_lines(
        [
            "evolving v6 on pocket: 1 adapter at most, up to *",
            "* failed, * passed in *",
            f"capabilities: * of 56 traces failed; missing: {CAPABILITY} *",
            f"gate: v6+{CAPABILITY}: 60 of 60 tasks",
            f"v6+{CAPABILITY} *",
            "rollouts: *",
        ]
    )
    [folder] = (root / ".trace2evolve" / "evolving").iterdir()
    [run] = (root / ".trace2evolve" / "runs").iterdir()
    state = json.loads((folder / "state.json").read_text())
    assert state["done"] == list(Stage)
    assert state["folder"] == str(run)
    assert f"v6+{CAPABILITY}" in state["judged"]
    manifest = json.loads((root / "adapters" / CAPABILITY / MANIFEST).read_text())
    assert manifest["evidence"] == state["runs"]
    assert manifest["informed_by"] == ["small::discovery"]
    assert (manifest["candidate"], manifest["steps"], len(manifest["heldout"])) == ("v6", 1, 6)
    assert manifest["verdict"]["candidate"] == f"v6+{CAPABILITY}"
    assert "step" in (folder / f"train-{CAPABILITY}.log").read_text()
