"""Temporary folders: removed by their process, by the next one if it was killed, never another owner's."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import HANG_SECONDS

HOLD = """
from pytest_trace2evolve.utils.files import Scratch
folder = Scratch("box-")
(folder.path / "account.sqlite").write_text("x")
print(folder.path, flush=True)
input()
folder.close()
"""
ONE = "from pytest_trace2evolve.utils.files import Scratch; Scratch().close()"


def hold(place: Path) -> tuple["subprocess.Popen[str]", Path]:
    """A process with a folder, and the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env={**os.environ, "TMPDIR": str(place)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def start(place: Path) -> None:
    """A further process that makes a folder and removes it."""
    subprocess.run([sys.executable, "-c", ONE], env={**os.environ, "TMPDIR": str(place)}, check=True)


@pytest.mark.skipif(sys.platform == "win32", reason="there the lock is not taken")
def test_the_next_start_removes_what_a_killed_process_left_and_nothing_else(tmp_path: Path) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    killed, left = hold(place)
    living, used = hold(place)
    other = place / "trace2evolve-notes"  # of a user, or of a version without locks
    other.mkdir()
    (other / "x").write_text("mine")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".owner").touch()
    (place / "trace2evolve-link").symlink_to(elsewhere)
    linked = place / "trace2evolve-owned"
    linked.mkdir()
    (linked / ".owner").symlink_to(elsewhere / ".owner")
    (place / "trace2evolve-file").touch()
    (place / "unrelated").mkdir()
    try:
        killed.send_signal(signal.SIGKILL)
        killed.wait(HANG_SECONDS)
        assert left.exists()
        start(place)
        assert not left.exists()
        assert (used / "account.sqlite").exists()
        assert (other / "x").read_text() == "mine"
        assert (elsewhere / ".owner").exists()
        kept = {
            "trace2evolve-link",
            "trace2evolve-owned",
            "trace2evolve-file",
            "unrelated",
            used.name,
            other.name,
        }
        assert {path.name for path in place.iterdir()} == kept
        living.communicate("\n", HANG_SECONDS)
        assert not used.exists()
    finally:
        for process in (killed, living):
            process.kill()
            process.communicate()
