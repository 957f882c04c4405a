"""`pytest --t2e-evolve`: the session runs as without it, then an evolution learns from its run."""

import json
import os
from pathlib import Path

import pytest

from pytest_trace2evolve.records.adapter import MANIFEST_NAME
from pytest_trace2evolve.records.improvement import Stage
from pytest_trace2evolve.utils.resources import embedded_model, has_embedded_model
from tests.ci_files import REPOSITORY
from tests.improve.evolutions import CAPABILITY, DISCOVERY, write_project
from tests.plugin.conftest import DeskProject, project

__all__ = ["project"]

pytestmark = [
    pytest.mark.skipif(not has_embedded_model(), reason="no embedded model ships yet"),
    pytest.mark.usefixtures("forked_servers"),
]


@pytest.fixture
def root(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project without keys."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "PYTEST_ADDOPTS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")]))
    return pytester.path


@pytest.fixture
def support(pytester: pytest.Pytester, root: Path) -> pytest.Pytester:
    """A project with two cases of each split, which is too few to learn from."""
    write_project(root, discovery=(0, 1), heldout=2)
    pytester.makeini("[pytest]\naddopts = -q --t2e-gate=strict\n")
    return pytester


def runs_of(root: Path) -> list[Path]:
    folder = root / ".trace2evolve" / "runs"
    return list(folder.iterdir()) if folder.exists() else []


def test_where_nothing_can_be_learned_the_status_and_the_run_stand(support: pytest.Pytester) -> None:
    result = support.runpytest_inprocess(
        "--candidate=v6",
        "--t2e-evolve",
        "-ot2e_evolve_options=--max-adapters 2",
        "--t2e-trials=1",
        *("-p", "no:cacheprovider"),
    )
    assert result.ret in (0, 1), result.stdout.str()
    [run] = runs_of(support.path)
    lines = result.outlines
    budget = next(
        place for place, line in enumerate(lines) if line.startswith("evolving v6 on pocket: 2 ada")
    )
    summary = next(place for place, line in enumerate(lines) if " passed" in line or " failed" in line)
    [why] = [place for place, line in enumerate(lines) if line.startswith(f"trace2evolve: run {run}: ")]
    assert budget < summary < why
    resume = (
        f"trace2evolve: to resume from this run: trace2evolve --root {support.path} evolve --from-run {run}"
    )
    assert lines[why + 1] == f"{resume} --candidate v6 --max-adapters 2 -- --t2e-trials=1 --t2e-gate=strict"


def test_a_suite_of_another_world_than_the_environments_ends_it_before_the_session(
    project: DeskProject,
) -> None:
    result = project.pytester.runpytest_inprocess("--t2e-evolve", f"--t2e-model={embedded_model()}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "suite desk uses desk (provider fake), but no environment has its tools" in result.stderr.str()
    assert not project.runs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--t2e-agent=oracle"], "--t2e-agent cannot be combined with --t2e-evolve, which trains"),
        (["--t2e-results=x"], "--t2e-results cannot be combined with --t2e-evolve"),
        (["--t2e-stages=2,4"], "--t2e-stages cannot be combined with --t2e-evolve, because a run"),
        (["--t2e-gate=off"], "--t2e-gate=off: only the gate's verdict can promote an adapter"),
        (["--t2e-model=~nobody_here/m"], "~nobody_here/m: no such folder: this machine does not"),
        (["--t2e-model=m"], "--t2e-model m: --t2e-evolve needs a model folder"),
        (["-k", "note"], "-k cannot be combined with --t2e-evolve, because adapters are compared"),
        (["-mdiscovery"], "-mdiscovery cannot be combined with --t2e-evolve"),
        (["--ignore=suites"], "--ignore=suites cannot be combined with --t2e-evolve"),
        (["--lf"], "--lf cannot be combined with --t2e-evolve"),
        (["--stepwise"], "--stepwise cannot be combined with --t2e-evolve"),
        (["-x"], "-x (or --maxfail) cannot be combined with --t2e-evolve, because adapters are"),
        (["suites/desk.toml::heldout::note"], "::note cannot be combined with --t2e-evolve, because adap"),
        (["-ot2e_evolve_options='"], "t2e_evolve_options: No closing quotation"),
        (["-ot2e_evolve_options=--mots 2"], "t2e_evolve_options: unrecognized arguments: --mots 2"),
    ],
)
def test_what_leaves_nothing_to_evolve_is_a_usage_error(
    project: DeskProject, arguments: list[str], message: str
) -> None:
    result = project.pytester.runpytest_inprocess("--t2e-evolve", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in result.stderr.str()
    assert not project.runs


def test_a_gate_that_the_settings_turn_off_is_a_usage_error(support: pytest.Pytester) -> None:
    support.makeini("[pytest]\nt2e_gate = off\n")
    result = support.runpytest_inprocess("--t2e-evolve")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "t2e_gate = off in the pytest settings of" in result.stderr.str()
    assert not runs_of(support.path)


def test_an_impossible_budget_ends_it_before_the_session(support: pytest.Pytester) -> None:
    result = support.runpytest_inprocess("--t2e-evolve", "-ot2e_evolve_options=--max-rollouts 5")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--max-rollouts 5: the plan needs up to " in result.stderr.str()
    assert not runs_of(support.path)


RECIPE = "groups = 2\nrollouts = 2\nredraws = 0\nkl_every = 0\nthreads = 1\n"
SIZE = len(DISCOVERY) + 2
OPTIONS = "--config recipe.toml --steps 1 --max-adapters 1 --heldout 2"


def test_a_red_session_ends_with_a_trained_and_gated_adapter(pytester: pytest.Pytester, root: Path) -> None:
    """With a real training of one step. The answers are not sampled: few cases suffice to learn from."""
    write_project(root)
    (root / "recipe.toml").write_text(RECIPE)
    pytester.makeini(
        "[pytest]\naddopts = -q --t2e-trials=1 -ot2e_max_reruns=0 --t2e-temperature=0\n"
        "t2e_heldout_rollouts = 1\n"
    )
    result = pytester.runpytest_inprocess("--candidate=v6", "--t2e-evolve", f"-ot2e_evolve_options={OPTIONS}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED, "the session's own status"
    result.stdout.fnmatch_lines(
        [
            "evolving v6 on pocket: 1 adapter at most, up to *",
            "* failed, * passed in *",
            f"capabilities: * of {len(DISCOVERY)} traces failed; missing: {CAPABILITY} *",
            f"gate: v6+{CAPABILITY}: {SIZE} of {SIZE} tasks",
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
    manifest = json.loads((root / "adapters" / CAPABILITY / MANIFEST_NAME).read_text())
    assert manifest["evidence"] == state["runs"]
    assert manifest["informed_by"] == ["small::discovery"]
    assert (manifest["candidate"], manifest["steps"], len(manifest["heldout"])) == ("v6", 1, 6)
    assert manifest["verdict"]["candidate"] == f"v6+{CAPABILITY}"
    assert "step" in (folder / f"train-{CAPABILITY}.log").read_text()
