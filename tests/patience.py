"""Waiting in tests: for a condition, however slow the machine is."""

import time
from collections.abc import Callable
from pathlib import Path

HANG_SECONDS = 240.0
"""After so long a test hangs. It says nothing of speed: no test may fail on a machine that is merely busy."""


def until(condition: Callable[[], object], message: str = "") -> None:
    """Wait until a condition holds.

    Args:
        condition: Asked again and again.
        message: What did not happen, for the failure.

    Raises:
        AssertionError: it never holds: the test hangs.
    """
    end = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < end, message or "the expected event never happens"
        time.sleep(0.005)


def gone(pid: int) -> bool:
    """Wait until a process has ended; one that nobody has waited for yet has ended too."""
    until(lambda: _ended(pid), f"process {pid} never ends")
    return True


def _ended(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"
