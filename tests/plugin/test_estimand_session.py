"""Which tasks the verdict of a session is about: those of the suite, or tasks like them."""

import json
from typing import Any

import pytest

from pytest_trace2evolve.records.verdict import Estimand
from tests.plugin.conftest import CONFTEST, INI, SUITE, Command, DeskProject

OWN_WORLD = "fake_world:FakeWorld"
SENTENCE = "says nothing about other tasks"


@pytest.fixture
def own(project: DeskProject) -> DeskProject:
    """A project whose world is its own, named by an import path, under the default policy."""
    project.pytester.makeini(INI.replace("t2e_gate = strict\n", ""))
    project.pytester.makeconftest(CONFTEST.replace('{"fake": FakeWorld}', f'{{"{OWN_WORLD}": FakeWorld}}'))
    define(project)
    return project


def define(project: DeskProject, *settings: str, provider: str = OWN_WORLD) -> None:
    """Write the suite with further settings."""
    text = SUITE.replace('provider = "fake"', "\n".join([f'provider = "{provider}"', *settings]))
    project.write("suites/desk.toml", text)


def verdict(project: DeskProject) -> dict[str, Any]:
    """The verdict of the last run on the held-out split."""
    record = json.loads((project.runs[-1] / "verdict.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = record["suites"]["desk"]["verdicts"][0]
    return found


def compared(project: DeskProject, *arguments: str, trials: int = 2) -> pytest.RunResult:
    """A candidate against its saved baseline."""
    given = (f"--t2e-trials={trials}", "--t2e-goal=no-regression", *arguments)
    project.run("--candidate=v0", "--t2e-save-baseline=v0", "--t2e-gate=off", given[0])
    return project.run("--candidate=v1", *given)


def test_a_suite_of_ones_own_is_about_its_tasks(own: DeskProject, command: Command) -> None:
    assert command("lock").returncode == 0
    result = compared(own, "-v")
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"heldout decides ({SENTENCE}):"])
    assert verdict(own)["estimand"] == "suite"


@pytest.mark.parametrize("estimand", Estimand)
def test_a_suite_may_say_which(own: DeskProject, command: Command, estimand: Estimand) -> None:
    define(own, f'estimand = "{estimand}"')
    command("lock")
    compared(own)
    assert verdict(own)["estimand"] == estimand


def test_the_estimand_leaves_the_lock_as_it_is(own: DeskProject, command: Command) -> None:
    """It is part of the policy, whose settings identify a test in the ledger."""
    command("lock")
    compared(own)
    define(own, 'estimand = "tasks"')
    result = own.run("--candidate=v1", "--t2e-trials=2")
    assert result.ret == 10
    assert verdict(own)["estimand"] == "tasks"


def test_more_trials_continue_the_same_test_although_the_default_estimand_changes(
    own: DeskProject, command: Command
) -> None:
    command("lock")
    compared(own, "--t2e-goal=improve", trials=1)
    first = verdict(own)
    own.run("--candidate=v0", "--t2e-save-baseline=v0", "--t2e-baseline-mode=update", "--t2e-trials=2")
    own.run("--candidate=v1", "--t2e-trials=2", "--t2e-goal=improve")
    second = verdict(own)
    assert [found["estimand"] for found in (first, second)] == ["tasks", "suite"]
    assert [(found["look"], found["analysis"]) for found in (first, second)] == [(1, 1), (1, 2)]


def test_an_unknown_estimand_is_named(own: DeskProject) -> None:
    define(own, 'estimand = "population"')
    result = own.run("--candidate=v1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *desk.toml: *estimand*"])
