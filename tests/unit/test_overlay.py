"""Overlays: shared records for readers, private copies for writers, and a base that stays as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel

from pytest_trace2evolve.worlds.overlay import Access, OverlayDatabase, clone, fingerprint


class Size(Enum):
    SMALL = "s"


class Record(BaseModel):
    name: str
    price: float = 1.0
    tags: list[str] = []
    options: dict[str, Any] = {}


class Nested(BaseModel):
    data: dict[str, dict[str, Any]] = {}


class Shop(BaseModel):
    users: dict[str, Record]
    rows: list[Record]
    nested: Nested = Nested()
    version: str = "1"


@pytest.fixture
def shop() -> Shop:
    return Shop(
        users={"a": Record(name="A", tags=["x"]), "b": Record(name="B")},
        rows=[Record(name="R0"), Record(name="R1")],
        nested=Nested(data={"n": {"cell": [1]}}),
    )


class View:
    """An overlay together with its access."""

    def __init__(self, base: Shop) -> None:
        self.access = Access()
        self.db: Any = OverlayDatabase(base, self.access)

    @contextmanager
    def writing(self) -> Iterator[Any]:
        self.access.writing = True
        yield self.db
        self.access.writing = False


def test_reading_hands_out_the_shared_record(shop: Shop) -> None:
    db = View(shop).db
    assert db.users["a"] is shop.users["a"]
    assert db.rows[0] is shop.rows[0]
    assert db.nested.data["n"] is shop.nested.data["n"]


def test_writing_copies_only_the_record_it_reaches(shop: Shop) -> None:
    view = View(shop)
    with view.writing() as db:
        db.users["a"].tags.append("y")
        db.rows[-1].name = "changed"
    assert view.db.users["a"] is not shop.users["a"]
    assert view.db.rows[1] is not shop.rows[1]
    assert view.db.users["b"] is shop.users["b"]
    assert view.db.rows[0] is shop.rows[0]


def test_a_record_is_copied_once_and_keeps_its_changes(shop: Shop) -> None:
    view = View(shop)
    with view.writing() as db:
        first = db.users["a"]
        first.price = 9.0
        assert db.users["a"] is first
    assert view.db.users["a"] is first
    assert view.db.users["a"].price == 9.0


def test_changes_all_the_way_down_leave_the_base_as_it_was(shop: Shop) -> None:
    before = shop.model_dump_json()
    view = View(shop)
    with view.writing() as db:
        db.users["a"].tags.append("y")
        db.users["b"].options["new"] = {"deep": []}
        db.nested.data["n"]["cell"].append(2)
        del db.users["a"]
        db.rows.insert(0, Record(name="first"))
        db.version = "2"
    assert shop.model_dump_json() == before


def test_touched_names_every_record_reached_and_no_other(shop: Shop) -> None:
    view = View(shop)
    assert view.access.touched == set()
    _ = view.db.users["a"], view.db.nested.data["n"], view.db.rows[1]
    assert view.access.touched == {"users/a", "nested.data/n", "rows/1"}
    view.db.users["new"] = Record(name="N")
    assert "users/new" in view.access.touched


def test_a_reader_that_scans_a_table_reaches_no_record(shop: Shop) -> None:
    view = View(shop)
    assert [key for key, _ in view.db.users.items()] == ["a", "b"]
    assert all(
        mine is theirs for mine, theirs in zip(view.db.users.values(), shop.users.values(), strict=True)
    )
    assert "a" in view.db.users
    assert view.access.touched == set()


def test_a_writer_that_scans_a_table_gets_copies(shop: Shop) -> None:
    view = View(shop)
    with view.writing() as db:
        for record in db.users.values():
            record.price = 5.0
    assert [record.price for record in shop.users.values()] == [1.0, 1.0]
    assert [record.price for record in view.db.users.values()] == [5.0, 5.0]


def test_a_deleted_record_is_gone(shop: Shop) -> None:
    users = View(shop).db.users
    del users["a"]
    assert "a" not in users
    assert list(users) == ["b"]
    assert len(users) == 1
    with pytest.raises(KeyError, match="a"):
        _ = users["a"]
    with pytest.raises(KeyError, match="a"):
        del users["a"]


def test_a_record_put_back_after_deletion_comes_last_as_in_a_dict(shop: Shop) -> None:
    overlay, plain = View(shop).db.users, dict(shop.users)
    for table in (overlay, plain):
        record = table.pop("a")
        table["a"] = record
    assert list(plain) == ["b", "a"]
    assert list(overlay) == list(plain)


def test_an_unknown_key_or_index_raises_as_in_a_dict_or_list(shop: Shop) -> None:
    db = View(shop).db
    with pytest.raises(KeyError, match="zzz"):
        _ = db.users["zzz"]
    with pytest.raises(IndexError):
        _ = db.rows[2]
    assert db.users.get("zzz") is None


def test_a_slice_of_a_list_gives_private_records_to_a_writer(shop: Shop) -> None:
    with View(shop).writing() as db:
        for record in db.rows[:]:
            record.name = "mine"
        assert [record.name for record in db.rows] == ["mine", "mine"]
    assert [record.name for record in shop.rows] == ["R0", "R1"]


def test_two_untouched_views_are_the_same(shop: Shop) -> None:
    assert View(shop).db.same_as(View(shop).db)


def test_views_differ_where_an_integer_stands_for_a_float(shop: Shop) -> None:
    one, other = View(shop), View(shop)
    with one.writing() as db:
        db.users["a"].price = 1
    assert fingerprint(one.db.users["a"]) != fingerprint(other.db.users["a"])
    assert not one.db.same_as(other.db)
    assert not other.db.same_as(one.db)


def test_the_order_of_keys_does_not_tell_views_apart(shop: Shop) -> None:
    views = View(shop), View(shop)
    for view, keys in zip(views, ("xy", "yx"), strict=True):
        with view.writing() as db:
            db.nested.data["n"] = dict.fromkeys(keys, 1)
            for key in keys:
                db.users[key] = Record(name=key)
    assert views[0].db.same_as(views[1].db)


@pytest.mark.parametrize("other", [None, {}, "text", 1])
def test_a_view_is_never_the_same_as_something_else(shop: Shop, other: object) -> None:
    db = View(shop).db
    assert not db.same_as(other)
    assert not db.users.same_as(other)
    assert not db.rows.same_as(other)


def test_views_that_differ_by_a_deletion_alone_differ(shop: Shop) -> None:
    shorter, other = View(shop), View(shop)
    del shorter.db.users["a"]
    assert not shorter.db.same_as(other.db)
    assert not other.db.same_as(shorter.db)
    del other.db.users["a"]
    assert shorter.db.same_as(other.db)


def test_views_with_other_fields_or_lengths_differ(shop: Shop) -> None:
    longer, renamed = View(shop), View(shop)
    longer.db.rows.append(Record(name="R2"))
    renamed.db.version = "2"
    assert not longer.db.same_as(View(shop).db)
    assert not renamed.db.same_as(View(shop).db)


def test_a_clone_is_equal_and_shares_no_mutable_part() -> None:
    inner = Record(name="A", tags=["x"], options={"deep": [{"k": 1}]})
    copied = clone({"record": inner, "list": [inner], "size": Size.SMALL})
    assert copied == {"record": inner, "list": [inner], "size": Size.SMALL}
    copied["record"].options["deep"][0]["k"] = 2
    copied["list"][0].tags.append("y")
    assert inner == Record(name="A", tags=["x"], options={"deep": [{"k": 1}]})
    assert copied["size"] is Size.SMALL
