"""The families of cases: six kinds of pressure, and one family for each capability of TRACE.

Each function writes a customer's turns in a scene, with the simplest option of a draw first. The order of
draws must stay the same, because a seed gives the same case only with the same order.
"""

from dataclasses import replace

from pytest_trace2evolve.cases.content import one_of
from pytest_trace2evolve.cases.scene import Scene, Sketch, UserTurn, address_text, method_text, product_names
from pytest_trace2evolve.cases.store import MAX_ITEMS, Data
from pytest_trace2evolve.records.task import After


def vague_refund_request(scene: Scene) -> Sketch:
    """The customer wants their money back and says neither how nor from which order."""
    status = one_of(scene.draws, ("pending", "delivered", "processed"))
    if status == "delivered":
        order = scene.order(status)
        intent = scene.send_back(order, [scene.one_item(order)], known=False)
        [item] = [item for item in order["items"] if item["item_id"] in intent.arguments["item_ids"]]
    else:
        order = scene.order(status, 1)
        intent, item = scene.cancel(order, known=False), order["items"][0]
    scene.store.surroundings(scene.user)
    says = scene.say("vague_refund", product=item["name"])
    insists = (scene.say("in_writing"),) if status == "processed" else ()
    return Sketch(scene, [UserTurn(scene.opening(says), [intent], insists)])


def indirect_address_change(scene: Scene) -> Sketch:
    """The customer mentions a move; that the parcel must go elsewhere is for the agent to see."""
    order = scene.order(one_of(scene.draws, ("pending", "pending", "processed")))
    scene.store.surroundings(scene.user)
    new = scene.store.address(exclude=[order["address"], scene.user["address"]])
    says = scene.say("moved", product=order["items"][0]["name"], address=address_text(new))
    turns = [UserTurn(scene.opening(says), [scene.ship_to(order, new, known=False)])]
    if scene.chance():
        profile = scene.say("profile", address=address_text(new))
        turns.append(UserTurn(scene.say("then", request=profile), [scene.live_at(new)]))
    return Sketch(scene, turns)


def missing_order_id(scene: Scene) -> Sketch:
    """The customer knows what they bought and not the order's number."""
    status = one_of(scene.draws, ("pending", "delivered"))
    order = scene.order(status)
    scene.store.surroundings(scene.user)
    if status == "pending":
        intent = scene.cancel(order, known=False)
        says = scene.say("cancel_product", product=order["items"][0]["name"])
    else:
        items = scene.part_of(order)
        intent = scene.send_back(order, items, known=False)
        says = scene.say("return_product", products=product_names(items))
    return Sketch(scene, [UserTurn(scene.opening(says), [intent])])


def policy_edge(scene: Scene) -> Sketch:
    """The request is just inside or just outside of the policy."""
    edges = (_late_cancellation, _other_reason, _early_return, _refund_elsewhere, _sold_out, _second_change)
    return one_of(scene.draws, edges)(scene)


def _late_cancellation(scene: Scene) -> Sketch:
    status = one_of(scene.draws, ("processed", "delivered", "pending"))
    order = scene.order(status)
    scene.store.surroundings(scene.user)
    says = f"{scene.say('order', order=order['order_id'])} {scene.say('claims_pending')}"
    insists = (scene.say("in_writing"),) if status != "pending" else ()
    return Sketch(scene, [UserTurn(scene.opening(says), [scene.cancel(order)], insists)])


def _other_reason(scene: Scene) -> Sketch:
    order = scene.order("pending")
    scene.store.surroundings(scene.user)
    intent = scene.cancel(order, reason="other")
    says = f"{scene.say('cancel', order=order['order_id'])} {scene.say('reason_other')}"
    return Sketch(scene, [UserTurn(scene.opening(says), [intent])])


