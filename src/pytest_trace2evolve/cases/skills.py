"""Families that press one capability each: those that TRACE found missing, and those of its taxonomy."""

from pytest_trace2evolve.cases.draws import one_of
from pytest_trace2evolve.cases.scene import Scene, address_text, options_text
from pytest_trace2evolve.cases.sketch import Sketch, Spoken
from pytest_trace2evolve.cases.store import Data
from pytest_trace2evolve.records.script import After


def structured_data_reasoning(scene: Scene) -> Sketch:
    """The wanted variant follows from a product's data: the cheapest that can be had and keeps an option."""
    order = scene.order(one_of(scene.draws, ("pending", "delivered")))
    scene.store.surroundings(scene.user)
    item = scene.one_item(order)
    kept = next(iter(item["options"]))
    wanted = cheapest_sibling(scene, item, kept)
    says = scene.say("cheapest", order=order["order_id"], product=item["name"], kept=kept)
    return Sketch(scene, [Spoken(scene.opening(says), [scene.swap(order, {item["item_id"]: wanted})])])


def cheapest_sibling(scene: Scene, item: Data, kept: str) -> str:
    """Make sure that the question has one answer, and traps beside it; the id of that answer."""
    variants = scene.store.tables["products"][item["product_id"]]["variants"]
    siblings = [
        one
        for one in variants.values()
        if one["item_id"] != item["item_id"] and one["options"][kept] == item["options"][kept]
    ]
    if not siblings:  # another one takes the value that must be kept, and a new value of another option
        other = next(name for name in item["options"] if name != kept)
        kind = next(one for one in scene.store.words.products if one.name == item["name"])
        value = next(one for one in kind.options[other] if one != item["options"][other])
        spare = next(one for one in variants.values() if one["item_id"] != item["item_id"])
        spare["options"] = {**item["options"], other: value}
        siblings = [spare]
    for place, sibling in enumerate(siblings):
        # The last is the cheapest of all, and where there are others it cannot be had.
        sibling["price"] = round(item["price"] * (0.9 - 0.1 * place), 2)
        sibling["available"] = place == 0 or place < len(siblings) - 1
    available = [one for one in siblings if one["available"]]
    found: str = min(available, key=lambda one: float(one["price"]))["item_id"]
    return found


def multi_step_task_completion(scene: Scene) -> Sketch:
    """Two or three things to do, told one after another; the work is done when all of them are."""
    first = scene.order("pending")
    second = scene.order("delivered")
    scene.store.surroundings(scene.user)
    new = scene.store.address(besides=[first["address"], scene.user["address"]])
    items = scene.part_of(second)
    products = " and the ".join(item["name"] for item in items)
    turns = [
        Spoken(
            scene.opening(scene.say("ship_to", order=first["order_id"], address=address_text(new))),
            [scene.ship_to(first, new)],
        ),
        Spoken(
            scene.say("then", request=scene.say("return", products=products, order=second["order_id"])),
            [scene.send_back(second, items)],
        ),
    ]
    if scene.chance():
        profile = scene.say("profile", address=address_text(new))
        turns.append(Spoken(scene.say("then", request=profile), [scene.live_at(new)]))
    return Sketch(scene, turns)


def precondition_verification(scene: Scene) -> Sketch:
    """What is right depends on a status that the customer does not know, or gets wrong."""
    order = scene.order(one_of(scene.draws, ("pending", "delivered")), 1)
    scene.store.surroundings(scene.user)
    [item] = order["items"]
    says = scene.say("if_shipped", product=item["name"], order=order["order_id"])
    if order["status"] == "delivered":
        wish = scene.send_back(order, [item])
    else:
        wish = scene.cancel(order, reason="no longer needed")
    return Sketch(scene, [Spoken(scene.opening(says), [wish])])


def tool_calling_precision(scene: Scene) -> Sketch:
    """Several ids must be right in one call: some of an order's items, and a payment method."""
    if scene.chance():
        order = scene.order("pending", payment=scene.method("credit_card")["id"])
        scene.store.surroundings(scene.user)
        method = scene.method("paypal")
        says = scene.say("pay_with", order=order["order_id"], method="PayPal account")
        return Sketch(scene, [Spoken(scene.opening(says), [scene.pay_with(order, method)])])
    order = scene.order("delivered", 3)
    scene.store.surroundings(scene.user)
    left_out = scene.one_item(order)
    items = [item for item in order["items"] if item is not left_out]
    changes = {item["item_id"]: scene.other_variant(item) for item in items}
    products = scene.store.tables["products"]
    said = [
        scene.say(
            "exchange",
            order=order["order_id"],
            product=item["name"],
            options=options_text(
                products[item["product_id"]]["variants"][changes[item["item_id"]]]["options"]
            ),
        )
        for item in items
    ]
    said[1:] = [scene.say("also", request=one) for one in said[1:]]
    return Sketch(scene, [Spoken(scene.opening(*said), [scene.swap(order, changes)])])


