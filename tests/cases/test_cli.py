"""`trace2evolve cases`: generate, check and show, with their exit statuses and texts."""

import json
from pathlib import Path

import pytest

from pytest_trace2evolve.cases.case import FAMILIES, read_cases
from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.records.task import Content

REPOSITORY = Path(__file__).resolve().parents[2]
FROZEN = REPOSITORY / "synthetic" / "pressure.jsonl"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def generate(*arguments: str) -> int:
    return main(["cases", "generate", "--seed", "7", *arguments])


def test_a_seed_writes_a_file_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("--count", "20", "--out", "a.jsonl") == 0
    assert capsys.readouterr().out == "a.jsonl: 20 cases; next: trace2evolve cases check a.jsonl\n"
    assert generate("--count", "20", "--out", "b.jsonl") == 0
    assert (folder / "a.jsonl").read_text() == (folder / "b.jsonl").read_text()
    cases = read_cases(folder / "a.jsonl")
    assert [case.script.family for case in cases[: len(FAMILIES)]] == list(FAMILIES)
    assert {case.script.content for case in cases} == {Content.TRAIN}
    before = (folder / "a.jsonl").read_text()
    capsys.readouterr()
    assert generate("--count", "3", "--out", "a.jsonl") == 2
    assert "--out a.jsonl already exists; delete it or choose a different name" in capsys.readouterr().err
    assert (folder / "a.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--count", "0", "--out", "x"], "--count 0: must be 1 or more"),
        (
            ["--count", "1", "--family", "policy_egde", "--out", "x"],
            "--family 'policy_egde' is unknown; did you mean 'policy_edge'?",
        ),
    ],
)
def test_what_cannot_be_generated_is_told(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(*arguments) == 2
    assert message in capsys.readouterr().err
    assert not Path("x").exists()


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("file/x.jsonl", "--out file/x.jsonl: file is not a folder; choose a different path"),
        ("file/a/x.jsonl", "--out file/a/x.jsonl: file is not a folder; choose a different path"),
        ("folder", "--out folder is a folder; name a file in it"),
        ("dangling", "--out dangling already exists; delete it or choose a different name"),
        ("y" * 300, f"--out {'y' * 300} cannot be written: File name too long"),
    ],
)
def test_what_cannot_be_written_is_told_with_its_cause(
    out: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "file").write_text("kept")
    (folder / "folder").mkdir()
    (folder / "dangling").symlink_to("nowhere")
    assert generate("--count", "1", "--out", out) == 2
    assert capsys.readouterr().err == f"trace2evolve: {message}\n"
    assert sorted(item.name for item in folder.rglob("*")) == ["dangling", "file", "folder"]
    assert (folder / "file").read_text() == "kept"


def test_a_case_that_cannot_be_run_is_one_problem_and_the_next_is_checked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generate("--count", "2", "--family", "missing_order_id", "--out", "two.jsonl")
    damaged, whole = map(json.loads, (folder / "two.jsonl").read_text().splitlines())
    tables = damaged["initial_state"]["initialization_data"]["agent_data"]
    for user in tables["users"].values():
        del user["payment_methods"]
    tables["orders"] = "none"
    (folder / "bad.jsonl").write_text("".join(json.dumps(item) + "\n" for item in (damaged, whole)))
    capsys.readouterr()
    assert main(["cases", "check", "bad.jsonl"]) == 1
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith(
        f"bad.jsonl: {damaged['id']}: it cannot be run: WorldError: initialization data do"
    )
    assert last == "bad.jsonl: 1 of 2 cases admitted"
    assert main(["cases", "show", "bad.jsonl", damaged["id"]]) == 0
    shown = capsys.readouterr().out
    assert 'orders: "none"' in shown


def broken_file(folder: Path) -> Path:
    """A file of four cases, three of them broken each in its own way."""
    generate("--count", "4", "--family", "missing_order_id", "--out", "four.jsonl")
    whole, unsolvable, trivial, mixed = map(json.loads, (folder / "four.jsonl").read_text().splitlines())
    write = unsolvable["evaluation_criteria"]["actions"][-1]
    write["arguments"]["order_id"] = "#W0000000"
    trivial["evaluation_criteria"]["reward_basis"] = ["COMMUNICATE"]
    mixed["user_scenario"]["script"]["replies"]["wait"] = ["One moment.\nVery well."]
    path = folder / "broken.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in (whole, unsolvable, trivial, mixed)))
    return path


def test_every_problem_of_a_case_is_told_and_the_status_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = broken_file(folder)
    capsys.readouterr()
    assert main(["cases", "check", str(path), "four.jsonl"]) == 1
    out = capsys.readouterr().out
    _, unsolvable, trivial, mixed = read_cases(path)
    assert f"{unsolvable.id}: the oracle makes a gold call that fails: Error: Order not found" in out
    assert f"{trivial.id}: an agent that does nothing passes, although the case requires an action" in out
    assert f"{mixed.id}: it is train but contains heldout content: 'very well'" in out
    assert f"{path}: 1 of 4 cases admitted" in out
    assert "four.jsonl: 4 of 4 cases admitted" in out


def test_a_file_is_listed_and_a_case_told_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cases", "show", str(FROZEN)]) == 0
    listed = capsys.readouterr().out
    cases = read_cases(FROZEN)
    assert all(case.id in listed for case in cases)
    case = next(item for item in cases if len(item.script.turns) > 1)
    assert main(["cases", "show", str(FROZEN), case.id]) == 0
    shown = capsys.readouterr().out
    for turn in case.script.turns:
        assert turn.says in shown
    for action in case.task.actions:
        assert f"{action.name}(" in shown
    (user_id,) = (item for item in case.script.turns[0].requests[0].about if "_" in item)
    assert f"* {user_id}" in shown


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("policy_edge", "6 cases begin with 'policy_edge': policy_edge-"),
        ("nothing", "no case has the id 'nothing'; known are "),
    ],
)
def test_a_case_that_is_not_one_is_told(start: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cases", "show", str(FROZEN), start]) == 2
    assert message in capsys.readouterr().err


def test_text_of_a_case_cannot_steer_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generate("--count", "1", "--out", "one.jsonl")
    record = json.loads((folder / "one.jsonl").read_text())
    record["user_scenario"]["script"]["turns"][0]["says"] = "\x1b[2J evil [bold]x[/bold]"
    (folder / "two.jsonl").write_text(json.dumps(record) + "\n")
    capsys.readouterr()
    for arguments in (["show", "two.jsonl"], ["show", "two.jsonl", record["id"]], ["check", "two.jsonl"]):
        main(["cases", *arguments])
        captured = capsys.readouterr()
        assert "\x1b[2J" not in captured.out + captured.err
