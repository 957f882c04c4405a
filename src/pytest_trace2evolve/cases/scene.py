"""A scene: one customer with their orders and sentences, from which families draw cases.

To turn a family's sketch into a case, the expert adds the gold actions, and the result becomes one τ² task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_trace2evolve.cases.content import Draws, Vocabulary, one_of, some_of
from pytest_trace2evolve.cases.expert import (
    CANCEL,
    EXCHANGE,
    MODIFY_ADDRESS,
    MODIFY_ITEMS,
    MODIFY_PAYMENT,
    MODIFY_PROFILE,
    REASONS,
    RETURN,
    Expert,
    Intent,
    Resolution,
)
from pytest_trace2evolve.cases.store import MAX_ITEMS, Data, StoreBuilder
from pytest_trace2evolve.records.task import (
    SCRIPT,
    Action,
    After,
    Content,
    Replies,
    Request,
    Script,
    Slot,
    Task,
    Turn,
)
from pytest_trace2evolve.utils.canonical import digest


class Scene:
    """The material of one case.

    The order of draws must stay the same, because a seed gives the same case only with the same order.

    Args:
        methods: Kinds of payment method that the customer must have.
        words: The vocabulary; by default, the vocabulary of the content.

    Attributes:
        store: The records.
        user: The customer.
        by_email: Whether the customer knows their email.
    """

    def __init__(
        self,
        draws: Draws,
        content: Content,
        methods: Sequence[str] = ("credit_card",),
        words: Vocabulary | None = None,
    ) -> None:
        self.draws = draws
        self.content = content
        self.store = StoreBuilder(draws, content, words)
        self.user = self.store.customer(methods)
        self.by_email = draws.number(0, 1) == 0
        self._said: dict[str, str] = {}

    def say(self, phrase: str, **slots: object) -> str:
        """Fill the slots of a phrase, whose wording is drawn once per case."""
        if phrase not in self._said:
            self._said[phrase] = one_of(self.draws, self.store.words.phrases[phrase])
        return self._said[phrase].format(**slots)

    def chance(self) -> bool:
        """Draw a boolean, where False is the simpler value."""
        return self.draws.number(0, 1) == 1

    def order(self, status: str, items: int = 0, *, payment: str = "", address: Data | None = None) -> Data:
        """Add an order of the customer with `items` items; 0 draws the number of items."""
        bought = self.store.some_items(items or self.draws.number(1, MAX_ITEMS))
        return self.store.order(self.user, status, bought, payment=payment, address=address)

    def method(self, kind: str) -> Data:
        """The customer's payment method of a kind."""
        methods: Mapping[str, Data] = self.user["payment_methods"]
        return next(method for method in methods.values() if method["source"] == kind)

    def paid_by(self, order: Data) -> Data:
        """The payment method with which an order was paid."""
        methods: Mapping[str, Data] = self.user["payment_methods"]
        return methods[order["payment_history"][0]["payment_method_id"]]

    def opening(self, *requests: str) -> str:
        """The customer's first message."""
        said = [self.say("greeting")] if self.chance() else []
        if self.chance():
            said.append(self.identity()[Slot.EMAIL if self.by_email else Slot.NAME])
        return " ".join([*said, *requests])

    def identity(self) -> dict[Slot, str]:
        """The sentences that identify the customer, by slot."""
        name = {
            "first": self.user["name"]["first_name"],
            "last": self.user["name"]["last_name"],
            "zip": self.user["address"]["zip"],
        }
        email = self.say("email", email=self.user["email"]) if self.by_email else self.say("no_email", **name)
        return {Slot.EMAIL: email, Slot.NAME: self.say("name_zip", **name)}

    def _details(self, order: Data, *, known: bool = True, item: Data | None = None) -> dict[Slot, str]:
        """The customer's words for an order: its number, or an item of the order if the number is unknown."""
        name = (item or order["items"][0])["name"]
        phrase = "order" if known else "order_unknown"
        return {Slot.ORDER: self.say(phrase, order=order["order_id"], product=name)}

    def _change(
        self,
        tool: str,
        order: Data,
        arguments: Mapping[str, object],
        details: dict[Slot, str],
        *,
        known: bool = True,
        item: Data | None = None,
    ) -> Intent:
        """The intent to change an order; a customer who does not know its number names `item` instead."""
        return Intent(
            tool,
            {"order_id": order["order_id"], **arguments},
            order["order_id"],
            seek=not known,
            details=self._details(order, known=known, item=item) | details,
        )

    def cancel(self, order: Data, *, reason: str = "", known: bool = True) -> Intent:
        """The intent to cancel an order.

        `reason` is a reason that the tool accepts or "other"; an empty `reason` draws one from `REASONS`.
        """
        reason = reason or one_of(self.draws, REASONS)
        said = self.say(f"reason_{reason.replace(' ', '_')}")
        return self._change(CANCEL, order, {"reason": reason}, {Slot.REASON: said}, known=known)

    def send_back(
        self, order: Data, items: Sequence[Data], *, method: Data | None = None, known: bool = True
    ) -> Intent:
        """The intent to return items of an order, with a refund to `method`, by default the one that paid."""
        paid = self.paid_by(order)
        target = method or paid
        said = self.say("original") if target is paid else self.say("refund_to", method=method_text(target))
        arguments = {"item_ids": [item["item_id"] for item in items], "payment_method_id": target["id"]}
        details = {Slot.PAYMENT: said, Slot.ITEMS: f"The {product_names(items)}."}
        return self._change(RETURN, order, arguments, details, known=known, item=items[0])

    def say_return(self, order: Data, items: Sequence[Data]) -> str:
        """The customer's request to return items of an order."""
        return self.say("return", products=product_names(items), order=order["order_id"])

    def swap(self, order: Data, changes: Mapping[str, str], *, method: Data | None = None) -> Intent:
        """The intent to replace items, by id: an exchange for a delivered order, otherwise a modification."""
        target = method or self.paid_by(order)
        items = [item for item in order["items"] if item["item_id"] in changes]
        options = "; ".join(self.variant_text(item, changes[item["item_id"]]) for item in items)
        arguments = {
            "item_ids": list(changes),
            "new_item_ids": list(changes.values()),
            "payment_method_id": target["id"],
        }
        details = {
            Slot.PAYMENT: self.say("difference", method=method_text(target)),
            Slot.ITEMS: f"The {product_names(items)}.",
            Slot.OPTIONS: f"{options}.",
        }
        tool = EXCHANGE if order["status"] == "delivered" else MODIFY_ITEMS
        return self._change(tool, order, arguments, details)

    def ship_to(
        self, order: Data, address: Data, *, known: bool = True, other_orders: tuple[str, ...] = ()
    ) -> Intent:
        """The intent to ship an order to a new address, which the customer may take from `other_orders`."""
        details = {Slot.ADDRESS: f"{address_text(address)}."}
        intent = self._change(MODIFY_ADDRESS, order, address, details, known=known)
        return replace(intent, other_orders=other_orders)

    def pay_with(self, order: Data, method: Data) -> Intent:
        """The intent to pay for an order with a different method."""
        details = {Slot.PAYMENT: f"{method_text(method)}."}
        return self._change(MODIFY_PAYMENT, order, {"payment_method_id": method["id"]}, details)

    def live_at(self, address: Data) -> Intent:
        """The intent to change the address in the profile."""
        details = {Slot.ADDRESS: f"{address_text(address)}."}
        return Intent(MODIFY_PROFILE, {"user_id": self.user["user_id"], **address}, details=details)

    def ask(self, order: Data, answer: object) -> Intent:
        """The intent to ask a question about an order."""
        return Intent(order_id=order["order_id"], answer=str(answer), details=self._details(order))

    def variants(self, item: Data) -> dict[str, Data]:
        """The variants of an item's product by id."""
        variants: dict[str, Data] = self.store.tables["products"][item["product_id"]]["variants"]
        return variants

    def variant_text(self, item: Data, variant: str) -> str:
        """The options of a variant of an item's product, as a customer names them."""
        return options_text(self.variants(item)[variant]["options"])

    def other_variant(self, item: Data, *, kept: str = "") -> str:
        """Draw and make available a different variant of an item's product with the same option `kept`."""
        others = [
            variant
            for variant in self.variants(item).values()
            if variant["item_id"] != item["item_id"]
            and (not kept or variant["options"][kept] == item["options"][kept])
        ]
        chosen = one_of(self.draws, others)
        chosen["available"] = True
        return str(chosen["item_id"])

    def one_item(self, order: Data) -> Data:
        """One of an order's items."""
        return one_of(self.draws, order["items"])

    def part_of(self, order: Data) -> list[Data]:
        """Draw at least one of an order's items, and return them in the sequence of the order."""
        count = self.draws.number(1, len(order["items"]))
        chosen = some_of(self.draws, order["items"], count)
        return [item for item in order["items"] if item in chosen]


