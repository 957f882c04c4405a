"""The parent's side of the sandbox: starts the process, asks it, ends it when it does anything but answer.

    with Sandbox(source, "precondition_verification") as sandbox:
        task = sandbox.call("scenario", 7)
        grade = sandbox.call("grade", task, trace, True)

Whatever comes from the child is data of hostile origin: JSON of bounded size, or the child is killed. There
is no unprotected way to run: if the platform cannot lock the child, nothing is started.
"""

import json
import os
import select
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

from pytest_trace2evolve.environments.sandbox.jail import (
    MAIN,
    InvalidLineError,
    Jail,
    decode_object,
    missing_part,
    shown,
)
from pytest_trace2evolve.environments.sandbox.rules import check
from pytest_trace2evolve.errors import GeneratedCodeError, SandboxEndedError, SandboxError

_CHUNK = 1 << 16  # bytes of one read: the size of a pipe
_STARTUP_SECONDS = 60.0  # until a child is locked: it runs only our own code, on a machine that may be busy

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


@cache
def missing() -> str:
    """What this platform lacks to isolate generated code, tried once in a child; empty if nothing."""
    return missing_part()


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

    def __init__(self, source: str, name: str, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._name = name
        self.check_source(source)
        if lacking := missing():
            raise SandboxError(f"{name}: not run, for this platform cannot isolate it: {lacking}")
        self._busy = threading.Lock()
        self._number = 0
        self._end_story = ""
        self._jail = self.start_process()
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
        return self._jail.pid

    def call(self, function: str, *arguments: Any) -> Any:
        """Call one of the module's functions with JSON values; returns its result as JSON has it.

        Raises:
            GeneratedCodeError: it raised, does not exist, or its answer is no JSON; the sandbox runs on.
            SandboxEndedError: it broke a limit or tried what is forbidden, now or before.
            SandboxError: the sandbox was closed, or the request is longer than allowed.
            TypeError, ValueError: an argument has no JSON form.
        """
        with self._busy:
            if self._end_story:
                raise SandboxEndedError(self._end_story)
            if self._jail.has_ended:
                raise SandboxError(f"{self._name}: {shown(function)} was called after the sandbox was closed")
            self._number += 1
            request = {"id": self._number, "call": function, "arguments": arguments}
            return self._exchange(request, f"{shown(function)}()")

    def close(self) -> None:
        """End the process and wait until it has ended; a second call does nothing."""
        self._jail.end()

    def check_source(self, source: str) -> None:
        """Hold the source to the rules; overridden by tests of the other layers."""
        check(source, self._name)

    def start_process(self, main: str = MAIN) -> Jail:
        """Start the child; tests have it run another `main`."""
        limits = self.limits
        return Jail(limits.memory_mib << 20, limits.cpu_seconds, limits.answer_bytes, main)

    def _wait_for_lock(self) -> None:
        """Nothing generated is sent before the child says that it is locked; only our own code runs in it."""
        answer = self._answer(time.monotonic() + _STARTUP_SECONDS, "starting")
        self._jail.remove_folder()
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
            raise self._stop("it answered what was not asked", doing)
        if "value" in answer and len(answer) == 2:
            return answer["value"]
        error, at = answer.get("error"), answer.get("line")
        if not isinstance(error, str) or type(at) is not int or len(answer) != 3:
            raise self._stop("it answered what was not asked", doing)
        if error.startswith("MemoryError"):
            error = f"it needs more than {self.limits.memory_mib} MiB of memory ({error})"
        place = f", line {at}" if at > 0 else ""
        raise GeneratedCodeError(f"{self._name}{place}: {doing} failed: {shown(error)}")

    def _send(self, line: bytes, deadline: float, doing: str) -> None:
        if self._is_ready(self._jail.answers, select.POLLIN, 0):
            early = os.read(self._jail.answers, 1)
            raise self._stop("it answered before it was asked" if early else "", doing)
        rest = memoryview(line)
        while rest:
            try:
                rest = rest[os.write(self._jail.requests, rest) :]
            except BlockingIOError:
                self._wait(self._jail.requests, select.POLLOUT, deadline, doing)
            except BrokenPipeError:
                raise self._stop("", doing) from None

    def _answer(self, deadline: float, doing: str) -> dict[str, Any]:
        """The next line that is an answer, before the deadline."""
        received = bytearray()
        bytes_left = self.limits.answer_bytes + _CHUNK
        announced = ""
        while True:
            end = received.find(b"\n")
            if end < 0:
                if len(received) > self.limits.answer_bytes:
                    raise self._stop(f"it sent more than {self.limits.answer_bytes} bytes", doing)
                self._wait(self._jail.answers, select.POLLIN, deadline, doing)
                chunk = os.read(self._jail.answers, _CHUNK)
                if not chunk:
                    raise self._stop("", doing, announced)
                bytes_left -= len(chunk)
                received += chunk
                continue
            try:
                answer = decode_object(bytes(received[:end]))
            except InvalidLineError as error:
                raise self._stop(f"its answer is no JSON: {error}", doing) from None
            del received[: end + 1]
            if set(answer) == {"tries"} and isinstance(answer["tries"], str) and bytes_left > 0:
                announced = shown(answer["tries"])
                continue
            if received:
                raise self._stop("it answered more than it was asked", doing)
            return answer

    def _wait(self, pipe: int, event: int, deadline: float, doing: str) -> None:
        left = deadline - time.monotonic()
        if left <= 0 or not self._is_ready(pipe, event, left * 1000 + 1):
            raise self._stop(f"it took longer than {self.limits.seconds:g} s", doing)

    @staticmethod
    def _is_ready(pipe: int, event: int, milliseconds: float) -> bool:
        poll = select.poll()
        poll.register(pipe, event)
        return bool(poll.poll(milliseconds))

    def _stop(self, cause: str, doing: str, announced: str = "") -> SandboxEndedError:
        """Kill the process, and keep the story for every further call."""
        with suppress(Exception):
            self._jail.end(grace=not cause)
        cause = cause or self._jail.how_it_ended(announced)
        self._end_story = f"{self._name}: stopped at {doing}: {cause}"
        return SandboxEndedError(self._end_story)
