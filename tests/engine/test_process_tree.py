"""Ending an agent's processes after the leader of their group has ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_trace2evolve.engine.process_tree import MARK, kill_tree
from tests.patience import gone, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="identifies processes through /proc")

START = "env -u {name} sleep 600 & echo $!; sleep 600 & echo $!"
"""Starts a process without the mark and one with the mark of the leader, if it has one, and ends."""


def start_group(mark: str) -> tuple[int, int, int]:
    """Start a group whose leader ends; returns the ids of the leader and of both members."""
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    leader = subprocess.Popen(
        ["sh", "-c", f"exec 2>/dev/null; {START.format(name=MARK)}"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment | ({MARK: mark} if mark else {}),
        start_new_session=True,
    )
    with leader:
        assert leader.stdout is not None
        plain, marked = int(leader.stdout.readline()), int(leader.stdout.readline())
        leader.wait()
    until(lambda: all(b"sleep" in command_of(pid) for pid in (plain, marked)))
    return leader.pid, plain, marked


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_group_of_an_ended_leader_is_killed_if_a_marked_process_belongs_to_it() -> None:
    leader, plain, marked = start_group("mark-of-this-agent")
    kill_tree(leader, "mark-of-this-agent", has_ended=True)
    assert gone(plain)
    assert gone(marked)


def test_a_group_without_the_mark_belongs_to_another_program_and_survives() -> None:
    leader, *members = start_group("")
    try:
        kill_tree(leader, "mark-of-this-agent", has_ended=True)
        for pid in members:
            assert b"sleep" in command_of(pid)
            os.kill(pid, 0)
    finally:
        os.killpg(leader, signal.SIGKILL)
