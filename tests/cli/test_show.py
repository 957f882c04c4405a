"""`trace2evolve show`: a trace in the terminal, and the look that it leaves in the ledger."""

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.evidence.ledger import Ledger
from pytest_trace2evolve.records.ledger import Access
from pytest_trace2evolve.session.ledger import user_name
from tests.plugin.conftest import SUITE, DeskProject

Shown = tuple[int, list[str], str]

HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07\x1b]8;;http://evil.example\x07click\x1b]8;;\x07 \x9b31mred\r\x08\x08 "
    "[bold red]markup[/] [link=http://evil.example]x[/link] :smiley: \u202etxt.exe\u200b"
    "\ud7ff\u2028end\x00\x7f"
)


@pytest.fixture
def run(project: DeskProject, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of v1 with two trials, its gate off; the reader stands in its project."""
    monkeypatch.chdir(project.root)
    project.run("--candidate=v1", "--t2e-trials=2", "--t2e-gate=off")
    return project.runs[-1]


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> Shown:
    capsys.readouterr()
    status = main(["show", *arguments])
    captured = capsys.readouterr()
    return status, captured.out.splitlines(), captured.err


def looks(root: Path) -> list[Access]:
    history = Ledger(root / "ledger").read()
    assert history.problems == ()
    return [entry for entry in history.entries_by_time if isinstance(entry, Access)]


def plain_file(run: Path, target: Path, **simulation: Any) -> Path:
    """A run as a plain tau2 results file: without our blocks, fields of every simulation replaced."""
    record = json.loads((run / "results.json").read_text(encoding="utf-8"))
    del record["info"]["trace2evolve"], record["simulation_index"]
    record["simulations"] = [
        json.loads(path.read_text(encoding="utf-8")) | simulation
        for path in sorted((run / "simulations").iterdir())
    ]
    target.write_text(json.dumps(record), encoding="utf-8")
    return target


def test_a_trace_is_shown_and_the_look_recorded(
    run: Path, project: DeskProject, capsys: pytest.CaptureFixture[str]
) -> None:
    status, lines, errors = shown(capsys, run.name, "close")
    assert (status, errors) == (0, "")
    assert lines[:3] == [
        "recorded in the ledger: this access to desk::heldout",
        f"{run.name} · task close, candidate v1, agent listed",
        "trial 0 of 0, 1 (--trial N)",
    ]
    text = "\n".join(lines)
    assert '→ close_ticket(ticket_id="T1")' in text
    assert "result of close_ticket" in text
    assert lines[-4:-2] == ["ended: user_stop, measured", "reward: 1"]
    assert lines[-2].startswith("components: ")
    assert lines[-1] == "all recorded checks passed"
    (entry,) = looks(project.root)
    assert (entry.suite, entry.split, entry.task, entry.domain) == ("desk", "heldout", "close", "desk")
    assert (entry.trials, entry.run, entry.who) == ((0,), run.name, user_name())


def test_the_look_is_recorded_before_anything_is_printed(
    run: Path, project: DeskProject, capsys: pytest.CaptureFixture[str]
) -> None:
    project.forget()
    project.write("ledger", "no folder")
    status, lines, error = shown(capsys, run.name, "close")
    assert (status, lines) == (2, [])
    (line,) = error.splitlines()
    assert "ledger: the access could not be recorded (" in line
    assert line.endswith("so nothing is shown; make the folder writable")
    assert shown(capsys, run.name, "idle")[0] == 0, "what may be read needs no entry"


def test_every_sealed_split_that_holds_the_task_is_told(
    run: Path, project: DeskProject, capsys: pytest.CaptureFixture[str]
) -> None:
    other = SUITE.replace('"close", "note", "restart", "look"', '"idle"').replace(
        '"idle", "opened"', '"opened"'
    )
    project.write("suites/other.toml", other.replace('"free"]', '"free"]\ntransfer = ["close"]'))
    project.lock()
    _, lines, _ = shown(capsys, run.name, "close")
    assert lines[:2] == [
        f"recorded in the ledger: this access to {item}" for item in ("desk::heldout", "other::transfer")
    ]
    _, lines, _ = shown(capsys, run.name, "idle")
    assert lines[0] == "recorded in the ledger: this access to other::heldout"
    places = [f"{entry.suite}::{entry.split}::{entry.task}" for entry in looks(project.root)]
    assert places == ["desk::heldout::close", "other::transfer::close", "other::heldout::idle"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere", "close"), "'nowhere' is neither a path nor a run in "),
        (("2", "close"), "run '2' matches several runs: "),
        (("", "close"), "a folder without results.json is not a results folder"),
        (("RUN", "clos"), "holds no simulation of task 'clos'; nearest are close, "),
        (("RUN", "close", "--trial", "2"), "task 'close' of RUN has no trial 2; it has 0, 1"),
    ],
)
def test_what_is_not_there_is_one_line(
    run: Path,
    project: DeskProject,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    project.run("--candidate=v0", "--t2e-gate=off")
    status, lines, error = shown(capsys, *(run.name if item == "RUN" else item for item in arguments))
    assert (status, lines) == (2, [])
    assert message.replace("RUN", run.name) in error
    assert len(error.splitlines()) == 1
    assert looks(project.root) == []


def test_nothing_in_a_trace_can_steer_the_terminal(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = {"id": "1", "name": HOSTILE, "arguments": {HOSTILE: HOSTILE, "list": [HOSTILE]}}
    messages = [
        {"role": "user", "content": HOSTILE},
        {"role": "assistant", "content": HOSTILE, "tool_calls": [call]},
        {"role": "tool", "id": "1", "content": HOSTILE, "error": True},
        {"role": "tool", "id": HOSTILE, "content": json.dumps({"a": HOSTILE}, ensure_ascii=False)},
    ]
    reward = {
        "reward": 0.0,
        "reward_breakdown": {HOSTILE: HOSTILE},
        "communicate_checks": [{"info": HOSTILE, "met": False, "justification": HOSTILE}],
        "action_checks": [
            {"action": {"name": HOSTILE, "arguments": HOSTILE}, "action_match": False},
            HOSTILE,
        ],
        "nl_assertions": HOSTILE,
    }
    info = {"error": HOSTILE, "trace2evolve": {"status": HOSTILE}}
    changes = {"messages": messages, "reward_info": reward, "info": info, "termination_reason": HOSTILE}
    path = plain_file(run, tmp_path / "runs.json", **changes)
    capsys.readouterr()
    assert main(["show", str(path), "idle", "--full"]) == 0
    out = capsys.readouterr().out
    assert all(sign == "\n" or sign.isprintable() for sign in out)
    assert out.count("\\x1b[2J\\x1b]0;owned\\x07") >= 10
    assert "[bold red]markup[/] [link=http://evil.example]x[/link] :smiley: \\u202etxt.exe\\u200b" in out


def test_hostile_names_in_an_error_are_inert_too(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = plain_file(run, tmp_path / "runs.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    for part, key in (("tasks", "id"), ("simulations", "task_id")):
        for item in record[part]:
            item[key] = f"\x1b[2J {item[key]}"
    path.write_text(json.dumps(record), encoding="utf-8")
    error = shown(capsys, str(path), "zzz")[2]
    assert "nearest are \\x1b[2J " in error
    assert "\x1b" not in error
