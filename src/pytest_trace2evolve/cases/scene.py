"""A scene holds one customer with orders and sentences; families write cases in scenes.

To turn a family's sketch into a case, the expert adds the gold actions, and the result becomes one τ² task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_trace2evolve.cases.content import ChoiceSource, Vocabulary, draw_one, draw_some
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
from pytest_trace2evolve.cases.store import MAX_ITEMS, JsonRecord, StoreBuilder
from pytest_trace2evolve.records.task import (
    SCRIPT_KEY,
    Action,
    Content,
    Replies,
    Request,
    RequiredOutcome,
    Script,
    Slot,
    Task,
    Turn,
)
from pytest_trace2evolve.utils.canonical import digest


class Scene:
    """The records of one case, and methods that build the customer's sentences and intents.

    The order of draws must stay the same, because a seed gives the same case only with the same order.

    Args:
        methods: Kinds of payment method that the customer must have.
        words: The vocabulary; by default, the vocabulary of the content.

    Attributes:
        store: The builder of the records.
        user: The customer's record.
        uses_email: Whether the customer gives an email address; otherwise name and zip code.
    """

    def __init__(
        self,
        choices: ChoiceSource,
        content: Content,
        methods: Sequence[str] = ("credit_card",),
        words: Vocabulary | None = None,
    ) -> None:
        self.choices = choices
        self.content = content
        self.store = StoreBuilder(choices, content, words)
        self.user = self.store.add_customer(methods)
        self.uses_email = choices.draw_number(0, 1) == 0
        self._wordings: dict[str, str] = {}

    def say(self, phrase: str, **slots: object) -> str:
        """Fill the slots of a phrase, whose wording is drawn once per case."""
        if phrase not in self._wordings:
            self._wordings[phrase] = draw_one(self.choices, self.store.words.phrases[phrase])
        return self._wordings[phrase].format(**slots)

    def draw_bool(self) -> bool:
        """Draw a boolean, where False is the simpler value."""
        return self.choices.draw_number(0, 1) == 1

    def add_order(
        self, status: str, items: int = 0, *, payment: str = "", address: JsonRecord | None = None
    ) -> JsonRecord:
        """Add an order of up to `items` items for the customer; 0 draws the number of items."""
        order_items = self.store.draw_items(items or self.choices.draw_number(1, MAX_ITEMS))
        return self.store.add_order(self.user, status, order_items, payment=payment, address=address)

    def payment_method(self, kind: str) -> JsonRecord:
        """The customer's first payment method of the given kind."""
        methods: Mapping[str, JsonRecord] = self.user["payment_methods"]
        return next(method for method in methods.values() if method["source"] == kind)

    def paid_method(self, order: JsonRecord) -> JsonRecord:
        """The payment method with which an order was paid."""
        methods: Mapping[str, JsonRecord] = self.user["payment_methods"]
        return methods[order["payment_history"][0]["payment_method_id"]]

    def opening_message(self, *requests: str) -> str:
        """The customer's first message."""
        texts = [self.say("greeting")] if self.draw_bool() else []
        if self.draw_bool():
            texts.append(self.identity()[Slot.EMAIL if self.uses_email else Slot.NAME])
        return " ".join([*texts, *requests])

    def identity(self) -> dict[Slot, str]:
        """The sentences that identify the customer, by slot."""
        name = {
            "first": self.user["name"]["first_name"],
            "last": self.user["name"]["last_name"],
            "zip": self.user["address"]["zip"],
        }
        email = (
            self.say("email", email=self.user["email"]) if self.uses_email else self.say("no_email", **name)
        )
        return {Slot.EMAIL: email, Slot.NAME: self.say("name_zip", **name)}

    def _order_details(
        self, order: JsonRecord, *, knows_number: bool = True, item: JsonRecord | None = None
    ) -> dict[Slot, str]:
        """The customer's words for an order: its number, or an item of the order if the number is unknown."""
        name = (item or order["items"][0])["name"]
        phrase = "order" if knows_number else "order_unknown"
        return {Slot.ORDER: self.say(phrase, order=order["order_id"], product=name)}

    def _change_intent(
        self,
        tool: str,
        order: JsonRecord,
        arguments: Mapping[str, object],
        details: dict[Slot, str],
        *,
        knows_number: bool = True,
        item: JsonRecord | None = None,
    ) -> Intent:
        """The intent to change an order; a customer who does not know the number names `item` instead."""
        return Intent(
            tool,
            {"order_id": order["order_id"], **arguments},
            order["order_id"],
            needs_search=not knows_number,
            details=self._order_details(order, knows_number=knows_number, item=item) | details,
        )

    def cancel(self, order: JsonRecord, *, reason: str = "", knows_number: bool = True) -> Intent:
        """The intent to cancel an order.

        `reason` is a reason that the tool accepts or "other"; an empty `reason` draws one from `REASONS`.
        """
        reason = reason or draw_one(self.choices, REASONS)
        reason_text = self.say(f"reason_{reason.replace(' ', '_')}")
        return self._change_intent(
            CANCEL, order, {"reason": reason}, {Slot.REASON: reason_text}, knows_number=knows_number
        )

    def send_back(
        self,
        order: JsonRecord,
        items: Sequence[JsonRecord],
        *,
        method: JsonRecord | None = None,
        knows_number: bool = True,
    ) -> Intent:
        """The intent to return items of an order, with a refund to `method` or the original method."""
        paid_method = self.paid_method(order)
        refund_method = method or paid_method
        payment_text = (
            self.say("original")
            if refund_method is paid_method
            else self.say("refund_to", method=method_text(refund_method))
        )
        arguments = {
            "item_ids": [item["item_id"] for item in items],
            "payment_method_id": refund_method["id"],
        }
        details = {Slot.PAYMENT: payment_text, Slot.ITEMS: f"The {product_names(items)}."}
        return self._change_intent(
            RETURN, order, arguments, details, knows_number=knows_number, item=items[0]
        )

    def say_return(self, order: JsonRecord, items: Sequence[JsonRecord]) -> str:
        """The customer's request to return items of an order."""
        return self.say("return", products=product_names(items), order=order["order_id"])

    def swap(
        self, order: JsonRecord, changes: Mapping[str, str], *, method: JsonRecord | None = None
    ) -> Intent:
        """The intent to replace items of an order: an exchange after delivery, a modification before.

        `changes` maps the id of each item to the id of the new item.
        """
        payment_method = method or self.paid_method(order)
        items = [item for item in order["items"] if item["item_id"] in changes]
        options = "; ".join(self.variant_text(item, changes[item["item_id"]]) for item in items)
        arguments = {
            "item_ids": list(changes),
            "new_item_ids": list(changes.values()),
            "payment_method_id": payment_method["id"],
        }
        details = {
            Slot.PAYMENT: self.say("difference", method=method_text(payment_method)),
            Slot.ITEMS: f"The {product_names(items)}.",
            Slot.OPTIONS: f"{options}.",
        }
        tool = EXCHANGE if order["status"] == "delivered" else MODIFY_ITEMS
        return self._change_intent(tool, order, arguments, details)

    def ship_to(
        self,
        order: JsonRecord,
        address: JsonRecord,
        *,
        knows_number: bool = True,
        other_orders: tuple[str, ...] = (),
    ) -> Intent:
        """The intent to ship an order to a new address, which the customer may take from `other_orders`."""
        details = {Slot.ADDRESS: f"{address_text(address)}."}
        intent = self._change_intent(MODIFY_ADDRESS, order, address, details, knows_number=knows_number)
        return replace(intent, other_orders=other_orders)

    def pay_with(self, order: JsonRecord, method: JsonRecord) -> Intent:
        """The intent to pay for an order with a different method."""
        details = {Slot.PAYMENT: f"{method_text(method)}."}
        return self._change_intent(MODIFY_PAYMENT, order, {"payment_method_id": method["id"]}, details)

    def change_profile_address(self, address: JsonRecord) -> Intent:
        """The intent to change the address in the profile."""
        details = {Slot.ADDRESS: f"{address_text(address)}."}
        return Intent(MODIFY_PROFILE, {"user_id": self.user["user_id"], **address}, details=details)

    def ask(self, order: JsonRecord, answer: object) -> Intent:
        """The intent to ask a question about an order."""
        return Intent(order_id=order["order_id"], answer=str(answer), details=self._order_details(order))

    def variants(self, item: JsonRecord) -> dict[str, JsonRecord]:
        """The variants of an item's product by id."""
        variants: dict[str, JsonRecord] = self.store.tables["products"][item["product_id"]]["variants"]
        return variants

    def variant_text(self, item: JsonRecord, variant: str) -> str:
        """The options of a variant of an item's product, as a customer names them."""
        return options_text(self.variants(item)[variant]["options"])

    def draw_other_variant(self, item: JsonRecord, *, kept_option: str = "") -> str:
        """Draw a different variant of an item's product, make it available, and return its item id.

        If `kept_option` is given, the variant has the same value of that option.
        """
        candidates = [
            variant
            for variant in self.variants(item).values()
            if variant["item_id"] != item["item_id"]
            and (not kept_option or variant["options"][kept_option] == item["options"][kept_option])
        ]
        variant = draw_one(self.choices, candidates)
        variant["available"] = True
        return str(variant["item_id"])

    def draw_item(self, order: JsonRecord) -> JsonRecord:
        """Draw one of an order's items."""
        return draw_one(self.choices, order["items"])

    def draw_items(self, order: JsonRecord) -> list[JsonRecord]:
        """Draw at least one of an order's items, and return them in the order's own sequence."""
        count = self.choices.draw_number(1, len(order["items"]))
        drawn_items = draw_some(self.choices, order["items"], count)
        return [item for item in order["items"] if item in drawn_items]


