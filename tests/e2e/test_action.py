"""The action's own shell steps, run with bash: with programs that only note their calls, and with pytest."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_trace2evolve.report.summary import read_summary
from tests.ci_files import ActionRun
from tests.plugin.conftest import DeskProject, project

__all__ = ["project"]

NOTING = """\
#!{python}
import json, os, sys
from pathlib import Path
log = Path({log!r})
seen = {{name: os.environ.get(name) for name in ("OPENAI_API_KEY", "T2E_API_KEY", "GITHUB_TOKEN")}}
with log.open("a") as file:
    file.write(json.dumps([Path(sys.argv[0]).name, sys.argv[1:], seen]) + "\\n")
for argument in sys.argv[1:]:
    if argument.startswith("--t2e-summary=") and {status} < 2:
        Path(argument.partition("=")[2]).write_text('{{"candidate": "v1"}}')
    if argument.startswith("--t2e-run-folder=") and {verdict}:
        folder = Path(argument.partition("=")[2])
        folder.mkdir(exist_ok=True)
        (folder / "verdict.json").write_text("{{}}")
sys.exit({status})
"""
NASTY = "v1'\"; touch owned; $(touch owned) `touch owned` & #"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ActionRun:
    """The action in an empty checkout; `pytest` and `trace2evolve` note how they are called."""
    for name in ("checkout", "temp", "bin"):
        (tmp_path / name).mkdir()
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("GITHUB_TOKEN", raising=False)
    made = ActionRun(tmp_path / "checkout", tmp_path / "temp", {"candidate": "v1"}, path=tmp_path / "bin")
    for name in ("pytest", "trace2evolve", "python-of-pip"):
        program(made, name)
    python = tmp_path / "bin" / "python"
    # pip would go to the network: its call is noted. Anything else is Python's.
    noted = f'if [ "$1" = -m ]; then exec "{tmp_path}/bin/python-of-pip" "$@"; fi'
    python.write_text(f'#!/bin/sh\n{noted}\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return made


def program(run: ActionRun, name: str, status: int = 0, *, verdict: bool = True) -> None:
    """Put a program on the path that notes its call, leaves a verdict and ends with a status."""
    assert run.path is not None
    path = run.path / name
    log = str(run.temp / "calls")
    path.write_text(NOTING.format(python=sys.executable, log=log, status=status, verdict=verdict))
    path.chmod(0o755)


def calls(run: ActionRun, name: str) -> list[tuple[list[str], dict[str, str | None]]]:
    """The calls of a program so far: arguments and secrets in sight."""
    log = run.temp / "calls"
    lines = log.read_text().splitlines() if log.exists() else []
    noted = [json.loads(line) for line in lines]
    return [(arguments, seen) for called, arguments, seen in noted if called == name]


def until(run: ActionRun, last: str, first: str = "prepare") -> subprocess.CompletedProcess[str]:
    """Run the steps in their order up to one, the base side where it is asked for."""
    order = ["prepare", "base", "head", "ended", "comment", "verdict"]
    for name in order[order.index(first) : order.index(last) + 1]:
        if name == "base" and not run.inputs["base-ref"]:
            continue
        done = run.step(name)
        if done.returncode:
            break
    return done


@pytest.mark.parametrize("status", [0, 1, 2, 4, 10])
def test_the_verdict_is_the_jobs_exit_status(run: ActionRun, status: int) -> None:
    program(run, "pytest", status)
    done = until(run, "comment")
    assert done.returncode == 0, done.stderr
    assert run.outputs["steps.head.outputs.status"] == str(status)
    assert run.step("verdict").returncode == status
    assert len(calls(run, "trace2evolve")) == 1


NO_VERDICT = (
    "::error::pytest ended with exit status {} and wrote no verdict: see which options kept the suites from "
    "running, or give policy: off\n"
)


@pytest.mark.parametrize(
    ("status", "inputs"),
    [
        (0, {}),
        (1, {}),
        (0, {"policy": "strict"}),
        (0, {"policy": "off", "args": "--t2e-gate=strict"}),
        (1, {"policy": "off", "args": "-k x --t2e-gate off --t2e-gate strict"}),
        (0, {"args": "-k --t2e-gate=off --t2e-gate=strict"}),
    ],
)
def test_a_run_that_left_no_verdict_is_neither_promoted_nor_discarded(
    run: ActionRun, status: int, inputs: dict[str, str]
) -> None:
    program(run, "pytest", status, verdict=False)
    run.inputs |= inputs
    done = until(run, "head")
    assert (done.returncode, done.stdout) == (0, NO_VERDICT.format(status))
    assert run.outputs["steps.head.outputs.status"] == "3"
    assert run.step("ended").returncode == 0
    summary = read_summary(run.temp / "trace2evolve" / "summary.json")
    assert summary.trouble == "the run ended before its verdict (exit status 3): see the job's log"
    assert run.step("verdict").returncode == 3


@pytest.mark.parametrize(
    "inputs",
    [
        {"policy": "off"},
        {"args": "--t2e-gate=off"},
        {"policy": "strict", "args": "-x --t2e-gate=strict --t2e-gate off"},
    ],
)
@pytest.mark.parametrize("status", [0, 1])
def test_a_run_without_a_gate_needs_no_verdict(run: ActionRun, status: int, inputs: dict[str, str]) -> None:
    program(run, "pytest", status, verdict=False)
    run.inputs |= inputs
    assert until(run, "head").returncode == 0
    assert run.step("verdict").returncode == status


def test_a_verdict_of_an_earlier_run_is_not_its_own(run: ActionRun) -> None:
    assert until(run, "head").returncode == 0
    assert run.outputs["steps.head.outputs.status"] == "0"
    program(run, "pytest", verdict=False)
    assert run.step("head").returncode == 0
    assert run.outputs["steps.head.outputs.status"] == "3"


def test_every_input_reaches_pytest(run: ActionRun) -> None:
    run.inputs |= {
        "candidate": NASTY,
        "baseline": "v 0",
        "suites": "one  two\n*",
        "model": "m",
        "api-key": "sk-1",
        "trials": "4",
        "goal": "hold",
        "policy": "calibrated",
        "inconclusive": "pass",
        "max-cost": "2.5",
        "args": "-n 2 -k 'a b' \"$HOME\"",
    }
    assert until(run, "head").returncode == 0
    ((arguments, seen),) = calls(run, "pytest")
    folder = f"{run.temp}/trace2evolve"
    assert arguments == [
        "--candidate",
        NASTY,
        f"--t2e-run-folder={folder}/run",
        f"--t2e-summary={folder}/summary.json",
        f"--t2e-summary={folder}/summary.md",
        f"--junitxml={folder}/junit.xml",
        *("--t2e-suite=one", "--t2e-suite=two", "--t2e-suite=*"),
        "--t2e-baseline=v 0",
        "--t2e-model=m",
        "--t2e-trials=4",
        "--t2e-goal=hold",
        "--t2e-gate=calibrated",
        "--t2e-inconclusive=pass",
        "--t2e-max-cost=2.5",
        *("-n", "2", "-k", "a b", "$HOME"),
    ]
    assert seen == {"OPENAI_API_KEY": "sk-1", "T2E_API_KEY": None, "GITHUB_TOKEN": None}
    assert not list(run.folder.iterdir())


def test_nothing_is_said_that_was_not_given(run: ActionRun) -> None:
    assert until(run, "head").returncode == 0
    ((arguments, seen),) = calls(run, "pytest")
    assert arguments[-1] == "--t2e-goal=no-regression"  # the default of the action
    assert len(arguments) == 7
    assert seen["OPENAI_API_KEY"] is None


@pytest.mark.parametrize("args", ["-k 'a", '-k "a', "-k a\\", "'"])
def test_broken_quoting_is_a_usage_error(run: ActionRun, args: str) -> None:
    run.inputs["args"] = args
    done = until(run, "head")
    assert done.returncode == 4
    assert re.fullmatch(
        r"::error::args cannot be split into words \(No .*\): quote them as .*\n", done.stdout
    )
    assert "Traceback" not in done.stderr
    assert calls(run, "pytest") == calls(run, "python-of-pip") == []
    assert run.step("ended").returncode == 0
    summary = read_summary(run.temp / "trace2evolve" / "summary.json")
    assert summary.trouble == "the run ended before its verdict (exit status 4): see the job's log"
    assert run.step("verdict").returncode == 4


def test_a_job_without_a_verdict_is_no_discard(run: ActionRun) -> None:
    program(run, "python-of-pip", 1)
    assert until(run, "prepare").returncode == 1
    assert run.step("verdict").returncode == 3


@pytest.mark.parametrize(
    ("install", "packages"), [("", ["/the/action[tau2]"]), ("a==1 b[x]", ["a==1", "b[x]"])]
)
def test_pip_installs_what_is_named(run: ActionRun, install: str, packages: list[str]) -> None:
    run.inputs["install"] = install
    run.event["github.action_path"] = "/the/action"
    assert run.step("prepare").returncode == 0
    ((arguments, _),) = calls(run, "python-of-pip")
    assert arguments[-len(packages) :] == packages
    assert arguments[:3] == ["-m", "pip", "install"]


@pytest.mark.parametrize(("content", "uploaded"), [("all", ""), ("summary", "/summary.*")])
def test_what_is_uploaded(run: ActionRun, content: str, uploaded: str) -> None:
    run.inputs["artifact-content"] = content
    assert run.step("prepare").returncode == 0
    assert run.outputs["steps.prepare.outputs.uploaded"] == f"{run.temp}/trace2evolve{uploaded}"
    run.inputs["artifact-content"] = "none"
    assert run.step("prepare").returncode == 2


def test_a_run_that_ended_before_its_verdict_is_told(run: ActionRun) -> None:
    program(run, "pytest", 4)
    run.inputs["candidate"] = NASTY
    assert until(run, "ended").returncode == 0
    summary = read_summary(run.temp / "trace2evolve" / "summary.json")
    assert summary.candidate == NASTY
    assert summary.trouble == "the run ended before its verdict (exit status 4): see the job's log"
    assert "## ⚠️ No verdict: the run ended before its verdict" in run.step_summary.read_text()


def test_a_summary_that_is_there_is_left_alone(run: ActionRun) -> None:
    assert until(run, "ended").returncode == 0
    assert read_summary(run.temp / "trace2evolve" / "summary.json").trouble == ""
    assert run.step_summary.read_text() == ""


def test_the_comment_gets_numbers_of_the_event_and_the_token(run: ActionRun) -> None:
    run.event |= {"github.event.pull_request.number": "7", "github.event.pull_request.head.sha": "f" * 40}
    run.inputs |= {"github-token": "ghs_1", "comment-key": ""}
    assert until(run, "comment").returncode == 0
    ((arguments, seen),) = calls(run, "trace2evolve")
    assert arguments == [
        "comment",
        f"{run.temp}/trace2evolve/summary.json",
        *("--pr", "7", "--sha", "f" * 40),
        *("--run-url", "https://github.example/acme/agents/actions/runs/42"),
        *("--key", "prompt changes/gate"),
        "--best-effort",
    ]
    assert seen["GITHUB_TOKEN"] == "ghs_1"


def test_a_comment_that_fails_does_not_hide_the_verdict(run: ActionRun) -> None:
    program(run, "pytest", 10)
    program(run, "trace2evolve", 2)
    done = until(run, "comment")
    assert (done.returncode, done.stdout) == (
        0,
        "::warning::no comment was made; see the job's summary instead\n",
    )
    assert run.step("verdict").returncode == 10


# With git and pytest.


@pytest.fixture
def desk(project: DeskProject, run: ActionRun) -> DeskProject:
    """A project in git whose working folder changed its candidate since; `pytest` is the real one."""
    run.folder = project.root
    run.inputs |= {"candidate": "v1", "base-ref": "HEAD", "args": "--t2e-agent listed -p no:cacheprovider"}
    assert run.path is not None
    (run.path / "pytest").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pytest "$@"\n')
    project.write(".gitignore", ".trace2evolve/\n__pycache__/\n")
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    named = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    for arguments in (("init", "-q"), ("add", "."), ("commit", "-qm", "base")):
        subprocess.run(["git", *named, *arguments], cwd=project.root, env=surroundings, check=True)
    return project


@pytest.mark.parametrize(("instruction", "status"), [("close note restart look", 0), ("close", 1)])
def test_base_against_head(desk: DeskProject, run: ActionRun, instruction: str, status: int) -> None:
    desk.candidate("v1", instruction, parent="v0")
    done = until(run, "ended")
    assert done.returncode == 0, done.stdout + done.stderr
    assert run.step("verdict").returncode == status
    summary = read_summary(run.temp / "trace2evolve" / "summary.json")
    (suite,) = summary.suites
    assert suite.baseline == run.outputs["steps.base.outputs.baseline"]
    assert suite.verdicts[0].baseline.reward == 0.75
    assert run.step_summary.read_text(encoding="utf-8").count("\n## ") == 1
    for name in ("run/results.json", "base-run/results.json", "junit.xml", "summary.md"):
        assert (run.temp / "trace2evolve" / name).is_file(), name
    # Nothing was run, and nothing is promoted by it.
    words = ("--t2e-agent", "listed", "--collect-only")
    shutil.rmtree(run.temp / "trace2evolve" / "run")
    (run.temp / "trace2evolve" / ".args").write_text("".join(f"{word}\0" for word in words))
    assert run.step("head").returncode == 0
    assert run.outputs["steps.head.outputs.status"] == "3"
    # The job may be run again on the same machine.
    assert until(run, "head").returncode == 0


@pytest.mark.parametrize(
    ("inputs", "told", "status"),
    [
        ({"base-ref": "gone"}, "::error::base-ref is not in this checkout", 2),
        ({"base-ref": "--output=x"}, "::error::base-ref is no commit or branch", 2),
        ({"baseline": "v0"}, "::error::give baseline or base-ref, not both", 2),
        ({"base-candidate": "v9"}, "::error::the base side ended with exit status 4", 4),
        ({"args": "--t2e-agent listed -k close"}, "::error::the base side was not measured whole", 10),
    ],
)
def test_a_base_side_that_cannot_be_measured_is_told(
    desk: DeskProject, run: ActionRun, inputs: dict[str, str], told: str, status: int
) -> None:
    run.inputs |= inputs
    done = until(run, "base")
    assert done.returncode == status
    assert told in done.stdout
    assert run.step("ended").returncode == 0
    assert run.step("verdict").returncode == 3


def test_both_sides_share_what_is_finished(desk: DeskProject, run: ActionRun) -> None:
    assert until(run, "base").returncode == 0
    shared = run.temp / "trace2evolve-base" / ".trace2evolve" / "finished"
    assert shared.resolve() == (desk.root / ".trace2evolve" / "finished").resolve()
