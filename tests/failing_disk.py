"""A disk that is full at one chosen write."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock


@contextlib.contextmanager
def failing_disk(step: int) -> Iterator[Callable[[], int]]:
    """Let the given call fail, counted over flushes of files, links and renames; 0 lets none fail.

    Yields a function that returns the number of calls so far.
    """
    calls = 0

    def counted(real: object) -> object:
        def call(*arguments: object, **further: object) -> object:
            nonlocal calls
            calls += 1
            if calls == step:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments, **further)  # type: ignore[operator]

        return call

    with (
        mock.patch.object(os, "fsync", counted(os.fsync)),
        mock.patch.object(os, "link", counted(os.link)),
        mock.patch.object(Path, "replace", counted(Path.replace)),
    ):
        yield lambda: calls
