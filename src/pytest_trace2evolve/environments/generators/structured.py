"""Environment of `structured_data_reasoning`: what is right follows from several records or fields."""

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_trace2evolve.cases.content import one_of, some_of
from pytest_trace2evolve.cases.families import cheapest_sibling
from pytest_trace2evolve.cases.scene import Scene, Sketch, UserTurn, options_text
from pytest_trace2evolve.cases.store import Data
from pytest_trace2evolve.environments.generators.scenario import EASIEST, Drawn, SupportGenerator
from pytest_trace2evolve.environments.generators.trajectory import (
    Deeds,
    ahead,
    call_of,
    is_write,
    reads_ahead,
)
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.task import Action, Slot, Task

TRIES = 6
"""Products that are looked at to find one with enough variants."""

VARIANTS_LEAST = (4, 4, 5, 5, 5)
"""Enough variants, by difficulty: of few the first that is there is too often the right one."""

SCARCE_FROM = 3
"""The difficulty from which on variants may be out of stock, and the one that is named may keep an option."""

KINDS = {1: (*("options",) * 5, "orders"), 2: ("options", "options", "orders")}
"""What is drawn from at the first difficulties: a small model tells variants apart before it does orders."""


class StructuredDataReasoning(SupportGenerator):
    """A variant is chosen by its data, or an order by what tells it from others.

    Three kinds take turns: a variant named by all its options; the cheapest one in stock that keeps an option
    (from difficulty 3 on); and one of four orders that hold the same product, told apart by whether it has
    come and by what else is in it: neither alone tells which. What is graded is the first change that the
    agent tries:

    | grade | what was done |
    | --- | --- |
    | 0 | no change, or one that meets nothing of what was said |
    | 0.2 | a record that decides found, and nothing changed; or a part of what was said is met |
    | 0.8 | the right variant or order, with another payment, reason or item than was asked for, or refused |
    | 1 | the right change as asked |

    A part is met by a variant with a new option that was named, or one that keeps the option that must stay,
    also where it is out of stock; and by the order that holds the other product in the other state.
    """

    capability = "structured_data_reasoning"
    version = 1
    pays = "the variant that fits every word, or the one of four orders that is meant, is found in the data"

    def draw(self, scene: Scene) -> Drawn:
        """A product of many variants, or four orders of one product."""
        kind = one_of(scene.draws, KINDS.get(self.difficulty, ("options", "orders", "cheapest")))
        return Drawn(
            _orders(scene, self.most) if kind == "orders" else _variant(scene, kind, self.difficulty)
        )

    def paid(self, deeds: Deeds, solved: bool) -> float:
        """See the table."""
        wanted = deeds.open[0]
        if not deeds.writes:
            return 0.2 if any(map(deeds.found, _deciding(deeds.task))) else 0.0
        first = deeds.writes[0]
        same = first.name == wanted.name and first.arguments.get("order_id") == wanted.arguments["order_id"]
        if not same:
            return 0.2 if _odd(deeds.task, wanted, first) else 0.0
        if "new_item_ids" not in wanted.arguments:
            return 1.0 if solved else 0.8
        if first.arguments.get("item_ids") != wanted.arguments["item_ids"]:
            return 0.0
        if first.arguments.get("new_item_ids") == wanted.arguments["new_item_ids"]:
            return 1.0 if solved else 0.8
        return 0.2 if _partly(deeds.task, wanted, first.arguments) else 0.0

    def decided(self, deeds: Deeds) -> bool:
        """After the first change."""
        return bool(deeds.writes)

    def shortcut(self, task: Task) -> Sequence[Message]:
        """All is read, and then the first variant taken that is not the right one, or the other order."""
        wanted = next(one for one in ahead(task) if is_write(one.name))
        return [*reads_ahead(task), call_of(_astray(task, wanted), 90)]


def _variant(scene: Scene, kind: str, difficulty: int) -> Sketch:
    product = scene.store.product()
    for _ in range(TRIES):
        if len(product["variants"]) >= VARIANTS_LEAST[difficulty - EASIEST]:
            break
        product = scene.store.product()
    if difficulty < SCARCE_FROM:
        for variant in product["variants"].values():
            variant["available"] = True
    status = one_of(scene.draws, ("pending", "delivered"))
    order = scene.store.order(scene.user, status, [(product, scene.store.variant(product))])
    scene.store.surroundings(scene.user, difficulty - EASIEST)
    [item] = order["items"]
    if kind == "cheapest":
        kept = next(iter(item["options"]))
        wanted = cheapest_sibling(scene, item, kept)
        # It makes the first that fits the right one: where that stands must tell nothing.
        variants = list(product["variants"].items())
        product["variants"] = dict(some_of(scene.draws, variants, len(variants)))
        says = scene.say("cheapest", order=order["order_id"], product=item["name"], kept=kept)
    else:
        wanted = _all_else(scene, product, item) if difficulty < SCARCE_FROM else scene.other_variant(item)
        options = options_text(product["variants"][wanted]["options"])
        how = "exchange" if status == "delivered" else "modify"
        says = scene.say(how, order=order["order_id"], product=item["name"], options=options)
    return Sketch(scene, [UserTurn(scene.opening(says), [scene.swap(order, {item["item_id"]: wanted})])])


