"""`trace2evolve show`: the runs, and the failed tasks of a run, without opening a trace."""

import json

import pytest

from pytest_trace2evolve.evidence.ledger import Ledger
from pytest_trace2evolve.records.ledger import Access
from tests.plugin.conftest import Command, DeskProject


def accesses(project: DeskProject) -> list[Access]:
    entries = Ledger(project.root / "ledger").read().entries_by_time
    return [entry for entry in entries if isinstance(entry, Access)]


def test_no_run_is_said(project: DeskProject, command: Command) -> None:
    done = command("show")
    assert done.stdout == (
        f"no runs in {project.root}/.trace2evolve/runs; start one with pytest --candidate ID\n"
    )
    assert json.loads(command("show", "--json").stdout) == {"runs": []}


def test_runs_are_listed_the_latest_first(project: DeskProject, command: Command) -> None:
    project.baseline("v0")
    project.run("--candidate=v1")
    gated, ungated = project.runs[-1].name, project.runs[0].name
    (project.root / ".trace2evolve" / "runs" / "0-killed").mkdir()
    done = command("show")
    assert (done.returncode, done.stderr) == (0, "")
    head, first, second, third = (line.split() for line in done.stdout.splitlines())
    assert head == ["run", "candidate", "suites", "started", "(UTC)", "decision", "evidence"]
    assert (first[:3], first[-2:]) == ([gated, "v1", "desk"], ["promote", "clean"])
    assert (second[:3], second[-3:]) == ([ungated, "v0", "desk"], ["not", "gated", "–"])
    assert third == ["0-killed", "–", "–", "–", "not", "finished", "–"]
    latest = json.loads(command("show", "--json").stdout)["runs"][0]
    assert latest == {
        "run": gated,
        "time": latest["time"],
        "candidate": "v1",
        "suites": ["desk"],
        "decision": "promote",
        "reason": "",
        "labels": ["clean"],
        "error": "",
    }


def test_failed_tasks_are_listed_and_no_trace_is_opened(project: DeskProject, command: Command) -> None:
    project.run("--candidate=v1", "--t2e-trials=2", "--t2e-gate=off")
    run = project.runs[-1].name
    done = command("show", run)
    assert (done.returncode, done.stderr) == (0, "")
    assert [" ".join(line.split()) for line in done.stdout.splitlines()] == [
        f"{run} · candidate v1 · 2 of 7 tasks failed",
        "suite split task failed trials reward",
        "desk discovery opened 2 of 2 0.000",
        "desk heldout ! look 2 of 2 0.000",
        "! sealed: the ledger records each access, which can end clean evidence",
        f"open a trace: trace2evolve show {run} opened --suite desk",
    ]
    assert accesses(project) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--trial", "0"), "--trial and --full show a trace; name its task after the run"),
        (("--full",), "--trial and --full show a trace; name its task after the run"),
        (("--json",), "--json lists the runs; leave out RUN"),
        (("--serve",), "--serve shows all runs; leave out RUN"),
        (("a", "--report", "p.html"), "--report cannot be combined with TASK; leave it out"),
    ],
)
def test_options_of_a_trace_need_its_task(command: Command, words: tuple[str, ...], message: str) -> None:
    done = command("show", "run", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"trace2evolve: {message}")
    assert len(done.stderr.splitlines()) == 1


def test_an_unknown_task_names_the_three_nearest(project: DeskProject, command: Command) -> None:
    project.run("--candidate=v1", "--t2e-gate=off")
    run = project.runs[-1].name
    done = command("show", run, "clse")
    assert done.returncode == 2
    message, _, names = done.stderr.rstrip("\n").partition("; nearest are ")
    assert message == f"trace2evolve: {run} holds no simulation of task 'clse'"
    assert names.split(", ")[0] == "close"
    assert len(names.split(", ")) == 3
    assert len(command("show", run, "x" * 500).stderr.split("; nearest are ")[1].split(", ")) == 3
