"""The parent's side of the sandbox: starts and calls the child, and kills it if it breaks the protocol.

    with Sandbox(source, "precondition_verification") as sandbox:
        task = sandbox.call("scenario", 7)
        grade = sandbox.call("grade", task, trace, True)

All data from the child counts as hostile. It must be JSON of bounded size, or the child is killed. There is
no unprotected mode: if the platform cannot lock the child, no generated code runs.
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

from pytest_trace2evolve.environments.sandbox.policy import ARCHITECTURES, current_architecture
from pytest_trace2evolve.environments.sandbox.rules import check_rules
from pytest_trace2evolve.errors import GeneratedCodeError, SandboxEndedError, SandboxError
from pytest_trace2evolve.utils.files import ScratchFolder

MAIN_CODE = "from pytest_trace2evolve.environments.sandbox import child; child.main()"
PROBE_CODE = MAIN_CODE.replace("main()", "probe()")
"""Python code that runs a child, and Python code that tests whether the lock works."""

_ROOT = Path(__file__).resolve().parents[3]  # the folder from which the package is imported

_FLAGS = ("-P", "-s", "-S", "-B", "-W", "ignore")
"""Options that isolate the interpreter, except from the environment, which `box` sets.

`-I` would ignore the hash seed in the environment. Warnings are off, because the search for the source line
of a warning would kill the child.
"""

_ENVIRONMENT = {"PYTHONHASHSEED": "0", "TZ": "UTC0", "LC_ALL": "C.UTF-8"}
"""The child's whole environment. It fixes the order of sets, so that equal seeds give equal scenarios."""

_CHUNK = 1 << 16  # bytes of one read, the size of a pipe
_MAX_TEXT_LENGTH = 300  # characters of hostile text in a message
_STARTUP_SECONDS = 60.0  # until a child is locked; it runs only our own code, and the machine may be busy
_UNEXPECTED_ANSWER = "it sent an answer that was not requested"

# Cycles fail by their depth instead of a check, which would track every list and cost a tenth of the time.
_encode = json.JSONEncoder(check_circular=False, allow_nan=False, separators=(",", ":")).encode


@dataclass(frozen=True)
class Limits:
    """The resource limits of generated code.

    Attributes:
        seconds: Wall-clock seconds of one call, and of loading the module.
        cpu_seconds: Seconds of processor time in the life of one sandbox.
        memory_mib: Mebibytes of memory beyond the interpreter's own.
        answer_bytes: Bytes of the longest answer.
        request_bytes: Bytes of the longest request.
    """

    seconds: float = 5.0
    cpu_seconds: int = 600
    memory_mib: int = 256
    answer_bytes: int = 1 << 20
    request_bytes: int = 8 << 20


class _Child:
    """The child process, which gets three pipes and nothing else, and is killed with its whole session.

    The third pipe carries no data. Only the parent holds its other end, so the kernel closes the pipe when
    the parent ends in any way, which kills the child.

    Attributes:
        requests: The pipe to which requests are written without blocking.
        answers: The pipe from which answers are read.
        process: The process, which leads its own session.
        has_ended: Whether the parent ended the process.
    """

    def __init__(self, limits: Limits, code: str) -> None:
        self.has_ended = False
        self._cpu_seconds = limits.cpu_seconds
        self._folder = ScratchFolder("box-")
        child_requests, self.requests = os.pipe()
        self.answers, child_answers = os.pipe()
        child_life, parent_life = os.pipe()
        self._parent_pipes = (self.requests, self.answers, parent_life)
        os.set_blocking(self.requests, False)
        arguments = (
            child_requests,
            child_answers,
            child_life,
            limits.memory_mib << 20,
            limits.cpu_seconds,
            limits.answer_bytes,
        )
        source = f"import sys; sys.path.append({str(_ROOT)!r}); {code}"
        try:
            self.process = subprocess.Popen(
                [sys.executable, *_FLAGS, "-c", source, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_ENVIRONMENT,
                cwd=self._folder.path,
                pass_fds=(child_requests, child_answers, child_life),
                start_new_session=True,  # Ctrl-C must reach only the run, which then ends the child
            )
        except BaseException:
            _close_all(self._parent_pipes)
            self.remove_folder()
            raise
        finally:
            _close_all((child_requests, child_answers, child_life))
        self._finalizer = weakref.finalize(
            self, _end_unclosed_child, self.process, self._parent_pipes, os.getpid()
        )

    def remove_folder(self) -> None:
        """Remove the child's working folder, which a locked process cannot open anyway."""
        self._folder.close()

    def end(self, *, graceful: bool = False) -> None:
        """Kill the child with its session, and wait until it has ended.

        With `graceful`, the child first gets a moment to end by itself, so that its status shows the cause.
        """
        if self.has_ended:
            return
        self.has_ended = True
        self._finalizer.detach()
        if graceful:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1)
        _kill(self.process)
        _close_all(self._parent_pipes)
        self.remove_folder()

    def end_cause(self) -> str:
        """The reason why the process ended, as a clause for a message."""
        status = self.process.returncode or 0
        if status >= 0:
            return f"it ended by itself with status {status}"
        causes = {
            -signal.SIGSYS: "it made a forbidden system call, and the kernel killed it",
            -signal.SIGXCPU: f"it used more than {self._cpu_seconds} s of processor time",
            -signal.SIGKILL: "it was killed from outside, or the machine ran out of memory",
        }
        signal_names = {-number: number.name for number in signal.Signals}
        return f"{causes.get(status, 'it crashed')} ({signal_names.get(status, f'signal {-status}')})"


