"""The teacher: an agent that serves a case as its habits have it, by what it was told and read alone.

Its dialogues are what the pocket model learns from. It knows what the customer wants beforehand, so that it
need not understand them; it says and writes nothing that could not be known from the talk so far, except
where a habit that it lacks has it guess.

Habits of the pocket model's teacher, and the rules of a prompt that change them.
"""

import functools
import importlib.resources
import random
import tomllib
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from pytest_trace2evolve.cases import phrasing as speech
from pytest_trace2evolve.cases.expert import CANCEL, MODIFY_ADDRESS, MODIFY_PAYMENT, RETURN, Expert, Wish
from pytest_trace2evolve.cases.families import precondition_verification
from pytest_trace2evolve.cases.scene import Sketch, Spoken
from pytest_trace2evolve.cases.store import Data
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.task import Slot

Share = Annotated[float, Field(ge=0, le=1)]


class Rule(Record):
    """One rule that a candidate's instruction may hold.

    Attributes:
        sets: By habit, how often it is kept under this rule.
        wordings: How the rule is written in training.
        unseen: How it is written where following it is measured on words never seen.
    """

    sets: dict[str, Share]
    wordings: Annotated[tuple[str, ...], Field(min_length=2)]
    unseen: Annotated[tuple[str, ...], Field(min_length=1)]


class Frames(Record):
    """Words around the rules of a prompt."""

    intros: tuple[str, ...]


class Rulebook(Record):
    """All habits, with how often each is kept where no rule speaks of it, and all rules."""

    habits: dict[str, Share]
    rules: dict[str, Rule]
    frames: Frames


@functools.cache
def rulebook() -> Rulebook:
    """What `cases/content/rules.toml` holds."""
    folder = importlib.resources.files("pytest_trace2evolve.cases") / "content"
    return Rulebook.model_validate(tomllib.loads((folder / "rules.toml").read_text(encoding="utf-8")))


Habits = Mapping[str, bool]
"""Which habits a teacher keeps in one dialogue."""


def draw_habits(rules: Iterable[str], random: random.Random) -> Habits:
    """Which habits are kept under the given rules, each drawn at its share; a later rule wins."""
    book = rulebook()
    shares = dict(book.habits)
    for name in rules:
        shares.update(book.rules[name].sets)
    return {habit: random.random() < share for habit, share in shares.items()}


def every_habit() -> Habits:
    """The habits of a teacher without a flaw."""
    return dict.fromkeys(rulebook().habits, True)


Talk = Generator[Message, Message, Any]
"""Says messages and is told what came back."""


@dataclass
class _Known:
    """What was told and read so far."""

    heard: str = ""
    account: bool = False
    records: set[str] = field(default_factory=set)


