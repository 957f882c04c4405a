"""The teacher: an agent that serves a case with given habits.

A habit is a behavior, such as asking for confirmation, that a rule of the instruction can switch on or off.
The embedded model learns from the teacher's dialogues. The teacher knows the customer's requests in advance,
so it does not interpret messages. It uses only facts that the conversation has shown, unless it lacks a habit
and guesses.
"""

import functools
import random
from collections.abc import Generator, Iterable, Mapping, Sequence
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
    RETURN,
    STATUS_FOR,
    Expert,
    Intent,
    Tables,
)
from pytest_trace2evolve.cases.families import precondition_verification
from pytest_trace2evolve.cases.scene import Sketch, UserTurn, address_text, options_text, product_names
from pytest_trace2evolve.cases.store import Data
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.task import Slot

Share = Annotated[float, Field(ge=0, le=1)]


class Rule(Record):
    """One rule that a candidate's instruction may contain.

    Attributes:
        sets: The probability with which each habit is kept under this rule.
        wordings: The rule's wordings in training.
        unseen: Wordings for measurements, which training never shows.
    """

    sets: dict[str, Share]
    wordings: Annotated[tuple[str, ...], Field(min_length=2)]
    unseen: Annotated[tuple[str, ...], Field(min_length=1)]


class Frames(Record):
    """The text around the rules of a prompt."""

    intros: tuple[str, ...]


class Rulebook(Record):
    """All rules, and all habits with the probability that a habit is kept if no rule mentions it."""

    habits: dict[str, Share]
    rules: dict[str, Rule]
    frames: Frames


@functools.cache
def rulebook() -> Rulebook:
    """The content of `cases/content/rules.toml`."""
    return Rulebook.model_validate(read_content("rules"))


Habits = Mapping[str, bool]
"""Whether a teacher keeps each habit in one dialogue."""


def draw_habits(rules: Iterable[str], random: random.Random) -> Habits:
    """Draw habits with their probabilities under the given rules; a later rule overrides an earlier one."""
    book = rulebook()
    shares = dict(book.habits)
    for name in rules:
        shares.update(book.rules[name].sets)
    return {habit: random.random() < share for habit, share in shares.items()}


def every_habit() -> Habits:
    return dict.fromkeys(rulebook().habits, True)


WHO = ("May I have your email, or your name and zip code?", "What is your email, or your name and zip code?")
WHY = ("Why should it be cancelled: is it no longer needed, or was it ordered by mistake?",)
WHERE_TO = ("Where should the refund go: to the original payment method or to a gift card?",)
MORE = "Is there anything else I can help with?"
CLAIM = "That is all done."
LOST = "I am sorry, then I cannot help with that."

_FOLLOWS_FROM_ANSWERS = frozenset(
    {
        "that is no reason for which an order can be cancelled",
        "a refund goes to the original payment method or a gift card",
    }
)
"""Refusals that depend on the customer's answers."""

_DONE = {
    CANCEL: "cancelled",
    RETURN: "returned",
    EXCHANGE: "exchanged",
    MODIFY_ITEMS: "changed",
    MODIFY_ADDRESS: "sent to the new address",
    MODIFY_PAYMENT: "charged to the other payment method",
}

AGAIN = 0.5
"""The chance that a teacher without the habit `once` repeats a call."""

Talk = Generator[Message, Message, Any]
"""Yields messages and receives the replies."""


