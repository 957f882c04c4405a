"""What an evolution is asked for: whatever could not end is rejected before anything is played."""

import argparse
import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.environments.generators.precondition import PreconditionVerification
from pytest_trace2evolve.errors import ConfigError, MissingExtraError, PolicyError, ResultsError, SuiteError
from pytest_trace2evolve.improve.arguments import parse_run_options, run_arguments, run_values
from pytest_trace2evolve.improve.planner import read_source_run
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.serving.folder import folder_digest
from pytest_trace2evolve.utils.resources import embedded_model
from tests.gate_helpers import write_candidate
from tests.improve.evolutions import planned, write_project


def write_results(
    folder: Path,
    run: str,
    suite: str = "a",
    domain: str = "support",
    count: int = 0,
    provider: str | None = None,
) -> None:
    """A run's results of the embedded model, with simulations of task `t`."""
    folder.mkdir(parents=True, exist_ok=True)
    provider = provider or ("trace2evolve" if domain == "support" else "inspect_evals")
    provenance: dict[str, Any] = {"domain": domain, "provider": provider, "run_id": run, "suite": suite}
    agent = {"arguments": {"weights": folder_digest(embedded_model())}}
    provenance |= {"candidate": {"id": "v6", "digest": "d"}, "agent": agent}
    simulations = [
        {"id": f"{run}-{trial}", "task_id": "t", "trial": trial, "termination_reason": "user_stop"}
        for trial in range(count)
    ]
    tasks = [{"id": "t", "user_scenario": {"instructions": "x"}}]
    info = {"environment_info": {"domain_name": domain}, "trace2evolve": provenance}
    record = {"info": info, "tasks": tasks, "simulations": simulations}
    (folder / "results.json").write_text(json.dumps(record), encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with one suite, of 42 cases."""
    return write_project(tmp_path, discovery=range(40))


def parsed(*words: str) -> argparse.Namespace:
    found = argparse.Namespace()
    parse_run_options(words, found)
    return found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--t2e-cache"], "--t2e-cache: not an option of an evolution's runs; "),
        (["--candidate=v5"], "--candidate=v5: not an option of an evolution's runs; "),
        (["--t2e-trails", "4"], "--t2e-trails: not an option of an evolution's runs; did you mean"),
        (["-n", "2"], "-n: not an option of an evolution's runs; "),
        (["suites/a.toml"], "suites/a.toml: not an option of an evolution's runs; "),
        (["--t2e-trials"], "argument --t2e-trials: expected one argument"),
        (["--t2e-trials", "x"], "argument --t2e-trials: "),
        (["--t2e-trials=0"], "argument --t2e-trials: "),
        (["--t2e-goal=better"], "argument --t2e-goal: invalid choice: 'better'"),
    ],
)
def test_options_that_no_run_takes_are_usage_errors(words: Sequence[str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        parsed(*words)


def test_options_of_runs_make_a_command_again() -> None:
    words = [
        "--t2e-suite=a",
        "--t2e-suite=b",
        "--t2e-trials=2",
        "--t2e-temperature=0.5",
        "--t2e-max-tokens=9",
    ]
    assert sorted(run_arguments(run_values(parsed(*words)))) == sorted(words)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ({"t2e_goal": "no-regression"}, "--t2e-goal=no-regression: an evolution keeps only what the gate"),
        (
            {"t2e_gate": "off"},
            "--t2e-gate=off: only the gate's verdict can promote an adapter; remove the option",
        ),
        ({"t2e_gate": "mine"}, "unknown gate policy 'mine'"),
        ({"t2e_suite": ["none"]}, "unknown suite 'none'"),
        ({"t2e_gate": ""}, "--t2e-gate is empty; omit it or give a value"),
    ],
)
def test_runs_that_could_promote_nothing_are_rejected(
    project: Project, runs: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigError, PolicyError, SuiteError), match=f"{re.escape(message)}"):
        planned(project, **runs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--max-adapters 0", "--max-adapters 0: must be 1 or more"),
        ("--heldout 1", "--heldout 1: must be 2 or more"),
        ("--max-minutes 0", "--max-minutes 0: must be more than 0"),
        ("--candidate v6+x", "candidate 'v6+x' uses an adapter, but adapters are trained on the base"),
        ("--from-run nothing", "'nothing' is neither a path nor a run in "),
        ("--mots 2", "t2e_evolve_options: unrecognized arguments: --mots 2"),
        ("--max-adapters '2", "t2e_evolve_options: No closing quotation"),
    ],
)
def test_wrong_options_are_one_line(project: Project, options: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        planned(project, options)


@pytest.mark.parametrize(("module", "extra"), [("trl", "train"), ("peft", "train"), ("matplotlib", "plot")])
def test_a_missing_extra_is_reported_before_anything_is_played(
    project: Project, monkeypatch: pytest.MonkeyPatch, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    message = rf"^'{module}' is not installed; run: pip install 'pytest-trace2evolve\[{extra}\]'$"
    with pytest.raises(MissingExtraError, match=message):
        planned(project)


def test_the_size_of_a_run_follows_from_its_plan(project: Project) -> None:
    plan = planned(project, t2e_gate="calibrated", t2e_goal=None, t2e_trials=2)
    assert (plan.suites, plan.simulations, plan.max_fresh_simulations) == (("small",), 84, 640)
    assert planned(project, t2e_gate="calibrated", t2e_max_reruns=8).max_fresh_simulations == 8
    assert planned(project).max_fresh_simulations == 0, "strict confirms nothing"


def test_settings_that_name_another_agent_or_no_gate_are_rejected(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.root)
    ini = project.root / "pytest.ini"
    ini.write_text("[pytest]\nt2e_agent = oracle\n", encoding="utf-8")
    assert main(["evolve", "--dry-run"]) == 2
    assert f"t2e_agent = oracle in the pytest settings of {project.root}: the runs" in capsys.readouterr().err
    ini.write_text("[pytest]\nt2e_gate = off\n", encoding="utf-8")
    assert main(["evolve", "--dry-run"]) == 2
    assert "only the gate's verdict can promote an adapter; name a policy" in capsys.readouterr().err
    assert main(["evolve", "--dry-run", "--", "--t2e-gate", "strict"]) == 0
    assert main(["evolve", "--dry-run", "--", "--t2e-gate=strict", "--t2e-suite=small"]) == 0
    ini.unlink()
    path = project.suite_path("small")
    path.write_text(f'default_agent = "nop"\n{path.read_text()}', encoding="utf-8")
    assert main(["evolve", "--dry-run"]) == 2
    assert "small.toml: default_agent = nop: the runs would use this agent" in capsys.readouterr().err


def test_an_impossible_budget_is_an_error_before_the_run(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.root)
    assert main(["evolve", "--max-rollouts", "10"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("evolving v0 on pocket: 3 adapters at most, up to ")
    assert "--max-rollouts 10: the plan needs up to " in error
    assert not (project.root / ".trace2evolve" / "evolving").exists()


def test_suites_without_a_split_that_decides_are_rejected(project: Project) -> None:
    path = project.suite_path("small")
    path.write_text(re.sub("heldout = .*", "", path.read_text()), encoding="utf-8")
    assert main(["--root", str(project.root), "lock"]) == 0
    with pytest.raises(ConfigError, match=r"^no suite to run has a split that decides: small \(disc"):
        planned(project)


def test_a_customers_model_in_a_folder_is_found_from_where_the_user_stands(project: Project) -> None:
    shutil.copytree(embedded_model(), project.root / "m")
    found = planned(project, f"--candidate v6 --base {project.root / 'm'}", t2e_user_model="./m")
    assert found.values.t2e_user_model == found.values.t2e_model == str(project.root / "m")
    assert found.base.path == project.root / "m"


def test_a_run_of_several_domains_or_without_results_is_rejected(tmp_path: Path) -> None:
    write_results(tmp_path / "run" / "a", "r1", "a")
    write_results(tmp_path / "run" / "c", "r1", "c", domain="retail")
    message = rf"^run run covers several domains: a \(support\), c \(retail\); .* {tmp_path / 'run' / 'a'}$"
    with pytest.raises(ConfigError, match=message):
        read_source_run(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ResultsError, match=r"a folder without results.json is not a results folder"):
        read_source_run(tmp_path / "empty")


@pytest.mark.parametrize("changed", ["text", "lock", "environment", "policy"])
def test_any_change_makes_another_evolution(
    project: Project, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    (project.root / "policies").mkdir()
    policy = project.root / "policies" / "mine.toml"
    policy.write_text("alpha = 0.05\n", encoding="utf-8")
    before = planned(project, t2e_gate="mine").name
    assert planned(project, t2e_gate="mine").name == before
    if changed == "text":
        write_candidate(project.root / "candidates", "v6", text="Be kinder.")
    elif changed == "lock":
        cases = project.root / "cases" / "heldout.jsonl"
        cases.write_text("".join(cases.read_text().splitlines(keepends=True)[:1]))
        assert main(["--root", str(project.root), "lock"]) == 0
    elif changed == "environment":
        monkeypatch.setattr(PreconditionVerification, "version", PreconditionVerification.version + 1)
    else:
        policy.write_text("alpha = 0.01\n", encoding="utf-8")
    assert planned(project, t2e_gate="mine").name != before