def product_names(items: Sequence[Data]) -> str:
    """The product names of items, joined by "and the" to follow a first "the"."""
    return " and the ".join(item["name"] for item in items)


def options_text(options: Mapping[str, str]) -> str:
    """Options as a customer names them."""
    return " and ".join(f"{name} {value}" for name, value in options.items())


def address_text(address: Mapping[str, Any]) -> str:
    """An address in one line."""
    flat = f", {address['address2']}" if address["address2"] else ""
    return f"{address['address1']}{flat}, {address['city']}, {address['state']} {address['zip']}"


def method_text(method: Mapping[str, Any]) -> str:
    """A payment method as a customer names it."""
    if method["source"] == "credit_card":
        return f"{method['brand']} ending in {method['last_four']}"
    return {"gift_card": "gift card", "paypal": "PayPal account"}[method["source"]]


@dataclass(frozen=True)
class UserTurn:
    """One turn of the customer, as a family writes it."""

    says: str
    intents: Sequence[Intent]
    insists: tuple[str, ...] = ()
    after: After = After.ANYTHING


@dataclass(frozen=True)
class Sketch:
    """A scene and the customer's turns in it."""

    scene: Scene
    turns: Sequence[UserTurn]


ID_DIGITS = 10
"""Digits of a case's digest in its id."""


