"""Compares baselines, verdicts, evidence and traces with the entries of the ledger.

A file's own digest reveals an edit. If the editor also updated that digest, only the ledger reveals the edit.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.baselines import RESTORE, evidence_digest, read_evidence
from pytest_trace2evolve.evidence.results import decode, traces_digest
from pytest_trace2evolve.records.evidence import Evidence, SimulationEvidence
from pytest_trace2evolve.records.ledger import BaselineSave, Dated, Evaluation, Traces
from pytest_trace2evolve.records.verdict import Decision, RunVerdict
from pytest_trace2evolve.utils.canonical import digest

VERDICT_NAME = "verdict.json"
"""The file of a run's folder that holds its verdict."""

BaselineEntry = BaselineSave | Evaluation


def evidence_place(suite: str) -> str:
    return f"evidence/{suite}.json"


def verdict_digest(folder: Path) -> str:
    return digest(decode(folder / VERDICT_NAME))


def outcomes_digest(records: Iterable[SimulationEvidence]) -> str:
    """The digest of the outcomes of a split's simulations, independent of their order."""
    return digest(
        sorted(
            [record.task_id, record.trial, record.id, record.task_digest, record.status, record.reward or 0.0]
            for record in records
        )
    )


def check_baseline(entries: Sequence[Dated], suite: str, name: str, path: Path, evidence: Evidence) -> None:
    """Check that a baseline is unchanged since its last save, or its last use if no save is recorded.

    A baseline that the ledger does not know passes: see `unverified_baseline`.

    Args:
        entries: All entries of the ledger.
        suite, name: The baseline's suite and name.
        path: The baseline's file.
        evidence: The whole content of the file.

    Raises:
        ResultsError: the baseline was changed.
    """
    known = _latest(entries, _entries_of_baseline(entries, suite, name))
    found = evidence_digest(evidence)
    if not known or any(_baseline_evidence(entry) == found for entry in known):
        return
    entry = known[-1]
    verb = "saved" if isinstance(entry, BaselineSave) else "used"
    raise ResultsError(
        f"{path}: was edited: it holds evidence {found}, and run {entry.run} {verb} "
        f"{_baseline_evidence(entry)} under this name ({_place(entry)}); {RESTORE}"
    )


def unverified_baseline(
    entries: Iterable[Dated], suite: str, name: str, evidence: Evidence, splits: Mapping[str, Iterable[str]]
) -> str | None:
    """Check a saved baseline that the ledger does not know, as far as older entries allow.

    Runs of older versions recorded only the outcomes of their split, and older versions replaced baselines
    without an entry. If the outcomes differ, the file may therefore have been edited or saved anew.

    Args:
        splits: The tasks of each split of the suite.

    Returns:
        A line that describes a suspicion, or an empty text. None if the ledger knows the baseline, which
        `check_baseline` verifies.
    """
    if _entries_of_baseline(entries, suite, name):
        return None
    old = (
        entry
        for entry in entries
        if isinstance(entry, Evaluation)
        and entry.baseline_evidence is None
        and (entry.suite, entry.baseline.id) == (suite, name)
        and entry.split in splits
    )
    entry = max(old, key=_age, default=None)
    if entry is None:
        return ""
    tasks = set(splits[entry.split])
    outcomes = outcomes_digest(record for record in evidence.simulations if record.task_id in tasks)
    if outcomes == entry.baseline.digest:
        return ""
    return (
        f"baseline {name!r} holds other outcomes on {entry.split} than run {entry.run} used "
        f"({entry.at:%Y-%m-%d}); if nobody saved it anew since, restore it from git"
    )


def edits_in_run(folder: Path, entries: Iterable[Dated]) -> Iterator[ResultsError]:
    """Find edits of the verdict and the evidence in a run's folder, given the ledger entries of the run."""
    own = [entry for entry in entries if isinstance(entry, Evaluation) and entry.verdict is not None]
    path = folder / VERDICT_NAME
    if own and path.exists():
        try:
            found = verdict_digest(folder)
        except ResultsError as error:
            found = str(error)
        if wrong := next((entry for entry in own if entry.verdict != found), None):
            yield ResultsError(
                f"{path}: was edited: its content has digest {found}, and run {wrong.run} recorded "
                f"{wrong.verdict} (ledger entry {wrong.name}); run it again"
            )
    for suite in sorted({entry.suite for entry in own}):
        path = folder / evidence_place(suite)
        if not path.exists():
            continue
        recorded = {entry.evidence for entry in own if entry.suite == suite}
        try:
            found = evidence_digest(read_evidence(path))
        except ResultsError as error:
            yield error
            continue
        if found not in recorded:
            yield ResultsError(
                f"{path}: was edited: it holds evidence {found}, and the run recorded "
                f"{', '.join(map(str, recorded))}; run it again"
            )


def check_traces(entries: Iterable[Dated], run: str, path: Path) -> None:
    """Check that a results file or folder is unchanged since the run that it names.

    Traces of a run that the ledger does not know pass.

    Args:
        run: The id of the run; empty if the file does not name a run.

    Raises:
        ResultsError: the traces were changed.
    """
    known = _traces_of(entries, run)
    if not known or (found := traces_digest(path)) in {entry.digest for entry in known}:
        return
    entry = known[-1]
    raise ResultsError(
        f"{path}: was edited: it holds traces {found}, and run {run} left {entry.digest} ({_place(entry)}); "
        "restore it, or run it again"
    )


