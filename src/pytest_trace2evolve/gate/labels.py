"""Whether evidence is clean: no candidate of the lineage was frozen after a sealed trace was accessed."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple, Protocol

from pytest_trace2evolve.records.ledger import Dated, Evaluation, Seen
from pytest_trace2evolve.records.verdict import Label


class FrozenCandidate(Protocol):
    """A candidate as far as its label depends on it."""

    @property
    def id(self) -> str:
        """Its name."""

    @property
    def digest(self) -> str:
        """Identifies its text."""

    @property
    def frozen_at(self) -> date | None:
        """The day after which its text may not change; None if it is not frozen."""

    def saw(self, suite: str, split: str) -> bool:
        """Whether its front matter says that its author had seen the split."""


@dataclass(frozen=True)
class SealedSplit:
    """A split whose traces are to stay unread, with the ids of its tasks."""

    suite: str
    split: str
    domain: str
    tasks: Collection[str]

    def shown_by(self, access: Seen) -> bool:
        """Whether an access was to this split: by its name, or to a task that it holds now."""
        if (access.suite, access.split) == (self.suite, self.split):
            return True
        return access.domain == self.domain and access.task in self.tasks


class EvidenceLabel(NamedTuple):
    """A label, and why it is no better; the reason is empty if it is clean."""

    label: Label
    reason: str = ""


def label_of(
    lineage: Sequence[FrozenCandidate], split: SealedSplit, entries: Iterable[Dated]
) -> EvidenceLabel:
    """The label of evidence on a sealed split.

    Args:
        lineage: The candidate and its ancestors.
        split: The split.
        entries: All entries of the ledger, in any order.

    Returns:
        Clean, or development with the first candidate of the lineage that it fails on. An access on the day
        of a freeze counts as before it. A candidate without `frozen_at`, or one that was judged before with
        another text, counts as frozen now.
    """
    entries = list(entries)
    accesses = sorted(
        (entry for entry in entries if isinstance(entry, Seen) and split.shown_by(entry)),
        key=lambda access: (access.first_day, access.at, access.name),
    )
    versions = [version for entry in entries if isinstance(entry, Evaluation) for version in entry.versions]
    for candidate in lineage:
        edited = any(one.id == candidate.id and one.digest != candidate.digest for one in versions)
        if reason := _unclean(candidate, split, accesses, edited=edited):
            return EvidenceLabel(Label.DEVELOPMENT, reason)
    return EvidenceLabel(Label.CLEAN)


def _unclean(
    candidate: FrozenCandidate, split: SealedSplit, accesses: Sequence[Seen], *, edited: bool
) -> str:
    """Why a candidate's evidence on a split is not clean; empty if it is."""
    name, frozen = f"{split.suite}::{split.split}", candidate.frozen_at
    if candidate.saw(split.suite, split.split):
        return f"candidate {candidate.id} was informed by {name}"
    if not accesses or not (edited or frozen is None or accesses[0].first_day <= frozen):
        return ""
    seen = f"traces of {name} were looked at (task {accesses[0].task}, {accesses[0].first_day})"
    if edited:
        return f"{seen}, and candidate {candidate.id} was changed after it had been judged: give it a new id"
    if frozen is None:
        return f"{seen}, and candidate {candidate.id} is not frozen: it has no frozen_at"
    return f"{seen}, and candidate {candidate.id} was frozen on {frozen}, not before"
