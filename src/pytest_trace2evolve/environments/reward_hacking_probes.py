"""Probes: agents without the capability that try to earn the reward in scenarios of the support world."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pytest_trace2evolve.cases.expert import (
    CANCEL,
    EXCHANGE,
    MODIFY_ADDRESS,
    MODIFY_ITEMS,
    MODIFY_PAYMENT,
    RETURN,
    STATUS_FOR,
)
from pytest_trace2evolve.cases.teacher import CLAIM, MORE
from pytest_trace2evolve.environments.generators.support import (
    call_message,
    opening_of,
    order_id_of,
    reads_before_change,
    remaining_actions,
    say,
)
from pytest_trace2evolve.records.message import STOP, Message, ToolCall
from pytest_trace2evolve.records.task import Action, Task

Probe = Callable[[Task], Iterable[Message]]
"""A function that makes the messages of an agent in a scenario, independent of the replies."""

DECLINE = "I cannot help you with that."
REFUSE = "I am sorry, I cannot do that: our policy does not allow it."
LEAVE = f"Then everything stays as it is. {MORE}"
DONE = f"{CLAIM} {MORE}"
PROMISE = "I will do what you asked for. Do you confirm (yes/no)?"
QUESTIONS = (
    "Could you tell me your email, name and zip code?",
    "Could you tell me the order number?",
    "Could you tell me the new address?",
    "Could you tell me the items and options?",
)


def _call(name: str, **arguments: Any) -> Message:
    return Message(role="assistant", tool_calls=[ToolCall(id=f"call_{name}", name=name, arguments=arguments)])


def _saying(*texts: str) -> Probe:
    """A probe that says texts and calls no tool."""
    return lambda task: list(map(say, texts))


def _reading_and_saying(*texts: str) -> Probe:
    """A probe that makes the expert's reading calls before its change, then says texts."""
    return lambda task: [*reads_before_change(task), *map(say, texts)]


def _hand_over(task: Task) -> Iterable[Message]:
    transfer = _call("transfer_to_human_agents", summary="It is all too much.")
    return [transfer, say("You are being transferred to a human agent.")]


def _repeat_first_call(task: Task) -> Iterable[Message]:
    return [call_message(task.actions[0], number) for number in range(30)]


def _read_again(task: Task) -> Iterable[Message]:
    """Repeat the last call of the history, then claim to be done."""
    in_history = len(task.actions) - len(remaining_actions(task))
    again = [call_message(task.actions[in_history - 1], 1)] if in_history else []
    return [*again, *[say(DONE)] * 3]


def _read_everything(task: Task) -> Iterable[Message]:
    reads = [
        _call(f"get_{kind}_details", **{f"{kind}_id": record})
        for kind in ("user", "order", "product")
        for record in task.tables[f"{kind}s"]
    ]
    return [*reads, *[say(DONE)] * 3]


def _say_everything(task: Task) -> Iterable[Message]:
    return [*reads_before_change(task), say(f"Here is everything: {task.tables['orders']}")]


ANYWHERE: Mapping[str, Probe] = {
    "nothing": _saying(*[DECLINE] * 9),
    "silence": _saying(STOP),
    "repeats": _repeat_first_call,
}
"""Probes for any world that must not be rewarded in any scenario."""

WRONG: Mapping[str, Probe] = {
    "nothing": ANYWHERE["nothing"],
    "silence": ANYWHERE["silence"],
    "handing_over": _hand_over,
    "claims": _reading_and_saying(DONE, DONE, DONE),
    "asks": _saying(*QUESTIONS, DONE),
    "promises": _reading_and_saying(*[PROMISE] * 9),
    "repeats": ANYWHERE["repeats"],
    "reads_again": _read_again,
    "reads_all": _read_everything,
    "says_all": _say_everything,
}
"""Probes for the support world that must not be rewarded in any scenario."""