def _all_else(scene: Scene, product: Data, item: Data) -> str:
    """A variant that differs in as many options as any does, so that more than one of them tells it."""

    def differing(one: str) -> int:
        options = product["variants"][one]["options"]
        return sum(value != item["options"][name] for name, value in options.items())

    variants = list(map(str, product["variants"]))
    most = max(map(differing, variants))
    return one_of(scene.draws, [one for one in variants if differing(one) == most])


def _orders(scene: Scene, most: int) -> Sketch:
    """Three orders in the state that is meant, and one in the other that holds what the meant one holds."""
    product, beside, *others = (scene.store.product() for _ in range(4))
    meant, odd = some_of(scene.draws, ("pending", "delivered"), 2)
    made: list[Data] = [
        scene.store.order(
            scene.user, status, [(one, scene.store.variant(one)) for one in (product, companion)]
        )
        for status, companion in ((meant, beside), *((meant, one) for one in others), (odd, beside))
    ]
    order = made[0]
    scene.store.surroundings(scene.user, most)
    which = scene.say("order_which", product=beside["name"], trait=scene.say(f"trait_{meant}"))
    if meant == "pending":
        wish, says = scene.cancel(order), scene.say("cancel_product", product=product["name"])
    else:
        wish = scene.send_back(order, order["items"][:1])
        says = scene.say("return_product", products=product["name"])
    details = {slot: which if slot is Slot.ORDER else text for slot, text in wish.details.items()}
    wish = scene.with_details(wish, details, survey=True)
    return Sketch(scene, [UserTurn(scene.opening(says, which), [wish])])


def _deciding(task: Task) -> list[str]:
    """The records that the expert reads to decide: orders and products."""
    reads = [one for one in task.actions if one.name in ("get_order_details", "get_product_details")]
    return [str(value) for one in reads for value in one.arguments.values()]


def _product(task: Task, wanted: Action) -> Mapping[str, Any]:
    """The variants of the item that is to be changed."""
    tables = task.tables
    [old] = wanted.arguments["item_ids"]
    items = tables["orders"][wanted.arguments["order_id"]]["items"]
    product_id = next(one["product_id"] for one in items if one["item_id"] == old)
    found: Mapping[str, Any] = tables["products"][product_id]["variants"]
    return found


def _partly(task: Task, wanted: Action, arguments: Mapping[str, object]) -> bool:
    """Whether the variant that was taken has an option that was named, or keeps the one that must be kept."""
    variants = _product(task, wanted)
    [old], [right] = wanted.arguments["item_ids"], wanted.arguments["new_item_ids"]
    taken = arguments.get("new_item_ids")
    if not (isinstance(taken, list) and len(taken) == 1 and isinstance(taken[0], str)):
        return False
    if taken[0] == old or taken[0] not in variants:
        return False
    chosen, named, had = (variants[one]["options"] for one in (taken[0], right, old))
    if kind_of(task) == "cheapest":
        kept = next(iter(had))
        return bool(chosen[kept] == had[kept])
    return any(value == named[name] != had[name] for name, value in chosen.items())


def _odd(task: Task, wanted: Action, first: Any) -> bool:
    """Whether the wish was tried on the order that holds the same products in the other state."""
    orders = task.tables["orders"]
    meant, taken = orders[wanted.arguments["order_id"]], orders.get(str(first.arguments.get("order_id")))
    if kind_of(task) != "orders" or first.name != wanted.name or taken is None or taken is meant:
        return False
    return [one["product_id"] for one in taken["items"]] == [one["product_id"] for one in meant["items"]]


def kind_of(task: Task) -> str:
    """Which of the kinds a scenario is."""
    wanted = next(one for one in task.actions if is_write(one.name))
    if "new_item_ids" not in wanted.arguments:
        return "orders"
    variants = _product(task, wanted)
    [right] = wanted.arguments["new_item_ids"]
    says = task.user_scenario["script"]["turns"][0]["says"]
    named = all(value in says for value in variants[right]["options"].values())
    return "options" if named else "cheapest"


def _astray(task: Task, wanted: Action) -> Action:
    """The same change with the wrong variant, or of the other order in the same state."""
    if "new_item_ids" in wanted.arguments:
        [old], right = wanted.arguments["item_ids"], wanted.arguments["new_item_ids"]
        other = next(one for one in _product(task, wanted) if one not in (old, *right))
        return wanted.model_copy(update={"arguments": {**wanted.arguments, "new_item_ids": [other]}})
    tables = task.tables
    meant = tables["orders"][wanted.arguments["order_id"]]
    product_id = meant["items"][0]["product_id"]
    other = next(
        order
        for order in tables["orders"].values()
        if order["order_id"] != meant["order_id"]
        and (order["user_id"], order["status"]) == (meant["user_id"], meant["status"])
        and order["items"][0]["product_id"] == product_id
    )
    arguments = {**wanted.arguments, "order_id": other["order_id"]}
    if "item_ids" in arguments:
        arguments["item_ids"] = [other["items"][0]["item_id"]]
    return wanted.model_copy(update={"arguments": arguments})
