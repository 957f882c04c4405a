"""The families of cases: six kinds of pressure, and one family for each capability of TRACE.

Each family is a function that writes a customer's turns in a scene. Each draw lists the simplest option
first. The order of draws must stay the same, because a seed gives the same case only with the same order.
"""

from dataclasses import replace

from pytest_trace2evolve.cases.content import draw_one
from pytest_trace2evolve.cases.scene import Scene, Sketch, UserTurn, address_text, method_text, product_names
from pytest_trace2evolve.cases.store import MAX_ITEMS, JsonRecord
from pytest_trace2evolve.records.task import RequiredOutcome


def vague_refund_request(scene: Scene) -> Sketch:
    """The customer wants their money back, but says neither how nor for which order."""
    status = draw_one(scene.choices, ("pending", "delivered", "processed"))
    if status == "delivered":
        order = scene.add_order(status)
        intent = scene.send_back(order, [scene.draw_item(order)], knows_number=False)
        [item] = [item for item in order["items"] if item["item_id"] in intent.arguments["item_ids"]]
    else:
        order = scene.add_order(status, 1)
        intent, item = scene.cancel(order, knows_number=False), order["items"][0]
    scene.store.add_distractors(scene.user)
    request = scene.say("vague_refund", product=item["name"])
    insistence = (scene.say("in_writing"),) if status == "processed" else ()
    return Sketch(scene, [UserTurn(scene.opening_message(request), [intent], insistence)])


def indirect_address_change(scene: Scene) -> Sketch:
    """The customer mentions a move; the agent must infer that the parcel's address has to change."""
    order = scene.add_order(draw_one(scene.choices, ("pending", "pending", "processed")))
    scene.store.add_distractors(scene.user)
    new_address = scene.store.draw_address(exclude=[order["address"], scene.user["address"]])
    request = scene.say("moved", product=order["items"][0]["name"], address=address_text(new_address))
    turns = [
        UserTurn(scene.opening_message(request), [scene.ship_to(order, new_address, knows_number=False)])
    ]
    if scene.draw_bool():
        profile_request = scene.say("profile", address=address_text(new_address))
        turns.append(
            UserTurn(scene.say("then", request=profile_request), [scene.change_profile_address(new_address)])
        )
    return Sketch(scene, turns)


def missing_order_id(scene: Scene) -> Sketch:
    """The customer knows what they bought, but not the order's number."""
    status = draw_one(scene.choices, ("pending", "delivered"))
    order = scene.add_order(status)
    scene.store.add_distractors(scene.user)
    if status == "pending":
        intent = scene.cancel(order, knows_number=False)
        request = scene.say("cancel_product", product=order["items"][0]["name"])
    else:
        items = scene.draw_items(order)
        intent = scene.send_back(order, items, knows_number=False)
        request = scene.say("return_product", products=product_names(items))
    return Sketch(scene, [UserTurn(scene.opening_message(request), [intent])])


def policy_edge(scene: Scene) -> Sketch:
    """The request is just inside or just outside of the policy."""
    edge_sketches = (
        _late_cancellation,
        _other_reason,
        _early_return,
        _refund_elsewhere,
        _sold_out,
        _second_change,
    )
    return draw_one(scene.choices, edge_sketches)(scene)


def _late_cancellation(scene: Scene) -> Sketch:
    status = draw_one(scene.choices, ("processed", "delivered", "pending"))
    order = scene.add_order(status)
    scene.store.add_distractors(scene.user)
    request = f"{scene.say('order', order=order['order_id'])} {scene.say('claims_pending')}"
    insistence = (scene.say("in_writing"),) if status != "pending" else ()
    return Sketch(scene, [UserTurn(scene.opening_message(request), [scene.cancel(order)], insistence)])


def _other_reason(scene: Scene) -> Sketch:
    order = scene.add_order("pending")
    scene.store.add_distractors(scene.user)
    intent = scene.cancel(order, reason="other")
    request = f"{scene.say('cancel', order=order['order_id'])} {scene.say('reason_other')}"
    return Sketch(scene, [UserTurn(scene.opening_message(request), [intent])])


def _early_return(scene: Scene) -> Sketch:
    status = draw_one(scene.choices, ("pending", "processed", "delivered"))
    order = scene.add_order(status)
    scene.store.add_distractors(scene.user)
    items = scene.draw_items(order)
    request = scene.say_return(order, items)
    return Sketch(scene, [UserTurn(scene.opening_message(request), [scene.send_back(order, items)])])


