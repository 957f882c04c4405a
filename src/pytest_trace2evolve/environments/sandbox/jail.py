"""The child as a process: started with three pipes and nothing else, ended with all that it may have started.

The third pipe carries nothing. Only the parent holds its other end, so the kernel closes it when the parent
ends in any way, and by that kills the child.
"""

import json
import math
import os
import signal
import subprocess
import sys
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from pytest_trace2evolve.environments.sandbox.platforms import ARCHITECTURES, architecture
from pytest_trace2evolve.utils.files import Scratch

_ROOT = Path(__file__).resolve().parents[3]  # where the package is imported from

MAIN = "from pytest_trace2evolve.environments.sandbox import child; child.main()"
PROBE = MAIN.replace("main()", "probe()")
"""What the child runs, and what tries whether the lock holds."""

_FLAGS = ("-P", "-s", "-S", "-B", "-W", "ignore")
"""Isolated except for the environment, which is ours: `-I` would ignore the seed of hashes in it. A warning
would be printed with its line of source, and searching for that is fatal."""

_ENVIRONMENT = {"PYTHONHASHSEED": "0", "TZ": "UTC0", "LC_ALL": "C.UTF-8"}
"""All of the child's environment. Sets have one order, since equal seeds must give equal scenarios."""

_MAX_SHOWN = 300  # characters of hostile text in a message


class Jail:
    """A child that has been started; `box` waits for its lock.

    It may use so many bytes of memory and seconds of processor time, and answer in so many bytes.

    Attributes:
        requests: The pipe to write to; it does not block.
        answers: The pipe to read from.
        pid: The process, which leads a session of its own.
        has_ended: Whether the parent ended it.
    """

    def __init__(self, memory: int, cpu: int, max_answer: int, main: str = MAIN) -> None:
        self.has_ended = False
        self._cpu = cpu
        self._folder = Scratch("box-")
        theirs, self.requests = os.pipe()
        self.answers, answers = os.pipe()
        life, ours = os.pipe()
        self._ours = (self.requests, self.answers, ours)
        os.set_blocking(self.requests, False)
        numbers = (theirs, answers, life, memory, cpu, max_answer)
        source = f"import sys; sys.path.append({str(_ROOT)!r}); {main}"
        try:
            self._process = subprocess.Popen(
                [sys.executable, *_FLAGS, "-c", source, *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_ENVIRONMENT,
                cwd=self._folder.path,
                pass_fds=(theirs, answers, life),
                start_new_session=True,  # Ctrl-C is for the run, which then ends this
            )
        except BaseException:
            _close_all(self._ours)
            self.remove_folder()
            raise
        finally:
            _close_all((theirs, answers, life))
        self.pid = self._process.pid
        self._finalizer = weakref.finalize(self, _end_forgotten, self._process, self._ours, os.getpid())

    def remove_folder(self) -> None:
        """Remove the working folder: a locked process cannot open it anyway, and nothing is left behind."""
        self._folder.close()

    def end(self, *, grace: bool = False) -> None:
        """Kill the child with its session, and wait until it has ended.

        If it has closed its pipe, grace gives it a moment to end by itself, which tells why.
        """
        if self.has_ended:
            return
        self.has_ended = True
        self._finalizer.detach()
        if grace:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
        _kill(self._process)
        _close_all(self._ours)
        self.remove_folder()

    @property
    def status(self) -> int:
        """How it ended, negative for a signal."""
        return self._process.returncode or 0

    def how_it_ended(self, tried: str) -> str:
        """Why it ended, in one clause; `tried` is what it last said it would try."""
        status = self.status
        announced = f" (it was about to try {tried})" if tried else ""
        if status >= 0:
            return f"it ended by itself with status {status}{announced}"
        causes = {
            -signal.SIGSYS: "it made a system call that is forbidden, and the kernel killed it",
            -signal.SIGXCPU: f"it used more than {self._cpu} s of processor time",
            -signal.SIGKILL: "it was killed from outside, or the machine has no memory left",
        }
        names = {-known: known.name for known in signal.Signals}
        cause = causes.get(status, "it crashed")
        return f"{cause} ({names.get(status, f'signal {-status}')}){announced}"


def missing_part() -> str:
    """What this platform lacks to isolate a child, tried once; empty if nothing."""
    if architecture() is None:
        machine = f"{sys.platform} on {os.uname().machine if hasattr(os, 'uname') else 'another machine'}"
        return f"the sandbox needs Linux on {' or '.join(ARCHITECTURES)}, and this is {machine}"
    try:
        jail = Jail(64 << 20, 10, 1 << 16, PROBE)
    except OSError as error:
        return f"no process can be started ({error})"
    try:
        with os.fdopen(os.dup(jail.answers), "rb") as answers:
            answer = decode_object(answers.readline(1 << 16))
    except InvalidLineError:
        return "a child of this interpreter does not come to lock itself"
    finally:
        jail.end(grace=True)
    if answer.get("locked") is not True:
        return shown(str(answer.get("missing")))
    if jail.status != -signal.SIGSYS:
        return (
            f"a locked child can still open a file (status {jail.status}): the kernel does not filter calls"
        )
    return ""


def _kill(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:  # once it has been waited for, its number may be another's
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _end_forgotten(process: "subprocess.Popen[bytes]", pipes: tuple[int, ...], owner: int) -> None:
    """End a child that nobody closed. A fork of the owner must not: the child is not its own."""
    if os.getpid() == owner:
        _kill(process)
        _close_all(pipes)


def _close_all(pipes: tuple[int, ...]) -> None:
    for pipe in pipes:
        with suppress(OSError):
            os.close(pipe)


class InvalidLineError(Exception):
    """A line is no JSON object of finite numbers and whole characters."""


def decode_object(line: bytes) -> dict[str, Any]:
    """The JSON object in a line of the child."""
    try:
        found = _decode(line.decode("utf-8"))
        if b"\\ud" in line or b"\\uD" in line:
            # Perhaps half of a character, which could not be written later.
            json.dumps(found, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise InvalidLineError(shown(str(error))) from None
    if not isinstance(found, dict):
        raise InvalidLineError("it is no object")
    return found


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no finite number")


def _finite_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:20]} is no finite number")
    return number


_decode = json.JSONDecoder(parse_constant=_reject_constant, parse_float=_finite_float).decode


def shown(text: str) -> str:
    """Hostile text as part of a message: one line, no control characters, not too long."""
    line = " ".join(text.split())
    printable = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for character in line[:_MAX_SHOWN]
    )
    return f"{printable} …" if len(line) > _MAX_SHOWN else printable
