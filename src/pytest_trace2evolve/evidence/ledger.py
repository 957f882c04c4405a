"""The ledger: a folder with one small file per entry, which has its digest as name and lists its parents.

Reading reports entries that are damaged, and missing entries that a later one names. Files never change, so
two branches that both added entries merge without conflict. The next entry names both heads.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar, cast
from uuid import uuid4

import pydantic_core
from pydantic import ValidationError

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.baselines import evidence_digest
from pytest_trace2evolve.evidence.results import traces_digest
from pytest_trace2evolve.records.evidence import Evidence, SimulationEvidence
from pytest_trace2evolve.records.ledger import (
    ENTRY_ADAPTER,
    LEDGER_SCHEMA,
    AnyEntry,
    BaselineSave,
    DatedEntry,
    Entry,
    Evaluation,
    Repair,
    Root,
    TracesEntry,
)
from pytest_trace2evolve.records.verdict import Decision, RunVerdict
from pytest_trace2evolve.utils.canonical import digest, digest_text
from pytest_trace2evolve.utils.files import folder_lock, write_atomic
from pytest_trace2evolve.utils.git import git_text
from pytest_trace2evolve.utils.reading import (
    MAX_RECORD_BYTES,
    describe_failure,
    first_problem,
    load_text,
    parse_json,
    read_bytes,
)

CLOCK_TOLERANCE = timedelta(minutes=5)
"""The maximum lead of a different machine's clock. An entry is dated after its parents up to this lead."""

_RESTORE = "restore it from git"

EntryT = TypeVar("EntryT", bound=DatedEntry)


@dataclass(frozen=True)
class History:
    """The content of a ledger.

    Attributes:
        root: The name of the root that its entries chain to; None if the ledger is empty.
        entries: The unchanged entries of this ledger, by name.
        problems: One line per problem: the file, the cause and the remedy. Damage that a repair accepted is
            left out.
        damaged_digests: Digests of the files that have problems, by name of the entry; None for a missing
            file.
    """

    root: str | None
    entries: Mapping[str, DatedEntry]
    problems: tuple[str, ...]
    damaged_digests: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def heads(self) -> tuple[str, ...]:
        """The parents of the next entry: all entries that are not a parent yet, or else the root."""
        parents = {parent for entry in self.entries.values() for parent in entry.parents}
        heads = tuple(sorted(self.entries.keys() - parents))
        return heads or (() if self.root is None else (self.root,))

    @property
    def entries_by_time(self) -> list[DatedEntry]:
        return sorted(self.entries.values(), key=lambda entry: (entry.at, entry.name))


