"""The sandbox's process: who ends it, what is left of it, and where it cannot be held."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from pytest_trace2evolve.environments.sandbox import box
from pytest_trace2evolve.environments.sandbox.box import Sandbox, isolation_problem
from pytest_trace2evolve.errors import SandboxEndedError, SandboxError
from tests.environments.sandbox.layers import FINE, LOOP
from tests.patience import gone

pytestmark = pytest.mark.skipif(bool(isolation_problem()), reason=isolation_problem())


def test_a_child_killed_from_outside_is_told() -> None:
    with Sandbox(FINE, "fine") as one:
        os.kill(one.pid, signal.SIGKILL)
        assert gone(one.pid)
        with pytest.raises(SandboxEndedError, match="it was killed from outside"):
            one.call("counted")


def test_nothing_is_left_behind() -> None:
    folder = Path(tempfile.gettempdir())
    isolation_problem()
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    threads = threading.active_count()
    for _ in range(3):
        with Sandbox(FINE, "fine") as one:
            one.call("counted")
            assert os.getsid(one.pid) == one.pid
            cwd = Path(f"/proc/{one.pid}/cwd").readlink()
            assert not list(folder.glob(cwd.name.split(" ")[0]))
        assert gone(one.pid)
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before
    assert threading.active_count() == threads


PARENT = """
import sys, threading
from pytest_trace2evolve.environments.sandbox.box import Limits, Sandbox
def main():
    with Sandbox(sys.argv[1], "left", Limits(seconds=60)) as one:
        print(one.pid, flush=True)
        if sys.argv[2] == "busy":
            one.call("attack")
        sys.stdin.read()
if sys.argv[3] == "thread":
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
else:
    main()
"""


@pytest.mark.parametrize(("doing", "where"), [("idle", "main"), ("busy", "thread")])
def test_a_killed_parent_leaves_no_child(doing: str, where: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, LOOP, doing, where], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    with parent.stdout, parent.stdin:
        child = int(parent.stdout.readline())
        time.sleep(0.1)
        os.kill(child, 0)
        parent.kill()
        parent.wait()
        assert gone(child)


def test_a_platform_without_isolation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box, "current_architecture", lambda: None)
    lacking = isolation_problem("another probe")
    assert lacking.startswith("the sandbox needs Linux on x86_64 or aarch64, but this is ")
    monkeypatch.setattr(box, "isolation_problem", lambda: lacking)
    with pytest.raises(
        SandboxError, match="fine: not run, because this platform cannot isolate it: the sandbox needs"
    ):
        Sandbox(FINE, "fine")


@pytest.mark.parametrize(
    ("main", "message"),
    [
        ("child.lock = lambda *given: False; child.probe()", "a locked child can still open a file"),
        ("raise SystemExit", "ended before it locked itself"),
        ("kernel._SECCOMP_FILTER = 9; child.probe()", "the kernel refuses seccomp filters"),
    ],
)
def test_a_lock_that_does_not_hold_is_found(main: str, message: str) -> None:
    begin = "from pytest_trace2evolve.environments.sandbox import child, kernel; "
    assert message in isolation_problem(begin + main)
