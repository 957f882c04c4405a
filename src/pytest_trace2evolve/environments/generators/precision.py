"""Environment of `tool_calling_precision`: make a call in which every id is right."""

from pytest_trace2evolve.cases.content import one_of, some_of
from pytest_trace2evolve.cases.expert import MODIFY_PAYMENT
from pytest_trace2evolve.cases.scene import Scene, method_text, options_text
from pytest_trace2evolve.environments.environment import EASIEST
from pytest_trace2evolve.environments.generators.support import (
    Draft,
    SupportGenerator,
    Trajectory,
    one_request,
    with_arguments,
)
from pytest_trace2evolve.records.task import Action, Task

KINDS = ("return", "return", "return", "return", "pay")
"""The kinds of request from difficulty 2. `pay` is rare, because it is one choice of two or three methods."""

PARTS = ((3, 2), (4, 2), (4, 3))
"""The number of items in an order, and of those to return.

Returning the first two is seldom right, and returning only one never is.
"""

EXCHANGES_FROM = 4
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
    version = 1
    pays = "makes the requested call with every id right, and no other change"
    methods = ("credit_card", "credit_card", "paypal")

    def draw(self, scene: Scene) -> Draft:
        """Draw a request whose call has several ids."""
        exchanges = ("exchange", "exchange") if self.difficulty >= EXCHANGES_FROM else ()
        kind = "return" if self.difficulty == EASIEST else one_of(scene.draws, (*KINDS, *exchanges))
        draw = {"return": _draw_return, "pay": _draw_payment, "exchange": _draw_exchange}[kind]
        return draw(scene, self.distractors)

    def grade_trajectory(self, trajectory: Trajectory, solved: bool) -> float:
        """The grade by the table of the class."""
        if not trajectory.first_change_fits:
            return 0.0
        if solved:
            return 1.0
        gold = trajectory.gold_changes[0]
        return _items_grade(trajectory.changes[0].arguments, gold) if "item_ids" in gold.arguments else 0.2

    def wrong_change(self, task: Task, gold: Action) -> Action:
        """The right tool with the most obvious ids: all items, or the method that paid."""
        order = task.tables["orders"][gold.arguments["order_id"]]
        if gold.name == MODIFY_PAYMENT:
            return with_arguments(gold, payment_method_id=order["payment_history"][0]["payment_method_id"])
        items = [item["item_id"] for item in order["items"]]
        new_items = {"new_item_ids": items} if "new_item_ids" in gold.arguments else {}
        return with_arguments(gold, item_ids=items, **new_items)


def _draw_payment(scene: Scene, distractors: int) -> Draft:
    """Draw a change of payment to a different method that covers the amount."""
    methods = list(scene.user["payment_methods"].values())
    order = scene.order("pending", 1, payment=one_of(scene.draws, methods)["id"])
    scene.store.surroundings(scene.user, distractors)
    payment = order["payment_history"][0]
    others = [
        method
        for method in methods
        if method["id"] != payment["payment_method_id"]
        and method.get("balance", payment["amount"]) >= payment["amount"]
    ]
    method = one_of(scene.draws, others)
    says = scene.say("pay_with", order=order["order_id"], method=method_text(method))
    wish = scene.pay_with(order, method)
    return one_request(scene, scene.opening(says), wish)


def _draw_return(scene: Scene, distractors: int) -> Draft:
    held, count = one_of(scene.draws, PARTS)
    order = scene.order("delivered", held)
    scene.store.surroundings(scene.user, distractors)
    chosen = some_of(scene.draws, order["items"], count)
    items = [item for item in order["items"] if item in chosen]
    products = " and the ".join(item["name"] for item in items)
    says = scene.say("return", products=products, order=order["order_id"])
    return one_request(scene, scene.opening(says), scene.send_back(order, items))


def _draw_exchange(scene: Scene, distractors: int) -> Draft:
    order = scene.order("delivered", 3)
    scene.store.surroundings(scene.user, distractors)
    kept = scene.one_item(order)
    items = [item for item in order["items"] if item is not kept]
    changes = {item["item_id"]: scene.other_variant(item) for item in items}
    products = scene.store.tables["products"]
    requests = []
    for item in items:
        variant = products[item["product_id"]]["variants"][changes[item["item_id"]]]
        options = options_text(variant["options"])
        requests.append(scene.say("exchange", order=order["order_id"], product=item["name"], options=options))
    requests[1:] = [scene.say("also", request=request) for request in requests[1:]]
    return one_request(scene, scene.opening(*requests), scene.swap(order, changes))


def _items_grade(arguments: dict[str, object], gold: Action) -> float:
    """The grade of a change of items that does not solve the scenario."""
    items, new_items = arguments.get("item_ids"), arguments.get("new_item_ids")
    if not isinstance(items, list) or not items or len(set(map(str, items))) != len(items):
        return 0.2
    given, right = set(map(str, items)), set(gold.arguments["item_ids"])
    if "new_item_ids" not in gold.arguments:
        if given == right:
            return 0.8
        return 0.5 if given < right and 2 * len(given) >= len(right) else 0.2
    if given != right:
        return 0.2
    pairs = dict(zip(gold.arguments["item_ids"], gold.arguments["new_item_ids"], strict=True))
    is_right = isinstance(new_items, list) and new_items == [pairs[str(item)] for item in items]
    return 0.8 if is_right else 0.5
