"""Environment of `tool_calling_precision`: make a call in which every id is right."""

from pytest_trace2evolve.cases.content import draw_one, draw_some
from pytest_trace2evolve.cases.expert import MODIFY_PAYMENT
from pytest_trace2evolve.cases.scene import Scene, method_text, options_text
from pytest_trace2evolve.environments.environment import EASIEST
from pytest_trace2evolve.environments.generators.support import (
    Draft,
    SupportGenerator,
    Trajectory,
    single_request_draft,
    with_arguments,
)
from pytest_trace2evolve.records.task import Action, Task

KINDS = ("return", "return", "return", "return", "pay")
"""The kinds of request from difficulty 2. `pay` is rare, because a guess of the method is often right."""

RETURN_SIZES = ((3, 2), (4, 2), (4, 3))
"""The number of items in an order, and the number of items to return.

Returning the first two is seldom right, and returning only one never is.
"""

MIN_EXCHANGE_DIFFICULTY = 4
"""The lowest difficulty with exchanges, for which the agent must read two products."""


class ToolCallingPrecision(SupportGenerator):
    """The customer returns some items of an order, exchanges items, or changes the payment method.

    The grade depends on the first change that the agent tries:

    | grade | trajectory |
    | --- | --- |
    | 0 | no change; or a wrong tool or order |
    | 0.2 | the right tool for the right order, with a wrong, extra or missing item, or a wrong method |
    | 0.5 | half or more of the right items, and no other; in an exchange: the right items, wrong new items |
    | 0.8 | all items right, but not the payment method |
    | 1 | every id right |
    """

    capability = "tool_calling_precision"
    version = 2
    pays = "makes the requested call with every id right, and no other change"
    methods = ("credit_card", "credit_card", "paypal")

    def make_draft(self, scene: Scene) -> Draft:
        """Draw a request whose call has several ids."""
        exchange_kinds = ("exchange", "exchange") if self.difficulty >= MIN_EXCHANGE_DIFFICULTY else ()
        kind = "return" if self.difficulty == EASIEST else draw_one(scene.choices, (*KINDS, *exchange_kinds))
        draw_request = {"return": _draw_return, "pay": _draw_payment, "exchange": _draw_exchange}[kind]
        return draw_request(scene, self.distractors)

    def grade_trajectory(self, trajectory: Trajectory, solved: bool) -> float:
        """Return the grade according to the table in the class docstring."""
        if not trajectory.first_change_fits:
            return 0.0
        if solved:
            return 1.0
        gold = trajectory.gold_changes[0]
        return _grade_items(trajectory.changes[0].arguments, gold) if "item_ids" in gold.arguments else 0.2

    def wrong_change(self, task: Task, gold: Action) -> Action:
        """The right tool with the most obvious ids: all items, or the original payment method."""
        order = task.tables["orders"][gold.arguments["order_id"]]
        if gold.name == MODIFY_PAYMENT:
            return with_arguments(gold, payment_method_id=order["payment_history"][0]["payment_method_id"])
        items = [item["item_id"] for item in order["items"]]
        new_items = {"new_item_ids": items} if "new_item_ids" in gold.arguments else {}
        return with_arguments(gold, item_ids=items, **new_items)


def _draw_payment(scene: Scene, distractors: int) -> Draft:
    """Draw a change of payment to a different method that covers the amount."""
    methods = list(scene.user["payment_methods"].values())
    order = scene.add_order("pending", 1, payment=draw_one(scene.choices, methods)["id"])
    scene.store.add_distractors(scene.user, distractors)
    payment = order["payment_history"][0]
    other_methods = [
        method
        for method in methods
        if method["id"] != payment["payment_method_id"]
        and method.get("balance", payment["amount"]) >= payment["amount"]
    ]
    method = draw_one(scene.choices, other_methods)
    request = scene.say("pay_with", order=order["order_id"], method=method_text(method))
    intent = scene.pay_with(order, method)
    return single_request_draft(scene, scene.opening_message(request), intent)


def _draw_return(scene: Scene, distractors: int) -> Draft:
    item_count, return_count = draw_one(scene.choices, RETURN_SIZES)
    order = scene.add_order("delivered", item_count)
    scene.store.add_distractors(scene.user, distractors)
    drawn_items = draw_some(scene.choices, order["items"], return_count)
    items = [item for item in order["items"] if item in drawn_items]
    products = " and the ".join(item["name"] for item in items)
    request = scene.say("return", products=products, order=order["order_id"])
    return single_request_draft(scene, scene.opening_message(request), scene.send_back(order, items))


def _draw_exchange(scene: Scene, distractors: int) -> Draft:
    order = scene.add_order("delivered", 3)
    scene.store.add_distractors(scene.user, distractors)
    kept_item = scene.draw_item(order)
    items = [item for item in order["items"] if item is not kept_item]
    changes = {item["item_id"]: scene.draw_other_variant(item) for item in items}
    products = scene.store.tables["products"]
    requests = []
    for item in items:
        variant = products[item["product_id"]]["variants"][changes[item["item_id"]]]
        options = options_text(variant["options"])
        requests.append(scene.say("exchange", order=order["order_id"], product=item["name"], options=options))
    requests[1:] = [scene.say("also", request=request) for request in requests[1:]]
    return single_request_draft(scene, scene.opening_message(*requests), scene.swap(order, changes))


def _grade_items(arguments: dict[str, object], gold: Action) -> float:
    """The grade of a change of items that does not solve the scenario."""
    items, new_items = arguments.get("item_ids"), arguments.get("new_item_ids")
    if not isinstance(items, list) or not items or len(set(map(str, items))) != len(items):
        return 0.2
    item_ids, gold_item_ids = set(map(str, items)), set(gold.arguments["item_ids"])
    if "new_item_ids" not in gold.arguments:
        if item_ids == gold_item_ids:
            return 0.8
        return 0.5 if item_ids < gold_item_ids and 2 * len(item_ids) >= len(gold_item_ids) else 0.2
    if item_ids != gold_item_ids:
        return 0.2
    pairs = dict(zip(gold.arguments["item_ids"], gold.arguments["new_item_ids"], strict=True))
    is_right = isinstance(new_items, list) and new_items == [pairs[str(item)] for item in items]
    return 0.8 if is_right else 0.5
