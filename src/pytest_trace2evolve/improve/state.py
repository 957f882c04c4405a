"""The folder of an evolution: its state, and the lock that keeps two processes from working on it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_trace2evolve.errors import ConfigError, ResultsError
from pytest_trace2evolve.records.improvement import Evolution
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.reading import read_record

STATE = "state.json"
LOCK = "lock"


def read_state(folder: Path, candidate: str, identity: str) -> Evolution:
    """The state of an evolution; a fresh one if it has not begun.

    Raises:
        ResultsError: the state is damaged, or of another evolution.
    """
    path = folder / STATE
    if not os.path.lexists(path):
        return Evolution(candidate=candidate, identity=identity)
    state = read_record(path, Evolution, ResultsError, "move the folder away")
    if state.identity != identity:
        raise ResultsError(f"{path}: is of another evolution, {state.identity}; move the folder away")
    return state


def write_state(folder: Path, state: Evolution) -> None:
    """Store the state of an evolution.

    Raises:
        OSError: it cannot be written.
    """
    write_atomic(folder / STATE, state.model_dump_json(indent=1) + "\n")


def unused_path(path: Path) -> Path:
    """The path, or the first of `path-2`, `path-3`, … that does not exist."""
    found, number = path, 1
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold the lock of an evolution; yields its file handle.

    Trainings inherit the handle: one that outlives a killed evolution holds the lock until it ends.

    Raises:
        ConfigError: another process holds the lock.
        OSError: the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            import fcntl
        except ImportError:  # Windows
            pass
        else:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"{folder}: another process works on it, or one that it started; wait for it to end"
                ) from None
        yield handle
    finally:
        os.close(handle)
