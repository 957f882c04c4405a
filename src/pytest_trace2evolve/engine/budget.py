"""The budgets and usage of a run, in a small database that all processes of the run share.

The xdist workers that run pressure tests also call models, so usage, the rate limit and the reason to stop
are stored in a file. SQLite keeps the file consistent if a process is killed. Nothing is flushed to disk,
because the file is not needed after the run.
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

MAX_BUSY_SECONDS = 60.0
"""Maximum wait for a transaction of another process. A transaction takes well under a millisecond."""

_ERRORS_BY_NAME = {error.__name__: error for error in (BudgetError, EndpointError, StorageError)}
"""The errors that a stopped run raises, by their names in the database."""

_CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS run (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    started REAL NOT NULL, next_request REAL NOT NULL,
    stopped TEXT NOT NULL DEFAULT '', error TEXT NOT NULL DEFAULT '',
    calls INTEGER NOT NULL DEFAULT 0, prompt_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0, completion_tokens INTEGER NOT NULL DEFAULT 0,
    cost REAL NOT NULL DEFAULT 0, unpriced INTEGER NOT NULL DEFAULT 0, unmetered INTEGER NOT NULL DEFAULT 0
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
        # Autocommit, because `_transaction` begins transactions explicitly.
        self._database = sqlite3.connect(
            path, timeout=MAX_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute(_CREATE_TABLE)
        now = time.time()
        self._database.execute(
            "INSERT OR IGNORE INTO run (id, started, next_request) VALUES (1, ?, ?)", (now, now)
        )

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def spend(self, usage: Usage) -> None:
        """Add the usage of a model's successful answer.

        An answer without usage stops a run whose tokens or cost are limited.
        """
        is_unmetered = bool(usage.calls and not usage.tokens and not usage.cost)
        if is_unmetered and self.budgets.limits_usage:
            self.stop(
                "a model's endpoint reports no usage, so --t2e-max-tokens and --t2e-max-cost cannot be kept; "
                "leave them out, or limit the run by --t2e-max-minutes",
                EndpointError,
            )
        with self._lock:
            self._database.execute(
                "UPDATE run SET calls = calls + ?, prompt_tokens = prompt_tokens + ?,"
                " cached_tokens = cached_tokens + ?, completion_tokens = completion_tokens + ?,"
                " cost = cost + ?, unpriced = unpriced + ?, unmetered = unmetered + ?",
                (
                    usage.calls,
                    usage.prompt_tokens,
                    usage.cached_tokens,
                    usage.completion_tokens,
                    usage.cost or 0.0,
                    int(usage.cost is None),
                    int(is_unmetered),
                ),
            )

    async def admit(self) -> None:
        """Wait until a request may be sent.

        Raises:
            BudgetError, EndpointError, StorageError: like `pause_before_request`.
        """
        if (pause := self.pause_before_request()) > 0:
            await asyncio.sleep(pause)
            self.raise_if_stopped()

    def pause_before_request(self) -> float:
        """Reserve the next request.

        Returns:
            Seconds to wait before the request is sent, to respect the rate limit.

        Raises:
            BudgetError: a budget is spent, or the run was stopped.
            EndpointError: an endpoint rejected a request for a reason that affects all further requests.
            StorageError: the run could not store its evidence.
        """
        with self._lock:
            self.raise_if_stopped()
            if self.budgets.requests_per_minute is None:
                return 0.0
            with self._transaction():
                now = time.time()
                (send_time,) = self._database.execute(
                    "SELECT max(next_request, ?) FROM run", (now,)
                ).fetchone()
                self._database.execute(
                    "UPDATE run SET next_request = ?", (send_time + 60.0 / self.budgets.requests_per_minute,)
                )
            return max(0.0, float(send_time) - now)

    def raise_if_stopped(self) -> None:
        """Raise if the run is stopped or a budget is spent.

        Raises:
            BudgetError, EndpointError, StorageError: like `pause_before_request`.
        """
        with self._lock:
            reason, error, tokens, cost, started = self._database.execute(
                "SELECT stopped, error, prompt_tokens + completion_tokens, cost, started FROM run"
            ).fetchone()
        if not reason and (reason := self._spent_budget_reason(tokens, cost, time.time() - started)):
            self.stop(reason)
        if reason:
            raise _ERRORS_BY_NAME.get(error, BudgetError)(reason)

    def stop(self, reason: str, error: type[Trace2EvolveError] = BudgetError) -> None:
        """Prevent any further work of the run. The first reason is kept, but a storage failure replaces it.

        Args:
            reason: The reason, in one line.
            error: The error that further work raises: `BudgetError`, `EndpointError` (an endpoint rejects all
                further requests) or `StorageError`.
        """
        with self._lock:
            self._database.execute(
                "UPDATE run SET stopped = ?1, error = ?2"
                " WHERE stopped = '' OR (?2 = 'StorageError' AND error != 'StorageError')",
                (storable_text(reason), error.__name__),
            )

    @property
    def stop_reason(self) -> str:
        """The reason why the run was stopped; empty if the run was not stopped."""
        return str(self._read_column("stopped"))

    @property
    def storage_failure(self) -> str:
        """The reason why the run could not store its evidence; empty if there was no such failure."""
        return self.stop_reason if self._read_column("error") == StorageError.__name__ else ""

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.time() - float(self._read_column("started"))

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the budget of minutes is spent; None without such a budget."""
        if self.budgets.minutes is None:
            return None
        return max(0.0, self.budgets.minutes * 60.0 - self.seconds)

    @property
    def usage(self) -> Usage:
        """The usage of the run's models so far; the cost is None if a model has no price."""
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

    @property
    def unmetered_calls(self) -> int:
        """The number of answers without usage."""
        return int(self._read_column("unmetered"))

    def shortage(self, expected_usage: Usage, reserved_usage: Usage) -> str:
        """Describe the budget that is too small for one more simulation; empty if all budgets suffice.

        Args:
            expected_usage: The simulation's likely usage.
            reserved_usage: Usage of all started simulations; running ones count with their expected usage.
        """
        usage, budgets = self.usage, self.budgets
        cost, tokens = expected_usage.cost or 0.0, expected_usage.tokens
        spent_cost = usage.cost or 0.0
        if (
            budgets.cost is not None
            and cost
            and max(reserved_usage.cost or 0.0, spent_cost) + cost > budgets.cost
        ):
            return (
                f"the budget is spent: ${spent_cost:.2f} of --t2e-max-cost {budgets.cost:g}, "
                f"and one more simulation takes about ${cost:.2f}"
            )
        if (
            budgets.tokens is not None
            and tokens
            and max(reserved_usage.tokens, usage.tokens) + tokens > budgets.tokens
        ):
            return (
                f"the budget is spent: {usage.tokens:,} tokens of --t2e-max-tokens {budgets.tokens}, "
                f"and one more simulation takes about {tokens:,}"
            )
        return ""

    def _spent_budget_reason(self, tokens: int, cost: float, seconds: float) -> str:
        budgets = self.budgets
        if budgets.cost is not None and cost >= budgets.cost:
            return f"the budget is spent: ${cost:.2f} of --t2e-max-cost {budgets.cost:g}"
        if budgets.tokens is not None and tokens >= budgets.tokens:
            return f"the budget is spent: {tokens:,} tokens of --t2e-max-tokens {budgets.tokens}"
        if budgets.minutes is not None and seconds >= budgets.minutes * 60:
            return f"the budget is spent: --t2e-max-minutes {budgets.minutes:g} is exceeded"
        return ""

    def _read_column(self, column: str) -> Any:
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
