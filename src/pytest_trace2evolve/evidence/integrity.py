"""Compares baselines, verdicts and evidence with what the ledger says about them.

A file's own digest shows an edit; only the ledger shows one by somebody who renews that digest too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.baselines import RESTORE, evidence_digest, read_evidence
from pytest_trace2evolve.evidence.results import decode, traces_digest
from pytest_trace2evolve.records.evidence import Evidence, SimulationEvidence
from pytest_trace2evolve.records.ledger import Dated, Evaluation, Saved, Traces
from pytest_trace2evolve.records.verdict import Decision, RunVerdict
from pytest_trace2evolve.utils.canonical import digest

VERDICT_NAME = "verdict.json"
"""The file of a run's folder that holds its verdict."""


@dataclass(frozen=True)
class Edited:
    """A file that differs from what the ledger says about it.

    Attributes:
        path: The file.
        text: The problem and the remedy, in one line.
    """

    path: Path
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


def evidence_place(suite: str) -> str:
    """The path in a run's folder of its evidence of a suite."""
    return f"evidence/{suite}.json"


def verdict_digest(folder: Path) -> str:
    """Identifies the whole content of a run's `verdict.json`."""
    return digest(decode(folder / VERDICT_NAME))


def outcomes_digest(records: Iterable[SimulationEvidence]) -> str:
    """Identifies the outcomes of a split's simulations, whatever their order."""
    return digest(
        sorted(
            [record.task_id, record.trial, record.id, record.task_digest, record.status, record.reward or 0.0]
            for record in records
        )
    )


def edited_baseline(
    entries: Sequence[Dated], suite: str, name: str, path: Path, evidence: Evidence
) -> Edited | None:
    """Compare a saved baseline with what the ledger says was saved under its name last.

    Entries of a save decide. Without any, runs that used the baseline do.

    Args:
        entries: All entries of the ledger.
        suite, name: The baseline's suite and name.
        path: Its file.
        evidence: The whole content of the file.

    Returns:
        The difference; None if there is none, or if the ledger knows nothing of the baseline.
    """
    known = _latest(entries, _entries_of_baseline(entries, suite, name))
    found = evidence_digest(evidence)
    if not known or any(_baseline_evidence(entry) == found for entry in known):
        return None
    entry = known[-1]
    verb = "saved" if isinstance(entry, Saved) else "used"
    text = (
        f"was edited: it holds evidence {found}, and run {entry.run} {verb} {_baseline_evidence(entry)} "
        f"under this name ({_place(entry)}); {RESTORE}"
    )
    return Edited(path, text)


def is_known(entries: Iterable[Dated], suite: str, name: str) -> bool:
    """Whether the ledger can say what a saved baseline holds."""
    return bool(_entries_of_baseline(entries, suite, name))


def other_outcomes(
    entries: Iterable[Dated], suite: str, name: str, evidence: Evidence, splits: Mapping[str, Iterable[str]]
) -> str:
    """One line if the latest run of an older version used other outcomes under a baseline's name; else empty.

    Such a run recorded the outcomes of its split alone, and at that time baselines were replaced without an
    entry: the file may have been edited, or saved anew.

    Args:
        splits: The tasks of each split of the suite.
    """
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
    if outcomes_digest(one for one in evidence.simulations if one.task_id in tasks) == entry.baseline.digest:
        return ""
    return (
        f"baseline {name!r} holds other outcomes on {entry.split} than run {entry.run} used "
        f"({entry.at:%Y-%m-%d}); if nobody saved it anew since, restore it from git"
    )


def edited_run(folder: Path, entries: Iterable[Dated]) -> Iterator[Edited]:
    """Compare the verdict and the evidence of a run's folder with what the run recorded.

    Args:
        folder: The run's folder.
        entries: The ledger's entries of that run.
    """
    own = [entry for entry in entries if isinstance(entry, Evaluation) and entry.verdict is not None]
    path = folder / VERDICT_NAME
    if own and path.exists():
        try:
            found = verdict_digest(folder)
        except ResultsError as error:
            found = str(error)
        if wrong := next((entry for entry in own if entry.verdict != found), None):
            yield Edited(
                path,
                f"was edited: its content has digest {found}, and run {wrong.run} recorded {wrong.verdict} "
                f"(ledger entry {wrong.name}); run it again",
            )
    for suite in sorted({entry.suite for entry in own}):
        path = folder / evidence_place(suite)
        recorded = {entry.evidence for entry in own if entry.suite == suite}
        if not path.exists():
            continue
        try:
            found = evidence_digest(read_evidence(path))
        except ResultsError as error:
            yield Edited(path, str(error).removeprefix(f"{path}: "))
            continue
        if found not in recorded:
            yield Edited(
                path,
                f"was edited: it holds evidence {found}, and the run recorded "
                f"{', '.join(map(str, recorded))}; run it again",
            )


