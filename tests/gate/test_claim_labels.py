"""When evidence is clean: freezes against looks."""

from dataclasses import dataclass, field
from datetime import UTC, date, datetime

import pytest

from pytest_trace2evolve.gate.claims import SealedSplit, label_of
from pytest_trace2evolve.records.ledger import ContentVersion, DatedEntry
from pytest_trace2evolve.records.verdict import Goal, Label
from tests.ledger_helpers import judged, seen

SPLIT = SealedSplit("desk", "heldout", "desk", {"close", "note"})
LOOKED = "traces of desk::heldout were read (task close, 2026-11-20), and candidate "


@dataclass(frozen=True)
class Made:
    id: str = "v1"
    frozen_at: date | None = None
    digest: str = "text of v1"
    places: frozenset[str] = field(default=frozenset())

    def has_seen(self, suite: str, split: str) -> bool:
        return f"{suite}::{split}" in self.places


def output_of(entries: list[DatedEntry], *lineage: Made) -> str:
    """The reason; empty where the evidence is clean."""
    label, reason = label_of(lineage, SPLIT, entries)
    assert (label is Label.CLEAN) is not bool(reason)
    assert label in (Label.CLEAN, Label.DEVELOPMENT)
    return reason


def test_without_a_look_anything_is_clean() -> None:
    assert output_of([], Made(), Made("v0")) == ""
    assert output_of([judged()], Made()) == ""


@pytest.mark.parametrize(
    ("frozen", "reason"),
    [
        (date(2026, 11, 19), ""),
        (date(2026, 11, 20), LOOKED + "v1 was frozen on 2026-11-20, not before"),
        (date(2026, 11, 21), LOOKED + "v1 was frozen on 2026-11-21, not before"),
        (None, LOOKED + "v1 is not frozen: it has no frozen_at"),
    ],
)
def test_a_candidate_must_have_been_frozen_the_day_before_the_look(frozen: date | None, reason: str) -> None:
    assert output_of([seen()], Made(frozen_at=frozen)) == reason


@pytest.mark.parametrize(
    ("moment", "day", "clean"),
    [
        # Half past ten in the evening in California, the next morning in UTC: still the day of the freeze.
        (datetime(2026, 11, 21, 6, 30, tzinfo=UTC), date(2026, 11, 20), False),
        # Early on the 21st in Tokyo, still the 20th in UTC.
        (datetime(2026, 11, 20, 20, 0, tzinfo=UTC), date(2026, 11, 21), False),
        (datetime(2026, 11, 21, 0, 0, tzinfo=UTC), date(2026, 11, 21), True),
    ],
)
def test_the_day_of_a_look_is_the_earlier_of_both_calendars(moment: datetime, day: date, clean: bool) -> None:
    assert (output_of([seen(moment, day=day)], Made(frozen_at=date(2026, 11, 20))) == "") is clean


def test_an_ancestor_that_is_not_frozen_counts_too() -> None:
    frozen = Made("v2", date(2026, 11, 1), "text of v2")
    assert output_of([seen()], frozen, Made()) == LOOKED + "v1 is not frozen: it has no frozen_at"
    assert output_of([seen()], frozen, Made(frozen_at=date(2026, 11, 1))) == ""


def test_the_front_matter_says_who_was_informed() -> None:
    parent = Made("v0", date(2026, 11, 1), places=frozenset({"desk::heldout"}))
    assert output_of([], Made("v1"), parent) == "candidate v0 was informed by desk::heldout"
    other = Made("v0", date(2026, 11, 1), places=frozenset({"desk::development"}))
    assert output_of([], Made("v1"), other) == ""


def test_a_candidate_that_was_judged_with_another_text_is_a_new_one() -> None:
    frozen = Made(frozen_at=date(2026, 11, 1))
    edited = LOOKED + "v1 was changed after it had been judged: give it a new id"
    assert output_of([seen(), judged(text="another")], frozen) == edited
    assert output_of([seen(), judged(text="another", goal=Goal.HOLD)], frozen) == edited
    assert (
        output_of([seen(), judged(name="v9", ancestors=(ContentVersion(id="v1", digest="x"),))], frozen)
        == edited
    )
    assert output_of([seen(), judged()], frozen) == ""
    assert output_of([judged(text="another")], frozen) == "", "nobody looked: there was nothing to learn"


@pytest.mark.parametrize(
    ("look", "clean"),
    [
        ({"suite": "desk", "split": "heldout", "task": "gone"}, False),
        ({"suite": "desk", "split": "development", "task": "other"}, True),
        ({"suite": "more", "split": "heldout", "task": "other"}, True),
        # The same task in another suite or split of the domain.
        ({"suite": "more", "split": "development", "task": "note"}, False),
        ({"suite": "more", "split": "heldout", "task": "note", "domain": "shop"}, True),
    ],
)
def test_a_look_counts_for_its_split_and_for_its_task(look: dict[str, str], clean: bool) -> None:
    assert (output_of([seen(**look)], Made()) == "") is clean
