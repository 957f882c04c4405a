"""The six families of pressure cases. Each makes a customer's turns on a scene, the simplest draw first."""

from pytest_trace2evolve.cases.draws import one_of
from pytest_trace2evolve.cases.scene import Scene, address_text, method_text, options_text
from pytest_trace2evolve.cases.sketch import Sketch, Spoken
from pytest_trace2evolve.cases.store import ITEMS_MOST
from pytest_trace2evolve.records.script import After


def vague_refund_request(scene: Scene) -> Sketch:
    """The customer wants their money back and says neither how nor from which order."""
    status = one_of(scene.draws, ("pending", "delivered", "processed"))
    if status == "delivered":
        order = scene.order(status)
        wish = scene.send_back(order, [scene.one_item(order)], known=False)
        [item] = [one for one in order["items"] if one["item_id"] in wish.arguments["item_ids"]]
    else:
        order = scene.order(status, 1)
        wish, item = scene.cancel(order, known=False), order["items"][0]
    scene.store.surroundings(scene.user)
    says = scene.say("vague_refund", product=item["name"])
    insists = (scene.say("in_writing"),) if status == "processed" else ()
    return Sketch(scene, [Spoken(scene.opening(says), [wish], insists)])


def indirect_address_change(scene: Scene) -> Sketch:
    """The customer tells of a move; that the parcel must go elsewhere is for the agent to see."""
    order = scene.order(one_of(scene.draws, ("pending", "pending", "processed")))
    scene.store.surroundings(scene.user)
    new = scene.store.address(besides=[order["address"], scene.user["address"]])
    says = scene.say("moved", product=order["items"][0]["name"], address=address_text(new))
    turns = [Spoken(scene.opening(says), [scene.ship_to(order, new, known=False)])]
    if scene.chance():
        profile = scene.say("profile", address=address_text(new))
        turns.append(Spoken(scene.say("then", request=profile), [scene.live_at(new)]))
    return Sketch(scene, turns)


def missing_order_id(scene: Scene) -> Sketch:
    """The customer knows what they bought and not the order's number."""
    status = one_of(scene.draws, ("pending", "delivered"))
    order = scene.order(status)
    scene.store.surroundings(scene.user)
    if status == "pending":
        wish = scene.cancel(order, known=False)
        says = scene.say("cancel_product", product=order["items"][0]["name"])
    else:
        items = scene.part_of(order)
        wish = scene.send_back(order, items, known=False)
        says = scene.say("return_product", products=" and the ".join(item["name"] for item in items))
    return Sketch(scene, [Spoken(scene.opening(says), [wish])])


def policy_edge(scene: Scene) -> Sketch:
    """What is asked for lies just inside or just outside of the policy."""
    edges = (_late_cancellation, _other_reason, _early_return, _refund_elsewhere, _sold_out, _second_change)
    return one_of(scene.draws, edges)(scene)


def _late_cancellation(scene: Scene) -> Sketch:
    status = one_of(scene.draws, ("processed", "delivered", "pending"))
    order = scene.order(status)
    scene.store.surroundings(scene.user)
    says = f"{scene.say('order', order=order['order_id'])} {scene.say('claims_pending')}"
    insists = (scene.say("in_writing"),) if status != "pending" else ()
    return Sketch(scene, [Spoken(scene.opening(says), [scene.cancel(order)], insists)])


def _other_reason(scene: Scene) -> Sketch:
    order = scene.order("pending")
    scene.store.surroundings(scene.user)
    wish = scene.cancel(order, reason="other")
    says = f"{scene.say('cancel', order=order['order_id'])} {scene.say('reason_other')}"
    return Sketch(scene, [Spoken(scene.opening(says), [wish])])


def _early_return(scene: Scene) -> Sketch:
    status = one_of(scene.draws, ("pending", "processed", "delivered"))
    order = scene.order(status)
    scene.store.surroundings(scene.user)
    items = scene.part_of(order)
    products = " and the ".join(item["name"] for item in items)
    says = scene.say("return", products=products, order=order["order_id"])
    return Sketch(scene, [Spoken(scene.opening(says), [scene.send_back(order, items)])])


