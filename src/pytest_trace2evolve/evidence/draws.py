"""The first simulations of a candidate and an agent, with an account of them that is only appended to.

The simulations of one candidate by one agent that a store keeps are a draw. The first simulation of a key
stays for ever: a second one would let a run choose between them. An account next to the store names every
simulation with the digest of its file, each line with the digest of the lines before it, so that a simulation
that was deleted, replaced, edited or added by hand is found.

Finished simulations by the key of everything that could have changed their trace.

A run that was stopped, or is started again, takes from here what it would otherwise make again. Only traces
are kept: their scores are derived anew.
"""

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from pydantic import ValidationError

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.journal import Journal, journal_path, read, remove_journal
from pytest_trace2evolve.evidence.results import decode
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.utils.canonical import digest, digest_text
from pytest_trace2evolve.utils.files import alone_in, staged, write_atomic
from pytest_trace2evolve.utils.reading import RECORDS, complaint, open_regular, text_of

FORMAT = 1
"""Raised when a stored trace would no longer be what a fresh one is."""


def simulation_key(parts: dict[str, Any]) -> str:
    """The key of a simulation.

    Args:
        parts: Everything that can change its trace, as JSON: candidate, task, policy, tools, agent and user
            with their settings, endpoint, seed, trial, budgets.
    """
    return digest({"format": FORMAT, **parts})


def simulation_text(simulation: Simulation) -> str:
    """What is stored of a simulation."""
    record = simulation.model_dump(mode="json", exclude_unset=True)
    return json.dumps(record, ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True)
class FinishedStore:
    """A folder of simulations, a file each; writers of many processes do not disturb one another.

    The simulations of suites lie in a `draws.DrawStore`.
    """

    folder: Path

    def holds(self, key: str) -> bool:
        """Whether there is a simulation of a key."""
        return self._path(key).exists()

    def get(self, key: str) -> Simulation | None:
        """The simulation of a key; None where there is none.

        Raises:
            ResultsError: the file is damaged; it is named, and never passed over.
        """
        path = self._path(key)
        if not path.exists():
            return None
        try:
            return Simulation.model_validate(decode(path))
        except ValidationError as error:
            raise ResultsError(
                f"{path}: damaged at {complaint(error)}; delete the file to run it again"
            ) from None

    def begin(self, key: str) -> Journal | None:
        """The journal of a simulation; None if the simulation is there.

        Raises:
            BlockingIOError: another process is making it.
            OSError: the journal cannot be opened.
            ResultsError: it was changed.
        """
        journal = Journal(journal_path(self.folder, key), key, must_exist=False, remedy="delete it")
        if not self.holds(key):
            return journal
        journal.remove()
        return None

    def put(self, key: str, simulation: Simulation) -> None:
        """Keep a simulation; its journal is removed.

        Raises:
            OSError: it could not be written.
        """
        write_atomic(self._path(key), simulation_text(simulation))
        remove_journal(self.folder, key)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


"""The version of the account's format."""

_STAGED = 12
"""Digits of the digest in the name of a file that is not yet in its place."""


class Store(Protocol):
    """Keeps simulations by key."""

    def holds(self, key: str) -> bool:
        """Whether there is a simulation of a key."""

    def get(self, key: str) -> Simulation | None:
        """The simulation of a key; None if there is none."""

    def put(self, key: str, simulation: Simulation) -> None:
        """Keep a simulation; its journal is removed."""

    def begin(self, key: str) -> Journal | None:
        """The journal of a simulation; None if the simulation is there.

        Raises:
            BlockingIOError: another process is making it.
            OSError: the journal cannot be opened.
            ResultsError: it was changed or deleted.
        """


@dataclass
class _Lines:
    """What was read of an account so far: `offset` bytes, and the digest of all its lines."""

    draw: str = ""
    begun: set[str] = field(default_factory=set)
    made: dict[str, str] = field(default_factory=dict)
    lost: dict[str, set[str]] = field(default_factory=dict)
    chain: str = ""
    chains: set[str] = field(default_factory=set)
    offset: int = 0
    count: int = 0


