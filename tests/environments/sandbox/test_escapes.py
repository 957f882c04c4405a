"""Attempts to leave the sandbox: refused by the rules, held by the kernel alone, and real without it."""

import ctypes
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pytest_trace2evolve.environments.sandbox.box import isolation_problem
from pytest_trace2evolve.environments.sandbox.rules import check_rules
from pytest_trace2evolve.errors import SandboxEndedError, SourceRefusedError
from tests.environments.sandbox.attempts import SYSTEM, WALKS, Attempt
from tests.environments.sandbox.layers import LockAlone, Unprotected

ATTEMPTS = SYSTEM | WALKS
SECRET = "secret"

each = pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
held = pytest.mark.skipif(bool(isolation_problem()), reason=isolation_problem())


class Outside:
    """What an attempt may reach, and whether it did."""

    def __init__(self, folder: Path) -> None:
        self._kept = folder / "kept"
        self._kept.touch()
        self._folder = folder
        self._secret = folder.parent / "secret.txt"
        self._secret.write_text(SECRET, encoding="utf-8")
        self._memory = ctypes.create_string_buffer(SECRET.encode())
        self._signals = 0
        self._before = signal.signal(signal.SIGUSR1, self._signalled)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._port = self._listener.getsockname()[1]

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1

    def facts(self) -> dict[str, Any]:
        return {
            "folder": str(self._folder),
            "secret": str(self._secret),
            "port": self._port,
            "pid": os.getpid(),
            "address": ctypes.addressof(self._memory),
        }

    def harm(self, answer: object) -> list[str]:
        """Everything that happened."""
        found = [f"it returned {answer!r}"] if answer in ("escaped", SECRET) else []
        if list(self._folder.iterdir()) != [self._kept]:
            found.append("files were made or removed")
        if self._signals:
            found.append("a signal came")
        try:
            self._listener.accept()[0].close()
            found.append("a connection came")
        except BlockingIOError:
            pass
        return found

    def close(self) -> None:
        self._listener.close()
        signal.signal(signal.SIGUSR1, self._before)


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    folder = tmp_path / "folder"
    folder.mkdir()
    one = Outside(folder)
    yield one
    one.close()


def test_there_are_as_many_attempts_as_the_docs_say() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "decisions.md").read_text("utf-8")
    assert f"{len(ATTEMPTS)} attempts" in page


@each
def test_the_rules_refuse_it_and_name_line_and_cause(attempt: Attempt) -> None:
    with pytest.raises(SourceRefusedError) as refused:
        check_rules(attempt.source, "attempt")
    assert str(refused.value).startswith(f"attempt, line {attempt.line}: ")
    assert attempt.cause in str(refused.value)
    assert "\n" not in str(refused.value)


@held
@each
def test_the_kernel_alone_holds_it(attempt: Attempt, outside: Outside) -> None:
    answer = None
    with pytest.raises(SandboxEndedError) as ended, LockAlone(attempt.source) as box:
        answer = box.call("attack", outside.facts())
    assert outside.harm(answer) == []
    message = "stopped during attack(): it made a forbidden system call, and the kernel killed it (SIGSYS)"
    assert message in str(ended.value)


RUNS_ANY = """
def attack(source, facts):
    space = {"__builtins__": __builtins__}
    exec(source, space)
    return space["attack"](facts)
"""


class Anything:
    """One unlocked process for many attempts, as long as it lives."""

    def __init__(self) -> None:
        self._loads = "\n".join(attempt.source for attempt in ATTEMPTS.values())
        self._box: Unprotected | None = None

    def attack(self, attempt: Attempt, facts: dict[str, Any]) -> object:
        self._box = self._box or Unprotected(RUNS_ANY, loads=self._loads)
        try:
            return self._box.call("attack", attempt.source, facts)
        except SandboxEndedError:
            # It became another program or left its parent: the harm is seen outside.
            self.close()
            return None

    def close(self) -> None:
        if self._box is not None:
            self._box.close()
        self._box = None


@pytest.fixture(scope="module")
def anything() -> Iterator[Anything]:
    one = Anything()
    yield one
    one.close()


@held
@each
def test_without_the_lock_it_does_its_harm(attempt: Attempt, outside: Outside, anything: Anything) -> None:
    answer = anything.attack(attempt, outside.facts())
    assert outside.harm(answer) != []
