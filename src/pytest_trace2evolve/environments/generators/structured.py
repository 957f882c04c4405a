"""Environment of `structured_data_reasoning`: find a variant or order from several records or fields."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pytest_trace2evolve.cases.content import one_of, some_of
from pytest_trace2evolve.cases.families import cheapest_sibling
from pytest_trace2evolve.cases.scene import Scene, options_text
from pytest_trace2evolve.cases.store import Data
from pytest_trace2evolve.environments.environment import EASIEST
from pytest_trace2evolve.environments.generators.support import (
    Draft,
    MadeCall,
    SupportGenerator,
    Trajectory,
    is_write,
    one_request,
    opening_of,
    with_arguments,
)
from pytest_trace2evolve.records.task import Action, Slot, Task

KINDS = ("options", "orders", "cheapest")
EASY_KINDS = {1: (*("options",) * 5, "orders"), 2: ("options", "options", "orders")}
"""The kinds, and those of the easy difficulties. Small models tell variants apart sooner than orders."""

SCARCE_FROM = 3
"""The lowest difficulty at which variants may be out of stock, and the named variant may keep an option."""

MIN_VARIANTS = (4, 4, 5, 5, 5)  # by difficulty; among few variants, the first is right too often
PRODUCT_TRIES = 6  # draws to find a product with enough variants


class StructuredDataReasoning(SupportGenerator):
    """The agent must find a variant or an order by its data.

    There are three kinds of request: a variant named by all its options; the cheapest variant in stock that
    keeps an option (from difficulty 3); and one of four orders with the same product, described by its state
    and its other product, neither of which is enough alone. The grade depends on the first change that the
    agent tries:

    | grade | trajectory |
    | --- | --- |
    | 0 | no change, or a change that meets no part of the request |
    | 0.2 | a deciding record read, and nothing changed; or a part of the request met |
    | 0.8 | the right variant or order, but with a wrong payment, reason or item, or rejected by the tool |
    | 1 | the right change as requested |

    A variant meets a part of the request if it has a named new option, or if it keeps the option that must
    stay, even if it is out of stock. So does the order that holds the same two products in the other state.
    """

    capability = "structured_data_reasoning"
    version = 1
    pays = "finds the variant that fits every word, or the right one of four orders, in the data"

    def draw(self, scene: Scene) -> Draft:
        """Draw a product of many variants, or four orders of one product."""
        kind = one_of(scene.draws, EASY_KINDS.get(self.difficulty, KINDS))
        if kind == "orders":
            return _draw_orders(scene, self.distractors)
        return _draw_variant(scene, kind, self.difficulty)

    def grade_trajectory(self, trajectory: Trajectory, solved: bool) -> float:
        """The grade by the table of the class."""
        task = trajectory.task
        if not trajectory.changes:
            return 0.2 if any(map(trajectory.has_discovered, _deciding_records(task))) else 0.0
        gold, first = trajectory.gold_changes[0], trajectory.changes[0]
        if not trajectory.first_change_fits:
            return 0.2 if _is_in_other_state(task, gold, first) else 0.0
        if "new_item_ids" in gold.arguments:
            if first.arguments.get("item_ids") != gold.arguments["item_ids"]:
                return 0.0
            if first.arguments.get("new_item_ids") != gold.arguments["new_item_ids"]:
                return 0.2 if _is_partly_right(task, gold, first) else 0.0
        return 1.0 if solved else 0.8

    def wrong_change(self, task: Task, gold: Action) -> Action:
        """The same change with the first wrong variant, or of the first wrong order in the same state."""
        if "new_item_ids" in gold.arguments:
            [old], [right] = gold.arguments["item_ids"], gold.arguments["new_item_ids"]
            other = next(variant for variant in _variants(task, gold) if variant not in (old, right))
            return with_arguments(gold, new_item_ids=[other])
        orders = task.tables["orders"]
        meant = orders[gold.arguments["order_id"]]
        other = next(
            order
            for order in orders.values()
            if order["order_id"] != meant["order_id"]
            and (order["user_id"], order["status"]) == (meant["user_id"], meant["status"])
            and order["items"][0]["product_id"] == meant["items"][0]["product_id"]
        )
        items = {"item_ids": [other["items"][0]["item_id"]]} if "item_ids" in gold.arguments else {}
        return with_arguments(gold, order_id=other["order_id"], **items)


def _draw_variant(scene: Scene, kind: str, difficulty: int) -> Draft:
    product = scene.store.product()
    for _ in range(PRODUCT_TRIES):
        if len(product["variants"]) >= MIN_VARIANTS[difficulty - EASIEST]:
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
        right = cheapest_sibling(scene, item, kept)
        # Without shuffling, the right variant would be the first that fits. Its place must not reveal it.
        variants = list(product["variants"].items())
        product["variants"] = dict(some_of(scene.draws, variants, len(variants)))
        says = scene.say("cheapest", order=order["order_id"], product=item["name"], kept=kept)
    else:
        right = (
            _most_different(scene, product, item) if difficulty < SCARCE_FROM else scene.other_variant(item)
        )
        options = options_text(product["variants"][right]["options"])
        phrase = "exchange" if status == "delivered" else "modify"
        says = scene.say(phrase, order=order["order_id"], product=item["name"], options=options)
    return one_request(scene, scene.opening(says), scene.swap(order, {item["item_id"]: right}))


def _most_different(scene: Scene, product: Data, item: Data) -> str:
    """A variant that differs from the item in the most options, so that several options identify it."""

    def difference(variant: str) -> int:
        options = product["variants"][variant]["options"]
        return sum(value != item["options"][name] for name, value in options.items())

    variants = list(map(str, product["variants"]))
    most = max(map(difference, variants))
    return one_of(scene.draws, [variant for variant in variants if difference(variant) == most])


def _draw_orders(scene: Scene, distractors: int) -> Draft:
    """Draw three orders in the requested state, and one in the other state with the right products."""
    product, companion, *others = (scene.store.product() for _ in range(4))
    meant, other_state = some_of(scene.draws, ("pending", "delivered"), 2)
    contents = [(meant, companion), *((meant, other) for other in others), (other_state, companion)]
    orders: list[Data] = [
        scene.store.order(
            scene.user, status, [(bought, scene.store.variant(bought)) for bought in (product, second)]
        )
        for status, second in contents
    ]
    order = orders[0]
    scene.store.surroundings(scene.user, distractors)
    which = scene.say("order_which", product=companion["name"], trait=scene.say(f"trait_{meant}"))
    if meant == "pending":
        wish, says = scene.cancel(order), scene.say("cancel_product", product=product["name"])
    else:
        wish = scene.send_back(order, order["items"][:1])
        says = scene.say("return_product", products=product["name"])
    details = {slot: which if slot is Slot.ORDER else text for slot, text in wish.details.items()}
    return one_request(scene, scene.opening(says, which), replace(wish, details=details, survey=True))


def _deciding_records(task: Task) -> list[str]:
    """The orders and products that the expert reads to decide."""
    reads = [action for action in task.actions if action.name in ("get_order_details", "get_product_details")]
    return [str(value) for action in reads for value in action.arguments.values()]


def _variants(task: Task, gold: Action) -> Mapping[str, Any]:
    """All variants of the product whose item is to be exchanged."""
    [old] = gold.arguments["item_ids"]
    items = task.tables["orders"][gold.arguments["order_id"]]["items"]
    product_id = next(item["product_id"] for item in items if item["item_id"] == old)
    variants: Mapping[str, Any] = task.tables["products"][product_id]["variants"]
    return variants


def _is_partly_right(task: Task, gold: Action, first: MadeCall) -> bool:
    """Whether the new variant has a named new option, or keeps the option that must stay."""
    variants = _variants(task, gold)
    [old], [right] = gold.arguments["item_ids"], gold.arguments["new_item_ids"]
    taken = first.arguments.get("new_item_ids")
    if not (isinstance(taken, list) and len(taken) == 1 and isinstance(taken[0], str)):
        return False
    if taken[0] == old or taken[0] not in variants:
        return False
    new, named, had = (variants[variant]["options"] for variant in (taken[0], right, old))
    if kind_of(task) == "cheapest":
        kept = next(iter(had))
        return bool(new[kept] == had[kept])
    return any(value == named[name] != had[name] for name, value in new.items())


def _is_in_other_state(task: Task, gold: Action, first: MadeCall) -> bool:
    """Whether the right tool was tried on the order with the same products in the other state."""
    orders, taken = task.tables["orders"], str(first.arguments.get("order_id"))
    if kind_of(task) != "orders" or first.name != gold.name or taken not in orders:
        return False

    def products(order_id: str) -> list[str]:
        return [item["product_id"] for item in orders[order_id]["items"]]

    meant = gold.arguments["order_id"]
    return taken != meant and products(taken) == products(meant)


def kind_of(task: Task) -> str:
    """The kind of a scenario, one of `KINDS`."""
    gold = next(action for action in task.actions if is_write(action.name))
    if "new_item_ids" not in gold.arguments:
        return "orders"
    [right] = gold.arguments["new_item_ids"]
    says = opening_of(task)
    is_named = all(value in says for value in _variants(task, gold)[right]["options"].values())
    return "options" if is_named else "cheapest"
