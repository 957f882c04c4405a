"""Every hostile file ends in one line and an error status: no traceback, bounded time and memory."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

MOST_SECONDS = 5.0
"""CPU of one file; the dearest valid file takes a second or two."""

MOST_BYTES = 1 << 30

EVERY = "3"
"""Each target takes a third of the damaged forms, another third than the target before it."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of a third of the corpus, run in one process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.corpus.runner", str(tmp_path_factory.mktemp("corpus")), EVERY],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.timeout(1800)
def test_the_corpus_is_large_and_ends_in_one_line_each(found: list[dict[str, Any]]) -> None:
    assert len(found) > 300
    wrong = [f"{item['name']}: {item['wrong']} {item['status']}" for item in found if item.get("wrong")]
    assert wrong == []


@pytest.mark.timeout(1800)
def test_no_file_takes_long_or_much_memory(found: list[dict[str, Any]]) -> None:
    *files, memory = found
    assert [item["name"] for item in files if item["cpu"] > MOST_SECONDS] == []
    assert memory["peak"] < MOST_BYTES
