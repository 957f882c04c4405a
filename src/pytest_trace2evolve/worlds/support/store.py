"""A store: the records that many sessions share, their indexes and the texts that models read for them.

Nothing of a store changes once it is made, except that it remembers what it has worked out. A store that
differs from another in some records shares all others with it, with their texts.
"""

import functools
import json
import math
from collections.abc import Mapping
from typing import Any

from pytest_trace2evolve.records.protocols import ToolResult
from pytest_trace2evolve.worlds.support.database import TABLES, Data, read_tables

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