@dataclass(frozen=True)
class Ledger:
    """A project's ledger."""

    folder: Path

    def read(self) -> History:
        """Read and verify the whole folder. A damaged ledger is read too, and its problems are returned."""
        try:
            while True:
                names = self._entry_names()
                history = self._verify(names)
                # While a process writes, a child may become visible before its parent.
                if not history.problems or self._entry_names() == names:
                    return history
        except OSError as error:
            cause = error.strerror or error
            return History(None, {}, (f"{self.folder.name}: cannot be read: {cause}; {_RESTORE}",))

    def append(
        self,
        make: Callable[[str, tuple[str, ...], datetime], EntryT],
        is_same: Callable[[DatedEntry], bool] = lambda entry: False,
    ) -> EntryT:
        """Write an entry whose parents are the heads.

        Processes of one machine take turns. Processes on other machines or branches write concurrently.

        Args:
            make: Makes the entry from the name of the ledger's root, its parents' names and the time.
            is_same: Whether an existing entry says the same. If there is one, it is returned, and nothing is
                written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        # On a file system without locks, two entries may get the same parents.
        with folder_lock(self.folder, ignore_unsupported=True):
            same = next(filter(is_same, self.read().entries.values()), None)
            return self._write(make) if same is None else cast(EntryT, same)

    def retract(self, run: str) -> None:
        """Remove the evaluations of a run whose verdict is not shown, unless other entries name them."""
        with folder_lock(self.folder, ignore_unsupported=True):
            entries = self.read().entries.values()
            names = {entry.name for entry in entries if isinstance(entry, Evaluation) and entry.run == run}
            others = (entry for entry in entries if entry.name not in names)
            if names.isdisjoint(parent for entry in others for parent in entry.parents):
                for name in names:
                    (self.folder / f"{name}.json").unlink(missing_ok=True)

    def _entry_names(self) -> set[str]:
        try:
            files = os.listdir(self.folder)  # noqa: PTH208 - a glob takes an unreadable folder for an empty one
        except FileNotFoundError:
            return set()
        return {file.removesuffix(".json") for file in files if file.endswith(".json") and file[0] != "."}

    def _verify(self, names: set[str]) -> History:
        valid_entries: dict[str, AnyEntry] = {}
        parse_problems: dict[str, str] = {}
        for name in sorted(names):
            try:
                valid_entries[name] = _parse_entry(self.folder / f"{name}.json")
            except ValueError as error:
                parse_problems[name] = str(error)
        roots = {name: entry for name, entry in valid_entries.items() if isinstance(entry, Root)}
        dated_entries = {
            name: entry for name, entry in valid_entries.items() if isinstance(entry, DatedEntry)
        }
        root = self._find_own_root(roots, Counter(entry.root for entry in dated_entries.values()))
        problems = parse_problems | _find_problems(dated_entries, roots.keys(), root, names)
        entries = {name: entry for name, entry in dated_entries.items() if entry.root == root}
        damaged_digests = {name: self._file_digest(name) for name in sorted(problems)}
        for entry in entries.values():
            if isinstance(entry, Repair):
                damaged_digests = {
                    name: file for name, file in damaged_digests.items() if not entry.accepts(name, file)
                }
        return History(
            root=root,
            entries=entries,
            problems=tuple(f"{self.folder.name}/{name}.json: {problems[name]}" for name in damaged_digests),
            damaged_digests=damaged_digests,
        )

    def _find_own_root(self, roots: Mapping[str, Root], root_counts: Counter[str]) -> str | None:
        """This project's root: the only root, or the root of this repository, or the root of most entries."""
        names = {*roots, *root_counts}
        if len(names) <= 1:
            return names.pop() if names else None
        origin = _repository_digest(self.folder.parent)
        for name, root in roots.items():
            if root.origin == origin:
                return name
        return max(names, key=lambda name: (name in roots, root_counts[name], name))

    def _file_digest(self, name: str) -> str | None:
        """The digest of an entry's current file; None if the file cannot be read."""
        try:
            content = read_bytes(self.folder / f"{name}.json", ResultsError)
        except ResultsError:
            return None
        return digest_text(content.decode("latin-1").replace("\r\n", "\n"))

    def _write(self, make: Callable[[str, tuple[str, ...], datetime], EntryT]) -> EntryT:
        while True:
            history = self.read()
            root = history.root or self._write_root()
            parents = history.heads or (root,)
            now = datetime.now(UTC)
            parent_times = (history.entries[name].at for name in parents if name in history.entries)
            # An entry is dated after its parents, even if their machine's clock is a little ahead. If that
            # clock is far ahead, its wrong date does not spread.
            min_times = [at + timedelta(microseconds=1) for at in parent_times if at <= now + CLOCK_TOLERANCE]
            entry = make(root, parents, max([now, *min_times]))
            try:
                write_atomic(self.folder / f"{entry.name}.json", render_entry(entry), exclusive=True)
            except FileExistsError:
                continue  # a process without the lock wrote the same entry in the same microsecond
            return entry

    def _write_root(self) -> str:
        root = Root(origin=_repository_digest(self.folder.parent) or uuid4().hex)
        with contextlib.suppress(FileExistsError):
            write_atomic(self.folder / f"{root.name}.json", render_entry(root), exclusive=True)
        return root.name


def render_entry(entry: Entry) -> str:
    """Render an entry's file: indented JSON with sorted keys."""
    return pydantic_core.to_json(dict(sorted(entry.to_json().items())), indent=1).decode("utf-8") + "\n"


def _parse_entry(path: Path) -> AnyEntry:
    """Parse an entry's file. Raises a ValueError with the remedy if it is not a valid, unchanged entry."""
    try:
        text = load_text(path, MAX_RECORD_BYTES)
    except (OSError, ValueError) as error:
        raise ValueError(f"{describe_failure(error)}; {_RESTORE}") from None
    try:
        raw_entry = parse_json(text)
    except ValueError as error:
        raise ValueError(f"is not a valid entry ({error}); {_RESTORE}") from None
    version = raw_entry.get("schema_version") if isinstance(raw_entry, dict) else None
    if isinstance(version, int) and version > LEDGER_SCHEMA:
        raise ValueError(f"has format {version}, but this version reads format {LEDGER_SCHEMA}; upgrade")
    try:
        entry = ENTRY_ADAPTER.validate_json(text)
    except ValidationError as error:
        raise ValueError(f"is not a valid entry ({first_problem(error)}); {_RESTORE}") from None
    if entry.name != path.stem:
        raise ValueError(f"was edited or renamed: its content is that of {entry.name}; {_RESTORE}")
    return entry


def _find_problems(
    entries: Mapping[str, DatedEntry],
    roots: Collection[str],
    root: str | None,
    names: Collection[str],
) -> dict[str, str]:
    """Find problems among entries whose own files are valid: at most one per entry, by its name.

    Args:
        roots: The names of all roots in the folder.
        root: The name of this project's root.
        names: The names of all files, including damaged files, which are reported already.
    """
    problems: dict[str, str] = {}
    for name in roots:
        if name != root:
            problems[name] = (
                f"is the root of a different ledger, but this project's root is {root}; remove it"
            )
    own_entries = {name: entry for name, entry in entries.items() if entry.root == root}
    for name in entries.keys() - own_entries.keys():
        other_root = entries[name].root
        problems[name] = (
            f"belongs to the ledger of root {other_root}, but this project's root is {root}; remove it"
        )
    for name, entry in sorted(own_entries.items()):
        for parent in {entry.root, *entry.parents} - {*names}:
            problems[parent] = f"was deleted, but entry {name} names it; {_RESTORE}"
    return problems


