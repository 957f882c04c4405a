"""The schema of a retail database, as in τ² retail.

The names of models and the order of their fields are part of the interface, because errors quote the names
and agents read a record in the order of its fields. Numbers must be finite. Unknown fields of a record are
dropped, as in τ², and unknown tables are errors.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.utils.reading import first_problem


class RetailModel(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)


class Variant(RetailModel):
    """An item for sale: a product with one choice of options."""

    item_id: str
    options: dict[str, str]
    available: bool
    price: float


class Product(RetailModel):
    name: str
    product_id: str
    variants: dict[str, Variant]  # by item id


class UserName(RetailModel):
    first_name: str
    last_name: str


class UserAddress(RetailModel):
    address1: str
    address2: str
    city: str
    country: str
    state: str
    zip: str


class CreditCard(RetailModel):
    source: Literal["credit_card"]
    id: str
    brand: str
    last_four: str


class GiftCard(RetailModel):
    source: Literal["gift_card"]
    id: str
    balance: float  # held by the store


class Paypal(RetailModel):
    source: Literal["paypal"]
    id: str


PaymentMethod = CreditCard | GiftCard | Paypal


class User(RetailModel):
    user_id: str
    name: UserName
    address: UserAddress
    email: str
    payment_methods: dict[str, PaymentMethod]
    orders: list[str]


class OrderFulfilment(RetailModel):
    tracking_id: list[str]
    item_ids: list[str]


class OrderItem(RetailModel):
    name: str
    product_id: str
    item_id: str
    price: float
    options: dict[str, str]


class OrderPayment(RetailModel):
    transaction_type: Literal["payment", "refund"]
    amount: float
    payment_method_id: str


class Order(RetailModel):
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


class RetailDB(RetailModel):
    """A whole database: tables by name, each with its records by key."""

    model_config = ConfigDict(extra="forbid")

    products: dict[str, Product] = Field(default_factory=dict)
    users: dict[str, User] = Field(default_factory=dict)
    orders: dict[str, Order] = Field(default_factory=dict)

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> "RetailDB":
        """Build a database from plain data, in which tables may be absent.

        Raises:
            WorldError: the content does not match the schema.
        """
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise WorldError(
                f"the store does not have the expected shape: {first_problem(error, 'it')}"
            ) from None
