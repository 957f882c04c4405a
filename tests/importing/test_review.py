"""The review: nothing enters a suite without a person, nothing is lost, and nothing is added twice."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_trace2evolve.cases.written import parse_written_task
from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.errors import CaseError, LogError
from pytest_trace2evolve.importing.conversation import conversation_of, turns_of
from pytest_trace2evolve.importing.drafts import drafts_of
from pytest_trace2evolve.importing.redact import Redactor
from pytest_trace2evolve.importing.review import read_drafts, review
from pytest_trace2evolve.utils.yaml_text import parse_yaml

DRAFTS = """\
# Drafts: a person reviews each one.

- id: cancel-1  # checked with the hotel
  user:
    goal: Cancel booking B91.
    # the customer is in a hurry
  expect:
    calls: []
  draft:
    source: a.jsonl
    notes:
    - read it
  tags: [cancel]
- id: cancel-2
  user: {goal: Cancel it}
  expect: {data: {}}
  draft: {source: a.jsonl}
- id: talk-3
  user:
    goal: Ask
  expect: {data: {}}
  draft:
    source: a.jsonl
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drafts.yaml").write_text(DRAFTS, encoding="utf-8")
    return tmp_path


def tasks(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8")) or []
    return found


def ids(path: Path) -> list[str]:
    return [task["id"] for task in tasks(path)]


def test_an_accepted_draft_moves_without_the_key(folder: Path) -> None:
    assert main(["cases", "review", "drafts.yaml", "--accept", "cancel-1", "--into", "tasks.yaml"]) == 0
    (task,) = tasks(folder / "tasks.yaml")
    assert task == {
        "id": "cancel-1",
        "user": {"goal": "Cancel booking B91."},
        "expect": {"calls": []},
        "tags": ["cancel"],
    }
    assert ids(folder / "drafts.yaml") == ["cancel-2", "talk-3"]
    assert (folder / "drafts.yaml").read_text(encoding="utf-8").startswith("# Drafts: a person reviews each")


def test_rejected_drafts_are_listed_at_the_end(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["cases", "review", "drafts.yaml"]
    assert main([*command, "--reject", "talk"]) == 0
    assert main([*command, "--reject", "cancel-2", "--accept", "cancel-1", "--into", "new/tasks.yaml"]) == 0
    text = (folder / "drafts.yaml").read_text(encoding="utf-8")
    assert text.endswith("[]\n# rejected: talk-3\n# rejected: cancel-2\n")
    assert ids(folder / "new" / "tasks.yaml") == ["cancel-1"]
    assert capsys.readouterr().out.splitlines() == [
        "drafts.yaml: 0 accepted, 1 rejected, 2 left",
        "drafts.yaml: 1 accepted into new/tasks.yaml, 1 rejected, 0 left",
    ]


@pytest.mark.parametrize(
    "before",
    [
        "- id: mine\n  user: {goal: Mine}\n",
        "# mine\n- id: mine\n  user: {goal: Mine}  # no line break at the end",
        "- {id: mine, user: {goal: Mine}}\n",
        "[]\n",
        "",
    ],
)
def test_tasks_of_the_file_are_kept(before: str, folder: Path) -> None:
    (folder / "tasks.yaml").write_text(before, encoding="utf-8")
    assert review(folder / "drafts.yaml", folder / "tasks.yaml", ["cancel-1", "cancel-2"]) == (2, 0)
    found = tasks(folder / "tasks.yaml")
    mine = [{"id": "mine", "user": {"goal": "Mine"}}] if "mine" in before else []
    assert found[: len(mine)] == mine
    assert (
        (folder / "tasks.yaml").read_text(encoding="utf-8").startswith(before if mine else "- id: cancel-1")
    )
    assert [task["id"] for task in found[len(mine) :]] == ["cancel-1", "cancel-2"]
    assert not any("draft" in task for task in found)


def test_json_lines_are_written_too(folder: Path) -> None:
    (folder / "tasks.jsonl").write_text('{"id": "mine", "user": {"goal": "Mine"}}', encoding="utf-8")
    review(folder / "drafts.yaml", folder / "tasks.jsonl", ["talk-3"])
    lines = (folder / "tasks.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["mine", "talk-3"]


def test_a_review_that_stopped_between_the_files_is_completed(folder: Path) -> None:
    review(folder / "drafts.yaml", folder / "tasks.yaml", ["cancel-1"])
    (folder / "drafts.yaml").write_text(DRAFTS, encoding="utf-8")  # as if the machine had stopped
    assert review(folder / "drafts.yaml", folder / "tasks.yaml", ["cancel-1"]) == (1, 0)
    assert ids(folder / "tasks.yaml") == ["cancel-1"]
    assert ids(folder / "drafts.yaml") == ["cancel-2", "talk-3"]


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_failing_disk_changes_nothing(fails_at: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "tasks.yaml").write_text("- id: mine\n  user: {goal: Mine}\n", encoding="utf-8")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    replace = Path.replace
    count = 0

    def failing(path: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == fails_at:
            raise OSError(28, "No space left on device")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(LogError, match="No space left on device"):
        review(folder / "drafts.yaml", folder / "tasks.yaml", ["cancel-1"])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (["--accept", "cancel-1"], "--accept needs --into FILE"),
        (["--accept", "cancel", "--into", "t.yaml"], "2 drafts begin with 'cancel'; give the whole id"),
        (["--accept", "x", "--into", "t.yaml"], "no draft 'x'; known are cancel-1, cancel-2, talk-3"),
        (["--accept", "talk", "--reject", "talk", "--into", "t.yaml"], "is both accepted and rejected"),
        (["--accept", "talk", "--into", "other.yaml"], "holds another task 'talk-3'; rename the draft"),
        (["--accept", "talk", "--into", "broken.yaml"], "broken.yaml, line 2: is not YAML"),
        (["--accept", "talk", "--into", "text.yaml"], "text.yaml: expected a list of tasks, got a str"),
        (["--accept", "talk", "--into", "flow.yaml"], "flow.yaml: the tasks cannot be added in its layout"),
    ],
)
def test_wrong_choices_are_reported_and_change_nothing(
    options: list[str], cause: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "other.yaml").write_text("- id: talk-3\n  user: {goal: Another}\n", encoding="utf-8")
    (folder / "broken.yaml").write_text("- id: [\n", encoding="utf-8")
    (folder / "text.yaml").write_text("text\n", encoding="utf-8")
    (folder / "flow.yaml").write_text("[{id: mine}]\n", encoding="utf-8")
    assert main(["cases", "review", "drafts.yaml", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert cause in line
    assert (folder / "drafts.yaml").read_text(encoding="utf-8") == DRAFTS


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("- id: a\n  user: {goal: x}\n", "'a' has no key 'draft'"),
        ("- user: {goal: x}\n  draft: {}\n", "task 1 has no 'id'"),
        ("- {id: a, draft: {}}\n- {id: a, draft: {}}\n", "holds the id 'a' twice"),
        ("- 5\n", "task 1 is no object"),
        ("- !!python/object/apply:os.system [ls]\n", "is not YAML"),
        ("[" * 5000, "is not YAML"),
    ],
)
def test_damaged_drafts_are_reported(text: str, cause: str, tmp_path: Path) -> None:
    path = tmp_path / "drafts.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises((CaseError, LogError)) as raised:
        read_drafts(path)
    assert cause in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ("user: {}\n  expect: {data: {}}", r"task a: user\.goal: Field required"),
        ("user: {goal: x}\n  expect: {}", "task a: expects nothing"),
    ],
)
def test_a_draft_that_is_no_valid_task_is_not_accepted(fields: str, cause: str, folder: Path) -> None:
    (folder / "drafts.yaml").write_text(f"- id: a\n  {fields}\n  draft: {{}}\n", encoding="utf-8")
    with pytest.raises(CaseError, match=cause):
        review(folder / "drafts.yaml", folder / "tasks.yaml", ["a"])
    assert not (folder / "tasks.yaml").exists()