def assemble(family: str, sketch: Sketch) -> Task:
    """Build the τ² task of a sketch, including the customer's script."""
    scene = sketch.scene
    expert = Expert(scene.store.tables, scene.user["user_id"], by_email=scene.by_email)
    resolved = [[expert.resolve(intent) for intent in turn.intents] for turn in sketch.turns]
    phrases = scene.store.words.phrases
    script = Script(
        family=family,
        content=scene.content,
        identity=scene.identity(),
        turns=tuple(_turn(scene, *pair) for pair in zip(sketch.turns, resolved, strict=True)),
        replies=Replies.model_validate({name: phrases[name] for name in Replies.model_fields}),
    )
    resolutions = [resolution for turn in resolved for resolution in turn]
    actions = [action for resolution in resolutions for action in resolution.actions]
    answers = [intent.answer for turn in sketch.turns for intent in turn.intents if intent.answer]
    record = task_record(script, _instructions(script), scene.store.tables, actions, answers)
    return Task.model_validate({"id": f"{family}-{digest(record)[:ID_DIGITS]}", **record})


def task_record(
    script: Script,
    instructions: Mapping[str, str],
    tables: Mapping[str, Any],
    actions: Sequence[Action],
    answers: Sequence[str],
) -> dict[str, Any]:
    """A τ² task with its customer's script as JSON, without an id."""
    return {
        "description": {
            "purpose": script.family.replace("_", " "),
            "relevant_policies": None,
            "notes": None,
        },
        "user_scenario": {
            "persona": None,
            "instructions": instructions,
            SCRIPT: script.model_dump(mode="json"),
        },
        "initial_state": {
            "initialization_data": {"agent_data": tables, "user_data": None},
            "initialization_actions": None,
            "message_history": None,
        },
        "evaluation_criteria": {
            "actions": [
                {"action_id": str(place), "name": action.name, "arguments": action.arguments}
                for place, action in enumerate(actions)
            ],
            "env_assertions": None,
            "communicate_info": answers,
            "nl_assertions": None,
            "reward_basis": ["DB", "COMMUNICATE"],
        },
    }


def _turn(scene: Scene, turn: UserTurn, resolutions: Sequence[Resolution]) -> Turn:
    return Turn(
        says=turn.says,
        requests=tuple(
            Request(
                about=_about(scene, intent),
                details=dict(intent.details),
                answer=intent.answer,
                refused=bool(resolution.refusal),
            )
            for intent, resolution in zip(turn.intents, resolutions, strict=True)
        ),
        insists=turn.insists,
        after=turn.after,
        actions=sum(len(resolution.actions) for resolution in resolutions),
    )


def _about(scene: Scene, intent: Intent) -> tuple[str, ...]:
    """The ids that an agent may name when it asks for confirmation: customer, orders, items and products."""
    ids = [scene.user["user_id"], intent.order_id, *intent.other_orders]
    if order := scene.store.tables["orders"].get(intent.order_id):
        ids += [item["item_id"] for item in order["items"]]
        ids += [item["product_id"] for item in order["items"]]
    ids += intent.arguments.get("new_item_ids", ())
    return tuple(dict.fromkeys(filter(None, ids)))


def _instructions(script: Script) -> dict[str, str]:
    """The script as instructions for a user simulator that is a model."""
    conditions = {
        After.ANYTHING: "Then",
        After.DONE: "When that is done",
        After.REFUSED: "When that is refused",
    }
    requests = [request for turn in script.turns for request in turn.requests]
    answers = [f"If asked: {text}" for request in requests for text in request.details.values()]
    insists = [f"When refused, say: {text}" for turn in script.turns for text in turn.insists]
    later = [f"{conditions[turn.after]}, say: {turn.says}" for turn in script.turns[1:]]
    return {
        "domain": "support",
        "reason_for_call": script.turns[0].says,
        "known_info": " ".join(script.identity.values()),
        "unknown_info": "Anything that is not written here.",
        "task_instructions": "\n".join(
            [*dict.fromkeys(answers), *insists, *later, "Confirm with a clear yes what you asked for."]
        ),
    }
