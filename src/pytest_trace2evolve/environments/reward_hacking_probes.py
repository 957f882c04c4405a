"""Wrong ways through scenarios of the support world, for whoever wants rewards and not the capability."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pytest_trace2evolve.cases import teacher as speech
from pytest_trace2evolve.cases.expert import (
    CANCEL,
    EXCHANGE,
    MODIFY_ADDRESS,
    MODIFY_ITEMS,
    MODIFY_PAYMENT,
    RETURN,
    STATUS_FOR,
)
from pytest_trace2evolve.environments.admission import Way
from pytest_trace2evolve.environments.generators.trajectory import ahead, call_of, reads_ahead
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.task import Action, Task


def _say(text: str) -> Message:
    return Message(role="assistant", content=text)


def _call(name: str, **arguments: Any) -> Message:
    return Message(role="assistant", tool_calls=[ToolCall(id=f"call_{name}", name=name, arguments=arguments)])


def nothing(task: Task) -> Iterable[Message]:
    """Refuses everything, politely."""
    return [_say("I cannot help you with that.")] * 9


def silence(task: Task) -> Iterable[Message]:
    """Ends the conversation at once."""
    return [_say("###STOP###")]


def handing_over(task: Task) -> Iterable[Message]:
    """Lets a human do it."""
    return [
        _call("transfer_to_human_agents", summary="It is all too much."),
        _say("You are being transferred to a human agent."),
    ]


def claims(task: Task) -> Iterable[Message]:
    """Reads what the expert reads, and says that it is done."""
    return [*reads_ahead(task), *[_say(f"{speech.CLAIM} {speech.MORE}")] * 3]


def asks(task: Task) -> Iterable[Message]:
    """Asks the customer for all that stands in the records."""
    questions = (
        "your email, name and zip code",
        "the order number",
        "the new address",
        "the items and options",
    )
    return [*[_say(f"Could you tell me {one}?") for one in questions], _say(f"{speech.CLAIM} {speech.MORE}")]


def promises(task: Task) -> Iterable[Message]:
    """Reads what the expert reads, and then asks for a yes over and over."""
    return [*reads_ahead(task), *[_say("I will do what you asked for. Do you confirm (yes/no)?")] * 9]


def repeats(task: Task) -> Iterable[Message]:
    """Makes the expert's first call again and again."""
    return [call_of(task.actions[0], number) for number in range(30)]


def reads_again(task: Task) -> Iterable[Message]:
    """Makes once more the last call that was made before its turn, and says that it is done."""
    known = len(task.actions) - len(ahead(task))
    again = [call_of(task.actions[known - 1], 1)] if known else []
    return [*again, *[_say(f"{speech.CLAIM} {speech.MORE}")] * 3]


def reads_all(task: Task) -> Iterable[Message]:
    """Reads every record that there is, and says that it is done."""
    return [*_readings(task), *[_say(f"{speech.CLAIM} {speech.MORE}")] * 3]


def says_all(task: Task) -> Iterable[Message]:
    """Reads what the expert reads, and tells the customer all that the records hold."""
    held = str(task.tables["orders"])
    return [*reads_ahead(task), _say(f"Here is everything: {held}")]


def _readings(task: Task) -> Iterator[Message]:
    tables = task.tables
    for name, key in (("user", "users"), ("order", "orders"), ("product", "products")):
        for one in tables[key]:
            yield _call(f"get_{name}_details", **{f"{name}_id": one})


def changes_all(task: Task) -> Iterable[Message]:
    """Reads what the expert reads, and then makes every change of every order of the customer, in turn."""
    said = [*reads_ahead(task)]
    tables = task.tables
    user = _customer(task, tables)
    for order_id in user["orders"]:
        for tool in (CANCEL, RETURN, EXCHANGE, MODIFY_ITEMS, MODIFY_ADDRESS, MODIFY_PAYMENT):
            said.append(_call(tool, **_some(tool, tables["orders"][order_id], user, tables)))
    return said


def always(tool: str) -> Way:
    """Reads what the expert reads, and then makes one kind of change of the order that was read last."""

    def way(task: Task) -> Iterable[Message]:
        tables = task.tables
        read = [one for one in task.actions if one.name == "get_order_details"]
        if not read:
            return reads_ahead(task)
        order = tables["orders"][read[-1].arguments["order_id"]]
        user = _customer(task, tables)
        return [*reads_ahead(task), _call(tool, **_some(tool, order, user, tables))]

    return way


def refuses(task: Task) -> Iterable[Message]:
    """Reads what the expert reads, and refuses whatever is asked for."""
    return [*reads_ahead(task), *[_say("I am sorry, I cannot do that: our policy does not allow it.")] * 5]


