"""Models' answers by key: in an SQLite file that processes share, or in a cassette that is played back.

Each answer is a transaction in the file's write-ahead log, so it is stored whole or not at all. A cassette
holds JSON lines in a fixed order, without times and requests, so the same answers give the same file.
"""

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from pytest_trace2evolve.errors import CassetteError, ConfigError, InfrastructureError, StorageError
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.completion import Answer
from pytest_trace2evolve.records.evidence import CandidateRef, Settings
from pytest_trace2evolve.utils.canonical import digest_text
from pytest_trace2evolve.utils.reading import (
    MAX_RESULTS_BYTES,
    convert_failures,
    first_problem,
    load_text,
    parse_json,
)

ANSWER_FILE_FORMAT = 1
"""Version of the file's layout and of the keys in it."""

LOCK_TIMEOUT = 30.0
"""Seconds to wait for another process that writes."""

_WRITE_ERROR_CODES = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY)
"""Codes of errors that mean that writing fails. They do not mean that the file is damaged."""

_SCHEMA = "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL)"


class AnswerFile:
    """A file of answers by key, created if it is missing. Any thread may use it.

    Args:
        remedy: The remedy for a damaged file, used in error messages.

    Raises:
        ConfigError: the file is damaged, has a different format, or cannot be opened.
    """

    def __init__(self, path: Path, remedy: str) -> None:
        self.path = path
        self._remedy = remedy
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                path, timeout=LOCK_TIMEOUT, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"{path}: cannot be opened ({error}); check the path and its permissions"
            ) from None
        try:
            self._prepare()
        except sqlite3.Error as error:
            self.close()
            raise ConfigError(self._damage_text(error)) from None
        except ConfigError:
            self.close()
            raise

    def _prepare(self) -> None:
        # If a second process opens the file at the same moment, SQLite rejects the pragma without waiting.
        deadline = time.monotonic() + LOCK_TIMEOUT
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        # Flushed at checkpoints only. A killed process loses nothing, but a power cut loses the last answers.
        self._connection.execute("PRAGMA synchronous = NORMAL")
        (check_result,) = self._connection.execute(
            "PRAGMA quick_check(1)"
        ).fetchone()  # one second per gigabyte
        if check_result != "ok":
            raise ConfigError(self._damage_text(check_result))
        self._connection.execute("BEGIN IMMEDIATE")
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and version != ANSWER_FILE_FORMAT:
            raise ConfigError(
                f"{self.path}: has format {version}, but this version reads format "
                f"{ANSWER_FILE_FORMAT}; {self._remedy}"
            )
        self._connection.execute(_SCHEMA)
        self._connection.execute(f"PRAGMA user_version = {ANSWER_FILE_FORMAT}")
        self._connection.execute("COMMIT")

    async def get(self, key: str) -> Answer | None:
        return self._read(key)

    def _read(self, key: str) -> Answer | None:
        try:
            row = self._connection.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
            return None if row is None else Answer.model_validate_json(row[0])
        except sqlite3.Error as error:
            raise InfrastructureError(self._damage_text(error)) from None
        except ValidationError as error:
            raise InfrastructureError(self._damage_text(f"answer {key}: {first_problem(error)}")) from None

    async def put(self, key: str, answer: Answer) -> Answer:
        """Store an answer unless the key has one already, and return the stored answer.

        Raises:
            InfrastructureError: the file is damaged.
            StorageError: the file cannot be written, for example because the disk is full.
        """
        text = answer.model_dump_json(exclude_defaults=True)
        try:
            cursor = self._connection.execute("INSERT OR IGNORE INTO answers VALUES (?, ?)", (key, text))
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) in _WRITE_ERROR_CODES:
                raise StorageError(
                    f"{self.path}: cannot be written ({error}); make room or allow writing, then run "
                    "the same "
                    "command again"
                ) from None
            raise InfrastructureError(self._damage_text(error)) from None
        return answer if cursor.rowcount else self._read(key) or answer

    def items(self) -> Iterator[tuple[str, Answer]]:
        """All answers, in the order of their keys."""
        try:
            keys = [row[0] for row in self._connection.execute("SELECT key FROM answers ORDER BY key")]
        except sqlite3.Error as error:
            raise InfrastructureError(self._damage_text(error)) from None
        for key in keys:
            answer = self._read(key)
            assert answer is not None, "answers are never deleted"
            yield key, answer

    def close(self) -> None:
        self._connection.close()

    def _damage_text(self, error: object) -> str:
        return f"{self.path}: is damaged or unreadable ({error}); {self._remedy}"


