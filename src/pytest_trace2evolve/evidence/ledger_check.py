"""What is wrong among entries whose files are as they were written: pure, so that laws can be tested."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from pytest_trace2evolve.records.ledger import Dated, Evaluation


def problems_among(
    entries: Mapping[str, Dated],
    roots: Collection[str],
    root: str | None,
    present: Collection[str],
    latest: datetime,
) -> dict[str, str]:
    """The problems by the name of the entry that has them, one each.

    Args:
        entries: The entries whose content is that of their names.
        roots: The names of all roots in the folder.
        root: The root that is this project's.
        present: The names of all files, the damaged ones too: those are named already.
        latest: An entry dated later is dated in the future.
    """
    found: dict[str, str] = {}
    for name in roots:
        if name != root:
            found[name] = f"is the root of another ledger, and this project's is {root}; remove it"
    own = {name: entry for name, entry in entries.items() if entry.root == root}
    for name in entries.keys() - own.keys():
        other = entries[name].root
        found[name] = f"belongs to the ledger of root {other}, and this project's root is {root}; remove it"
    # The next entry of a machine with the right time says that their dates are wrong: the harm ends there.
    ahead = ahead_of_their_time(own)
    for name, entry in sorted(own.items()):
        for parent in sorted({entry.root, *entry.parents}):
            if parent not in present:
                found[parent] = f"was deleted, and entry {name} names it; restore it from git"
            elif parent in own and own[parent].at >= entry.at and parent not in entry.ahead:
                found.setdefault(name, _back_dated(entry, parent, own[parent]))
        if entry.at > latest and name not in ahead:
            found.setdefault(
                name, f"is dated {_told(entry.at)}, in the future; set the clock, or restore it from git"
            )
    return found | _replayed(own, found)


def ahead_of_their_time(entries: Mapping[str, Dated]) -> dict[str, datetime]:
    """The entries that are dated after a later one, and when each was written at the earliest.

    A later entry lists those among its parents. What the same run wrote before them is dated by the same
    clock.
    """
    found: set[str] = set()
    for entry in entries.values():
        wrong = set[str]()
        behind = [parent for parent in entry.ahead if parent in entry.parents and parent in entries]
        while behind:
            name = behind.pop()
            wrong.add(name)
            before = {one for one in entries[name].parents if one in entries} - wrong
            behind += [one for one in before if entries[one].at > entry.at and _one_run(entries, name, one)]
        found |= wrong
    start = datetime.min.replace(tzinfo=UTC)
    earliest: dict[str, datetime] = {}
    for name in sorted(found, key=lambda one: (entries[one].at, one)):
        before = {one for one in entries[name].parents if one in entries}
        earliest[name] = max((earliest.get(one, entries[one].at) for one in before), default=start)
    return earliest


def _one_run(entries: Mapping[str, Dated], *names: str) -> bool:
    runs = {getattr(entries[name], "run", None) for name in names}
    return len(runs) == 1 and None not in runs


def _back_dated(entry: Dated, parent: str, before: Dated) -> str:
    dates = f"is dated {_told(entry.at)}, not after its parent {parent} ({_told(before.at)})"
    return f"{dates}; restore it from git"


def _replayed(entries: Mapping[str, Dated], found: Collection[str]) -> dict[str, str]:
    """Evaluations of a split of a run that another entry holds already."""
    first: dict[tuple[str, str, str], str] = {}
    again: dict[str, str] = {}
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].at, item[0])):
        if not isinstance(entry, Evaluation):
            continue
        key = (entry.run, entry.suite, entry.split)
        if key in first and name not in found:
            what = f"run {entry.run} on {entry.suite}::{entry.split}"
            again[name] = f"records {what} again, after {first[key]}; remove it"
        first.setdefault(key, name)
    return again


def _told(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