def test_texts_that_look_like_numbers_or_booleans_stay_texts(folder: Path) -> None:
    facts = "{zip: 02134, at: 12:30, gift: no, price: 12.50, code: '1.5e3'}"
    draft = f"- id: a\n  user: {{goal: x, knows: {facts}}}\n  expect: {{data: {{}}}}\n  draft: {{}}\n"
    (folder / "drafts.yaml").write_text(draft, encoding="utf-8")
    review(folder / "drafts.yaml", folder / "tasks.yaml", ["a"])
    text = (folder / "tasks.yaml").read_text(encoding="utf-8")
    accepted = parse_yaml(text, "tasks.yaml", CaseError)[0]
    knows = parse_written_task(accepted, "a").user.knows
    assert knows == {"zip": "02134", "at": "12:30", "gift": "no", "price": "12.50", "code": "1.5e3"}


def test_without_a_terminal_the_drafts_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cases", "review", "drafts.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["cancel-1", "cancel-2", "talk-3", "3"]
    assert not (folder / "tasks.yaml").exists()


class Terminal(io.StringIO):
    """A terminal at which a person types some lines."""

    def isatty(self) -> bool:
        return True


def test_at_a_terminal_each_draft_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("what?\na\nr\nq\n"))
    assert main(["cases", "review", "drafts.yaml", "--into", "tasks.yaml"]) == 0
    assert ids(folder / "tasks.yaml") == ["cancel-1"]
    assert ids(folder / "drafts.yaml") == ["talk-3"]
    assert "# rejected: cancel-2" in (folder / "drafts.yaml").read_text(encoding="utf-8")
    assert capsys.readouterr().out.endswith("drafts.yaml: 1 accepted into tasks.yaml, 1 rejected, 1 left\n")


