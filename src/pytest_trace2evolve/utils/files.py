"""Files that are either whole or absent, one or several together.

A temporary file belongs to its writer as long as that holds a lock on it. The kernel ends the lock with the
process, however that ends, and the next process that writes in the folder removes the file.

Temporary folders that do not outlive their process for long: the next one removes what a killed one left.

A folder belongs to a process as long as that holds a lock on a file in it. The kernel ends the lock with the
process, however that ends.
"""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

TEMPORARY = ".t2e.tmp"
"""The end of the name of each temporary file, so that no other program's is removed."""


def write_atomic(path: Path, text: str, *, exclusive: bool = False) -> None:
    """Write `text` to `path`: a temporary file beside it, flushed to the disk, then renamed over it.

    Args:
        path: Where the file is to lie; its folder is made.
        text: The whole content.
        exclusive: Refuse to replace a file, even one that appears in the meantime.

    Raises:
        FileExistsError: `exclusive`, and there is a file.
        OSError: the file could not be written; `path` is as it was and the temporary file is gone.
    """
    write_parts(path, [text], exclusive=exclusive)


def write_parts(path: Path, parts: Iterable[str], *, exclusive: bool = False) -> None:
    """The same with the content in parts, written as they come: the whole is never held in memory.

    What making a part raises goes through, and nothing is written. A device is written to and not replaced:
    its name belongs to the machine.

    Raises:
        OSError: as in `write_atomic`, or `path` is a pipe or a socket.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not (path.is_file() or path.is_dir()):
        if not path.is_char_device():
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        path.write_text("".join(parts), encoding="utf-8")
        return
    with staged(path, parts) as temporary:
        if exclusive:
            os.link(temporary, path)
        else:
            temporary.replace(path)


def write_together(files: Mapping[Path, str]) -> None:
    """Write several files, all or none: where one fails, those before it are as they were.

    All contents are on the disk before the first file is touched, and what is replaced is kept under a second
    name until the last is in place, so that putting it back needs no room.

    Args:
        files: The whole content of each; folders are made.

    Raises:
        OSError: something could not be written; nothing has changed.
    """
    made: list[Path] = []
    ready: dict[Path, Path] = {}
    kept: dict[Path, Path] = {}
    replaced: list[Path] = []
    try:
        with contextlib.ExitStack() as all_staged:
            for path, text in files.items():
                _make_folder(path.parent, made)
                ready[path] = all_staged.enter_context(staged(path, [text]))
                if path.exists():
                    second = ready[path].with_suffix(".kept")
                    os.link(path, second)
                    kept[path] = second
            for path, temporary in ready.items():
                temporary.replace(path)
                replaced.append(path)
    except BaseException:
        for path in replaced:
            if path in kept:
                kept[path].replace(path)
            else:
                path.unlink()
        for rest in kept.values():
            _discard(rest)
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    for second in kept.values():
        _discard(second)


@contextlib.contextmanager
def alone_in(folder: Path, *, wait: bool = True, if_possible: bool = False) -> Iterator[None]:
    """Hold a folder's lock: others who take it wait, and nothing is written for it.

    Args:
        folder: The folder.
        wait: Wait for another process that holds it.
        if_possible: Go on without the lock on a file system that has none.

    Raises:
        BlockingIOError: another process holds it, and `wait` is false.
        OSError: there is no such folder.
    """
    try:
        import fcntl
    except ImportError:  # no such call on Windows: there the check and the rename are a moment apart
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError) if if_possible else contextlib.nullcontext():
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def staged(path: Path, parts: Iterable[str]) -> Iterator[Path]:
    """A temporary file next to `path` that holds the parts, on the disk; it is removed if it is still there.

    Raises:
        OSError: it could not be written; nothing is left behind.
    """
    _sweep_atomic(path.parent)
    handle, temporary = _own_file(path)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="", closefd=False) as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        if os.name == "nt":  # there a file that is open cannot be renamed
            os.close(handle)
            handle = -1
        yield temporary
    finally:
        if handle >= 0:
            os.close(handle)
        _discard(temporary)


def remove_abandoned(folder: Path) -> None:
    """Remove temporary files in a folder whose writers have ended; those of living writers stay."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") and entry.name.endswith(TEMPORARY):
                with contextlib.suppress(OSError):
                    _remove_ownerless_atomic(Path(entry.path))


_sweep_atomic = cache(remove_abandoned)
"""The same, once a process and folder."""


def _own_file(path: Path) -> tuple[int, Path]:
    """A new temporary file, open and locked where there are locks."""
    while True:
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=TEMPORARY, dir=path.parent)
        temporary = Path(name)
        try:
            _lock(handle, wait=True)
        except OSError:  # a file system without locks, on which nobody removes it either
            return handle, temporary
        if temporary.exists():
            return handle, temporary
        os.close(handle)  # removed as ownerless before it was locked


def _remove_ownerless_atomic(path: Path) -> None:
    handle = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        if _lock(handle, wait=False):
            path.unlink()
    finally:
        os.close(handle)


def _lock(handle: int, *, wait: bool) -> bool:
    """Lock a file as long as it is open; False if the system has no locks.

    Raises:
        OSError: another holds it and `wait` is false, or its file system has no locks.
    """
    try:
        import fcntl
    except ImportError:
        return False
    fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    return True


def _make_folder(folder: Path, made: list[Path]) -> None:
    """Make a folder and those above it; `made` takes in what was not there, outermost first."""
    absent = []
    while not folder.exists():
        absent.append(folder)
        folder = folder.parent
    for one in reversed(absent):
        one.mkdir(exist_ok=True)
        made.append(one)


def _discard(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


PREFIX = "trace2evolve-"
"""What the names of the folders begin with."""

_OWNER = ".owner"


class Scratch:
    """A temporary folder of this process.

    Attributes:
        path: The folder.

    Args:
        kind: What the folder is for, as a part of its name.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, kind: str = "") -> None:
        _sweep(tempfile.gettempdir())
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX + kind))
        self._lock = -1
        try:
            self._lock = os.open(self.path / f"{_OWNER}.new", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            # Named once it is locked: nobody may find it without a lock.
            if _locked(self._lock):
                (self.path / f"{_OWNER}.new").rename(self.path / _OWNER)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the folder with all that is in it. Repeated calls do no harm."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


@cache
def _sweep(place: str) -> None:
    """Remove the folders of processes that have ended; once a process.

    A folder without an owner's file is left alone: it may be somebody else's, or just being made.
    """
    with contextlib.suppress(OSError, AttributeError), os.scandir(place) as entries:
        for entry in entries:
            if not entry.name.startswith(PREFIX) or not entry.is_dir(follow_symlinks=False):
                continue
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                    _remove_ownerless(Path(entry.path))


def _remove_ownerless(folder: Path) -> None:
    owner = os.open(folder / _OWNER, os.O_RDWR | os.O_NOFOLLOW)
    try:
        if _locked(owner):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(owner)


def _locked(handle: int) -> bool:
    """Lock a file as long as this process keeps it open; False if another has, or the system cannot."""
    try:
        import fcntl
    except ImportError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def find_root(start: Path) -> Path | None:
    """The root of a project: the nearest folder from `start` upwards that holds `suites/`, if any."""
    return next((folder for folder in (start, *start.parents) if (folder / "suites").is_dir()), None)