class Teacher:
    """Serves one simulation of a case.

    Args:
        sketch: The case's sketch: what the customer wants, and the records.
        habits: What is done well in this dialogue.
        random: Chooses among wordings, and among wrong answers.
        family: The kind of case.

    Attributes:
        decided: By the number of a message among the teacher's, from 1 on, the habits that decided it.
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
        self._refusals = [[expert.handle(wish).refusal for wish in turn.wishes] for turn in self._turns]
        self._conditional = family == precondition_verification.__name__
        self._known = _Known()
        self._said = 0
        self.decided: dict[int, list[str]] = {}
        self._talk = self._serve()

    async def respond(self, history: Sequence[Message]) -> Message:
        """The next message."""
        return self.reply(history)

    def reply(self, history: Sequence[Message]) -> Message:
        """The same at once: it waits for nothing."""
        last = history[-1]
        if last.role == "user":
            self._known.heard += f" {last.content or ''}"
        self._said += 1
        return next(self._talk) if self._said == 1 else self._talk.send(last)

    def _serve(self) -> Talk:
        yield from self._identify()
        place: int | None = 0
        while place is not None:
            reply = yield from self._turn(place)
            later = range(place + 1, len(self._turns))
            place = next((one for one in later if self._turns[one].says == reply.content), None)
        while True:
            yield self._say(speech.MORE)

    def _identify(self) -> Talk:
        name, place = self._user["name"], self._user["address"]
        facts = [self._user["email"]] if self._by_email else [name["last_name"], place["zip"]]
        if not all(fact in self._known.heard for fact in facts):
            yield self._say(self._random.choice(speech.WHO))
        if self._by_email:
            yield from self._call("find_user_id_by_email", email=self._user["email"])
        else:
            arguments = {"first_name": name["first_name"], "last_name": name["last_name"]}
            yield from self._call("find_user_id_by_name_zip", **arguments, zip=place["zip"])
        if self._keeps("account_always"):
            yield from self._account()

    def _turn(self, place: int) -> Talk:
        """Serve one turn of the customer; what they answer to the closing message."""
        turn = self._turns[place]
        todo = list(zip(turn.wishes, self._refusals[place], strict=True))
        # Of several requests the first alone; of what is told later, nothing.
        first = 0 if place else 1
        outcomes: list[str] = []
        for number, (wish, refusal) in enumerate(todo):
            if number >= first and not self._keeps("complete"):
                break
            outcomes.append((yield from self._wish(turn, wish, refusal)))
        closing = " ".join(outcomes) or speech.CLAIM
        reply: Message = yield self._say(f"{closing} {speech.MORE}")
        while reply.content in turn.insists:
            refused = next((text for _, text in todo if text), "")
            reply = yield self._say(f"{speech.refused(refused)} {speech.MORE}")
        return reply

    def _wish(self, turn: Spoken, wish: Wish, refusal: str) -> Talk:
        """Serve one request; what came of it, in words."""
        if self._conditional and not self._keeps("inspect"):
            # Nobody looked whether it has arrived: it is taken to be on its way.
            reason = {"order_id": wish.order_id, "reason": "no longer needed"}
            wish, refusal = Wish(CANCEL, reason, wish.order_id, details={Slot.REASON: ""}), ""
        if self._wants_account(turn, wish):
            yield from self._account()
        order_id = wish.order_id
        if order_id and order_id not in self._known.heard:
            order_id = yield from self._seek(wish)
            if order_id != wish.order_id:
                return speech.refused(f"the order is {self._order(order_id)['status']}")
        elif order_id and self._reads(wish):
            yield from self._read(order_id)
        if order_id and order_id not in self._user["orders"] and self._has_read(order_id):
            return speech.refused("the order is another customer's")
        if wish.looks and self._keeps("account_needed"):
            for other in wish.looks:
                yield from self._read(other)
        if not wish.tool:
            return speech.answer(self._order(order_id), wish.answer)
        return (yield from self._change(wish, refusal))

    def _change(self, wish: Wish, refusal: str) -> Talk:
        """Find out what is open, ask for a yes, write; what came of it, in words."""
        arguments = dict(wish.arguments)
        if "new_item_ids" in arguments:
            yield from self._variants(wish, arguments)
        if refusal and self._has_read(wish.order_id) and refusal not in speech.LEARNT_LATER:
            return speech.refused(refusal)
        if wish.tool == CANCEL and not self._told(wish, Slot.REASON):
            if self._keeps("reason"):
                yield self._say(self._random.choice(speech.WHY))
            elif arguments["reason"] != "other":
                arguments["reason"] = "no longer needed"
        if wish.tool == RETURN and not self._told(wish, Slot.PAYMENT):
            if self._keeps("refund"):
                yield self._say(self._random.choice(speech.WHERE_TO))
            else:
                paid = self._order(wish.order_id)["payment_history"][0]["payment_method_id"]
                arguments["payment_method_id"] = paid
        if refusal in speech.LEARNT_LATER:
            return speech.refused(refusal)
        if wish.tool == MODIFY_ADDRESS and not self._told_address(wish) and not self._knows_address(wish):
            # Where nobody looked it up, the order's own address is all there is.
            arguments |= self._order(wish.order_id)["address"]
        if self._keeps("confirm"):
            reply = yield self._say(speech.proposal(wish.tool, arguments, self._tables))
            if not (reply.content or "").startswith(self._yes):
                return speech.LOST
        result = yield from self._call(wish.tool, **arguments)
        if result.error:
            return speech.refused(speech.error(wish.tool))
        named = wish.order_id if self._keeps("number") else ""
        return speech.done(wish.tool, named)

    def _variants(self, wish: Wish, arguments: dict[str, Any]) -> Talk:
        """Look at the products of items; where nobody compares, any of their variants will do."""
        items = {item["item_id"]: item for item in self._order(wish.order_id)["items"]}
        chosen = []
        for old, new in zip(arguments["item_ids"], arguments["new_item_ids"], strict=True):
            product = self._tables["products"][items[old]["product_id"]]
            yield from self._look("get_product_details", product_id=product["product_id"])
            wanted = product["variants"][new]["options"].values()
            told = all(value in self._known.heard for value in wanted)
            others = [one for one in product["variants"] if one != old]
            chosen.append(new if told or self._keeps("compare") else self._random.choice(others))
        arguments["new_item_ids"] = chosen

    def _seek(self, wish: Wish) -> Talk:
        """Find an order by what is in it: the first that fits, or the one of all that fits best."""
        yield from self._account()
        asked = self._products_heard()
        for order_id in self._user["orders"]:
            yield from self._read(order_id)
            fits = asked & {item["name"] for item in self._order(order_id)["items"]}
            if fits and not (wish.survey and self._keeps("survey")):
                return order_id if wish.survey else wish.order_id
            if order_id == wish.order_id and not wish.survey:
                break
        return wish.order_id

    def _products_heard(self) -> set[str]:
        names = {product["name"] for product in self._tables["products"].values()}
        return {name for name in names if name in self._known.heard}

    def _wants_account(self, turn: Spoken, wish: Wish) -> bool:
        """Whether something is open that stands in the account."""
        if self._known.account:
            return False
        if wish.tool == MODIFY_PAYMENT:
            return True
        paid = self._tables["orders"].get(wish.order_id, {}).get("payment_history", [{}])[0]
        if wish.tool == RETURN and wish.arguments["payment_method_id"] != paid.get("payment_method_id"):
            return True
        open_ = wish.tool == MODIFY_ADDRESS and not self._told_address(wish)
        return (open_ or len(turn.wishes) > 1) and self._keeps("account_needed")

    def _reads(self, wish: Wish) -> bool:
        """Whether the order is read; where it is not needed to fill in a call, only the habit says so."""
        blind = wish.tool == CANCEL or (wish.tool == MODIFY_ADDRESS and self._told_address(wish))
        return not blind or self._keeps("inspect")

    def _keeps(self, habit: str) -> bool:
        """Whether a habit is kept, where that decides the next message."""
        self.decided.setdefault(self._said, []).append(habit)
        return self._habits[habit]

    def _told(self, wish: Wish, slot: Slot) -> bool:
        return slot in wish.details and wish.details[slot] in self._known.heard

    def _told_address(self, wish: Wish) -> bool:
        return str(wish.arguments.get("address1", "")) in self._known.heard

    def _knows_address(self, wish: Wish) -> bool:
        """Whether the address to use was read somewhere."""
        return self._known.account if not wish.looks else any(map(self._has_read, wish.looks))

    def _has_read(self, record: str) -> bool:
        return not record or record in self._known.records

    def _order(self, order_id: str) -> Data:
        found: Data = self._tables["orders"][order_id]
        return found

    def _account(self) -> Talk:
        if not self._known.account:
            self._known.account = True
            yield from self._look("get_user_details", user_id=self._user["user_id"])

    def _read(self, order_id: str) -> Talk:
        yield from self._look("get_order_details", order_id=order_id)

    def _look(self, tool: str, **arguments: str) -> Talk:
        """Read a record that was not read yet."""
        [record] = arguments.values()
        if record in self._known.records:
            return
        self._known.records.add(record)
        yield from self._call(tool, **arguments)
        # Not told as decided by it: nearly every message would be.
        if not self._habits["once"] and self._random.random() < AGAIN:
            yield from self._call(tool, **arguments)

    def _call(self, name: str, **arguments: Any) -> Talk:
        call = ToolCall(id=f"call_{self._said}", name=name, arguments=arguments)
        return (yield Message(role="assistant", content=None, tool_calls=[call]))

    def _say(self, text: str) -> Message:
        return Message(role="assistant", content=text)


AGAIN = 0.5
"""How often a teacher who repeats calls repeats one."""
