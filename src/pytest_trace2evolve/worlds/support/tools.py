"""The agent's tools: what each does to a session's records, and every text it can refuse with.

Results, texts of errors, the order of checks and what stays changed when a later check fails are the
interface of τ² retail, and are held to the toolkit that `inspect_evals` carries by a property test. So
arguments are used as they come: one of a wrong type fails where and as it fails there.

The tool `calculate`: what Python makes of a sum, worked out without `eval` and in bounded time.

An agent writes the expression. Numbers that grow without bound are refused before they are worked out: a
tower such as 9**9**9 would not end. The bound on whole numbers and all texts of errors are those of the
toolkit that `inspect_evals` carries.
"""

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pytest_trace2evolve.worlds.support.database import Data, UserAddress
from pytest_trace2evolve.worlds.support.store import Row, Store, Table

Number = int | float

_MAX_BITS = 10_000  # of a whole number that an operation gives
_UNKNOWN_PART = "Invalid expression: only numbers, +, -, *, /, //, ** and parentheses are allowed"


def evaluate(expression: str) -> str:
    """The value of an arithmetic expression, rounded to cents, as text.

    Raises:
        ValueError: it is no arithmetic, or its value cannot be had; the text says why.
        TypeError, AttributeError: it is no text.
    """
    for character in expression:
        # A plain `in` of text: what is no text at all fails here as it does in the reference.
        if character not in "0123456789+-*/(). ":
            raise ValueError("Invalid characters in expression")
    try:
        tree = ast.parse(expression.lstrip(" "), mode="eval")
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"Invalid expression: {error}") from None
    try:
        return str(round(float(_value(tree.body)), 2))
    except ArithmeticError as error:
        raise ValueError(f"Cannot evaluate expression: {error}") from None


def _value(root: ast.expr) -> Number:
    """Work through the tree from its leaves, without recursion: a sum may have thousands of terms."""
    stack: list[Number] = []
    for node in _leaves_first(root):
        match node:
            case ast.Constant(value=int() | float() as number):
                stack.append(number)
            case ast.UnaryOp(op=sign) if type(sign) in _SIGNS:
                stack.append(_bounded(_SIGNS[type(sign)](stack.pop())))
            case ast.BinOp(op=sign) if type(sign) in _OPERATIONS:
                right = stack.pop()
                stack.append(_bounded(_OPERATIONS[type(sign)](stack.pop(), right)))
            case _:
                raise ValueError(_UNKNOWN_PART)
    return stack.pop()


def _leaves_first(root: ast.expr) -> Iterator[ast.expr]:
    """Operands before their operation, left before right; parts of anything else are left out."""
    order: list[ast.expr] = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        order.append(node)
        if isinstance(node, ast.BinOp):
            waiting += (node.left, node.right)
        elif isinstance(node, ast.UnaryOp):
            waiting.append(node.operand)
    return reversed(order)


