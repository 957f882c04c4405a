"""Overlays: under any operations they equal a deep copy of the base, and they copy only what is written."""

import contextlib
import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from pytest_trace2evolve.worlds.copy_on_write import OverlayDatabase, WriteMode


class Record(BaseModel):
    name: str
    price: float = 0.0
    tags: list[str] = []
    options: dict[str, Any] = {}


class Nested(BaseModel):
    data: dict[str, dict[str, Any]] = {}
    notes: str = ""


class Shop(BaseModel):
    users: dict[str, Record] = {}
    rows: list[Record] = []
    nested: Nested = Nested()
    version: str | int = "1"


KEYS = st.sampled_from("abcd")
INDICES = st.integers(-4, 4)
SCALARS = st.sampled_from([0, 1, 1.0, 2.5, True, None, "", "1", "é"])
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=2), st.dictionaries(KEYS, SCALARS, max_size=2))
CELLS = st.dictionaries(KEYS, VALUES, max_size=2)
RECORDS = st.builds(
    Record,
    name=st.sampled_from(["A", "B"]),
    price=st.sampled_from([0.0, 1.0]),
    tags=st.lists(st.sampled_from("xy"), max_size=2),
    options=st.dictionaries(KEYS, VALUES, max_size=2),
)
SHOPS = st.builds(
    Shop,
    users=st.dictionaries(KEYS, RECORDS, max_size=3),
    rows=st.lists(RECORDS, max_size=3),
    nested=st.builds(
        Nested, data=st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=2), max_size=2)
    ),
)

Operation = tuple[Any, ...]
READS: st.SearchStrategy[Operation] = st.one_of(
    st.tuples(st.just("user"), KEYS),
    st.tuples(st.just("row"), INDICES),
    st.tuples(st.just("cells"), KEYS),
    st.tuples(st.just("slice"), INDICES, INDICES),
    st.tuples(st.just("scan")),
    st.tuples(st.just("sizes")),
    st.tuples(st.just("has"), KEYS),
)
WRITES: st.SearchStrategy[Operation] = st.one_of(
    st.tuples(st.just("price"), KEYS, st.sampled_from([0, 0.0, 1, 1.0, 2.5])),
    st.tuples(st.just("tag"), KEYS, st.sampled_from("xy")),
    st.tuples(st.just("option"), KEYS, KEYS, VALUES),
    st.tuples(st.just("put"), KEYS, RECORDS),
    st.tuples(st.just("drop"), KEYS),
    st.tuples(st.just("default"), KEYS, RECORDS),
    st.tuples(st.just("cell"), KEYS, KEYS, VALUES),
    st.tuples(st.just("new cells"), KEYS, CELLS),
    st.tuples(st.just("row price"), INDICES, st.sampled_from([0, 0.0, 1.0])),
    st.tuples(st.just("row set"), INDICES, RECORDS),
    st.tuples(st.just("row insert"), INDICES, RECORDS),
    st.tuples(st.just("row drop"), INDICES),
    st.tuples(st.just("reverse")),
    st.tuples(st.just("raise all"), st.sampled_from([1, 1.0])),
    st.tuples(st.just("version"), st.sampled_from(["1", "2", 1])),
)


READ_NAMES = frozenset({"user", "row", "cells", "slice", "scan", "sizes", "has"})


def read(db: Any, operation: Operation) -> Any:
    """What a reader sees, as plain data."""
    match operation:
        case ("user", key):
            return db.users[key].model_dump()
        case ("row", index):
            return db.rows[index].model_dump()
        case ("cells", key):
            return copy.deepcopy(db.nested.data[key])
        case ("slice", start, stop):
            return [record.model_dump() for record in db.rows[start:stop]]
        case ("scan",):
            users = {key: record.model_dump() for key, record in db.users.items()}
            cells = [dict(value) for value in db.nested.data.values()]
            return users, sorted(map(repr, cells)), [record.model_dump() for record in db.rows]
        case ("sizes",):
            return len(db.users), len(db.rows), len(db.nested.data), set(db.users), set(db.nested.data)
        case ("has", key):
            return key in db.users, key in db.nested.data, db.users.get(key) is None
    raise NotImplementedError(operation)


