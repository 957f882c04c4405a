"""The ledger: a folder with one small file per entry, named by its digest and naming its parents.

Reading verifies every file, so entries that were edited, removed, backdated or copied in are reported. Files
never change, so two branches that both added entries merge without conflict. The next entry names both heads.
"""

import contextlib
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import pydantic_core
from pydantic import ValidationError

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.records.ledger import (
    ENTRIES,
    LEDGER_SCHEMA,
    AnyEntry,
    Dated,
    Entry,
    Evaluation,
    Repair,
    Root,
)
from pytest_trace2evolve.utils.canonical import digest, digest_text
from pytest_trace2evolve.utils.files import alone_in, write_atomic
from pytest_trace2evolve.utils.reading import (
    RECORDS,
    cause_of,
    parse_json,
    problem_in,
    read_bytes,
    text_of,
)

CLOCK_TOLERANCE = timedelta(minutes=5)
"""The lead of a different machine's clock above which its entry counts as dated in the future."""

GIT_PATIENCE = 10.0
"""Seconds to wait for git."""

_RESTORE = "restore it from git"

Made = TypeVar("Made", bound=Dated)


@dataclass(frozen=True)
class History:
    """The content of a ledger.

    Attributes:
        root: The name of the root that its entries chain to; None if the ledger is empty.
        entries: The unchanged entries of this ledger, by name.
        problems: One line per problem: the file, the cause and the remedy. Damage that a repair accepted is
            left out.
        damaged: Digests of the files with these problems, by name of the entry; None for a missing file.
    """

    root: str | None
    entries: Mapping[str, Dated]
    problems: tuple[str, ...]
    damaged: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def heads(self) -> tuple[str, ...]:
        """The parents of the next entry: all entries that are not a parent yet, or else the root."""
        named = {parent for entry in self.entries.values() for parent in entry.parents}
        heads = tuple(sorted(self.entries.keys() - named))
        return heads or (() if self.root is None else (self.root,))

    @property
    def in_time(self) -> list[Dated]:
        return sorted(self.entries.values(), key=lambda entry: (entry.at, entry.name))