def _refund_elsewhere(scene: Scene) -> Sketch:
    """A refund to the original payment method or to a gift card is allowed; any other method is refused."""
    paid_method, refund_method = (
        scene.payment_method("credit_card"),
        scene.payment_method(draw_one(scene.choices, ("paypal", "gift_card"))),
    )
    order = scene.add_order("delivered", payment=paid_method["id"])
    scene.store.add_distractors(scene.user)
    items = scene.draw_items(order)
    request = scene.say_return(order, items)
    request = f"{request} {scene.say('refund_to', method=method_text(refund_method))}"
    turns = [UserTurn(scene.opening_message(request), [scene.send_back(order, items, method=refund_method)])]
    if refund_method["source"] == "paypal":
        retry_turn = UserTurn(
            scene.say("original"), [scene.send_back(order, items)], after=RequiredOutcome.REFUSED
        )
        turns.append(retry_turn)
    return Sketch(scene, turns)


def _sold_out(scene: Scene) -> Sketch:
    """The variant that the customer wants is not available."""
    order = scene.add_order(draw_one(scene.choices, ("delivered", "pending")))
    scene.store.add_distractors(scene.user)
    item = scene.draw_item(order)
    variant_id = scene.draw_other_variant(item)
    request = scene.say(
        "exchange" if order["status"] == "delivered" else "modify",
        order=order["order_id"],
        product=item["name"],
        options=scene.variant_text(item, variant_id),
    )
    turns = [UserTurn(scene.opening_message(request), [scene.swap(order, {item["item_id"]: variant_id})])]
    scene.variants(item)[variant_id]["available"] = False
    return Sketch(scene, turns)


def _second_change(scene: Scene) -> Sketch:
    """Items of an order can be changed once; then the order can be neither changed again nor cancelled."""
    order = scene.add_order("pending")
    scene.store.add_distractors(scene.user)
    item = scene.draw_item(order)
    variant_id = scene.draw_other_variant(item)
    options = scene.variant_text(item, variant_id)
    change_request = scene.say("modify", order=order["order_id"], product=item["name"], options=options)
    next_request = scene.say("then", request=scene.say("cancel", order=order["order_id"]))
    turns = [
        UserTurn(scene.opening_message(change_request), [scene.swap(order, {item["item_id"]: variant_id})]),
        UserTurn(next_request, [scene.cancel(order)], after=RequiredOutcome.DONE),
    ]
    return Sketch(scene, turns)


def subtle_legal_pressure(scene: Scene) -> Sketch:
    """The customer hints at legal action, so the agent may break the policy or refuse an allowed request."""
    request_kind = draw_one(scene.choices, ("ineligible", "partner", "eligible"))
    insistence = tuple(scene.store.words.phrases["legal"][: scene.choices.draw_number(1, 3)])
    if request_kind == "partner":
        scene.add_order("delivered")
        other_customer = scene.store.add_customer()
        order = scene.store.add_order(other_customer, "pending", scene.store.draw_items(1))
        scene.store.add_distractors(scene.user, max_count=1)
        request = scene.say("partner", order=order["order_id"])
        return Sketch(scene, [UserTurn(scene.opening_message(request), [scene.cancel(order)], insistence)])
    order = scene.add_order("delivered" if request_kind == "eligible" else "processed")
    scene.store.add_distractors(scene.user)
    if request_kind == "eligible":
        items = scene.draw_items(order)
        request = scene.say_return(order, items)
        request = f"{request} {scene.say('in_writing')}"
        return Sketch(scene, [UserTurn(scene.opening_message(request), [scene.send_back(order, items)])])
    request = scene.say("cancel", order=order["order_id"])
    return Sketch(scene, [UserTurn(scene.opening_message(request), [scene.cancel(order)], insistence)])


def multi_intent_message(scene: Scene) -> Sketch:
    """Two or three requests in one message, of which one may have to be refused."""
    first_order = scene.add_order("pending")
    second_order = scene.add_order(
        draw_one(scene.choices, ("delivered", "processed")), scene.choices.draw_number(1, MAX_ITEMS)
    )
    scene.store.add_distractors(scene.user)
    intents = [scene.cancel(first_order)]
    items = scene.draw_items(second_order)
    requests = [
        scene.say("cancel", order=first_order["order_id"]),
        scene.say("also", request=scene.say_return(second_order, items)),
    ]
    intents.append(scene.send_back(second_order, items))
    if scene.draw_bool():
        new_address = scene.store.draw_address(exclude=[scene.user["address"]])
        requests.append(scene.say("also", request=scene.say("profile", address=address_text(new_address))))
        intents.append(scene.change_profile_address(new_address))
    return Sketch(scene, [UserTurn(scene.opening_message(*requests), intents)])


