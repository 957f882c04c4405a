"""What a run may use and has used: a small database that all processes of the run share.

Workers of xdist that run pressure tests ask models too, so the budgets, the rate limit and the reason to
stop live in a file. SQLite keeps it consistent if a process is killed. Nothing is flushed to the disk: the
file has no use after the run.
"""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_trace2evolve.errors import BudgetError, EndpointError, StorageError, Trace2EvolveError
from pytest_trace2evolve.records.budget import NO_BUDGETS, Budgets
from pytest_trace2evolve.records.completion import Usage
from pytest_trace2evolve.utils.canonical import storable_text

BUSY_SECONDS = 60.0
"""How long a process waits for another one's transaction; each takes well under a millisecond."""

_ERRORS = {error.__name__: error for error in (BudgetError, EndpointError, StorageError)}
"""What a stopped run raises, by the name that the database holds."""

_TABLE = """
CREATE TABLE IF NOT EXISTS run (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    started REAL NOT NULL, next_request REAL NOT NULL,
    stopped TEXT NOT NULL DEFAULT '', error TEXT NOT NULL DEFAULT '',
    calls INTEGER NOT NULL DEFAULT 0, prompt_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0, completion_tokens INTEGER NOT NULL DEFAULT 0,
    cost REAL NOT NULL DEFAULT 0, unpriced INTEGER NOT NULL DEFAULT 0
);
"""


class Account:
    """One process's view of the run's account; safe to use from several threads.

    Args:
        path: The database; the first process creates it.
        budgets: The run's budgets, the same in all its processes.
    """

    def __init__(self, path: Path, budgets: Budgets = NO_BUDGETS) -> None:
        self.path = path
        self.budgets = budgets
        self._lock = threading.RLock()
        # Autocommit: `_transaction` begins transactions, not the first statement.
        self._database = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute(_TABLE)
        now = time.time()
        self._database.execute(
            "INSERT OR IGNORE INTO run (id, started, next_request) VALUES (1, ?, ?)", (now, now)
        )

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def spend(self, usage: Usage) -> None:
        """Count one good answer of a model."""
        with self._lock:
            self._database.execute(
                "UPDATE run SET calls = calls + ?, prompt_tokens = prompt_tokens + ?,"
                " cached_tokens = cached_tokens + ?, completion_tokens = completion_tokens + ?,"
                " cost = cost + ?, unpriced = unpriced + ?",
                (
                    usage.calls,
                    usage.prompt_tokens,
                    usage.cached_tokens,
                    usage.completion_tokens,
                    usage.cost or 0.0,
                    int(usage.cost is None),
                ),
            )

    async def admit(self) -> None:
        """Wait until a request may be sent.

        Raises:
            BudgetError, EndpointError, StorageError: as `pause_before_request`.
        """
        if (pause := self.pause_before_request()) > 0:
            await asyncio.sleep(pause)
            self.raise_if_stopped()

    def pause_before_request(self) -> float:
        """Reserve the next request.

        Returns:
            Seconds to wait before it is sent, so that the rate limit holds.

        Raises:
            BudgetError: a budget is spent, or the run was stopped.
            EndpointError: an endpoint refused what every further request would ask too.
            StorageError: the run could not store its evidence.
        """
        with self._lock:
            self.raise_if_stopped()
            if self.budgets.requests_per_minute is None:
                return 0.0
            with self._transaction():
                now = time.time()
                (turn,) = self._database.execute("SELECT max(next_request, ?) FROM run", (now,)).fetchone()
                self._database.execute(
                    "UPDATE run SET next_request = ?", (turn + 60.0 / self.budgets.requests_per_minute,)
                )
            return max(0.0, float(turn) - now)

    def raise_if_stopped(self) -> None:
        """Raise if nothing more may be sent or started.

        Raises:
            BudgetError, EndpointError, StorageError: as `pause_before_request`.
        """
        with self._lock:
            stopped, error, tokens, cost, started = self._database.execute(
                "SELECT stopped, error, prompt_tokens + completion_tokens, cost, started FROM run"
            ).fetchone()
        if not stopped and (stopped := self._spent(tokens, cost, time.time() - started)):
            self.stop(stopped)
        if stopped:
            raise _ERRORS.get(error, BudgetError)(stopped)

    def stop(self, reason: str, error: type[Trace2EvolveError] = BudgetError) -> None:
        """Let nothing more be started. The first reason stays, unless evidence cannot be stored.

        Args:
            reason: Why, in one line.
            error: What everything that would be started raises: `BudgetError`, `EndpointError` (an endpoint
                refuses what every further request would ask too) or `StorageError`.
        """
        with self._lock:
            self._database.execute(
                "UPDATE run SET stopped = ?1, error = ?2"
                " WHERE stopped = '' OR (?2 = 'StorageError' AND error != 'StorageError')",
                (storable_text(reason), error.__name__),
            )

    @property
    def stopped(self) -> str:
        """Why nothing more is started; empty if the run was not stopped."""
        return str(self._value("stopped"))

    @property
    def unstored(self) -> str:
        """Why the run could not store its evidence; empty if it could."""
        return self.stopped if self._value("error") == StorageError.__name__ else ""

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.time() - float(self._value("started"))

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the budget of minutes is spent; None without one."""
        if self.budgets.minutes is None:
            return None
        return max(0.0, self.budgets.minutes * 60.0 - self.seconds)

    @property
    def used(self) -> Usage:
        """What the run's models used so far; the cost is None if a model has no price."""
        with self._lock:
            calls, prompt, cached, completion, cost, unpriced = self._database.execute(
                "SELECT calls, prompt_tokens, cached_tokens, completion_tokens, cost, unpriced FROM run"
            ).fetchone()
        return Usage(
            calls=calls,
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=completion,
            cost=None if unpriced else cost,
        )

    def shortage(self, expected: Usage, ahead: Usage) -> str:
        """Which budget does not suffice for one more simulation; empty if all do.

        Args:
            expected: The simulation's likely usage.
            ahead: Usage of the simulations that were begun; those that still run count as expected.
        """
        used, budgets = self.used, self.budgets
        cost, tokens = expected.cost or 0.0, expected.tokens
        spent = used.cost or 0.0
        if budgets.cost is not None and cost and max(ahead.cost or 0.0, spent) + cost > budgets.cost:
            return (
                f"the budget is spent: ${spent:.2f} of --t2e-max-cost {budgets.cost:g}, "
                f"and one more simulation takes about ${cost:.2f}"
            )
        if budgets.tokens is not None and tokens and max(ahead.tokens, used.tokens) + tokens > budgets.tokens:
            return (
                f"the budget is spent: {used.tokens:,} tokens of --t2e-max-tokens {budgets.tokens}, "
                f"and one more simulation takes about {tokens:,}"
            )
        return ""

    def _spent(self, tokens: int, cost: float, seconds: float) -> str:
        budgets = self.budgets
        if budgets.cost is not None and cost >= budgets.cost:
            return f"the budget is spent: ${cost:.2f} of --t2e-max-cost {budgets.cost:g}"
        if budgets.tokens is not None and tokens >= budgets.tokens:
            return f"the budget is spent: {tokens:,} tokens of --t2e-max-tokens {budgets.tokens}"
        if budgets.minutes is not None and seconds >= budgets.minutes * 60:
            return f"the budget is spent: --t2e-max-minutes {budgets.minutes:g} are over"
        return ""

    def _value(self, column: str) -> Any:
        with self._lock:
            return self._database.execute(f"SELECT {column} FROM run").fetchone()[0]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")