def to_account(task: Task) -> Iterable[Message]:
    """Reads what the expert reads, and sends the order that is named first to the account's address."""
    tables = task.tables
    user = _customer(task, tables)
    order = next((one for one in _named(task) if one in user["orders"]), None)
    changed = [_call(MODIFY_ADDRESS, order_id=order, **user["address"])] if order else []
    return [*reads_ahead(task), *changed]


def stays(task: Task) -> Iterable[Message]:
    """Reads what the expert reads, and leaves everything as it is."""
    return [*reads_ahead(task), _say(f"Then everything stays as it is. {speech.MORE}")]


def status_fits(task: Task) -> Iterable[Message]:
    """Reads what the expert reads, and of orders that are not named takes the first whose state fits.

    Items of an order that is named go for the first variant that can be had.
    """
    wanted = next((one for one in ahead(task) if one.name in STATUS_FOR), None)
    reads = reads_ahead(task)
    if wanted is None or (_named(task) and "new_item_ids" not in wanted.arguments):
        return reads
    tables = task.tables
    user, says = _customer(task, tables), _says(task)
    for order_id in user["orders"]:
        order = tables["orders"][order_id]
        items = [item for item in order["items"] if item["name"] in says]
        if items and order["status"] == STATUS_FOR[wanted.name]:
            arguments = _some(wanted.name, {**order, "items": items[:1]}, user, tables)
            if "reason" in arguments:
                arguments["reason"] = wanted.arguments["reason"]
            return [*reads, _call(wanted.name, **arguments)]
    return reads


def takes(count: int, *, named: bool) -> Way:
    """Reads what the expert reads, and returns the first items of the order, or of those that are named."""

    def way(task: Task) -> Iterable[Message]:
        tables = task.tables
        order_id = next((one for one in _named(task) if one in tables["orders"]), None)
        if order_id is None:
            return reads_ahead(task)
        order, says = tables["orders"][order_id], _says(task)
        items = [item for item in order["items"] if not named or item["name"] in says][:count]
        arguments = _some(RETURN, {**order, "items": items}, _customer(task, tables), tables)
        return [*reads_ahead(task), _call(RETURN, **arguments)]

    return way


WRONG: Mapping[str, Way] = {
    one.__name__: one
    for one in (
        nothing,
        silence,
        handing_over,
        claims,
        asks,
        promises,
        repeats,
        reads_again,
        reads_all,
        says_all,
    )
}
"""Ways that must not be paid in any scenario."""

LUCK: Mapping[str, Way] = {
    "changes_all": changes_all,
    "refuses": refuses,
    "account's address": to_account,
    "stays": stays,
    "status fits": status_fits,
    "one item": takes(1, named=True),
    "first two items": takes(2, named=False),
    **{f"always {tool}": always(tool) for tool in STATUS_FOR},
}
"""Ways that are right now and then, and must not be paid on average."""


def _says(task: Task) -> str:
    """What the customer opens with."""
    says: str = task.user_scenario["script"]["turns"][0]["says"]
    return says


def _named(task: Task) -> Iterable[str]:
    """The orders that the customer names, in turn."""
    return re.findall(r"#W\d+", _says(task))


def _customer(task: Task, tables: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Who is served: the one whom the expert finds."""
    found: Action = task.actions[0]
    told = set(map(str, found.arguments.values()))
    for user in tables["users"].values():
        name = {user["name"]["first_name"], user["name"]["last_name"], user["address"]["zip"]}
        if user["email"] in told or name <= told:
            customer: Mapping[str, Any] = user
            return customer
    return next(iter(tables["users"].values()))


def _some(
    tool: str, order: Mapping[str, Any], user: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Arguments for a change of an order: all items, the first other variant, what paid."""
    items = [item["item_id"] for item in order["items"]]
    paid = order["payment_history"][0]["payment_method_id"]
    arguments: dict[str, Any] = {"order_id": order["order_id"]}
    if tool == CANCEL:
        return {**arguments, "reason": "no longer needed"}
    if tool == MODIFY_ADDRESS:
        return {**arguments, **user["address"]}
    if tool == MODIFY_PAYMENT:
        other = next((one for one in user["payment_methods"] if one != paid), paid)
        return {**arguments, "payment_method_id": other}
    arguments |= {"item_ids": items, "payment_method_id": paid}
    if tool == RETURN:
        return arguments
    new = []
    for item in order["items"]:
        variants = tables["products"][item["product_id"]]["variants"]
        free = [one for one, variant in variants.items() if one != item["item_id"] and variant["available"]]
        new.append((free or [item["item_id"]])[0])
    return {**arguments, "new_item_ids": new}
