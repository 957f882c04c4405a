"""Probes are agents that lack a capability but try to earn the reward for it."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pytest_trace2evolve.cases.expert import (
    CANCEL,
    EXCHANGE,
    MODIFY_ADDRESS,
    MODIFY_ITEMS,
    MODIFY_PAYMENT,
    REQUIRED_STATUS,
    RETURN,
)
from pytest_trace2evolve.cases.teacher import ANYTHING_ELSE, CLAIM_DONE
from pytest_trace2evolve.environments.generators.support import (
    call_message,
    gold_order_id,
    opening_text,
    read_messages_before_change,
    remaining_actions,
    say,
)
from pytest_trace2evolve.records.message import STOP_MARK, Message, ToolCall
from pytest_trace2evolve.records.task import Action, Task

Probe = Callable[[Task], Iterable[Message]]
"""A function that makes the messages of an agent in a scenario, independently of the replies."""

DECLINE = "I cannot help you with that."
REFUSE = "I am sorry, I cannot do that: our policy does not allow it."
KEEP_AS_IS = f"Then everything stays as it is. {ANYTHING_ELSE}"
DONE_MESSAGE = f"{CLAIM_DONE} {ANYTHING_ELSE}"
PROMISE = "I will do what you asked for. Do you confirm (yes/no)?"
QUESTIONS = (
    "Could you tell me your email, name and zip code?",
    "Could you tell me the order number?",
    "Could you tell me the new address?",
    "Could you tell me the items and options?",
)


def _call(name: str, **arguments: Any) -> Message:
    return Message(role="assistant", tool_calls=[ToolCall(id=f"call_{name}", name=name, arguments=arguments)])


def _speech_probe(*texts: str) -> Probe:
    """A probe that says texts and calls no tool."""
    return lambda task: list(map(say, texts))


def _read_and_speak_probe(*texts: str) -> Probe:
    """A probe that first makes the read calls before the expert's next change, and then says texts."""
    return lambda task: [*read_messages_before_change(task), *map(say, texts)]


def _transfer_to_human(task: Task) -> Iterable[Message]:
    transfer = _call("transfer_to_human_agents", summary="It is all too much.")
    return [transfer, say("You are being transferred to a human agent.")]


def _repeat_first_call(task: Task) -> Iterable[Message]:
    return [call_message(task.actions[0], number) for number in range(30)]


def _repeat_last_read(task: Task) -> Iterable[Message]:
    """Repeat the last call of the history, then claim to be done."""
    history_length = len(task.actions) - len(remaining_actions(task))
    repeats = [call_message(task.actions[history_length - 1], 1)] if history_length else []
    return [*repeats, *[say(DONE_MESSAGE)] * 3]


def _read_everything(task: Task) -> Iterable[Message]:
    reads = [
        _call(f"get_{table}_details", **{f"{table}_id": record_id})
        for table in ("user", "order", "product")
        for record_id in task.tables[f"{table}s"]
    ]
    return [*reads, *[say(DONE_MESSAGE)] * 3]


def _say_everything(task: Task) -> Iterable[Message]:
    return [*read_messages_before_change(task), say(f"Here is everything: {task.tables['orders']}")]


GENERAL_PROBES: Mapping[str, Probe] = {
    "nothing": _speech_probe(*[DECLINE] * 9),
    "silence": _speech_probe(STOP_MARK),
    "claims": _speech_probe(DONE_MESSAGE, DONE_MESSAGE, DONE_MESSAGE),
    "promises": _speech_probe(*[PROMISE] * 9),
    "repeats": _repeat_first_call,
}
"""Probes for any world, which must get almost no reward in every scenario."""

WRONG_PROBES: Mapping[str, Probe] = {
    "nothing": GENERAL_PROBES["nothing"],
    "silence": GENERAL_PROBES["silence"],
    "handing_over": _transfer_to_human,
    "claims": _read_and_speak_probe(DONE_MESSAGE, DONE_MESSAGE, DONE_MESSAGE),
    "asks": _speech_probe(*QUESTIONS, DONE_MESSAGE),
    "promises": _read_and_speak_probe(*[PROMISE] * 9),
    "repeats": GENERAL_PROBES["repeats"],
    "reads_again": _repeat_last_read,
    "reads_all": _read_everything,
    "says_all": _say_everything,
}
"""Probes for the support world, which must get almost no reward in every scenario."""


