"""Temporary folders that do not outlive their process for long: the next one removes what a killed one left.

A folder belongs to a process as long as that holds a lock on a file in it. The kernel ends the lock with the
process, however that ends.
"""

import contextlib
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

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