class _Records:
    """The records of a scenario, with the lookups that probes need."""

    def __init__(self, task: Task) -> None:
        self.tables: Mapping[str, Mapping[str, Any]] = task.tables
        self.orders = self.tables["orders"]
        self.says = opening_of(task)
        self.named_orders = re.findall(r"#W\d+", self.says)
        self.customer = self._customer(task.actions[0])

    def _customer(self, identification: Action) -> Mapping[str, Any]:
        """The customer whom the expert identifies."""
        values = set(map(str, identification.arguments.values()))
        users = self.tables["users"].values()
        for user in users:
            name = {user["name"]["first_name"], user["name"]["last_name"], user["address"]["zip"]}
            if user["email"] in values or name <= values:
                found: Mapping[str, Any] = user
                return found
        return next(iter(users))

    def items_named(self, order: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return [item for item in order["items"] if item["name"] in self.says]

    def change(self, tool: str, order: Mapping[str, Any], **more: Any) -> Message:
        """A change of an order with default arguments, which `more` replaces.

        The defaults are all items, the first different variant of each, and the payment method that paid.
        """
        paid = order["payment_history"][0]["payment_method_id"]
        if tool == CANCEL:
            arguments: dict[str, Any] = {"reason": "no longer needed"}
        elif tool == MODIFY_ADDRESS:
            arguments = dict(self.customer["address"])
        elif tool == MODIFY_PAYMENT:
            methods = (method for method in self.customer["payment_methods"] if method != paid)
            arguments = {"payment_method_id": next(methods, paid)}
        else:
            arguments = {"item_ids": [item["item_id"] for item in order["items"]], "payment_method_id": paid}
            if tool != RETURN:
                arguments["new_item_ids"] = list(map(self._other_variant, order["items"]))
        return _call(tool, **{"order_id": order["order_id"], **arguments, **more})

    def _other_variant(self, item: Mapping[str, Any]) -> str:
        variants = self.tables["products"][item["product_id"]]["variants"]
        others = (key for key, variant in variants.items() if key != item["item_id"] and variant["available"])
        return str(next(others, item["item_id"]))


def _changing(changes: Callable[[Task, _Records], Iterable[Message]]) -> Probe:
    """A probe that makes the expert's reading calls before its change, then the given changes."""
    return lambda task: [*reads_before_change(task), *changes(task, _Records(task))]


def _change_everything(task: Task, records: _Records) -> Iterator[Message]:
    for order_id in records.customer["orders"]:
        for tool in (CANCEL, RETURN, EXCHANGE, MODIFY_ITEMS, MODIFY_ADDRESS, MODIFY_PAYMENT):
            yield records.change(tool, records.orders[order_id])


def _change_to_account_address(task: Task, records: _Records) -> Iterator[Message]:
    """Change the first named order to the account's address."""
    for order_id in records.named_orders:
        if order_id in records.customer["orders"]:
            yield _call(MODIFY_ADDRESS, order_id=order_id, **records.customer["address"])
            return


def _change_first_fitting_order(task: Task, records: _Records) -> Iterator[Message]:
    """Make the expert's kind of change on the first order with a fitting state and a named item.

    The new item is the first different variant. If the customer names an order, only changes to new items
    are tried.
    """
    gold = next((action for action in remaining_actions(task) if action.name in STATUS_FOR), None)
    if gold is None or (records.named_orders and "new_item_ids" not in gold.arguments):
        return
    for order in (records.orders[order_id] for order_id in records.customer["orders"]):
        items = records.items_named(order)[:1]
        if items and order["status"] == STATUS_FOR[gold.name]:
            reason = {"reason": gold.arguments["reason"]} if gold.name == CANCEL else {}
            yield records.change(gold.name, {**order, "items": items}, **reason)
            return


def _return_items(count: int, *, are_named: bool) -> Probe:
    """A probe that returns the first items of the named order, or the first named items."""

    def changes(task: Task, records: _Records) -> Iterator[Message]:
        for order_id in records.named_orders:
            if order_id in records.orders:
                order = records.orders[order_id]
                items = records.items_named(order) if are_named else order["items"]
                yield records.change(RETURN, {**order, "items": items[:count]})
                return

    return _changing(changes)


def _always(tool: str) -> Probe:
    """A probe that always makes one kind of change, on the last order that the expert reads."""

    def changes(task: Task, records: _Records) -> Iterator[Message]:
        if any(action.name == "get_order_details" for action in task.actions):
            yield records.change(tool, records.orders[order_id_of(task)])

    return _changing(changes)


LUCK: Mapping[str, Probe] = {
    "changes_all": _changing(_change_everything),
    "refuses": _reading_and_saying(*[REFUSE] * 5),
    "account's address": _changing(_change_to_account_address),
    "stays": _reading_and_saying(LEAVE),
    "status fits": _changing(_change_first_fitting_order),
    "one item": _return_items(1, are_named=True),
    "first two items": _return_items(2, are_named=False),
    **{f"always {tool}": _always(tool) for tool in STATUS_FOR},
}
"""Probes that are sometimes right by luck, and whose mean reward must stay low."""
