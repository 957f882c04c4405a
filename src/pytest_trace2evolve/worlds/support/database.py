"""The shape of a retail database, as τ² retail has it; whatever enters the support world passes through here.

Names of classes and the order of fields are part of the interface: the first stand in the texts of errors
that a tool or a task meets, the second is the order in which a model reads a record. Numbers are finite,
unknown fields of a record are left out, as τ² leaves them out, and unknown tables are refused.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.utils.reading import complaint

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
    """A way to pay: a card."""

    source: Literal["credit_card"]
    id: str
    brand: str
    last_four: str


class GiftCard(Shape):
    """A way to pay: a balance held by the store."""

    source: Literal["gift_card"]
    id: str
    balance: float


class Paypal(Shape):
    """A way to pay: an account elsewhere."""

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
    """Money that went one way or the other."""

    transaction_type: Literal["payment", "refund"]
    amount: float
    payment_method_id: str


class Order(Shape):
    """An order; what is null has not happened to it."""

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


def read_tables(content: Mapping[str, Any]) -> dict[str, dict[str, Data]]:
    """A database as plain data, validated and complete: every table, every optional field.

    Args:
        content: Tables by name, each with its records by key; a table may be absent.

    Raises:
        WorldError: the content has another shape.
    """
    unknown = sorted(set(content) - set(TABLES))
    if unknown:
        raise WorldError(f"the store has a table {unknown[0]!r}; a retail store has {', '.join(TABLES)}")
    return {name: _read_table(name, content.get(name, {})) for name in TABLES}


def _read_table(name: str, table: Any) -> dict[str, Data]:
    if not isinstance(table, Mapping):
        raise WorldError(f"the store's {name!r} are {type(table).__name__}, not records by key")
    records = {}
    for key, record in table.items():
        try:
            records[key] = read_record(name, record)
        except ValidationError as error:
            cause = complaint(error, "it")
            raise WorldError(f"the store's record '{name}/{key}' has another shape: {cause}") from None
    return records


def read_record(table: str, record: Any) -> Data:
    """One record of a table as plain data of its own; nothing in it is shared with `record`.

    Raises:
        ValidationError: it has another shape.
    """
    return TABLES[table].model_validate(record).model_dump()
