"""Planted personal data: 500 values of 8 kinds reach no file except under their replacements."""

import json
from pathlib import Path

import pytest
import yaml

from pytest_trace2evolve.cli.main import main
from tests.importing.planted import Item, conversations, found_in, planted

ITEMS = planted()


def write_log(path: Path, seed: int = 2) -> None:
    lines = (
        json.dumps(one, ensure_ascii=bool(place % 2)) for place, one in enumerate(conversations(ITEMS, seed))
    )
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def test_the_search_finds_every_value_in_the_log_itself(tmp_path: Path) -> None:
    write_log(tmp_path / "log.jsonl")
    assert {(kind, part) for _, kind, part in found_in(tmp_path, ITEMS)} >= {
        (item.kind, part)
        for item in ITEMS
        if item.kind in ("email", "id", "iban")
        for part in [item.value.casefold()]
        if item.kind == "email"
    }
    assert len({(kind, part) for _, kind, part in found_in(tmp_path, ITEMS)}) >= len(ITEMS) == 500


def test_no_planted_value_reaches_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    write_log(log)
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    assert main(["import", str(log), "--until", "2"]) == 0
    assert found_in(project, ITEMS) == []
    drafts = yaml.safe_load((project / "drafts" / "log.yaml").read_text(encoding="utf-8"))
    assert len(drafts) == 64
    for draft in drafts:  # arguments and texts still agree
        (call,) = draft["expect"]["calls"]
        texts = draft["user"]["opening"] + draft["history"][0]["content"]
        for kind in ("name", "email", "address", "card", "iban", "ip", "id", "phone"):
            assert call["arguments"]["old"].get(kind, "") in texts, kind
    ids = [draft["id"] for draft in drafts]
    review = ["cases", "review", "drafts/log.yaml", "--into", "tasks.yaml"]
    assert main([*review, "--accept", *ids[:40], "--reject", *ids[40:50]]) == 0
    assert found_in(project, ITEMS) == []
    printed = capsys.readouterr()
    (project / "printed.txt").write_text(printed.out + printed.err, encoding="utf-8")
    assert found_in(project, ITEMS) == []


def test_a_name_of_the_file_is_no_leak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    secret = Item("email", "vorandel.777@gmail.com")
    folder = tmp_path / "logs"
    folder.mkdir()
    log = folder / "chat with vorandel.777@gmail.com.json"
    log.write_text(
        json.dumps([{"role": "user", "content": "Hello, is the pool open today?"}]), encoding="utf-8"
    )
    assert main(["import", str(log)]) == 0
    assert found_in(tmp_path / "drafts", [secret]) == []
