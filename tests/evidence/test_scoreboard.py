"""Scoreboards of earlier versions are read line by line."""

from pathlib import Path

import pytest

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.scoreboard import COLUMNS, read_lines


def test_the_scoreboard_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "scoreboard.tsv"
    assert list(read_lines(path)) == []
    heading, line = "\t".join(COLUMNS), "\t".join(f"<{name}>" for name in COLUMNS)
    path.write_text(f"{heading}\n{line}\n{heading}\n{line}\n", encoding="utf-8")
    assert [one["run"] for one in read_lines(path)] == ["<run>", "<run>"]
    path.write_text(f"{heading}\n{line}\tmore\n", encoding="utf-8")
    with pytest.raises(
        ResultsError, match=r"\.tsv:2: expected 19 columns, got 20; restore the line from git"
    ):
        list(read_lines(path))
    path.write_bytes(b"\xff")
    with pytest.raises(ResultsError, match=r"scoreboard.tsv: cannot be read: .*; restore it from git"):
        list(read_lines(path))
