"""Models' answers in an SQLite file: the cache of a project, or the answers recorded for a cassette.

Several processes read and write one file at once, and any of them may be killed. Each answer is a transaction
of its own in the write-ahead log, so an answer is stored whole or not at all.
"""

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from pytest_trace2evolve.errors import ConfigError, InfrastructureError, StorageError
from pytest_trace2evolve.records.completion import Answer
from pytest_trace2evolve.utils.reading import first_problem

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