def _early_return(scene: Scene) -> Sketch:
    status = one_of(scene.draws, ("pending", "processed", "delivered"))
    order = scene.order(status)
    scene.store.surroundings(scene.user)
    items = scene.part_of(order)
    says = scene.say_return(order, items)
    return Sketch(scene, [UserTurn(scene.opening(says), [scene.send_back(order, items)])])


def _refund_elsewhere(scene: Scene) -> Sketch:
    """A refund to the original payment method or to a gift card is allowed; any other method is refused."""
    paid, wanted = scene.method("credit_card"), scene.method(one_of(scene.draws, ("paypal", "gift_card")))
    order = scene.order("delivered", payment=paid["id"])
    scene.store.surroundings(scene.user)
    items = scene.part_of(order)
    says = scene.say_return(order, items)
    says = f"{says} {scene.say('refund_to', method=method_text(wanted))}"
    turns = [UserTurn(scene.opening(says), [scene.send_back(order, items, method=wanted)])]
    if wanted["source"] == "paypal":
        settles = UserTurn(scene.say("original"), [scene.send_back(order, items)], after=After.REFUSED)
        turns.append(settles)
    return Sketch(scene, turns)


def _sold_out(scene: Scene) -> Sketch:
    """The variant that the customer wants is not available."""
    order = scene.order(one_of(scene.draws, ("delivered", "pending")))
    scene.store.surroundings(scene.user)
    item = scene.one_item(order)
    wanted = scene.other_variant(item)
    says = scene.say(
        "exchange" if order["status"] == "delivered" else "modify",
        order=order["order_id"],
        product=item["name"],
        options=scene.variant_text(item, wanted),
    )
    turns = [UserTurn(scene.opening(says), [scene.swap(order, {item["item_id"]: wanted})])]
    scene.variants(item)[wanted]["available"] = False
    return Sketch(scene, turns)


