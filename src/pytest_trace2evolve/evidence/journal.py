"""Journals: the answers of a simulation that is not stored yet, in order of arrival.

An answer is written before it is used. A simulation that begins again after a kill or a loss takes its
answers from the journal, so an interrupted run never samples an answer twice. Each line carries a
digest of itself and all lines before it, which reveals edits. A journal that was cut off, for example by a
kill, is valid up to its last whole line.

Lines reach the operating system at once and the disk later, so they survive the end of the process, but not a
power cut.
"""

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from pytest_trace2evolve.errors import ResultsError, StorageError
from pytest_trace2evolve.records.completion import Answer, JournalEntry
from pytest_trace2evolve.utils.canonical import digest, digest_text
from pytest_trace2evolve.utils.files import lock_file
from pytest_trace2evolve.utils.reading import MAX_RECORD_BYTES, describe_failure, open_regular

JOURNAL_FORMAT = 1
"""The version of the journal's format; part of the digest before the first line."""


class Journal:
    """The journal of one simulation, open and locked by this process.

    Answers are taken in order. If a request differs from the recorded request at its position, the rest of
    the journal is discarded. The journal records this permanently, and new answers follow.

    Args:
        path: The file, which is created if it is missing and `must_exist` is false.
        key: The key of the simulation.
        must_exist: Whether a missing file is an error.
        remedy: The remedy for a damaged file, used in error messages.

    Attributes:
        is_redrawn: Whether answers were discarded, which makes the simulation differ from the first attempt.
        changed_at: The time of the last answer, or of opening, from `time.monotonic`.

    Raises:
        BlockingIOError: another process holds the journal.
        FileNotFoundError: `must_exist` is true and the file is missing.
        OSError: the file cannot be opened.
        ResultsError: the journal was changed.
    """

    def __init__(self, path: Path, key: str, *, must_exist: bool, remedy: str) -> None:
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
            content = read_journal(path, key, remedy)
            os.ftruncate(self._handle, content.size)  # removes a partial line of a killed process
        except BaseException:
            self.close()
            raise
        self._entries, self.is_redrawn, self._chain = content.entries, content.is_redrawn, content.chain
        self._position = 0
        self.changed_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        """Close a journal that nothing refers to any more."""
        self.close()

    @property
    def is_empty(self) -> bool:
        return not self._entries and not self.is_redrawn

    @property
    def holds_agent_answers(self) -> bool:
        return any(entry.answer is None or entry.answer.side == "agent" for entry in self._entries)

    @property
    def is_linked(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._handle), self.path.stat())
        except FileNotFoundError:
            return False

    @property
    def seconds(self) -> float:
        """The recorded duration of the answers that have not been taken yet."""
        answers = [entry.answer for entry in self._entries[self._position :]]
        return sum(answer.seconds for answer in answers if answer)

    def take(self, request: str) -> JournalEntry | None:
        """Take the next answer if it belongs to this request; None if a model must be asked."""
        if self._position == len(self._entries):
            return None
        entry = self._entries[self._position]
        if entry.request == request:
            self._position += 1
            return entry
        self._write(f'{{"redrawn": {self._position}}}')
        self.is_redrawn = True
        del self._entries[self._position :]
        return None

    def rewind(self) -> tuple[JournalEntry, ...]:
        """Return all answers so far, and take answers from the first one again."""
        self._position = 0
        return tuple(self._entries)

    def add(self, entry: JournalEntry) -> None:
        request = json.dumps(entry.request)
        if entry.answer is None:
            content = f'"first_tokens": {json.dumps(entry.first_tokens)}'
        else:
            content = f'"answer": {entry.answer.model_dump_json(exclude_defaults=True)}'
        self._write(f'{{"request": {request}, {content}}}')
        self._entries.append(entry)
        self._position += 1
        self.changed_at = time.monotonic()

    def close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def remove(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)

    def _write(self, text: str) -> None:
        self._chain = digest_text(self._chain + text)
        line = f"{self._chain} {text}\n".encode()
        try:
            if os.write(self._handle, line) < len(line):
                raise OSError("no room for a whole line")
        except OSError as error:
            raise StorageError.from_os_error(error, self.path) from None


class UnorderedJournal:
    """A journal whose answers are taken in any order, for an agent that may send requests at the same time.

    An answer that is not taken by the end of the simulation makes it differ from the first attempt.

    Args:
        journal: The journal, from which nothing has been taken yet.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._untaken: dict[str, deque[JournalEntry]] = {}
        for entry in journal.rewind():
            self._untaken.setdefault(entry.request, deque()).append(entry)

    @property
    def is_redrawn(self) -> bool:
        return self._journal.is_redrawn or any(self._untaken.values())

    @property
    def seconds(self) -> float:
        """The recorded duration of the answers that have not been taken yet."""
        answers = [entry.answer for entries in self._untaken.values() for entry in entries]
        return sum(answer.seconds for answer in answers if answer)

    def take(self, request: str) -> JournalEntry | None:
        """Take the next answer to this request; None if a model must be asked."""
        entries = self._untaken.get(request)
        return entries.popleft() if entries else None

    def add(self, entry: JournalEntry) -> None:
        self._journal.add(entry)


def journal_path(folder: Path, key: str) -> Path:
    return folder / key[:2] / f"{key}.journal"


def remove_journal(folder: Path, key: str) -> None:
    """Delete the journal of a stored simulation. Errors are ignored, since a leftover journal is harmless."""
    with contextlib.suppress(OSError):
        journal_path(folder, key).unlink()


@dataclass(frozen=True)
class JournalContent:
    """The content of a journal. `size` is the number of bytes of its whole lines; `chain` is their digest."""

    entries: list[JournalEntry]
    is_redrawn: bool
    chain: str
    size: int


def read_journal(path: Path, key: str, remedy: str) -> JournalContent:
    """Read a journal, which another process may be writing.

    Raises:
        FileNotFoundError: the journal does not exist.
        ResultsError: the journal was changed.
    """
    entries: list[JournalEntry] = []
    is_redrawn, size = False, 0
    chain = digest(["journal", JOURNAL_FORMAT, key])
    for number, line in enumerate(_whole_lines(path, remedy), 1):
        try:
            stated_digest, _, text = line.decode("utf-8").rstrip("\n").partition(" ")
            chain = digest_text(chain + text)
            record = json.loads(text)
            is_sound = stated_digest == chain
            if "redrawn" in record:
                is_redrawn = True
                is_sound = is_sound and record["redrawn"] in range(len(entries))
                del entries[record["redrawn"] :]
            else:
                entries.append(_parse_entry(record))
        except (ValueError, TypeError, KeyError, RecursionError, ValidationError):
            is_sound = False
        if not is_sound:
            raise ResultsError(f"{path}: was changed at line {number}; {remedy}")
        size += len(line)
    return JournalContent(entries, is_redrawn, chain, size)


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
