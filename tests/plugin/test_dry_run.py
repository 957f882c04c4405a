"""`--t2e-dry-run` and `power --baseline-trials`: what a run costs and can show, before it starts."""

import json

import pytest

from pytest_trace2evolve.cli.main import main
from tests.plugin.conftest import DeskProject, letters, project

__all__ = ["letters", "project"]


def test_a_suite_that_cannot_decide_ends_with_status_2(project: DeskProject) -> None:
    project.baseline()
    before = project.runs
    result = project.run("--candidate=v1", "--t2e-gate=calibrated", "--t2e-dry-run")
    assert result.ret == 2
    result.stdout.re_match_lines(
        [r"desk::heldout cannot decide: even a candidate that passes every trial has p = 0\.0625, above .*"]
    )
    result.stderr.fnmatch_lines(["*--t2e-dry-run: desk::heldout cannot decide"])
    assert project.runs == before


def test_the_costs_of_each_true_gain_are_printed(project: DeskProject) -> None:
    project.baseline()
    project.write("policies/own.toml", "alpha = 0.4\n")
    before = project.runs
    result = project.run("--candidate=v1", "--t2e-gate=own", "--t2e-dry-run")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "desk::heldout, baseline v0",
            "4 tasks × 1 trials of the candidate, against 1 of the baseline; *",
            "true gain * promoted * simulations*",
            "none *%*",
            "+5 points *%*",
            "smallest gain promoted with 80%: *",
            "+5 points with as many simulations: with 2 trials of the baseline (4 simulations once): *%",
        ]
    )
    assert project.runs == before


def test_a_missing_baseline_is_an_obstacle(project: DeskProject) -> None:
    result = project.run("--candidate=v1", "--t2e-gate=calibrated", "--t2e-dry-run")
    assert result.ret == 2
    result.stdout.fnmatch_lines(["desk::heldout cannot decide: no ancestor of the candidate has a baseline"])


def test_power_prints_runs_in_stages(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["power", "--tasks=30", "--trials=4", "--baseline-trials=8", "-ot2e_resamples=100"]
    assert main(given) == 0
    assert capsys.readouterr().out.startswith("30 tasks × stages of 2, 4 trials of the candidate, against 8 ")
    assert main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    none, five, ten = found["forecasts"]
    assert none["promoted"] <= five["promoted"] <= ten["promoted"]
    assert sum(none["ended"]) == pytest.approx(1)
    assert found["smallest_gain"] > 0.05
    assert main(["power", "--tasks=3", "--trials=2", "--baseline-trials=2", "-ot2e_resamples=100"]) == 2
    assert main([*given, "--policy=strict"]) == 2
    assert "--baseline-trials needs a policy based on calibrated" in capsys.readouterr().err
