"""What a live run has used and who makes which simulation: one small database for all its processes.

Workers of xdist share no memory. They share this file, which lives as long as the run: budgets and a rate
limit hold for all of them together, and a simulation is made by whoever claims it first. SQLite keeps it
whole when a process is killed. Nothing is flushed to the disk: the file is of no use after the run.
"""

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pytest_trace2evolve.errors import BudgetError, EndpointError, StorageError
from pytest_trace2evolve.records.budget import DONE, NO_BUDGETS, Budgets, Claim, Entry, State, Totals
from pytest_trace2evolve.records.completion import NOTHING_USED, Usage
from pytest_trace2evolve.utils.canonical import storable_text

BUSY_SECONDS = 60.0
"""How long a process waits for another one's transaction; each takes well under a millisecond."""

_TABLES = """
CREATE TABLE IF NOT EXISTS run (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    started REAL NOT NULL, next_slot REAL NOT NULL,
    stopped TEXT NOT NULL DEFAULT '', refused TEXT NOT NULL DEFAULT '', unstored TEXT NOT NULL DEFAULT '',
    told INTEGER NOT NULL DEFAULT 0,
    calls INTEGER NOT NULL DEFAULT 0, prompt_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0, completion_tokens INTEGER NOT NULL DEFAULT 0,
    cost REAL NOT NULL DEFAULT 0, unpriced INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS claims (
    key TEXT PRIMARY KEY, worker TEXT NOT NULL, state TEXT NOT NULL, note TEXT NOT NULL DEFAULT '',
    tokens INTEGER NOT NULL, cost REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS fresh (key TEXT PRIMARY KEY, simulations INTEGER NOT NULL) WITHOUT ROWID;
"""


MAIN = "main"
"""The worker's name in a run of one process."""