@dataclass(frozen=True)
class Ledger:
    """A project's ledger."""

    folder: Path

    def read(self, now: datetime | None = None) -> History:
        """Read and verify the whole folder. A damaged ledger is read too, and its problems are returned.

        Args:
            now: The current time. Entries dated more than `CLOCK_TOLERANCE` after it are reported.
        """
        try:
            while True:
                names = self._names()
                history = self._verified(names, now or datetime.now(UTC))
                # While a process writes, a child may become visible before its parent.
                if not history.problems or self._names() == names:
                    return history
        except OSError as error:
            why = error.strerror or error
            return History(None, {}, (f"{self.folder.name}: cannot be read: {why}; {_RESTORE}",))

    def append(self, make: Callable[[str, tuple[str, ...], datetime], Made]) -> Made:
        """Write an entry whose parents are the heads.

        Processes of one machine take turns. Processes on other machines or branches write concurrently.

        Args:
            make: Makes the entry from the name of the ledger's root, its parents' names and the time.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        # On a file system without locks, two entries may get the same parents.
        with alone_in(self.folder, if_possible=True):
            return self._write(make)

    def append_once(
        self, make: Callable[[str, tuple[str, ...], datetime], Made], same: Callable[[Dated], bool]
    ) -> None:
        """Write an entry like `append`, unless an existing entry is the `same`. Processes take turns."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with alone_in(self.folder, if_possible=True):
            if not any(same(entry) for entry in self.read().entries.values()):
                self._write(make)

    def _names(self) -> set[str]:
        try:
            files = os.listdir(self.folder)  # noqa: PTH208 - a glob takes an unreadable folder for an empty one
        except FileNotFoundError:
            return set()
        return {file.removesuffix(".json") for file in files if file.endswith(".json") and file[0] != "."}

    def _verified(self, present: set[str], now: datetime) -> History:
        sound: dict[str, AnyEntry] = {}
        broken: dict[str, str] = {}
        for name in sorted(present):
            try:
                sound[name] = _parsed(self.folder / f"{name}.json", present)
            except ValueError as error:
                broken[name] = str(error)
        roots = {name: entry for name, entry in sound.items() if isinstance(entry, Root)}
        dated = {name: entry for name, entry in sound.items() if isinstance(entry, Dated)}
        root = self._own_root(roots, Counter(entry.root for entry in dated.values()))
        found = broken | _problems_among(dated, roots.keys(), root, present, now + CLOCK_TOLERANCE)
        entries = {name: entry for name, entry in dated.items() if entry.root == root}
        for name, earliest in _ahead_of_their_time(entries).items():
            entries[name] = entries[name].model_copy(update={"earliest": earliest})
        damaged = {name: self._digest(name) for name in sorted(found)}
        for entry in entries.values():
            if isinstance(entry, Repair):
                damaged = {name: file for name, file in damaged.items() if not entry.accepts(name, file)}
        return History(
            root=root,
            entries=entries,
            problems=tuple(f"{self.folder.name}/{name}.json: {found[name]}" for name in damaged),
            damaged=damaged,
        )

    def _own_root(self, roots: Mapping[str, Root], claimed: Counter[str]) -> str | None:
        """This project's root: the only root, or the root of this repository, or the root of most entries."""
        names = {*roots, *claimed}
        if len(names) <= 1:
            return names.pop() if names else None
        own = _first_commit(self.folder.parent)
        for name, root in roots.items():
            if root.origin == own:
                return name
        return max(names, key=lambda name: (name in roots, claimed[name], name))

    def _digest(self, name: str) -> str | None:
        """The digest of an entry's current file; None if the file cannot be read."""
        try:
            content = read_bytes(self.folder / f"{name}.json", ResultsError)
        except ResultsError:
            return None
        return digest_text(content.decode("latin-1").replace("\r\n", "\n"))

    def _write(self, make: Callable[[str, tuple[str, ...], datetime], Made]) -> Made:
        while True:
            history = self.read()
            root = history.root or self._begin()
            parents = history.heads or (root,)
            before = {name: history.entries[name].at for name in parents if name in history.entries}
            now = datetime.now(UTC)
            # An entry is dated after its parents, even if their machine's clock is a little ahead. Parents
            # dated much later are listed in `ahead` instead, so that their wrong date does not spread.
            ahead = tuple(name for name, at in before.items() if at > now + CLOCK_TOLERANCE)
            after = [at + timedelta(microseconds=1) for name, at in before.items() if name not in ahead]
            entry = make(root, parents, max([now, *after]))
            if ahead:
                entry = entry.model_copy(update={"ahead": ahead})
            try:
                write_atomic(self.folder / f"{entry.name}.json", render(entry), exclusive=True)
            except FileExistsError:
                continue  # a process without the lock wrote the same entry in the same microsecond
            return entry

    def _begin(self) -> str:
        root = Root(origin=_first_commit(self.folder.parent) or uuid4().hex)
        with contextlib.suppress(FileExistsError):
            write_atomic(self.folder / f"{root.name}.json", render(root), exclusive=True)
        return root.name


def render(entry: Entry) -> str:
    """An entry's file: indented JSON with sorted keys."""
    return pydantic_core.to_json(dict(sorted(entry.to_json().items())), indent=1).decode("utf-8") + "\n"


def _parsed(path: Path, present: Collection[str]) -> AnyEntry:
    """Parse an entry's file. Raises a ValueError with the remedy if it is not a valid, unchanged entry."""
    try:
        text = text_of(path, RECORDS)
    except (OSError, ValueError) as error:
        raise ValueError(f"{cause_of(error)}; {_RESTORE}") from None
    try:
        record = parse_json(text)
    except ValueError as error:
        raise ValueError(f"is no entry ({error}); {_RESTORE}") from None
    version = record.get("schema_version") if isinstance(record, dict) else None
    if isinstance(version, int) and version > LEDGER_SCHEMA:
        raise ValueError(f"has format {version}, and this version reads {LEDGER_SCHEMA}; upgrade")
    try:
        entry = ENTRIES.validate_json(text)
    except ValidationError as error:
        raise ValueError(f"is no entry ({problem_in(error)}); {_RESTORE}") from None
    if entry.name != path.stem:
        if entry.name in present:
            raise ValueError(f"is a copy of entry {entry.name} under another name; remove it")
        raise ValueError(f"was edited or renamed: its content is that of {entry.name}; {_RESTORE}")
    if text.replace("\r\n", "\n") != render(entry):
        raise ValueError(f"was edited: its text is not as it was written; {_RESTORE}")
    return entry


