"""What the pocket model's teacher says."""

from collections.abc import Mapping
from typing import Any

from pytest_trace2evolve.cases.expert import CANCEL, MODIFY_ADDRESS, MODIFY_PAYMENT, MODIFY_PROFILE, RETURN
from pytest_trace2evolve.cases.scene import address_text, options_text
from pytest_trace2evolve.cases.store import Data

WHO = ("May I have your email, or your name and zip code?", "What is your email, or your name and zip code?")
WHY = ("Why should it be cancelled: is it no longer needed, or was it ordered by mistake?",)
WHERE_TO = ("Where should the refund go: to the original payment method or to a gift card?",)
MORE = "Is there anything else I can help with?"
CLAIM = "That is all done."
LOST = "I am sorry, then I cannot help with that."

LEARNT_LATER = frozenset(
    {
        "that is no reason for which an order can be cancelled",
        "a refund goes to the original payment method or a gift card",
    }
)
"""Refusals that follow from what the customer answers."""

_DONE = {
    CANCEL: "cancelled",
    RETURN: "returned",
    "exchange_delivered_order_items": "exchanged",
    "modify_pending_order_items": "changed",
    MODIFY_ADDRESS: "sent to the new address",
    MODIFY_PAYMENT: "charged to the other payment method",
}
_WRONG_STATUS = {RETURN: "not delivered", "exchange_delivered_order_items": "not delivered"}


def refused(why: str) -> str:
    """A refusal with its reason."""
    return f"I am sorry, I cannot do that: {why}."


def error(tool: str) -> str:
    """Why a tool that failed did so."""
    return f"the order is {_WRONG_STATUS.get(tool, 'not pending')}"


def done(tool: str, order_id: str) -> str:
    """What a change came to; an empty id is not named."""
    if tool == MODIFY_PROFILE:
        return "The address of your account is changed."
    return f"{f'Order {order_id}' if order_id else 'Your order'} is {_DONE[tool]}."


def answer(order: Data, wanted: str) -> str:
    """The answer to a question about an order; nothing wanted: the condition was not met."""
    if not wanted:
        return "Then everything stays as it is."
    if order["fulfillments"] and wanted == order["fulfillments"][0]["tracking_id"][0]:
        return f"The tracking number is {wanted}."
    for item in order["items"]:
        if str(item["price"]) == wanted:
            return f"You paid {wanted} dollars for the {item['name']}."
    return f"You paid {wanted} dollars in total."


def proposal(tool: str, arguments: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> str:
    """What is about to be done, with a question for a yes."""
    return f"I will {_change(tool, arguments, tables)}. Do you confirm (yes/no)?"


def _change(tool: str, arguments: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> str:
    order_id = arguments.get("order_id", "")
    if tool == MODIFY_PROFILE:
        return f"change the address of your account to {address_text(arguments)}"
    if tool == CANCEL:
        return f"cancel order {order_id}, reason: {arguments['reason']}"
    if tool == MODIFY_ADDRESS:
        return f"send order {order_id} to {address_text(arguments)}"
    if tool == MODIFY_PAYMENT:
        return f"charge order {order_id} to {arguments['payment_method_id']}"
    items = {item["item_id"]: item for item in tables["orders"][order_id]["items"]}
    named = [items[one] for one in arguments["item_ids"]]
    if tool == RETURN:
        what = " and the ".join(item["name"] for item in named)
        return f"return the {what} of order {order_id}, refund to {arguments['payment_method_id']}"
    swaps = []
    for item, new in zip(named, arguments["new_item_ids"], strict=True):
        options = tables["products"][item["product_id"]]["variants"][new]["options"]
        swaps.append(f"the {item['name']} for {new} ({options_text(options)})")
    what = " and ".join(swaps)
    return f"change {what} in order {order_id}, paid with {arguments['payment_method_id']}"
