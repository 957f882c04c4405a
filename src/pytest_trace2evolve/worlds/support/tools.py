"""The agent's tools: what a model reads about each, what each does to a session's records, its errors.

Names and parameters of the tools, their results, texts of errors, the order of checks and what stays changed
when a later check fails are the interface of τ² retail; a property test compares them with the toolkit that
`inspect_evals` carries. So arguments are used unchecked: one of a wrong type fails where and as it fails
there. Descriptions are ours.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pytest_trace2evolve.records.protocols import ToolSchema
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.worlds.support.calculator import evaluate
from pytest_trace2evolve.worlds.support.store import Data, Row, Rows, Store, UserAddress

TOOL_TYPES: Mapping[str, ToolType] = MappingProxyType(
    {
        "calculate": ToolType.GENERIC,
        "cancel_pending_order": ToolType.WRITE,
        "exchange_delivered_order_items": ToolType.WRITE,
        "find_user_id_by_name_zip": ToolType.READ,
        "find_user_id_by_email": ToolType.READ,
        "get_order_details": ToolType.READ,
        "get_product_details": ToolType.READ,
        "get_item_details": ToolType.READ,
        "get_user_details": ToolType.READ,
        "list_all_product_types": ToolType.READ,
        "modify_pending_order_address": ToolType.WRITE,
        "modify_pending_order_items": ToolType.WRITE,
        "modify_pending_order_payment": ToolType.WRITE,
        "modify_user_address": ToolType.WRITE,
        "return_delivered_order_items": ToolType.WRITE,
        "transfer_to_human_agents": ToolType.GENERIC,
    }
)
"""What each tool does, by its name."""

_PARAMETERS = {
    "expression": "Numbers with + - * / and parentheses.",
    "order_id": "The order's id, with the # that it begins with.",
    "reason": "'no longer needed' or 'ordered by mistake'.",
    "payment_method_id": "A payment method of the customer who ordered.",
    "first_name": "The first name.",
    "last_name": "The last name.",
    "zip": "The postal code.",
    "email": "The email address.",
    "product_id": "The product's id; an item's id is another.",
    "item_id": "The item's id; a product's id is another.",
    "user_id": "The user's id.",
    "address1": "Street and number.",
    "address2": "Flat or floor; may be empty.",
    "city": "The city.",
    "state": "The state.",
    "country": "The country.",
    "summary": "What the customer wants and what was done.",
    "item_ids": "Ids of items in the order, one for each piece.",
    "new_item_ids": "What comes in place of each, in the same order.",
}

CANCEL_REASONS = frozenset({"no longer needed", "ordered by mistake"})


def tool_schemas() -> list[ToolSchema]:
    """The tools as a model sees them: described by their docstrings, every parameter required."""
    schemas = []
    for name in TOOL_TYPES:
        function = getattr(RetailAgentTools, name)
        properties = {
            parameter.name: _parameter_schema(parameter)
            for parameter in inspect.signature(function).parameters.values()
            if parameter.name != "self"
        }
        parameters = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
        description = " ".join(function.__doc__.split())
        schemas.append(ToolSchema(name=name, description=description, parameters=parameters))
    return schemas


def _parameter_schema(parameter: inspect.Parameter) -> dict[str, Any]:
    text = {"type": "string", "description": _PARAMETERS[parameter.name]}
    if parameter.annotation is str:
        return text
    return {"type": "array", "items": {"type": "string"}, "description": _PARAMETERS[parameter.name]}


class Table:
    """A session's view of one table: rows by key over shared rows, which it never changes.

    Attributes:
        own: The rows that this session wrote.
    """

    __slots__ = ("_shared", "own")

    def __init__(self, shared: Rows) -> None:
        self._shared = shared
        self.own: dict[str, Row] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._shared

    def __getitem__(self, key: str) -> Row:
        return self.own.get(key) or self._shared[key]

    def get(self, key: str) -> Row | None:
        """The row of a key; None if there is none."""
        return self.own.get(key) or self._shared.get(key)

    def write(self, key: str, **fields: Any) -> Row:
        """Replace fields of the session's own row of a key, which is copied the first time."""
        if key not in self.own:
            self.own[key] = Row(dict(self[key].data))
        self.own[key].set(**fields)
        return self.own[key]


def calculate() -> Callable[[str], str]:
    """Makes the tool inside a function of its name, as the reference does: Python's errors say so."""

    def execute(expression: str) -> str:
        """Work out an arithmetic expression."""
        return evaluate(expression)

    return execute


def transfer_to_human_agents() -> Callable[[str], str]:
    """Makes the tool, as `calculate`."""

    def execute(summary: str) -> str:
        """Hand the customer to a human agent."""
        return "Transfer successful"

    return execute