def _problems_among(
    entries: Mapping[str, Dated],
    roots: Collection[str],
    root: str | None,
    present: Collection[str],
    latest: datetime,
) -> dict[str, str]:
    """The problems among entries whose own files are sound: at most one per entry, by its name.

    Args:
        roots: The names of all roots in the folder.
        root: The name of this project's root.
        present: The names of all files, including damaged files, which are reported already.
        latest: The time after which an entry counts as dated in the future.
    """
    found: dict[str, str] = {}
    for name in roots:
        if name != root:
            found[name] = f"is the root of another ledger, and this project's is {root}; remove it"
    own = {name: entry for name, entry in entries.items() if entry.root == root}
    for name in entries.keys() - own.keys():
        other = entries[name].root
        found[name] = f"belongs to the ledger of root {other}, and this project's root is {root}; remove it"
    # Wrong dates do no more harm once an entry from a machine with the right time lists them as `ahead`.
    ahead = _ahead_of_their_time(own)
    for name, entry in sorted(own.items()):
        for parent in sorted({entry.root, *entry.parents}):
            if parent not in present:
                found[parent] = f"was deleted, and entry {name} names it; {_RESTORE}"
            elif parent in own and own[parent].at >= entry.at and parent not in entry.ahead:
                dates = f"{_utc(entry.at)}, not after its parent {parent} ({_utc(own[parent].at)})"
                found.setdefault(name, f"is dated {dates}; {_RESTORE}")
        if entry.at > latest and name not in ahead:
            found.setdefault(name, f"is dated {_utc(entry.at)}, in the future; set the clock, or {_RESTORE}")
    return found | _repeated(own, found)


def _ahead_of_their_time(entries: Mapping[str, Dated]) -> dict[str, datetime]:
    """The entries dated after a later entry, with the earliest time at which each can have been written.

    The `ahead` field of a later entry lists them among its parents. Earlier entries of the same run have the
    same wrong clock and count too.
    """
    found: set[str] = set()
    for entry in entries.values():
        wrong: set[str] = set()
        waiting = [parent for parent in entry.ahead if parent in entry.parents and parent in entries]
        while waiting:
            name = waiting.pop()
            wrong.add(name)
            run = getattr(entries[name], "run", None)
            waiting += [
                parent
                for parent in {*entries[name].parents} - wrong
                if parent in entries
                and entries[parent].at > entry.at
                and run is not None
                and getattr(entries[parent], "run", None) == run
            ]
        found |= wrong
    earliest: dict[str, datetime] = {}
    for name in sorted(found, key=lambda name: (entries[name].at, name)):
        parents = [parent for parent in entries[name].parents if parent in entries]
        earliest[name] = max(
            (earliest.get(parent, entries[parent].at) for parent in parents),
            default=datetime.min.replace(tzinfo=UTC),
        )
    return earliest


def _repeated(entries: Mapping[str, Dated], reported: Collection[str]) -> dict[str, str]:
    """The evaluations of a run's split that an earlier entry records already, with the problem of each."""
    first: dict[tuple[str, str, str], str] = {}
    found: dict[str, str] = {}
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].at, item[0])):
        if not isinstance(entry, Evaluation):
            continue
        key = (entry.run, entry.suite, entry.split)
        if key in first and name not in reported:
            what = f"run {entry.run} on {entry.suite}::{entry.split}"
            found[name] = f"records {what} again, after {first[key]}; remove it"
        first.setdefault(key, name)
    return found


def _utc(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _first_commit(folder: Path) -> str | None:
    """A digest shared by all branches of a repository, from its first commit and the project's place in it.

    None without git, before the first commit, or in a shallow clone.
    """
    if _git(folder, "rev-parse", "--is-shallow-repository") != "false":
        return None
    commits = _git(folder, "rev-list", "--max-parents=0", "HEAD")
    place = _git(folder, "rev-parse", "--show-prefix")
    return digest([min(commits.split()), place]) if commits and place is not None else None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=GIT_PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
