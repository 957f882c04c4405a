"""Checks of a project's ledger and of its evidence: baselines, run folders, and the dates of candidates."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from pytest_trace2evolve.errors import CandidateError, LockError, ResultsError, nearest
from pytest_trace2evolve.evidence.baselines import read_evidence
from pytest_trace2evolve.evidence.integrity import (
    edited_baseline,
    edited_run,
    edited_traces,
    is_known,
    other_outcomes,
)
from pytest_trace2evolve.evidence.ledger import Ledger
from pytest_trace2evolve.project.candidates import Candidate, parse_candidate, read_candidate
from pytest_trace2evolve.project.lock import SuiteLock
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.evidence import Evidence
from pytest_trace2evolve.records.ledger import Dated, Evaluation, Seen, Traces
from pytest_trace2evolve.session.findings import Finding, Linted, found_in, git


def ledger(linted: Linted) -> Iterator[Finding]:
    """The ledger is as it was written, or a repair accepted its damage."""
    root = linted.project.root
    for problem in Ledger(linted.project.ledger_folder).read().problems:
        named, _, text = problem.partition(": ")
        yield Finding(root / named, f"{text}, or accept the damage with 'trace2evolve ledger repair'")


def saved_baselines(linted: Linted) -> Iterator[Finding]:
    """Every baseline can be read, belongs to its suite and its lock, and is as the ledger knows it."""
    project = linted.project
    entries = Ledger(project.ledger_folder).read().in_time
    locks = _locks(project)
    for path in project.baselines_folder.rglob("*.json"):
        if path.parent.parent != project.baselines_folder:
            yield Finding(path, "lies in no suite's folder; a baseline is baselines/<suite>/<name>.json")
            continue
        try:
            evidence = read_evidence(path)
        except ResultsError as error:
            yield found_in(path, error)
            continue
        origin, suite = evidence.provenance, path.parent.name
        if suite not in project.suite_names:
            yield Finding(path, f"of unknown suite {suite!r}; {nearest(suite, project.suite_names)}")
        elif origin.suite != suite:
            yield Finding(
                path, f"a baseline of suite {origin.suite!r}, not of {suite!r}; move it to its folder"
            )
        elif origin.lock is not None and suite in locks and (now := locks[suite].digest) != origin.lock:
            # Evidence is kept, so a renewed lock leaves old baselines behind: nothing is broken.
            yield Finding(
                path,
                f"measured under lock {origin.lock}, and {suite!r} is now {now}; "
                "nothing can be compared with it: measure it again with pytest --t2e-save-baseline NAME "
                "--t2e-baseline-mode update",
                warning=True,
            )
        if suite in project.suite_names and origin.suite == suite:
            splits = locks[suite].splits if suite in locks else {}
            yield from _edits(path, evidence, entries, splits)


def _edits(
    path: Path, evidence: Evidence, entries: Sequence[Dated], splits: Mapping[str, Mapping[str, str]]
) -> Iterator[Finding]:
    """Whether the ledger knows a baseline, and as it is."""
    suite, name = path.parent.name, path.stem
    if edited := edited_baseline(entries, suite, name, path, evidence):
        yield Finding(path, edited.text)
    elif not is_known(entries, suite, name):
        unknown = (
            "not in the ledger, so an edit of it cannot be found: it was saved by an older version or copied "
            "here; the next gated run that uses it records its digest"
        )
        yield Finding(path, other_outcomes(entries, suite, name, evidence, splits) or unknown, warning=True)


def run_folders(linted: Linted) -> Iterator[Finding]:
    """The verdicts, evidence and traces of the runs that the ledger knows are as they were written."""
    project = linted.project
    runs: dict[str, list[Dated]] = {}
    for entry in Ledger(project.ledger_folder).read().in_time:
        if isinstance(entry, Evaluation):
            runs.setdefault(entry.run, []).append(entry)
        elif isinstance(entry, Traces):
            yield from _traces(project.runs_folder / entry.run, entry)
    for run, entries in runs.items():
        for edited in edited_run(project.runs_folder / run, entries):
            yield Finding(edited.path, edited.text)


def _traces(folder: Path, entry: Traces) -> Iterator[Finding]:
    """Whether a run's traces are what it left. Nothing is said of a folder that is gone or lies elsewhere."""
    place = next((one for one in (folder / entry.suite, folder) if (one / "results.json").exists()), None)
    if place is None:
        return
    try:
        edited = edited_traces([entry], entry.run, place)
    except ResultsError as error:
        yield found_in(place, error)
        return
    if edited is not None:
        yield Finding(place, edited.text)


def backdated(linted: Linted) -> Iterator[Finding]:
    """No candidate is dated before an access to traces that it is younger than."""
    project = linted.project
    entries = Ledger(project.ledger_folder).read().in_time
    accesses = [entry for entry in entries if isinstance(entry, Seen)]
    for path in (project.root / "candidates").glob("*.md") if accesses else ():
        try:
            candidate = read_candidate(path)
        except CandidateError:  # another check tells
            continue
        frozen = candidate.frozen_at
        later = [one for one in accesses if frozen is not None and one.first_day > frozen]
        if not later:
            continue
        access = min(later, key=lambda one: one.at)
        what = (
            f"says frozen_at {frozen}, before traces of {access.suite}::{access.split} were opened on "
            f"{access.first_day}"
        )
        if any(isinstance(one, Evaluation) and _judges(one, candidate, access.at) for one in entries):
            continue
        first = _first_commit(project.root, path, candidate)
        if first is None:
            text = (
                f"{what}, and neither a commit nor the ledger shows this text from before then; commit it, "
                "or fetch the whole history"
            )
            yield Finding(path, text, warning=True)
        elif first > access.at:
            text = f"{what}, and its text was first committed on {first:%Y-%m-%d}; set frozen_at to that day"
            yield Finding(path, text)


def _judges(entry: Evaluation, candidate: Candidate, before: datetime) -> bool:
    return entry.at < before and any(one.digest == candidate.digest for one in entry.versions)


def _first_commit(root: Path, path: Path, candidate: Candidate) -> datetime | None:
    """When a candidate's text was first committed, by the author's date, which a rebase keeps.

    None if it never was, or if the history was cut off.
    """
    if git(root, "rev-parse", "--is-shallow-repository") != "false\n":
        return None
    name = path.relative_to(root).as_posix()
    listed = git(root, "log", "--reverse", "--format=%H %aI", "--", name) or ""
    for line in listed.splitlines():
        commit, _, day = line.partition(" ")
        try:
            then = parse_candidate(git(root, "show", f"{commit}:./{name}") or "", path)
        except CandidateError:  # it was broken, or not there
            continue
        if then.digest == candidate.digest:
            return datetime.fromisoformat(day)
    return None


def _locks(project: Project) -> Mapping[str, SuiteLock]:
    try:
        return project.lock.suites
    except LockError:  # another check tells
        return {}
