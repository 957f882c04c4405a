"""Atomic writes, temporary files and folders, and locks."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.utils.files import (
    TEMPORARY_SUFFIX,
    folder_lock,
    lock_file,
    remove_abandoned_files,
    staged_file,
    write_atomic,
    write_together,
)
from tests.failing_disk import failing_disk
from tests.patience import HANG_SECONDS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no locks are taken there")

HOLD_FILE = """
import sys
from pathlib import Path
from pytest_trace2evolve.utils.files import staged_file
path = Path(sys.argv[1])
with staged_file(path, ["text"]) as temporary:
    print(temporary, flush=True)
    input()
    temporary.replace(path)
"""

HOLD_FOLDER = """
import sys, tempfile
from pytest_trace2evolve.utils.files import ScratchFolder
tempfile.tempdir = sys.argv[1]
folder = ScratchFolder("box-")
(folder.path / "account.sqlite").write_text("x")
print(folder.path, flush=True)
input()
folder.close()
"""


class Holder:
    """A process that holds a temporary file or folder, and its path."""

    def __init__(self, program: str, argument: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, str(argument)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.path = Path(self.process.stdout.readline().strip())

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=HANG_SECONDS)

    def finish(self) -> None:
        self.process.communicate("\n", HANG_SECONDS)


@contextmanager
def holders(program: str, *arguments: Path) -> Iterator[list[Holder]]:
    found = [Holder(program, argument) for argument in arguments]
    try:
        yield found
    finally:
        for holder in found:
            holder.process.kill()
            with holder.process:  # closes the pipes
                holder.process.wait(HANG_SECONDS)


def test_the_next_writer_removes_files_of_a_killed_one_and_nothing_else(tmp_path: Path) -> None:
    others = [tmp_path / ".a.json.x.tmp", tmp_path / f"mine{TEMPORARY_SUFFIX}"]
    for other in others:
        other.write_text("mine")
    linked = tmp_path / f".link{TEMPORARY_SUFFIX}"
    linked.symlink_to(others[0])
    folder = tmp_path / f".folder{TEMPORARY_SUFFIX}"
    folder.mkdir()
    with holders(HOLD_FILE, tmp_path / "a.json", tmp_path / "b.json") as (killed, living):
        killed.kill()
        assert killed.path.read_text() == "text"
        write_atomic(tmp_path / "c.json", "c")
        assert not killed.path.exists()
        assert living.path.exists()
        living.finish()
    assert (tmp_path / "b.json").read_text() == "text"
    kept = {path.name for path in (*others, linked, folder)}
    assert {path.name for path in tmp_path.iterdir()} == {"b.json", "c.json", *kept}
    assert [path.read_text() for path in others] == ["mine", "mine"]


def test_the_next_process_removes_folders_of_a_killed_one_and_nothing_else(tmp_path: Path) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
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
    kept = {path.name for path in place.iterdir()}
    with holders(HOLD_FOLDER, place, place) as (killed, living):
        killed.kill()
        assert killed.path.exists()
        Holder(HOLD_FOLDER, place).finish()
        assert {path.name for path in place.iterdir()} == {*kept, living.path.name}
        assert (living.path / "account.sqlite").exists()
        assert (other / "x").read_text() == "mine"
        assert (elsewhere / ".owner").exists()
        living.finish()
        assert not living.path.exists()


def test_a_file_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process removes it in between: the writer notices that and begins with another file."""
    real, removed = filelock.lock_descriptor, list[Path]()

    def lock(handle: int, *, blocking: bool, poll_interval: float) -> bool:
        if blocking and not removed:
            removed.extend(tmp_path.glob(f".*{TEMPORARY_SUFFIX}"))
            remove_abandoned_files(tmp_path)
        return real(handle, blocking=blocking, poll_interval=poll_interval)

    monkeypatch.setattr(filelock, "lock_descriptor", lock)
    with staged_file(tmp_path / "a.json", ["text"]) as temporary:
        assert removed
        assert temporary not in removed
        assert temporary.read_text() == "text"
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_written_and_not_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lock(*_: object, **__: object) -> bool:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(filelock, "lock_descriptor", lock)
    left = tmp_path / f".a.json.x{TEMPORARY_SUFFIX}"
    left.write_text("x")
    write_atomic(tmp_path / "a.json", "text")
    assert (tmp_path / "a.json").read_text() == "text"
    remove_abandoned_files(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", left.name}
    with folder_lock(tmp_path, ignore_unsupported=True):
        pass
    with pytest.raises(OSError, match="not supported"), folder_lock(tmp_path):
        pass


def test_a_lock_is_held_until_it_is_released(tmp_path: Path) -> None:
    with folder_lock(tmp_path), pytest.raises(BlockingIOError), folder_lock(tmp_path, wait=False):
        pass
    with folder_lock(tmp_path, wait=False), (tmp_path / "file").open("w") as file:
        assert lock_file(file.fileno(), wait=False)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_device_is_written_to_and_not_replaced() -> None:
    reader, writer = os.openpty()
    try:
        write_atomic(Path(os.ttyname(writer)), "text")
        assert os.read(reader, 4) == b"text"
    finally:
        os.close(reader)
        os.close(writer)


def test_a_pipe_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        write_atomic(tmp_path / "pipe", "text")
    assert (tmp_path / "pipe").is_fifo()


@settings(max_examples=60)
@given(
    old=st.sets(st.sampled_from("abcd")).map(lambda names: dict.fromkeys(names, "öld\r\n")),
    new=st.sets(st.sampled_from("abcd"), min_size=1).map(lambda names: dict.fromkeys(names, "néw\n")),
    fails=st.integers(0, 14),
)
def test_files_that_are_written_together_are_all_new_or_all_old(
    tmp_path_factory: pytest.TempPathFactory, old: dict[str, str], new: dict[str, str], fails: int
) -> None:
    root = tmp_path_factory.mktemp("together")
    files = {name: root / f"in-{name}" / "file" for name in "abcd"}
    for name, text in old.items():
        files[name].parent.mkdir()
        files[name].write_text(text, encoding="utf-8", newline="")
    before = {path.relative_to(root).as_posix() for path in root.rglob("*")}
    try:
        with failing_disk(fails):
            write_together({files[name]: text for name, text in new.items()})
    except OSError:
        assert {path.relative_to(root).as_posix() for path in root.rglob("*")} == before
        expected = old
    else:
        expected = old | new
    found = {name: path.read_bytes().decode("utf-8") for name, path in files.items() if path.exists()}
    assert found == expected
    assert not list(root.rglob(".*")), "something was left behind"
