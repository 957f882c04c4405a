"""Whether evidence is clean: neither the candidate nor an ancestor was frozen after a look at the split."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple, Protocol

from pytest_trace2evolve.records.ledger import Dated, Evaluation, Seen
from pytest_trace2evolve.records.verdict import Label


class Frozen(Protocol):
    """A candidate as far as labels ask."""

    @property
    def id(self) -> str:
        """Its name."""
        ...

    @property
    def digest(self) -> str:
        """Identifies its text."""
        ...

    @property
    def frozen_at(self) -> date | None:
        """The day after which its text may not change; None where it is not frozen."""
        ...

    def saw(self, suite: str, split: str) -> bool:
        """Whether its front matter says that its author had seen the split."""
        ...


@dataclass(frozen=True)
class SealedSplit:
    """A split whose traces are to stay unread, with the ids of its tasks."""

    suite: str
    split: str
    domain: str
    tasks: Collection[str]

    def shown_by(self, look: Seen) -> bool:
        """Whether a look was at this split: by its name, or at a task that it holds now."""
        if (look.suite, look.split) == (self.suite, self.split):
            return True
        return look.domain == self.domain and look.task in self.tasks


class Labelled(NamedTuple):
    """A label, and why it is no better; the reason is empty where it is clean."""

    label: Label
    reason: str = ""


def label_of(lineage: Sequence[Frozen], split: SealedSplit, entries: Iterable[Dated]) -> Labelled:
    """The label of evidence on a sealed split.

    Args:
        lineage: The candidate and its ancestors.
        split: The split.
        entries: All that the ledger holds; their order does not matter.

    Returns:
        Clean, or development with the first candidate of the lineage that it fails on. A look on the day of
        a freeze counts as before it. A candidate without `frozen_at`, or one that was judged before with
        another text, counts as frozen now.
    """
    entries = list(entries)
    looks = sorted(
        (entry for entry in entries if isinstance(entry, Seen) and split.shown_by(entry)),
        key=lambda look: (look.first_day, look.at, look.name),
    )
    texts: dict[str, set[str]] = {}
    for entry in entries:
        for version in entry.versions if isinstance(entry, Evaluation) else ():
            texts.setdefault(version.id, set()).add(version.digest)
    for candidate in lineage:
        edited = bool(texts.get(candidate.id, set()) - {candidate.digest})
        if reason := _unclean(candidate, split, looks, edited=edited):
            return Labelled(Label.DEVELOPMENT, reason)
    return Labelled(Label.CLEAN)


def _unclean(candidate: Frozen, split: SealedSplit, looks: Sequence[Seen], *, edited: bool) -> str:
    """Why a candidate's evidence on a split is not clean; empty where it is."""
    if candidate.saw(split.suite, split.split):
        return f"candidate {candidate.id} was informed by {split.suite}::{split.split}"
    frozen = candidate.frozen_at
    if not looks or not (edited or frozen is None or looks[0].first_day <= frozen):
        return ""
    seen = (
        f"traces of {split.suite}::{split.split} were looked at (task {looks[0].task}, {looks[0].first_day})"
    )
    if edited:
        return f"{seen}, and candidate {candidate.id} was changed after it had been judged: give it a new id"
    if frozen is None:
        return f"{seen}, and candidate {candidate.id} is not frozen: it has no frozen_at"
    return f"{seen}, and candidate {candidate.id} was frozen on {frozen}, not before"
