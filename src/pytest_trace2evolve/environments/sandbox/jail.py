"""The child as a process: started with three pipes and nothing else, ended with all that it may have started.

The third pipe carries nothing. Only the parent holds its other end, so the kernel closes it when the parent
ends in any way, and by that kills the child.
"""

import os
import select
import signal
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path

from pytest_trace2evolve.environments.sandbox.platforms import ARCHITECTURES, architecture
from pytest_trace2evolve.environments.sandbox.wire import NonsenseError, decoded, plain
from pytest_trace2evolve.utils.files import Scratch

_ROOT = Path(__file__).resolve().parents[3]
"""What the package is imported from."""

MAIN = "from pytest_trace2evolve.environments.sandbox import child; child.main()"
"""What the child runs."""

PROBE = MAIN.replace("main()", "probe()")
"""What tries whether the lock holds."""

_FLAGS = ("-P", "-s", "-S", "-B", "-W", "ignore")
"""Isolated but for the environment, which is ours: `-I` would ignore the seed of hashes in it. A warning
would be printed with its line of source, and looking for that is death."""

_ENVIRONMENT = {"PYTHONHASHSEED": "0", "TZ": "UTC0", "LC_ALL": "C.UTF-8"}
"""All of the child's environment. Sets have one order, for equal seeds must give equal scenarios."""


class Jail:
    """A child that has been started; `box` waits for its lock.

    Attributes:
        requests: The pipe to write to; it does not block.
        answers: The pipe to read from.
        pid: The process, which leads a session of its own.
        ended: Whether it was ended from here.

    Args:
        memory: Bytes that it may use.
        cpu: Seconds of processor time that it may use.
        most: Bytes of its longest answer.
        main: What it runs.
    """

    def __init__(self, memory: int, cpu: int, most: int, main: str = MAIN) -> None:
        self.ended = False
        self._folder = Scratch("box-")
        theirs, self.requests = os.pipe()
        self.answers, answers = os.pipe()
        life, ours = os.pipe()
        os.set_blocking(self.requests, False)
        by_thread = int(threading.current_thread() is threading.main_thread())
        numbers = (theirs, answers, life, by_thread, memory, cpu, most)
        try:
            # A session of its own: Ctrl-C is for the run, which then ends this.
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    *_FLAGS,
                    "-c",
                    f"import sys; sys.path.append({str(_ROOT)!r}); {main}",
                    *map(str, numbers),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_ENVIRONMENT,
                cwd=self._folder.path,
                pass_fds=(theirs, answers, life),
                start_new_session=True,
            )
        except BaseException:
            self._let_go(self.requests, self.answers, ours)
            self.settle()
            raise
        finally:
            self._let_go(theirs, answers, life)
        self.pid = self._process.pid
        self._ours = (self.requests, self.answers, ours)
        self._forgotten = weakref.finalize(self, _end_forgotten, self._process, self._ours, os.getpid())

    def settle(self) -> None:
        """Remove the working folder: a locked process cannot open it anyway, and nothing is left behind."""
        self._folder.close()

    def unread(self) -> bool:
        """Whether there is something to read, or its end, though nobody asked."""
        poll = select.poll()
        poll.register(self.answers, select.POLLIN)
        return bool(poll.poll(0))

    def end(self, wait_for_its_own: bool = False) -> None:
        """Kill it with its session, and wait until it has ended.

        Args:
            wait_for_its_own: It closed its pipe, so give it a moment to end as it would, which says why.
        """
        if self.ended:
            return
        self.ended = True
        self._forgotten.detach()
        if wait_for_its_own:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
        _kill(self._process)
        self._let_go(*self._ours)
        self.settle()

    @property
    def status(self) -> int:
        """How it ended, negative for a signal."""
        return self._process.returncode or 0

    def how_it_ended(self, cpu: int, tried: str) -> str:
        """The story of its end, in one clause.

        Args:
            cpu: The seconds of processor time that it had.
            tried: What it was about to do when it last said so.
        """
        status = self.status
        tried = f" (it was about to try {tried})" if tried else ""
        if status >= 0:
            return f"it ended by itself with status {status}{tried}"
        told = {
            signal.SIGSYS: "it made a system call that is forbidden, and the kernel killed it",
            signal.SIGXCPU: f"it used more than {cpu} s of processor time",
            signal.SIGKILL: "it was killed from outside, or the machine has no memory left",
        }
        known = {one.value: one for one in signal.Signals}.get(-status)
        cause = told.get(known, "it crashed") if known else "it crashed"
        return f"{cause} ({known.name if known else f'signal {-status}'}){tried}"

    @staticmethod
    def _let_go(*pipes: int) -> None:
        for pipe in pipes:
            with suppress(OSError):
                os.close(pipe)


def missing_part() -> str:
    """Lock a child and have it try what the lock forbids; what this platform lacks, empty if nothing."""
    if architecture() is None:
        machine = f"{sys.platform} on {os.uname().machine if hasattr(os, 'uname') else 'another machine'}"
        return f"the sandbox needs Linux on {' or '.join(ARCHITECTURES)}, and this is {machine}"
    try:
        jail = Jail(64 << 20, 10, 1 << 16, PROBE)
    except OSError as error:
        return f"no process can be started ({error})"
    try:
        with os.fdopen(os.dup(jail.answers), "rb") as answers:
            line = answers.readline(1 << 16)
        answer = decoded(line)
    except NonsenseError:
        return "a child of this interpreter does not come to lock itself"
    finally:
        jail.end(wait_for_its_own=True)
    if answer.get("locked") is not True:
        return plain(str(answer.get("missing")))
    if jail.status != -signal.SIGSYS:
        return (
            f"a locked child can still open a file (status {jail.status}): the kernel does not filter calls"
        )
    return ""


def _kill(process: "subprocess.Popen[bytes]") -> None:
    # Once it has been waited for, its number may be another's.
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _end_forgotten(process: "subprocess.Popen[bytes]", pipes: tuple[int, ...], owner: int) -> None:
    """End what nobody closed. A fork of the owner must not: the child is not its own."""
    if os.getpid() == owner:
        _kill(process)
        for pipe in pipes:
            with suppress(OSError):
                os.close(pipe)
