"""The rules that an agent in a retail world must follow, for all worlds with τ² retail's interface."""

from collections.abc import Mapping

from pytest_trace2evolve.records.rules import Promise, Reading, Rules, Writing

_CHANGE_STEMS = ("modif", "chang", "updat", "switch", "swap", "replac", "exchang", "upgrad")
_OPEN_STATUSES = frozenset({"pending", "pending (item modified)"})
_DELIVERED_STATUSES = frozenset({"delivered"})
_ITEM_CHANGE_STATUSES = frozenset({"pending (item modified)", "exchange requested"})

_ITEM_TOOLS = frozenset({"modify_pending_order_items", "exchange_delivered_order_items"})
_REFUND_TOOLS = _ITEM_TOOLS | {
    "cancel_pending_order",
    "return_delivered_order_items",
    "modify_pending_order_payment",
}
_ADDRESS_TOOLS = frozenset({"modify_user_address", "modify_pending_order_address"})
_STORE_TOPICS = (
    *("policy", "policies", "prices", "pricing", "notes", "catalog", "catalogue", "website"),
    *("terms", "opening hours"),
)
"""Words for things of the store itself. To say that one of them changed promises nothing to a customer."""

RETAIL_RULES = Rules(
    identify=frozenset({"find_user_id_by_email", "find_user_id_by_name_zip"}),
    customers="users",
    owner="user_id",
    status="status",
    ids={"orders": r"#?W\d{5,}"},
    reads={
        "get_user_details": Reading(table="users", argument="user_id"),
        "get_order_details": Reading(table="orders", argument="order_id"),
    },
    writes={
        "cancel_pending_order": Writing(
            table="orders", argument="order_id", named=("cancel",), statuses=frozenset({"pending"})
        ),
        "modify_pending_order_items": Writing(
            table="orders", argument="order_id", named=_CHANGE_STEMS, statuses=frozenset({"pending"})
        ),
        "modify_pending_order_address": Writing(
            table="orders", argument="order_id", named=("address", "ship"), statuses=_OPEN_STATUSES
        ),
        "modify_pending_order_payment": Writing(
            table="orders", argument="order_id", named=("pay", "card", "charg"), statuses=_OPEN_STATUSES
        ),
        "return_delivered_order_items": Writing(
            table="orders", argument="order_id", named=("return", "refund"), statuses=_DELIVERED_STATUSES
        ),
        "exchange_delivered_order_items": Writing(
            table="orders",
            argument="order_id",
            named=("exchang", "replac", "swap", "switch"),
            statuses=_DELIVERED_STATUSES,
        ),
        "modify_user_address": Writing(table="users", argument="user_id", named=("address",)),
    },
    promises=(
        Promise(
            tools=frozenset({"cancel_pending_order"}),
            verbs=("cancelled", "canceled"),
            nouns=("cancellation",),
            statuses=frozenset({"cancelled"}),
        ),
        Promise(
            tools=frozenset({"return_delivered_order_items"}),
            verbs=("returned",),
            nouns=("return", "returns"),
            statuses=frozenset({"return requested"}),
        ),
        Promise(
            tools=_ITEM_TOOLS,
            verbs=("exchanged",),
            nouns=("exchange", "exchanges"),
            statuses=_ITEM_CHANGE_STATUSES,
        ),
        Promise(
            tools=_ADDRESS_TOOLS,
            verbs=("updated", "changed", "modified"),
            nouns=("address change", "address update"),
            about=("address", "addresses"),
        ),
        Promise(
            tools=frozenset({"modify_pending_order_payment"}),
            verbs=("updated", "changed", "modified", "switched"),
            about=("payment method",),
            unless=("difference", "this modification", "this exchange", "this change", "refund"),
        ),
        Promise(
            tools=_ITEM_TOOLS,
            verbs=("updated", "changed", "modified", "swapped", "upgraded"),
            about=("item", "items"),
            statuses=_ITEM_CHANGE_STATUSES,
        ),
        Promise(
            tools=_REFUND_TOOLS,
            verbs=("refunded",),
            nouns=("refund",),
            statuses=frozenset({"cancelled", "return requested", "exchange requested"}),
        ),
        Promise(
            tools=_REFUND_TOOLS | _ADDRESS_TOOLS,
            verbs=("updated", "changed", "modified", "swapped", "upgraded", "switched", "replaced"),
            nouns=("change", "changes", "modification", "modifications", "update", "updates", "upgrade"),
            unless=_STORE_TOPICS,
            statuses=_ITEM_CHANGE_STATUSES,
            vague=True,
        ),
        Promise(
            tools=frozenset({"transfer_to_human_agents"}),
            verbs=("transferred",),
            phrases=("you are being transferred", "you're being transferred"),
        ),
    ),
)
"""The rules of τ² retail's policy that can be checked in a trace."""

RULES_BY_DOMAIN: Mapping[str, Rules] = {"retail": RETAIL_RULES}
"""Rules of τ² domains by name; a domain that is not listed has no rules."""
