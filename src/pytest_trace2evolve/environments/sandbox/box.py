"""The parent's side of the sandbox: starts the child, calls it, ends it when it does anything but answer.

    with Sandbox(source, "precondition_verification") as sandbox:
        task = sandbox.call("scenario", 7)
        grade = sandbox.call("grade", task, trace, True)

Whatever comes from the child is data of hostile origin: JSON of bounded size, or the child is killed. There
is no unprotected way to run: if the platform cannot lock the child, nothing is started.
"""

import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, Self

from pytest_trace2evolve.environments.sandbox.policy import ARCHITECTURES, architecture
from pytest_trace2evolve.environments.sandbox.rules import check
from pytest_trace2evolve.errors import GeneratedCodeError, SandboxEndedError, SandboxError
from pytest_trace2evolve.utils.files import Scratch

MAIN = "from pytest_trace2evolve.environments.sandbox import child; child.main()"
PROBE = MAIN.replace("main()", "probe()")
"""What the child runs, and what tries whether the lock holds."""

_ROOT = Path(__file__).resolve().parents[3]  # where the package is imported from

_FLAGS = ("-P", "-s", "-S", "-B", "-W", "ignore")
"""Isolated except for the environment, which is ours: `-I` would ignore the seed of hashes in it. A warning
would be printed with its line of source, and searching for that is fatal."""

_ENVIRONMENT = {"PYTHONHASHSEED": "0", "TZ": "UTC0", "LC_ALL": "C.UTF-8"}
"""All of the child's environment. Sets have one order, since equal seeds must give equal scenarios."""

_CHUNK = 1 << 16  # bytes of one read: the size of a pipe
_MAX_SHOWN = 300  # characters of hostile text in a message
_STARTUP_SECONDS = 60.0  # until a child is locked: it runs only our own code, on a machine that may be busy
_NOT_ASKED = "it answered what was not asked"

# A cycle is found by its depth: tracking every list on the way costs a tenth.
_encode = json.JSONEncoder(check_circular=False, allow_nan=False, separators=(",", ":")).encode


@dataclass(frozen=True)
class Limits:
    """What generated code may use.

    Attributes:
        seconds: By the clock, of a call and of loading the module.
        cpu_seconds: Of processor time in the life of one sandbox.
        memory_mib: Mebibytes of memory beyond those of the interpreter.
        answer_bytes, request_bytes: The longest answer, and the longest request.
    """

    seconds: float = 5.0
    cpu_seconds: int = 600
    memory_mib: int = 256
    answer_bytes: int = 1 << 20
    request_bytes: int = 8 << 20