def _bounded(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise ValueError("Integer result is too large")
    return value


def _power(base: Number, exponent: Number) -> Number:
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and exponent > 0 and abs(base) > 1 and _too_many_bits(abs(base), exponent):
        raise ValueError("Exponentiation result is too large")
    value = base**exponent
    if isinstance(value, complex):
        raise ValueError("Cannot evaluate expression: the result is a complex number")
    power: Number = value
    return power


def _too_many_bits(base: Number, exponent: Number) -> bool:
    return exponent > _MAX_BITS or exponent * math.log2(base) > _MAX_BITS


_SIGNS: Mapping[type[ast.unaryop], Callable[[Number], Number]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_OPERATIONS: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: _power,
}


CANCEL_REASONS = frozenset({"no longer needed", "ordered by mistake"})


class RetailAgentTools:
    """The tools that reach records; what each is for, `schemas` says to the model that calls it.

    Python names the class and the method in its error about missing or unknown arguments, and an agent reads
    that error: hence the name, the order of parameters, and one class for all tools.

    Args:
        store: The records that the session starts from.
    """

    __slots__ = ("orders", "products", "store", "users")

    def __init__(self, store: Store) -> None:
        self.store = store
        self.products = Table(store.catalogue.rows)
        self.users = Table(store.customers.rows)
        self.orders = Table(store.orders)

    @property
    def tables(self) -> Mapping[str, Table]:
        """The session's tables by name."""
        return {"products": self.products, "users": self.users, "orders": self.orders}

    def restart(self, store: Store) -> None:
        """Begin anew from other records; what was reached stays reached."""
        self.store = store
        for name, table in self.tables.items():
            table.restart(store.tables[name])

    def find_user_id_by_email(self, email: str) -> str:
        customers = self.store.customers
        user_id = customers.by_email.get(email.lower()) if customers.rows else None
        if user_id is None:
            raise ValueError("User not found")
        self.users.reached.add(user_id)
        return user_id

    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:
        customers = self.store.customers
        same_first = customers.by_name.get(first_name.lower()) if customers.rows else None
        for user_id in same_first.get(last_name.lower(), ()) if same_first else ():
            user = self.users.peek(user_id)
            if user is not None and user.data["address"]["zip"] == zip:
                self.users.reached.add(user_id)
                return user_id
        raise ValueError("User not found")

    def get_user_details(self, user_id: str) -> Row:
        return self._user(user_id)

    def get_order_details(self, order_id: str) -> Row:
        return self._order(order_id)

    def get_product_details(self, product_id: str) -> Row:
        return self._product(product_id)

    def get_item_details(self, item_id: str) -> Row:
        catalogue = self.store.catalogue
        if not catalogue.rows or item_id not in catalogue.items:
            raise ValueError("Item not found")
        product_id, variant = catalogue.items[item_id]
        self.products.reached.add(product_id)
        return variant

    def list_all_product_types(self) -> str:
        return self.store.catalogue.listing

    def cancel_pending_order(self, order_id: str, reason: str) -> Row:
        order = self._order(order_id).data
        if order["status"] != "pending":
            raise ValueError("Non-pending order cannot be cancelled")
        if reason not in CANCEL_REASONS:
            raise ValueError("Invalid reason")
        refunds = []
        for payment in order["payment_history"]:
            method_id, amount = payment["payment_method_id"], payment["amount"]
            user_id = self._user(order["user_id"]).data["user_id"]
            self._book(user_id, method_id, self._payment_method(user_id, method_id), amount)
            refunds.append(_payment("refund", amount, method_id))
        history = [*order["payment_history"], *refunds]
        return self._write_order(order_id, status="cancelled", cancel_reason=reason, payment_history=history)

    def modify_pending_order_address(
        self, order_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> Row:
        if "pending" not in self._order(order_id).data["status"]:
            raise ValueError("Non-pending order cannot be modified")
        return self._write_order(order_id, address=_address(address1, address2, city, country, state, zip))

    def modify_pending_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> Row:
        order = self._order(order_id).data
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
        return self._write_order(
            order_id,
            items=_exchanged(order["items"], item_ids, new_item_ids, variant),
            status="pending (item modified)",
            payment_history=[
                *order["payment_history"],
                _payment(direction, abs(difference), payment_method_id),
            ],
        )

    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> Row:
        order = self._order(order_id).data
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
        row = self._write_order(order_id, payment_history=[*history, payment, refund])
        self._book(order["user_id"], payment_method_id, method, -amount)
        # Looked up only now: an order whose own payment method is gone fails with all of the above done.
        self._book(order["user_id"], old_id, self._payment_method(order["user_id"], old_id), amount)
        return row

    def modify_user_address(
        self, user_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> Row:
        self._user(user_id)
        address = _address(address1, address2, city, country, state, zip)
        row = self.users.writable(user_id)
        row.set(address=address)
        return row

    def return_delivered_order_items(self, order_id: str, item_ids: list[str], payment_method_id: str) -> Row:
        order = self._order(order_id).data
        if order["status"] != "delivered":
            raise ValueError("Non-delivered order cannot be returned")
        user_id = self._user(order["user_id"]).data["user_id"]
        method = self._payment_method(user_id, payment_method_id)
        if (
            method["source"] != "gift_card"
            and payment_method_id != order["payment_history"][0]["payment_method_id"]
        ):
            raise ValueError("Payment method should be the original payment method")
        _require_items(order, item_ids, "Some item not found")
        return self._write_order(
            order_id,
            status="return requested",
            return_items=sorted(item_ids),
            return_payment_method_id=payment_method_id,
        )

    def exchange_delivered_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> Row:
        order = self._order(order_id).data
        if order["status"] != "delivered":
            raise ValueError("Non-delivered order cannot be exchanged")
        _require_items(order, item_ids, "Number of {} not found.")
        if len(item_ids) != len(new_item_ids):
            raise ValueError("The number of items to be exchanged should match.")
        exact, _ = self._price_difference(order, item_ids, new_item_ids, may_stay=True)
        difference = round(exact, 2)
        method = self._payment_method(order["user_id"], payment_method_id)
        _require_balance(method, difference, "Insufficient gift card balance to pay for the price difference")
        return self._write_order(
            order_id,
            status="exchange requested",
            exchange_items=sorted(item_ids),
            exchange_new_items=sorted(new_item_ids),
            exchange_payment_method_id=payment_method_id,
            exchange_price_difference=difference,
        )

    def _order(self, order_id: str) -> Row:
        if order_id not in self.orders:
            raise ValueError("Order not found")
        return self.orders[order_id]

    def _user(self, user_id: str) -> Row:
        if user_id not in self.users:
            raise ValueError("User not found")
        return self.users[user_id]

    def _product(self, product_id: str) -> Row:
        if product_id not in self.products:
            raise ValueError("Product not found")
        return self.products[product_id]

    def _payment_method(self, user_id: str, method_id: str) -> Data:
        methods: dict[str, Data] = self._user(user_id).data["payment_methods"]
        if method_id not in methods:
            raise ValueError("Payment method not found")
        return methods[method_id]

    def _write_order(self, order_id: str, **fields: Any) -> Row:
        row = self.orders.writable(order_id)
        row.set(**fields)
        return row

    def _book(self, user_id: str, method_id: str, method: Data, amount: float) -> None:
        """Add an amount, which may be negative, to a gift card's balance; other methods hold none."""
        if method["source"] != "gift_card":
            return
        user = self.users.writable(user_id)
        booked = {**method, "balance": round(method["balance"] + amount, 2)}
        user.set(payment_methods={**user.data["payment_methods"], method_id: booked})

    def _price_difference(
        self, order: Data, item_ids: Sequence[str], new_item_ids: Sequence[str], *, may_stay: bool
    ) -> tuple[float, Data | None]:
        """What the new items cost more, in dollars, and the last of them; each must fit its old one.

        Args:
            may_stay: Whether an item may be given for itself.
        """
        difference, variant = 0.0, None
        for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
            if item_id == new_item_id and not may_stay:
                raise ValueError("The new item id should be different from the old item id")
            item = _first(order["items"], item_id)
            variants = self._product(item["product_id"]).data["variants"]
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


def _require_items(order: Data, item_ids: Sequence[str], refusal: str) -> None:
    """Refuse, naming the item at `{}`, where the order holds an item less often than it is asked for."""
    there = [item["item_id"] for item in order["items"]]
    for item_id in item_ids:
        if item_ids.count(item_id) > there.count(item_id):
            raise ValueError(refusal.format(item_id))


def _require_balance(method: Data, amount: float, refusal: str) -> None:
    if method["source"] == "gift_card" and method["balance"] < amount:
        raise ValueError(refusal)


def _exchanged(
    items: Sequence[Data], item_ids: Sequence[str], new_item_ids: Sequence[str], variant: Data | None
) -> list[Data]:
    """The positions with other items in them.

    Every one of them gets the price and the options of `variant`, the last: τ² retail has it so, and its
    tasks' gold databases with it. An item may stand in `item_ids` again once it came in by this very change.
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
    """An address as a record.

    Raises:
        ValidationError: a part is no text; its own text is what the agent reads.
    """
    address = UserAddress(
        address1=address1, address2=address2, city=city, country=country, state=state, zip=zip
    )
    return dict(address.__dict__)


def calculate() -> Callable[[str], str]:
    # The reference makes these two inside functions of their names, and Python's errors say so.
    def execute(expression: str) -> str:
        return evaluate(expression)

    return execute


def transfer_to_human_agents() -> Callable[[str], str]:
    def execute(summary: str) -> str:
        return "Transfer successful"

    return execute


GENERIC: Mapping[str, Callable[..., str]] = MappingProxyType(
    {"calculate": calculate(), "transfer_to_human_agents": transfer_to_human_agents()}
)
"""The tools that reach no record, by name."""
