"""The history of a split: who opened its traces, which candidates were judged, the next test's number."""

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_trace2evolve.errors import SuiteError, nearest
from pytest_trace2evolve.gate.claims import Claim
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.suites import Role
from pytest_trace2evolve.records.ledger import Access, BaselineSave, Draw, Evaluation
from pytest_trace2evolve.session.access_log import Looks


@dataclass(frozen=True)
class SplitHistory:
    """One split's part of the ledger.

    Attributes:
        suite, split: Which split.
        lock: The digest of the suite's lock now; None if it is no longer locked.
        entries: Accesses, draws and evaluations, oldest first.
        informed: Ids of the candidates whose front matter says that their authors had seen the split.
        next_look: The number of the next new candidate's test; None if no clean claim can be made.
    """

    suite: str
    split: str
    lock: str | None
    entries: tuple[Access | Draw | Evaluation, ...]
    informed: tuple[str, ...]
    next_look: int | None


def split_histories(
    project: Project, looks: Looks, suite: str | None = None, split: str | None = None
) -> list[SplitHistory]:
    """The histories of all splits that have one, or of those that were asked for.

    Splits on which claims can be made have one even if nothing has happened.

    Raises:
        SuiteError: no such suite or split, neither locked nor in the ledger.
        CandidateError, LockError: a candidate's file or the lock is broken.
    """
    entries = [entry for entry in looks.entries if isinstance(entry, Access | Draw | Evaluation)]
    locked = {(name, split_name) for name, lock in project.lock.suites.items() for split_name in lock.splits}
    places = locked | {(entry.suite, entry.split) for entry in entries}
    for kind, name, known in (
        ("suite", suite, {place[0] for place in places}),
        ("split", split, {place[1] for place in places if suite in (None, place[0])}),
    ):
        if name is not None and name not in known:
            remedy = nearest(name, known)
            raise SuiteError(f"unknown {kind} {name!r}, neither locked nor in the ledger; {remedy}")
    found = [
        _history(project, looks, place, entries)
        for place in sorted(places)
        if suite in (None, place[0]) and split in (None, place[1])
    ]
    asked = split is not None
    return [
        history
        for history in found
        if asked or history.entries or history.informed or history.next_look is not None
    ]


def _history(
    project: Project, looks: Looks, place: tuple[str, str], entries: Sequence[Access | Draw | Evaluation]
) -> SplitHistory:
    suite, split = place
    lock = project.lock.suites.get(suite)
    known = project.splits.get(split)
    can_claim = lock is not None and split in lock.splits and known is not None and known.role is Role.GATE
    digest = lock.digest if lock else None
    claim = Claim(suite, split, digest or "", "", "", "", "", 0, measured=_latest_baseline(looks, place))
    return SplitHistory(
        suite=suite,
        split=split,
        lock=digest,
        entries=tuple(entry for entry in entries if (entry.suite, entry.split) == place),
        informed=tuple(name for name in project.candidates if project.candidates[name].saw(suite, split)),
        next_look=looks.look(claim).number if can_claim else None,
    )


def _latest_baseline(looks: Looks, place: tuple[str, str]) -> tuple[str, str]:
    """Digests of the candidate and agent of the suite's latest baseline; empty if no draw names them."""
    saved = [entry for entry in looks.entries if isinstance(entry, BaselineSave) and entry.suite == place[0]]
    drawn = [
        (entry.candidate.digest, entry.agent)
        for entry in looks.entries
        if saved
        and isinstance(entry, Draw)
        and (entry.suite, entry.split) == place
        and (entry.run == saved[-1].run or entry.candidate.id == saved[-1].baseline.id)
    ]
    return drawn[-1] if drawn else ("", "")