class _Child:
    """The child process: started with three pipes and nothing else, killed with its whole session.

    The third pipe carries nothing. Only the parent holds its other end, so the kernel closes it when the
    parent ends in any way, and by that kills the child.

    Attributes:
        requests: The pipe to write to; it does not block.
        answers: The pipe to read from.
        process: The process, which leads a session of its own.
        has_ended: Whether the parent ended it.
    """

    def __init__(self, limits: Limits, main: str) -> None:
        self.has_ended = False
        self._cpu = limits.cpu_seconds
        self._folder = Scratch("box-")
        theirs, self.requests = os.pipe()
        self.answers, answers = os.pipe()
        life, ours = os.pipe()
        self._ours = (self.requests, self.answers, ours)
        os.set_blocking(self.requests, False)
        numbers = (theirs, answers, life, limits.memory_mib << 20, limits.cpu_seconds, limits.answer_bytes)
        source = f"import sys; sys.path.append({str(_ROOT)!r}); {main}"
        try:
            self.process = subprocess.Popen(
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
        self._finalizer = weakref.finalize(self, _end_forgotten, self.process, self._ours, os.getpid())

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
                self.process.wait(1)
        _kill(self.process)
        _close_all(self._ours)
        self.remove_folder()

    def cause_of_end(self) -> str:
        """Why it ended, in one clause."""
        status = self.process.returncode or 0
        if status >= 0:
            return f"it ended by itself with status {status}"
        causes = {
            -signal.SIGSYS: "it made a system call that is forbidden, and the kernel killed it",
            -signal.SIGXCPU: f"it used more than {self._cpu} s of processor time",
            -signal.SIGKILL: "it was killed from outside, or the machine has no memory left",
        }
        names = {-known: known.name for known in signal.Signals}
        return f"{causes.get(status, 'it crashed')} ({names.get(status, f'signal {-status}')})"


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


@cache
def missing(probe: str = PROBE) -> str:
    """What this platform lacks to isolate generated code, tried once in a child; empty if nothing."""
    if architecture() is None:
        machine = f"{sys.platform} on {os.uname().machine if hasattr(os, 'uname') else 'another machine'}"
        return f"the sandbox needs Linux on {' or '.join(ARCHITECTURES)}, and this is {machine}"
    try:
        child = _Child(Limits(memory_mib=64, cpu_seconds=10), probe)
    except OSError as error:
        return f"no process can be started ({error})"
    try:
        with os.fdopen(os.dup(child.answers), "rb") as answers:
            answer = _decode_object(answers.readline(_CHUNK))
    except ValueError:
        return "a child of this interpreter does not come to lock itself"
    finally:
        child.end(grace=True)
    if answer.get("locked") is not True:
        return _printable(str(answer.get("missing")))
    status = child.process.returncode
    if status != -signal.SIGSYS:
        return f"a locked child can still open a file (status {status}): the kernel does not filter calls"
    return ""


class Sandbox:
    """One generated module in a process of its own, which it cannot leave.

    The process serves all calls, and the module runs anew for each: what a call returns does not depend on
    earlier calls. Once the process was stopped, every further call raises the same error. Threads may share a
    sandbox; they wait for one another.

    Raises:
        SourceRefusedError: the source breaks the rules; nothing of it ran.
        GeneratedCodeError: the module raised while it was loaded.
        SandboxEndedError: it was stopped while it was loaded.
        SandboxError: this platform cannot isolate it.
    """

    main = MAIN
    """What the child runs. Tests of single layers replace it, and `check_source`."""

    def __init__(self, source: str, name: str, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._name = name
        self.check_source(source)
        if lacking := missing():
            raise SandboxError(f"{name}: not run, for this platform cannot isolate it: {lacking}")
        self._busy = threading.Lock()
        self._number = 0
        self._cause_of_stop = ""
        self._child = _Child(self.limits, self.main)
        try:
            self._wait_for_lock()
            self._exchange({"source": source, "name": name}, "loading it")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process."""
        return self._child.process.pid

    def call(self, function: str, *arguments: Any) -> Any:
        """Call one of the module's functions with JSON values; returns its result as JSON has it.

        Raises:
            GeneratedCodeError: it raised, does not exist, or its answer is no JSON; the sandbox runs on.
            SandboxEndedError: it broke a limit or tried what is forbidden, now or before.
            SandboxError: the sandbox was closed, or the request is longer than allowed.
            TypeError, ValueError: an argument has no JSON form.
        """
        with self._busy:
            if self._cause_of_stop:
                raise SandboxEndedError(self._cause_of_stop)
            if self._child.has_ended:
                raise SandboxError(
                    f"{self._name}: {_printable(function)} was called after the sandbox was closed"
                )
            self._number += 1
            request = {"id": self._number, "call": function, "arguments": arguments}
            return self._exchange(request, f"{_printable(function)}()")

    def close(self) -> None:
        """End the process and wait until it has ended; a second call does nothing."""
        self._child.end()

    def check_source(self, source: str) -> None:
        """Check the source by the rules."""
        check(source, self._name)

    def _wait_for_lock(self) -> None:
        """Nothing generated is sent before the child says that it is locked; only our own code runs in it."""
        answer = self._answer(time.monotonic() + _STARTUP_SECONDS, "starting")
        self._child.remove_folder()
        if answer.get("locked") is not True:
            raise SandboxError(f"{self._name}: not run, for this platform cannot isolate it: {answer}")

    def _exchange(self, request: dict[str, Any], doing: str) -> Any:
        """Send a request and take its answer."""
        line = f"{_encode(request)}\n".encode()
        if len(line) > self.limits.request_bytes:
            raise SandboxError(
                f"{self._name}: {doing} needs a request of {len(line)} bytes; "
                f"allowed are {self.limits.request_bytes}"
            )
        deadline = time.monotonic() + self.limits.seconds
        try:
            self._send(line, deadline, doing)
            answer = self._answer(deadline, doing)
        except SandboxEndedError:
            raise
        except BaseException:
            # An answer that nobody waited for would be taken for the next one.
            self._stop("its caller was interrupted", doing)
            raise
        if answer.get("id") != self._number or isinstance(answer.get("id"), bool):
            raise self._stop(_NOT_ASKED, doing)
        if "value" in answer and len(answer) == 2:
            return answer["value"]
        error, at = answer.get("error"), answer.get("line")
        if not isinstance(error, str) or type(at) is not int or len(answer) != 3:
            raise self._stop(_NOT_ASKED, doing)
        if error.startswith("MemoryError"):
            error = f"it needs more than {self.limits.memory_mib} MiB of memory ({error})"
        place = f", line {at}" if at > 0 else ""
        raise GeneratedCodeError(f"{self._name}{place}: {doing} failed: {_printable(error)}")

    def _send(self, line: bytes, deadline: float, doing: str) -> None:
        if self._is_ready(self._child.answers, select.POLLIN, 0):
            early = os.read(self._child.answers, 1)
            raise self._stop("it answered before it was asked" if early else "", doing)
        rest = memoryview(line)
        while rest:
            try:
                rest = rest[os.write(self._child.requests, rest) :]
            except BlockingIOError:
                self._wait(self._child.requests, select.POLLOUT, deadline, doing)
            except BrokenPipeError:
                raise self._stop("", doing) from None

    def _answer(self, deadline: float, doing: str) -> dict[str, Any]:
        """The next line, before the deadline; there must be nothing after it."""
        received = bytearray()
        while (end := received.find(b"\n")) < 0:
            if len(received) > self.limits.answer_bytes:
                raise self._stop(f"it sent more than {self.limits.answer_bytes} bytes", doing)
            self._wait(self._child.answers, select.POLLIN, deadline, doing)
            chunk = os.read(self._child.answers, _CHUNK)
            if not chunk:
                raise self._stop("", doing)
            received += chunk
        if end + 1 < len(received):
            raise self._stop("it answered more than it was asked", doing)
        try:
            return _decode_object(bytes(received))
        except ValueError as error:
            raise self._stop(f"its answer is no JSON: {error}", doing) from None

    def _wait(self, pipe: int, event: int, deadline: float, doing: str) -> None:
        left = deadline - time.monotonic()
        if left <= 0 or not self._is_ready(pipe, event, left * 1000 + 1):
            raise self._stop(f"it took longer than {self.limits.seconds:g} s", doing)

    @staticmethod
    def _is_ready(pipe: int, event: int, milliseconds: float) -> bool:
        poll = select.poll()
        poll.register(pipe, event)
        return bool(poll.poll(milliseconds))

    def _stop(self, cause: str, doing: str) -> SandboxEndedError:
        """Kill the process, and remember the cause for every further call; if empty, how it ended."""
        with suppress(Exception):
            self._child.end(grace=not cause)
        cause = cause or self._child.cause_of_end()
        self._cause_of_stop = f"{self._name}: stopped at {doing}: {cause}"
        return SandboxEndedError(self._cause_of_stop)


def _decode_object(line: bytes) -> dict[str, Any]:
    """The JSON object in a line; a `ValueError` unless it has finite numbers and whole characters only."""
    try:
        found = _decode(line.decode("utf-8"))
        if b"\\ud" in line or b"\\uD" in line:
            # Perhaps half of a character, which could not be written later.
            json.dumps(found, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise ValueError(_printable(str(error))) from None
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    return found


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no finite number")


def _finite_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:20]} is no finite number")
    return number


_decode = json.JSONDecoder(parse_constant=_reject_constant, parse_float=_finite_float).decode


def _printable(text: str) -> str:
    """Hostile text as part of a message: one line, no control characters, not too long."""
    line = " ".join(text.split())
    printable = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for character in line[:_MAX_SHOWN]
    )
    return f"{printable} …" if len(line) > _MAX_SHOWN else printable
