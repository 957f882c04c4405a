"""Compares traces and promotions with the entries of the ledger.

Evidence has its own digest, which reveals damage. Who edits a file can also renew its digest: git shows that.
"""

from collections.abc import Iterable
from pathlib import Path

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.baselines import evidence_digest
from pytest_trace2evolve.evidence.results import traces_digest
from pytest_trace2evolve.records.evidence import Evidence, SimulationEvidence
from pytest_trace2evolve.records.ledger import BaselineSave, DatedEntry, Evaluation, TracesEntry
from pytest_trace2evolve.records.verdict import Decision, RunVerdict
from pytest_trace2evolve.utils.canonical import digest

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


def _traces_of(entries: Iterable[DatedEntry], run: str) -> list[TracesEntry]:
    return [entry for entry in entries if isinstance(entry, TracesEntry) and entry.run == run]
