"""Environment of `tool_calling_precision`: every id of a call is the right one."""

from collections.abc import Sequence

from pytest_trace2evolve.cases.content import one_of, some_of
from pytest_trace2evolve.cases.scene import Scene, Sketch, UserTurn, method_text, options_text
from pytest_trace2evolve.environments.generators.scenario import EASIEST, Drawn, SupportGenerator
from pytest_trace2evolve.environments.generators.trajectory import (
    Deeds,
    ahead,
    call_of,
    is_write,
    reads_ahead,
)
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.task import Action, Task

KINDS = ("return", "return", "return", "return", "pay")
"""From difficulty 2 on. To pay otherwise takes one choice, between two methods or three: it is rare."""

PARTS = ((3, 2), (4, 2), (4, 3))
"""Items of an order, and how many of them go back: the first two are seldom right, and one alone never is."""

SWAPS_FROM = 4
"""The difficulty from which on items are exchanged too: two products must be read for it."""


class ToolCallingPrecision(SupportGenerator):
    """Some of an order's items go back, its payment goes to another method, or items are exchanged.

    What is graded is the first change that the agent tries:

    | grade | what was done |
    | --- | --- |
    | 0 | no change; or another one, or of another order, than was asked for |
    | 0.2 | the right tool for the right order, with an item wrong, too many or too few, or a wrong method |
    | 0.5 | half or more of the items that are meant, and no other; in an exchange: the right for wrong ones |
    | 0.8 | all items right, and the payment method is not |
    | 1 | every id right |
    """

    capability = "tool_calling_precision"
    version = 1
    pays = "the call that is asked for is made with every id right, and none beside"
    methods = ("credit_card", "credit_card", "paypal")

    def draw(self, scene: Scene) -> Drawn:
        """A call of several ids."""
        further = ("exchange", "exchange") if self.difficulty >= SWAPS_FROM else ()
        kind = "return" if self.difficulty == EASIEST else one_of(scene.draws, (*KINDS, *further))
        if kind == "pay":
            return Drawn(_pay(scene, self.most))
        return Drawn(_return(scene, self.most) if kind == "return" else _exchange(scene, self.most))

    def paid(self, deeds: Deeds, solved: bool) -> float:
        """See the table."""
        if not deeds.writes:
            return 0.0
        wanted, first = deeds.open[0], deeds.writes[0]
        if first.name != wanted.name or first.arguments.get("order_id") != wanted.arguments["order_id"]:
            return 0.0
        if solved:
            return 1.0
        return _items_grade(first.arguments, wanted) if "item_ids" in wanted.arguments else 0.2

    def decided(self, deeds: Deeds) -> bool:
        """After the first change."""
        return bool(deeds.writes)

    def shortcut(self, task: Task) -> Sequence[Message]:
        """The right tool with whatever ids stand first: all items, the method that paid."""
        wanted = next(one for one in ahead(task) if is_write(one.name))
        order = task.tables["orders"][wanted.arguments["order_id"]]
        arguments = dict(wanted.arguments)
        if "item_ids" in arguments:
            arguments["item_ids"] = [item["item_id"] for item in order["items"]]
        if "new_item_ids" in arguments:
            arguments["new_item_ids"] = list(arguments["item_ids"])
        if wanted.name == "modify_pending_order_payment":
            arguments["payment_method_id"] = order["payment_history"][0]["payment_method_id"]
        rash = wanted.model_copy(update={"arguments": arguments})
        return [*reads_ahead(task), call_of(rash, 90)]


def _pay(scene: Scene, most: int) -> Sketch:
    """From any of the customer's methods to any other that covers it."""
    methods = list(scene.user["payment_methods"].values())
    order = scene.order("pending", 1, payment=one_of(scene.draws, methods)["id"])
    scene.store.surroundings(scene.user, most)
    [due, paid] = (order["payment_history"][0][name] for name in ("amount", "payment_method_id"))
    others = [one for one in methods if one["id"] != paid and one.get("balance", due) >= due]
    method = one_of(scene.draws, others)
    says = scene.say("pay_with", order=order["order_id"], method=method_text(method))
    wish = scene.pay_with(order, method)
    return Sketch(scene, [UserTurn(scene.opening(says), [wish])])


def _return(scene: Scene, most: int) -> Sketch:
    """Some of an order's items."""
    held, count = one_of(scene.draws, PARTS)
    order = scene.order("delivered", held)
    scene.store.surroundings(scene.user, most)
    chosen = some_of(scene.draws, order["items"], count)
    items = [item for item in order["items"] if item in chosen]
    products = " and the ".join(item["name"] for item in items)
    says = scene.say("return", products=products, order=order["order_id"])
    return Sketch(scene, [UserTurn(scene.opening(says), [scene.send_back(order, items)])])


def _exchange(scene: Scene, most: int) -> Sketch:
    order = scene.order("delivered", 3)
    scene.store.surroundings(scene.user, most)
    left_out = scene.one_item(order)
    items = [item for item in order["items"] if item is not left_out]
    changes = {item["item_id"]: scene.other_variant(item) for item in items}
    products = scene.store.tables["products"]
    said = []
    for item in items:
        wanted = products[item["product_id"]]["variants"][changes[item["item_id"]]]
        options = options_text(wanted["options"])
        said.append(scene.say("exchange", order=order["order_id"], product=item["name"], options=options))
    said[1:] = [scene.say("also", request=one) for one in said[1:]]
    return Sketch(scene, [UserTurn(scene.opening(*said), [scene.swap(order, changes)])])


def _items_grade(arguments: dict[str, object], wanted: Action) -> float:
    """The grade of a call for items that is not right as a whole."""
    told, news = arguments.get("item_ids"), arguments.get("new_item_ids")
    if not isinstance(told, list) or not told or len(set(map(str, told))) != len(told):
        return 0.2
    given, right = set(map(str, told)), set(wanted.arguments["item_ids"])
    if "new_item_ids" not in wanted.arguments:
        if given == right:
            return 0.8
        return 0.5 if given < right and 2 * len(given) >= len(right) else 0.2
    if given != right:
        return 0.2
    pairs = dict(zip(wanted.arguments["item_ids"], wanted.arguments["new_item_ids"], strict=True))
    return 0.8 if isinstance(news, list) and news == [pairs[str(one)] for one in told] else 0.5