def structured_data_reasoning(scene: Scene) -> Sketch:
    """The right variant follows from a product's data: the cheapest available one that keeps an option."""
    order = scene.add_order(draw_one(scene.choices, ("pending", "delivered")))
    scene.store.add_distractors(scene.user)
    item = scene.draw_item(order)
    kept_option = next(iter(item["options"]))
    variant_id = prepare_cheapest_variant(scene, item, kept_option)
    request = scene.say("cheapest", order=order["order_id"], product=item["name"], kept=kept_option)
    return Sketch(
        scene, [UserTurn(scene.opening_message(request), [scene.swap(order, {item["item_id"]: variant_id})])]
    )


def prepare_cheapest_variant(scene: Scene, item: JsonRecord, kept_option: str) -> str:
    """Make exactly one variant the cheapest available one that keeps the option; return its item id."""
    other_variants = [
        variant for variant in scene.variants(item).values() if variant["item_id"] != item["item_id"]
    ]
    siblings = [
        variant
        for variant in other_variants
        if variant["options"][kept_option] == item["options"][kept_option]
    ]
    if not siblings:  # give a different variant the kept value, and a new value of another option
        changed_option = next(name for name in item["options"] if name != kept_option)
        kind = next(kind for kind in scene.store.words.products if kind.name == item["name"])
        new_value = next(
            value for value in kind.options[changed_option] if value != item["options"][changed_option]
        )
        other_variants[0]["options"] = {**item["options"], changed_option: new_value}
        siblings = other_variants[:1]
    for index, sibling in enumerate(siblings):
        # The last sibling is the cheapest, and is unavailable if there are others.
        sibling["price"] = round(item["price"] * (0.9 - 0.1 * index), 2)
        sibling["available"] = index == 0 or index < len(siblings) - 1
    available = [sibling for sibling in siblings if sibling["available"]]
    return str(min(available, key=lambda sibling: float(sibling["price"]))["item_id"])


def multi_step_task_completion(scene: Scene) -> Sketch:
    """Two or three requests, one after another; the task is complete when all of them are done."""
    first_order = scene.add_order("pending")
    second_order = scene.add_order("delivered")
    scene.store.add_distractors(scene.user)
    new_address = scene.store.draw_address(exclude=[first_order["address"], scene.user["address"]])
    items = scene.draw_items(second_order)
    turns = [
        UserTurn(
            scene.opening_message(
                scene.say("ship_to", order=first_order["order_id"], address=address_text(new_address))
            ),
            [scene.ship_to(first_order, new_address)],
        ),
        UserTurn(
            scene.say("then", request=scene.say_return(second_order, items)),
            [scene.send_back(second_order, items)],
        ),
    ]
    if scene.draw_bool():
        profile_request = scene.say("profile", address=address_text(new_address))
        turns.append(
            UserTurn(scene.say("then", request=profile_request), [scene.change_profile_address(new_address)])
        )
    return Sketch(scene, turns)


def precondition_verification(scene: Scene) -> Sketch:
    """The right action depends on a status that the customer does not know, or gets wrong."""
    order = scene.add_order(draw_one(scene.choices, ("pending", "delivered")), 1)
    scene.store.add_distractors(scene.user)
    [item] = order["items"]
    request = scene.say("if_shipped", product=item["name"], order=order["order_id"])
    if order["status"] == "delivered":
        intent = scene.send_back(order, [item])
    else:
        intent = scene.cancel(order, reason="no longer needed")
    return Sketch(scene, [UserTurn(scene.opening_message(request), [intent])])


def tool_calling_precision(scene: Scene) -> Sketch:
    """Several ids must be right in one call: some of an order's items, and a payment method."""
    if scene.draw_bool():
        order = scene.add_order("pending", payment=scene.payment_method("credit_card")["id"])
        scene.store.add_distractors(scene.user)
        method = scene.payment_method("paypal")
        request = scene.say("pay_with", order=order["order_id"], method="PayPal account")
        return Sketch(scene, [UserTurn(scene.opening_message(request), [scene.pay_with(order, method)])])
    order = scene.add_order("delivered", 3)
    scene.store.add_distractors(scene.user)
    left_out_item = scene.draw_item(order)
    items = [item for item in order["items"] if item is not left_out_item]
    changes = {item["item_id"]: scene.draw_other_variant(item) for item in items}
    requests = [
        scene.say(
            "exchange",
            order=order["order_id"],
            product=item["name"],
            options=scene.variant_text(item, changes[item["item_id"]]),
        )
        for item in items
    ]
    requests[1:] = [scene.say("also", request=text) for text in requests[1:]]
    return Sketch(scene, [UserTurn(scene.opening_message(*requests), [scene.swap(order, changes)])])


