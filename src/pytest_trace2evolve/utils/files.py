"""Writes files atomically, and manages temporary folders and locks.

A process owns a temporary file or folder as long as it holds the lock of that file or folder. The kernel
releases the lock when the process ends. The next process that makes a temporary file or folder in the same
place removes those without an owner.
"""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path

TEMPORARY_SUFFIX = ".t2e.tmp"
"""The suffix of every temporary file, which protects files of other programs from removal."""

TEMPORARY_PREFIX = "trace2evolve-"
"""The prefix of every temporary folder."""

_OWNER_FILE = ".owner"
_POLL_SECONDS = 0.01


def real_path(path: Path) -> Path:
    """Return an absolute path without symbolic links. `Path.resolve` raises if a link leads to itself."""
    return Path(os.path.realpath(path))


def is_inside(path: Path, folder: Path) -> bool:
    """Return whether a path is a folder or lies in it, after symbolic links."""
    return real_path(path).is_relative_to(real_path(folder))


def lock_file(handle: int, *, wait: bool, ignore_unsupported: bool = False) -> bool:
    """Lock an open file or folder exclusively until it is closed, at the latest when this process ends.

    Args:
        ignore_unsupported: Whether to accept a file system without locks.

    Returns:
        Whether the file or folder is locked; always false on Windows, where a locked file cannot be read.

    Raises:
        BlockingIOError: another process holds the lock, and `wait` is false.
        OSError: the file system has no locks, and `ignore_unsupported` is false.
    """
    if os.name == "nt":
        return False
    import filelock

    try:
        is_locked = filelock.lock_descriptor(handle, blocking=wait, poll_interval=_POLL_SECONDS)
    except OSError:
        if not ignore_unsupported:
            raise
        return False
    if not is_locked:
        raise BlockingIOError(errno.EWOULDBLOCK, "another process holds the lock")
    return True


@contextlib.contextmanager
def folder_lock(folder: Path, *, wait: bool = True, ignore_unsupported: bool = False) -> Iterator[None]:
    """Hold the lock of a folder without writing into it; arguments and errors are those of `lock_file`."""
    if os.name == "nt":  # a folder cannot be opened there
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        lock_file(handle, wait=wait, ignore_unsupported=ignore_unsupported)
        yield
    finally:
        os.close(handle)


def write_atomic(path: Path, text: str | Iterable[str], *, exclusive: bool = False) -> None:
    """Write a text to a temporary file next to `path`, flush it to the disk, and rename it to `path`.

    A device is written in place and not replaced.

    Args:
        path: The file; its folder is created if it is missing.
        text: The whole content, or its parts, which are never held in memory together. If making a part
            raises, nothing is written.
        exclusive: Whether an existing file is an error, even if the file appears during the write.

    Raises:
        FileExistsError: `exclusive` is true, and the file exists.
        OSError: the file could not be written; `path` is unchanged.
    """
    parts = [text] if isinstance(text, str) else text
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not (path.is_file() or path.is_dir()):
        if not path.is_char_device():
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        path.write_text("".join(parts), encoding="utf-8")
        return
    with staged_file(path, parts) as temporary:
        if exclusive:
            os.link(temporary, path)
        else:
            temporary.replace(path)


def write_together(files: Mapping[Path, str]) -> None:
    """Write several files, all or none.

    All contents are on the disk before the first file is replaced. Replaced files are kept under a second
    name until the last file is in place, so restoring them needs no disk space.

    Args:
        files: The whole content of each file, by path; missing folders are created.

    Raises:
        OSError: a file could not be written; nothing has changed.
    """
    new_folders: list[Path] = []
    backups: dict[Path, Path] = {}
    replaced_paths: list[Path] = []
    try:
        with contextlib.ExitStack() as stack:
            temporary_paths: dict[Path, Path] = {}
            for path, text in files.items():
                _make_folder(path.parent, new_folders)
                temporary_paths[path] = stack.enter_context(staged_file(path, [text]))
                if path.exists():
                    backup = temporary_paths[path].with_suffix(".kept")
                    os.link(path, backup)
                    backups[path] = backup
            for path, temporary in temporary_paths.items():
                temporary.replace(path)
                replaced_paths.append(path)
    except BaseException:
        for path in replaced_paths:
            if path in backups:
                backups[path].replace(path)
            else:
                path.unlink()
        for folder in reversed(new_folders):
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    finally:
        for backup in backups.values():
            _unlink_if_possible(backup)


