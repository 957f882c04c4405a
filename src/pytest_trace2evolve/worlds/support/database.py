"""The schema of a retail database, as in τ² retail.

The names of models and the order of their fields are part of the interface, because errors quote the names
and agents read a record in the order of its fields. Numbers must be finite. Unknown fields of a record are
dropped, as in τ², and unknown tables are errors.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.utils.reading import problem_in


class Shape(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)


class Variant(Shape):
    """An item for sale: a product with one choice of options."""

    item_id: str
    options: dict[str, str]
    available: bool
    price: float


class Product(Shape):
    name: str
    product_id: str
    variants: dict[str, Variant]  # by item id


class UserName(Shape):
    first_name: str
    last_name: str


class UserAddress(Shape):
    address1: str
    address2: str
    city: str
    country: str
    state: str
    zip: str


class CreditCard(Shape):
    source: Literal["credit_card"]
    id: str
    brand: str
    last_four: str


class GiftCard(Shape):
    source: Literal["gift_card"]
    id: str
    balance: float  # held by the store


class Paypal(Shape):
    source: Literal["paypal"]
    id: str


PaymentMethod = CreditCard | GiftCard | Paypal


class User(Shape):
    user_id: str
    name: UserName
    address: UserAddress
    email: str
    payment_methods: dict[str, PaymentMethod]
    orders: list[str]


class OrderFulfilment(Shape):
    tracking_id: list[str]
    item_ids: list[str]


class OrderItem(Shape):
    name: str
    product_id: str
    item_id: str
    price: float
    options: dict[str, str]


class OrderPayment(Shape):
    transaction_type: Literal["payment", "refund"]
    amount: float
    payment_method_id: str


class Order(Shape):
    """An order; a null field means that the event it describes has not happened."""

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


class RetailDB(Shape):
    """A whole database: tables by name, each with its records by key."""

    model_config = ConfigDict(extra="forbid")

    products: dict[str, Product] = Field(default_factory=dict)
    users: dict[str, User] = Field(default_factory=dict)
    orders: dict[str, Order] = Field(default_factory=dict)

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> "RetailDB":
        """Build a database from plain data, in which tables may be absent.

        Raises:
            WorldError: the content has a different shape.
        """
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise WorldError(f"the store has another shape: {problem_in(error, 'it')}") from None
