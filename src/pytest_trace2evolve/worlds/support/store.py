"""A store: the records that many sessions share, their indexes and the texts that models read for them.

Nothing of a store changes once it is made, except that it remembers what it has worked out. A store that
differs from another in some records shares all others with it, with their texts.

A session's view of one table: shared rows until they are written, and the keys that were reached.

Stores with a task's initialization data in them, made once for all sessions of the task.
"""

import functools
import json
import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.protocols import ToolResult
from pytest_trace2evolve.records.task import InitializationData
from pytest_trace2evolve.utils.reading import complaint
from pytest_trace2evolve.worlds.overlay import combined
from pytest_trace2evolve.worlds.support.database import TABLES, Data, read_record, read_tables

_FINITE = json.JSONEncoder(allow_nan=False)


class Row:
    """One record, and once somebody asked for it, what a tool answers that returns it.

    Attributes:
        data: The record. Its nested parts may be shared with other rows: they are replaced, never changed.
    """

    __slots__ = ("_answer", "data")

    def __init__(self, data: Data) -> None:
        self.data = data
        self._answer: ToolResult | None = None

    @property
    def answer(self) -> ToolResult:
        """The record as τ² writes it for a model."""
        if self._answer is None:
            self._answer = ToolResult(content=render_record(self.data))
        return self._answer

    def set(self, **fields: Any) -> None:
        """Replace fields of the record. Only for a row that one session owns."""
        self.data.update(fields)
        self._answer = None


Rows = Mapping[str, Row]


def render_record(data: Any) -> str:
    """Spaced JSON; a number that is not finite is null, as τ²'s serialisation has it."""
    try:
        return _FINITE.encode(data)
    except ValueError:
        return json.dumps(_finite(data))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Catalogue:
    """The products, and where each item is. No tool changes a product."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    @functools.cached_property
    def items(self) -> dict[str, tuple[str, Row]]:
        """Each item's product key and variant; where two products have an item, the first product's."""
        items: dict[str, tuple[str, Row]] = {}
        for key, product in self.rows.items():
            for item_id, variant in product.data["variants"].items():
                items.setdefault(item_id, (key, Row(variant)))
        return items

    @functools.cached_property
    def listing(self) -> str:
        """All product names with their ids, sorted by name, as JSON text."""
        ids = {row.data["name"]: row.data["product_id"] for row in self.rows.values()}
        return json.dumps(ids, sort_keys=True)


class Customers:
    """The users, found by what no tool can change: email and name, in the order of the table."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    @functools.cached_property
    def by_email(self) -> dict[str, str]:
        """The first user key of each email, in small letters."""
        keys: dict[str, str] = {}
        for key, row in self.rows.items():
            keys.setdefault(row.data["email"].lower(), key)
        return keys

    @functools.cached_property
    def by_name(self) -> dict[str, dict[str, list[str]]]:
        """User keys by first and then by last name, in small letters."""
        keys: dict[str, dict[str, list[str]]] = {}
        for key, row in self.rows.items():
            name = row.data["name"]
            same_first = keys.setdefault(name["first_name"].lower(), {})
            same_first.setdefault(name["last_name"].lower(), []).append(key)
        return keys


