"""Whether baselines, verdicts and evidence are as the ledger knows them.

A file's own digest shows an edit; only the ledger shows an edit by somebody who renews that digest too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    """A file that is not as the ledger knows it.

    Attributes:
        path: The file.
        text: What is wrong, and the remedy, in one line.
    """

    path: Path
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


def outcomes_digest(records: Iterable[SimulationEvidence]) -> str:
    """Identifies the outcomes of a split's simulations, in whatever order they come."""
    return digest(
        sorted(
            [record.task_id, record.trial, record.id, record.task_digest, record.status, record.reward or 0.0]
            for record in records
        )
    )


def edited_baseline(
    entries: Sequence[Dated], suite: str, name: str, path: Path, evidence: Evidence
) -> Edited | None:
    """A saved baseline that is not what the ledger says was saved under its name last.

    Entries of a save decide. Without any, runs that used the baseline do.

    Args:
        entries: All that the ledger holds.
        suite, name: The baseline's suite and name.
        path: Its file.
        evidence: What the file holds, all of it.

    Returns:
        None if it agrees, or if the ledger knows nothing of it.
    """
    known = _latest(entries, _named(entries, suite, name))
    if not known:
        return None
    found = evidence_digest(evidence)
    told = {entry.name: _evidence_of(entry) for entry in known}
    if found in told.values():
        return None
    entry = known[-1]
    verb = "saved" if isinstance(entry, Saved) else "used"
    text = (
        f"was edited: it holds evidence {found}, and run {entry.run} {verb} {told[entry.name]} under this "
        f"name ({entry.at:%Y-%m-%d}, ledger entry {entry.name}); {RESTORE}"
    )
    return Edited(path, text)


def is_known(entries: Iterable[Dated], suite: str, name: str) -> bool:
    """Whether the ledger can say what a saved baseline holds."""
    return bool(_named(entries, suite, name))


def other_outcomes(
    entries: Iterable[Dated], suite: str, name: str, evidence: Evidence, splits: Mapping[str, Iterable[str]]
) -> str:
    """One line if the latest run of an older version used other outcomes under a baseline's name; else empty.

    Such a run recorded the outcomes of its split alone, and baselines were then replaced without an entry:
    the file may have been edited, or saved anew.

    Args:
        splits: The tasks of each split of the suite.
    """
    old = [
        entry
        for entry in entries
        if isinstance(entry, Evaluation)
        and entry.baseline_evidence is None
        and (entry.suite, entry.baseline.id) == (suite, name)
        and entry.split in splits
    ]
    for entry in sorted(old, key=lambda entry: (entry.at, entry.name), reverse=True)[:1]:
        tasks = set(splits[entry.split])
        held = outcomes_digest(one for one in evidence.simulations if one.task_id in tasks)
        if held != entry.baseline.digest:
            return (
                f"baseline {name!r} holds other outcomes on {entry.split} than run {entry.run} used "
                f"({entry.at:%Y-%m-%d}); if nobody saved it anew since, restore it from git"
            )
    return ""


def edited_run(folder: Path, entries: Iterable[Dated]) -> Iterator[Edited]:
    """The verdict and the evidence of a run's folder that are not what the run recorded.

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
        file = folder / evidence_place(suite)
        digests = {entry.evidence for entry in own if entry.suite == suite}
        if not file.exists():
            continue
        try:
            held = evidence_digest(read_evidence(file))
        except ResultsError as error:
            yield Edited(file, str(error).removeprefix(f"{file}: "))
            continue
        if held not in digests:
            yield Edited(
                file,
                f"was edited: it holds evidence {held}, and the run recorded {', '.join(map(str, digests))}; "
                "run it again",
            )


def edited_traces(entries: Iterable[Dated], run: str, path: Path) -> Edited | None:
    """A results file or folder that is not what the run left that it says made it.

    Args:
        entries: All that the ledger holds, or its entries of one suite.
        run: The id of the run that it names; empty if it names none.
        path: The file or folder.

    Returns:
        None if it agrees, or if the ledger knows no traces of the run.

    Raises:
        ResultsError: a file of it cannot be read.
    """
    known = {entry.digest: entry for entry in _traces_of(entries, run)}
    if not known or (held := traces_digest(path)) in known:
        return None
    *_, entry = known.values()
    return Edited(
        path,
        f"was edited: it holds traces {held}, and run {run} left {entry.digest} ({entry.at:%Y-%m-%d}, "
        f"ledger entry {entry.name}); restore it, or run it again",
    )


def knows_traces(entries: Iterable[Dated], run: str) -> bool:
    """Whether the ledger can say what traces a run left."""
    return bool(_traces_of(entries, run))


def edited_copy(entries: Iterable[Dated], suite: str, path: Path, evidence: Evidence) -> Edited | None:
    """Evidence outside of `baselines/` that is not what the ledger says of the run that it names.

    Returns:
        None if it agrees, or if the ledger knows no evidence of the run on the suite.
    """
    found = evidence_digest(evidence)
    known = _evidence_on(entries, suite)
    entry = next((one for one in known.values() if one.run == evidence.provenance.run_id), None)
    if found in known or entry is None:
        return None
    told = entry.baseline.digest if isinstance(entry, Saved) else entry.evidence
    return Edited(
        path,
        f"was edited: it holds evidence {found}, and run {entry.run} recorded {told} "
        f"({entry.at:%Y-%m-%d}, ledger entry {entry.name}); restore it, or run it again",
    )


def knows_evidence(entries: Iterable[Dated], suite: str, evidence: Evidence) -> bool:
    """Whether the ledger holds the digest of evidence of a suite."""
    return evidence_digest(evidence) in _evidence_on(entries, suite)


def evidence_place(suite: str) -> str:
    """Where a run's folder keeps its evidence of a suite."""
    return f"evidence/{suite}.json"


