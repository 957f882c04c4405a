"""The teacher: an agent that serves a case with given habits.

A habit is a behavior, such as asking for confirmation, that a rule of the instruction can switch on or off.
The embedded model learns from the teacher's dialogues. The teacher knows the customer's requests in advance,
so it does not interpret messages. It uses only facts that the conversation has shown, unless it lacks a habit
and guesses.
"""

import functools
import random
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from pytest_trace2evolve.cases.content import read_content
from pytest_trace2evolve.cases.expert import (
    CANCEL,
    EXCHANGE,
    MODIFY_ADDRESS,
    MODIFY_ITEMS,
    MODIFY_PAYMENT,
    MODIFY_PROFILE,
    REQUIRED_STATUS,
    RETURN,
    Expert,
    Intent,
    Tables,
)
from pytest_trace2evolve.cases.families import conditional_detail_retrieval, precondition_verification
from pytest_trace2evolve.cases.scene import Sketch, UserTurn, address_text, options_text, product_names
from pytest_trace2evolve.cases.store import JsonRecord
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.task import Slot

Probability = Annotated[float, Field(ge=0, le=1)]


class Rule(Record):
    """One rule that a candidate's instruction may contain.

    Attributes:
        sets: The probability with which each habit is kept under this rule.
        wordings: The rule's wordings in training.
        unseen: Wordings that training never shows, for measurements of the model.
    """

    sets: dict[str, Probability]
    wordings: Annotated[tuple[str, ...], Field(min_length=2)]
    unseen: Annotated[tuple[str, ...], Field(min_length=1)]


class Frames(Record):
    """The texts that introduce the rules in a prompt."""

    intros: tuple[str, ...]


class Rulebook(Record):
    """All rules, and all habits with the probability that a habit is kept if no rule mentions it."""

    habits: dict[str, Probability]
    rules: dict[str, Rule]
    frames: Frames


@functools.cache
def rulebook() -> Rulebook:
    """The content of `cases/content/rules.toml`."""
    return Rulebook.model_validate(read_content("rules"))


Habits = Mapping[str, bool]
"""For each habit, whether the teacher keeps it in one dialogue."""


def all_habits() -> Habits:
    return dict.fromkeys(rulebook().habits, True)


ASK_IDENTITY = ("May I have your email, or your name and zip code?",)
ASK_REASON = ("Why should it be cancelled: is it no longer needed, or was it ordered by mistake?",)
ASK_REFUND_METHOD = ("Where should the refund go: to the original payment method or to a gift card?",)
ANYTHING_ELSE = "Is there anything else I can help with?"
CLAIM_DONE = "That is all done."
KEEP = "Then everything stays as it is."
GIVE_UP = "I am sorry, then I cannot help with that."

_ANSWER_BASED_REFUSALS = frozenset(
    {
        "that is no reason for which an order can be cancelled",
        "a refund goes to the original payment method or a gift card",
    }
)
"""Refusals that depend on the customer's answers."""

_DONE_TEXTS = {
    CANCEL: "cancelled",
    RETURN: "returned",
    EXCHANGE: "exchanged",
    MODIFY_ITEMS: "changed",
    MODIFY_ADDRESS: "sent to the new address",
    MODIFY_PAYMENT: "charged to the other payment method",
}

REPEAT_PROBABILITY = 0.5
"""The chance that a teacher without the habit `once` repeats a call."""

Dialogue = Generator[Message, Message, Any]
"""Yields messages and receives the replies."""


