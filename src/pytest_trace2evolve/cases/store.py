"""Generated records of a store in the schema of τ² retail: products, customers and orders.

The subject of a case is drawn. Details that only fill a record (ids, house numbers, prices) come from one
drawn seed, so Hypothesis shrinks only the choices that matter.
"""

import itertools
import random
from collections.abc import Sequence
from typing import Any

from pytest_trace2evolve.cases.content import Draws, Kind, Vocabulary, one_of, some_of, vocabulary
from pytest_trace2evolve.records.task import Content

Data = dict[str, Any]
"""A record as JSON types."""

MAX_ITEMS = 3
VARIANTS = (3, 5)
"""Fewest and most variants of a product."""

PAYMENT_KINDS = ("credit_card", "gift_card", "paypal")


class StoreBuilder:
    """Makes records that are consistent with each other.

    Attributes:
        tables: `products`, `users` and `orders` by their ids.
        words: The vocabulary of names, products and phrases.
    """

    def __init__(self, draws: Draws, content: Content, words: Vocabulary | None = None) -> None:
        self.draws = draws
        self.words = words or vocabulary(content)
        self.tables: dict[str, dict[str, Data]] = {"products": {}, "users": {}, "orders": {}}
        self._filling = random.Random(draws.number(0, 1 << 24))
        self._used_ids: set[str] = set()
        self._used_names: set[str] = set()
        self._important: set[str] = set()

    def product(self, kind: Kind | None = None) -> Data:
        """Return a new product, by default of a kind that the store does not have.

        If the store has all kinds, return an existing product that no important order contains.
        """
        products = self.tables["products"]
        sold = {product["name"] for product in products.values()}
        left = [other for other in self.words.products if other.name not in sold]
        if kind is None and not left:
            return one_of(self.draws, [products[key] for key in products if key not in self._important])
        chosen = kind or one_of(self.draws, left)
        choices = [
            dict(zip(chosen.options, values, strict=True))
            for values in itertools.product(*chosen.options.values())
        ]
        self._filling.shuffle(choices)
        count = min(len(choices), self._filling.randint(*VARIANTS))
        variants: dict[str, Data] = {}
        for options in choices[:count]:
            item_id = self._digits("", 10)
            variants[item_id] = {
                "item_id": item_id,
                "options": options,
                "available": self._filling.random() < 0.8,
                "price": self._price(chosen),
            }
        product_id = self._digits("", 10)
        product = {"name": chosen.name, "product_id": product_id, "variants": variants}
        products[product_id] = product
        return product

    def _price(self, kind: Kind) -> float:
        """Draw a price whose last digit is not 0, so it has only one usual spelling."""
        cents = self._filling.randrange(100 * kind.prices[0], 100 * kind.prices[1])
        return (cents - cents % 10 + self._filling.randint(1, 9)) / 100

    def address(self, exclude: Sequence[Data] = ()) -> Data:
        """An address that is not in `exclude`."""
        while True:
            city, state, prefix = self._filling.choice(self.words.cities)
            flat = f"Suite {self._filling.randint(100, 999)}" if self._filling.random() < 0.5 else ""
            address = {
                "address1": f"{self._filling.randint(10, 999)} {self._filling.choice(self.words.streets)}",
                "address2": flat,
                "city": city,
                "country": "USA",
                "state": state,
                "zip": f"{prefix}{self._filling.randint(100, 999)}",
            }
            if address not in exclude:
                return address

    def customer(self, methods: Sequence[str] = ()) -> Data:
        """Add a customer with the given kinds of payment method, and random further ones."""
        free = [name for name in self.words.first_names if name not in self._used_names]
        first = one_of(self.draws, free or self.words.first_names)
        last = one_of(self.draws, self.words.last_names)
        self._used_names.add(first)
        user_id = self._digits(f"{first}_{last}_".lower(), 4)
        mailbox = f"{first}.{last}{self._filling.randint(10, 9999)}".lower()
        others = [kind for kind in PAYMENT_KINDS if kind not in methods and self._filling.random() < 0.5]
        payments = [self._payment_method(kind) for kind in [*methods, *others] or PAYMENT_KINDS[:1]]
        user = {
            "user_id": user_id,
            "name": {"first_name": first, "last_name": last},
            "address": self.address(),
            "email": f"{mailbox}@{self._filling.choice(self.words.domains)}",
            "payment_methods": {method["id"]: method for method in payments},
            "orders": [],
        }
        self.tables["users"][user_id] = user
        return user

    def order(
        self,
        user: Data,
        status: str,
        items: Sequence[tuple[Data, str]],
        *,
        payment: str = "",
        address: Data | None = None,
    ) -> Data:
        """Add an order of a customer, and return it.

        Args:
            user: The customer, whose record gets the order's id.
            items: Product and item id of each item.
            payment: Id of the payment method; if empty, the customer's first method.
            address: The shipping address; if None, the customer's own address.
        """
        order_id = self._digits("#W", 7)
        bought = [_order_item(product, item_id) for product, item_id in items]
        method = payment or next(iter(user["payment_methods"]))
        amount = round(sum(item["price"] for item in bought), 2)
        shipment = {"tracking_id": [self._digits("", 12)], "item_ids": [item["item_id"] for item in bought]}
        types = ("payment", "refund") if status == "cancelled" else ("payment",)
        order = {
            "order_id": order_id,
            "user_id": user["user_id"],
            "address": dict(address or user["address"]),
            "items": bought,
            "status": status,
            "fulfillments": [shipment] if status in ("processed", "delivered") else [],
            "payment_history": [
                {"transaction_type": kind, "amount": amount, "payment_method_id": method} for kind in types
            ],
        }
        if status == "cancelled":
            order["cancel_reason"] = "no longer needed"
        self.tables["orders"][order_id] = order
        user["orders"].append(order_id)
        return order

    def some_items(self, count: int) -> list[tuple[Data, str]]:
        """Draw up to `count` items of different products."""
        chosen: list[Data] = []
        for _ in range(count):
            product = self.product()
            if product not in chosen:
                chosen.append(product)
        return [(product, self.variant(product)) for product in chosen]

    def variant(self, product: Data) -> str:
        """Draw a variant of a product, and return its item id."""
        variants: dict[str, Data] = product["variants"]
        return one_of(self.draws, list(variants))

    def surroundings(self, user: Data, most: int = 2) -> None:
        """Add distractors: up to `most` further orders of the customer, and up to `most` other customers."""
        # A product that the customer names must identify one order.
        self._important = set(self.tables["products"])
        for _ in range(self.draws.number(0, most)):
            status = one_of(self.draws, ("delivered", "pending", "processed"))
            self.order(user, status, self.some_items(self.draws.number(1, 2)))
        for _ in range(self.draws.number(0, most)):
            other = self.customer()
            self.order(other, one_of(self.draws, ("pending", "delivered")), self.some_items(1))
        # The position of an order must not reveal its importance.
        for customer in self.tables["users"].values():
            self._filling.shuffle(customer["orders"])

    def _payment_method(self, kind: str) -> Data:
        method: Data = {"source": kind, "id": self._digits(f"{kind}_", 7)}
        if kind == "credit_card":
            method["brand"] = self._filling.choice(("visa", "mastercard"))
            method["last_four"] = self._digits("", 4)
        if kind == "gift_card":
            method["balance"] = float(self._filling.randint(5, 95))
        return method

    def _digits(self, prefix: str, count: int) -> str:
        """A new id: the prefix and `count` digits, of which the first is not 0."""
        while True:
            name = f"{prefix}{self._filling.randrange(10 ** (count - 1), 10**count)}"
            if name not in self._used_ids:
                self._used_ids.add(name)
                return name


def build_store(draws: Draws, content: Content, *, customers: int, orders: int) -> dict[str, dict[str, Data]]:
    """Build a store with products of every kind, `customers` customers, and `orders` orders spread over them.

    Returns:
        Tables by name, each a mapping of id to record.
    """
    builder = StoreBuilder(draws, content)
    products = [builder.product(kind) for kind in builder.words.products]
    people = [builder.customer() for _ in range(customers)]
    for place in range(orders):
        chosen = some_of(draws, products, draws.number(1, MAX_ITEMS))
        status = one_of(draws, ("pending", "delivered", "processed", "cancelled"))
        items = [(product, builder.variant(product)) for product in chosen]
        builder.order(people[place % len(people)], status, items)
    return builder.tables


def _order_item(product: Data, item_id: str) -> Data:
    variant = product["variants"][item_id]
    return {
        "name": product["name"],
        "product_id": product["product_id"],
        "item_id": item_id,
        "price": variant["price"],
        "options": dict(variant["options"]),
    }
