"""Compares baselines, verdicts, evidence and traces with the entries of the ledger.

A file's own digest reveals an edit. If the editor also updated that digest, only the ledger reveals the edit.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.baselines import RESTORE_REMEDY, evidence_digest, read_evidence
from pytest_trace2evolve.evidence.results import decode_results, traces_digest
from pytest_trace2evolve.records.evidence import Evidence, SimulationEvidence
from pytest_trace2evolve.records.ledger import BaselineSave, DatedEntry, Evaluation, TracesEntry
from pytest_trace2evolve.records.verdict import Decision, RunVerdict
from pytest_trace2evolve.utils.canonical import digest

VERDICT_NAME = "verdict.json"
"""The file of a run's folder that holds its verdict."""

BaselineEntry = BaselineSave | Evaluation


def evidence_file_path(suite: str) -> str:
    return f"evidence/{suite}.json"


def verdict_digest(folder: Path) -> str:
    return digest(decode_results(folder / VERDICT_NAME))


def outcomes_digest(records: Iterable[SimulationEvidence]) -> str:
    """The digest of the outcomes of a split's simulations, independent of their order."""
    return digest(
        sorted(
            [record.task_id, record.trial, record.id, record.task_digest, record.status, record.reward or 0.0]
            for record in records
        )
    )


def check_baseline(
    entries: Sequence[DatedEntry], suite: str, name: str, path: Path, evidence: Evidence
) -> None:
    """Check that a baseline is unchanged since its last save, or its last use if no save is recorded.

    A baseline that the ledger does not know passes.

    Args:
        entries: All entries of the ledger.
        suite, name: The baseline's suite and name.
        path: The baseline's file.
        evidence: The whole content of the file.

    Raises:
        ResultsError: the baseline was changed.
    """
    latest_entries = _latest_entries(entries, _entries_of_baseline(entries, suite, name))
    found_digest = evidence_digest(evidence)
    if not latest_entries or any(_baseline_evidence(entry) == found_digest for entry in latest_entries):
        return
    entry = latest_entries[-1]
    verb = "saved" if isinstance(entry, BaselineSave) else "used"
    raise ResultsError(
        f"{path}: was edited: its evidence has digest {found_digest}, but run {entry.run} {verb} "
        f"{_baseline_evidence(entry)} under this name ({_entry_text(entry)}); {RESTORE_REMEDY}"
    )


def knows_baseline(entries: Iterable[DatedEntry], suite: str, name: str) -> bool:
    """Whether the ledger holds the digest of a baseline, so that `check_baseline` can verify it."""
    return bool(_entries_of_baseline(entries, suite, name))


def find_run_edits(folder: Path, entries: Iterable[DatedEntry]) -> Iterator[ResultsError]:
    """Find edits of the verdict and the evidence in a run's folder, given the ledger entries of the run."""
    evaluations = [entry for entry in entries if isinstance(entry, Evaluation) and entry.verdict is not None]
    path = folder / VERDICT_NAME
    if evaluations and path.exists():
        try:
            found_digest = verdict_digest(folder)
        except ResultsError as error:
            found_digest = str(error)
        if mismatch := next((entry for entry in evaluations if entry.verdict != found_digest), None):
            yield ResultsError(
                f"{path}: was edited: its content has digest {found_digest}, but run {mismatch.run} recorded "
                f"{mismatch.verdict} (ledger entry {mismatch.name}); run it again"
            )
    for suite in sorted({entry.suite for entry in evaluations}):
        path = folder / evidence_file_path(suite)
        if not path.exists():
            continue
        recorded_digests = {entry.evidence for entry in evaluations if entry.suite == suite}
        try:
            found_digest = evidence_digest(read_evidence(path))
        except ResultsError as error:
            yield error
            continue
        if found_digest not in recorded_digests:
            yield ResultsError(
                f"{path}: was edited: its evidence has digest {found_digest}, but the run recorded "
                f"{', '.join(map(str, recorded_digests))}; run it again"
            )


def check_traces(entries: Iterable[DatedEntry], run: str, path: Path) -> None:
    """Check that a results file or folder is unchanged since the run that it names.

    Traces of a run that the ledger does not know pass.

    Args:
        run: The id of the run; empty if the file does not name a run.

    Raises:
        ResultsError: the traces were changed.
    """
    traces = _traces_of(entries, run)
    if not traces or (found_digest := traces_digest(path)) in {entry.digest for entry in traces}:
        return
    entry = traces[-1]
    raise ResultsError(
        f"{path}: was edited: its traces have digest {found_digest}, but run {run} recorded "
        f"{entry.digest} ({_entry_text(entry)}); restore it, or run it again"
    )


