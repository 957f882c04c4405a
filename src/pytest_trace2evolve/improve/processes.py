"""Trainings as processes of their own: what they print goes into a log, and the last line is shown."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from pytest_trace2evolve.errors import TrainingError

LAST = 3
"""Lines of a log that are told of a process that failed."""

Told = Callable[[str, str], None]
"""Hears of which process what line was said."""


@dataclass(frozen=True)
class Work:
    """A process to run.

    Attributes:
        name: What it is called towards people.
        arguments: Of this Python.
        log: The file to which its output is appended.
    """

    name: str
    arguments: Sequence[str]
    log: Path


def run_all(works: Sequence[Work], here: Path, lock: int, *, at_once: int, told: Told) -> None:
    """Run processes, some at once, and wait for all of them.

    Args:
        here: Their working folder.
        lock: A file handle that they inherit.
        at_once: How many run at a time.
        told: Hears what they say.

    Raises:
        TrainingError: one failed; the others are let end first. Names its log.
    """
    room = threading.Semaphore(at_once)
    failed: list[str] = []
    with ExitStack() as stack:
        running: list[subprocess.Popen[str]] = []
        stack.callback(_end, running)

        def one(work: Work) -> None:
            with room:
                if failed:
                    return
                try:
                    why = _run(work, here, lock, told, running)
                except Exception as error:  # of a thread that ends with it, nobody would hear
                    why = f"{work.name} was lost: {type(error).__name__}: {error}; see {work.log}"
                if why:
                    failed.append(why)

        threads = [threading.Thread(target=one, args=(work,), daemon=True) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failed:
        raise TrainingError(failed[0])


def _run(work: Work, here: Path, lock: int, told: Told, running: "list[subprocess.Popen[str]]") -> str:
    """Run one process; why it failed, or nothing."""
    work.log.parent.mkdir(parents=True, exist_ok=True)
    with (
        work.log.open("a", encoding="utf-8") as log,
        subprocess.Popen(
            [sys.executable, *work.arguments],
            cwd=here,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            pass_fds=(lock,) if os.name == "posix" else (),  # nothing can be handed on so on Windows
        ) as process,
    ):
        running.append(process)
        assert process.stdout is not None

        try:
            last = _followed(process.stdout, log, partial(told, work.name))
            status = process.wait()
        except BaseException:
            process.terminate()  # it would be waited for, and nobody hears it
            raise
    if status == 0:
        return ""
    return f"{work.name} ended with status {status}: {' / '.join(last) or 'it said nothing'}; see {work.log}"


def _followed(said: IO[str], log: IO[str], told: Callable[[str], None]) -> list[str]:
    last: list[str] = []
    for line in said:
        log.write(line)
        log.flush()
        if text := line.strip():
            last = [*last, text][-LAST:]
            told(text)
    return last


def _end(running: "Sequence[subprocess.Popen[str]]") -> None:
    """End what still runs, where this process is interrupted."""
    for process in running:
        if process.poll() is None:
            process.terminate()
