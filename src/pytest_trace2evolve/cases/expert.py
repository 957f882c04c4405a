"""The expert: what an agent that follows the policy does for a customer's wishes: the gold actions.

It works on the records themselves, by the policy's rules, and knows nothing of how a case was put together.
"""

from collections.abc import Iterable, Mapping, Sequence
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

STATUS_FOR = {
    CANCEL: "pending",
    MODIFY_ITEMS: "pending",
    MODIFY_ADDRESS: "pending",
    MODIFY_PAYMENT: "pending",
    RETURN: "delivered",
    EXCHANGE: "delivered",
}
"""The status that an order must have for a tool."""

STATUS_AFTER = {
    CANCEL: "cancelled",
    MODIFY_ITEMS: "pending (item modified)",
    RETURN: "return requested",
    EXCHANGE: "exchange requested",
}
"""The status that an order has after a tool, where that changes it."""

Tables = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Wish:
    """One thing that a customer wants, as the expert sees it.

    Attributes:
        tool: The write that would fulfil it; empty for a question.
        arguments: That tool's arguments.
        order_id: The order that it is about; empty where it is about the profile.
        answer: What must be said; empty where nothing must.
        seek: The customer does not know the order's number.
        survey: All orders of the customer must be looked at to know which one is meant.
        looks: Further orders that must be looked at.
        details: What the customer can tell about it when asked.
    """

    tool: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    order_id: str = ""
    answer: str = ""
    seek: bool = False
    survey: bool = False
    looks: tuple[str, ...] = ()
    details: Mapping[Slot, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Handled:
    """What the expert does for one wish; `refusal` says why it does not, empty where it does."""

    actions: tuple[Action, ...]
    refusal: str = ""


class Expert:
    """Serves one customer.

    Args:
        tables: The store; it is not changed.
        user_id: Who the customer is.
        by_email: Whether they can be found by their email, or only by name and zip code.
    """

    def __init__(self, tables: Tables, user_id: str, *, by_email: bool) -> None:
        # Of what it takes note, only an order's status changes.
        orders = {order_id: dict(order) for order_id, order in tables["orders"].items()}
        self._tables = {**tables, "orders": orders}
        self._user = self._tables["users"][user_id]
        self._by_email = by_email
        self._seen: set[str] = set()
        self._known = False

    def handle(self, wish: Wish) -> Handled:
        """Identify the customer where that is not done, look up what must be known, then act or refuse."""
        actions = [*self._identify(), *self._read(wish)]
        refusal = self._refusal(wish)
        if refusal or not wish.tool:
            return Handled(tuple(actions), refusal)
        actions.append(Action(name=wish.tool, arguments=dict(wish.arguments)))
        self._take_effect(wish)
        return Handled(tuple(actions))

    def _identify(self) -> Iterable[Action]:
        if self._known:
            return
        self._known = True
        if self._by_email:
            yield Action(name="find_user_id_by_email", arguments={"email": self._user["email"]})
            return
        name, place = self._user["name"], self._user["address"]
        arguments = {"first_name": name["first_name"], "last_name": name["last_name"], "zip": place["zip"]}
        yield Action(name="find_user_id_by_name_zip", arguments=arguments)

    def _read(self, wish: Wish) -> Iterable[Action]:
        # Whose an order is stands in the customer's record; without it an order could be anybody's.
        yield from self._look("get_user_details", user_id=self._user["user_id"])
        for order_id in self._orders_to_read(wish):
            if order_id in self._user["orders"]:
                yield from self._look("get_order_details", order_id=order_id)
        for product_id in self._products_to_read(wish):
            yield from self._look("get_product_details", product_id=product_id)

    def _orders_to_read(self, wish: Wish) -> Sequence[str]:
        if wish.survey:
            return list(self._user["orders"])
        if wish.seek and wish.order_id in self._user["orders"]:
            place = self._user["orders"].index(wish.order_id)
            return [*self._user["orders"][: place + 1], *wish.looks]
        return [*((wish.order_id,) if wish.order_id else ()), *wish.looks]

    def _products_to_read(self, wish: Wish) -> Sequence[str]:
        if "new_item_ids" not in wish.arguments:
            return ()
        items = self._tables["orders"][wish.order_id]["items"]
        wanted = wish.arguments["item_ids"]
        return [item["product_id"] for item in items if item["item_id"] in wanted]

    def _look(self, tool: str, **arguments: str) -> Iterable[Action]:
        record = "/".join([tool, *arguments.values()])
        if record not in self._seen:
            self._seen.add(record)
            yield Action(name=tool, arguments=arguments)

    def _refusal(self, wish: Wish) -> str:
        """Why the policy does not allow a wish; empty where it does."""
        if wish.order_id and wish.order_id not in self._user["orders"]:
            return "the order is another customer's"
        if not wish.tool or not wish.order_id:
            return ""
        order = self._tables["orders"][wish.order_id]
        if order["status"] != STATUS_FOR[wish.tool]:
            return f"the order is {order['status']}"
        if wish.tool == CANCEL and wish.arguments["reason"] not in REASONS:
            return "that is no reason for which an order can be cancelled"
        if "new_item_ids" in wish.arguments and (problem := self._unavailable(wish, order)):
            return problem
        if wish.tool in (EXCHANGE, MODIFY_ITEMS, MODIFY_PAYMENT) and self._due(wish, order) > 0:
            method = self._user["payment_methods"][wish.arguments["payment_method_id"]]
            if method["source"] == "gift_card" and method["balance"] < self._due(wish, order):
                return "the gift card does not cover it"
        if wish.tool == RETURN:
            method = wish.arguments["payment_method_id"]
            paid = order["payment_history"][0]["payment_method_id"]
            if method != paid and not method.startswith("gift_card"):
                return "a refund goes to the original payment method or a gift card"
        return ""

    def _unavailable(self, wish: Wish, order: Mapping[str, Any]) -> str:
        products = {item["item_id"]: item["product_id"] for item in order["items"]}
        for old, new in zip(wish.arguments["item_ids"], wish.arguments["new_item_ids"], strict=True):
            variant = self._tables["products"][products[old]]["variants"].get(new)
            if variant is None:
                return "an item can only be changed for another of the same product"
            if not variant["available"]:
                return "that item is not available"
        return ""

    def _due(self, wish: Wish, order: Mapping[str, Any]) -> float:
        """What the customer would have to pay, in dollars."""
        if wish.tool == MODIFY_PAYMENT:
            return float(order["payment_history"][0]["amount"])
        items = {item["item_id"]: item for item in order["items"]}
        pairs = zip(wish.arguments["item_ids"], wish.arguments["new_item_ids"], strict=True)
        return float(
            sum(
                self._tables["products"][items[old]["product_id"]]["variants"][new]["price"]
                - items[old]["price"]
                for old, new in pairs
            )
        )

    def _take_effect(self, wish: Wish) -> None:
        if wish.tool in STATUS_AFTER:
            self._tables["orders"][wish.order_id]["status"] = STATUS_AFTER[wish.tool]