def remove_answer_file(path: Path) -> None:
    """Delete a file of answers and the files that SQLite keeps next to it."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


CASSETTE_FORMAT = "trace2evolve-cassette"
CASSETTE_VERSION = 1
"""Version of the format, including the keys of answers. Files of other versions are rejected."""

_REMEDY = "restore it, or record it again with --t2e-record"

_RecordT = TypeVar("_RecordT", bound=Record)


class CassetteHeader(Record):
    """The first line of a cassette: the settings of the recorded run, and the digest of the lines below.

    `partial` gives the reason if the cassette may not hold the whole run. `scripts` says whether the
    customers of synthetic cases followed their scripts.
    """

    format: str = CASSETTE_FORMAT
    version: int = CASSETTE_VERSION
    answers: int = Field(ge=0)
    digest: str
    partial: str = ""
    candidate: CandidateRef
    suites: dict[str, str]
    agent: Settings
    user: Settings
    scripts: bool = True


@dataclass(frozen=True)
class Cassette:
    """The content of a cassette file, with its answers by key."""

    path: Path
    header: CassetteHeader
    answers: Mapping[str, Answer] = field(repr=False)

    @property
    def agent_name(self) -> str:
        """The name of the recorded agent; empty if it is not recorded."""
        return self.header.agent.implementation or ""


def render_cassette(header: Mapping[str, Any], answers: Iterable[tuple[str, Answer]]) -> str:
    """Render a cassette from its answers and the header fields that do not follow from them."""
    # The duration and the source of an answer differ between two recordings of one run.
    excluded = {"completion": {"seconds", "cached"}, "http": {"seconds"}}
    lines = [
        _render_line({"key": key, **answer.model_dump(mode="json", exclude_defaults=True, exclude=excluded)})
        for key, answer in answers
    ]
    full_header = CassetteHeader.model_validate(
        {**header, "answers": len(lines), "digest": digest_text("\n".join(lines))}
    )
    return "\n".join([_render_line(full_header.model_dump(mode="json")), *lines, ""])


def _render_line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read_cassette(path: Path) -> Cassette:
    """Read a whole cassette. Any damage raises a `CassetteError` that names the line."""
    if not os.path.lexists(path):
        raise CassetteError(f"cassette {path} does not exist; record it with --t2e-record")
    with convert_failures(f"cassette {path}", CassetteError, _REMEDY):
        text = load_text(path, MAX_RESULTS_BYTES)
    header_line, *lines = text.split("\n")
    header = _parse_header(path, header_line)
    if not lines or lines.pop() != "":
        raise _damage_error(path, max(len(text.splitlines()), 1), "is cut off in the middle of a line")
    answers: dict[str, Answer] = {}
    for number, line in enumerate(lines, start=2):
        record = _parse_line(path, number, line)
        key = record.pop("key", None)
        if not isinstance(key, str):
            raise _damage_error(path, number, "damaged at key: expected a text")
        if key in answers:
            raise _damage_error(path, number, f"has a second answer for key {key}")
        answers[key] = _validate_record(path, number, Answer, record)
    if len(lines) != header.answers:
        raise _damage_error(path, len(lines) + 1, f"ends after {len(lines)} of {header.answers} answers")
    if digest_text("\n".join(lines)) != header.digest:
        raise _damage_error(path, 1, "the lines below were changed: their digest is not the recorded one")
    return Cassette(path, header, answers)


def _parse_header(path: Path, text: str) -> CassetteHeader:
    record = _parse_line(path, 1, text)
    if record.get("format") != CASSETTE_FORMAT:
        raise CassetteError(f"cassette {path}:1: is not a cassette of --t2e-record")
    version = record.get("version")
    if version != CASSETTE_VERSION:
        raise CassetteError(
            f"cassette {path}:1: has version {version}, but this release reads version {CASSETTE_VERSION}; "
            "record it again with --t2e-record"
        )
    return _validate_record(path, 1, CassetteHeader, record)


def _parse_line(path: Path, number: int, text: str) -> dict[str, Any]:
    with convert_failures(f"cassette {path}:{number}", CassetteError, _REMEDY):
        record = parse_json(text)
    if not isinstance(record, dict):
        raise _damage_error(path, number, "is not a JSON object")
    return record


def _validate_record(
    path: Path, number: int, record_type: type[_RecordT], record: dict[str, Any]
) -> _RecordT:
    try:
        return record_type.model_validate(record)
    except ValidationError as error:
        raise _damage_error(path, number, f"damaged at {first_problem(error)}") from None


def _damage_error(path: Path, number: int, problem: str) -> CassetteError:
    return CassetteError(f"cassette {path}:{number}: {problem}; {_REMEDY}")
