"""Temporary files of atomic writes: the next writer removes those of killed processes, and no other file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_trace2evolve.utils import files as atomic
from pytest_trace2evolve.utils.files import TEMPORARY, remove_abandoned, staged, write_atomic
from tests.patience import HANG_SECONDS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there no lock tells whose a file is")

HOLD = """
import sys
from pathlib import Path
from pytest_trace2evolve.utils.files import staged
path = Path(sys.argv[1])
with staged(path, ["text"]) as temporary:
    print(temporary, flush=True)
    input()
    temporary.replace(path)
"""


def hold(path: Path) -> tuple["subprocess.Popen[str]", Path]:
    """A process between the write of its temporary file and the rename, and that file."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_the_next_writer_removes_what_a_killed_one_left_and_nothing_else(tmp_path: Path) -> None:
    killed, left = hold(tmp_path / "a.json")
    living, used = hold(tmp_path / "b.json")
    others = [tmp_path / ".a.json.x.tmp", tmp_path / f"mine{TEMPORARY}"]
    for other in others:
        other.write_text("mine")
    linked = tmp_path / f".link{TEMPORARY}"
    linked.symlink_to(others[0])
    folder = tmp_path / f".folder{TEMPORARY}"
    folder.mkdir()
    try:
        killed.kill()
        killed.communicate(timeout=HANG_SECONDS)
        assert left.parent == tmp_path
        assert left.read_text() == "text"
        write_atomic(tmp_path / "c.json", "c")
        assert not left.exists()
        assert used.exists()
        living.communicate("\n", HANG_SECONDS)
        assert (tmp_path / "b.json").read_text() == "text"
        kept = {path.name for path in (*others, linked, folder)}
        assert {path.name for path in tmp_path.iterdir()} == {"b.json", "c.json", *kept}
        assert [path.read_text() for path in others] == ["mine", "mine"]
    finally:
        living.kill()
        living.wait(HANG_SECONDS)


def test_a_file_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process sweeps between the two: the writer sees it and begins with another file."""
    real, swept = atomic._lock, []

    def lock(handle: int, *, wait: bool) -> bool:
        if wait and not swept:
            swept.extend(tmp_path.glob(f".*{TEMPORARY}"))
            remove_abandoned(tmp_path)
        return real(handle, wait=wait)

    monkeypatch.setattr(atomic, "_lock", lock)
    with staged(tmp_path / "a.json", ["text"]) as temporary:
        assert swept
        assert temporary not in swept
        assert temporary.read_text() == "text"
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_written_and_not_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lock(handle: int, *, wait: bool) -> bool:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(atomic, "_lock", lock)
    left = tmp_path / f".a.json.x{TEMPORARY}"
    left.write_text("x")
    write_atomic(tmp_path / "a.json", "text")
    assert (tmp_path / "a.json").read_text() == "text"
    remove_abandoned(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", left.name}


def test_a_device_is_written_to_and_not_replaced() -> None:
    reader, writer = os.openpty()
    try:
        write_atomic(Path(os.ttyname(writer)), "text")
        assert os.read(reader, 4) == b"text"
    finally:
        os.close(reader)
        os.close(writer)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        write_atomic(tmp_path / "pipe", "text")
    assert (tmp_path / "pipe").is_fifo()