class Teacher:
    """Serves one simulation of a case.

    Args:
        sketch: The customer's turns and the records.
        habits: The habits of this dialogue.
        random: Chooses among wordings and among wrong answers.
        family: The kind of case.

    Attributes:
        decided: The habits that decided each message, by the message's number among the teacher's, from 1.
    """

    name = "teacher"

    def __init__(self, sketch: Sketch, habits: Habits, random: random.Random, family: str = "") -> None:
        scene = sketch.scene
        self._turns = sketch.turns
        self._user: Data = scene.user
        self._tables = scene.store.tables
        self._by_email = scene.by_email
        self._yes = scene.store.words.phrases["yes"]
        self._habits = habits
        self._random = random
        expert = Expert(self._tables, self._user["user_id"], by_email=self._by_email)
        self._refusals = [[expert.resolve(intent).refusal for intent in turn.intents] for turn in self._turns]
        self._conditional = family == precondition_verification.__name__
        self._heard = ""
        self._read_records: set[str] = set()
        self._sent = 0
        self.decided: dict[int, list[str]] = {}
        self._talk = self._serve()

    async def respond(self, history: Sequence[Message]) -> Message:
        return self.reply(history)

    def reply(self, history: Sequence[Message]) -> Message:
        """The next message, for callers without an event loop."""
        last = history[-1]
        if last.role == "user":
            self._heard += f" {last.content or ''}"
        self._sent += 1
        return next(self._talk) if self._sent == 1 else self._talk.send(last)

    def _serve(self) -> Talk:
        yield from self._identify()
        place: int | None = 0
        while place is not None:
            reply = yield from self._turn(place)
            later = range(place + 1, len(self._turns))
            place = next((number for number in later if self._turns[number].says == reply.content), None)
        while True:
            yield _say(MORE)

    def _identify(self) -> Talk:
        name, address = self._user["name"], self._user["address"]
        facts = [self._user["email"]] if self._by_email else [name["last_name"], address["zip"]]
        if not all(fact in self._heard for fact in facts):
            yield _say(self._random.choice(WHO))
        if self._by_email:
            yield from self._call("find_user_id_by_email", email=self._user["email"])
        else:
            yield from self._call("find_user_id_by_name_zip", **name, zip=address["zip"])
        if self._keeps("account_always"):
            yield from self._read_account()

    def _turn(self, place: int) -> Talk:
        """Serve one turn of the customer; return the customer's answer to the closing message."""
        turn, refusals = self._turns[place], self._refusals[place]
        # Without the habit `complete`, only the first request of the first turn is certain to be served.
        certain = 0 if place else 1
        outcomes: list[str] = []
        for number, (intent, refusal) in enumerate(zip(turn.intents, refusals, strict=True)):
            if number >= certain and not self._keeps("complete"):
                break
            outcomes.append((yield from self._intent(turn, intent, refusal)))
        closing = " ".join(outcomes) or CLAIM
        reply: Message = yield _say(f"{closing} {MORE}")
        while reply.content in turn.insists:
            refused = next(filter(None, refusals), "")
            reply = yield _say(f"{_refused(refused)} {MORE}")
        return reply

    def _intent(self, turn: UserTurn, intent: Intent, refusal: str) -> Talk:
        """Serve one request; return the outcome as text."""
        if self._conditional and not self._keeps("inspect"):
            # The order is not read, and its status is a guess.
            arguments = {"order_id": intent.order_id, "reason": "no longer needed"}
            intent, refusal = Intent(CANCEL, arguments, intent.order_id, details={Slot.REASON: ""}), ""
        if self._needs_account(turn, intent):
            yield from self._read_account()
        order_id = intent.order_id
        if order_id and order_id not in self._heard:
            order_id = yield from self._seek(intent)
            if order_id != intent.order_id:
                return _refused(f"the order is {self._order(order_id)['status']}")
        elif order_id and self._reads(intent):
            yield from self._read_order(order_id)
        if order_id and order_id not in self._user["orders"] and order_id in self._read_records:
            return _refused("the order is another customer's")
        if intent.other_orders and self._keeps("account_needed"):
            for other in intent.other_orders:
                yield from self._read_order(other)
        if not intent.tool:
            return _answer(self._order(order_id), intent.answer)
        return (yield from self._change(intent, refusal))

    def _change(self, intent: Intent, refusal: str) -> Talk:
        """Ask for missing facts and for confirmation, then write; return the outcome as text."""
        arguments = dict(intent.arguments)
        if "new_item_ids" in arguments:
            yield from self._compare_variants(intent, arguments)
        was_read = not intent.order_id or intent.order_id in self._read_records
        if refusal and was_read and refusal not in _FOLLOWS_FROM_ANSWERS:
            return _refused(refusal)
        if intent.tool == CANCEL and not self._was_told(intent, Slot.REASON):
            if self._keeps("reason"):
                yield _say(self._random.choice(WHY))
            elif arguments["reason"] != "other":
                arguments["reason"] = "no longer needed"
        if intent.tool == RETURN and not self._was_told(intent, Slot.PAYMENT):
            if self._keeps("refund"):
                yield _say(self._random.choice(WHERE_TO))
            else:
                paid = self._order(intent.order_id)["payment_history"][0]["payment_method_id"]
                arguments["payment_method_id"] = paid
        if refusal in _FOLLOWS_FROM_ANSWERS:
            return _refused(refusal)
        if (
            intent.tool == MODIFY_ADDRESS
            and not self._was_told_address(intent)
            and not self._read_address(intent)
        ):
            # No record with the new address was read, so the teacher knows only the order's own address.
            arguments |= self._order(intent.order_id)["address"]
        if self._keeps("confirm"):
            reply = yield _say(_proposal(intent.tool, arguments, self._tables))
            if not (reply.content or "").startswith(self._yes):
                return LOST
        result = yield from self._call(intent.tool, **arguments)
        if result.error:
            return _refused(f"the order is not {STATUS_FOR.get(intent.tool, 'pending')}")
        return _done(intent.tool, intent.order_id if self._keeps("number") else "")

    def _compare_variants(self, intent: Intent, arguments: dict[str, Any]) -> Talk:
        """Read the products of items; without the habit `compare`, choose an arbitrary variant of each."""
        items = {item["item_id"]: item for item in self._order(intent.order_id)["items"]}
        chosen = []
        for old, new in zip(arguments["item_ids"], arguments["new_item_ids"], strict=True):
            product = self._tables["products"][items[old]["product_id"]]
            yield from self._read("get_product_details", product_id=product["product_id"])
            known = all(value in self._heard for value in product["variants"][new]["options"].values())
            others = [item_id for item_id in product["variants"] if item_id != old]
            chosen.append(new if known or self._keeps("compare") else self._random.choice(others))
        arguments["new_item_ids"] = chosen

    def _seek(self, intent: Intent) -> Talk:
        """Find an order by its items.

        If all orders matter, the habit `survey` finds the best match. Otherwise the first match is taken.
        """
        yield from self._read_account()
        products = self._tables["products"].values()
        asked = {product["name"] for product in products if product["name"] in self._heard}
        for order_id in self._user["orders"]:
            yield from self._read_order(order_id)
            fits = asked & {item["name"] for item in self._order(order_id)["items"]}
            if fits and not (intent.survey and self._keeps("survey")):
                return order_id if intent.survey else intent.order_id
            if order_id == intent.order_id and not intent.survey:
                break
        return intent.order_id

    def _needs_account(self, turn: UserTurn, intent: Intent) -> bool:
        """Whether the account holds a necessary fact that is still unknown."""
        if self._account_is_read():
            return False
        if intent.tool == MODIFY_PAYMENT:
            return True
        paid = self._tables["orders"].get(intent.order_id, {}).get("payment_history", [{}])[0]
        if intent.tool == RETURN and intent.arguments["payment_method_id"] != paid.get("payment_method_id"):
            return True
        unknown = intent.tool == MODIFY_ADDRESS and not self._was_told_address(intent)
        return (unknown or len(turn.intents) > 1) and self._keeps("account_needed")

    def _reads(self, intent: Intent) -> bool:
        """Whether to read the order: if an argument depends on it, or if the habit `inspect` is kept."""
        blind = intent.tool == CANCEL or (intent.tool == MODIFY_ADDRESS and self._was_told_address(intent))
        return not blind or self._keeps("inspect")

    def _keeps(self, habit: str) -> bool:
        """Return whether a habit is kept, and record the habit as a reason for the next message."""
        self.decided.setdefault(self._sent, []).append(habit)
        return self._habits[habit]

    def _was_told(self, intent: Intent, slot: Slot) -> bool:
        return slot in intent.details and intent.details[slot] in self._heard

    def _was_told_address(self, intent: Intent) -> bool:
        return str(intent.arguments.get("address1", "")) in self._heard

    def _read_address(self, intent: Intent) -> bool:
        """Whether a record with the new address was read."""
        if intent.other_orders:
            return not self._read_records.isdisjoint(intent.other_orders)
        return self._account_is_read()

    def _account_is_read(self) -> bool:
        return self._user["user_id"] in self._read_records

    def _order(self, order_id: str) -> Data:
        return self._tables["orders"][order_id]

    def _read_account(self) -> Talk:
        yield from self._read("get_user_details", user_id=self._user["user_id"])

    def _read_order(self, order_id: str) -> Talk:
        yield from self._read("get_order_details", order_id=order_id)

    def _read(self, tool: str, **arguments: str) -> Talk:
        """Read a record once."""
        [record] = arguments.values()
        if record in self._read_records:
            return
        self._read_records.add(record)
        yield from self._call(tool, **arguments)
        # The habit `once` is not recorded, because it would be a reason for nearly every message.
        if not self._habits["once"] and self._random.random() < AGAIN:
            yield from self._call(tool, **arguments)

    def _call(self, name: str, **arguments: Any) -> Talk:
        call = ToolCall(id=f"call_{self._sent}", name=name, arguments=arguments)
        return (yield Message(role="assistant", content=None, tool_calls=[call]))


