"""The parent's side of the sandbox: starts the process, asks it, ends it when it does anything but answer.

    with Sandbox(source, "precondition_verification") as box:
        task = box.call("scenario", 7)
        grade = box.call("grade", task, trace, True)

Whatever comes from the child is data of a hostile origin: it is JSON of bounded size, or the child is
killed. There is no unprotected way to run: where the platform cannot lock the child, nothing is started.
"""

import os
import select
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import Any, Self

from pytest_trace2evolve.environments.sandbox.jail import Jail, missing_part
from pytest_trace2evolve.environments.sandbox.rules import check
from pytest_trace2evolve.environments.sandbox.wire import Json, NonsenseError, decoded, plain, request_line
from pytest_trace2evolve.errors import GeneratedCodeError, SandboxEndedError, SandboxError

__all__ = ["Json", "Limits", "Sandbox", "missing"]

_CHUNK = 1 << 16
"""Bytes of one read: what a pipe holds."""

_STARTING_SECONDS = 60.0
"""Seconds until a child is locked: it runs only our own code till then, on a machine that may be busy."""


@dataclass(frozen=True)
class Limits:
    """What generated code may use.

    Attributes:
        seconds: Wall-clock seconds a call, and of loading the module.
        cpu_seconds: Whole seconds of processor time in the life of one sandbox.
        memory_mib: Mebibytes of memory beyond those of the interpreter.
        answer_bytes: Bytes of the longest answer.
        request_bytes: Bytes of the longest request.
    """

    seconds: float = 5.0
    cpu_seconds: int = 600
    memory_mib: int = 256
    answer_bytes: int = 1 << 20
    request_bytes: int = 8 << 20


@cache
def missing() -> str:
    """What this platform lacks to hold generated code, tried once in a child; empty if nothing."""
    return missing_part()


class Sandbox:
    """One generated module in a process of its own, which it cannot leave.

    The process is reused by all calls, and the module is run anew for each: it keeps nothing between them, so
    what a call returns does not depend on earlier calls. Once it was stopped, every
    further call raises the same error. Threads may share a sandbox; they wait for one another.

    Args:
        source: The module's source.
        name: What to call it in errors.
        limits: What it may use.

    Raises:
        SourceRefusedError: the source breaks the rules; nothing of it ran.
        GeneratedCodeError: the module raised while it was loaded.
        SandboxEndedError: it was stopped while it was loaded.
        SandboxError: this platform cannot hold it.
    """

    def __init__(self, source: str, name: str, limits: Limits | None = None) -> None:
        self._name, self._limits = name, limits or Limits()
        self._check(source)
        lacking = missing()
        if lacking:
            raise SandboxError(f"{name}: not run, for this platform cannot isolate it: {lacking}")
        self._busy = threading.Lock()
        self._number = 0
        self._story = ""
        self._jail = self._start()
        try:
            self._wait_for_the_lock()
            self._exchange(request_line({"source": source, "name": name}))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process."""
        return self._jail.pid

    def call(self, function: str, *arguments: Any) -> Any:
        """Call one of the module's functions.

        Args:
            function: Its name.
            arguments: JSON values, or `Json` where the text is at hand.

        Returns:
            What it returned, as JSON has it: tuples are lists, and keys are texts.

        Raises:
            GeneratedCodeError: it raised, does not exist, or its answer is no JSON. The sandbox goes on.
            SandboxEndedError: it broke a limit or tried what is forbidden, now or before.
            SandboxError: the sandbox was closed, or the request is longer than allowed.
            TypeError, ValueError: an argument has no JSON form.
        """
        with self._busy:
            if self._story:
                raise SandboxEndedError(self._story)
            if self._jail.ended:
                raise SandboxError(f"{self._name}: {plain(function)} was called after the sandbox was closed")
            line = request_line({"id": self._number + 1, "call": function}, arguments)
            if len(line) > self._limits.request_bytes:
                raise SandboxError(
                    f"{self._name}: a request of {len(line)} bytes to {plain(function)}; "
                    f"allowed are {self._limits.request_bytes}"
                )
            self._number += 1
            return self._exchange(line, function)

    def close(self) -> None:
        """End the process and wait until it has. Again and again does no harm."""
        self._jail.end()

    def _check(self, source: str) -> None:
        check(source, self._name)

    def _start(self) -> Jail:
        limits = self._limits
        return Jail(limits.memory_mib << 20, limits.cpu_seconds, limits.answer_bytes)

    def _wait_for_the_lock(self) -> None:
        """Nothing generated is sent before the child says that it is locked; only our own code runs in it."""
        answer = self._answer(time.monotonic() + _STARTING_SECONDS, "starting")
        self._jail.settle()
        if answer.get("locked") is not True:
            raise SandboxError(f"{self._name}: not run, for this platform cannot isolate it: {answer}")

    def _exchange(self, line: bytes, function: str = "") -> Any:
        """Send a request and take its answer."""
        doing = f"{plain(function)}()" if function else "loading it"
        deadline = time.monotonic() + self._limits.seconds
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
        place = f", line {at}" if at > 0 else ""
        if error.startswith("MemoryError"):
            error = f"it needs more than {self._limits.memory_mib} MiB of memory ({error})"
        raise GeneratedCodeError(f"{self._name}{place}: {doing} failed: {plain(error)}")

    def _send(self, line: bytes, deadline: float, doing: str) -> None:
        if self._jail.unread():
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
        got = bytearray()
        most = self._limits.answer_bytes + _CHUNK
        tried = ""
        while True:
            end = got.find(b"\n")
            if end < 0:
                if len(got) > self._limits.answer_bytes:
                    raise self._stop(f"it sent more than {self._limits.answer_bytes} bytes", doing)
                chunk = self._read(deadline, doing, tried)
                most -= len(chunk)
                got += chunk
                continue
            try:
                answer = decoded(bytes(got[:end]))
            except NonsenseError as error:
                raise self._stop(f"its answer is no JSON: {error}", doing) from None
            del got[: end + 1]
            if set(answer) == {"tries"} and isinstance(answer["tries"], str) and most > 0:
                tried = plain(answer["tries"])
                continue
            if got:
                raise self._stop("it answered more than it was asked", doing)
            return answer

    def _read(self, deadline: float, doing: str, tried: str) -> bytes:
        self._wait(self._jail.answers, select.POLLIN, deadline, doing)
        chunk = os.read(self._jail.answers, _CHUNK)
        if not chunk:
            raise self._stop("", doing, tried)
        return chunk

    def _wait(self, pipe: int, event: int, deadline: float, doing: str) -> None:
        poll = select.poll()
        poll.register(pipe, event)
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000 + 1):
            raise self._stop(f"it took longer than {self._limits.seconds:g} s", doing)

    def _stop(self, cause: str, doing: str, tried: str = "") -> SandboxEndedError:
        """Kill the process, and keep the story for every further call."""
        with suppress(Exception):
            self._jail.end(wait_for_its_own=not cause)
        cause = cause or self._jail.how_it_ended(self._limits.cpu_seconds, tried)
        self._story = f"{self._name}: stopped at {doing}: {cause}"
        return SandboxEndedError(self._story)
