"""The differences of two databases: none if and only if they are equal, and exactly the changed places."""

import copy
from collections.abc import Iterator
from datetime import date
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from pytest_trace2evolve.records.failure import ABSENT, DatabasePath
from pytest_trace2evolve.scoring.differences import find_differences
from pytest_trace2evolve.worlds.copy_on_write import OverlayDatabase, WriteMode, fingerprint, is_equal

ATOMS = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=True) | st.text(max_size=4)
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


class Booking(BaseModel):
    status: str = "confirmed"
    day: date | None = None
    rooms: list[str] = []


class Hotel(BaseModel):
    bookings: dict[str, Booking]
    guests: dict[str, dict[str, Any]] = {}
    log: list[str] = []


def found(expected: object, actual: object) -> list[tuple[DatabasePath, Any, Any]]:
    return [(one.path, one.expected, one.actual) for one in find_differences(expected, actual)]


def places(value: Any, path: DatabasePath = ()) -> Iterator[DatabasePath]:
    """The places of all atoms and empty containers in a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    pairs = list(items)
    if not pairs:
        yield path
    for key, item in pairs:
        yield from places(item, (*path, key))


def changed(value: Any, path: DatabasePath, new: Any) -> Any:
    if not path:
        return new
    copied = copy.copy(value)
    copied[path[0]] = changed(value[path[0]], path[1:], new)
    return copied


@given(VALUES, VALUES)
def test_there_are_differences_if_and_only_if_the_fingerprints_differ(left: Any, right: Any) -> None:
    assert (found(left, right) == []) == (fingerprint(left) == fingerprint(right))
    assert found(left, copy.deepcopy(left)) == []


@given(st.data(), VALUES)
def test_exactly_the_changed_places_are_named(data: st.DataObject, value: Any) -> None:
    chosen = data.draw(st.lists(st.sampled_from(sorted(places(value), key=repr)), max_size=3, unique=True))
    actual = value
    for index, path in enumerate(chosen):
        actual = changed(actual, path, f"changed {index}")
    assert {path for path, _, _ in found(value, actual)} == set(chosen)


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4), st.text(max_size=3), VALUES)
def test_an_added_and_a_removed_record_are_absent_on_one_side(
    tables: dict[str, Any], key: str, record: Any
) -> None:
    without = {name: value for name, value in tables.items() if name != key}
    assert found(without, {**without, key: record}) == [((key,), ABSENT, record)]
    assert found({**without, key: record}, without) == [((key,), record, ABSENT)]


def test_models_are_compared_by_their_fields() -> None:
    expected = Hotel(bookings={"B1": Booking(status="cancelled", day=date(2026, 1, 2))})
    actual = Hotel(bookings={"B1": Booking(day=date(2026, 1, 3))})
    assert found(expected, actual) == [
        (("bookings", "B1", "status"), "cancelled", "confirmed"),
        (("bookings", "B1", "day"), date(2026, 1, 2), date(2026, 1, 3)),
    ]


WRITES = st.lists(
    st.tuples(st.sampled_from(["B0", "B1", "B2", "new"]), st.sampled_from(["confirmed", "cancelled", None])),
    max_size=4,
)


@given(WRITES, WRITES)
def test_overlays_differ_where_they_were_written_differently(
    left: list[tuple[str, str | None]], right: list[tuple[str, str | None]]
) -> None:
    hotel = Hotel(bookings={f"B{number}": Booking() for number in range(3)}, log=["start"])
    views = []
    for writes in (left, right):
        mode = WriteMode()
        view: Any = OverlayDatabase(hotel, mode)
        with mode.enable():
            for key, status in writes:
                if status is None:
                    view.bookings.pop(key, None)
                elif key in view.bookings:
                    view.bookings[key].status = status
                else:
                    view.bookings[key] = Booking(status=status)
                view.log.append(key)
        views.append(view)
    expected, actual = views
    differences = found(expected.contents(), actual.contents())
    assert (differences == []) == is_equal(expected, actual)
    plain = [view.contents() | {"bookings": dict(view.contents()["bookings"])} for view in views]
    assert differences == found(*copy.deepcopy(plain))
