"""Ends a process and all processes that it started.

Like `agent_child`, this module imports only the standard library.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

MARK = "TRACE2EVOLVE_AGENT_PROCESS"
"""The environment variable whose value all processes of one agent share."""

_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)

_PR_SET_CHILD_SUBREAPER = 36

_MAX_ROUNDS = 10
"""Maximum number of searches of the tree. A search may miss processes that start during the search."""


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that `kill_tree` finds them (Linux only)."""
    if sys.platform != "linux":
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_tree(pid: int, mark: str, *, has_ended: bool = False) -> None:
    """Kill the leader of a process group, its group and, on Linux, all processes that the leader started.

    The leader is killed last, because its descendants could no longer be identified after its end. If the
    leader has ended, another process or group may have its id. Processes with the mark are killed then, and
    the group only if one of them belongs to it.

    Args:
        pid: The leader's process id.
        mark: The value of `MARK` in the leader's environment, which its descendants inherit.
        has_ended: Whether the leader has ended.
    """
    killed: set[int] = set()
    is_own_group = not has_ended
    for _ in range(_MAX_ROUNDS):
        descendants = set(_descendants(0 if has_ended else pid, mark)) - killed - {pid, os.getpid()}
        if not descendants:
            break
        for descendant in descendants:
            is_own_group = is_own_group or _group_of(descendant) == pid
            _kill(descendant)
        killed |= descendants
    if is_own_group:
        with contextlib.suppress(OSError, AttributeError):
            os.killpg(pid, _KILL)
    if not has_ended:
        _kill(pid)


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, _KILL)


def _group_of(pid: int) -> int:
    """Return the group of a process; 0 if the process has ended."""
    try:
        return os.getpgid(pid)
    except OSError:
        return 0


def _descendants(pid: int, mark: str) -> Iterator[int]:
    """Yield the descendants of a process, and all processes with its mark; none if there is no `/proc`."""
    children: dict[int, list[int]] = {}
    mark_entry = f"{MARK}={mark}".encode()
    with contextlib.suppress(OSError):
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal() and (parent := _parent_of(folder)):
                children.setdefault(parent, []).append(int(folder.name))
                if mark and mark_entry in _environment_of(folder):
                    yield int(folder.name)
    unvisited = children.get(pid, []) if pid else []
    while unvisited:
        child = unvisited.pop()
        yield child
        unvisited += children.get(child, [])


def _parent_of(folder: Path) -> int:
    """Return the id of a process's parent; 0 if the process has ended."""
    try:
        # The name of the program may contain spaces and parentheses.
        state, parent, *_ = (folder / "stat").read_bytes().rpartition(b")")[2].split()
    except (OSError, ValueError):
        return 0
    return 0 if state == b"Z" else int(parent)


def _environment_of(folder: Path) -> list[bytes]:
    """Return the environment of a process at its start; empty if it cannot be read."""
    try:
        return (folder / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