class Store:
    """Products, users and orders.

    Attributes:
        changed: Keys of the records in which the store differs from the one it was made from first, by table.
    """

    def __init__(self, catalogue: Catalogue, customers: Customers, orders: Rows) -> None:
        self.catalogue = catalogue
        self.customers = customers
        self.orders = orders
        self.changed: Mapping[str, frozenset[str]] = dict.fromkeys(TABLES, frozenset())
        self._root = self

    @classmethod
    def read(cls, content: Mapping[str, Any] | None) -> "Store":
        """A store of plain data in τ²'s shape; an empty one of None.

        Raises:
            WorldError: the content has another shape.
        """
        tables = {
            name: {key: Row(record) for key, record in records.items()}
            for name, records in read_tables(content or {}).items()
        }
        return cls(Catalogue(tables["products"]), Customers(tables["users"]), tables["orders"])

    @functools.cached_property
    def tables(self) -> Mapping[str, Rows]:
        """The rows by table."""
        return {"products": self.catalogue.rows, "users": self.customers.rows, "orders": self.orders}

    def replaced(self, changes: Mapping[str, Mapping[str, Row]]) -> "Store":
        """A store with other or further records; a replaced one keeps its place in the order of its table."""
        store = Store(self.catalogue, self.customers, self.orders)
        if products := changes.get("products"):
            store.catalogue = Catalogue({**self.catalogue.rows, **products})
        if users := changes.get("users"):
            store.customers = Customers({**self.customers.rows, **users})
        if orders := changes.get("orders"):
            store.orders = {**self.orders, **orders}
        store.changed = {name: keys | changes.get(name, {}).keys() for name, keys in self.changed.items()}
        store._root = self._root
        return store

    def may_differ(self, table: str, other: "Store") -> frozenset[str]:
        """Keys of a table under which two stores may hold different records."""
        if self._root is other._root:
            return self.changed[table] | other.changed[table]
        return frozenset(self.tables[table]) | frozenset(other.tables[table])

    def content(self) -> dict[str, dict[str, Data]]:
        """All records as plain data, to be read only."""
        return {name: {key: row.data for key, row in rows.items()} for name, rows in self.tables.items()}


class Table:
    """Rows by key over shared rows, which it never changes.

    Attributes:
        own: The rows that this session wrote.
        reached: Keys of all rows read or written.
    """

    __slots__ = ("_shared", "own", "reached")

    def __init__(self, shared: Rows) -> None:
        self._shared = shared
        self.own: dict[str, Row] = {}
        self.reached: set[str] = set()

    def __contains__(self, key: object) -> bool:
        return key in self._shared

    def __getitem__(self, key: str) -> Row:
        self.reached.add(key)
        return self.own.get(key) or self._shared[key]

    def writable(self, key: str) -> Row:
        """The session's own row of a key, copied at the first time."""
        if key not in self.own:
            self.own[key] = Row(dict(self[key].data))
        return self.own[key]

    def peek(self, key: str) -> Row | None:
        """The row of a key, where there is one, without reaching it."""
        return self.own.get(key) or self._shared.get(key)

    def restart(self, shared: Rows) -> None:
        """Begin anew over other shared rows; what was reached stays reached."""
        self._shared = shared
        self.own = {}


_KEPT = 256  # stores; one holds references to all records of the store it was made from


class MergedStores:
    """Merges initialization data into one store, and keeps the results of the tasks that came last.

    Data are known again by being the same object, which the record is kept for: their content is not read
    again, so it must not be changed in place.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[int, tuple[InitializationData, Store]] = OrderedDict()

    def merged(self, store: Store, data: InitializationData) -> Store:
        """`store` with the data merged into it.

        Raises:
            WorldError: the data do not fit the shape of a retail database, or are for the user.
        """
        if store is not self._store:
            return merge_into(store, data)
        kept = self._kept.get(id(data))
        if kept is None:
            kept = self._kept[id(data)] = (data, merge_into(store, data))
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(id(data))
        return kept[1]


def merge_into(store: Store, data: InitializationData) -> Store:
    """A store with further or changed records: nested dictionaries key by key, anything else replaced.

    Raises:
        WorldError: as of `MergedStores.merged`.
    """
    if data.user_data:
        raise WorldError("initialization data for the user, who has no database in domain 'support'")
    changes: dict[str, dict[str, Row]] = {}
    for name, update in (data.agent_data or {}).items():
        if name not in TABLES:
            raise WorldError(f"initialization data name {name!r}, which the database does not have")
        try:
            changes[name] = _merged_rows(store, name, update)
        except ValidationError as error:
            raise WorldError(f"initialization data do not fit {name!r}: {complaint(error, 'it')}") from None
    return store.replaced(changes) if changes else store


def _merged_rows(store: Store, name: str, update: Any) -> dict[str, Row]:
    if not isinstance(update, Mapping):
        kind = type(update).__name__
        raise WorldError(f"initialization data do not fit {name!r}: they are {kind}, not records by key")
    before = store.tables[name]
    rows = {}
    for key, change in update.items():
        old = before[key].data if key in before else None
        rows[key] = Row(read_record(name, combined(old, change)))
    return rows
