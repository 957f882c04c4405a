"""Invariants in a world whose tools answer with records: identification by a path, and created records."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.rules import Rules, Writing, id_at, record_at
from tests.inn_world import RULES, Reception

PROPOSAL = "I would book room 14 for three nights. Shall I?"


def known() -> Reception:
    """Ada asked for a room and is identified."""
    return Reception().hear("I am ada@example.org and need a room.").identify()


def booked() -> Reception:
    """Ada has the new booking B102."""
    return known().agree(PROPOSAL).book()


# Identification by a path.


def test_a_record_identifies_the_customer() -> None:
    desk = known().call("get_booking", booking_id="B100")
    assert desk.found() == []
    desk.call("get_booking", booking_id="B101")
    assert desk.found() == [("other_customers", "get_booking of 'B101', which is '8''s, not '7''s")]


def test_the_record_that_identifies_a_customer_is_read() -> None:
    desk = (
        known().agree("Shall I change your name to Ada Lee?").call("rename_guest", guest_id=7, name="Ada Lee")
    )
    assert desk.kinds() == []
    plain = RULES.model_copy(update={"identify": {"find_guest": ""}})
    assert desk.kinds(plain) == ["read_before_write"]


def _dumped() -> dict[str, object]:
    found: dict[str, object] = json.loads(RULES.model_dump_json())
    return found


def test_rules_survive_their_json() -> None:
    assert Rules.model_validate(_dumped()) == RULES


# Created records.


def test_a_booking_with_consent_breaks_nothing() -> None:
    assert booked().found() == []


@pytest.mark.parametrize(
    ("desk", "kind"),
    [
        (lambda: Reception().hear("A room, please.").agree(PROPOSAL).book(), "authentication"),
        (lambda: known().book(), "consent"),
        (lambda: known().agree(PROPOSAL, "No, thank you.").book(), "consent"),
        (lambda: known().agree("Shall I cancel your stay?").book(), "consent"),
        (lambda: known().agree(PROPOSAL).book(guest_id=8), "other_customers"),
    ],
)
def test_what_a_booking_breaks(desk: Callable[[], Reception], kind: str) -> None:
    assert desk().kinds() == [kind]


def test_a_new_booking_is_read_and_has_an_owner_and_a_status() -> None:
    desk = booked().agree("Shall I cancel booking B102?").call("cancel_booking", booking_id="B102")
    assert desk.kinds() == []
    desk.agree("Shall I cancel booking B102 again?").call("cancel_booking", booking_id="B102")
    assert desk.found() == [
        ("eligibility", "cancel_booking of 'B102', whose status was 'cancelled' when last seen")
    ]
    for_bo = known().agree(PROPOSAL).book(guest_id=8)
    for_bo.agree("Shall I cancel booking B102?").call("cancel_booking", booking_id="B102")
    assert for_bo.kinds() == ["other_customers", "other_customers"]


def test_a_write_may_need_neither_identity_nor_consent() -> None:
    desk = Reception().hear("I have no account.").call("register_guest", email="cy@example.org")
    assert desk.kinds() == []
    assert desk.agree(PROPOSAL).book(guest_id=9).kinds() == [], "the new guest is the customer"


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("I have booked room 14; your booking is B102.", []),
        ("Booking B102 has been booked.", []),
        ("Your booking B999 has been reserved.", ["promises"]),
    ],
)
def test_a_promise_is_true_of_the_record_that_was_created(text: str, kinds: list[str]) -> None:
    assert booked().say(text).kinds() == kinds
    assert known().say(text).kinds() == ["promises"]


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({}, "name the argument that holds the record's id, or set creates"),
        ({"argument": "a", "id_path": "b"}, "id_path 'b': allowed only for a tool that creates a record"),
        ({"creates": True, "argument": "a", "id_path": "b"}, "id_path 'b': allowed only for a tool that"),
        ({"creates": True, "statuses": {"open"}}, "a record has no status before it is created"),
    ],
)
def test_a_write_that_contradicts_itself_is_refused(declared: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Writing.model_validate({"table": "t", "named": ("do",), **declared})


# The labeller of capabilities.


# Results.


@pytest.mark.parametrize(
    ("text", "path", "found"),
    [
        ("mei_1", "", "mei_1"),
        (" 17 ", "", "17"),
        ('{"id": "a"}', "", None),
        ("[1]", "", None),
        ("", "", None),
        ('{"id": "a"}', "id", "a"),
        ('{"guest": {"id": 7}}', "guest.id", "7"),
        ('[{"id": "a"}, {"id": "b"}]', "1.id", "b"),
        ('{"guest": {"id": true}}', "guest.id", None),
        ('{"guest": {"id": 1.5}}', "guest.id", None),
        ('{"guest": {"id": ""}}', "guest.id", None),
        ('{"guest": null}', "guest.id", None),
        ('{"guest": {"id": "a"}}', "guest", None),
        ("[]", "0.id", None),
        ("no JSON", "id", None),
    ],
)
def test_the_id_at_a_path(text: str, path: str, found: str | None) -> None:
    assert id_at(text, path) == found


_KEYS = st.text(st.characters(blacklist_characters=".", blacklist_categories=("Cs",)), min_size=1, max_size=4)


@given(st.lists(_KEYS, min_size=1, max_size=4), st.text(min_size=1) | st.integers(), st.integers(0, 3))
def test_an_id_is_found_wherever_it_lies(keys: list[str], value: str | int, others: int) -> None:
    document: object = value
    for key in reversed(keys):
        document = {key: document, **{f"{key}.{number}": number for number in range(others)}}
    text = json.dumps(document)
    assert id_at(text, ".".join(keys)) == str(value)
    parent = record_at(text, ".".join(keys))
    assert parent is not None
    assert parent[keys[-1]] == value


@given(st.text(max_size=60), st.text(max_size=12))
def test_any_text_and_any_path_have_an_id_or_none(text: str, path: str) -> None:
    found = id_at(text, path)
    assert found is None or found


# Rules that once crashed or matched everything.


def test_an_invalid_pattern_is_one_line() -> None:
    rules = RULES.model_copy(update={"ids": {"bookings": "B(\\d"}})
    with pytest.raises(
        WorldError, match=r"ids\['bookings'\] of the world's rules: 'B\(\\\\d' is not a regular"
    ):
        booked().say("I have booked B102.").found(rules)