def product_names(items: Sequence[JsonRecord]) -> str:
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
    """One turn of the customer, with the intents behind it. `Turn` is the form stored in a task."""

    says: str
    intents: Sequence[Intent]
    insists: tuple[str, ...] = ()
    after: RequiredOutcome = RequiredOutcome.ANYTHING


@dataclass(frozen=True)
class Sketch:
    """A case before the expert adds the gold actions: a scene and the customer's turns."""

    scene: Scene
    turns: Sequence[UserTurn]


ID_DIGITS = 10
"""The number of digits of a case's digest that its id contains."""


def assemble(family: str, sketch: Sketch) -> Task:
    """Build the τ² task of a sketch, including the customer's script."""
    scene = sketch.scene
    expert = Expert(scene.store.tables, scene.user["user_id"], uses_email=scene.uses_email)
    resolutions_by_turn = [[expert.resolve(intent) for intent in turn.intents] for turn in sketch.turns]
    phrases = scene.store.words.phrases
    script = Script(
        family=family,
        content=scene.content,
        identity=scene.identity(),
        turns=tuple(
            _script_turn(scene, *pair) for pair in zip(sketch.turns, resolutions_by_turn, strict=True)
        ),
        replies=Replies.model_validate({name: phrases[name] for name in Replies.model_fields}),
    )
    resolutions = [resolution for turn in resolutions_by_turn for resolution in turn]
    actions = [action for resolution in resolutions for action in resolution.actions]
    answers = [intent.answer for turn in sketch.turns for intent in turn.intents if intent.answer]
    task_json = task_record(script, _instructions(script), scene.store.tables, actions, answers)
    return Task.model_validate(
        {"id": f"{family}-{digest(task_json)[:ID_DIGITS]}", "tags": [family], **task_json}
    )


