"""Environment of `structured_data_reasoning`: find a variant or order from several records or fields."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pytest_trace2evolve.cases.content import draw_one, draw_some
from pytest_trace2evolve.cases.families import prepare_cheapest_variant
from pytest_trace2evolve.cases.scene import Scene, options_text
from pytest_trace2evolve.cases.store import JsonRecord
from pytest_trace2evolve.environments.environment import EASIEST
from pytest_trace2evolve.environments.generators.support import (
    Draft,
    MadeCall,
    SupportGenerator,
    Trajectory,
    is_write,
    opening_text,
    single_request_draft,
    with_arguments,
)
from pytest_trace2evolve.records.task import Action, Slot, Task

KINDS = ("options", "orders", "cheapest")
EASY_KINDS = {1: (*("options",) * 5, "orders"), 2: ("options", "options", "orders")}
"""All kinds of request, and those of the easy difficulties.

Small models learn to distinguish variants sooner than orders.
"""

MIN_SCARCE_DIFFICULTY = 3
"""The lowest difficulty at which variants may be out of stock, and the named variant may keep an option."""

MIN_VARIANTS = (4, 4, 5, 5, 5)  # by difficulty; among few variants, the first is right too often
MAX_PRODUCT_TRIES = 6  # draws to find a product with enough variants


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
    stay, even if it is out of stock. A change of the order with the same two products in the other state also
    meets a part.
    """

    capability = "structured_data_reasoning"
    version = 2
    pays = "finds the variant that fits every word, or the right one of four orders, in the data"

    def make_draft(self, scene: Scene) -> Draft:
        """Draw a product of many variants, or four orders of one product."""
        kind = draw_one(scene.choices, EASY_KINDS.get(self.difficulty, KINDS))
        if kind == "orders":
            return _draw_orders(scene, self.distractors)
        return _draw_variant(scene, kind, self.difficulty)

    def grade_trajectory(self, trajectory: Trajectory, solved: bool) -> float:
        """Return the grade according to the table in the class docstring."""
        task = trajectory.task
        if not trajectory.changes:
            return 0.2 if any(map(trajectory.has_discovered, _deciding_records(task))) else 0.0
        gold_change, first_change = trajectory.gold_changes[0], trajectory.changes[0]
        if not trajectory.first_change_fits:
            return 0.2 if _is_in_other_state(task, gold_change, first_change) else 0.0
        if "new_item_ids" in gold_change.arguments:
            if first_change.arguments.get("item_ids") != gold_change.arguments["item_ids"]:
                return 0.0
            if first_change.arguments.get("new_item_ids") != gold_change.arguments["new_item_ids"]:
                return 0.2 if _is_partly_right(task, gold_change, first_change) else 0.0
        return 1.0 if solved else 0.8

    def wrong_change(self, task: Task, gold: Action) -> Action:
        """The same change with the first wrong variant, or of the first wrong order in the same state."""
        if "new_item_ids" in gold.arguments:
            [old_item_id], [right_item_id] = gold.arguments["item_ids"], gold.arguments["new_item_ids"]
            wrong_item_id = next(
                variant for variant in _variants(task, gold) if variant not in (old_item_id, right_item_id)
            )
            return with_arguments(gold, new_item_ids=[wrong_item_id])
        orders = task.tables["orders"]
        meant_order = orders[gold.arguments["order_id"]]
        wrong_order = next(
            order
            for order in orders.values()
            if order["order_id"] != meant_order["order_id"]
            and (order["user_id"], order["status"]) == (meant_order["user_id"], meant_order["status"])
            and order["items"][0]["product_id"] == meant_order["items"][0]["product_id"]
        )
        items = {"item_ids": [wrong_order["items"][0]["item_id"]]} if "item_ids" in gold.arguments else {}
        return with_arguments(gold, order_id=wrong_order["order_id"], **items)


def _draw_variant(scene: Scene, kind: str, difficulty: int) -> Draft:
    product = scene.store.draw_product()
    for _ in range(MAX_PRODUCT_TRIES):
        if len(product["variants"]) >= MIN_VARIANTS[difficulty - EASIEST]:
            break
        product = scene.store.draw_product()
    if difficulty < MIN_SCARCE_DIFFICULTY:
        for variant in product["variants"].values():
            variant["available"] = True
    status = draw_one(scene.choices, ("pending", "delivered"))
    order = scene.store.add_order(scene.user, status, [(product, scene.store.draw_variant(product))])
    scene.store.add_distractors(scene.user, difficulty - EASIEST)
    [item] = order["items"]
    if kind == "cheapest":
        kept_option = next(iter(item["options"]))
        right_item_id = prepare_cheapest_variant(scene, item, kept_option)
        # Without shuffling, the right variant would be the first that fits. The position must not reveal it.
        variants = list(product["variants"].items())
        product["variants"] = dict(draw_some(scene.choices, variants, len(variants)))
        request = scene.say("cheapest", order=order["order_id"], product=item["name"], kept=kept_option)
    else:
        right_item_id = (
            _draw_most_different_variant(scene, product, item)
            if difficulty < MIN_SCARCE_DIFFICULTY
            else scene.draw_other_variant(item)
        )
        options = options_text(product["variants"][right_item_id]["options"])
        phrase = "exchange" if status == "delivered" else "modify"
        request = scene.say(phrase, order=order["order_id"], product=item["name"], options=options)
    return single_request_draft(
        scene, scene.opening_message(request), scene.swap(order, {item["item_id"]: right_item_id})
    )


