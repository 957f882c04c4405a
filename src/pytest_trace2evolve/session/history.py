"""The story of a split: who looked at what, which candidate was judged when, what the next would test at."""

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_trace2evolve.errors import SuiteError, nearest
from pytest_trace2evolve.gate.alpha_spending import Claim
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.suites import Role
from pytest_trace2evolve.records.ledger import Draw, Evaluation, Saved, Seen
from pytest_trace2evolve.session.access_log import Looks


@dataclass(frozen=True)
class Story:
    """One split's part of the ledger.

    Attributes:
        suite, split: Which split.
        lock: The digest of the suite's lock now; None where it is no longer locked.
        entries: Accesses, draws and evaluations, oldest first.
        informed: Ids of the candidates whose front matter says that their authors had seen the split.
        next_look: The number of the next new candidate that claims clean; None where no claim can be made.
    """

    suite: str
    split: str
    lock: str | None
    entries: tuple[Seen | Draw | Evaluation, ...]
    informed: tuple[str, ...]
    next_look: int | None


def stories(
    project: Project, looks: Looks, suite: str | None = None, split: str | None = None
) -> list[Story]:
    """The stories of all splits that have one, or of those that were asked for.

    Splits that can be claimed on have one even where nothing has happened.

    Raises:
        SuiteError: no such suite or split, neither locked nor in the ledger.
        CandidateError, LockError: a candidate's file or the lock is broken.
    """
    entries = [entry for entry in looks.entries if isinstance(entry, Seen | Draw | Evaluation)]
    locked = {(name, one) for name, lock in project.lock.suites.items() for one in lock.splits}
    places = locked | {(entry.suite, entry.split) for entry in entries}
    _refuse_unknown(suite, {name for name, _ in places}, "suite")
    _refuse_unknown(split, {one for name, one in places if suite in (None, name)}, "split")
    found = [
        _story(project, looks, place, entries)
        for place in sorted(places)
        if suite in (None, place[0]) and split in (None, place[1])
    ]
    asked = split is not None
    return [one for one in found if asked or one.entries or one.informed or one.next_look is not None]


def _story(
    project: Project, looks: Looks, place: tuple[str, str], entries: Sequence[Seen | Draw | Evaluation]
) -> Story:
    suite, split = place
    lock = project.lock.suites.get(suite)
    known = project.splits.get(split)
    claims = lock is not None and split in lock.splits and known is not None and known.role is Role.GATE
    claim = Claim(
        suite, split, lock.digest if lock else "", "", "", "", "", 0, measured=_latest_baseline(looks, place)
    )
    return Story(
        suite=suite,
        split=split,
        lock=lock.digest if lock else None,
        entries=tuple(entry for entry in entries if (entry.suite, entry.split) == place),
        informed=tuple(name for name in project.candidates if project.candidates[name].saw(suite, split)),
        next_look=looks.look(claim).number if claims else None,
    )


def _latest_baseline(looks: Looks, place: tuple[str, str]) -> tuple[str, str]:
    """Whose the suite's latest baseline is: digests of candidate and agent; empty if no draw tells."""
    saved = [entry for entry in looks.entries if isinstance(entry, Saved) and entry.suite == place[0]]
    drawn = [
        (entry.candidate.digest, entry.agent)
        for entry in looks.entries
        if saved
        and isinstance(entry, Draw)
        and (entry.suite, entry.split) == place
        and (entry.run == saved[-1].run or entry.candidate.id == saved[-1].baseline.id)
    ]
    return drawn[-1] if drawn else ("", "")


def _refuse_unknown(name: str | None, known: set[str], what: str) -> None:
    if name is not None and name not in known:
        raise SuiteError(f"unknown {what} {name!r}, neither locked nor in the ledger; {nearest(name, known)}")