def account_address_inference(scene: Scene) -> Sketch:
    """The address to use stands in the account or in another order, not in what the customer says."""
    elsewhere = scene.store.address(besides=[scene.user["address"]])
    order = scene.order("pending", address=elsewhere)
    if scene.chance():
        third = scene.store.address(besides=[elsewhere, scene.user["address"]])
        other = scene.order(one_of(scene.draws, ("processed", "delivered")), address=third)
        scene.store.surroundings(scene.user)
        says = scene.say("same_address", order=order["order_id"], other=other["order_id"])
        wish = scene.ship_to(order, other["address"], looks=(other["order_id"],))
    else:
        scene.store.surroundings(scene.user)
        says = scene.say("home_address", order=order["order_id"])
        wish = scene.ship_to(order, scene.user["address"])
    # Asked for the address, the customer says the same again: they have none to give.
    told = {slot: says if slot == "address" else text for slot, text in wish.details.items()}
    return Sketch(scene, [Spoken(scene.opening(says), [scene.with_details(wish, told)])])


def conditional_detail_retrieval(scene: Scene) -> Sketch:
    """A figure of the order decides what is to be done, or is what the customer wants to know."""
    order = scene.order("delivered")
    scene.store.surroundings(scene.user)
    item = scene.one_item(order)
    if scene.chance():
        total = float(order["payment_history"][0]["amount"])
        questions = ("price", "tracking", "total") if written_one_way(total) else ("price", "tracking")
        question = one_of(scene.draws, questions)
        answer = {
            "price": item["price"],
            "total": total,
            "tracking": order["fulfillments"][0]["tracking_id"][0],
        }[question]
        asked = scene.say(question, product=item["name"], order=order["order_id"])
        return Sketch(scene, [Spoken(scene.opening(asked), [scene.ask(order, answer)])])
    dearer = scene.chance()
    amount = round(item["price"]) + (3 if dearer else -3)
    says = scene.say("if_price", product=item["name"], order=order["order_id"], amount=amount)
    if not dearer:
        return Sketch(scene, [Spoken(scene.opening(says), [scene.send_back(order, [item])])])
    price = scene.say("price", product=item["name"], order=order["order_id"])
    turns = [
        Spoken(scene.opening(says), [scene.ask(order, "")]),
        Spoken(scene.say("then", request=price), [scene.ask(order, item["price"])]),
    ]
    return Sketch(scene, turns)


def cross_order_ambiguity(scene: Scene) -> Sketch:
    """Two orders hold the same product, and only their status tells which one is meant."""
    product = scene.store.product()
    orders = {
        status: scene.store.order(scene.user, status, [(product, scene.store.variant(product))])
        for status in ("pending", "delivered")
    }
    meant = one_of(scene.draws, ("pending", "delivered"))
    scene.store.surroundings(scene.user)
    which = scene.say("order_which", product=product["name"], trait=scene.say(f"trait_{meant}"))
    order = orders[meant]
    if meant == "pending":
        wish, says = scene.cancel(order), scene.say("cancel_product", product=product["name"])
    else:
        wish = scene.send_back(order, order["items"])
        says = scene.say("return_product", products=product["name"])
    details = {slot: which if slot == "order" else text for slot, text in wish.details.items()}
    wish = scene.with_details(wish, details, survey=True)
    return Sketch(scene, [Spoken(scene.opening(says, which), [wish])])


def cancelled_order_tracking(scene: Scene) -> Sketch:
    """One order is cancelled already: it must not be touched again, nor be mistaken for the other one."""
    gone = scene.order("cancelled")
    if scene.chance():
        scene.store.surroundings(scene.user)
        says = scene.say("cancelled_again", order=gone["order_id"])
        wish = scene.cancel(gone)
        return Sketch(scene, [Spoken(scene.opening(says), [wish], insists=(scene.say("in_writing"),))])
    order = scene.order("pending")
    scene.store.surroundings(scene.user)
    says = scene.say("cancelled_too", order=order["order_id"], other=gone["order_id"])
    wish = scene.with_details(scene.cancel(order), looks=(gone["order_id"],))
    turns = [Spoken(scene.opening(says), [wish])]
    amount = float(order["payment_history"][0]["amount"])
    if written_one_way(amount) and scene.chance():
        then = scene.say("then", request=scene.say("total", order=order["order_id"]))
        turns.append(Spoken(then, [scene.ask(order, amount)], after=After.DONE))
    return Sketch(scene, turns)


def written_one_way(amount: float) -> bool:
    """Whether an agent cannot write an amount with fewer digits than another would."""
    return round(amount * 100) % 10 != 0
