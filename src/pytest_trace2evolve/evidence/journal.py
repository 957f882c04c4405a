"""Journals: the answers of a simulation that is not stored yet, by request.

An answer is written before it is used. A simulation that begins again after a kill or a loss takes its
answers from the journal, so an interrupted run never samples an answer twice. A journal that was cut off, for
example by a kill, is valid up to its last whole line.

Lines reach the operating system at once and the disk later, so they survive the end of the process, but not a
power cut.
"""

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from pytest_trace2evolve.errors import ResultsError, StorageError
from pytest_trace2evolve.records.completion import Answer, JournalEntry
from pytest_trace2evolve.utils.files import lock_file
from pytest_trace2evolve.utils.reading import MAX_RECORD_BYTES, describe_failure, open_regular


class KeptAnswers:
    """The answers of an earlier attempt at a simulation, each of which is taken once.

    An answer that is not taken by the end of the simulation makes it differ from the earlier attempt.

    Args:
        entries: The answers, in the order in which they arrived.
        was_redrawn: Whether an earlier attempt left answers untaken.
    """

    def __init__(self, entries: Iterable[JournalEntry] = (), *, was_redrawn: bool = False) -> None:
        self.was_redrawn = was_redrawn
        self._untaken: dict[str, deque[JournalEntry]] = {}
        for entry in entries:
            self._untaken.setdefault(entry.request, deque()).append(entry)

    @property
    def is_redrawn(self) -> bool:
        return self.was_redrawn or any(self._untaken.values())

    @property
    def seconds(self) -> float:
        """The recorded duration of the answers that have not been taken yet."""
        answers = [entry.answer for entries in self._untaken.values() for entry in entries]
        return sum(answer.seconds for answer in answers if answer)

    def take(self, request: str) -> JournalEntry | None:
        """Take the next answer to a request; None if a model must be asked."""
        entries = self._untaken.get(request)
        return entries.popleft() if entries else None


class Journal(KeptAnswers):
    """The journal of one simulation, open and locked by this process.

    Args:
        path: The file, which is created if it is missing and `must_exist` is false.
        must_exist: Whether a missing file is an error.
        remedy: The remedy for a damaged file, used in error messages.

    Attributes:
        entries: All answers, in order.
        changed_at: The time of the last answer, or of opening, from `time.monotonic`.

    Raises:
        BlockingIOError: another process holds the journal.
        FileNotFoundError: `must_exist` is true and the file is missing.
        OSError: the file cannot be opened.
        ResultsError: the journal is damaged.
    """

    def __init__(self, path: Path, *, must_exist: bool, remedy: str) -> None:
        self._handle = -1
        self.path = path
        flags = os.O_RDWR | os.O_APPEND | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        if not must_exist:
            path.parent.mkdir(parents=True, exist_ok=True)
            flags |= os.O_CREAT
        self._handle = os.open(path, flags, 0o644)
        try:
            # On a file system without locks, two concurrent runs may make the same simulation twice.
            lock_file(self._handle, wait=False, ignore_unsupported=True)
            content = read_journal(path, remedy)
            os.ftruncate(self._handle, content.size)  # removes a partial line of a killed process
        except BaseException:
            self.close()
            raise
        super().__init__(content.entries, was_redrawn=content.is_redrawn)
        self.entries = content.entries
        self.changed_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        """Close a journal that nothing refers to any more."""
        self.close()

    @property
    def holds_agent_answers(self) -> bool:
        return any(entry.answer is None or entry.answer.side == "agent" for entry in self.entries)

    @property
    def is_linked(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._handle), self.path.stat())
        except FileNotFoundError:
            return False

    def add(self, entry: JournalEntry) -> None:
        request = json.dumps(entry.request)
        if entry.answer is None:
            content = f'"first_tokens": {json.dumps(entry.first_tokens)}'
        else:
            content = f'"answer": {entry.answer.model_dump_json(exclude_defaults=True)}'
        line = f'{{"request": {request}, {content}}}\n'.encode()
        try:
            if os.write(self._handle, line) < len(line):
                raise OSError("no room for a whole line")
        except OSError as error:
            raise StorageError.from_os_error(error, self.path) from None
        self.entries.append(entry)
        self.changed_at = time.monotonic()

    def close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def remove(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)


def journal_path(folder: Path, key: str) -> Path:
    return folder / key[:2] / f"{key}.journal"


def remove_journal(folder: Path, key: str) -> None:
    """Delete the journal of a stored simulation. Errors are ignored, since a leftover journal is harmless."""
    with contextlib.suppress(OSError):
        journal_path(folder, key).unlink()


@dataclass(frozen=True)
class JournalContent:
    """The content of a journal. `size` is the number of bytes of its whole lines."""

    entries: list[JournalEntry]
    is_redrawn: bool
    size: int


def read_journal(path: Path, remedy: str) -> JournalContent:
    """Read a journal, which another process may be writing.

    Earlier versions wrote a digest before each line, and lines that discard all but a number of answers.

    Raises:
        FileNotFoundError: the journal does not exist.
        ResultsError: the journal is damaged.
    """
    entries: list[JournalEntry] = []
    is_redrawn, size = False, 0
    for number, line in enumerate(_whole_lines(path, remedy), 1):
        try:
            text = line.decode("utf-8")
            record = json.loads(text if text.startswith("{") else text.partition(" ")[2])
            if "redrawn" in record:
                is_redrawn = True
                del entries[record["redrawn"] :]
            else:
                entries.append(_parse_entry(record))
        except (ValueError, TypeError, KeyError, RecursionError, ValidationError):
            raise ResultsError(f"{path}: is damaged at line {number}; {remedy}") from None
        size += len(line)
    return JournalContent(entries, is_redrawn, size)


def _parse_entry(record: Mapping[str, Any]) -> JournalEntry:
    if "answer" in record:
        return JournalEntry(record["request"], answer=Answer.model_validate(record["answer"]))
    return JournalEntry(record["request"], first_tokens=dict(record["first_tokens"]))


def _whole_lines(path: Path, remedy: str) -> Iterator[bytes]:
    try:
        with open_regular(path, MAX_RECORD_BYTES) as file:
            yield from (line for line in file if line.endswith(b"\n"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path}: cannot be read ({describe_failure(error)}); {remedy}") from None