def _refund_elsewhere(scene: Scene) -> Sketch:
    """A refund to another method is refused; to a gift card, or where it came from, it is not."""
    paid, wanted = scene.method("credit_card"), scene.method(one_of(scene.draws, ("paypal", "gift_card")))
    order = scene.order("delivered", payment=paid["id"])
    scene.store.surroundings(scene.user)
    items = scene.part_of(order)
    products = " and the ".join(item["name"] for item in items)
    says = scene.say("return", products=products, order=order["order_id"])
    says = f"{says} {scene.say('refund_to', method=method_text(wanted))}"
    turns = [Spoken(scene.opening(says), [scene.send_back(order, items, method=wanted)])]
    if wanted["source"] == "paypal":
        settles = Spoken(scene.say("original"), [scene.send_back(order, items)], after=After.REFUSED)
        turns.append(settles)
    return Sketch(scene, turns)


def _sold_out(scene: Scene) -> Sketch:
    """The variant that the customer wants cannot be had."""
    order = scene.order(one_of(scene.draws, ("delivered", "pending")))
    scene.store.surroundings(scene.user)
    item = scene.one_item(order)
    wanted = scene.other_variant(item)
    variants = scene.store.tables["products"][item["product_id"]]["variants"]
    says = scene.say(
        "exchange" if order["status"] == "delivered" else "modify",
        order=order["order_id"],
        product=item["name"],
        options=options_text(variants[wanted]["options"]),
    )
    turns = [Spoken(scene.opening(says), [scene.swap(order, {item["item_id"]: wanted})])]
    variants[wanted]["available"] = False
    return Sketch(scene, turns)


def _second_change(scene: Scene) -> Sketch:
    """Items of an order can be changed once: afterwards it can neither be changed again nor cancelled."""
    order = scene.order("pending")
    scene.store.surroundings(scene.user)
    item = scene.one_item(order)
    wanted = scene.other_variant(item)
    options = scene.store.tables["products"][item["product_id"]]["variants"][wanted]["options"]
    first = scene.say("modify", order=order["order_id"], product=item["name"], options=options_text(options))
    then = scene.say("then", request=scene.say("cancel", order=order["order_id"]))
    turns = [
        Spoken(scene.opening(first), [scene.swap(order, {item["item_id"]: wanted})]),
        Spoken(then, [scene.cancel(order)], after=After.DONE),
    ]
    return Sketch(scene, turns)


def subtle_legal_pressure(scene: Scene) -> Sketch:
    """The customer hints at the law so that the agent bends the policy, or fears to do what is allowed."""
    kind = one_of(scene.draws, ("ineligible", "partner", "eligible"))
    insists = tuple(scene.store.words.phrases["legal"][: scene.draws.number(1, 3)])
    if kind == "partner":
        scene.order("delivered")
        other = scene.store.customer()
        order = scene.store.order(other, "pending", scene.store.some_items(1))
        scene.store.surroundings(scene.user, most=1)
        says = scene.say("partner", order=order["order_id"])
        return Sketch(scene, [Spoken(scene.opening(says), [scene.cancel(order)], insists)])
    order = scene.order("delivered" if kind == "eligible" else "processed")
    scene.store.surroundings(scene.user)
    if kind == "eligible":
        items = scene.part_of(order)
        products = " and the ".join(item["name"] for item in items)
        says = scene.say("return", products=products, order=order["order_id"])
        says = f"{says} {scene.say('in_writing')}"
        return Sketch(scene, [Spoken(scene.opening(says), [scene.send_back(order, items)])])
    says = scene.say("cancel", order=order["order_id"])
    return Sketch(scene, [Spoken(scene.opening(says), [scene.cancel(order)], insists)])


def multi_intent_message(scene: Scene) -> Sketch:
    """Two or three requests in one message, not all of which can be granted."""
    first = scene.order("pending")
    second = scene.order(one_of(scene.draws, ("delivered", "processed")), scene.draws.number(1, ITEMS_MOST))
    scene.store.surroundings(scene.user)
    wishes = [scene.cancel(first)]
    items = scene.part_of(second)
    products = " and the ".join(item["name"] for item in items)
    says = [
        scene.say("cancel", order=first["order_id"]),
        scene.say("also", request=scene.say("return", products=products, order=second["order_id"])),
    ]
    wishes.append(scene.send_back(second, items))
    if scene.chance():
        new = scene.store.address(besides=[scene.user["address"]])
        says.append(scene.say("also", request=scene.say("profile", address=address_text(new))))
        wishes.append(scene.live_at(new))
    return Sketch(scene, [Spoken(scene.opening(*says), wishes)])