def knows_traces(entries: Iterable[DatedEntry], run: str) -> bool:
    return bool(_traces_of(entries, run))


def check_evidence(entries: Iterable[DatedEntry], suite: str, path: Path, evidence: Evidence) -> None:
    """Check that evidence outside of `baselines/` is unchanged since the run that it names.

    Evidence of a run that the ledger does not know passes.

    Raises:
        ResultsError: the evidence was changed.
    """
    found_digest = evidence_digest(evidence)
    entries_by_digest = _evidence_of_suite(entries, suite)
    run = evidence.provenance.run_id
    recorded_digest = next(
        (known_digest for known_digest, entry in entries_by_digest.items() if entry.run == run), None
    )
    if found_digest in entries_by_digest or recorded_digest is None:
        return
    raise ResultsError(
        f"{path}: was edited: its evidence has digest {found_digest}, but run {run} recorded "
        f"{recorded_digest} "
        f"({_entry_text(entries_by_digest[recorded_digest])}); restore it, or run it again"
    )


def knows_evidence(entries: Iterable[DatedEntry], suite: str, evidence: Evidence) -> bool:
    """Whether the ledger holds the digest of evidence of a suite."""
    return evidence_digest(evidence) in _evidence_of_suite(entries, suite)


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
            promotion, a later run of the same claim was not promoted, or the verdict or the evidence differs
            from the recorded one.
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
        if entry.verdict is None or entry.evidence is None:
            raise ResultsError(
                f"{path}: ledger entry {entry.name} of run {run_verdict.run} was written by an older "
                "version, without digests of the verdict and the evidence; run it again"
            )
        for later in evaluations:
            if _withdraws(later, entry):
                raise ResultsError(
                    f"{path}: run {later.run} repeated this test on {entry.suite}::{entry.split} and ended "
                    f"in {later.decision.value} ({_entry_text(later)}); the worse of the two counts"
                )
    for edit in find_run_edits(folder, run_evaluations):
        raise edit


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


def _sort_key(entry: DatedEntry) -> tuple[datetime, str]:
    return entry.at, entry.name


def _entry_text(entry: DatedEntry) -> str:
    return f"{entry.at:%Y-%m-%d}, ledger entry {entry.name}"


def _baseline_evidence(entry: BaselineEntry) -> str | None:
    return entry.baseline.digest if isinstance(entry, BaselineSave) else entry.baseline_evidence


def _entries_of_baseline(entries: Iterable[DatedEntry], suite: str, name: str) -> list[BaselineEntry]:
    """The saves of a baseline, or else the runs that used it, oldest first."""
    baseline_entries = [
        entry
        for entry in entries
        if isinstance(entry, BaselineEntry)
        and (entry.suite, entry.baseline.id) == (suite, name)
        and _baseline_evidence(entry) is not None
    ]
    saves = [entry for entry in baseline_entries if isinstance(entry, BaselineSave)]
    return sorted(saves or baseline_entries, key=_sort_key)


def _latest_entries(
    entries: Iterable[DatedEntry], baseline_entries: Sequence[BaselineEntry]
) -> list[BaselineEntry]:
    """Return the entries that are not ancestors of any other: one, or one per merged branch."""
    parents = {entry.name: entry.parents for entry in entries}
    ancestors: set[str] = set()
    stack = [name for entry in baseline_entries for name in entry.parents]
    while stack:
        name = stack.pop()
        if name not in ancestors:
            ancestors.add(name)
            stack += parents.get(name, ())
    return [entry for entry in baseline_entries if entry.name not in ancestors]


def _traces_of(entries: Iterable[DatedEntry], run: str) -> list[TracesEntry]:
    return [entry for entry in entries if isinstance(entry, TracesEntry) and entry.run == run]


def _evidence_of_suite(entries: Iterable[DatedEntry], suite: str) -> dict[str, BaselineEntry]:
    """The saves and the gated runs of a suite, by the digest of the saved or measured evidence."""
    return {
        known_digest: entry
        for entry in entries
        if isinstance(entry, BaselineEntry) and entry.suite == suite
        if (known_digest := entry.baseline.digest if isinstance(entry, BaselineSave) else entry.evidence)
    }
