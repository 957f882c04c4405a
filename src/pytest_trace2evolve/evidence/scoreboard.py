"""The scoreboard: one line per gated split of a run, appended only by the controller."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.utils.files import lock_file
from pytest_trace2evolve.utils.reading import MAX_RECORD_BYTES, read_text


class ScoreboardLine(Record):
    """The result of one gated split of one run. Figures that were not measured are empty."""

    time: str
    candidate: str
    parent: str | None
    suite: str
    split: str
    baseline: str
    reward: float | None
    reward_delta: float | None
    action_match: float | None
    action_match_delta: float | None
    read_action_match_delta: float | None
    write_action_match_delta: float | None
    fixed: int
    broken: int
    max_steps: int
    verdict: str
    label: str
    failed_checks: tuple[str, ...]
    run: str

    def render(self) -> str:
        return "\t".join(_render_cell(getattr(self, column)) for column in COLUMNS)


COLUMNS = tuple(ScoreboardLine.model_fields)


def _render_cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    return " ".join(str(value).split())


def append_lines(path: Path, lines: list[ScoreboardLine]) -> None:
    """Append lines under a lock. If a write fails, restore the file and raise the OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Unbuffered, because a buffered file would flush again while it is being truncated.
    with path.open("a+b", buffering=0) as file:
        lock_file(file.fileno(), wait=True)
        end = file.seek(0, os.SEEK_END)
        text = "".join(f"{line.render()}\n" for line in lines)
        if end == 0:
            text = "\t".join(COLUMNS) + "\n" + text
        else:
            file.seek(end - 1)
            text = text if file.read(1) == b"\n" else "\n" + text
        remaining_bytes = text.encode("utf-8")
        try:
            while remaining_bytes:
                remaining_bytes = remaining_bytes[file.write(remaining_bytes) :]
            os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), end)
            raise


def read_lines(path: Path) -> Iterator[dict[str, str]]:
    """Read the lines of a scoreboard by column. Skips headings, which a merge may leave between lines."""
    if not os.path.lexists(path):
        return
    lines = read_text(path, ResultsError, "restore it from git", max_bytes=MAX_RECORD_BYTES).splitlines()
    for number, line in enumerate(lines, start=1):
        cells = line.split("\t")
        if len(cells) != len(COLUMNS):
            raise ResultsError(
                f"{path}:{number}: expected {len(COLUMNS)} columns, got {len(cells)}; restore the "
                "line from git"
            )
        if tuple(cells) != COLUMNS:
            yield dict(zip(COLUMNS, cells, strict=True))