def knows_traces(entries: Iterable[Dated], run: str) -> bool:
    return bool(_traces_of(entries, run))


def check_evidence(entries: Iterable[Dated], suite: str, path: Path, evidence: Evidence) -> None:
    """Check that evidence outside of `baselines/` is unchanged since the run that it names.

    Evidence of a run that the ledger does not know passes.

    Raises:
        ResultsError: the evidence was changed.
    """
    found = evidence_digest(evidence)
    known = _evidence_of_suite(entries, suite)
    run = evidence.provenance.run_id
    recorded = next((value for value, entry in known.items() if entry.run == run), None)
    if found in known or recorded is None:
        return
    raise ResultsError(
        f"{path}: was edited: it holds evidence {found}, and run {run} recorded {recorded} "
        f"({_place(known[recorded])}); restore it, or run it again"
    )


def knows_evidence(entries: Iterable[Dated], suite: str, evidence: Evidence) -> bool:
    """Whether the ledger holds the digest of evidence of a suite."""
    return evidence_digest(evidence) in _evidence_of_suite(entries, suite)


def check_promotion(
    folder: Path, record: RunVerdict, entries: Iterable[Dated], suites: Iterable[str]
) -> None:
    """Check that the ledger confirms a promotion before the promotion is relied on.

    Args:
        folder: The run's folder.
        record: The run's verdict.
        entries: All entries of the ledger.
        suites: The suites whose verdicts are relied on.

    Raises:
        ResultsError: the ledger has no entry of the run on one of the suites, an entry of the run is not a
            promotion, a later run of the same claim was not promoted, or the verdict or the evidence differs
            from the recorded one.
    """
    path = folder / VERDICT_NAME
    evaluations = [entry for entry in entries if isinstance(entry, Evaluation)]
    own = [entry for entry in evaluations if entry.run == record.run]
    for suite in suites:
        if not any(entry.suite == suite for entry in own):
            raise ResultsError(
                f"{path}: the ledger holds no entry of run {record.run} on {suite}, so nothing confirms this "
                "verdict; bring back the run's entries of ledger/, or run it again"
            )
    for entry in own:
        if entry.decision is not Decision.PROMOTE:
            raise ResultsError(
                f"{path}: was edited: ledger entry {entry.name} says {entry.decision.value} of run "
                f"{record.run} on {entry.suite}::{entry.split}; run it again"
            )
        if entry.verdict is None or entry.evidence is None:
            raise ResultsError(
                f"{path}: ledger entry {entry.name} of run {record.run} was written by an older version, "
                "without digests of the verdict and the evidence; run it again"
            )
        for later in evaluations:
            if _withdraws(later, entry):
                raise ResultsError(
                    f"{path}: run {later.run} repeated this test on {entry.suite}::{entry.split} and ended "
                    f"in {later.decision.value} ({_place(later)}); the worse of the two counts"
                )
    for edit in edits_in_run(folder, own):
        raise edit


def _withdraws(later: Evaluation, entry: Evaluation) -> bool:
    """Whether a later verdict on the same claim withdraws a promotion."""
    same = ("suite", "split", "lock", "agent", "policy", "goal", "baseline_identity")
    return (
        later.decision is not Decision.PROMOTE
        and later.at > entry.at
        and later.has_verdict
        and later.candidate.digest == entry.candidate.digest
        and all(getattr(later, name) == getattr(entry, name) for name in same)
    )


def _age(entry: Dated) -> tuple[datetime, str]:
    return entry.at, entry.name


def _place(entry: Dated) -> str:
    return f"{entry.at:%Y-%m-%d}, ledger entry {entry.name}"


def _baseline_evidence(entry: BaselineEntry) -> str | None:
    return entry.baseline.digest if isinstance(entry, BaselineSave) else entry.baseline_evidence


def _entries_of_baseline(entries: Iterable[Dated], suite: str, name: str) -> list[BaselineEntry]:
    """The saves of a baseline, or else the runs that used it, oldest first."""
    known = [
        entry
        for entry in entries
        if isinstance(entry, BaselineEntry)
        and (entry.suite, entry.baseline.id) == (suite, name)
        and _baseline_evidence(entry) is not None
    ]
    saves = [entry for entry in known if isinstance(entry, BaselineSave)]
    return sorted(saves or known, key=_age)


def _latest(entries: Iterable[Dated], known: Sequence[BaselineEntry]) -> list[BaselineEntry]:
    """The entries of `known` that no other known entry follows: one, or one per merged branch."""
    parents = {entry.name: entry.parents for entry in entries}
    ancestors: set[str] = set()
    waiting = [name for entry in known for name in entry.parents]
    while waiting:
        name = waiting.pop()
        if name not in ancestors:
            ancestors.add(name)
            waiting += parents.get(name, ())
    return [entry for entry in known if entry.name not in ancestors]


def _traces_of(entries: Iterable[Dated], run: str) -> list[Traces]:
    return [entry for entry in entries if isinstance(entry, Traces) and entry.run == run]


def _evidence_of_suite(entries: Iterable[Dated], suite: str) -> dict[str, BaselineEntry]:
    """The saves and the gated runs of a suite, by the digest of the saved or measured evidence."""
    return {
        digest: entry
        for entry in entries
        if isinstance(entry, BaselineEntry) and entry.suite == suite
        if (digest := entry.baseline.digest if isinstance(entry, BaselineSave) else entry.evidence)
    }
