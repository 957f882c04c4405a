"""The action's own shell steps, run with bash and with programs that only note their calls."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_trace2evolve.report.summary import read_summary
from tests.ci_files import ActionRun

NOTING = """\
#!{python}
import json, os, sys
from pathlib import Path
log = Path({log!r})
seen = {{name: os.environ.get(name) for name in ("OPENAI_API_KEY", "T2E_API_KEY", "GITHUB_TOKEN")}}
with log.open("a") as file:
    file.write(json.dumps([Path(sys.argv[0]).name, sys.argv[1:], seen]) + "\\n")
for argument in sys.argv[1:]:
    if argument.startswith("--output=") and {status} in (0, 1, 10):
        folder = Path(argument.partition("=")[2]) / "v1"
        folder.mkdir(exist_ok=True)
        (folder / "summary.json").write_text('{{"candidate": "v1"}}')
sys.exit(0 if sys.argv[1] in ("check", "comment") else {status})
"""
NASTY = "v1'\"; touch owned; $(touch owned) `touch owned` & #"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ActionRun:
    """The action in an empty checkout; `pytest` and `trace2evolve` note how they are called."""
    for name in ("checkout", "temp", "bin"):
        (tmp_path / name).mkdir()
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("GITHUB_TOKEN", raising=False)
    made = ActionRun(tmp_path / "checkout", tmp_path / "temp", {"against": "main"}, path=tmp_path / "bin")
    for name in ("trace2evolve", "python-of-pip"):
        program(made, name)
    python = tmp_path / "bin" / "python"
    # pip would go to the network: its call is noted. Anything else is Python's.
    noted = f'if [ "$1" = -m ]; then exec "{tmp_path}/bin/python-of-pip" "$@"; fi'
    python.write_text(f'#!/bin/sh\n{noted}\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return made


def program(run: ActionRun, name: str, status: int = 0) -> None:
    """Put a program on the path that notes its call, leaves a summary and ends with a status."""
    assert run.path is not None
    path = run.path / name
    log = str(run.temp / "calls")
    path.write_text(NOTING.format(python=sys.executable, log=log, status=status))
    path.chmod(0o755)


def calls(run: ActionRun, name: str) -> list[tuple[list[str], dict[str, str | None]]]:
    """The calls of a program so far: arguments and secrets in sight."""
    log = run.temp / "calls"
    lines = log.read_text().splitlines() if log.exists() else []
    noted = [json.loads(line) for line in lines]
    return [(arguments, seen) for called, arguments, seen in noted if called == name]


def until(run: ActionRun, last: str, first: str = "prepare") -> subprocess.CompletedProcess[str]:
    """Run the steps in their order up to one."""
    order = ["prepare", "gate", "ended", "comment", "verdict"]
    for name in order[order.index(first) : order.index(last) + 1]:
        done = run.step(name)
        if done.returncode:
            break
    return done


@pytest.mark.parametrize("status", [0, 1, 10])
def test_the_verdict_is_the_jobs_exit_status(run: ActionRun, status: int) -> None:
    program(run, "trace2evolve", status)
    done = until(run, "comment")
    assert done.returncode == 0, done.stderr
    assert run.outputs["steps.gate.outputs.status"] == str(status)
    assert run.step("verdict").returncode == status
    assert [arguments[0] for arguments, _ in calls(run, "trace2evolve")] == ["check", "gate", "comment"]


def test_the_gate_gets_the_base_the_options_and_the_key(run: ActionRun) -> None:
    run.inputs |= {"against": NASTY, "api-key": "sk-1", "args": "-n 2 -k 'a b' \"$HOME\""}
    assert until(run, "gate").returncode == 0
    (check, _), (arguments, seen) = calls(run, "trace2evolve")
    assert check == ["check", f"--against={NASTY}"]
    options = ["--", "-n", "2", "-k", "a b", "$HOME"]
    assert arguments == ["gate", f"--against={NASTY}", f"--output={run.temp}/trace2evolve", *options]
    assert seen == {"OPENAI_API_KEY": "sk-1", "T2E_API_KEY": None, "GITHUB_TOKEN": None}
    assert not list(run.folder.iterdir())


def test_the_ledger_is_uploaded_with_the_runs(run: ActionRun) -> None:
    (run.folder / "ledger").mkdir()
    (run.folder / "ledger" / "entry.json").write_text("{}")
    assert until(run, "gate").returncode == 0
    assert (run.temp / "trace2evolve/ledger/entry.json").is_file()


@pytest.mark.parametrize(
    "args",
    [
        "-k 'a",
        "-k a\\",
    ],
)
def test_broken_quoting_is_a_usage_error(run: ActionRun, args: str) -> None:
    run.inputs["args"] = args
    done = until(run, "gate")
    assert done.returncode == 4
    assert re.fullmatch(
        r"::error::args cannot be split into words \(No .*\): quote them as .*\n", done.stdout
    )
    assert "Traceback" not in done.stderr
    assert calls(run, "trace2evolve") == calls(run, "python-of-pip") == []
    assert run.step("ended").returncode == 0
    summary = read_summary(run.temp / "trace2evolve/gate/summary.json")
    assert summary.trouble == "the job ended before its verdict (exit status 4): see its log"
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


@pytest.mark.parametrize(("content", "uploaded"), [("all", ""), ("summary", "/*/summary.*")])
def test_what_is_uploaded(run: ActionRun, content: str, uploaded: str) -> None:
    run.inputs["artifact-content"] = content
    assert run.step("prepare").returncode == 0
    assert run.outputs["steps.prepare.outputs.uploaded"] == f"{run.temp}/trace2evolve{uploaded}"
    run.inputs["artifact-content"] = "none"
    assert run.step("prepare").returncode == 2


def test_a_job_that_ended_before_its_verdict_is_told(run: ActionRun) -> None:
    program(run, "trace2evolve", 2)
    assert until(run, "ended").returncode == 0
    summary = read_summary(run.temp / "trace2evolve/gate/summary.json")
    assert summary.candidate == "this change"
    assert summary.trouble == "the job ended before its verdict (exit status 2): see its log"
    assert "## ⚠️ No verdict: the job ended before its verdict" in run.step_summary.read_text()


def test_the_comment_gets_numbers_of_the_event_and_the_token(run: ActionRun) -> None:
    run.event |= {"github.event.pull_request.number": "7", "github.event.pull_request.head.sha": "f" * 40}
    run.inputs |= {"github-token": "ghs_1", "comment-key": ""}
    assert until(run, "comment").returncode == 0
    *_, (arguments, seen) = calls(run, "trace2evolve")
    assert arguments == [
        "comment",
        f"{run.temp}/trace2evolve",
        *("--pr", "7", "--sha", "f" * 40),
        *("--run-url", "https://github.example/acme/agents/actions/runs/42"),
        *("--key", "prompt changes/gate"),
        "--best-effort",
    ]
    assert seen["GITHUB_TOKEN"] == "ghs_1"


def test_a_comment_that_fails_does_not_hide_the_verdict(run: ActionRun) -> None:
    program(run, "trace2evolve", 10)
    assert until(run, "ended").returncode == 0
    assert run.path is not None
    (run.path / "trace2evolve").write_text("#!/bin/sh\nexit 2\n")
    done = run.step("comment")
    assert (done.returncode, done.stdout) == (
        0,
        "::warning::no comment was made; see the job's summary instead\n",
    )
    assert run.step("verdict").returncode == 10