class Account:
    """One process's view of the run's account; safe to use from several threads.

    Args:
        path: The database; made by whoever comes first.
        worker: This process's name among the run's.
        budgets: The run's; equal in all its processes.
    """

    def __init__(self, path: Path, worker: str, budgets: Budgets = NO_BUDGETS) -> None:
        self.path = path
        self.budgets = budgets
        self._worker = worker
        self._lock = threading.RLock()
        # Autocommit: transactions are begun where there is one, not at the first statement.
        self._database = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.executescript(_TABLES)
        now = time.time()
        self._database.execute(
            "INSERT OR IGNORE INTO run (one, started, next_slot) VALUES (1, ?, ?)", (now, now)
        )

    @property
    def alone(self) -> bool:
        """Whether this process makes all simulations of the run."""
        return self._worker == MAIN

    def close(self) -> None:
        """Close this process's connection."""
        with self._lock:
            self._database.close()

    def spend(self, usage: Usage) -> None:
        """Count one good answer of a model."""
        cost = usage.cost
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
                    cost or 0.0,
                    int(cost is None),
                ),
            )

    def admit(self) -> float:
        """Ask to send one request.

        Returns:
            Seconds to wait before it is sent, so that the rate limit holds.

        Raises:
            BudgetError: a budget is spent, or the run was stopped.
            EndpointError: an endpoint refused what every further request would ask too.
            StorageError: the run could not store its evidence.
        """
        with self._lock:
            self.stand()
            if self.budgets.requests_per_minute is None:
                return 0.0
            with self._transaction():
                now = time.time()
                (slot,) = self._database.execute("SELECT max(next_slot, ?) FROM run", (now,)).fetchone()
                self._database.execute(
                    "UPDATE run SET next_slot = ?", (slot + 60.0 / self.budgets.requests_per_minute,)
                )
            return max(0.0, float(slot) - now)

    def stand(self) -> None:
        """Raise where nothing more may be sent or started.

        Raises:
            BudgetError, EndpointError, StorageError: as `admit`.
        """
        with self._lock:
            stopped, refused, unstored, tokens, cost, started = self._database.execute(
                "SELECT stopped, refused, unstored, prompt_tokens + completion_tokens, cost, started FROM run"
            ).fetchone()
        if unstored:
            raise StorageError(unstored)
        if refused:
            raise EndpointError(refused)
        budgets = self.budgets
        if not stopped:
            if budgets.cost is not None and cost >= budgets.cost:
                stopped = f"the budget is spent: ${cost:.2f} of --t2e-max-cost {budgets.cost:g}"
            elif budgets.tokens is not None and tokens >= budgets.tokens:
                stopped = f"the budget is spent: {tokens:,} tokens of --t2e-max-tokens {budgets.tokens}"
            elif budgets.minutes is not None and time.time() - started >= budgets.minutes * 60:
                stopped = f"the budget is spent: --t2e-max-minutes {budgets.minutes:g} are over"
            if stopped:
                self.stop(stopped)
        if stopped:
            raise BudgetError(stopped)

    def claim(self, key: str, expected: Usage = NOTHING_USED) -> Claim:
        """Ask to make the simulation of a key.

        Args:
            key: The simulation's.
            expected: What it is likely to use; nothing where that is not known.

        Raises:
            BudgetError, EndpointError, StorageError: as `admit`; the first also if nothing runs any more and
                what is left does not suffice for one more.
        """
        tokens, cost = expected.tokens, expected.cost or 0.0
        with self._lock:
            if self._database.execute("SELECT 1 FROM claims WHERE key = ?", (key,)).fetchone():
                return Claim.TAKEN
            self.stand()
        with self._lock, self._transaction():
            if self._database.execute("SELECT 1 FROM claims WHERE key = ?", (key,)).fetchone():
                return Claim.TAKEN
            short = self._short_of(tokens, cost)
            if (
                short
                and self._database.execute(
                    "SELECT 1 FROM claims WHERE state = ?", (State.RUNNING,)
                ).fetchone()
            ):
                return Claim.LATER
            if not short:
                self._database.execute(
                    "INSERT INTO claims (key, worker, state, tokens, cost) VALUES (?, ?, ?, ?, ?)",
                    (key, self._worker, State.RUNNING, tokens, cost),
                )
                return Claim.YOURS
            self._stop(short)
        raise BudgetError(short)

    def keep(self, key: str) -> None:
        """Count a simulation that an earlier run finished; it costs nothing, so no budget holds it up."""
        with self._lock:
            self._database.execute(
                "INSERT OR IGNORE INTO claims (key, worker, state, tokens, cost) VALUES (?, ?, ?, 0, 0)",
                (key, self._worker, State.KEPT),
            )

    def settle(self, key: str, state: State, used: Usage = NOTHING_USED, note: str = "") -> None:
        """Say what came of a simulation that this process made, or could not even begin."""
        with self._lock:
            self._database.execute(
                "INSERT OR REPLACE INTO claims (key, worker, state, note, tokens, cost)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (key, self._worker, state, storable_text(note), used.tokens, used.cost or 0.0),
            )

    def reserve(self, key: str, simulations: int, most: int) -> bool:
        """Set fresh simulations aside, of which the whole run may make `most`.

        Args:
            key: What they are for; asked again, the answer is the same, and nothing more is set aside.
            simulations: How many.
            most: The run's budget of them.

        Returns:
            Whether there are so many left.
        """
        with self._lock, self._transaction():
            if self._database.execute("SELECT 1 FROM fresh WHERE key = ?", (key,)).fetchone():
                return True
            if self._fresh() + simulations > most:
                return False
            self._database.execute("INSERT INTO fresh (key, simulations) VALUES (?, ?)", (key, simulations))
            return True

    def _fresh(self) -> int:
        (taken,) = self._database.execute("SELECT coalesce(sum(simulations), 0) FROM fresh").fetchone()
        return int(taken)

    def forget_lost(self, keys: Sequence[str] | None = None) -> None:
        """Let simulations that were lost be made again: those of some keys, or all."""
        with self._lock:
            if keys is None:
                self._database.execute("DELETE FROM claims WHERE state = ?", (State.LOST,))
                return
            self._database.executemany(
                "DELETE FROM claims WHERE key = ? AND state = ?", [(key, State.LOST) for key in keys]
            )

    def finished(self) -> frozenset[str]:
        """The keys of all simulations that are made or kept."""
        with self._lock:
            rows = self._database.execute("SELECT key FROM claims WHERE state IN (?, ?)", tuple(DONE))
            return frozenset(key for (key,) in rows)

    def unclaim(self, key: str) -> None:
        """Give a simulation back that this process will not finish."""
        with self._lock:
            self._database.execute("DELETE FROM claims WHERE key = ? AND state = ?", (key, State.RUNNING))

    def release(self, worker: str) -> None:
        """Give back what a process that died had claimed and not finished."""
        with self._lock:
            self._database.execute(
                "DELETE FROM claims WHERE worker = ? AND state = ?", (worker, State.RUNNING)
            )

    def entries(self, keys: Sequence[str]) -> dict[str, Entry]:
        """The states of simulations, by key; without those that nobody has claimed."""
        marks = ",".join("?" * len(keys))
        with self._lock:
            rows = self._database.execute(
                f"SELECT key, state, note FROM claims WHERE key IN ({marks})", tuple(keys)
            ).fetchall()
        return {key: Entry(State(state), note) for key, state, note in rows}

    def totals(self) -> Totals:
        """Where the run stands."""
        with self._lock:
            counted = self._database.execute("SELECT state, count(*) FROM claims GROUP BY state").fetchall()
            fresh = self._fresh()
            started, *used = self._database.execute(
                "SELECT started, calls, prompt_tokens, cached_tokens, completion_tokens, cost, unpriced"
                " FROM run"
            ).fetchone()
        calls, prompt, cached, completion, cost, unpriced = used
        usage = Usage(
            calls=calls,
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=completion,
            cost=None if unpriced else cost,
        )
        return Totals({State(state): count for state, count in counted}, usage, time.time() - started, fresh)

    def mean_used(self) -> Usage:
        """What the simulations made so far used in the mean; nothing where none is."""
        with self._lock:
            tokens, cost = self._database.execute(
                "SELECT avg(tokens), avg(cost) FROM claims WHERE state = ?", (State.MADE,)
            ).fetchone()
        return NOTHING_USED if tokens is None else Usage(calls=0, prompt_tokens=round(tokens), cost=cost)

    @property
    def stopped(self) -> str:
        """Why nothing more is started; empty where it goes on."""
        with self._lock:
            (reason,) = self._database.execute("SELECT stopped FROM run").fetchone()
        return str(reason)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the budget of minutes is spent; None without one."""
        if self.budgets.minutes is None:
            return None
        with self._lock:
            (started,) = self._database.execute("SELECT started FROM run").fetchone()
        return max(0.0, float(started) + self.budgets.minutes * 60.0 - time.time())

    @property
    def unstored(self) -> str:
        """Why the run could not store its evidence; empty if it could."""
        with self._lock:
            (reason,) = self._database.execute("SELECT unstored FROM run").fetchone()
        return str(reason)

    def stop(self, reason: str, *, refused: bool = False, unstored: bool = False) -> None:
        """Let nothing more be started; the first reason stays.

        Args:
            reason: Why, in one line.
            refused: An endpoint refused what every further request would ask too.
            unstored: The evidence could not be stored, whatever else stopped the run before.
        """
        with self._lock, self._transaction():
            self._stop(reason, refused=refused)
            if unstored:
                self._database.execute("UPDATE run SET unstored = ? WHERE unstored = ''", (reason,))

    def first_to_tell(self) -> bool:
        """Whether this process is the first to report why the run was stopped."""
        with self._lock:
            return self._database.execute("UPDATE run SET told = 1 WHERE told = 0").rowcount == 1

    def _stop(self, reason: str, *, refused: bool = False) -> None:
        self._database.execute(
            "UPDATE run SET stopped = ?, refused = ? WHERE stopped = ''",
            (storable_text(reason), storable_text(reason) if refused else ""),
        )

    def _short_of(self, tokens: int, cost: float) -> str:
        """Which budget does not suffice for one more simulation beside those that run; empty: all do."""
        ahead_tokens, ahead_cost = self._database.execute(
            "SELECT coalesce(sum(tokens), 0), coalesce(sum(cost), 0) FROM claims"
        ).fetchone()
        used_tokens, used_cost = self._database.execute(
            "SELECT prompt_tokens + completion_tokens, cost FROM run"
        ).fetchone()
        budgets = self.budgets
        if budgets.cost is not None and cost and max(ahead_cost, used_cost) + cost > budgets.cost:
            return (
                f"the budget is spent: ${used_cost:.2f} of --t2e-max-cost {budgets.cost:g}, "
                f"and one more simulation takes about ${cost:.2f}"
            )
        if budgets.tokens is not None and tokens and max(ahead_tokens, used_tokens) + tokens > budgets.tokens:
            return (
                f"the budget is spent: {used_tokens:,} tokens of --t2e-max-tokens {budgets.tokens}, "
                f"and one more simulation takes about {tokens:,}"
            )
        return ""

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")