def _say(text: str) -> Message:
    return Message(role="assistant", content=text)


def _refused(why: str) -> str:
    return f"I am sorry, I cannot do that: {why}."


def _done(tool: str, order_id: str) -> str:
    if tool == MODIFY_PROFILE:
        return "The address of your account is changed."
    return f"{f'Order {order_id}' if order_id else 'Your order'} is {_DONE[tool]}."


def _answer(order: Data, figure: str) -> str:
    """The answer to a question about an order. An empty figure means that the condition was not met."""
    if not figure:
        return "Then everything stays as it is."
    if order["fulfillments"] and figure == order["fulfillments"][0]["tracking_id"][0]:
        return f"The tracking number is {figure}."
    for item in order["items"]:
        if str(item["price"]) == figure:
            return f"You paid {figure} dollars for the {item['name']}."
    return f"You paid {figure} dollars in total."


def _proposal(tool: str, arguments: Mapping[str, Any], tables: Tables) -> str:
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
    named = [items[item_id] for item_id in arguments["item_ids"]]
    if tool == RETURN:
        return f"return the {product_names(named)} of order {order_id}, refund to {method_id}"
    swaps = []
    for item, new in zip(named, arguments["new_item_ids"], strict=True):
        options = tables["products"][item["product_id"]]["variants"][new]["options"]
        swaps.append(f"the {item['name']} for {new} ({options_text(options)})")
    return f"change {' and '.join(swaps)} in order {order_id}, paid with {method_id}"
