"""Which baseline a run is compared with, and the next command of its report, which runs as it stands."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_trace2evolve.evidence.results import read_results
from tests.patience import HANG_SECONDS
from tests.plugin.conftest import CONFTEST, SUITE, DeskProject

UNSURE = """

def unsure(task, world, candidate, trial):
    # v0 passes every second trial, its child v1 passes every trial, and v2 none.
    passes = {"v0": trial % 2, "v1": True, "v2": False}[candidate.id] and task.id not in ("idle", "free")
    return (OracleAgent(task) if passes else NopAgent()), GoldUser(task)


def pytest_t2e_agents(config):
    return {"listed": listed, "unsure": unsure}
"""
NO_REGRESSION = "--t2e-goal=no-regression"


def git(root: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    identity = {f"GIT_{who}_{what}": "t@t" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, **identity}
    done = subprocess.run(
        ["git", *arguments], cwd=root, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_candidate_with_a_baseline_of_its_own_is_compared_with_it(project: DeskProject) -> None:
    project.baseline("v0")
    project.run("--candidate=v1", "--t2e-save-baseline=v1", "--t2e-gate=off")
    for goal, baseline in ((NO_REGRESSION, "v1"), ("--t2e-goal=improve", "v0"), ("--t2e-goal=hold", "v0")):
        result = project.run("--candidate=v1", goal)
        result.stdout.fnmatch_lines([f"* trace2evolve: v1 vs {baseline} · desk *"])
    # A child without a baseline is compared with its nearest ancestor, and an edited candidate with itself.
    project.run("--candidate=v2", NO_REGRESSION).stdout.fnmatch_lines(["* v2 vs v1 · desk *"])
    project.candidate("v1", "close note", parent="v0")
    edited = project.run("--candidate=v1", NO_REGRESSION)
    edited.stdout.fnmatch_lines(["* the working tree vs baseline v1 · desk *"])


def test_the_baselines_of_a_commit_are_used_whatever_was_saved_since(project: DeskProject) -> None:
    project.write(".gitignore", ".trace2evolve/\n__pycache__/\n")
    project.baseline("v1")
    git(project.root, "init", "-q")
    git(project.root, "add", ".")
    git(project.root, "commit", "-qm", "base")
    project.candidate("v1", "close", parent="v0")
    saving = ("--t2e-save-baseline=v1", "--t2e-baseline-mode=update", "--t2e-gate=off")
    assert project.run("--candidate=v1", *saving).ret == 0
    blessed = project.run("--candidate=v1", NO_REGRESSION)
    assert "PROMOTE" in blessed.stdout.str(), "compared with the baseline that it saved itself"
    honest = project.run("--candidate=v1", NO_REGRESSION, "--t2e-against=HEAD")
    honest.stdout.fnmatch_lines(["*heldout *.750 → .250 *", "DISCARD: *"])
    assert honest.ret == 1
    named = project.run("--candidate=v1", NO_REGRESSION, "--t2e-against=HEAD", "--t2e-baseline=v1")
    assert named.ret == 1
    gone = project.run("--candidate=v1", "--t2e-against=gone")
    assert gone.ret == 4
    assert "commit 'gone' is not in the git repository of " in gone.stderr.str()


def next_command(text: str) -> str:
    (command,) = re.findall(r"^ next: (.*)$", text, re.MULTILINE)
    return str(command)


def shell(project: DeskProject, command: str) -> "subprocess.CompletedProcess[str]":
    """Run a command as a user pastes it."""
    programs = project.root / "bin"
    programs.mkdir(exist_ok=True)
    for name, module in (("pytest", "pytest"), ("trace2evolve", "pytest_trace2evolve")):
        path = programs / name
        path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
        path.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.environ["PYTHONPATH"],
    }
    return subprocess.run(
        ["bash", "-c", command],
        cwd=project.root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )


def simulations_of(project: DeskProject, known: set[Path]) -> int:
    runs = set((project.root / ".trace2evolve/runs").iterdir()) - known
    return sum(len(read_results(run).simulations) for run in runs)


@pytest.mark.skipif(os.name == "nt", reason="the commands run in bash")
def test_each_next_command_of_a_small_project_runs_as_it_stands(project: DeskProject) -> None:
    """No baseline, then a first baseline, an open claim, a promotion, and a discard."""
    project.write("conftest.py", CONFTEST.split("def pytest_t2e_agents")[0] + UNSURE)
    project.write("suites/desk.toml", SUITE.replace("[splits]", 'trials = 2\nestimand = "suite"\n\n[splits]'))
    project.lock()
    first = shell(project, "pytest --candidate v1 --t2e-agent unsure --t2e-gate calibrated")
    command = next_command(first.stdout)
    assert command == "pytest --t2e-agent unsure --t2e-gate calibrated --candidate v0 --t2e-save-baseline v0"
    saved = shell(project, command)
    assert saved.returncode == 0, saved.stdout
    command = next_command(saved.stdout)
    assert command == "pytest --t2e-agent unsure --t2e-gate calibrated --candidate v1"
    opened = shell(project, command)
    assert opened.returncode == 10, opened.stdout
    command = next_command(opened.stdout)
    cost = r"--t2e-trials (\d+) # (\d+) simulations, and reruns of regressions$"
    ((trials, count),) = re.findall(cost, command)
    known = set((project.root / ".trace2evolve/runs").iterdir())
    settled = shell(project, command)
    assert settled.returncode == 0, settled.stdout + settled.stderr
    assert simulations_of(project, known) == int(count) == 2 * 7 * int(trials)
    command = next_command(settled.stdout.rpartition("test session starts")[2])
    assert command.startswith("trace2evolve baseline promote ")
    promoted = shell(project, command)
    assert "baselines/desk/v1.json: written" in promoted.stdout, promoted.stderr
    project.candidate("v2", "close restart look", parent="v1")
    discarded = shell(project, "pytest --candidate v2 --t2e-agent unsure --t2e-gate strict")
    assert "todo: revise or drop v2" in discarded.stdout, discarded.stdout + discarded.stderr
    shown = shell(project, next_command(discarded.stdout))
    assert (shown.returncode, "note" in shown.stdout) == (0, True), shown.stdout + shown.stderr
