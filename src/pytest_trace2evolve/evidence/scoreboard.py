"""Reads the scoreboards of earlier versions, one line per gated split of a run. The ledger replaced them."""

import os
from collections.abc import Iterator
from pathlib import Path

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.utils.reading import MAX_RECORD_BYTES, read_text

_HEADING = (
    "time,candidate,parent,suite,split,baseline,reward,reward_delta,action_match,action_match_delta,"
    "read_action_match_delta,write_action_match_delta,fixed,broken,max_steps,verdict,label,failed_checks,run"
)
COLUMNS = tuple(_HEADING.split(","))


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