def _draw_most_different_variant(scene: Scene, product: JsonRecord, item: JsonRecord) -> str:
    """Draw a variant that differs from the item in the most options, so that several options identify it."""

    def count_differences(variant_id: str) -> int:
        options = product["variants"][variant_id]["options"]
        return sum(value != item["options"][name] for name, value in options.items())

    variant_ids = list(map(str, product["variants"]))
    max_difference = max(map(count_differences, variant_ids))
    return draw_one(
        scene.choices,
        [variant_id for variant_id in variant_ids if count_differences(variant_id) == max_difference],
    )


def _draw_orders(scene: Scene, distractors: int) -> Draft:
    """Draw three orders in the requested state, and one in the other state with the right products."""
    product, companion, *other_products = (scene.store.draw_product() for _ in range(4))
    meant_state, other_state = draw_some(scene.choices, ("pending", "delivered"), 2)
    order_specs = [
        (meant_state, companion),
        *((meant_state, other) for other in other_products),
        (other_state, companion),
    ]
    orders: list[JsonRecord] = [
        scene.store.add_order(
            scene.user,
            status,
            [
                (order_product, scene.store.draw_variant(order_product))
                for order_product in (product, second_product)
            ],
        )
        for status, second_product in order_specs
    ]
    order = orders[0]
    scene.store.add_distractors(scene.user, distractors)
    order_hint = scene.say("order_which", product=companion["name"], trait=scene.say(f"trait_{meant_state}"))
    if meant_state == "pending":
        intent, request = scene.cancel(order), scene.say("cancel_product", product=product["name"])
    else:
        intent = scene.send_back(order, order["items"][:1])
        request = scene.say("return_product", products=product["name"])
    details = {slot: order_hint if slot is Slot.ORDER else text for slot, text in intent.details.items()}
    return single_request_draft(
        scene, scene.opening_message(request, order_hint), replace(intent, details=details, needs_survey=True)
    )


def _deciding_records(task: Task) -> list[str]:
    """The ids of the orders and products that the expert reads to decide."""
    reads = [action for action in task.actions if action.name in ("get_order_details", "get_product_details")]
    return [str(value) for action in reads for value in action.arguments.values()]


def _variants(task: Task, gold: Action) -> Mapping[str, Any]:
    """All variants of the product whose item is to be exchanged."""
    [old_item_id] = gold.arguments["item_ids"]
    items = task.tables["orders"][gold.arguments["order_id"]]["items"]
    product_id = next(item["product_id"] for item in items if item["item_id"] == old_item_id)
    variants: Mapping[str, Any] = task.tables["products"][product_id]["variants"]
    return variants


def _is_partly_right(task: Task, gold: Action, first_change: MadeCall) -> bool:
    """Whether the new variant has a named new option, or keeps the option that must stay."""
    variants = _variants(task, gold)
    [old_item_id], [right_item_id] = gold.arguments["item_ids"], gold.arguments["new_item_ids"]
    new_item_ids = first_change.arguments.get("new_item_ids")
    if not (isinstance(new_item_ids, list) and len(new_item_ids) == 1 and isinstance(new_item_ids[0], str)):
        return False
    if new_item_ids[0] == old_item_id or new_item_ids[0] not in variants:
        return False
    new_options, named_options, old_options = (
        variants[variant]["options"] for variant in (new_item_ids[0], right_item_id, old_item_id)
    )
    if request_kind(task) == "cheapest":
        kept_option = next(iter(old_options))
        return bool(new_options[kept_option] == old_options[kept_option])
    return any(value == named_options[name] != old_options[name] for name, value in new_options.items())


def _is_in_other_state(task: Task, gold: Action, first_change: MadeCall) -> bool:
    """Whether the right tool was tried on the order with the same products in the other state."""
    orders, changed_order_id = task.tables["orders"], str(first_change.arguments.get("order_id"))
    if request_kind(task) != "orders" or first_change.name != gold.name or changed_order_id not in orders:
        return False

    def product_ids(order_id: str) -> list[str]:
        return [item["product_id"] for item in orders[order_id]["items"]]

    meant_order_id = gold.arguments["order_id"]
    return changed_order_id != meant_order_id and product_ids(changed_order_id) == product_ids(meant_order_id)


def request_kind(task: Task) -> str:
    """The kind of a scenario, one of `KINDS`."""
    gold = next(action for action in task.actions if is_write(action.name))
    if "new_item_ids" not in gold.arguments:
        return "orders"
    [right_item_id] = gold.arguments["new_item_ids"]
    opening = opening_text(task)
    is_named = all(value in opening for value in _variants(task, gold)[right_item_id]["options"].values())
    return "options" if is_named else "cheapest"
