"""The expert finds the gold actions, which are the actions of an agent that follows the policy.

It applies the policy's rules to the records, and does not know how a case was made.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_trace2evolve.records.task import Action, Slot

CANCEL = "cancel_pending_order"
RETURN = "return_delivered_order_items"
EXCHANGE = "exchange_delivered_order_items"
MODIFY_ITEMS = "modify_pending_order_items"
MODIFY_ADDRESS = "modify_pending_order_address"
MODIFY_PAYMENT = "modify_pending_order_payment"
MODIFY_PROFILE = "modify_user_address"

REASONS = ("no longer needed", "ordered by mistake")
"""The reasons for which an order can be cancelled."""

REQUIRED_STATUS = {
    **dict.fromkeys((CANCEL, MODIFY_ITEMS, MODIFY_ADDRESS, MODIFY_PAYMENT), "pending"),
    **dict.fromkeys((RETURN, EXCHANGE), "delivered"),
}
"""The order status that each tool requires."""

_RESULTING_STATUS = {
    CANCEL: "cancelled",
    MODIFY_ITEMS: "pending (item modified)",
    RETURN: "return requested",
    EXCHANGE: "exchange requested",
}

Tables = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Intent:
    """One request of a customer.

    Attributes:
        tool: The write tool that fulfils the request; empty for a question.
        arguments: The arguments of the tool.
        order_id: The order that the request concerns; empty if it concerns the profile.
        answer: Text that the agent must say; empty if none.
        needs_search: Whether the order must be searched for, because the customer does not know its number.
        needs_survey: Whether all the customer's orders must be read to identify the right one.
        other_orders: Ids of further orders that must be read.
        details: The customer's answers to the agent's questions.
    """

    tool: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    order_id: str = ""
    answer: str = ""
    needs_search: bool = False
    needs_survey: bool = False
    other_orders: tuple[str, ...] = ()
    details: Mapping[Slot, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Resolution:
    """The expert's actions for one intent; `refusal` is the policy's reason to refuse, or empty."""

    actions: tuple[Action, ...]
    refusal: str = ""


class Expert:
    """Finds the gold actions for one customer's requests.

    Args:
        tables: The store, which is not modified.
        user_id: The customer's id.
        uses_email: Whether the customer is identified by email; otherwise by name and zip code.
    """

    def __init__(self, tables: Tables, user_id: str, *, uses_email: bool) -> None:
        # The expert changes only the status of orders.
        orders = {order_id: dict(order) for order_id, order in tables["orders"].items()}
        self._tables = {**tables, "orders": orders}
        self._user = self._tables["users"][user_id]
        self._uses_email = uses_email
        self._seen_calls: set[tuple[str, ...]] = set()

    def resolve(self, intent: Intent) -> Resolution:
        """Identify the customer once, read the necessary records, then act or refuse."""
        actions = [*self._identify(), *self._read_records(intent)]
        refusal = self._refusal_reason(intent)
        if intent.tool and not refusal:
            actions.append(Action(name=intent.tool, arguments=dict(intent.arguments)))
            if intent.tool in _RESULTING_STATUS:
                self._tables["orders"][intent.order_id]["status"] = _RESULTING_STATUS[intent.tool]
        return Resolution(tuple(actions), refusal)

    def _identify(self) -> Iterator[Action]:
        if self._uses_email:
            return self._call_once("find_user_id_by_email", email=self._user["email"])
        name, zip_code = self._user["name"], self._user["address"]["zip"]
        return self._call_once("find_user_id_by_name_zip", **name, zip=zip_code)

    def _read_records(self, intent: Intent) -> Iterator[Action]:
        # Only the customer's record shows which orders belong to the customer.
        yield from self._call_once("get_user_details", user_id=self._user["user_id"])
        for order_id in self._orders_to_read(intent):
            if order_id in self._user["orders"]:
                yield from self._call_once("get_order_details", order_id=order_id)
        if "new_item_ids" in intent.arguments:
            for item in self._tables["orders"][intent.order_id]["items"]:
                if item["item_id"] in intent.arguments["item_ids"]:
                    yield from self._call_once("get_product_details", product_id=item["product_id"])

    def _orders_to_read(self, intent: Intent) -> Sequence[str]:
        own_orders = self._user["orders"]
        if intent.needs_survey:
            return list(own_orders)
        if intent.needs_search and intent.order_id in own_orders:
            return [*own_orders[: own_orders.index(intent.order_id) + 1], *intent.other_orders]
        return [*filter(None, [intent.order_id]), *intent.other_orders]

    def _call_once(self, tool: str, **arguments: str) -> Iterator[Action]:
        call_key = (tool, *arguments.values())
        if call_key not in self._seen_calls:
            self._seen_calls.add(call_key)
            yield Action(name=tool, arguments=arguments)

    def _refusal_reason(self, intent: Intent) -> str:
        """The policy's reason to refuse an intent; empty if the policy allows it."""
        if intent.order_id and intent.order_id not in self._user["orders"]:
            return "the order is another customer's"
        if not intent.tool or not intent.order_id:
            return ""
        order = self._tables["orders"][intent.order_id]
        if order["status"] != REQUIRED_STATUS[intent.tool]:
            return f"the order is {order['status']}"
        if intent.tool == CANCEL and intent.arguments["reason"] not in REASONS:
            return "that is no reason for which an order can be cancelled"
        if "new_item_ids" in intent.arguments and (problem := self._variant_problem(intent, order)):
            return problem
        if (
            intent.tool in (EXCHANGE, MODIFY_ITEMS, MODIFY_PAYMENT)
            and (amount_due := self._amount_due(intent, order)) > 0
        ):
            method = self._user["payment_methods"][intent.arguments["payment_method_id"]]
            if method["source"] == "gift_card" and method["balance"] < amount_due:
                return "the gift card does not cover it"
        if intent.tool == RETURN:
            method_id = intent.arguments["payment_method_id"]
            paid_method_id = order["payment_history"][0]["payment_method_id"]
            if method_id != paid_method_id and not method_id.startswith("gift_card"):
                return "a refund goes to the original payment method or a gift card"
        return ""

    def _variant_problem(self, intent: Intent, order: Mapping[str, Any]) -> str:
        for item, new_item_id in _exchanges(intent, order):
            variant = self._tables["products"][item["product_id"]]["variants"].get(new_item_id)
            if variant is None:
                return "an item can only be changed for another of the same product"
            if not variant["available"]:
                return "that item is not available"
        return ""

    def _amount_due(self, intent: Intent, order: Mapping[str, Any]) -> float:
        """The amount that the customer would have to pay, in dollars."""
        if intent.tool == MODIFY_PAYMENT:
            return float(order["payment_history"][0]["amount"])
        products = self._tables["products"]
        prices = (
            products[item["product_id"]]["variants"][new_item_id]["price"] - item["price"]
            for item, new_item_id in _exchanges(intent, order)
        )
        return float(sum(prices))


def _exchanges(intent: Intent, order: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield each item to exchange, with the id of the new item."""
    items = {item["item_id"]: item for item in order["items"]}
    for old_item_id, new_item_id in zip(
        intent.arguments["item_ids"], intent.arguments["new_item_ids"], strict=True
    ):
        yield items[old_item_id], new_item_id