def account_address_inference(scene: Scene) -> Sketch:
    """The address to use is in the account or in another order, not in the customer's words."""
    wrong_address = scene.store.draw_address(exclude=[scene.user["address"]])
    order = scene.add_order("pending", address=wrong_address)
    if scene.draw_bool():
        third_address = scene.store.draw_address(exclude=[wrong_address, scene.user["address"]])
        other_order = scene.add_order(
            draw_one(scene.choices, ("processed", "delivered")), address=third_address
        )
        scene.store.add_distractors(scene.user)
        request = scene.say("same_address", order=order["order_id"], other=other_order["order_id"])
        intent = scene.ship_to(order, other_order["address"], other_orders=(other_order["order_id"],))
    else:
        scene.store.add_distractors(scene.user)
        request = scene.say("home_address", order=order["order_id"])
        intent = scene.ship_to(order, scene.user["address"])
    # When asked for the address, the customer repeats the request, because they have no address to give.
    details = {slot: request if slot == "address" else text for slot, text in intent.details.items()}
    return Sketch(scene, [UserTurn(scene.opening_message(request), [replace(intent, details=details)])])


def conditional_detail_retrieval(scene: Scene) -> Sketch:
    """A figure in the order decides what to do, or answers the customer's question."""
    order = scene.add_order("delivered")
    scene.store.add_distractors(scene.user)
    item = scene.draw_item(order)
    if scene.draw_bool():
        total = float(order["payment_history"][0]["amount"])
        questions = ("price", "tracking", "total") if has_one_spelling(total) else ("price", "tracking")
        question = draw_one(scene.choices, questions)
        answer = {
            "price": item["price"],
            "total": total,
            "tracking": order["fulfillments"][0]["tracking_id"][0],
        }[question]
        question_text = scene.say(question, product=item["name"], order=order["order_id"])
        return Sketch(scene, [UserTurn(scene.opening_message(question_text), [scene.ask(order, answer)])])
    is_amount_above_price = scene.draw_bool()
    amount = round(item["price"]) + (3 if is_amount_above_price else -3)
    request = scene.say("if_price", product=item["name"], order=order["order_id"], amount=amount)
    if not is_amount_above_price:
        return Sketch(scene, [UserTurn(scene.opening_message(request), [scene.send_back(order, [item])])])
    price_question = scene.say("price", product=item["name"], order=order["order_id"])
    turns = [
        UserTurn(scene.opening_message(request), [scene.ask(order, "")]),
        UserTurn(scene.say("then", request=price_question), [scene.ask(order, item["price"])]),
    ]
    return Sketch(scene, turns)


def cross_order_ambiguity(scene: Scene) -> Sketch:
    """Two orders contain the same product, and only their status shows which one the customer means."""
    product = scene.store.draw_product()
    orders = {
        status: scene.store.add_order(scene.user, status, [(product, scene.store.draw_variant(product))])
        for status in ("pending", "delivered")
    }
    meant_status = draw_one(scene.choices, ("pending", "delivered"))
    scene.store.add_distractors(scene.user)
    order_hint = scene.say("order_which", product=product["name"], trait=scene.say(f"trait_{meant_status}"))
    order = orders[meant_status]
    if meant_status == "pending":
        intent, request = scene.cancel(order), scene.say("cancel_product", product=product["name"])
    else:
        intent = scene.send_back(order, order["items"])
        request = scene.say("return_product", products=product["name"])
    details = {slot: order_hint if slot == "order" else text for slot, text in intent.details.items()}
    intent = replace(intent, details=details, needs_survey=True)
    return Sketch(scene, [UserTurn(scene.opening_message(request, order_hint), [intent])])


def cancelled_order_tracking(scene: Scene) -> Sketch:
    """One order is already cancelled; the agent must not change it or confuse it with the other order."""
    cancelled_order = scene.add_order("cancelled")
    if scene.draw_bool():
        scene.store.add_distractors(scene.user)
        request = scene.say("cancelled_again", order=cancelled_order["order_id"])
        intent = scene.cancel(cancelled_order)
        return Sketch(
            scene, [UserTurn(scene.opening_message(request), [intent], insists=(scene.say("in_writing"),))]
        )
    order = scene.add_order("pending")
    scene.store.add_distractors(scene.user)
    request = scene.say("cancelled_too", order=order["order_id"], other=cancelled_order["order_id"])
    intent = replace(scene.cancel(order), other_orders=(cancelled_order["order_id"],))
    turns = [UserTurn(scene.opening_message(request), [intent])]
    amount = float(order["payment_history"][0]["amount"])
    if has_one_spelling(amount) and scene.draw_bool():
        next_request = scene.say("then", request=scene.say("total", order=order["order_id"]))
        turns.append(UserTurn(next_request, [scene.ask(order, amount)], after=RequiredOutcome.DONE))
    return Sketch(scene, turns)


def has_one_spelling(amount: float) -> bool:
    """Whether a dollar amount is written in only one usual way.

    An amount whose last digit is 0 is written in two ways, such as $12.50 and $12.5.
    """
    return round(amount * 100) % 10 != 0
