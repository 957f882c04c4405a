"""`pytest --t2e-evolve`: the session is as without it, then an evolution learns from its run."""

from pathlib import Path

import pytest

from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.improve.request import read_order, run_option_values
from pytest_trace2evolve.improve.runs import Runs
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.session.planner import resources_of
from pytest_trace2evolve.session.settings import Context
from tests.evolving.test_asking import request_of
from tests.plugin.conftest import DeskProject, project
from tests.serving.conftest import models
from tests.serving.test_sessions import settings

__all__ = ["models", "project", "settings"]

ENVIRONMENT = """
from pytest_trace2evolve.environments.generators.precondition import PreconditionVerification
from pytest_trace2evolve.records.protocols import Offer


def pytest_t2e_environments(config):
    return {"desk_work": Offer(PreconditionVerification, "pays for it", provider="fake", domain="desk")}
"""
"""A hook that offers an environment in the world of the desk."""


@pytest.fixture
def evolvable(project: DeskProject) -> DeskProject:
    """A project whose suite an environment has the tools of."""
    conftest = project.root / "conftest.py"
    conftest.write_text(conftest.read_text(encoding="utf-8") + ENVIRONMENT, encoding="utf-8")
    return project


def test_an_evolution_that_cannot_learn_prints_the_command_that_evolves_from_the_run(
    evolvable: DeskProject, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The session's report and exit status stand: the same session again would be another run."""
    suite = (evolvable.root / "suites" / "desk.toml").read_text(encoding="utf-8")
    evolvable.write("suites/other.toml", suite)
    evolvable.lock()
    base = models / "base"
    given = [
        f"--t2e-model={base}",
        "--t2e-trials=1",
        "--t2e-gate=strict",
        "--t2e-temperature=0.5",
        "--t2e-max-tokens=9000000",
    ]
    plain = evolvable.pytester.runpytest_inprocess("suites/desk.toml", *given)
    capfd.readouterr()
    result = evolvable.pytester.runpytest_inprocess(
        "suites/desk.toml", *given, "--t2e-fresh", "--t2e-evolve", "--t2e-evolve-options=--most 2 --steps 5"
    )
    assert result.ret == plain.ret
    result.stdout.fnmatch_lines(["trace2evolve: evolving v0 on base: 2 adapters at most, up to *"])
    assert len(evolvable.runs) == 2
    run = evolvable.runs[-1]
    told = capfd.readouterr().err
    assert f"trace2evolve: no trace to learn from in {run}: 4 traces of split 'heldout' are left out" in told
    [command] = [
        line for line in told.splitlines() if line.startswith("trace2evolve: to evolve from this run: ")
    ]
    assert command.endswith(
        f"trace2evolve --root {evolvable.root} evolve --base {base} --most 2 --steps 5 --from-run {run} -- "
        "--t2e-suite=desk --t2e-trials=1 --t2e-gate=strict --t2e-temperature=0.5 --t2e-max-tokens=9000000"
    )


def test_a_run_that_cannot_be_a_baseline_is_rejected_before_anything_is_learnt(
    evolvable: DeskProject, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = models / "base"
    made = evolvable.pytester.runpytest_inprocess(f"--t2e-model={base}", "--t2e-trials=1", "--t2e-gate=off")
    assert made.ret in (0, 1), made.stdout.str()
    run, before = evolvable.runs[-1], len(evolvable.runs)
    check(evolvable, base, run, "--t2e-gate=strict")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-any")
    with pytest.raises(ResultsError, match=r"cannot be compared: user model 'base' and 'm'"):
        check(evolvable, base, run, "--t2e-user-model=m", "--t2e-user-base-url=http://127.0.0.1:9/v1")
    assert len(evolvable.runs) == before


def check(project: DeskProject, base: Path, run: Path, *session: str) -> None:
    """Check whether a run can be the baseline of an evolution's runs."""
    resources = resources_of(Project(root=project.root, suites_folder=project.root / "suites"))
    request = request_of(base=base, from_run=str(run), candidate="v0")
    context = Context(root=project.root, here=project.root)
    environments = Environments(resources.project.extensions.environments, resources.worlds)
    order = read_order(request, run_option_values(session), context, resources, environments)
    Runs(order, resources).check(run, project.root / "unused")


def test_a_suite_of_another_world_than_the_environments_ends_it_before_the_session(
    project: DeskProject, models: Path
) -> None:
    given = ["--t2e-evolve", f"--t2e-model={models / 'base'}", "--t2e-trials=1", "--t2e-gate=strict"]
    result = project.pytester.runpytest_inprocess(*given)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    told = "suite desk is of desk (provider fake), and no environment has its tools: environments are played"
    assert told in result.stderr.str()
    assert not project.runs


def test_an_impossible_budget_ends_it_before_the_session(evolvable: DeskProject, models: Path) -> None:
    given = ["--t2e-evolve", f"--t2e-model={models / 'base'}", "--t2e-evolve-options=--max-rollouts 3"]
    result = evolvable.pytester.runpytest_inprocess(*given)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--max-rollouts 3: up to " in result.stderr.str()
    assert not evolvable.runs


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--t2e-evolve", "--t2e-agent=oracle"], "--t2e-agent does not go with --t2e-evolve, which trains"),
        (["--t2e-evolve", "--t2e-replay=x"], "--t2e-replay does not go with --t2e-evolve"),
        (["--t2e-evolve", "--t2e-stages=2,4"], "--t2e-stages does not go with --t2e-evolve: a run that may"),
        (
            ["--t2e-evolve", "--t2e-gate=off"],
            "--t2e-evolve: an adapter is promoted by the gate's verdict alone, and the gate is off: leave",
        ),
        (
            ["--t2e-evolve", "--t2e-model=~nobody_here/m"],
            "~nobody_here/m: no such folder: nobody here has",
        ),
        (["--t2e-evolve", "--t2e-model=m"], "--t2e-model m: --t2e-evolve trains adapters, and needs a model"),
        (["--t2e-evolve", "-k", "note"], "-k does not go with --t2e-evolve: adapters are compared with the"),
        *(
            (["--t2e-evolve", given], f"{told} does not go with --t2e-evolve: adapters are compared with")
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
        (["--t2e-evolve", "-x"], "-x (or --maxfail) does not go with --t2e-evolve: adapters are compared"),
        (
            ["--t2e-evolve", "suites/desk.toml::heldout::note"],
            "::note does not go with --t2e-evolve: adap",
        ),
        (["--t2e-evolve", "--t2e-evolve-options='"], "--t2e-evolve-options: No closing quotation"),
        (["--t2e-evolve-options=--most 2"], "--t2e-evolve-options says nothing without --t2e-evolve"),
    ],
)
def test_what_leaves_nothing_to_evolve_is_a_usage_error(
    project: DeskProject, arguments: list[str], told: str
) -> None:
    result = project.pytester.runpytest_inprocess(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert told in result.stderr.str()
    assert not project.runs


def test_a_gate_that_the_settings_turn_off_is_a_usage_error(project: DeskProject, models: Path) -> None:
    ini = project.root / "pytest.ini"
    ini.write_text(f"{ini.read_text()}t2e_gate = off\n" if ini.exists() else "[pytest]\nt2e_gate = off\n")
    result = project.pytester.runpytest_inprocess("--t2e-evolve", f"--t2e-model={models / 'base'}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "name a policy if the ini key t2e_gate is off" in result.stderr.str()


def test_a_wrong_option_of_the_evolution_is_a_usage_error(project: DeskProject, models: Path) -> None:
    result = project.pytester.runpytest_inprocess(
        "--t2e-evolve", "--t2e-evolve-options=--mots 2", f"--t2e-model={models / 'base'}"
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--t2e-evolve-options: unrecognized arguments: --mots 2" in result.stderr.str()
    assert not project.runs


def test_a_home_folder_is_where_it_is(
    evolvable: DeskProject, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(models))
    result = evolvable.pytester.runpytest_inprocess(
        "--t2e-evolve",
        "--t2e-model=~/base",
        "--t2e-user-model=~/base",
        "--t2e-evolve-options=--max-rollouts 3",
    )
    assert "--max-rollouts 3: up to " in result.stderr.str()