def task_record(
    script: Script,
    instructions: Mapping[str, str],
    tables: Mapping[str, Any],
    actions: Sequence[Action],
    answers: Sequence[str],
) -> dict[str, Any]:
    """Return a τ² task with its customer's script as JSON, without an id."""
    return {
        "description": {
            "purpose": script.family.replace("_", " "),
            "relevant_policies": None,
            "notes": None,
        },
        "user_scenario": {
            "persona": None,
            "instructions": instructions,
            SCRIPT_KEY: script.model_dump(mode="json"),
        },
        "initial_state": {
            "initialization_data": {"agent_data": tables, "user_data": None},
            "initialization_actions": None,
            "message_history": None,
        },
        "evaluation_criteria": {
            "actions": [
                {"action_id": str(index), "name": action.name, "arguments": action.arguments}
                for index, action in enumerate(actions)
            ],
            "env_assertions": None,
            "communicate_info": answers,
            "nl_assertions": None,
            "reward_basis": ["DB", "COMMUNICATE"],
        },
    }


def _script_turn(scene: Scene, turn: UserTurn, resolutions: Sequence[Resolution]) -> Turn:
    return Turn(
        says=turn.says,
        requests=tuple(
            Request(
                about=_confirmable_ids(scene, intent),
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


def _confirmable_ids(scene: Scene, intent: Intent) -> tuple[str, ...]:
    """The ids of customer, orders, items and products that an agent may name to ask for confirmation."""
    ids = [scene.user["user_id"], intent.order_id, *intent.other_orders]
    if order := scene.store.tables["orders"].get(intent.order_id):
        ids += [item["item_id"] for item in order["items"]]
        ids += [item["product_id"] for item in order["items"]]
    ids += intent.arguments.get("new_item_ids", ())
    return tuple(dict.fromkeys(filter(None, ids)))


def _instructions(script: Script) -> dict[str, str]:
    """Render the script as instructions for a model that plays the customer."""
    conditions = {
        RequiredOutcome.ANYTHING: "Then",
        RequiredOutcome.DONE: "When that is done",
        RequiredOutcome.REFUSED: "When that is refused",
    }
    requests = [request for turn in script.turns for request in turn.requests]
    answers = [f"If asked: {text}" for request in requests for text in request.details.values()]
    insistence = [f"When refused, say: {text}" for turn in script.turns for text in turn.insists]
    later_turns = [f"{conditions[turn.after]}, say: {turn.says}" for turn in script.turns[1:]]
    return {
        "domain": "support",
        "reason_for_call": script.turns[0].says,
        "known_info": " ".join(script.identity.values()),
        "unknown_info": "Anything that is not written here.",
        "task_instructions": "\n".join(
            [
                *dict.fromkeys(answers),
                *insistence,
                *later_turns,
                "Confirm with a clear yes what you asked for.",
            ]
        ),
    }
