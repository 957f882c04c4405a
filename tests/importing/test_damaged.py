"""Damaged logs: one line with file, position, cause and remedy, and none of the log's texts."""

import io
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from pytest_trace2evolve.cli.main import main
from tests.importing.conversations import CONVERSATIONS, VALUES
from tests.importing.sdk_logs import inspect_log, otel_log

GOOD = json.dumps({"messages": CONVERSATIONS[0]})


def spans(value: str | None) -> bytes:
    """An OTLP export of a span with the given input messages."""
    given = [] if value is None else [{"key": "gen_ai.input.messages", "value": {"stringValue": value}}]
    span = {"traceId": "t", "spanId": "s", "attributes": given}
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()


def user(fields: str) -> bytes:
    return f'{{"messages": [{{"role": "user", {fields}}}]}}'.encode()


def zipped(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty; export it again"),
    "white space": (b" \n\n", "is empty; export it again"),
    "text": (b"hello, this is no log", "not valid JSON"),
    "truncated object": (GOOD.encode()[:-20], "not valid JSON"),
    "binary": (b"\x00\x01\x02\xff" * 50, "not valid JSON"),
    "UTF-16": ('{"messages": []}'.encode("utf-16"), "UTF-16"),
    "number": (b"42", "is a number, not an object with 'messages'"),
    "unknown object": (b'{"a": 1}', "has no message of a user"),
    "empty list": (b"[]", "holds no conversation of format openai"),
    "results of tau2": (b'{"simulations": []}', "holds results of tau2, which have tasks already"),
    "no user": (b'{"messages": [{"role": "assistant", "content": "x"}]}', "has no message of a user"),
    "no role": (b'{"messages": [{"content": "Ann"}]}', "message 1 has no role; known are system"),
    "role": (b'{"messages": [{"role": "Ann Lee", "content": "x"}]}', "message 1 has an unknown role"),
    "message": (b'{"messages": ["Ann Lee"]}', "message 1 is a text, not an object"),
    "content": (user('"content": 5'), "message 1 has a content of a number, not text"),
    "calls": (user('"content": "x", "tool_calls": 5'), "'tool_calls' of a number"),
    "not UTF-8": (b'{"messages": [{"role": "user", "content": "\xff"}]}', "not valid JSON"),
    "second line": (f'{GOOD}\n{{"messages": 5}}\n'.encode(), "line 2: 'messages' is a number, not a list"),
    "huge line": (f'{GOOD}\n"'.encode() + b"x" * (9 << 20) + b'"\n', "line 2: is longer than 8 MiB"),
    "zip of other things": (zipped("a.txt", b"x"), "is a zip archive without samples/"),
    "damaged zip": (zipped("samples/1.json", b"x")[:-30], "damaged zip archive"),
    "zip bomb": (zipped("samples/1.json", bytes(100 << 20)), "samples/1.json expands to more than"),
    "sample": (zipped("samples/1.json", b"{"), "samples/1.json: not valid JSON"),
    "sample without messages": (zipped("samples/1.json", b"{}"), "samples/1.json: 'messages' is missing"),
    "span without messages": (spans(None), "holds no conversation of format otel"),
    "span with text": (spans("{"), "gen_ai.input.messages: not valid JSON"),
    "span with number": (spans("5"), "gen_ai.input.messages: is a number"),
    "parts": (spans('[{"role": "user", "parts": 5}]'), "message 1 has 'parts'"),
    "spans": (b'{"resourceSpans": 5}', "has 'resourceSpans' of a number, not a list"),
    "trace id": (b'{"resourceSpans": [{"scopeSpans": [{"spans": [{}]}]}]}', "a span without a trace id"),
    "generation": (
        b'[{"id": "t", "observations": [{"type": "GENERATION", "input": [5]}]}]',
        "message 1 is a number, not an object",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_log_gives_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, cause = FILES[name]
    log = tmp_path / "log.json"
    log.write_bytes(content)
    assert main(["import", str(log), "--out", str(tmp_path / "out.yaml")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith(f"trace2evolve: {log}: ")
    assert cause in line
    assert ";" in line or "?" in line
    assert [value for value in VALUES if value in line] == []
    assert not (tmp_path / "out.yaml").exists()


def test_a_file_that_is_missing_or_a_folder_gives_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    causes = {tmp_path / "x.json": "No such file", tmp_path: "folder"}
    for path, cause in causes.items():
        assert main(["import", str(path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert cause in line


def test_damaged_conversations_among_good_ones_are_left_out_only_if_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    lines = [json.dumps({"messages": messages}) for messages in CONVERSATIONS]
    lines[3] = '{"messages": [{"role": "user", "content": 7}]}'
    lines[7] = lines[7][:50]
    lines[9] = "\x00"
    log.write_text("\n".join(lines), encoding="utf-8")
    out = tmp_path / "out.yaml"
    assert main(["import", str(log), "--out", str(out), "--format", "openai"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "line 4: message 1 has a content of a number, not text; fix it, or leave" in line
    assert not out.exists()
    assert main(["import", str(log), "--out", str(out), "--skip-damaged"]) == 0
    printed = capsys.readouterr()
    assert [line.split(": ")[2] for line in printed.err.splitlines()] == ["line 4", "line 8", "line 10"]
    assert "left out: 3 damaged conversations" in printed.out
    assert len(yaml.safe_load(out.read_text(encoding="utf-8"))) == 17


@pytest.mark.parametrize(
    "write", [lambda folder: inspect_log(folder, ".eval"), lambda folder: otel_log(folder, "otlp")]
)
def test_truncated_and_overwritten_logs_never_crash(
    write: Callable[[Path], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write(tmp_path)
    content = log.read_bytes()
    for part in range(1, 16):
        place = part * len(content) // 16
        for damaged in (content[:place], content[:place] + b"\xff\x00\xfe" + content[place + 3 :]):
            log.write_bytes(damaged)
            (tmp_path / "out.yaml").unlink(missing_ok=True)
            status = main(["import", str(log), "--out", str(tmp_path / "out.yaml")])
            lines = capsys.readouterr().err.splitlines()
            assert (status, len(lines)) in ((0, 0), (2, 1)), lines


def test_a_log_compressed_with_zstd_needs_an_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = inspect_log(tmp_path, ".eval")
    monkeypatch.setitem(sys.modules, "zipfile_zstd", None)
    assert main(["import", str(log), "--out", str(tmp_path / "out.yaml")]) == 2
    assert "pip install 'pytest-trace2evolve[inspect]'" in capsys.readouterr().err


def test_an_existing_file_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(GOOD, encoding="utf-8")
    (tmp_path / "out.yaml").write_text("mine", encoding="utf-8")
    assert main(["import", str(log), "--out", str(tmp_path / "out.yaml")]) == 2
    assert "exists: review it, delete it, or choose another name" in capsys.readouterr().err
    assert (tmp_path / "out.yaml").read_text(encoding="utf-8") == "mine"