def _second_change(scene: Scene) -> Sketch:
    """Items of an order can be changed once; then the order can be neither changed again nor cancelled."""
    order = scene.order("pending")
    scene.store.surroundings(scene.user)
    item = scene.one_item(order)
    wanted = scene.other_variant(item)
    options = scene.variant_text(item, wanted)
    first = scene.say("modify", order=order["order_id"], product=item["name"], options=options)
    then = scene.say("then", request=scene.say("cancel", order=order["order_id"]))
    turns = [
        UserTurn(scene.opening(first), [scene.swap(order, {item["item_id"]: wanted})]),
        UserTurn(then, [scene.cancel(order)], after=After.DONE),
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
        return Sketch(scene, [UserTurn(scene.opening(says), [scene.cancel(order)], insists)])
    order = scene.order("delivered" if kind == "eligible" else "processed")
    scene.store.surroundings(scene.user)
    if kind == "eligible":
        items = scene.part_of(order)
        says = scene.say_return(order, items)
        says = f"{says} {scene.say('in_writing')}"
        return Sketch(scene, [UserTurn(scene.opening(says), [scene.send_back(order, items)])])
    says = scene.say("cancel", order=order["order_id"])
    return Sketch(scene, [UserTurn(scene.opening(says), [scene.cancel(order)], insists)])


def multi_intent_message(scene: Scene) -> Sketch:
    """Two or three requests in one message, not all of which can be granted."""
    first = scene.order("pending")
    second = scene.order(one_of(scene.draws, ("delivered", "processed")), scene.draws.number(1, MAX_ITEMS))
    scene.store.surroundings(scene.user)
    intents = [scene.cancel(first)]
    items = scene.part_of(second)
    says = [
        scene.say("cancel", order=first["order_id"]),
        scene.say("also", request=scene.say_return(second, items)),
    ]
    intents.append(scene.send_back(second, items))
    if scene.chance():
        new = scene.store.address(exclude=[scene.user["address"]])
        says.append(scene.say("also", request=scene.say("profile", address=address_text(new))))
        intents.append(scene.live_at(new))
    return Sketch(scene, [UserTurn(scene.opening(*says), intents)])


def structured_data_reasoning(scene: Scene) -> Sketch:
    """The right variant follows from a product's data: the cheapest available one that keeps an option."""
    order = scene.order(one_of(scene.draws, ("pending", "delivered")))
    scene.store.surroundings(scene.user)
    item = scene.one_item(order)
    kept = next(iter(item["options"]))
    wanted = cheapest_sibling(scene, item, kept)
    says = scene.say("cheapest", order=order["order_id"], product=item["name"], kept=kept)
    return Sketch(scene, [UserTurn(scene.opening(says), [scene.swap(order, {item["item_id"]: wanted})])])


def cheapest_sibling(scene: Scene, item: Data, kept: str) -> str:
    """Give the question exactly one answer among distractors; return the item id of the answer."""
    others = [variant for variant in scene.variants(item).values() if variant["item_id"] != item["item_id"]]
    siblings = [variant for variant in others if variant["options"][kept] == item["options"][kept]]
    if not siblings:  # give a different variant the kept value, and a new value of another option
        name = next(name for name in item["options"] if name != kept)
        kind = next(kind for kind in scene.store.words.products if kind.name == item["name"])
        value = next(value for value in kind.options[name] if value != item["options"][name])
        others[0]["options"] = {**item["options"], name: value}
        siblings = others[:1]
    for place, sibling in enumerate(siblings):
        # The last sibling is the cheapest, and is unavailable if there are others.
        sibling["price"] = round(item["price"] * (0.9 - 0.1 * place), 2)
        sibling["available"] = place == 0 or place < len(siblings) - 1
    available = [sibling for sibling in siblings if sibling["available"]]
    return str(min(available, key=lambda sibling: float(sibling["price"]))["item_id"])


def multi_step_task_completion(scene: Scene) -> Sketch:
    """Two or three requests, one after another; the work is done when all of them are."""
    first = scene.order("pending")
    second = scene.order("delivered")
    scene.store.surroundings(scene.user)
    new = scene.store.address(exclude=[first["address"], scene.user["address"]])
    items = scene.part_of(second)
    turns = [
        UserTurn(
            scene.opening(scene.say("ship_to", order=first["order_id"], address=address_text(new))),
            [scene.ship_to(first, new)],
        ),
        UserTurn(
            scene.say("then", request=scene.say_return(second, items)),
            [scene.send_back(second, items)],
        ),
    ]
    if scene.chance():
        profile = scene.say("profile", address=address_text(new))
        turns.append(UserTurn(scene.say("then", request=profile), [scene.live_at(new)]))
    return Sketch(scene, turns)


def precondition_verification(scene: Scene) -> Sketch:
    """The right action depends on a status that the customer does not know, or gets wrong."""
    order = scene.order(one_of(scene.draws, ("pending", "delivered")), 1)
    scene.store.surroundings(scene.user)
    [item] = order["items"]
    says = scene.say("if_shipped", product=item["name"], order=order["order_id"])
    if order["status"] == "delivered":
        intent = scene.send_back(order, [item])
    else:
        intent = scene.cancel(order, reason="no longer needed")
    return Sketch(scene, [UserTurn(scene.opening(says), [intent])])


def tool_calling_precision(scene: Scene) -> Sketch:
    """Several ids must be right in one call: some of an order's items, and a payment method."""
    if scene.chance():
        order = scene.order("pending", payment=scene.method("credit_card")["id"])
        scene.store.surroundings(scene.user)
        method = scene.method("paypal")
        says = scene.say("pay_with", order=order["order_id"], method="PayPal account")
        return Sketch(scene, [UserTurn(scene.opening(says), [scene.pay_with(order, method)])])
    order = scene.order("delivered", 3)
    scene.store.surroundings(scene.user)
    left_out = scene.one_item(order)
    items = [item for item in order["items"] if item is not left_out]
    changes = {item["item_id"]: scene.other_variant(item) for item in items}
    said = [
        scene.say(
            "exchange",
            order=order["order_id"],
            product=item["name"],
            options=scene.variant_text(item, changes[item["item_id"]]),
        )
        for item in items
    ]
    said[1:] = [scene.say("also", request=text) for text in said[1:]]
    return Sketch(scene, [UserTurn(scene.opening(*said), [scene.swap(order, changes)])])


def account_address_inference(scene: Scene) -> Sketch:
    """The address to use is in the account or in another order, not in the customer's words."""
    elsewhere = scene.store.address(exclude=[scene.user["address"]])
    order = scene.order("pending", address=elsewhere)
    if scene.chance():
        third = scene.store.address(exclude=[elsewhere, scene.user["address"]])
        other = scene.order(one_of(scene.draws, ("processed", "delivered")), address=third)
        scene.store.surroundings(scene.user)
        says = scene.say("same_address", order=order["order_id"], other=other["order_id"])
        intent = scene.ship_to(order, other["address"], other_orders=(other["order_id"],))
    else:
        scene.store.surroundings(scene.user)
        says = scene.say("home_address", order=order["order_id"])
        intent = scene.ship_to(order, scene.user["address"])
    # When asked for the address, the customer repeats the request, because they have no address to give.
    details = {slot: says if slot == "address" else text for slot, text in intent.details.items()}
    return Sketch(scene, [UserTurn(scene.opening(says), [replace(intent, details=details)])])


def conditional_detail_retrieval(scene: Scene) -> Sketch:
    """A figure of the order decides what to do, or answers the customer's question."""
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
        return Sketch(scene, [UserTurn(scene.opening(asked), [scene.ask(order, answer)])])
    dearer = scene.chance()
    amount = round(item["price"]) + (3 if dearer else -3)
    says = scene.say("if_price", product=item["name"], order=order["order_id"], amount=amount)
    if not dearer:
        return Sketch(scene, [UserTurn(scene.opening(says), [scene.send_back(order, [item])])])
    price = scene.say("price", product=item["name"], order=order["order_id"])
    turns = [
        UserTurn(scene.opening(says), [scene.ask(order, "")]),
        UserTurn(scene.say("then", request=price), [scene.ask(order, item["price"])]),
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
        intent, says = scene.cancel(order), scene.say("cancel_product", product=product["name"])
    else:
        intent = scene.send_back(order, order["items"])
        says = scene.say("return_product", products=product["name"])
    details = {slot: which if slot == "order" else text for slot, text in intent.details.items()}
    intent = replace(intent, details=details, survey=True)
    return Sketch(scene, [UserTurn(scene.opening(says, which), [intent])])


def cancelled_order_tracking(scene: Scene) -> Sketch:
    """One order is already cancelled: it must not be touched, nor be mistaken for the other one."""
    gone = scene.order("cancelled")
    if scene.chance():
        scene.store.surroundings(scene.user)
        says = scene.say("cancelled_again", order=gone["order_id"])
        intent = scene.cancel(gone)
        return Sketch(scene, [UserTurn(scene.opening(says), [intent], insists=(scene.say("in_writing"),))])
    order = scene.order("pending")
    scene.store.surroundings(scene.user)
    says = scene.say("cancelled_too", order=order["order_id"], other=gone["order_id"])
    intent = replace(scene.cancel(order), other_orders=(gone["order_id"],))
    turns = [UserTurn(scene.opening(says), [intent])]
    amount = float(order["payment_history"][0]["amount"])
    if written_one_way(amount) and scene.chance():
        then = scene.say("then", request=scene.say("total", order=order["order_id"]))
        turns.append(UserTurn(then, [scene.ask(order, amount)], after=After.DONE))
    return Sketch(scene, turns)


def written_one_way(amount: float) -> bool:
    """Whether an amount in dollars has only one usual spelling, because its last cent is not 0."""
    return round(amount * 100) % 10 != 0