def _repository_digest(folder: Path) -> str | None:
    """A digest shared by all branches of a repository, from its first commit and the project's place in it.

    None without git, before the first commit, or in a shallow clone.
    """
    if git_text(folder, "rev-parse", "--is-shallow-repository") != "false\n":
        return None
    commits = git_text(folder, "rev-list", "--max-parents=0", "HEAD")
    prefix = git_text(folder, "rev-parse", "--show-prefix")
    return digest([min(commits.split()), prefix.strip()]) if commits and prefix is not None else None


VERDICT_NAME = "verdict.json"
"""The file of a run's folder that holds its verdict."""


def evidence_file_path(suite: str) -> str:
    return f"evidence/{suite}.json"


def outcomes_digest(records: Iterable[SimulationEvidence]) -> str:
    """The digest of the outcomes of a split's simulations, independent of their order."""
    return digest(
        sorted(
            [record.task_id, record.trial, record.id, record.task_digest, record.status, record.reward or 0.0]
            for record in records
        )
    )


def check_traces(entries: Iterable[DatedEntry], run: str, path: Path) -> None:
    """Check that a results file or folder is unchanged since the run that it names.

    Traces of a run that the ledger does not know pass.

    Args:
        run: The id of the run; empty if the file does not name a run.

    Raises:
        ResultsError: the traces were changed.
    """
    traces = traces_of(entries, run)
    if not traces or (found_digest := traces_digest(path)) in {entry.digest for entry in traces}:
        return
    entry = traces[-1]
    raise ResultsError(
        f"{path}: was edited: its traces have digest {found_digest}, but run {run} recorded "
        f"{entry.digest} ({_entry_text(entry)}); restore it, or run it again"
    )


def knows_evidence(entries: Iterable[DatedEntry], suite: str, evidence: Evidence) -> bool:
    """Whether a save or a gated run of a suite recorded the digest of this evidence."""
    recorded = {
        entry.baseline.digest if isinstance(entry, BaselineSave) else entry.evidence
        for entry in entries
        if isinstance(entry, BaselineSave | Evaluation) and entry.suite == suite
    }
    return evidence_digest(evidence) in recorded


def check_promotion(
    folder: Path, run_verdict: RunVerdict, entries: Iterable[DatedEntry], suites: Iterable[str]
) -> None:
    """Check that the ledger confirms a promotion, before anything relies on the promotion.

    Args:
        folder: The run's folder.
        run_verdict: The run's verdict.
        entries: All entries of the ledger.
        suites: The suites whose verdicts are relied on.

    Raises:
        ResultsError: the ledger has no entry of the run on one of the suites, an entry of the run is not a
            promotion, or a later run of the same claim was not promoted.
    """
    path = folder / VERDICT_NAME
    evaluations = [entry for entry in entries if isinstance(entry, Evaluation)]
    run_evaluations = [entry for entry in evaluations if entry.run == run_verdict.run]
    for suite in suites:
        if not any(entry.suite == suite for entry in run_evaluations):
            raise ResultsError(
                f"{path}: the ledger has no entry of run {run_verdict.run} on {suite}, so nothing "
                f"confirms this verdict; restore the run's entries in ledger/, or run it again"
            )
    for entry in run_evaluations:
        if entry.decision is not Decision.PROMOTE:
            raise ResultsError(
                f"{path}: was edited: ledger entry {entry.name} records {entry.decision.value} for run "
                f"{run_verdict.run} on {entry.suite}::{entry.split}; run it again"
            )
        for later in evaluations:
            if _withdraws(later, entry):
                raise ResultsError(
                    f"{path}: run {later.run} repeated this test on {entry.suite}::{entry.split} and ended "
                    f"in {later.decision.value} ({_entry_text(later)}); the worse of the two counts"
                )


def _withdraws(later: Evaluation, entry: Evaluation) -> bool:
    """Whether an evaluation is a later verdict on the same claim that withdraws the promotion in `entry`."""
    claim_fields = ("suite", "split", "lock", "agent", "policy", "goal", "baseline_identity")
    return (
        later.decision is not Decision.PROMOTE
        and later.at > entry.at
        and later.has_verdict
        and later.candidate.digest == entry.candidate.digest
        and all(getattr(later, name) == getattr(entry, name) for name in claim_fields)
    )


def _entry_text(entry: DatedEntry) -> str:
    return f"{entry.at:%Y-%m-%d}, ledger entry {entry.name}"


def traces_of(entries: Iterable[DatedEntry], run: str) -> list[TracesEntry]:
    return [entry for entry in entries if isinstance(entry, TracesEntry) and entry.run == run]