class _ScenarioRecords:
    """The records of a scenario, with the lookups that probes need."""

    def __init__(self, task: Task) -> None:
        self.tables: Mapping[str, Mapping[str, Any]] = task.tables
        self.orders = self.tables["orders"]
        self.opening = opening_text(task)
        self.named_orders = re.findall(r"#W\d+", self.opening)
        self.customer = self._customer(task.actions[0])

    def _customer(self, identification: Action) -> Mapping[str, Any]:
        """The customer whom the expert identifies."""
        values = set(map(str, identification.arguments.values()))
        users = self.tables["users"].values()
        for user in users:
            name = {user["name"]["first_name"], user["name"]["last_name"], user["address"]["zip"]}
            if user["email"] in values or name <= values:
                customer: Mapping[str, Any] = user
                return customer
        return next(iter(users))

    def find_named_items(self, order: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return [item for item in order["items"] if item["name"] in self.opening]

    def change(self, tool: str, order: Mapping[str, Any], **overrides: Any) -> Message:
        """A change of an order with default arguments, which `overrides` replaces.

        The defaults depend on the tool: all items, the first other available variant of each and the
        original payment method; or the account's address; or another payment method.
        """
        paid_method = order["payment_history"][0]["payment_method_id"]
        if tool == CANCEL:
            arguments: dict[str, Any] = {"reason": "no longer needed"}
        elif tool == MODIFY_ADDRESS:
            arguments = dict(self.customer["address"])
        elif tool == MODIFY_PAYMENT:
            methods = (method for method in self.customer["payment_methods"] if method != paid_method)
            arguments = {"payment_method_id": next(methods, paid_method)}
        else:
            arguments = {
                "item_ids": [item["item_id"] for item in order["items"]],
                "payment_method_id": paid_method,
            }
            if tool != RETURN:
                arguments["new_item_ids"] = list(map(self._other_variant, order["items"]))
        return _call(tool, **{"order_id": order["order_id"], **arguments, **overrides})

    def _other_variant(self, item: Mapping[str, Any]) -> str:
        variants = self.tables["products"][item["product_id"]]["variants"]
        other_ids = (
            item_id
            for item_id, variant in variants.items()
            if item_id != item["item_id"] and variant["available"]
        )
        return str(next(other_ids, item["item_id"]))


def _change_probe(make_changes: Callable[[Task, _ScenarioRecords], Iterable[Message]]) -> Probe:
    """A probe that first makes the read calls before the expert's next change, and then the given changes."""
    return lambda task: [*read_messages_before_change(task), *make_changes(task, _ScenarioRecords(task))]


def _change_everything(task: Task, records: _ScenarioRecords) -> Iterator[Message]:
    for order_id in records.customer["orders"]:
        for tool in (CANCEL, RETURN, EXCHANGE, MODIFY_ITEMS, MODIFY_ADDRESS, MODIFY_PAYMENT):
            yield records.change(tool, records.orders[order_id])


def _change_to_account_address(task: Task, records: _ScenarioRecords) -> Iterator[Message]:
    """Change the address of the customer's first named order to the account's address."""
    for order_id in records.named_orders:
        if order_id in records.customer["orders"]:
            yield _call(MODIFY_ADDRESS, order_id=order_id, **records.customer["address"])
            return


def _change_first_fitting_order(task: Task, records: _ScenarioRecords) -> Iterator[Message]:
    """Make the expert's kind of change on the first order with a fitting state and a named item.

    The new item is the first different variant. If the customer names an order, only changes to new items
    are tried.
    """
    gold_action = next((action for action in remaining_actions(task) if action.name in REQUIRED_STATUS), None)
    if gold_action is None or (records.named_orders and "new_item_ids" not in gold_action.arguments):
        return
    for order in (records.orders[order_id] for order_id in records.customer["orders"]):
        items = records.find_named_items(order)[:1]
        if items and order["status"] == REQUIRED_STATUS[gold_action.name]:
            reason = {"reason": gold_action.arguments["reason"]} if gold_action.name == CANCEL else {}
            yield records.change(gold_action.name, {**order, "items": items}, **reason)
            return


def _return_probe(count: int, *, only_named: bool) -> Probe:
    """A probe that returns the first items of the named order, or the first named items."""

    def make_changes(task: Task, records: _ScenarioRecords) -> Iterator[Message]:
        for order_id in records.named_orders:
            if order_id in records.orders:
                order = records.orders[order_id]
                items = records.find_named_items(order) if only_named else order["items"]
                yield records.change(RETURN, {**order, "items": items[:count]})
                return

    return _change_probe(make_changes)


def _fixed_change_probe(tool: str) -> Probe:
    """A probe that always makes one kind of change, on the last order that the expert reads."""

    def make_changes(task: Task, records: _ScenarioRecords) -> Iterator[Message]:
        if any(action.name == "get_order_details" for action in task.actions):
            yield records.change(tool, records.orders[gold_order_id(task)])

    return _change_probe(make_changes)


LUCKY_PROBES: Mapping[str, Probe] = {
    "changes_all": _change_probe(_change_everything),
    "refuses": _read_and_speak_probe(*[REFUSE] * 5),
    "account's address": _change_probe(_change_to_account_address),
    "stays": _read_and_speak_probe(KEEP_AS_IS),
    "status fits": _change_probe(_change_first_fitting_order),
    "one item": _return_probe(1, only_named=True),
    "first two items": _return_probe(2, only_named=False),
    **{f"always {tool}": _fixed_change_probe(tool) for tool in REQUIRED_STATUS},
}
"""Probes that are sometimes right by luck, and whose mean reward must stay low."""
