"""The shape of a retail database, as τ² retail has it, and stores of it that many sessions share.

Names of models and the order of their fields are part of the interface: errors show the first to tools and
tasks, and a model reads a record in the second. Numbers are finite, unknown fields of a record are dropped,
as τ² drops them, and unknown tables are errors.
"""

import functools
import json
import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.base import complaint
from pytest_trace2evolve.records.protocols import ToolResult
from pytest_trace2evolve.records.task import InitializationData
from pytest_trace2evolve.worlds.overlay import combine

Data = dict[str, Any]
"""One record as plain data: dictionaries, lists, text, numbers, booleans and nulls."""


class Shape(BaseModel):
    """Base of all parts of a database."""

    model_config = ConfigDict(allow_inf_nan=False)


class Variant(Shape):
    """One item that can be bought: a product in one choice of options."""

    item_id: str
    options: dict[str, str]
    available: bool
    price: float


class Product(Shape):
    """A product and its variants by item id."""

    name: str
    product_id: str
    variants: dict[str, Variant]


class UserName(Shape):
    """A customer's name."""

    first_name: str
    last_name: str


class UserAddress(Shape):
    """A postal address."""

    address1: str
    address2: str
    city: str
    country: str
    state: str
    zip: str


class CreditCard(Shape):
    """A payment method: a card."""

    source: Literal["credit_card"]
    id: str
    brand: str
    last_four: str


class GiftCard(Shape):
    """A payment method: a balance held by the store."""

    source: Literal["gift_card"]
    id: str
    balance: float


class Paypal(Shape):
    """A payment method: an account elsewhere."""

    source: Literal["paypal"]
    id: str


class User(Shape):
    """A customer."""

    user_id: str
    name: UserName
    address: UserAddress
    email: str
    payment_methods: dict[str, CreditCard | GiftCard | Paypal]
    orders: list[str]


class OrderFulfilment(Shape):
    """A shipment."""

    tracking_id: list[str]
    item_ids: list[str]


class OrderItem(Shape):
    """One position of an order."""

    name: str
    product_id: str
    item_id: str
    price: float
    options: dict[str, str]


class OrderPayment(Shape):
    """A payment or a refund."""

    transaction_type: Literal["payment", "refund"]
    amount: float
    payment_method_id: str


class Order(Shape):
    """An order; a null field says that this has not happened to it."""

    order_id: str
    user_id: str
    address: UserAddress
    items: list[OrderItem]
    status: Literal[
        "processed",
        "pending",
        "pending (item modified)",
        "delivered",
        "cancelled",
        "exchange requested",
        "return requested",
    ]
    fulfillments: list[OrderFulfilment]
    payment_history: list[OrderPayment]
    cancel_reason: Literal["no longer needed", "ordered by mistake"] | None = None
    exchange_items: list[str] | None = None
    exchange_new_items: list[str] | None = None
    exchange_payment_method_id: str | None = None
    exchange_price_difference: float | None = None
    return_items: list[str] | None = None
    return_payment_method_id: str | None = None


TABLES: Mapping[str, type[Shape]] = {"products": Product, "users": User, "orders": Order}
"""The tables of a database, each with the shape of its records."""

_FINITE = json.JSONEncoder(allow_nan=False)


class Row:
    """One record, and the answer of a tool that returns it, once one was asked for.

    Attributes:
        data: The record. Its nested parts may be shared with other rows: they are replaced, never changed.
    """

    __slots__ = ("_answer", "data")

    def __init__(self, data: Data) -> None:
        self.data = data
        self._answer: ToolResult | None = None

    @classmethod
    def read(cls, table: str, record: Any) -> "Row":
        """A row of validated data that shares nothing with `record`; raises `ValidationError`."""
        return cls(TABLES[table].model_validate(record).model_dump())

    @property
    def answer(self) -> ToolResult:
        """The record as τ² writes it for a model."""
        if self._answer is None:
            self._answer = ToolResult(content=_render(self.data))
        return self._answer

    def set(self, **fields: Any) -> None:
        """Replace fields of the record. Only for a row that one session owns."""
        self.data.update(fields)
        self._answer = None


Rows = Mapping[str, Row]


def _render(data: Data) -> str:
    """Spaced JSON; a number that is not finite becomes null, as in τ²'s serialisation."""
    try:
        return _FINITE.encode(data)
    except ValueError:
        return json.dumps(_without_infinite(data))


def _without_infinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_infinite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_infinite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Products:
    """The products, and an index of their items. No tool changes a product."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    @functools.cached_property
    def items(self) -> dict[str, Row]:
        """Each item's variant; if two products have an item, the first product's."""
        items: dict[str, Row] = {}
        for product in self.rows.values():
            for item_id, variant in product.data["variants"].items():
                items.setdefault(item_id, Row(variant))
        return items

    @functools.cached_property
    def listing(self) -> str:
        """All product names with their ids, sorted by name, as JSON text."""
        ids = {row.data["name"]: row.data["product_id"] for row in self.rows.values()}
        return json.dumps(ids, sort_keys=True)


class Users:
    """The users, indexed by what no tool can change: email and name, in the order of the table."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    @functools.cached_property
    def by_email(self) -> dict[str, str]:
        """The first user key of each email, in lower case."""
        keys: dict[str, str] = {}
        for key, row in self.rows.items():
            keys.setdefault(row.data["email"].lower(), key)
        return keys

    @functools.cached_property
    def by_name(self) -> dict[str, dict[str, list[str]]]:
        """User keys by first and then by last name, in lower case."""
        keys: dict[str, dict[str, list[str]]] = {}
        for key, row in self.rows.items():
            name = row.data["name"]
            same_first = keys.setdefault(name["first_name"].lower(), {})
            same_first.setdefault(name["last_name"].lower(), []).append(key)
        return keys


