"""Generates the records of a store in the schema of τ² retail: products, customers and orders.

The choices that matter to a case are drawn one by one. Details such as ids, house numbers and prices come
from one drawn seed, so Hypothesis shrinks only the choices that matter.
"""

import itertools
import random
from collections.abc import Sequence
from typing import Any

from pytest_trace2evolve.cases.content import (
    ChoiceSource,
    ProductKind,
    Vocabulary,
    draw_one,
    draw_some,
    vocabulary,
)
from pytest_trace2evolve.records.task import Content

JsonRecord = dict[str, Any]
"""A record of the store as a JSON object."""

MAX_ITEMS = 3
MIN_VARIANTS, MAX_VARIANTS = 3, 5
"""The smallest and largest number of variants of a product."""

PAYMENT_KINDS = ("credit_card", "gift_card", "paypal")


class StoreBuilder:
    """Makes records that are consistent with each other.

    Attributes:
        tables: The tables `products`, `users` and `orders`, each a mapping of id to record.
        words: The vocabulary of names, products and phrases.
    """

    def __init__(self, choices: ChoiceSource, content: Content, words: Vocabulary | None = None) -> None:
        self.choices = choices
        self.words = words or vocabulary(content)
        self.tables: dict[str, dict[str, JsonRecord]] = {"products": {}, "users": {}, "orders": {}}
        self._rng = random.Random(choices.draw_number(0, 1 << 24))
        self._used_ids: set[str] = set()
        self._used_names: set[str] = set()
        self._important_products: set[str] = set()

    def draw_product(self, kind: ProductKind | None = None) -> JsonRecord:
        """Return a new product, by default of a kind that the store does not have.

        If the store has all kinds, return an existing product that no important order contains.
        """
        products = self.tables["products"]
        sold_names = {product["name"] for product in products.values()}
        unsold_kinds = [
            candidate_kind for candidate_kind in self.words.products if candidate_kind.name not in sold_names
        ]
        if kind is None and not unsold_kinds:
            return draw_one(
                self.choices,
                [
                    products[product_id]
                    for product_id in products
                    if product_id not in self._important_products
                ],
            )
        product_kind = kind or draw_one(self.choices, unsold_kinds)
        combinations = [
            dict(zip(product_kind.options, values, strict=True))
            for values in itertools.product(*product_kind.options.values())
        ]
        self._rng.shuffle(combinations)
        count = min(len(combinations), self._rng.randint(MIN_VARIANTS, MAX_VARIANTS))
        variants: dict[str, JsonRecord] = {}
        for options in combinations[:count]:
            item_id = self._new_id("", 10)
            variants[item_id] = {
                "item_id": item_id,
                "options": options,
                "available": self._rng.random() < 0.8,
                "price": self._draw_price(product_kind),
            }
        product_id = self._new_id("", 10)
        product = {"name": product_kind.name, "product_id": product_id, "variants": variants}
        products[product_id] = product
        return product

    def _draw_price(self, kind: ProductKind) -> float:
        """Draw a price whose last digit is not 0, so it has only one usual spelling."""
        cents = self._rng.randrange(100 * kind.prices[0], 100 * kind.prices[1])
        return (cents - cents % 10 + self._rng.randint(1, 9)) / 100

    def draw_address(self, exclude: Sequence[JsonRecord] = ()) -> JsonRecord:
        """Draw an address that is not in `exclude`."""
        while True:
            city, state, prefix = self._rng.choice(self.words.cities)
            flat = f"Suite {self._rng.randint(100, 999)}" if self._rng.random() < 0.5 else ""
            address = {
                "address1": f"{self._rng.randint(10, 999)} {self._rng.choice(self.words.streets)}",
                "address2": flat,
                "city": city,
                "country": "USA",
                "state": state,
                "zip": f"{prefix}{self._rng.randint(100, 999)}",
            }
            if address not in exclude:
                return address

    def add_customer(self, payment_kinds: Sequence[str] = ()) -> JsonRecord:
        """Add a customer with the given kinds of payment method, and further kinds at random."""
        unused_names = [name for name in self.words.first_names if name not in self._used_names]
        first = draw_one(self.choices, unused_names or self.words.first_names)
        last = draw_one(self.choices, self.words.last_names)
        self._used_names.add(first)
        user_id = self._new_id(f"{first}_{last}_".lower(), 4)
        mailbox = f"{first}.{last}{self._rng.randint(10, 9999)}".lower()
        extra_kinds = [
            kind for kind in PAYMENT_KINDS if kind not in payment_kinds and self._rng.random() < 0.5
        ]
        payment_methods = [
            self._make_payment_method(kind) for kind in [*payment_kinds, *extra_kinds] or PAYMENT_KINDS[:1]
        ]
        user = {
            "user_id": user_id,
            "name": {"first_name": first, "last_name": last},
            "address": self.draw_address(),
            "email": f"{mailbox}@{self._rng.choice(self.words.domains)}",
            "payment_methods": {method["id"]: method for method in payment_methods},
            "orders": [],
        }
        self.tables["users"][user_id] = user
        return user

    def add_order(
        self,
        user: JsonRecord,
        status: str,
        items: Sequence[tuple[JsonRecord, str]],
        *,
        payment: str = "",
        address: JsonRecord | None = None,
    ) -> JsonRecord:
        """Add an order of a customer, and return it.

        Args:
            user: The customer, whose record gets the order's id.
            items: Product and item id of each item.
            payment: Id of the payment method; if empty, the customer's first method.
            address: The shipping address; if None, the customer's own address.
        """
        order_id = self._new_id("#W", 7)
        order_items = [_make_order_item(product, item_id) for product, item_id in items]
        payment_id = payment or next(iter(user["payment_methods"]))
        amount = round(sum(item["price"] for item in order_items), 2)
        shipment = {
            "tracking_id": [self._new_id("", 12)],
            "item_ids": [item["item_id"] for item in order_items],
        }
        transaction_types = ("payment", "refund") if status == "cancelled" else ("payment",)
        order = {
            "order_id": order_id,
            "user_id": user["user_id"],
            "address": dict(address or user["address"]),
            "items": order_items,
            "status": status,
            "fulfillments": [shipment] if status in ("processed", "delivered") else [],
            "payment_history": [
                {"transaction_type": transaction_type, "amount": amount, "payment_method_id": payment_id}
                for transaction_type in transaction_types
            ],
        }
        if status == "cancelled":
            order["cancel_reason"] = "no longer needed"
        self.tables["orders"][order_id] = order
        user["orders"].append(order_id)
        return order

    def draw_items(self, count: int) -> list[tuple[JsonRecord, str]]:
        """Draw up to `count` items of different products."""
        products: list[JsonRecord] = []
        for _ in range(count):
            product = self.draw_product()
            if product not in products:
                products.append(product)
        return [(product, self.draw_variant(product)) for product in products]

    def draw_variant(self, product: JsonRecord) -> str:
        """Draw a variant of a product, and return its item id."""
        variants: dict[str, JsonRecord] = product["variants"]
        return draw_one(self.choices, list(variants))

    def add_distractors(self, user: JsonRecord, max_count: int = 2) -> None:
        """Add up to `max_count` further orders of the customer, and up to `max_count` other customers."""
        # A product that the customer names must identify one order.
        self._important_products = set(self.tables["products"])
        for _ in range(self.choices.draw_number(0, max_count)):
            status = draw_one(self.choices, ("delivered", "pending", "processed"))
            self.add_order(user, status, self.draw_items(self.choices.draw_number(1, 2)))
        for _ in range(self.choices.draw_number(0, max_count)):
            other_customer = self.add_customer()
            self.add_order(
                other_customer, draw_one(self.choices, ("pending", "delivered")), self.draw_items(1)
            )
        # The position of an order must not reveal its importance.
        for customer in self.tables["users"].values():
            self._rng.shuffle(customer["orders"])

    def _make_payment_method(self, payment_kind: str) -> JsonRecord:
        method: JsonRecord = {"source": payment_kind, "id": self._new_id(f"{payment_kind}_", 7)}
        if payment_kind == "credit_card":
            method["brand"] = self._rng.choice(("visa", "mastercard"))
            method["last_four"] = self._new_id("", 4)
        if payment_kind == "gift_card":
            method["balance"] = float(self._rng.randint(5, 95))
        return method

    def _new_id(self, prefix: str, digit_count: int) -> str:
        """A new id: the prefix and `digit_count` digits, of which the first is not 0."""
        while True:
            record_id = f"{prefix}{self._rng.randrange(10 ** (digit_count - 1), 10**digit_count)}"
            if record_id not in self._used_ids:
                self._used_ids.add(record_id)
                return record_id


def build_store(
    choices: ChoiceSource, content: Content, *, customers: int, orders: int
) -> dict[str, dict[str, JsonRecord]]:
    """Build a store with products of every kind, `customers` customers, and `orders` orders spread over them.

    Returns:
        Tables by name, each a mapping of id to record.
    """
    builder = StoreBuilder(choices, content)
    products = [builder.draw_product(kind) for kind in builder.words.products]
    users = [builder.add_customer() for _ in range(customers)]
    for index in range(orders):
        order_products = draw_some(choices, products, choices.draw_number(1, MAX_ITEMS))
        status = draw_one(choices, ("pending", "delivered", "processed", "cancelled"))
        items = [(product, builder.draw_variant(product)) for product in order_products]
        builder.add_order(users[index % len(users)], status, items)
    return builder.tables


def _make_order_item(product: JsonRecord, item_id: str) -> JsonRecord:
    variant = product["variants"][item_id]
    return {
        "name": product["name"],
        "product_id": product["product_id"],
        "item_id": item_id,
        "price": variant["price"],
        "options": dict(variant["options"]),
    }