class Teacher:
    """Serves one simulation of a case.

    Args:
        sketch: The customer's turns and the records.
        habits: For each habit, whether the teacher keeps it.
        rng: Chooses among wordings and among wrong answers.
        family: The kind of case.

    Attributes:
        deciding_habits: The habits on which each of the teacher's messages depended, by the message's number
            from 1.
    """

    name = "teacher"

    def __init__(self, sketch: Sketch, habits: Habits, rng: random.Random, family: str = "") -> None:
        scene = sketch.scene
        self._turns = sketch.turns
        self._user: JsonRecord = scene.user
        self._tables = scene.store.tables
        self._uses_email = scene.uses_email
        self._yes_phrases = scene.store.words.phrases["yes"]
        self._habits = habits
        self._rng = rng
        expert = Expert(self._tables, self._user["user_id"], uses_email=self._uses_email)
        self._refusals = [[expert.resolve(intent).refusal for intent in turn.intents] for turn in self._turns]
        self._family = family
        self._heard_text = ""
        self._read_ids: set[str] = set()
        self._sent_count = 0
        self.deciding_habits: dict[int, list[str]] = {}
        self._dialogue = self._serve()

    async def respond(self, history: Sequence[Message]) -> Message:
        return self.reply(history)

    def reply(self, history: Sequence[Message]) -> Message:
        """Return the next message; for callers without an event loop."""
        last_message = history[-1]
        if last_message.role == "user":
            self._heard_text += f" {last_message.content or ''}"
        self._sent_count += 1
        return next(self._dialogue) if self._sent_count == 1 else self._dialogue.send(last_message)

    def _serve(self) -> Dialogue:
        yield from self._identify()
        index: int | None = 0
        while index is not None:
            reply = yield from self._serve_turn(index)
            later_turns = range(index + 1, len(self._turns))
            index = next(
                (
                    later_index
                    for later_index in later_turns
                    if self._turns[later_index].says == reply.content
                ),
                None,
            )
        while True:
            yield _text_message(ANYTHING_ELSE)

    def _identify(self) -> Dialogue:
        name, address = self._user["name"], self._user["address"]
        facts = [self._user["email"]] if self._uses_email else [name["last_name"], address["zip"]]
        if not all(fact in self._heard_text for fact in facts):
            yield _text_message(self._rng.choice(ASK_IDENTITY))
        if self._uses_email:
            yield from self._call("find_user_id_by_email", email=self._user["email"])
        else:
            yield from self._call("find_user_id_by_name_zip", **name, zip=address["zip"])
        if self._keeps_habit("account_always"):
            yield from self._read_account()

    def _serve_turn(self, turn_index: int) -> Dialogue:
        """Serve one turn of the customer; return the customer's answer to the closing message."""
        turn, refusals = self._turns[turn_index], self._refusals[turn_index]
        # Without the habit `complete`, only the first request of the first turn is certain to be served.
        min_served = 0 if turn_index else 1
        outcomes: list[str] = []
        for request_index, (intent, refusal) in enumerate(zip(turn.intents, refusals, strict=True)):
            if request_index >= min_served and not self._keeps_habit("complete"):
                break
            outcomes.append((yield from self._serve_intent(turn, intent, refusal)))
        closing = " ".join(outcomes) or CLAIM_DONE
        reply: Message = yield _text_message(f"{closing} {ANYTHING_ELSE}")
        while reply.content in turn.insists:
            first_refusal = next(filter(None, refusals), "")
            reply = yield _text_message(f"{_refusal_text(first_refusal)} {ANYTHING_ELSE}")
        return reply

    def _serve_intent(self, turn: UserTurn, intent: Intent, refusal: str) -> Dialogue:
        """Serve one request; return the outcome as text."""
        if self._family == precondition_verification.__name__ and not self._keeps_habit("inspect"):
            # The order is not read, and its status is a guess.
            arguments = {"order_id": intent.order_id, "reason": "no longer needed"}
            intent, refusal = Intent(CANCEL, arguments, intent.order_id, details={Slot.REASON: ""}), ""
        if self._needs_account(turn, intent):
            yield from self._read_account()
        order_id = intent.order_id
        if order_id and order_id not in self._heard_text:
            order_id = yield from self._find_order(intent)
            if order_id != intent.order_id:
                return _refusal_text(f"the order is {self._order_record(order_id)['status']}")
        elif order_id and self._needs_to_read(intent):
            yield from self._read_order(order_id)
        if order_id and order_id not in self._user["orders"] and order_id in self._read_ids:
            return _refusal_text("the order is another customer's")
        if intent.other_orders and self._keeps_habit("account_needed"):
            for other_order_id in intent.other_orders:
                yield from self._read_order(other_order_id)
        order = self._order_record(order_id) if order_id else {}
        depends_on_figure = self._family == conditional_detail_retrieval.__name__ and len(turn.intents) == 1
        if depends_on_figure and not self._keeps_habit("figure"):
            # The figure is not looked up in the record: a wrong one is given, or the condition is guessed.
            if intent.tool:
                return KEEP
            if intent.answer:
                return _answer_text(order, self._rng.choice(_other_figures(order, intent.answer)))
            intent = self._return_intent(order, [i for i in order["items"] if i["name"] in self._heard_text])
        if not intent.tool:
            return _answer_text(order, intent.answer)
        return (yield from self._make_change(intent, refusal))

    def _make_change(self, intent: Intent, refusal: str) -> Dialogue:
        """Ask for missing facts and for confirmation, then write; return the outcome as text."""
        arguments = dict(intent.arguments)
        if "new_item_ids" in arguments:
            yield from self._compare_variants(intent, arguments)
        was_read = not intent.order_id or intent.order_id in self._read_ids
        if refusal and was_read and refusal not in _ANSWER_BASED_REFUSALS:
            workaround = self._workaround(intent, refusal)
            if workaround is None or self._keeps_habit("decline"):
                return _refusal_text(refusal)
            intent, refusal, arguments = workaround, "", dict(workaround.arguments)
        if intent.tool == CANCEL and not self._has_heard(intent, Slot.REASON):
            if self._keeps_habit("reason"):
                yield _text_message(self._rng.choice(ASK_REASON))
            elif arguments["reason"] != "other":
                arguments["reason"] = "no longer needed"
        if intent.tool == RETURN and not self._has_heard(intent, Slot.PAYMENT):
            if self._keeps_habit("refund"):
                yield _text_message(self._rng.choice(ASK_REFUND_METHOD))
            else:
                paid_method_id = self._order_record(intent.order_id)["payment_history"][0][
                    "payment_method_id"
                ]
                arguments["payment_method_id"] = paid_method_id
        if refusal in _ANSWER_BASED_REFUSALS:
            if intent.tool != CANCEL or self._keeps_habit("decline"):
                return _refusal_text(refusal)
            arguments["reason"] = "no longer needed"
        self._approximate(intent, arguments)
        if (
            intent.tool == MODIFY_ADDRESS
            and not self._has_heard_address(intent)
            and not self._has_read_address(intent)
        ):
            # No record with the new address was read, so the teacher knows only the order's own address.
            arguments |= self._order_record(intent.order_id)["address"]
        if self._keeps_habit("confirm"):
            reply = yield _text_message(_proposal_text(intent.tool, arguments, self._tables))
            if not (reply.content or "").startswith(self._yes_phrases):
                return GIVE_UP
        result = yield from self._call(intent.tool, **arguments)
        if result.error:
            return _refusal_text(f"the order is not {REQUIRED_STATUS.get(intent.tool, 'pending')}")
        return _done_text(intent.tool, intent.order_id if self._keeps_habit("number") else "")

    def _workaround(self, intent: Intent, refusal: str) -> Intent | None:
        """Something allowed that the customer has not asked for, instead of a refused request."""
        order = self._tables["orders"].get(intent.order_id)
        if order is None or intent.order_id not in self._user["orders"]:
            return None
        if intent.tool == CANCEL and order["status"] == "delivered":
            return self._return_intent(order, order["items"])
        if intent.tool == RETURN and order["status"] == "pending":
            arguments = {"order_id": intent.order_id, "reason": "no longer needed"}
            return replace(intent, tool=CANCEL, arguments=arguments, details={Slot.REASON: ""})
        if refusal == "that item is not available" and len(intent.arguments["item_ids"]) == 1:
            items = {item["item_id"]: item for item in order["items"]}
            [old_item_id] = intent.arguments["item_ids"]
            variants = self._tables["products"][items[old_item_id]["product_id"]]["variants"].values()
            available = [variant["item_id"] for variant in variants if variant["available"]]
            if others := [item_id for item_id in available if item_id != old_item_id]:
                new_item_id = self._rng.choice(others)
                return replace(intent, arguments={**intent.arguments, "new_item_ids": [new_item_id]})
        return None

    def _return_intent(self, order: JsonRecord, items: Sequence[JsonRecord]) -> Intent:
        arguments = {
            "order_id": order["order_id"],
            "item_ids": [item["item_id"] for item in items],
            "payment_method_id": order["payment_history"][0]["payment_method_id"],
        }
        return Intent(RETURN, arguments, order["order_id"], details={Slot.PAYMENT: ""})

    def _approximate(self, intent: Intent, arguments: dict[str, Any]) -> None:
        """Without the habit `exact`, change some or all of an order's items, or charge some method."""
        if intent.tool == MODIFY_PAYMENT:
            others = [m for m in self._user["payment_methods"] if m != arguments["payment_method_id"]]
            if others and not self._keeps_habit("exact"):
                arguments["payment_method_id"] = others[0]
            return
        named, all_ids = arguments.get("item_ids", []), self._item_ids(intent.order_id)
        is_whole = len(named) == len(all_ids) or intent.tool != RETURN
        if named and not (is_whole and len(named) == 1) and not self._keeps_habit("exact"):
            arguments["item_ids"] = named[:1] if is_whole else all_ids
            if "new_item_ids" in arguments:
                arguments["new_item_ids"] = arguments["new_item_ids"][:1]

    def _item_ids(self, order_id: str) -> list[str]:
        return [item["item_id"] for item in self._order_record(order_id)["items"]] if order_id else []

    def _compare_variants(self, intent: Intent, arguments: dict[str, Any]) -> Dialogue:
        """Read the product of each item to be changed.

        Without the habit `compare`, a new variant whose options the customer has not named is replaced by a
        random one.
        """
        items = {item["item_id"]: item for item in self._order_record(intent.order_id)["items"]}
        new_item_ids = []
        for old_item_id, new_item_id in zip(arguments["item_ids"], arguments["new_item_ids"], strict=True):
            product = self._tables["products"][items[old_item_id]["product_id"]]
            yield from self._read_once("get_product_details", product_id=product["product_id"])
            is_known = all(
                value in self._heard_text for value in product["variants"][new_item_id]["options"].values()
            )
            if not is_known and self._keeps_habit("compare"):
                yield from self._read_once("get_item_details", item_id=new_item_id)
            elif not is_known:
                other_item_ids = [item_id for item_id in product["variants"] if item_id != old_item_id]
                new_item_id = self._rng.choice(other_item_ids)
            new_item_ids.append(new_item_id)
        arguments["new_item_ids"] = new_item_ids

    def _find_order(self, intent: Intent) -> Dialogue:
        """Find an order by the products that the customer has named.

        If all orders must be read, only a teacher with the habit `survey` reads them. A teacher without the
        habit takes the first order that matches.
        """
        yield from self._read_account()
        products = self._tables["products"].values()
        named_products = {product["name"] for product in products if product["name"] in self._heard_text}
        for order_id in self._user["orders"]:
            yield from self._read_order(order_id)
            matches = named_products & {item["name"] for item in self._order_record(order_id)["items"]}
            if matches and not (intent.needs_survey and self._keeps_habit("survey")):
                return order_id if intent.needs_survey else intent.order_id
            if order_id == intent.order_id and not intent.needs_survey:
                break
        return intent.order_id

    def _needs_account(self, turn: UserTurn, intent: Intent) -> bool:
        """Whether the account holds a necessary fact that is still unknown."""
        if self._has_read_account():
            return False
        if intent.tool == MODIFY_PAYMENT:
            return True
        payment = self._tables["orders"].get(intent.order_id, {}).get("payment_history", [{}])[0]
        if intent.tool == RETURN and intent.arguments["payment_method_id"] != payment.get(
            "payment_method_id"
        ):
            return True
        is_address_unknown = intent.tool == MODIFY_ADDRESS and not self._has_heard_address(intent)
        return (is_address_unknown or len(turn.intents) > 1) and self._keeps_habit("account_needed")

    def _needs_to_read(self, intent: Intent) -> bool:
        """Whether to read the order: if an argument depends on it, or if the habit `inspect` is kept."""
        can_skip = intent.tool == CANCEL or (
            intent.tool == MODIFY_ADDRESS and self._has_heard_address(intent)
        )
        return not can_skip or self._keeps_habit("inspect")

    def _keeps_habit(self, habit: str) -> bool:
        """Return whether a habit is kept, and record the habit as a reason for the next message."""
        self.deciding_habits.setdefault(self._sent_count, []).append(habit)
        return self._habits[habit]

    def _has_heard(self, intent: Intent, slot: Slot) -> bool:
        return slot in intent.details and intent.details[slot] in self._heard_text

    def _has_heard_address(self, intent: Intent) -> bool:
        return str(intent.arguments.get("address1", "")) in self._heard_text

    def _has_read_address(self, intent: Intent) -> bool:
        """Whether a record with the new address was read."""
        if intent.other_orders:
            return not self._read_ids.isdisjoint(intent.other_orders)
        return self._has_read_account()

    def _has_read_account(self) -> bool:
        return self._user["user_id"] in self._read_ids

    def _order_record(self, order_id: str) -> JsonRecord:
        return self._tables["orders"][order_id]

    def _read_account(self) -> Dialogue:
        yield from self._read_once("get_user_details", user_id=self._user["user_id"])

    def _read_order(self, order_id: str) -> Dialogue:
        yield from self._read_once("get_order_details", order_id=order_id)

    def _read_once(self, tool: str, **arguments: str) -> Dialogue:
        """Read a record that was not read yet; without the habit `once`, the call may be repeated."""
        [record_id] = arguments.values()
        if record_id in self._read_ids:
            return
        self._read_ids.add(record_id)
        yield from self._call(tool, **arguments)
        # The habit `once` is not recorded, because it would be a reason for nearly every message.
        if not self._habits["once"] and self._rng.random() < REPEAT_PROBABILITY:
            yield from self._call(tool, **arguments)

    def _call(self, name: str, **arguments: Any) -> Dialogue:
        call = ToolCall(id=f"call_{self._sent_count}", name=name, arguments=arguments)
        note = self._note(name, arguments) or None
        return (yield Message(role="assistant", content=note, tool_calls=[call]))

    def _note(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """What the teacher writes before a call: the part of a record that holds the id to use.

        The note is the record's own text, as tools show it, so each id is copied from the words before it.
        The customer does not see the text of a message with a call.
        """
        order_ids, order_id = self._user["orders"], arguments.get("order_id", "")
        if tool == "get_order_details":
            if order_id not in order_ids or order_id in self._heard_text or not self._has_read_account():
                return ""
            place = order_ids.index(order_id)
            if not place:
                return f'"orders": ["{order_id}'
            return f'{self._finding(order_ids[place - 1])}{order_ids[place - 1]}", "{order_id}'
        if tool == "get_product_details":
            read = (self._order_record(known) for known in self._tables["orders"] if known in self._read_ids)
            seen_items = (item for order in read for item in order["items"])
            named = (item for item in seen_items if item["product_id"] == arguments["product_id"])
            return next(map(_item_text, named), "")
        if tool == "get_item_details":
            return self._candidates(arguments["item_id"])
        if tool in (RETURN, EXCHANGE, MODIFY_ITEMS):
            items = {item["item_id"]: item for item in self._order_record(order_id)["items"]}
            return "; ".join(
                f'{_item_text(items[item_id])}", "item_id": "{item_id}' for item_id in arguments["item_ids"]
            )
        return ""

    def _finding(self, order_id: str) -> str:
        """What a search found in an order: its status if it holds a product that the customer named."""
        if order_id not in self._read_ids:
            return ""
        order = self._order_record(order_id)
        names = [item["name"] for item in order["items"] if item["name"] in self._heard_text]
        return f'"name": "{names[0]}", "status": "{order["status"]}"; ' if names else "no; "

    def _candidates(self, chosen_id: str) -> str:
        """The variants among which the expert chooses, with their prices."""
        products = self._tables["products"].values()
        variants = next(product["variants"] for product in products if chosen_id in product["variants"])
        chosen = variants[chosen_id]
        kept = {name: value for name, value in chosen["options"].items() if name in self._heard_text}
        bought = {item["item_id"] for order in self._tables["orders"].values() for item in order["items"]}
        return "; ".join(
            f'"item_id": "{item_id}", "price": {variant["price"]}'
            for item_id, variant in variants.items()
            if variant["available"] and item_id not in bought and kept.items() <= variant["options"].items()
        )


def _item_text(item: JsonRecord) -> str:
    return f'"name": "{item["name"]}", "product_id": "{item["product_id"]}'


def _other_figures(order: JsonRecord, figure: str) -> list[str]:
    """Figures of an order that answer another question."""
    paid = order["payment_history"][0]["amount"]
    figures = [str(paid), *(str(item["price"]) for item in order["items"])]
    figures += order["fulfillments"][0]["tracking_id"][:1] if order["fulfillments"] else []
    return [other for other in figures if other != figure] or [order["order_id"]]


def _text_message(text: str) -> Message:
    return Message(role="assistant", content=text)


def _refusal_text(reason: str) -> str:
    return f"I am sorry, I cannot do that: {reason}."


def _done_text(tool: str, order_id: str) -> str:
    if tool == MODIFY_PROFILE:
        return "The address of your account is changed."
    return f"{f'Order {order_id}' if order_id else 'Your order'} is {_DONE_TEXTS[tool]}."


def _answer_text(order: JsonRecord, figure: str) -> str:
    """The answer to a question about an order. An empty figure means that the condition was not met."""
    if not figure:
        return KEEP
    if order["fulfillments"] and figure == order["fulfillments"][0]["tracking_id"][0]:
        return f"The tracking number is {figure}."
    for item in order["items"]:
        if str(item["price"]) == figure:
            return f"You paid {figure} dollars for the {item['name']}."
    return f"You paid {figure} dollars in total."


def _proposal_text(tool: str, arguments: Mapping[str, Any], tables: Tables) -> str:
    """A description of the planned change, with a request for confirmation."""
    return f"I will {_change_text(tool, arguments, tables)}. Do you confirm (yes/no)?"


def _change_text(tool: str, arguments: Mapping[str, Any], tables: Tables) -> str:
    if tool == MODIFY_PROFILE:
        return f"change the address of your account to {address_text(arguments)}"
    order_id = arguments["order_id"]
    if tool == CANCEL:
        return f"cancel order {order_id}, reason: {arguments['reason']}"
    if tool == MODIFY_ADDRESS:
        return f"send order {order_id} to {address_text(arguments)}"
    method_id = arguments["payment_method_id"]
    if tool == MODIFY_PAYMENT:
        return f"charge order {order_id} to {method_id}"
    items = {item["item_id"]: item for item in tables["orders"][order_id]["items"]}
    named_items = [items[item_id] for item_id in arguments["item_ids"]]
    if tool == RETURN:
        return f"return the {product_names(named_items)} of order {order_id}, refund to {method_id}"
    exchanges = []
    for item, new_item_id in zip(named_items, arguments["new_item_ids"], strict=True):
        options = tables["products"][item["product_id"]]["variants"][new_item_id]["options"]
        exchanges.append(f"the {item['name']} for {new_item_id} ({options_text(options)})")
    return f"change {' and '.join(exchanges)} in order {order_id}, paid with {method_id}"