class RetailAgentTools:
    """The tools over the records of one session.

    Python names the class and the method in its error about missing or unknown arguments, and an agent reads
    that error: hence the name, the order of parameters, and one class for all tools.

    Attributes:
        store: The records that the session starts from.
        tables: The session's tables by name.
    """

    __slots__ = ("_orders", "_products", "_users", "store")

    calculate = staticmethod(calculate())
    transfer_to_human_agents = staticmethod(transfer_to_human_agents())

    def __init__(self, store: Store) -> None:
        self.store = store
        self._products = Table(store.products.rows)
        self._users = Table(store.users.rows)
        self._orders = Table(store.orders)

    @property
    def tables(self) -> Mapping[str, Table]:
        return {"products": self._products, "users": self._users, "orders": self._orders}

    def find_user_id_by_email(self, email: str) -> str:
        """Find a user's id by email."""
        users = self.store.users
        user_id = users.by_email.get(email.lower()) if users.rows else None
        if user_id is None:
            raise ValueError("User not found")
        return user_id

    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:
        """Find a user's id by name and postal code."""
        users = self.store.users
        same_first = users.by_name.get(first_name.lower()) if users.rows else None
        for user_id in same_first.get(last_name.lower(), ()) if same_first else ():
            if self._users[user_id].data["address"]["zip"] == zip:
                return user_id
        raise ValueError("User not found")

    def get_user_details(self, user_id: str) -> Row:
        """Read a user, with payment methods and order ids."""
        if user_id not in self._users:
            raise ValueError("User not found")
        return self._users[user_id]

    def get_order_details(self, order_id: str) -> Row:
        """Read an order."""
        if order_id not in self._orders:
            raise ValueError("Order not found")
        return self._orders[order_id]

    def get_product_details(self, product_id: str) -> Row:
        """Read a product and all its items."""
        if product_id not in self._products:
            raise ValueError("Product not found")
        return self._products[product_id]

    def get_item_details(self, item_id: str) -> Row:
        """Read one item: options, price, stock."""
        products = self.store.products
        if not products.rows or item_id not in products.items:
            raise ValueError("Item not found")
        return products.items[item_id]

    def list_all_product_types(self) -> str:
        """List the names and ids of all products."""
        return self.store.products.listing

    def cancel_pending_order(self, order_id: str, reason: str) -> Row:
        """Cancel a pending order and refund it:
        to a gift card at once, else within 5 to 7 business days.
        """
        order = self.get_order_details(order_id).data
        if order["status"] != "pending":
            raise ValueError("Non-pending order cannot be cancelled")
        if reason not in CANCEL_REASONS:
            raise ValueError("Invalid reason")
        refunds = []
        for payment in order["payment_history"]:
            method_id, amount = payment["payment_method_id"], payment["amount"]
            user_id = self.get_user_details(order["user_id"]).data["user_id"]
            self._book(user_id, method_id, self._payment_method(user_id, method_id), amount)
            refunds.append(_payment("refund", amount, method_id))
        history = [*order["payment_history"], *refunds]
        return self._orders.write(order_id, status="cancelled", cancel_reason=reason, payment_history=history)

    def modify_pending_order_address(
        self, order_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> Row:
        """Change the shipping address of a pending order."""
        if "pending" not in self.get_order_details(order_id).data["status"]:
            raise ValueError("Non-pending order cannot be modified")
        return self._orders.write(order_id, address=_address(address1, address2, city, country, state, zip))

    def modify_pending_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> Row:
        """Replace items of a pending order by other items of the same products; possible once."""
        order = self.get_order_details(order_id).data
        if order["status"] != "pending":
            raise ValueError("Non-pending order cannot be modified")
        _require_items(order, item_ids, "{} not found")
        if len(item_ids) != len(new_item_ids):
            raise ValueError("The number of items to be exchanged should match")
        difference, variant = self._price_difference(order, item_ids, new_item_ids, may_stay=False)
        method = self._payment_method(order["user_id"], payment_method_id)
        _require_balance(method, difference, "Insufficient gift card balance to pay for the new item")
        self._book(order["user_id"], payment_method_id, method, -difference)
        direction = "payment" if difference > 0 else "refund"
        payment = _payment(direction, abs(difference), payment_method_id)
        return self._orders.write(
            order_id,
            items=_exchanged(order["items"], item_ids, new_item_ids, variant),
            status="pending (item modified)",
            payment_history=[*order["payment_history"], payment],
        )

    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> Row:
        """Pay a pending order with another payment method."""
        order = self.get_order_details(order_id).data
        if "pending" not in order["status"]:
            raise ValueError("Non-pending order cannot be modified")
        method = self._payment_method(order["user_id"], payment_method_id)
        history = order["payment_history"]
        if len(history) != 1 or history[0]["transaction_type"] != "payment":
            raise ValueError("There should be exactly one payment for a pending order")
        old_id, amount = history[0]["payment_method_id"], history[0]["amount"]
        if old_id == payment_method_id:
            raise ValueError("The new payment method should be different from the current one")
        _require_balance(method, amount, "Insufficient gift card balance to pay for the order")
        payment, refund = _payment("payment", amount, payment_method_id), _payment("refund", amount, old_id)
        row = self._orders.write(order_id, payment_history=[*history, payment, refund])
        self._book(order["user_id"], payment_method_id, method, -amount)
        # Looked up only now: an order whose own payment method is gone fails with all of the above done.
        self._book(order["user_id"], old_id, self._payment_method(order["user_id"], old_id), amount)
        return row

    def modify_user_address(
        self, user_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> Row:
        """Change a user's own address; orders keep theirs."""
        self.get_user_details(user_id)
        return self._users.write(user_id, address=_address(address1, address2, city, country, state, zip))

    def return_delivered_order_items(self, order_id: str, item_ids: list[str], payment_method_id: str) -> Row:
        """Request the return of delivered items."""
        order = self.get_order_details(order_id).data
        if order["status"] != "delivered":
            raise ValueError("Non-delivered order cannot be returned")
        user_id = self.get_user_details(order["user_id"]).data["user_id"]
        method = self._payment_method(user_id, payment_method_id)
        if (
            method["source"] != "gift_card"
            and payment_method_id != order["payment_history"][0]["payment_method_id"]
        ):
            raise ValueError("Payment method should be the original payment method")
        _require_items(order, item_ids, "Some item not found")
        return self._orders.write(
            order_id,
            status="return requested",
            return_items=sorted(item_ids),
            return_payment_method_id=payment_method_id,
        )

    def exchange_delivered_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> Row:
        """Request the exchange of delivered items for other items of the same products."""
        order = self.get_order_details(order_id).data
        if order["status"] != "delivered":
            raise ValueError("Non-delivered order cannot be exchanged")
        _require_items(order, item_ids, "Number of {} not found.")
        if len(item_ids) != len(new_item_ids):
            raise ValueError("The number of items to be exchanged should match.")
        exact, _ = self._price_difference(order, item_ids, new_item_ids, may_stay=True)
        difference = round(exact, 2)
        method = self._payment_method(order["user_id"], payment_method_id)
        _require_balance(method, difference, "Insufficient gift card balance to pay for the price difference")
        return self._orders.write(
            order_id,
            status="exchange requested",
            exchange_items=sorted(item_ids),
            exchange_new_items=sorted(new_item_ids),
            exchange_payment_method_id=payment_method_id,
            exchange_price_difference=difference,
        )

    def _payment_method(self, user_id: str, method_id: str) -> Data:
        methods: dict[str, Data] = self.get_user_details(user_id).data["payment_methods"]
        if method_id not in methods:
            raise ValueError("Payment method not found")
        return methods[method_id]

    def _book(self, user_id: str, method_id: str, method: Data, amount: float) -> None:
        """Adds an amount, which may be negative, to a gift card's balance; other methods hold none."""
        if method["source"] == "gift_card":
            booked = {**method, "balance": round(method["balance"] + amount, 2)}
            methods = {**self._users[user_id].data["payment_methods"], method_id: booked}
            self._users.write(user_id, payment_methods=methods)

    def _price_difference(
        self, order: Data, item_ids: Sequence[str], new_item_ids: Sequence[str], *, may_stay: bool
    ) -> tuple[float, Data | None]:
        """What the new items cost more, in dollars, and the last of them.

        Args:
            may_stay: Whether an item may be exchanged for itself.
        """
        difference, variant = 0.0, None
        for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
            if item_id == new_item_id and not may_stay:
                raise ValueError("The new item id should be different from the old item id")
            item = _first(order["items"], item_id)
            variants = self.get_product_details(item["product_id"]).data["variants"]
            if new_item_id not in variants:
                raise ValueError("Variant not found")
            variant = variants[new_item_id]
            if not variant["available"]:
                raise ValueError(f"New item {new_item_id} not found or available")
            difference += variant["price"] - item["price"]
        return difference, variant


def _first(items: Sequence[Data], item_id: str) -> Data:
    """The first position of an item that is known to be there."""
    return next(item for item in items if item["item_id"] == item_id)


def _require_items(order: Data, item_ids: Sequence[str], message: str) -> None:
    """Raises, naming the item at `{}`, if the order holds an item less often than it is asked for."""
    held = [item["item_id"] for item in order["items"]]
    for item_id in item_ids:
        if item_ids.count(item_id) > held.count(item_id):
            raise ValueError(message.format(item_id))


def _require_balance(method: Data, amount: float, message: str) -> None:
    if method["source"] == "gift_card" and method["balance"] < amount:
        raise ValueError(message)


def _exchanged(
    items: Sequence[Data], item_ids: Sequence[str], new_item_ids: Sequence[str], variant: Data | None
) -> list[Data]:
    """The positions with other items in them.

    Every one of them gets the price and the options of `variant`, the last: τ² retail does so, and so do the
    gold databases of its tasks. An item may occur in `item_ids` again once this very change brought it in.
    """
    changed = [dict(item) for item in items]
    if variant is not None:
        for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
            position = _first(changed, item_id)
            position.update(item_id=new_item_id, price=variant["price"], options=variant["options"])
    return changed


def _payment(direction: str, amount: float, method_id: str) -> Data:
    return {"transaction_type": direction, "amount": amount, "payment_method_id": method_id}


def _address(address1: str, address2: str, city: str, country: str, state: str, zip: str) -> Data:
    """An address as a record; raises `ValidationError`, whose text the agent reads, if a part is no text."""
    address = UserAddress(
        address1=address1, address2=address2, city=city, country=country, state=state, zip=zip
    )
    return dict(address.__dict__)
