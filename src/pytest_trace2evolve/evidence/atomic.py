"""Files that are either whole or absent, one or several together."""

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path


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

    What making a part raises goes through, and nothing is written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = stage(path, parts)
    try:
        if exclusive:
            os.link(staged, path)
            staged.unlink()
        else:
            staged.replace(path)
    except BaseException:
        _discard(staged)
        raise


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
    staged: dict[Path, Path] = {}
    kept: dict[Path, Path] = {}
    replaced: list[Path] = []
    try:
        for path, text in files.items():
            _make_folder(path.parent, made)
            staged[path] = stage(path, [text])
            if path.exists():
                second = staged[path].with_suffix(".kept")
                os.link(path, second)
                kept[path] = second
        for path, ready in staged.items():
            ready.replace(path)
            replaced.append(path)
    except BaseException:
        for path in replaced:
            if path in kept:
                kept[path].replace(path)
            else:
                path.unlink()
        for rest in (*staged.values(), *kept.values()):
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


def stage(path: Path, parts: Iterable[str]) -> Path:
    """A temporary file next to `path` that holds the parts, on the disk.

    Raises:
        OSError: it could not be written; nothing is left behind.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".tmp", dir=path.parent)
    staged = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        staged.chmod(0o644)
    except BaseException:
        _discard(staged)
        raise
    return staged


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
