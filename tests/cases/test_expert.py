"""The expert: what the policy allows, in which order it is looked up, and what was done before."""

import pytest

from pytest_trace2evolve.cases.expert import Expert, Intent


def tables_with(status="pending", paid="credit_card_1", amount=20.0, balance=50.0):
    methods = {
        "credit_card_1": {"source": "credit_card", "id": "credit_card_1", "brand": "visa", "last_four": "1"},
        "paypal_1": {"source": "paypal", "id": "paypal_1"},
        "gift_card_1": {"source": "gift_card", "id": "gift_card_1", "balance": balance},
    }
    user = {
        "user_id": "ann",
        "name": {"first_name": "Ann", "last_name": "Lee"},
        "address": {"zip": "1"},
        "email": "ann@x",
        "payment_methods": methods,
        "orders": ["#W1", "#W2"],
    }
    item = {"item_id": "i1", "product_id": "p1", "price": amount}
    order = {
        "status": status,
        "items": [item],
        "payment_history": [{"payment_method_id": paid, "amount": amount}],
    }
    variants = {
        "i1": {"available": True, "price": amount},
        "i2": {"available": True, "price": amount + 10},
        "i3": {"available": False, "price": amount},
    }
    return {
        "users": {"ann": user, "bob": {**user, "user_id": "bob", "orders": ["#W9"]}},
        "orders": {"#W1": order, "#W2": {**order, "items": [dict(item)]}, "#W9": order},
        "products": {"p1": {"variants": variants}},
    }


def expert(**state):
    return Expert(tables_with(**state), "ann", uses_email=True)


CANCEL = Intent("cancel_pending_order", {"order_id": "#W1", "reason": "no longer needed"}, "#W1")


def back(method):
    arguments = {"order_id": "#W1", "item_ids": ["i1"], "payment_method_id": method}
    return Intent("return_delivered_order_items", arguments, "#W1")


def swap(tool, new, method="credit_card_1"):
    arguments = {"order_id": "#W1", "item_ids": ["i1"], "new_item_ids": [new], "payment_method_id": method}
    return Intent(tool, arguments, "#W1")


PAY = Intent("modify_pending_order_payment", {"order_id": "#W1", "payment_method_id": "gift_card_1"}, "#W1")
MODIFY, EXCHANGE = "modify_pending_order_items", "exchange_delivered_order_items"


def test_the_expert_identifies_reads_and_writes_in_this_order():
    done = expert().resolve(CANCEL)
    assert [action.name for action in done.actions] == [
        "find_user_id_by_email",
        "get_user_details",
        "get_order_details",
        "cancel_pending_order",
    ]
    assert done.refusal == ""


def test_the_expert_finds_by_name_where_there_is_no_email_and_looks_for_the_order():
    found = Expert(tables_with(), "ann", uses_email=False)
    done = found.resolve(
        Intent(CANCEL.tool, {**CANCEL.arguments, "order_id": "#W2"}, "#W2", needs_search=True)
    )
    assert done.actions[0].name == "find_user_id_by_name_zip"
    looks = [action.arguments for action in done.actions if action.name == "get_order_details"]
    assert looks == [{"order_id": "#W1"}, {"order_id": "#W2"}]


@pytest.mark.parametrize(
    ("state", "wish", "refusal"),
    [
        ({"status": "delivered"}, CANCEL, "the order is delivered"),
        ({"status": "processed"}, CANCEL, "the order is processed"),
        (
            {},
            Intent(CANCEL.tool, {"order_id": "#W1", "reason": "bored"}, "#W1"),
            "that is no reason for which an order can be cancelled",
        ),
        ({}, Intent(CANCEL.tool, {"order_id": "#W9"}, "#W9"), "the order is another customer's"),
        ({"status": "pending"}, back("credit_card_1"), "the order is pending"),
        (
            {"status": "delivered"},
            back("paypal_1"),
            "a refund goes to the original payment method or a gift card",
        ),
        ({"status": "delivered"}, back("gift_card_1"), ""),
        ({"status": "delivered"}, back("credit_card_1"), ""),
        ({}, swap(MODIFY, "i2"), ""),
        ({}, swap(MODIFY, "i3"), "that item is not available"),
        ({}, swap(MODIFY, "i7"), "an item can only be changed for another of the same product"),
        ({}, swap(MODIFY, "i2", "gift_card_1"), ""),
        ({"balance": 5.0}, swap(MODIFY, "i2", "gift_card_1"), "the gift card does not cover it"),
        ({"status": "delivered"}, swap(EXCHANGE, "i2"), ""),
        ({}, swap(EXCHANGE, "i2"), "the order is pending"),
        ({}, PAY, ""),
        ({"balance": 5.0}, PAY, "the gift card does not cover it"),
        ({"status": "pending (item modified)"}, PAY, "the order is pending (item modified)"),
    ],
)
def test_what_the_policy_allows(state, wish, refusal):
    done = expert(**state).resolve(wish)
    assert done.refusal == refusal
    assert (wish.tool in [action.name for action in done.actions]) is not bool(refusal)


def test_what_was_done_counts_for_what_is_asked_next():
    entry = expert()
    assert entry.resolve(swap(MODIFY, "i2")).refusal == ""
    again = entry.resolve(CANCEL)
    assert again.refusal == "the order is pending (item modified)"
    assert again.actions == ()  # nothing has to be read twice


def test_another_customers_order_is_never_read():
    done = expert().resolve(Intent(CANCEL.tool, {"order_id": "#W9"}, "#W9"))
    assert "get_order_details" not in [action.name for action in done.actions]