class Store:
    """Products, users and orders that many sessions share.

    Nothing of a store changes once it is made, apart from cached indexes and answers. A store made from
    another one shares all records with it that it does not replace, with their answers.

    Attributes:
        changed: Keys of the records in which the store differs from the one it was made from first, by table.
    """

    def __init__(self, products: Products, users: Users, orders: Rows) -> None:
        self.products = products
        self.users = users
        self.orders = orders
        self.changed: Mapping[str, frozenset[str]] = dict.fromkeys(TABLES, frozenset())
        self._root = self

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> "Store":
        """A store of plain data: tables by name, each with its records by key; a table may be absent.

        Raises:
            WorldError: the content has another shape.
        """
        unknown = sorted(set(content) - set(TABLES))
        if unknown:
            raise WorldError(f"the store has a table {unknown[0]!r}; a retail store has {', '.join(TABLES)}")
        tables = {name: _read_table(name, content.get(name, {})) for name in TABLES}
        return cls(Products(tables["products"]), Users(tables["users"]), tables["orders"])

    @functools.cached_property
    def tables(self) -> Mapping[str, Rows]:
        """The rows by table."""
        return {"products": self.products.rows, "users": self.users.rows, "orders": self.orders}

    def replaced(self, changes: Mapping[str, Rows]) -> "Store":
        """A store with other or further records; a replaced one keeps its place in the order of its table."""
        store = Store(self.products, self.users, self.orders)
        if products := changes.get("products"):
            store.products = Products({**self.products.rows, **products})
        if users := changes.get("users"):
            store.users = Users({**self.users.rows, **users})
        if orders := changes.get("orders"):
            store.orders = {**self.orders, **orders}
        store.changed = {name: keys | changes.get(name, {}).keys() for name, keys in self.changed.items()}
        store._root = self._root
        return store

    def merged(self, data: InitializationData) -> "Store":
        """A store with a task's data: nested dictionaries key by key, anything else replaced.

        Raises:
            WorldError: the data do not fit the shape of a retail database, or are for the user.
        """
        if data.user_data:
            raise WorldError("initialization data for the user, who has no database in domain 'support'")
        changes: dict[str, Rows] = {}
        for name, update in (data.agent_data or {}).items():
            if name not in TABLES:
                raise WorldError(f"initialization data name {name!r}, which the database does not have")
            try:
                changes[name] = self._merge_table(name, update)
            except ValidationError as error:
                cause = complaint(error, "it")
                raise WorldError(f"initialization data do not fit {name!r}: {cause}") from None
        return self.replaced(changes) if changes else self

    def _merge_table(self, name: str, update: Any) -> Rows:
        if not isinstance(update, Mapping):
            kind = type(update).__name__
            raise WorldError(f"initialization data do not fit {name!r}: they are {kind}, not records by key")
        before = self.tables[name]
        return {
            key: Row.read(name, combine(before[key].data if key in before else None, change))
            for key, change in update.items()
        }

    def may_differ(self, table: str, other: "Store") -> frozenset[str]:
        """Keys of a table under which two stores may hold different records."""
        if self._root is other._root:
            return self.changed[table] | other.changed[table]
        return frozenset(self.tables[table]) | frozenset(other.tables[table])

    def content(self) -> dict[str, dict[str, Data]]:
        """All records as plain data, to be read only."""
        return {name: {key: row.data for key, row in rows.items()} for name, rows in self.tables.items()}


def _read_table(name: str, table: Any) -> Rows:
    if not isinstance(table, Mapping):
        raise WorldError(f"the store's {name!r} are {type(table).__name__}, not records by key")
    rows = {}
    for key, record in table.items():
        try:
            rows[key] = Row.read(name, record)
        except ValidationError as error:
            cause = complaint(error, "it")
            raise WorldError(f"the store's record '{name}/{key}' has another shape: {cause}") from None
    return rows


_KEPT_STORES = 256  # one holds references to all records of the store it was made from


class StoreCache:
    """Merges tasks' initialization data into one store, and keeps the stores of the latest tasks.

    Data are recognised by object identity, so they must not be changed in place.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._kept: OrderedDict[int, tuple[InitializationData, Store]] = OrderedDict()

    def merged(self, data: InitializationData) -> Store:
        """As `Store.merged`."""
        kept = self._kept.get(id(data))
        if kept is None:
            kept = self._kept[id(data)] = (data, self.store.merged(data))
            if len(self._kept) > _KEPT_STORES:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(id(data))
        return kept[1]
