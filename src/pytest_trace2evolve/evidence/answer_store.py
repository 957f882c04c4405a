"""Models' answers in an SQLite file: the cache of a project, and what a run records for its cassette.

Several processes read and write one file at once, and any of them may be killed: each answer is a transaction
of its own in the write-ahead log, so an answer is there whole or not at all.
"""

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from pytest_trace2evolve.errors import ConfigError, InfrastructureError, StorageError
from pytest_trace2evolve.records.completion import Answer
from pytest_trace2evolve.utils.reading import problem_in

FORMAT = 1
"""Version of the file's layout and of the keys in it."""

PATIENCE = 30.0
"""Seconds to wait for another process that writes."""

_UNWRITABLE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY)
"""Codes of errors that say that nothing can be written, and nothing about the file's content."""

_SCHEMA = "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL)"


class AnswerFile:
    """Answers by their keys, in one file, which is made if there is none; any thread may use it.

    Args:
        remedy: What to do about a damaged file, for the error's text.

    Raises:
        ConfigError: the file is damaged, of another format, or cannot be opened.
    """

    def __init__(self, path: Path, remedy: str) -> None:
        self.path = path
        self._remedy = remedy
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"{path}: cannot be opened ({error})") from None
        try:
            self._prepare()
        except sqlite3.Error as error:
            self.close()
            raise ConfigError(self._damaged(error)) from None
        except ConfigError:
            self.close()
            raise

    def _prepare(self) -> None:
        # If another process opens the file at the same moment, SQLite rejects this without waiting.
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        # Flushed at checkpoints only: a killed process loses nothing, a power cut the last answers.
        self._connection.execute("PRAGMA synchronous = NORMAL")
        (result,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()  # a second a gigabyte
        if result != "ok":
            raise ConfigError(self._damaged(result))
        self._connection.execute("BEGIN IMMEDIATE")
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and version != FORMAT:
            raise ConfigError(f"{self.path}: format {version} is not {FORMAT}; {self._remedy}")
        self._connection.execute(_SCHEMA)
        self._connection.execute(f"PRAGMA user_version = {FORMAT}")
        self._connection.execute("COMMIT")

    async def get(self, key: str) -> Answer | None:
        return self._read(key)

    def _read(self, key: str) -> Answer | None:
        try:
            row = self._connection.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
            return None if row is None else Answer.model_validate_json(row[0])
        except sqlite3.Error as error:
            raise InfrastructureError(self._damaged(error)) from None
        except ValidationError as error:
            raise InfrastructureError(self._damaged(f"answer {key}: {problem_in(error)}")) from None

    async def put(self, key: str, answer: Answer) -> Answer:
        """Store an answer unless the key has one; returns the stored one.

        Raises:
            InfrastructureError: the file is damaged.
            StorageError: it cannot be written, as on a full disk.
        """
        text = answer.model_dump_json(exclude_defaults=True)
        try:
            done = self._connection.execute("INSERT OR IGNORE INTO answers VALUES (?, ?)", (key, text))
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) in _UNWRITABLE:
                raise StorageError(
                    f"{self.path}: cannot be written ({error}); make room or allow writing, then run the "
                    "same again"
                ) from None
            raise InfrastructureError(self._damaged(error)) from None
        return answer if done.rowcount else self._read(key) or answer

    def items(self) -> Iterator[tuple[str, Answer]]:
        """All answers, in the order of their keys."""
        try:
            keys = [row[0] for row in self._connection.execute("SELECT key FROM answers ORDER BY key")]
        except sqlite3.Error as error:
            raise InfrastructureError(self._damaged(error)) from None
        for key in keys:
            answer = self._read(key)
            assert answer is not None, "answers are never deleted"
            yield key, answer

    def close(self) -> None:
        self._connection.close()

    def _damaged(self, error: object) -> str:
        return f"{self.path}: damaged or not readable ({error}); {self._remedy}"


def remove(path: Path) -> None:
    """Delete a file of answers, and the files that SQLite keeps next to it."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
