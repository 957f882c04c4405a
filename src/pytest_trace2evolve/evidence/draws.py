"""Stores of finished simulations, and the account of the first simulations of a candidate and an agent.

A run that is resumed or started again takes finished simulations from a store. Only traces are stored; scores
are computed again.

The simulations of one candidate by one agent are a draw. The first simulation of a key is permanent, because
a second simulation would let a run choose between the two. An account next to the store lists every
simulation with the digest of its file. Each line also carries a digest of itself and all lines before it,
which reveals simulations that were deleted, replaced, edited or added by hand.
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
from pytest_trace2evolve.evidence.journal import Journal, journal_path, read, remove_journal
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.utils.canonical import digest, digest_text
from pytest_trace2evolve.utils.files import alone_in, staged, write_atomic
from pytest_trace2evolve.utils.reading import RECORDS, open_regular, parse_json, reported, text_of

FORMAT = 1
"""Version of simulations and accounts, raised when a stored trace would no longer equal a fresh trace."""

_DIGEST_IN_NAME = 12
"""Digits of the digest in the temporary name of a file that is not in its final place yet."""


def simulation_key(parts: dict[str, Any]) -> str:
    """The key of a simulation.

    Args:
        parts: Everything that can change the trace, as JSON: candidate, task, policy, tools, agent and user
            with their settings, endpoint, seed, trial, budgets.
    """
    return digest({"format": FORMAT, **parts})


class Store:
    """A folder with one file per simulation, named by key. Several processes may write. It has no account."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def holds(self, key: str) -> bool:
        return self._path(key).exists()

    def get(self, key: str) -> Simulation | None:
        return self._read(key, "delete the file to run it again") if self.holds(key) else None

    def put(self, key: str, simulation: Simulation) -> None:
        """Store a simulation, and remove its journal.

        Raises:
            OSError: the simulation could not be written; nothing is stored.
        """
        write_atomic(self._path(key), _rendered(simulation))
        remove_journal(self.folder, key)

    def begin(self, key: str) -> Journal | None:
        """The journal of a simulation; None if the simulation is stored.

        Raises:
            BlockingIOError: another process is making the simulation.
            OSError: the journal or the account cannot be written.
            ResultsError: the journal or the account was changed, or the journal was deleted.
        """
        journal = Journal(journal_path(self.folder, key), key, must_exist=False, remedy="delete it")
        if not self.holds(key):
            return journal
        journal.remove()
        return None

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"

    def _read(self, key: str, remedy: str, content: str | None = None) -> Simulation:
        path = self._path(key)
        with reported(path, ResultsError, remedy):
            text = text_of(path, RECORDS)
            if content is not None and digest_text(text) != content:
                raise ResultsError(f"{path}: was changed since it was stored; {remedy}")
            return Simulation.model_validate(parse_json(text))


def _rendered(simulation: Simulation) -> str:
    record = simulation.model_dump(mode="json", exclude_unset=True)
    return json.dumps(record, ensure_ascii=False, allow_nan=False)


