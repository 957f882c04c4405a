"""`pytest --t2e-evolve`: the session runs as without it, then an evolution learns from its run."""

import os
from pathlib import Path

import pytest

from pytest_trace2evolve.utils.resources import embedded_model, has_embedded_model
from tests.ci_files import REPOSITORY
from tests.improve.evolutions import write_project
from tests.plugin.conftest import DeskProject, project

__all__ = ["project"]

pytestmark = pytest.mark.skipif(not has_embedded_model(), reason="no embedded model ships yet")


@pytest.fixture
def support(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with two cases of each split, which is too few to learn from."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "PYTEST_ADDOPTS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")]))
    write_project(pytester.path, discovery=2, heldout=2)
    pytester.makeini("[pytest]\naddopts = -q --t2e-gate=strict\n")
    return pytester


def runs_of(root: Path) -> list[Path]:
    folder = root / ".trace2evolve" / "runs"
    return list(folder.iterdir()) if folder.exists() else []


def test_where_nothing_can_be_learned_the_status_and_the_run_stand(support: pytest.Pytester) -> None:
    result = support.runpytest_inprocess(
        "--candidate=v6",
        "--t2e-evolve",
        "--t2e-evolve-options=--most 2",
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
    assert lines[why + 1] == f"{resume} --candidate v6 --most 2 --t2e-trials=1 --t2e-gate=strict"


def test_a_suite_of_another_world_than_the_environments_ends_it_before_the_session(
    project: DeskProject,
) -> None:
    result = project.pytester.runpytest_inprocess("--t2e-evolve", f"--t2e-model={embedded_model()}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "suite desk is of desk (provider fake), and no environment has its tools" in result.stderr.str()
    assert not project.runs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--t2e-agent=oracle"], "--t2e-agent does not go with --t2e-evolve, which trains"),
        (["--t2e-replay=x"], "--t2e-replay does not go with --t2e-evolve"),
        (["--t2e-stages=2,4"], "--t2e-stages does not go with --t2e-evolve: a run that may"),
        (
            ["--t2e-gate=off"],
            "--t2e-gate=off: an adapter is promoted by the gate's verdict alone",
        ),
        (["--t2e-model=~nobody_here/m"], "~nobody_here/m: no such folder: nobody here has"),
        (["--t2e-model=m"], "--t2e-model m: --t2e-evolve trains adapters, and needs a model"),
        (["-k", "note"], "-k does not go with --t2e-evolve: adapters are judged against the"),
        (["-mdiscovery"], "-mdiscovery does not go with --t2e-evolve"),
        (["--ignore=suites"], "--ignore=suites does not go with --t2e-evolve"),
        (["--lf"], "--lf does not go with --t2e-evolve"),
        (["--stepwise"], "--stepwise does not go with --t2e-evolve"),
        (["-x"], "-x (or --maxfail) does not go with --t2e-evolve: adapters are judged"),
        (["suites/desk.toml::heldout::note"], "::note does not go with --t2e-evolve: adap"),
        (["--t2e-evolve-options='"], "--t2e-evolve-options: No closing quotation"),
        (["--t2e-evolve-options=--mots 2"], "--t2e-evolve-options: unrecognized arguments: --mots 2"),
    ],
)
def test_what_leaves_nothing_to_evolve_is_a_usage_error(
    project: DeskProject, arguments: list[str], message: str
) -> None:
    result = project.pytester.runpytest_inprocess("--t2e-evolve", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in result.stderr.str()
    assert not project.runs


def test_its_options_have_no_effect_alone(project: DeskProject) -> None:
    result = project.pytester.runpytest_inprocess("--t2e-evolve-options=--most 2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--t2e-evolve-options has no effect without --t2e-evolve" in result.stderr.str()


def test_a_gate_that_the_settings_turn_off_is_a_usage_error(support: pytest.Pytester) -> None:
    support.makeini("[pytest]\nt2e_gate = off\n")
    result = support.runpytest_inprocess("--t2e-evolve")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "t2e_gate = off in the pytest settings of" in result.stderr.str()
    assert not runs_of(support.path)


def test_an_impossible_budget_ends_it_before_the_session(support: pytest.Pytester) -> None:
    result = support.runpytest_inprocess("--t2e-evolve", "--t2e-evolve-options=--max-rollouts 5")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--max-rollouts 5: up to " in result.stderr.str()
    assert not runs_of(support.path)
