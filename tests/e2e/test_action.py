"""The action's own shell steps, run with bash and with programs that only note their calls."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ci_files import ACTION, ActionRun, load, steps
from tests.fake_github import LIMIT, FakeGitHub

NEEDS_JQ = pytest.mark.skipif(shutil.which("jq") is None, reason="the gh of these tests needs jq")

NOTING = """\
#!{python}
import json, os, sys
from pathlib import Path
log = Path({log!r})
seen = {{name: os.environ.get(name) for name in ("OPENAI_API_KEY", "T2E_API_KEY", "GH_TOKEN")}}
with log.open("a") as file:
    file.write(json.dumps([Path(sys.argv[0]).name, sys.argv[1:], seen]) + "\\n")
for argument in sys.argv[1:]:
    if argument.startswith("--output=") and {status} in (0, 1, 10):
        folder = Path(argument.partition("=")[2]) / "v1"
        folder.mkdir(exist_ok=True)
        (folder / "summary.md").write_text("## Discard: `v1`\\n")
sys.exit(0 if sys.argv[1] == "check" else {status})
"""
NASTY = "v1'\"; touch owned; $(touch owned) `touch owned` & #"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ActionRun:
    """The action in an empty checkout; `pytest` and `trace2evolve` note how they are called."""
    for name in ("checkout", "temp", "bin"):
        (tmp_path / name).mkdir()
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("GH_TOKEN", raising=False)
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
    done = until(run, "ended")
    assert done.returncode == 0, done.stderr
    assert run.outputs["steps.gate.outputs.status"] == str(status)
    assert run.step("verdict").returncode == status
    assert [arguments[0] for arguments, _ in calls(run, "trace2evolve")] == ["check", "gate"]


def test_the_gate_gets_the_base_the_options_and_the_key(run: ActionRun) -> None:
    run.inputs |= {"against": NASTY, "api-key": "sk-1", "args": "-n 2 -k 'a b' \"$HOME\""}
    assert until(run, "gate").returncode == 0
    (check, _), (arguments, seen) = calls(run, "trace2evolve")
    assert check == ["check", f"--against={NASTY}"]
    options = ["--", "-n", "2", "-k", "a b", "$HOME"]
    assert arguments == ["gate", f"--against={NASTY}", f"--output={run.temp}/trace2evolve", *options]
    assert seen == {"OPENAI_API_KEY": "sk-1", "T2E_API_KEY": None, "GH_TOKEN": None}
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
    summary = (run.temp / "trace2evolve/gate/summary.md").read_text()
    assert "No verdict: the job ended before its verdict (exit status 4): see its log" in summary
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
    summary = (run.temp / "trace2evolve/gate/summary.md").read_text()
    assert summary == "## ⚠️ No verdict: the job ended before its verdict (exit status 2): see its log\n"
    assert run.step_summary.read_text() == summary


@pytest.fixture
def gated(run: ActionRun) -> ActionRun:
    """The action after its gate, in the event of pull request 7."""
    run.event |= {"github.event.pull_request.number": "7", "github.event.pull_request.head.sha": "f" * 40}
    run.inputs |= {"github-token": "ghs_1"}
    assert until(run, "ended").returncode == 0
    return run


MARK = "<!-- trace2evolve: prompt changes/gate -->"


@NEEDS_JQ
@pytest.mark.parametrize(("login", "author"), [("", "github-actions[bot]"), ("ci-bot", "ci-bot")])
def test_one_comment_of_its_own_is_made_and_updated(gated: ActionRun, login: str, author: str) -> None:
    assert gated.path is not None
    github = FakeGitHub(gated.path, login)
    github.add(f"{MARK}\nmine", "stranger")
    github.add(f"> {MARK}\nlook at this", author)
    assert gated.step("comment").returncode == 0
    folder = gated.temp / "trace2evolve"
    shutil.copytree(folder / "v1", folder / "v2")
    assert gated.step("comment").returncode == 0
    strange, quoting, comment = github.comments
    assert (strange["body"], quoting["body"]) == (f"{MARK}\nmine", f"> {MARK}\nlook at this")
    url = "https://github.example/acme/agents/actions/runs/42"
    assert comment["user"]["login"] == author
    assert comment["body"].splitlines() == [
        *(MARK, "", f"*commit {'f' * 12} · [job and artifacts]({url})*", ""),
        *(["## Discard: `v1`"] * 2),
    ]
    assert {(token, host) for _, _, token, host in github.state["calls"]} == {("ghs_1", "github.example")}


@NEEDS_JQ
def test_a_comment_has_the_length_that_github_allows(gated: ActionRun) -> None:
    assert gated.path is not None
    github = FakeGitHub(gated.path)
    (gated.temp / "trace2evolve/v1/summary.md").write_text("🙂" * LIMIT, encoding="utf-8")
    assert gated.step("comment").returncode == 0
    assert len(github.comments[0]["body"]) > LIMIT / 5


def test_without_a_report_nothing_is_asked_of_github(run: ActionRun) -> None:
    (run.temp / "trace2evolve").mkdir()
    run.outputs["steps.prepare.outputs.folder"] = str(run.temp / "trace2evolve")
    assert run.path is not None
    github = FakeGitHub(run.path)
    assert run.step("comment").returncode == 0
    assert github.state["calls"] == []


@NEEDS_JQ
def test_a_comment_that_fails_does_not_hide_the_verdict(run: ActionRun) -> None:
    program(run, "trace2evolve", 10)
    run.event["github.event.pull_request.number"] = "7"
    assert until(run, "ended").returncode == 0
    assert run.path is not None
    FakeGitHub(run.path, refuses=True)
    done = run.step("comment")
    assert done.returncode != 0
    assert "Resource not accessible by integration" in done.stderr
    (comment,) = (step for step in steps(load(ACTION)) if step.get("id") == "comment")
    assert comment["continue-on-error"] is True
    assert run.step("verdict").returncode == 10
