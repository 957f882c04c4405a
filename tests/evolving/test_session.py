"""`pytest --t2e-evolve`: the session is as without it, then an evolution learns from its run."""

from pathlib import Path

import pytest

from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.improve.order import EvolveOrder
from pytest_trace2evolve.improve.stages import Evolving
from pytest_trace2evolve.improve.state import locked, read_state
from pytest_trace2evolve.plugin import evolution
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.serving.folder import read_model
from pytest_trace2evolve.session.option_table import OPTIONS
from pytest_trace2evolve.training.recipe import Recipe
from tests.plugin.conftest import DeskProject, project
from tests.serving.conftest import models
from tests.serving.test_sessions import settings

__all__ = ["models", "project", "settings"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What `trace2evolve` was called with; nothing is done."""
    calls: list[list[str]] = []

    def main(arguments: list[str]) -> int:
        calls.append(arguments)
        return 0

    monkeypatch.setattr(evolution, "main", main)
    return calls


def test_the_session_is_told_to_the_evolution(
    project: DeskProject, models: Path, asked: list[list[str]]
) -> None:
    base = models / "base"
    result = project.pytester.runpytest_inprocess(
        "--candidate=v0",
        "--t2e-evolve",
        "--t2e-evolve-options=--most 2 --steps 5",
        f"--t2e-model={base}",
        "--t2e-suite=desk",
        "--t2e-trials=1",
        "--t2e-gate=strict",
        "--t2e-summary=told.md",
        *("-p", "no:cacheprovider"),
    )
    assert result.ret in (0, 1), result.stdout.str()
    common = ["--root", str(project.root), "evolve", "--candidate", "v0", "--base", str(base)]
    common += ["--most", "2", "--steps", "5"]
    session = ["--", "--t2e-suite=desk", "--t2e-trials=1", "--t2e-gate=strict", "-pno:cacheprovider"]
    run = project.runs[-1]
    assert asked == [[*common, "--dry-run", *session], [*common, "--from-run", str(run), *session]]
    assert len(project.runs) == 1


def test_suites_that_are_named_by_their_files_are_handed_on(
    project: DeskProject, models: Path, asked: list[list[str]]
) -> None:
    suite = (project.root / "suites" / "desk.toml").read_text(encoding="utf-8")
    project.write("suites/other.toml", suite)
    project.lock()
    given = ["--t2e-evolve", f"--t2e-model={models / 'base'}", "--t2e-gate=strict", "--t2e-trials=1"]
    project.pytester.runpytest_inprocess("suites/desk.toml", *given)
    assert "--t2e-suite=desk" in asked[-1]
    asked.clear()
    project.pytester.runpytest_inprocess("suites", *given, "--t2e-candidate=nobody")
    assert not [one for one in asked[0] if one.startswith("--t2e-suite")], "all of them need no names"


def test_a_run_that_could_be_no_baseline_is_refused_before_anything_is_learnt(
    project: DeskProject, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a session in a process of its own, which is held against the run and runs nothing."""
    base = models / "base"
    made = project.pytester.runpytest_inprocess(f"--t2e-model={base}", "--t2e-trials=1", "--t2e-gate=off")
    assert made.ret in (0, 1), made.stdout.str()
    run, before = project.runs[-1], len(project.runs)
    trying(project, base, run, "--t2e-gate=strict")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-any")
    told = r"^rehearsal ended with status 4: .*cannot be compared: user model 'base' and 'm'.*rehearsal.log$"
    with pytest.raises(TrainingError, match=told):
        trying(project, base, run, "--t2e-user-model=m", "--t2e-user-base-url=http://127.0.0.1:9/v1")
    assert len(project.runs) == before


def trying(project: DeskProject, base: Path, run: Path, *session: str) -> None:
    """See whether a run can be the baseline of sessions."""
    known = Project(root=project.root, suites_folder=project.root / "suites")
    given = (f"--t2e-model={base}", *session)
    order = EvolveOrder("v0", run, read_model(base), Recipe(steps=1), "pocket", session=given)
    evolving = Evolving(order, known, Environments())
    evolving.state = read_state(evolving.folder, "v0", order.identity)
    with locked(evolving.folder) as evolving._lock:
        evolving._rehearse(run)


def test_where_learning_ends_early_the_command_that_goes_on_is_told(
    project: DeskProject, models: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And the session's status stands: the same session again would be another run."""
    monkeypatch.setattr(evolution, "main", lambda arguments: 130 if "--from-run" in arguments else 0)
    given = ["--t2e-evolve", f"--t2e-model={models / 'base'}", "--t2e-trials=1", "--t2e-gate=strict"]
    result = project.pytester.runpytest_inprocess(*given)
    assert result.ret in (0, 1)
    told = f"that is: trace2evolve --root {project.root} evolve --base {models / 'base'} --from-run"
    assert f"{told} {project.runs[-1]} -- --t2e-trials=1 --t2e-gate=strict" in capfd.readouterr().err


def test_a_suite_of_another_world_than_the_environments_ends_it_before_the_session(
    project: DeskProject, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = ["--t2e-evolve", f"--t2e-model={models / 'base'}", "--t2e-trials=1", "--t2e-gate=strict"]
    result = project.pytester.runpytest_inprocess(*given)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    told = (
        "suite desk is of desk (provider fake), and no environment has its tools: environments are played in "
    )
    assert told in capfd.readouterr().err
    assert not project.runs


def test_an_impossible_budget_ends_it_before_the_session(
    project: DeskProject, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evolution, "main", lambda arguments: 2)
    result = project.pytester.runpytest_inprocess("--t2e-evolve", f"--t2e-model={models / 'base'}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert not project.runs


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--t2e-evolve", "--t2e-agent=oracle"], "--t2e-agent does not go with --t2e-evolve, which trains"),
        (["--t2e-evolve", "--t2e-replay=x"], "--t2e-replay does not go with --t2e-evolve"),
        (["--t2e-evolve", "--t2e-stages=2,4"], "--t2e-stages does not go with --t2e-evolve: a run that may"),
        (
            ["--t2e-evolve", "--t2e-gate=off"],
            "--t2e-evolve promotes adapters by the gate's verdict, and the gate is off: leave --t2e-gate out",
        ),
        (
            ["--t2e-evolve", "--t2e-model=~nobody_here/m"],
            "~nobody_here/m: no such folder: nobody here has",
        ),
        (["--t2e-evolve", "--t2e-model=m"], "--t2e-model m: --t2e-evolve trains adapters, and needs a model"),
        (["--t2e-evolve", "-k", "note"], "-k does not go with --t2e-evolve: adapters are judged against the"),
        *(
            (["--t2e-evolve", given], f"{told} does not go with --t2e-evolve: adapters are judged against")
            for given, told in (
                ("-mdiscovery", "-mdiscovery"),
                ("--ignore=suites", "--ignore=suites"),
                ("--ignore-glob=s*", "--ignore-glob=s*"),
                ("--lf", "--lf"),
                ("--maxfail=1", "-x (or --maxfail)"),
                ("--deselect=x", "--deselect=x"),
                ("--stepwise", "--stepwise"),
                ("--sw-skip", "--stepwise-skip"),
                ("--sw-reset", "--stepwise-reset"),
            )
        ),
        (["--t2e-evolve", "-x"], "-x (or --maxfail) does not go with --t2e-evolve: adapters are judged"),
        (
            ["--t2e-evolve", "suites/desk.toml::heldout::note"],
            "::note does not go with --t2e-evolve: adap",
        ),
        (["--t2e-evolve", "--t2e-evolve-options='"], "--t2e-evolve-options: No closing quotation"),
        (["--t2e-evolve-options=--most 2"], "--t2e-evolve-options says nothing without --t2e-evolve"),
    ],
)
def test_what_leaves_nothing_to_evolve_is_a_usage_error(
    project: DeskProject, asked: list[list[str]], arguments: list[str], told: str
) -> None:
    result = project.pytester.runpytest_inprocess(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert told in result.stderr.str()
    assert asked == []
    assert not project.runs


def test_a_gate_that_the_settings_turn_off_is_a_usage_error(
    project: DeskProject, asked: list[list[str]], models: Path
) -> None:
    ini = project.root / "pytest.ini"
    ini.write_text(f"{ini.read_text()}t2e_gate = off\n" if ini.exists() else "[pytest]\nt2e_gate = off\n")
    result = project.pytester.runpytest_inprocess("--t2e-evolve", f"--t2e-model={models / 'base'}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "name a policy where the ini key t2e_gate is off" in result.stderr.str()
    assert asked == []


def test_a_wrong_option_of_the_evolution_is_a_usage_error(project: DeskProject, models: Path) -> None:
    result = project.pytester.runpytest_inprocess(
        "--t2e-evolve", "--t2e-evolve-options=--mots 2", f"--t2e-model={models / 'base'}"
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--mots" in result.stderr.str()
    assert not project.runs


def test_a_home_folder_is_where_it_is(
    project: DeskProject, models: Path, asked: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(models))
    project.pytester.runpytest_inprocess(
        "--t2e-evolve", "--t2e-model=~/base", "--t2e-user-model=~/base", "--t2e-trials=1"
    )
    [_, told] = asked
    assert told[told.index("--base") + 1] == str(models / "base")
    assert f"--t2e-user-model={models / 'base'}" in told


def test_the_adapters_are_asked_with_the_settings_of_the_session(
    project: DeskProject, models: Path, asked: list[list[str]]
) -> None:
    given = [
        "--t2e-key-var=HOME",
        "--t2e-reasoning-effort=low",
        '--t2e-extra-body={"top_p": 0.5}',
        "--t2e-judge=j",
        "--t2e-judge-base-url=http://127.0.0.1:9/v1",
        "--t2e-max-tokens=9000000",
        "--t2e-requests-per-minute=60000.0",
    ]
    project.pytester.runpytest_inprocess(
        "--t2e-evolve", f"--t2e-model={models / 'base'}", "--t2e-trials=1", *given
    )
    assert set(given) <= set(asked[-1])


def test_each_option_is_handed_on_or_known_to_be_the_sessions_own() -> None:
    passed, own = evolution._PASSED, evolution._OF_THE_SESSION
    assert passed | own == {option.destination for option in OPTIONS}
    assert not passed & own