def verdict_digest(folder: Path) -> str:
    """Identifies all that a run's `verdict.json` says, as it stands.

    Raises:
        ResultsError: it is missing or damaged.
    """
    return digest(decode(folder / VERDICT_NAME))


def refuse_unrecorded(
    folder: Path, record: RunVerdict, entries: Iterable[Dated], suites: Iterable[str]
) -> None:
    """Refuse to rely on a verdict that the ledger does not bear out.

    Args:
        folder: The run's folder.
        record: Its verdict.
        entries: All that the ledger holds.
        suites: The suites whose verdicts are relied on.

    Raises:
        ResultsError: the ledger has no entry of the run on one of them, an entry of the run is no promotion,
            a later run of the same claim was not promoted, or the verdict or the evidence is not what the run
            recorded.
    """
    path = folder / VERDICT_NAME
    entries = list(entries)
    own = [entry for entry in entries if isinstance(entry, Evaluation) and entry.run == record.run]
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
        for later in entries:
            if isinstance(later, Evaluation) and _withdraws(later, entry):
                raise ResultsError(
                    f"{path}: run {later.run} repeated this test on {entry.suite}::{entry.split} and ended "
                    f"in {later.decision.value} ({later.at:%Y-%m-%d}, ledger entry {later.name}); the worse "
                    "of the two counts"
                )
    for wrong in edited_run(folder, own):
        raise ResultsError(str(wrong))


def _withdraws(later: Evaluation, entry: Evaluation) -> bool:
    """Whether a later verdict on the same claim takes back a promotion."""
    same = ("suite", "split", "lock", "agent", "policy", "goal", "baseline_identity")
    return (
        later.decision is not Decision.PROMOTE
        and later.at > entry.at
        and later.has_verdict
        and later.candidate.digest == entry.candidate.digest
        and all(getattr(later, name) == getattr(entry, name) for name in same)
    )


def _named(entries: Iterable[Dated], suite: str, name: str) -> list[Saved | Evaluation]:
    """What tells a baseline's evidence: saves of it, or else runs that used it; oldest first."""
    known = [
        entry
        for entry in entries
        if isinstance(entry, Saved | Evaluation)
        and (entry.suite, entry.baseline.id) == (suite, name)
        and _evidence_of(entry) is not None
    ]
    saves = [entry for entry in known if isinstance(entry, Saved)]
    return sorted(saves or known, key=lambda entry: (entry.at, entry.name))


def _traces_of(entries: Iterable[Dated], run: str) -> list[Traces]:
    return [entry for entry in entries if isinstance(entry, Traces) and entry.run == run]


def _evidence_on(entries: Iterable[Dated], suite: str) -> dict[str, Saved | Evaluation]:
    """Entries of saves and of gated runs, by the digest of the evidence that was saved or measured."""
    return {
        digest: entry
        for entry in entries
        if isinstance(entry, Saved | Evaluation) and entry.suite == suite
        if (digest := entry.baseline.digest if isinstance(entry, Saved) else entry.evidence)
    }


def _evidence_of(entry: Saved | Evaluation) -> str | None:
    return entry.baseline.digest if isinstance(entry, Saved) else entry.baseline_evidence


def _latest(entries: Iterable[Dated], known: Sequence[Saved | Evaluation]) -> list[Saved | Evaluation]:
    """Those of `known` that no other of them follows: one, or one a branch that was merged."""
    by_name = {entry.name: entry for entry in entries}
    wanted = {entry.name for entry in known}
    followed: set[str] = set()
    for entry in known:
        behind, seen = list(entry.parents), set[str]()
        while behind:
            name = behind.pop()
            if name in seen or name not in by_name:
                continue
            seen.add(name)
            behind += by_name[name].parents
        followed |= seen & wanted
    return [entry for entry in known if entry.name not in followed]
