"""Imported conversations become tasks that their own calls solve, in a project with a world of its own."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_trace2evolve.cli.main import main

LOAN = {"member": "Mia Berg", "title": "Middlemarch", "due_week": 20, "reserved": False}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def agent(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(name: str, loan: str, result: Any) -> list[dict[str, Any]]:
    function = {"name": name, "arguments": json.dumps({"loan_id": loan})}
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": name, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": name, "content": json.dumps(result)},
    ]


def conversation(loan: str, *, is_read: bool = True) -> list[dict[str, Any]]:
    return [
        user("Hello there, good morning to you!"),
        agent("Good morning. Who are you?"),
        user(f"My name is Mia Berg, and my loan number is {loan}."),
        agent("How can I help?"),
        user("Please renew this book for three weeks."),
        *(call("find_loan", loan, LOAN) if is_read else ()),
        *call("renew_loan", loan, {**LOAN, "due_week": 23}),
        *call("find_loan", loan, {**LOAN, "due_week": 23}),
        agent("I renewed it until week 23."),
        user("Thank you!"),
    ]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--for", "own"]) == 0
    capsys.readouterr()
    return tmp_path


def drafts(project: Path, *conversations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    log = project / "log.jsonl"
    log.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in conversations))
    assert main(["import", "log.jsonl", "--out", "drafts.yaml"]) == 0
    found: list[dict[str, Any]] = yaml.safe_load((project / "drafts.yaml").read_text("utf-8"))
    return found


def test_a_conversation_becomes_a_task_that_its_calls_solve(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (draft,) = drafts(project, conversation("L77"))
    assert draft["user"]["goal"].endswith("Please renew this book for three weeks. Thank you!")
    assert draft["user"]["opening"] == "Hello there, good morning to you!"
    ((loan_id, record),) = draft["data"]["loans"].items()
    assert loan_id != "L77"
    assert draft["expect"]["calls"] == [{"name": "renew_loan", "arguments": {"loan_id": loan_id}}]
    assert (record["due_week"], record["reserved"], record.keys()) == (20, False, LOAN.keys())
    assert "Mia" not in (project / "drafts.yaml").read_text("utf-8")
    assert "cannot be accepted" not in capsys.readouterr().out
    assert main(["cases", "review", "drafts.yaml", "--accept", draft["id"], "--into", "tasks.yaml"]) == 0
    assert main(["cases", "check", "tasks.yaml"]) == 0
    assert "5 of 5 tasks admitted" in capsys.readouterr().out


def test_a_draft_whose_calls_do_not_solve_it_is_not_admitted(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = drafts(project, conversation("L77"), conversation("L78", is_read=False))
    assert "cannot be accepted yet: 1 of 2 drafts, whose notes say why" in capsys.readouterr().out
    assert not any("not accepted" in note for note in good["draft"]["notes"])
    assert "not accepted yet: calls: renew_loan fails: Error: KeyError: " in bad["draft"]["notes"][-1]
    before = (project / "tasks.yaml").read_bytes()
    both = ["--accept", good["id"], bad["id"], "--into", "tasks.yaml"]
    assert main(["cases", "review", "drafts.yaml", *both]) == 2
    assert f"task {bad['id']}: calls: renew_loan fails: " in capsys.readouterr().err
    assert (project / "tasks.yaml").read_bytes() == before
    assert len(yaml.safe_load((project / "drafts.yaml").read_text("utf-8"))) == 2


def test_the_goal_is_what_the_customer_said(project: Path) -> None:
    texts = ["Good morning, can you help me?", "It is about my\nparcel.", "It never came. " * 50]
    (draft,) = drafts(project, [message for text in texts for message in (user(text), agent("And?"))])
    assert draft["user"]["opening"] == texts[0]
    assert draft["user"]["goal"].startswith(f"{texts[0]} It is about my parcel. It never came.")
    assert draft["user"]["goal"].endswith("…")
    assert len(draft["user"]["goal"]) <= 500