def _make_folder(folder: Path, new_folders: list[Path]) -> None:
    """Make a folder and its parents, and append the new folders to `new_folders`, outermost first."""
    missing_folders = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    for parent in reversed(missing_folders):
        parent.mkdir(exist_ok=True)
        new_folders.append(parent)


@contextlib.contextmanager
def staged_file(path: Path, parts: Iterable[str]) -> Iterator[Path]:
    """Write the parts to a temporary file next to `path`, flush it to disk, and remove it at the end."""
    _remove_abandoned_files_once(path.parent)
    handle, temporary = _open_temporary(path)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="", closefd=False) as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        if os.name == "nt":  # an open file cannot be renamed there
            os.close(handle)
            handle = -1
        yield temporary
    finally:
        if handle >= 0:
            os.close(handle)
        _unlink_if_possible(temporary)


def _open_temporary(path: Path) -> tuple[int, Path]:
    """Open a new temporary file, and lock it if the file system has locks."""
    while True:
        handle, name = tempfile.mkstemp(
            prefix=f".{path.name[:100]}.", suffix=TEMPORARY_SUFFIX, dir=path.parent
        )
        lock_file(handle, wait=True, ignore_unsupported=True)
        if Path(name).exists():
            return handle, Path(name)
        os.close(handle)  # another process removed the file as abandoned before it was locked


def _unlink_if_possible(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def remove_abandoned_files(folder: Path) -> None:
    """Remove the abandoned temporary files in a folder; files whose writers still run stay."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") and entry.name.endswith(TEMPORARY_SUFFIX):
                path = Path(entry.path)
                _remove_if_unowned(path, path.unlink)


_remove_abandoned_files_once = cache(remove_abandoned_files)


def _remove_if_unowned(owner_file: Path, remove: Callable[[], object]) -> None:
    """Call `remove` while holding the lock of `owner_file`, unless another process holds it."""
    with contextlib.suppress(OSError):
        handle = os.open(owner_file, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        try:
            if lock_file(handle, wait=False):
                remove()
        finally:
            os.close(handle)


class ScratchFolder:
    """A temporary folder of this process.

    Attributes:
        path: The folder.

    Args:
        label: A part of the folder's name.
    """

    def __init__(self, label: str = "") -> None:
        _remove_abandoned_folders(tempfile.gettempdir())
        self.path = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX + label))
        self._handle = -1
        try:
            # The owner's file gets its name only once it is locked, so no process finds it without a lock.
            new_owner_file = self.path / f"{_OWNER_FILE}.new"
            self._handle = os.open(new_owner_file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            with contextlib.suppress(OSError):
                if lock_file(self._handle, wait=False):
                    new_owner_file.rename(self.path / _OWNER_FILE)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the folder and its content; may be called again."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


@cache
def _remove_abandoned_folders(parent: str) -> None:
    """Remove the folders of ended processes, once per process; a folder without an owner's file stays."""
    with contextlib.suppress(OSError, AttributeError), os.scandir(parent) as entries:
        for entry in entries:
            if not entry.name.startswith(TEMPORARY_PREFIX) or not entry.is_dir(follow_symlinks=False):
                continue
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                    remove = partial(shutil.rmtree, entry.path, ignore_errors=True)
                    _remove_if_unowned(Path(entry.path) / _OWNER_FILE, remove)


def find_root(start: Path) -> Path | None:
    """Return a project's root, the nearest folder with `suites/` from `start` upwards, or None."""
    return next((folder for folder in (start, *start.parents) if (folder / "suites").is_dir()), None)