def write(db: Any, operation: Operation) -> None:
    """One change; each call gets its own copies of the values, as two databases share none."""
    match copy.deepcopy(operation):
        case ("price", key, value):
            db.users[key].price = value
        case ("tag", key, tag):
            db.users[key].tags.append(tag)
        case ("option", key, name, value):
            db.users[key].options[name] = value
        case ("put", key, record):
            db.users[key] = record
        case ("drop", key):
            del db.users[key]
        case ("default", key, record):
            db.users.setdefault(key, record).tags.append("seen")
        case ("cell", key, name, value):
            db.nested.data[key][name] = value
        case ("new cells", key, cells):
            db.nested.data[key] = cells
        case ("row price", index, value):
            db.rows[index].price = value
        case ("row set", index, record):
            db.rows[index] = record
        case ("row insert", index, record):
            db.rows.insert(index, record)
        case ("row drop", index):
            db.rows.pop(index)
        case ("reverse",):
            db.rows.reverse()
        case ("raise all", value):
            for record in [*db.users.values(), *db.rows]:
                record.price += value
        case ("version", value):
            db.version = value


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("reader"), READS),
        st.tuples(st.just("writer"), READS),
        st.tuples(st.just("writer"), WRITES),
    ),
    max_size=12,
)


def outcome(action: Any, db: Any, operation: Operation) -> Any:
    try:
        return action(db, operation)
    except LookupError as error:
        return type(error)


class View:
    """An overlay over a base, and the tools' way of working on it."""

    def __init__(self, base: Shop) -> None:
        self.mode = WriteMode()
        self.db: Any = OverlayDatabase(base, self.mode)

    def play(self, steps: list[tuple[str, Operation]], plain: Shop) -> None:
        """Do the same here and to a deep copy; every outcome must agree."""
        for role, operation in steps:
            action = read if operation[0] in READ_NAMES else write
            with self.mode.enable() if role == "writer" else contextlib.nullcontext():
                mine = outcome(action, self.db, operation)
            assert mine == outcome(action, plain, operation), operation

    def materialised(self) -> Shop:
        """What the overlay stands for, as a database model of its own."""
        db = self.db
        nested = Nested.model_construct(data=dict(db.nested.data.items()), notes=db.nested.notes)
        return Shop.model_construct(
            users=dict(db.users.items()), rows=list(db.rows), nested=nested, version=db.version
        )


def tau2_text(db: Shop) -> str:
    """The text that tau2 hashes to compare databases."""
    return json.dumps(db.model_dump(warnings=False), sort_keys=True, default=str)


@given(SHOPS, STEPS)
def test_an_overlay_is_what_a_deep_copy_would_be_and_its_base_never_changes(
    base: Shop, steps: list[tuple[str, Operation]]
) -> None:
    view, plain, before = View(base), copy.deepcopy(base), tau2_text(base)
    view.play(steps, plain)
    assert tau2_text(view.materialised()) == tau2_text(plain)
    assert tau2_text(base) == before


@given(SHOPS, STEPS, st.lists(st.tuples(st.just("writer"), WRITES), max_size=2))
def test_views_are_the_same_exactly_where_tau2_hashes_alike(
    base: Shop, steps: list[tuple[str, Operation]], further: list[tuple[str, Operation]]
) -> None:
    views, plains = (View(base), View(base)), (copy.deepcopy(base), copy.deepcopy(base))
    views[0].play(steps, plains[0])
    views[1].play([*steps, *further], plains[1])
    expected = tau2_text(plains[0]) == tau2_text(plains[1])
    assert views[0].db.equals(views[1].db) == expected
    assert views[1].db.equals(views[0].db) == expected


@settings(max_examples=30)
@given(SHOPS, st.lists(st.tuples(st.just("reader"), READS), max_size=8))
def test_readers_copy_nothing(base: Shop, steps: list[tuple[str, Operation]]) -> None:
    view = View(base)
    view.play(steps, copy.deepcopy(base))
    db = view.db
    assert all(db.users[key] is record for key, record in base.users.items())
    assert all(mine is theirs for mine, theirs in zip(db.rows, base.rows, strict=True))
    assert all(db.nested.data[key] is cells for key, cells in base.nested.data.items())


@settings(max_examples=30)
@given(SHOPS, KEYS, KEYS)
def test_a_writer_copies_only_the_record_it_reaches(base: Shop, reached: str, other: str) -> None:
    view = View(base)
    view.play([("writer", ("price", reached, 7.0))], copy.deepcopy(base))
    db = view.db
    if reached in base.users:
        assert db.users[reached] is not base.users[reached]
    if other in base.users and other != reached:
        assert db.users[other] is base.users[other]
