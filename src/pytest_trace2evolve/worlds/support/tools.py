"""The agent's tools: schemas, behaviour and errors.

The interface is that of τ² retail: names, parameters, results, error messages, the order of checks, and the
changes that stay if a later check fails. A property test compares this interface with the toolkit of
`inspect_evals`. Arguments are therefore not validated, and a wrong type fails at the same point as in that
toolkit. Only the descriptions are this package's own.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeVar, cast, get_args

from pytest_trace2evolve.records.protocols import ToolSchema
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.worlds.support.calculator import evaluate
from pytest_trace2evolve.worlds.support.database import (
    GiftCard,
    Order,
    OrderItem,
    OrderPayment,
    PaymentMethod,
    Product,
    RetailDB,
    User,
    UserAddress,
    Variant,
)

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

_PARAMETER_DESCRIPTIONS = {
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

T = TypeVar("T")
TransactionType = Literal["payment", "refund"]
CancelReason = Literal["no longer needed", "ordered by mistake"]
_CANCEL_REASONS = frozenset(get_args(CancelReason))


@functools.cache
def tool_schemas() -> tuple[ToolSchema, ...]:
    """Return the tools' schemas, with docstrings as descriptions and every parameter required."""
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
    return tuple(schemas)


def _parameter_schema(parameter: inspect.Parameter) -> dict[str, Any]:
    text_schema = {"type": "string"}
    schema = text_schema if parameter.annotation is str else {"type": "array", "items": text_schema}
    return {**schema, "description": _PARAMETER_DESCRIPTIONS[parameter.name]}


# Defined inside functions of the same names, as in the reference, because errors quote
# `calculate.<locals>.execute`.
def calculate() -> Callable[[str], str]:
    def execute(expression: str) -> str:
        """Work out an arithmetic expression."""
        return evaluate(expression)

    return execute


def transfer_to_human_agents() -> Callable[[str], str]:
    def execute(summary: str) -> str:
        """Hand the customer to a human agent."""
        return "Transfer successful"

    return execute


