"""Stores finished simulations, and keeps an account of the first ones of each candidate and agent.

A run that is resumed or started again takes finished simulations from a store. Only traces are stored; scores
are computed again.

The simulations of one candidate by one agent are a draw. The first simulation of a key is permanent, because
a second simulation would let a run choose between the two. An account next to the store lists every
simulation with the digest of its file, which reveals that one was deleted or replaced.

A draw can be ended. Later runs then begin a new draw, whose account has a name derived from the ended one.
"""

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.journal import Journal, journal_path, read_journal, remove_journal
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.utils.canonical import digest, digest_text
from pytest_trace2evolve.utils.files import folder_lock, staged_file, write_atomic
from pytest_trace2evolve.utils.reading import (
    MAX_RECORD_BYTES,
    convert_failures,
    load_text,
    open_regular,
    parse_json,
)

STORE_FORMAT = 1
"""Version of simulations and accounts, raised when a stored trace would no longer equal a fresh trace."""


def simulation_key(parts: dict[str, Any]) -> str:
    """The key of a simulation.

    Args:
        parts: Everything that can change the trace, as JSON: candidate, task, policy, tools, agent and user
            with their settings, endpoint, seed, trial, budgets.
    """
    return digest({"format": STORE_FORMAT, **parts})


class SimulationStore:
    """A folder with one file per simulation, named by key. Several processes may write to the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, key: str) -> bool:
        return self._path(key).exists()

    def get(self, key: str) -> Simulation | None:
        return self._read(key, "delete the file to run it again") if self.has(key) else None

    def put(self, key: str, simulation: Simulation) -> None:
        """Store a simulation, and remove its journal.

        Raises:
            OSError: the simulation could not be written; nothing is stored.
        """
        write_atomic(self._path(key), _render_simulation(simulation))
        remove_journal(self.folder, key)

    def begin_journal(self, key: str) -> Journal | None:
        """Open the journal of a simulation; return None if the simulation is stored.

        Raises:
            BlockingIOError: another process is making the simulation.
            OSError: the journal or the account cannot be written.
            ResultsError: the journal or the account is damaged, or the journal was deleted.
        """
        journal = Journal(journal_path(self.folder, key), must_exist=False, remedy="delete it")
        if not self.has(key):
            return journal
        journal.remove()
        return None

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"

    def _read(self, key: str, remedy: str, content: str | None = None) -> Simulation:
        path = self._path(key)
        with convert_failures(path, ResultsError, remedy):
            text = load_text(path, MAX_RECORD_BYTES)
            if content is not None and digest_text(text) != content:
                raise ResultsError(f"{path}: was changed since it was stored; {remedy}")
            return Simulation.model_validate(parse_json(text))


def _render_simulation(simulation: Simulation) -> str:
    record = simulation.model_dump(mode="json", exclude_unset=True)
    return json.dumps(record, ensure_ascii=False, allow_nan=False)


class DrawStore(SimulationStore):
    """The draw of one candidate and one agent under fixed conditions. The first simulation of a key is final.

    Several threads and processes may use a draw at once.

    Args:
        simulations: The folder of all stored simulations.
        accounts: The folder of all accounts.
        identity: Digests of the candidate, of the agent, and of the conditions: user, world and limits.
        run: The id of the run that uses the draw; empty to check the account without a run.
    """

    def __init__(self, simulations: Path, accounts: Path, identity: tuple[str, str, str], run: str) -> None:
        super().__init__(simulations)
        self._run = run
        self._mutex = threading.RLock()
        self._account = _Account(accounts / f"{digest(list(identity))}.jsonl", identity)

    @property
    def path(self) -> Path:
        """The file of the account."""
        return self._account.path

    @property
    def id(self) -> str:
        """The id of the draw, which is begun if it does not exist."""
        if not self._account.draw:
            self._read_account()
        return self._account.draw

    def draw_key(self, key: str) -> str:
        """The key under which this draw stores a simulation. Other draws use different keys."""
        return digest([self.id, key])

    def has(self, key: str) -> bool:
        """Whether a simulation of a key is stored.

        Raises:
            ResultsError: the simulation was deleted.
        """
        path = self._path(key)
        if self._recorded_digest(key) is None:
            if not path.exists():
                return False
            with self._lock_account():
                if key not in self._account.file_digests:  # a process was killed between the two writes
                    self._record(key, digest_text(load_text(path, MAX_RECORD_BYTES)))
        elif not path.exists():
            raise self._deletion_error(path)
        return True

    def get(self, key: str) -> Simulation | None:
        return self._read(key, self._remedy, self._recorded_digest(key)) if self.has(key) else None

    def begin_journal(self, key: str) -> Journal | None:
        """Like `SimulationStore.begin_journal`, but also record the journal in the account."""
        if self._recorded_digest(key) is not None:
            return None
        path = journal_path(self.folder, key)
        try:
            journal = Journal(path, must_exist=key in self._account.begun_runs, remedy=self._remedy)
        except FileNotFoundError:
            if self._recorded_digest(key) is None:
                raise self._deletion_error(path) from None
            return None  # stored in the meantime
        try:
            with self._lock_account():
                if key in self._account.file_digests:
                    journal.remove()
                    return None
                if not journal.is_linked:
                    raise self._deletion_error(path)
                begun_runs = self._account.begun_runs.get(key, ())
                if not begun_runs or (self._run not in begun_runs and not journal.holds_agent_answers):
                    self._account.append({"begun": key, "run": self._run}, durable=False)
        except BaseException:
            journal.close()
            raise
        return journal

    def put(self, key: str, simulation: Simulation) -> None:
        """Store a simulation unless its key has one, and remove the journal.

        Raises:
            OSError: the simulation could not be written; nothing is stored.
        """
        text, path = _render_simulation(simulation), self._path(key)
        if self.has(key):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with staged_file(path, [text]) as temporary, self._lock_account():
            if key in self._account.file_digests:
                return
            temporary.replace(path)
            try:
                self._record(key, digest_text(text))
            except BaseException:
                path.unlink(missing_ok=True)
                raise
            remove_journal(self.folder, key)

    def _record(self, key: str, content: str) -> None:
        self._account.append({"made": key, "digest": content, "run": self._run})

    def record_loss(self, key: str) -> None:
        with self._lock_account():
            if self._run not in self._account.losing_runs.get(key, ()):
                self._account.append({"lost": key, "run": self._run})

    def count_losses(self, key: str) -> int:
        """The number of runs that lost the simulation of a key."""
        self._read_account()
        return len(self._account.losing_runs.get(key, ()))

    def count_attempts(self, key: str, journal: Journal) -> int:
        """The number of earlier attempts whose answers may differ from the simulation that was made now.

        These are the runs that lost it, and, for an agent whose answers are not journaled, killed runs. A run
        that finished no simulation at all does not count, because it cannot have chosen what to lose.
        """
        self._read_account()
        runs = set(self._account.losing_runs.get(key, ()))
        if not journal.holds_agent_answers:
            runs |= self._account.begun_runs.get(key, set()) - {self._run}
        return len(runs & self._account.making_runs)

    def end(self) -> None:
        """End the draw, so that a run that has not used it yet begins a new one."""
        with self._lock_account():
            self._account.append({"ended": self._account.draw, "run": self._run})

    def find_problems(self) -> Iterator[str]:
        """Read all stored simulations and journals, and yield one line per problem."""
        try:
            self._read_account()
        except ResultsError as error:
            yield str(error)
            return
        for key in sorted(self._account.file_digests.keys() | self._account.begun_runs.keys()):
            try:
                if key in self._account.file_digests:
                    self.get(key)
                    remove_journal(self.folder, key)  # a kill may have left it
                else:
                    self._check_journal(key)
            except ResultsError as error:
                yield str(error)

    def _recorded_digest(self, key: str) -> str | None:
        """The digest of the file of a key; None if the account does not list the key."""
        if key not in self._account.file_digests:
            self._read_account()
        return self._account.file_digests.get(key)

    def _check_journal(self, key: str) -> None:
        """Check that the journal of an unfinished simulation exists and is unchanged."""
        path = journal_path(self.folder, key)
        try:
            read_journal(path, self._remedy)
        except FileNotFoundError:
            if self._recorded_digest(key) is None:  # else its simulation was stored in the meantime
                raise self._deletion_error(path) from None

    def _deletion_error(self, path: Path) -> ResultsError:
        return ResultsError(f"{path}: was deleted, but the account of its draw names it; {self._remedy}")

    @property
    def _remedy(self) -> str:
        return (
            "restore it, use --t2e-fresh, or begin a new draw by deleting "
            f"{self.path.name} in {self.path.parent}; the ledger counts either as a further draw"
        )

    @contextlib.contextmanager
    def _lock_account(self) -> Iterator[None]:
        """Hold the lock of the account, and read the lines of all other processes first."""
        self._read_account()
        with self._mutex, folder_lock(self.path.parent, ignore_unsupported=True):
            self._account.read()
            yield

    def _read_account(self) -> None:
        """Read the account, or begin it if it does not exist. The first call of a run skips ended draws."""
        with self._mutex:
            skips_ended = bool(self._run) and not self._account.draw
            self._account.read()
            while skips_ended and self._account.is_ended and self._run not in self._account.runs:
                self._account = self._account.successor()
                self._account.read()


def open_draws(simulations: Path, accounts: Path) -> Iterator[DrawStore]:
    """Yield the draw of each account, ended or not, so that its files can be checked."""
    for path in sorted(accounts.glob("*.jsonl")):
        store = DrawStore(simulations, accounts, ("", "", ""), "")
        store._account = _Account(path, ("", "", ""))
        yield store


class _Account:
    """The file that lists the simulations of a draw, with the content read so far.

    Attributes:
        draw: The id of the draw; empty until the first line is read.
        begun_runs: The runs that began a simulation without an earlier answer of its agent, by key.
        file_digests: Digests of the files of stored simulations, by key.
        losing_runs: The runs that lost a simulation, by key.
        making_runs: The runs that made a simulation.
        runs: The runs that began, made, lost or ended anything.
        is_ended: Whether the draw has ended.
    """

    def __init__(self, path: Path, identity: tuple[str, str, str]) -> None:
        self.path = path
        self.draw = ""
        self.begun_runs: dict[str, set[str]] = {}
        self.file_digests: dict[str, str] = {}
        self.losing_runs: dict[str, set[str]] = {}
        self.making_runs: set[str] = set()
        self.runs: set[str] = set()
        self.is_ended = False
        self._identity = identity
        self._offset = 0
        self._count = 0

    def successor(self) -> "_Account":
        """The account of the draw that follows this ended one."""
        return _Account(self.path.with_name(f"{digest([self.draw])}.jsonl"), self._identity)

    def read(self) -> None:
        """Read the lines that were appended, or write the first line if the file does not exist.

        Raises:
            ResultsError: a line is damaged, or the file is shorter than it was.
        """
        if not self._offset and not self.path.exists():
            self._write_first_line()
        try:
            with open_regular(self.path) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(self._offset)
                appended = file.read()
        except FileNotFoundError:
            raise self._damage_error("was deleted while a run used it") from None
        if size < self._offset:
            raise self._damage_error("is shorter than before")
        # A line without its end was not written whole. The next process that appends removes this line.
        for line in appended[: appended.rfind(b"\n") + 1].splitlines(keepends=True):
            self._add_line(line)

    def _write_first_line(self) -> None:
        digests = dict(zip(("candidate", "agent", "conditions"), self._identity, strict=True))
        entry = {"format": STORE_FORMAT, "draw": uuid4().hex, **digests}
        with contextlib.suppress(FileExistsError):  # another process was first
            write_atomic(self.path, _render_line(entry), exclusive=True)

    def append(self, entry: dict[str, Any], *, durable: bool = True) -> None:
        """Append a line. If `durable`, flush the line to the disk, so that it survives a power cut."""
        line = _render_line(entry).encode()
        with self.path.open("r+b") as file:
            file.truncate(self._offset)
            file.seek(self._offset)
            file.write(line)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        self._add_line(line)

    def _add_line(self, line: bytes) -> None:
        number = self._count + 1
        try:
            entry = json.loads(line)  # earlier versions also wrote "chain", a digest of all lines before
            if (number == 1) != ("draw" in entry):
                raise KeyError("draw")
            if "draw" in entry and entry.get("format") != STORE_FORMAT:
                raise ResultsError(
                    f"{self.path}: has format {entry.get('format')!r}, but this version reads format "
                    f"{STORE_FORMAT}; upgrade"
                )
            match entry:
                case {"draw": draw}:
                    self.draw = str(draw)
                case {"made": key, "digest": content, "run": run}:
                    self.file_digests.setdefault(key, content)
                    self.making_runs.add(run)
                case {"begun": key, "run": run}:
                    self.begun_runs.setdefault(key, set()).add(run)
                case {"lost": key, "run": run}:
                    self.losing_runs.setdefault(key, set()).add(run)
                case {"ended": _, "run": _}:
                    self.is_ended = True
                case _:
                    raise KeyError("run")
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            raise self._damage_error(f"was changed at line {number}") from None
        self._count, self._offset = number, self._offset + len(line)
        if "run" in entry:
            self.runs.add(entry["run"])

    def _damage_error(self, problem: str) -> ResultsError:
        return ResultsError(
            f"{self.path}: {problem}; restore it, or delete it to begin a new draw, which the ledger counts"
        )


def _render_line(entry: dict[str, Any]) -> str:
    return json.dumps(entry, sort_keys=True) + "\n"