class DrawStore(Store):
    """The draw of one candidate and one agent under fixed conditions. The first simulation of a key stays.

    Several threads and processes may use a draw at once.

    Args:
        simulations: The folder of all stored simulations.
        accounts: The folder of all accounts.
        who: Digests of the candidate, of the agent, and of the conditions: user, world and limits.
        run: The id of the run that uses the draw.
    """

    def __init__(self, simulations: Path, accounts: Path, who: tuple[str, str, str], run: str) -> None:
        super().__init__(simulations)
        self._run = run
        self._mutex = threading.RLock()
        self._account = _Account(accounts / f"{digest(list(who))}.jsonl", who)

    @property
    def path(self) -> Path:
        """The file of the account."""
        return self._account.path

    @property
    def id(self) -> str:
        """The id of the draw. A draw is begun if there was none."""
        if not self._account.draw:
            self._refresh()
        return self._account.draw

    @property
    def head(self) -> str:
        """The digest of all lines of the account."""
        self._refresh()
        return self._account.chain

    def continues(self, head: str) -> bool:
        """Whether the account still has all lines that it had at the time of this `head`."""
        self._refresh()
        return head in self._account.chains

    def key(self, key: str) -> str:
        """The key under which this draw stores a simulation. Other draws use different keys."""
        return digest([self.id, key])

    def holds(self, key: str) -> bool:
        """Whether there is a simulation of a key.

        Raises:
            ResultsError: the simulation was deleted, or added by hand.
        """
        path = self._path(key)
        # Checks the file before the account, because `put` writes the account before the file.
        is_present = path.exists()
        if self._recorded(key) is None:
            if is_present:
                raise self._added(path)
            return False
        if not is_present:
            self._finish(key, path)
        return True

    def get(self, key: str) -> Simulation | None:
        return self._read(key, self._remedy, self._recorded(key)) if self.holds(key) else None

    def begin(self, key: str) -> Journal | None:
        """Begin like `Store.begin`, and record the journal in the account."""
        if self._recorded(key) is not None:
            return None
        path = journal_path(self.folder, key)
        try:
            journal = Journal(path, key, must_exist=key in self._account.begun, remedy=self._remedy)
        except FileNotFoundError:
            if self._recorded(key) is None:
                raise self._deleted(path) from None
            return None  # stored in the meantime
        try:
            with self._locked():
                if key in self._account.made:
                    journal.remove()
                    return None
                if not journal.linked:
                    raise self._deleted(path)
                if key not in self._account.begun:
                    if not journal.empty:
                        raise self._added(path)
                    self._account.append({"begun": key, "run": self._run}, durable=False)
        except BaseException:
            journal.close()
            raise
        return journal

    def put(self, key: str, simulation: Simulation) -> None:
        """Store a simulation unless its key has one, and remove the journal.

        If the process is killed on the way, the simulation is stored whole or not at all.

        Raises:
            OSError: the simulation could not be written; nothing is stored.
        """
        text = _rendered(simulation)
        path, content = self._path(key), digest_text(text)
        path.parent.mkdir(parents=True, exist_ok=True)
        with staged(path, [text]) as temporary, self._locked():
            if key in self._account.made:
                return
            # Files left by processes that were killed before recording them in the account.
            for abandoned in path.parent.glob(f".{key}.*.part"):
                abandoned.unlink(missing_ok=True)
            ready = _ready(path, content)
            temporary.replace(ready)
            try:
                self._account.append({"made": key, "digest": content, "run": self._run})
            except BaseException:
                ready.unlink(missing_ok=True)
                raise
            ready.replace(path)
            remove_journal(self.folder, key)

    def lose(self, key: str) -> None:
        with self._locked():
            if self._run not in self._account.lost.get(key, ()):
                self._account.append({"lost": key, "run": self._run})

    def losses(self, key: str) -> int:
        """The number of runs that lost the simulation of a key."""
        self._refresh()
        return len(self._account.lost.get(key, ()))

    def problems(self) -> Iterator[str]:
        """Read all stored simulations and journals, and yield one line per problem."""
        try:
            self._refresh()
        except ResultsError as error:
            yield str(error)
            return
        for key in sorted(self._account.made.keys() | self._account.begun):
            try:
                if key in self._account.made:
                    self.get(key)
                    remove_journal(self.folder, key)  # a kill may have left it
                else:
                    self._check_journal(key)
            except ResultsError as error:
                yield str(error)

    def _recorded(self, key: str) -> str | None:
        """The digest of the file of a key; None if the account does not list the key."""
        if key not in self._account.made:
            self._refresh()
        return self._account.made.get(key)

    def _finish(self, key: str, path: Path) -> None:
        """Move a simulation into place if a process was killed after writing and recording it."""
        with self._locked():
            ready = _ready(path, self._account.made[key])
            if not path.exists() and ready.exists():
                ready.replace(path)
        if not path.exists():
            raise self._deleted(path)

    def _check_journal(self, key: str) -> None:
        """Check that the journal of an unfinished simulation exists and is unchanged."""
        path = journal_path(self.folder, key)
        try:
            read(path, key, self._remedy)
        except FileNotFoundError:
            if self._recorded(key) is None:  # else its simulation was stored in the meantime
                raise self._deleted(path) from None

    def _deleted(self, path: Path) -> ResultsError:
        return ResultsError(f"{path}: was deleted, and the account of its draw names it; {self._remedy}")

    def _added(self, path: Path) -> ResultsError:
        return ResultsError(
            f"{path}: the account of its draw does not name it, so it was added by hand; delete it"
        )

    @property
    def _remedy(self) -> str:
        return (
            "restore it, give --t2e-fresh, or begin another draw by deleting "
            f"{self.path.name} in {self.path.parent}: the ledger counts either as a further draw"
        )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock for appending, after reading all lines of other processes."""
        self._refresh()
        with self._mutex, alone_in(self.path.parent, if_possible=True):
            self._account.read()
            yield

    def _refresh(self) -> None:
        """Read the account, or begin it if there was none."""
        with self._mutex:
            self._account.read()


def draws_in(simulations: Path, accounts: Path) -> Iterator[DrawStore]:
    for path in sorted(accounts.glob("*.jsonl")):
        store = DrawStore(simulations, accounts, ("", "", ""), "")
        store._account = _Account(path, ("", "", ""))
        yield store


def _ready(path: Path, content: str) -> Path:
    """The temporary file of a simulation that is written but not in its final place yet."""
    return path.with_name(f".{path.stem}.{content[:_DIGEST_IN_NAME]}.part")


class _Account:
    """The file that lists the simulations of a draw, with the content read so far.

    Attributes:
        draw: The id of the draw; empty until the first line is read.
        begun: Keys of simulations that were begun.
        made: Digests of the files of stored simulations, by key.
        lost: The runs that lost a simulation, by key.
        chain: The digest of all lines read.
        chains: The digests up to each line, including `chain`.
    """

    def __init__(self, path: Path, who: tuple[str, str, str]) -> None:
        self.path = path
        self.draw = ""
        self.begun: set[str] = set()
        self.made: dict[str, str] = {}
        self.lost: dict[str, set[str]] = {}
        self.chain = ""
        self.chains: set[str] = set()
        self._who = who
        self._offset = 0
        self._count = 0

    def read(self) -> None:
        """Read the lines that were appended, or write the first line if the file does not exist.

        Raises:
            ResultsError: a line was changed, or the file is shorter than it was.
        """
        if not self._offset and not self.path.exists():
            self._write_first_line()
        try:
            with open_regular(self.path) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(self._offset)
                added = file.read()
        except FileNotFoundError:
            raise self._changed("was deleted while a run used it") from None
        if size < self._offset:
            raise self._changed("is shorter than it was")
        # A line without its end was not written whole. The next process that appends removes this line.
        for raw in added[: added.rfind(b"\n") + 1].splitlines(keepends=True):
            self._add(raw)

    def _write_first_line(self) -> None:
        named = dict(zip(("candidate", "agent", "conditions"), self._who, strict=True))
        record = {"format": FORMAT, "draw": uuid4().hex, **named}
        with contextlib.suppress(FileExistsError):  # another process was first
            write_atomic(self.path, _line(record, ""), exclusive=True)

    def append(self, record: dict[str, Any], *, durable: bool = True) -> None:
        """Append a line. If `durable`, flush the line to the disk, so that it survives a power cut."""
        line = _line(record, self.chain).encode()
        with self.path.open("r+b") as file:
            file.truncate(self._offset)
            file.seek(self._offset)
            file.write(line)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        self._add(line)

    def _add(self, raw: bytes) -> None:
        number = self._count + 1
        try:
            record = json.loads(raw)
            chain = record.pop("chain")
            is_sound = _line(record, self.chain).encode() == raw
        except (ValueError, AttributeError, KeyError, RecursionError):
            is_sound, record, chain = False, {}, ""
        if not is_sound or (number == 1) != ("draw" in record):
            raise self._changed(f"was changed at line {number}")
        if "draw" in record and record.get("format") != FORMAT:
            raise ResultsError(
                f"{self.path}: has format {record.get('format')!r}, and this version reads {FORMAT}; upgrade"
            )
        self._count, self._offset = number, self._offset + len(raw)
        self.chain = chain
        self.chains.add(chain)
        if "draw" in record:
            self.draw = str(record["draw"])
        elif "made" in record:
            self.made.setdefault(record["made"], record["digest"])
        elif "begun" in record:
            self.begun.add(record["begun"])
        elif "lost" in record:
            self.lost.setdefault(record["lost"], set()).add(record["run"])

    def _changed(self, how: str) -> ResultsError:
        return ResultsError(
            f"{self.path}: {how}; restore it, or delete it to begin another draw, which the ledger counts"
        )


def _line(record: dict[str, Any], before: str) -> str:
    """A line of an account: the record, with a digest of the record and of all lines before it."""
    return json.dumps({**record, "chain": digest([before, record])}, sort_keys=True) + "\n"
