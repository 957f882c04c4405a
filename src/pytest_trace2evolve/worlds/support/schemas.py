"""The tools as a model sees them: names and parameters are τ² retail's, descriptions are ours."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pytest_trace2evolve.records.protocols import ToolSchema
from pytest_trace2evolve.records.score import ToolType

_TEXTS = {
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
}
_LISTS = {
    "item_ids": "Ids of items in the order, one for each piece.",
    "new_item_ids": "What comes in place of each, in the same order.",
}
_ADDRESS = "address1 address2 city state country zip"

_TOOLS: Mapping[str, tuple[ToolType, str, str]] = MappingProxyType(
    {
        "calculate": (ToolType.GENERIC, "Work out an arithmetic expression.", "expression"),
        "cancel_pending_order": (
            ToolType.WRITE,
            "Cancel a pending order and refund it: to a gift card at once, else within 5 to 7 business days.",
            "order_id reason",
        ),
        "exchange_delivered_order_items": (
            ToolType.WRITE,
            "Request the exchange of delivered items for other items of the same products.",
            "order_id item_ids new_item_ids payment_method_id",
        ),
        "find_user_id_by_name_zip": (
            ToolType.READ,
            "Find a user's id by name and postal code.",
            "first_name last_name zip",
        ),
        "find_user_id_by_email": (ToolType.READ, "Find a user's id by email.", "email"),
        "get_order_details": (ToolType.READ, "Read an order.", "order_id"),
        "get_product_details": (ToolType.READ, "Read a product and all its items.", "product_id"),
        "get_item_details": (ToolType.READ, "Read one item: options, price, stock.", "item_id"),
        "get_user_details": (ToolType.READ, "Read a user, with payment methods and order ids.", "user_id"),
        "list_all_product_types": (ToolType.READ, "List the names and ids of all products.", ""),
        "modify_pending_order_address": (
            ToolType.WRITE,
            "Change the shipping address of a pending order.",
            f"order_id {_ADDRESS}",
        ),
        "modify_pending_order_items": (
            ToolType.WRITE,
            "Replace items of a pending order by other items of the same products; possible once.",
            "order_id item_ids new_item_ids payment_method_id",
        ),
        "modify_pending_order_payment": (
            ToolType.WRITE,
            "Pay a pending order with another payment method.",
            "order_id payment_method_id",
        ),
        "modify_user_address": (
            ToolType.WRITE,
            "Change a user's own address; orders keep theirs.",
            f"user_id {_ADDRESS}",
        ),
        "return_delivered_order_items": (
            ToolType.WRITE,
            "Request the return of delivered items.",
            "order_id item_ids payment_method_id",
        ),
        "transfer_to_human_agents": (
            ToolType.GENERIC,
            "Hand the customer to a human agent.",
            "summary",
        ),
    }
)

TOOL_TYPES: Mapping[str, ToolType] = MappingProxyType({name: tool[0] for name, tool in _TOOLS.items()})
"""What each tool does, by its name."""


def tool_schemas() -> list[ToolSchema]:
    """The agent's tools; every parameter is required."""
    return [
        ToolSchema(name=name, description=description, parameters=_parameters(names.split()))
        for name, (_, description, names) in _TOOLS.items()
    ]


def _parameters(names: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: _parameter(name) for name in names},
        "required": names,
        "additionalProperties": False,
    }


def _parameter(name: str) -> dict[str, Any]:
    if name in _LISTS:
        return {"type": "array", "items": {"type": "string"}, "description": _LISTS[name]}
    return {"type": "string", "description": _TEXTS[name]}
