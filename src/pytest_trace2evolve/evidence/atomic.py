"""Files that are either whole or absent."""

import contextlib
import os
import tempfile
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
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        if exclusive:
            os.link(name, path)
            Path(name).unlink()
        else:
            Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