def edited_traces(entries: Iterable[Dated], run: str, path: Path) -> Edited | None:
    """Compare a results file or folder with what the run that it names left.

    Args:
        entries: All entries of the ledger, or those of one suite.
        run: The id of the run; empty if the file names none.
        path: The file or folder.

    Returns:
        The difference; None if there is none, or if the ledger knows no traces of the run.
    """
    known = _traces_of(entries, run)
    if not known or (found := traces_digest(path)) in {entry.digest for entry in known}:
        return None
    entry = known[-1]
    return Edited(
        path,
        f"was edited: it holds traces {found}, and run {run} left {entry.digest} ({_place(entry)}); "
        "restore it, or run it again",
    )


def knows_traces(entries: Iterable[Dated], run: str) -> bool:
    """Whether the ledger can say which traces a run left."""
    return bool(_traces_of(entries, run))


def edited_copy(entries: Iterable[Dated], suite: str, path: Path, evidence: Evidence) -> Edited | None:
    """Compare evidence outside of `baselines/` with what the ledger says about the run that it names.

    Returns:
        The difference; None if there is none, or if the ledger knows no evidence of the run on the suite.
    """
    found = evidence_digest(evidence)
    known = _evidence_of_suite(entries, suite)
    run = evidence.provenance.run_id
    recorded, entry = next(((one, entry) for one, entry in known.items() if entry.run == run), ("", None))
    if found in known or entry is None:
        return None
    return Edited(
        path,
        f"was edited: it holds evidence {found}, and run {entry.run} recorded {recorded} ({_place(entry)}); "
        "restore it, or run it again",
    )


def knows_evidence(entries: Iterable[Dated], suite: str, evidence: Evidence) -> bool:
    """Whether the ledger holds the digest of evidence of a suite."""
    return evidence_digest(evidence) in _evidence_of_suite(entries, suite)


def refuse_unrecorded(
    folder: Path, record: RunVerdict, entries: Iterable[Dated], suites: Iterable[str]
) -> None:
    """Require that the ledger confirms a verdict before it is relied on.

    Args:
        folder: The run's folder.
        record: Its verdict.
        entries: All entries of the ledger.
        suites: The suites whose verdicts are relied on.

    Raises:
        ResultsError: the ledger has no entry of the run on one of them, an entry of the run is no promotion,
            a later run of the same claim was not promoted, or the verdict or the evidence is not what the run
            recorded.
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
    for wrong in edited_run(folder, own):
        raise ResultsError(str(wrong))


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


def _baseline_evidence(entry: Saved | Evaluation) -> str | None:
    return entry.baseline.digest if isinstance(entry, Saved) else entry.baseline_evidence


def _entries_of_baseline(entries: Iterable[Dated], suite: str, name: str) -> list[Saved | Evaluation]:
    """The saves of a baseline, or else the runs that used it, oldest first."""
    known = [
        entry
        for entry in entries
        if isinstance(entry, Saved | Evaluation)
        and (entry.suite, entry.baseline.id) == (suite, name)
        and _baseline_evidence(entry) is not None
    ]
    saves = [entry for entry in known if isinstance(entry, Saved)]
    return sorted(saves or known, key=_age)


def _latest(entries: Iterable[Dated], known: Sequence[Saved | Evaluation]) -> list[Saved | Evaluation]:
    """Those of `known` that no other of them follows: one, or one for each merged branch."""
    by_name = {entry.name: entry for entry in entries}
    followed: set[str] = set()
    for entry in known:
        waiting = list(entry.parents)
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name not in seen and name in by_name:
                seen.add(name)
                waiting += by_name[name].parents
        followed |= seen
    return [entry for entry in known if entry.name not in followed]


def _traces_of(entries: Iterable[Dated], run: str) -> list[Traces]:
    return [entry for entry in entries if isinstance(entry, Traces) and entry.run == run]


def _evidence_of_suite(entries: Iterable[Dated], suite: str) -> dict[str, Saved | Evaluation]:
    """The saves and the gated runs of a suite, by the digest of the evidence that was saved or measured."""
    return {
        digest: entry
        for entry in entries
        if isinstance(entry, Saved | Evaluation) and entry.suite == suite
        if (digest := entry.baseline.digest if isinstance(entry, Saved) else entry.evidence)
    }