class DrawStore:
    """The draw of one candidate and one agent under fixed conditions.

    It is safe to use from several threads and processes.

    Args:
        simulations: The folder of all stored simulations.
        accounts: The folder of all accounts.
        who: Digests of the candidate, of the agent, and of the conditions: user, world and limits.
        run: The id of the run that uses it.
    """

    def __init__(self, simulations: Path, accounts: Path, who: tuple[str, str, str], run: str) -> None:
        self.path = accounts / f"{digest(list(who))}.jsonl"
        self._folder = simulations
        self._who = who
        self._run = run
        self._mutex = threading.RLock()
        self._lines = _Lines()

    @property
    def id(self) -> str:
        """The id of the draw; it begins if there was none.

        Raises:
            OSError: its account cannot be written.
            ResultsError: its account was changed.
        """
        with self._mutex:
            if not self._lines.draw:
                self._begin()
                self._read()
            return self._lines.draw

    @property
    def head(self) -> str:
        """The digest of all lines of the account.

        Raises:
            OSError, ResultsError: as in `id`.
        """
        _ = self.id
        self._refresh()
        return self._lines.chain

    def continues(self, head: str) -> bool:
        """Whether the account still has all lines that it had when its `head` was this.

        Raises:
            OSError, ResultsError: as in `id`.
        """
        _ = self.head
        return head in self._lines.chains

    def key(self, key: str) -> str:
        """The key under which this draw keeps a simulation: no other draw reads it."""
        return digest([self.id, key])

    def holds(self, key: str) -> bool:
        """Whether there is a simulation of a key.

        Raises:
            ResultsError: there should be one and it is gone, or one was added by hand.
        """
        path = self._path(key)
        # The file before the account: whoever stores a simulation writes the account first.
        present = path.exists()
        if self._known(key) is None:
            if present:
                raise self._added(path)
            return False
        return present or self._recovered(key)

    def get(self, key: str) -> Simulation | None:
        """The simulation of a key; None if there is none.

        Raises:
            ResultsError: as in `holds`, or the file is not the one that was stored.
        """
        if not self.holds(key):
            return None
        path = self._path(key)
        self._verify(key)
        try:
            return Simulation.model_validate(decode(path))
        except ValidationError as error:
            raise ResultsError(f"{path}: damaged at {complaint(error)}; {self._remedy}") from None

    def begin(self, key: str) -> Journal | None:
        """The journal of a simulation, which the account names from now on; None if the simulation is there.

        Raises:
            BlockingIOError: another process is making it.
            OSError: the journal or the account cannot be written.
            ResultsError: the journal or the account was changed, or the journal was deleted.
        """
        _ = self.id
        if self._known(key) is not None:
            return None
        path = journal_path(self._folder, key)
        begun = key in self._lines.begun
        try:
            journal = Journal(path, key, must_exist=begun, remedy=self._remedy)
        except FileNotFoundError:
            if self._known(key) is None:
                raise self._deleted(path) from None
            return None  # stored in the meantime
        try:
            with self._turn():
                if key in self._lines.made:
                    journal.remove()
                    return None
                if not journal.linked:
                    raise self._deleted(path)
                if key not in self._lines.begun:
                    if not journal.empty:
                        raise self._added(path)
                    self._append({"begun": key, "run": self._run}, durable=False)
        except BaseException:
            journal.close()
            raise
        return journal

    def put(self, key: str, simulation: Simulation) -> None:
        """Keep a simulation, unless there is one of its key: the first one stays. Its journal is removed.

        A process that is killed on the way leaves no trace of it, or all of it.

        Raises:
            OSError: it could not be written; nothing is kept.
        """
        text = simulation_text(simulation)
        path, content = self._path(key), digest_text(text)
        path.parent.mkdir(parents=True, exist_ok=True)
        with staged(path, [text]) as temporary, self._turn():
            if key in self._lines.made:
                return
            # A process that was killed before it named its file here left it behind.
            for abandoned in path.parent.glob(f".{key}.*.part"):
                abandoned.unlink(missing_ok=True)
            ready = self._ready(key, content)
            temporary.replace(ready)
            try:
                self._append({"made": key, "digest": content, "run": self._run})
            except BaseException:
                ready.unlink(missing_ok=True)
                raise
            ready.replace(path)
            remove_journal(self._folder, key)

    def lose(self, key: str) -> None:
        """Note that this run lost the simulation of a key.

        Raises:
            OSError: it could not be written.
        """
        with self._turn():
            if self._run not in self._lines.lost.get(key, ()):
                self._append({"lost": key, "run": self._run})

    def losses(self, key: str) -> int:
        """How many runs lost the simulation of a key."""
        self._refresh()
        return len(self._lines.lost.get(key, ()))

    def problems(self) -> Iterator[str]:
        """What is wrong with the stored simulations and the journals, a line each; all of them are read."""
        try:
            self._refresh()
            for key in sorted(self._lines.made.keys() | self._lines.begun):
                try:
                    if key in self._lines.made:
                        self.holds(key)
                        self._verify(key)
                        remove_journal(self._folder, key)  # a kill may have left it
                    else:
                        self._require_journal(key)
                except ResultsError as error:
                    yield str(error)
        except ResultsError as error:
            yield str(error)

    def _verify(self, key: str) -> None:
        """See that a stored file is the one that the account names.

        Raises:
            ResultsError: it is not.
        """
        path = self._path(key)
        try:
            content = digest_text(text_of(path, RECORDS))
        except (OSError, ValueError) as error:
            raise ResultsError(f"{path}: cannot be read ({error}); {self._remedy}") from None
        if content != self._known(key):
            raise ResultsError(f"{path}: was changed since it was stored; {self._remedy}")

    def _known(self, key: str) -> str | None:
        """The digest of the file of a key; None if the account does not name it."""
        if key not in self._lines.made:
            self._refresh()
        return self._lines.made.get(key)

    def _recovered(self, key: str) -> bool:
        """Finish what a killed process began: its simulation is on the disk and not in its place.

        Raises:
            ResultsError: there is nothing to be finished: the file was deleted.
        """
        path = self._path(key)
        with self._turn():
            ready = self._ready(key, self._lines.made[key])
            if not path.exists() and ready.exists():
                ready.replace(path)
        if not path.exists():
            raise self._deleted(path)
        return True

    def _require_journal(self, key: str) -> None:
        """See that the journal of a simulation that was begun is there and as it was written.

        Raises:
            ResultsError: it was changed or deleted.
        """
        path = journal_path(self._folder, key)
        try:
            read(path, key, self._remedy)
        except FileNotFoundError:
            if self._known(key) is None:  # else its simulation was stored in the meantime
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
    def _turn(self) -> Iterator[None]:
        """Be the only one who appends; everything that others appended is read."""
        _ = self.id
        with self._mutex, alone_in(self.path.parent, if_possible=True):
            self._read()
            yield

    def _begin(self) -> None:
        if self.path.exists():
            return
        named = dict(zip(("candidate", "agent", "conditions"), self._who, strict=True))
        record = {"format": FORMAT, "draw": uuid4().hex, **named}
        with contextlib.suppress(FileExistsError):  # another process was first
            write_atomic(self.path, _line(record, ""), exclusive=True)

    def _refresh(self) -> None:
        with self._mutex:
            self._read()

    def _read(self) -> None:
        """Take in what was appended.

        Raises:
            ResultsError: a line was changed, or the account is shorter than it was.
        """
        lines = self._lines
        try:
            with open_regular(self.path) as file:
                size = file.seek(0, 2)
                if size == lines.offset:
                    return
                file.seek(lines.offset)
                fresh = file.read()
        except FileNotFoundError:
            if lines.offset:
                raise self._changed("was deleted while a run used it") from None
            return
        if size < lines.offset:
            raise self._changed("is shorter than it was")
        # A line without its end was not written whole; whoever appends next takes it away.
        for raw in fresh[: fresh.rfind(b"\n") + 1].splitlines(keepends=True):
            self._take(raw)
            lines.offset += len(raw)

    def _take(self, raw: bytes) -> None:
        lines = self._lines
        lines.count += 1
        try:
            record = json.loads(raw)
            chain = record.pop("chain")
            fits = _line(record, lines.chain).encode() == raw
        except (ValueError, AttributeError, KeyError, RecursionError):
            fits, record, chain = False, {}, ""
        if not fits or (lines.count == 1) != ("draw" in record):
            raise self._changed(f"was changed at line {lines.count}")
        lines.chain = chain
        lines.chains.add(chain)
        if "draw" in record:
            if record.get("format") != FORMAT:
                raise ResultsError(
                    f"{self.path}: has format {record.get('format')!r}, and this version reads {FORMAT}; "
                    "upgrade"
                )
            lines.draw = str(record["draw"])
        elif "made" in record:
            lines.made.setdefault(record["made"], record["digest"])
        elif "begun" in record:
            lines.begun.add(record["begun"])
        elif "lost" in record:
            lines.lost.setdefault(record["lost"], set()).add(record["run"])

    def _append(self, record: dict[str, Any], *, durable: bool = True) -> None:
        """Append a line; `durable`: also safe from a power cut."""
        line = _line(record, self._lines.chain).encode()
        with self.path.open("r+b") as file:
            file.truncate(self._lines.offset)
            file.seek(self._lines.offset)
            file.write(line)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        self._take(line)
        self._lines.offset += len(line)

    def _changed(self, how: str) -> ResultsError:
        return ResultsError(
            f"{self.path}: {how}; restore it, or delete it to begin another draw, which the ledger counts"
        )

    def _ready(self, key: str, content: str) -> Path:
        return self._folder / key[:2] / f".{key}.{content[:_STAGED]}.part"

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"


def accounts_in(simulations: Path, accounts: Path) -> Iterator[DrawStore]:
    """All draws of a project, to see whether they are as they were stored."""
    for path in sorted(accounts.glob("*.jsonl")):
        store = DrawStore(simulations, accounts, ("", "", ""), "")
        store.path = path
        yield store


def _line(record: dict[str, Any], before: str) -> str:
    """A line of an account: the record with the digest of itself and of all lines before it."""
    return json.dumps({**record, "chain": digest([before, record])}, sort_keys=True) + "\n"