class RetailAgentTools:
    """The tools over the database of one session.

    An agent reads Python's errors about missing and unknown arguments, which quote class, method and
    parameters. The name of the class, the order of parameters and the single class for all tools are
    therefore fixed.
    """

    calculate = staticmethod(calculate())
    transfer_to_human_agents = staticmethod(transfer_to_human_agents())

    def __init__(self, db: Any) -> None:
        self.db: RetailDB = db

    def find_user_id_by_email(self, email: str) -> str:
        """Find a user's id by email."""
        for user_id, user in self.db.users.items():
            if user.email.lower() == email.lower():
                return user_id
        raise ValueError("User not found")

    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:
        """Find a user's id by name and postal code."""
        for user_id, user in self.db.users.items():
            if (
                user.name.first_name.lower() == first_name.lower()
                and user.name.last_name.lower() == last_name.lower()
                and user.address.zip == zip
            ):
                return user_id
        raise ValueError("User not found")

    def get_user_details(self, user_id: str) -> str:
        """Read a user, with payment methods and order ids."""
        return self._user(user_id).model_dump_json()

    def get_order_details(self, order_id: str) -> str:
        """Read an order."""
        return self._order(order_id).model_dump_json()

    def get_product_details(self, product_id: str) -> str:
        """Read a product and all its items."""
        return self._product(product_id).model_dump_json()

    def get_item_details(self, item_id: str) -> str:
        """Read one item: options, price, stock."""
        for product in self.db.products.values():
            if item_id in product.variants:
                return product.variants[item_id].model_dump_json()
        raise ValueError("Item not found")

    def list_all_product_types(self) -> dict[str, str]:
        """List the names and ids of all products."""
        return {product.name: product.product_id for product in self.db.products.values()}

    def cancel_pending_order(self, order_id: str, reason: str) -> str:
        """Cancel a pending order and refund it:
        to a gift card at once, else within 5 to 7 business days.
        """
        order = self._order(order_id)
        if order.status != "pending":
            raise ValueError("Non-pending order cannot be cancelled")
        if reason not in _CANCEL_REASONS:
            raise ValueError("Invalid reason")
        refunds = []
        for payment in order.payment_history:
            user_id = self._user(order.user_id).user_id
            _add_to_balance(self._payment_method(user_id, payment.payment_method_id), payment.amount)
            refunds.append(payment.model_copy(update={"transaction_type": "refund"}))
        order.status = "cancelled"
        order.cancel_reason = cast(CancelReason, reason)
        order.payment_history.extend(refunds)
        return order.model_dump_json()

    def modify_pending_order_address(
        self, order_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> str:
        """Change the shipping address of a pending order."""
        order = self._open_order(order_id)
        order.address = UserAddress(
            address1=address1, address2=address2, city=city, country=country, state=state, zip=zip
        )
        return order.model_dump_json()

    def modify_pending_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> str:
        """Replace items of a pending order by other items of the same products; possible once."""
        order = self._order(order_id)
        if order.status != "pending":
            raise ValueError("Non-pending order cannot be modified")
        _require_items(order, item_ids, "{} not found")
        if len(item_ids) != len(new_item_ids):
            raise ValueError("The number of items to be exchanged should match")
        difference, variant = self._price_difference(order, item_ids, new_item_ids, can_stay=False)
        method = self._payment_method(order.user_id, payment_method_id)
        _require_balance(method, difference, "Insufficient gift card balance to pay for the new item")
        transaction_type: TransactionType = "payment" if difference > 0 else "refund"
        order.payment_history.append(_make_payment(transaction_type, abs(difference), payment_method_id))
        _add_to_balance(method, -difference)
        if variant is not None:
            # Every item gets the price and the options of the last new item, as in τ² retail and the gold
            # databases of its tasks. The loop may itself replace an item that it has just added.
            for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
                item = _first_item(order, item_id)
                item.item_id, item.price, item.options = new_item_id, variant.price, variant.options
        order.status = "pending (item modified)"
        return order.model_dump_json()

    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> str:
        """Pay a pending order with another payment method."""
        order = self._open_order(order_id)
        method = self._payment_method(order.user_id, payment_method_id)
        history = order.payment_history
        if len(history) != 1 or history[0].transaction_type != "payment":
            raise ValueError("There should be exactly one payment for a pending order")
        old_id, amount = history[0].payment_method_id, history[0].amount
        if old_id == payment_method_id:
            raise ValueError("The new payment method should be different from the current one")
        _require_balance(method, amount, "Insufficient gift card balance to pay for the order")
        history += [
            _make_payment("payment", amount, payment_method_id),
            _make_payment("refund", amount, old_id),
        ]
        _add_to_balance(method, -amount)
        # Looked up last, so an order whose own payment method is gone fails after all changes above.
        _add_to_balance(self._payment_method(order.user_id, old_id), amount)
        return order.model_dump_json()

    def modify_user_address(
        self, user_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> str:
        """Change a user's own address; orders keep theirs."""
        user = self._user(user_id)
        user.address = UserAddress(
            address1=address1, address2=address2, city=city, country=country, state=state, zip=zip
        )
        return user.model_dump_json()

    def return_delivered_order_items(self, order_id: str, item_ids: list[str], payment_method_id: str) -> str:
        """Request the return of delivered items."""
        order = self._order(order_id)
        if order.status != "delivered":
            raise ValueError("Non-delivered order cannot be returned")
        method = self._payment_method(self._user(order.user_id).user_id, payment_method_id)
        if (
            not isinstance(method, GiftCard)
            and payment_method_id != order.payment_history[0].payment_method_id
        ):
            raise ValueError("Payment method should be the original payment method")
        _require_items(order, item_ids, "Some item not found")
        order.status = "return requested"
        order.return_items = sorted(item_ids)
        order.return_payment_method_id = payment_method_id
        return order.model_dump_json()

    def exchange_delivered_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> str:
        """Request the exchange of delivered items for other items of the same products."""
        order = self._order(order_id)
        if order.status != "delivered":
            raise ValueError("Non-delivered order cannot be exchanged")
        _require_items(order, item_ids, "Number of {} not found.")
        if len(item_ids) != len(new_item_ids):
            raise ValueError("The number of items to be exchanged should match.")
        exact_difference, _ = self._price_difference(order, item_ids, new_item_ids, can_stay=True)
        difference = round(exact_difference, 2)
        method = self._payment_method(order.user_id, payment_method_id)
        _require_balance(method, difference, "Insufficient gift card balance to pay for the price difference")
        order.status = "exchange requested"
        order.exchange_items = sorted(item_ids)
        order.exchange_new_items = sorted(new_item_ids)
        order.exchange_payment_method_id = payment_method_id
        order.exchange_price_difference = difference
        return order.model_dump_json()

    def _order(self, order_id: str) -> Order:
        return _find_record(self.db.orders, order_id, "Order not found")

    def _open_order(self, order_id: str) -> Order:
        order = self._order(order_id)
        if "pending" not in order.status:  # or "pending (item modified)"
            raise ValueError("Non-pending order cannot be modified")
        return order

    def _user(self, user_id: str) -> User:
        return _find_record(self.db.users, user_id, "User not found")

    def _product(self, product_id: str) -> Product:
        return _find_record(self.db.products, product_id, "Product not found")

    def _payment_method(self, user_id: str, method_id: str) -> PaymentMethod:
        return _find_record(self._user(user_id).payment_methods, method_id, "Payment method not found")

    def _price_difference(
        self, order: Order, item_ids: Sequence[str], new_item_ids: Sequence[str], *, can_stay: bool
    ) -> tuple[float, Variant | None]:
        """The price difference in dollars, and the last new variant.

        Args:
            can_stay: Whether an item may be exchanged for itself.
        """
        difference, variant = 0.0, None
        for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
            if item_id == new_item_id and not can_stay:
                raise ValueError("The new item id should be different from the old item id")
            item = _first_item(order, item_id)
            variant = _find_record(self._product(item.product_id).variants, new_item_id, "Variant not found")
            if not variant.available:
                raise ValueError(f"New item {new_item_id} not found or available")
            difference += variant.price - item.price
        return difference, variant


def _find_record(records: Mapping[str, T], key: str, message: str) -> T:
    if key not in records:
        raise ValueError(message)
    return records[key]


def _first_item(order: Order, item_id: str) -> OrderItem:
    """Return the first occurrence of an item that is known to be in the order."""
    return next(item for item in order.items if item.item_id == item_id)


def _require_items(order: Order, item_ids: Sequence[str], message: str) -> None:
    """Raise an error if the order contains fewer of an item than requested; `{}` in `message` is the id."""
    order_item_ids = [item.item_id for item in order.items]
    for item_id in item_ids:
        if item_ids.count(item_id) > order_item_ids.count(item_id):
            raise ValueError(message.format(item_id))


def _require_balance(method: PaymentMethod, amount: float, message: str) -> None:
    if isinstance(method, GiftCard) and method.balance < amount:
        raise ValueError(message)


def _add_to_balance(method: PaymentMethod, amount: float) -> None:
    """Add an amount, which may be negative, to a gift card's balance; other methods have no balance."""
    if isinstance(method, GiftCard):
        method.balance = round(method.balance + amount, 2)


def _make_payment(transaction_type: TransactionType, amount: float, method_id: str) -> OrderPayment:
    return OrderPayment(transaction_type=transaction_type, amount=amount, payment_method_id=method_id)