def test_the_end_of_the_input_ends_the_review(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("s\n"))
    assert main(["cases", "review", "drafts.yaml", "--into", "tasks.yaml"]) == 0
    assert ids(folder / "drafts.yaml") == ["cancel-1", "cancel-2", "talk-3"]


def test_a_history_with_parallel_calls_and_an_empty_message_is_a_valid_task() -> None:
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in "xy"]
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "y", "content": "second"},
        {"role": "tool", "tool_call_id": "x", "content": "first"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": "What do you need?"},
        {"role": "user", "content": "Please cancel it."},
    ]
    conversation = conversation_of("", turns_of(messages))
    (draft,) = drafts_of([conversation], Redactor(), "a.jsonl", "openai", until=2)
    assert [message["content"] for message in draft["history"][2:]] == [
        "first",
        "second",
        "What do you need?",
    ]
    parse_written_task({key: value for key, value in draft.items() if key != "draft"}, "a")


@pytest.mark.parametrize(
    ("name", "only_reads"),
    [
        ("mcp__weather__get_weather", True),
        ("mcp__claude_ai_Mail__search_threads", True),
        ("weather.get_weather", True),
        ("weather-get-weather", True),
        ("github_list_issues", True),
        ("mcp__shop__cancel_order", False),
        ("mcp__list__delete_row", False),
        ("shop_cancel_order", False),
        ("todo_list_add_items", False),
        ("shop_get_or_create_user", False),
        ("send_get_well_cards", False),
        ("__", False),
    ],
)
def test_a_read_tool_is_one_behind_the_name_of_its_server_too(
    name: str, only_reads: bool, tmp_path: Path
) -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": name, "arguments": "{}"}}]
    messages = [
        {"role": "user", "content": "Please do what I need."},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        {"role": "assistant", "content": "Done."},
    ]
    log = tmp_path / "chats.jsonl"
    log.write_text(json.dumps({"messages": messages}), encoding="utf-8")
    assert main(["import", str(log), "--out", str(tmp_path / "d.yaml")]) == 0
    (draft,) = tasks(tmp_path / "d.yaml")
    assert draft["expect"] == ({"data": {}} if only_reads else {"calls": [{"name": name, "arguments": {}}]})