def _kill(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:  # after the wait, its id may belong to a different process
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _end_unclosed_child(process: "subprocess.Popen[bytes]", pipes: tuple[int, ...], owner: int) -> None:
    """End a child that was not closed; do nothing in a fork of the owner, which does not own the child."""
    if os.getpid() == owner:
        _kill(process)
        _close_all(pipes)


def _close_all(pipes: tuple[int, ...]) -> None:
    for pipe in pipes:
        with suppress(OSError):
            os.close(pipe)


@cache
def isolation_problem(code: str = PROBE_CODE) -> str:
    """Try once to lock a child, and return why this platform cannot lock it; empty if it can."""
    if current_architecture() is None:
        machine = f"{sys.platform} on {os.uname().machine if hasattr(os, 'uname') else 'an unknown machine'}"
        return f"the sandbox needs Linux on {' or '.join(ARCHITECTURES)}, but this is {machine}"
    try:
        child = _Child(Limits(memory_mib=64, cpu_seconds=10), code)
    except OSError as error:
        return f"no process can be started ({error})"
    try:
        with os.fdopen(os.dup(child.answers), "rb") as answers:
            answer = _decode_object(answers.readline(_CHUNK))
    except ValueError:
        return "the child process ended before it locked itself"
    finally:
        child.end(graceful=True)
    if answer.get("locked") is not True:
        return _to_printable(str(answer.get("missing")))
    status = child.process.returncode
    if status != -signal.SIGSYS:
        return f"a locked child can still open a file (status {status}): the kernel does not filter calls"
    return ""


class Sandbox:
    """Runs one generated module in its own process, which the module cannot leave.

    The process serves all calls and runs the module anew for each, so the result of a call does not depend on
    earlier calls. After the process was stopped, every further call raises the same error. Threads may share
    a sandbox; their calls wait for each other.

    Raises:
        SourceRefusedError: the source breaks the rules; no part of it ran.
        GeneratedCodeError: the module raised an exception while it was loaded.
        SandboxEndedError: the process was stopped while it loaded the module.
        SandboxError: this platform cannot isolate the module.
    """

    child_code = MAIN_CODE
    """The code that the child runs. Tests of single layers replace `child_code` and `check_source`."""

    def __init__(self, source: str, name: str, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._name = name
        self.check_source(source)
        if problem := isolation_problem():
            raise SandboxError(f"{name}: not run, because this platform cannot isolate it: {problem}")
        self._lock = threading.Lock()
        self._request_number = 0
        self._stop_cause = ""
        self._child = _Child(self.limits, self.child_code)
        try:
            self._wait_for_lock()
            self._exchange({"source": source, "name": name}, "loading")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._child.process.pid

    def call(self, function: str, *arguments: Any) -> Any:
        """Call one of the module's functions with JSON values, and return its result decoded from JSON.

        Raises:
            GeneratedCodeError: the function does not exist, raised an exception, or returned a value that is
                not JSON; the sandbox can still be used.
            SandboxEndedError: the module broke a limit or did something forbidden, in this call or before.
            SandboxError: the sandbox was closed, or the request is longer than allowed.
            TypeError, ValueError: an argument has no JSON form.
        """
        with self._lock:
            if self._stop_cause:
                raise SandboxEndedError(self._stop_cause)
            if self._child.has_ended:
                raise SandboxError(
                    f"{self._name}: {_to_printable(function)} was called after the sandbox was closed"
                )
            self._request_number += 1
            request = {"id": self._request_number, "call": function, "arguments": arguments}
            return self._exchange(request, f"{_to_printable(function)}()")

    def close(self) -> None:
        """End the process and wait until it has ended; a second call does nothing."""
        self._child.end()

    def check_source(self, source: str) -> None:
        """Check that the source follows the rules; see `rules.check_rules`."""
        check_rules(source, self._name)

    def _wait_for_lock(self) -> None:
        """Wait until the child says that it is locked, because the source must not be sent earlier."""
        answer = self._read_answer(time.monotonic() + _STARTUP_SECONDS, "starting")
        self._child.remove_folder()
        if answer.get("locked") is not True:
            raise SandboxError(f"{self._name}: not run, because this platform cannot isolate it: {answer}")

    def _exchange(self, request: dict[str, Any], activity: str) -> Any:
        """Send a request, and return the value of the answer."""
        line = f"{_encode(request)}\n".encode()
        if len(line) > self.limits.request_bytes:
            raise SandboxError(
                f"{self._name}: {activity} needs a request of {len(line)} bytes; "
                f"allowed are {self.limits.request_bytes}"
            )
        deadline = time.monotonic() + self.limits.seconds
        try:
            self._send_request(line, deadline, activity)
            answer = self._read_answer(deadline, activity)
        except SandboxEndedError:
            raise
        except BaseException:
            # Otherwise the late answer would be read as the answer to the next request.
            self._stop("its caller was interrupted", activity)
            raise
        if answer.get("id") != self._request_number or isinstance(answer.get("id"), bool):
            raise self._stop(_UNEXPECTED_ANSWER, activity)
        if "value" in answer and len(answer) == 2:
            return answer["value"]
        error, line_number = answer.get("error"), answer.get("line")
        if not isinstance(error, str) or type(line_number) is not int or len(answer) != 3:
            raise self._stop(_UNEXPECTED_ANSWER, activity)
        if error.startswith("MemoryError"):
            error = f"it needs more than {self.limits.memory_mib} MiB of memory ({error})"
        location = f", line {line_number}" if line_number > 0 else ""
        raise GeneratedCodeError(f"{self._name}{location}: {activity} failed: {_to_printable(error)}")

    def _send_request(self, line: bytes, deadline: float, activity: str) -> None:
        if self._is_ready(self._child.answers, select.POLLIN, 0):
            early_data = os.read(self._child.answers, 1)
            raise self._stop("it answered before the request" if early_data else "", activity)
        unsent = memoryview(line)
        while unsent:
            try:
                unsent = unsent[os.write(self._child.requests, unsent) :]
            except BlockingIOError:
                self._wait_until_ready(self._child.requests, select.POLLOUT, deadline, activity)
            except BrokenPipeError:
                raise self._stop("", activity) from None

    def _read_answer(self, deadline: float, activity: str) -> dict[str, Any]:
        """Read the next line before the deadline, and check that no data follows the line."""
        buffer = bytearray()
        while (end := buffer.find(b"\n")) < 0:
            if len(buffer) > self.limits.answer_bytes:
                raise self._stop(f"it sent more than {self.limits.answer_bytes} bytes", activity)
            self._wait_until_ready(self._child.answers, select.POLLIN, deadline, activity)
            chunk = os.read(self._child.answers, _CHUNK)
            if not chunk:
                raise self._stop("", activity)
            buffer += chunk
        if end + 1 < len(buffer):
            raise self._stop("it sent more than one answer", activity)
        try:
            return _decode_object(bytes(buffer))
        except ValueError as error:
            raise self._stop(f"its answer is not valid JSON: {error}", activity) from None

    def _wait_until_ready(self, pipe: int, event: int, deadline: float, activity: str) -> None:
        seconds_left = deadline - time.monotonic()
        if seconds_left <= 0 or not self._is_ready(pipe, event, seconds_left * 1000 + 1):
            raise self._stop(f"it took longer than {self.limits.seconds:g} s", activity)

    @staticmethod
    def _is_ready(pipe: int, event: int, milliseconds: float) -> bool:
        poll = select.poll()
        poll.register(pipe, event)
        return bool(poll.poll(milliseconds))

    def _stop(self, cause: str, activity: str) -> SandboxEndedError:
        """Kill the process, store the cause for further calls, and return the error.

        If `cause` is empty, the exit status shows the cause.
        """
        with suppress(Exception):
            self._child.end(graceful=not cause)
        cause = cause or self._child.end_cause()
        self._stop_cause = f"{self._name}: stopped during {activity}: {cause}"
        return SandboxEndedError(self._stop_cause)


def _decode_object(line: bytes) -> dict[str, Any]:
    """Decode the JSON object in a line.

    Raises:
        ValueError: the line is not a JSON object, or has a number that is not finite, or a lone surrogate.
    """
    try:
        value = _decode(line.decode("utf-8"))
        if b"\\ud" in line or b"\\uD" in line:
            # The value may contain a lone surrogate, which could not be encoded later.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise ValueError(_to_printable(str(error))) from None
    if not isinstance(value, dict):
        raise ValueError("it is not an object")
    return value


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a finite number")


def _parse_finite_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number


_decode = json.JSONDecoder(parse_constant=_reject_constant, parse_float=_parse_finite_float).decode


def _to_printable(text: str) -> str:
    """Make hostile text safe for a message: one line without control characters, shortened if too long."""
    line = " ".join(text.split())
    visible = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for character in line[:_MAX_TEXT_LENGTH]
    )
    return f"{visible} …" if len(line) > _MAX_TEXT_LENGTH else visible
