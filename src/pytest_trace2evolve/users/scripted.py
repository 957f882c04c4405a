"""The scripted customer: says what its script says, in answer to what it hears; no model, no memory.

What it says next follows from the trace alone, so the same seed and the same agent give the same
conversation. However an agent behaves, it comes to an end.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from pytest_trace2evolve.records.message import STOP, Message
from pytest_trace2evolve.records.task import After, Script, Slot, Turn
from pytest_trace2evolve.users.message_parser import Heard, hear

TRANSFER = "###TRANSFER###"
"""By which a customer who is handed over ends a simulation, as in τ²."""

IDLE_MOST = 3
"""Messages of one turn in a row that ask, grant and refuse nothing, after which the customer moves on."""

SAME_MOST = 3
"""How often in one turn the customer gives the same answer; asked once more, they move on."""

_NEEDED = frozenset({Slot.EMAIL, Slot.NAME, Slot.ORDER, Slot.ADDRESS})
"""What an agent may need before it can do anything at all."""

_SAID_BEFORE = frozenset({Slot.ITEMS, Slot.OPTIONS, Slot.ADDRESS, Slot.ORDER})
"""What a customer without details on it has told with their request, as far as they know it."""


@dataclass
class _Now:
    """How far the present turn has come.

    Attributes:
        confirmed: Whether the customer said yes.
        answered: The requests whose answer the agent has told.
        insisted: How often the customer insisted.
        idle: How many messages in a row led nowhere.
        given: How often the customer gave an answer.
    """

    confirmed: bool = False
    answered: set[int] = field(default_factory=set)
    insisted: int = 0
    idle: int = 0
    given: Counter[str] = field(default_factory=Counter)


@dataclass
class _Talk:
    """How far a conversation has come: the place of its turn, and how many messages the customer sent."""

    turn: int = 0
    sent: int = 1
    now: _Now = field(default_factory=_Now)


class ScriptedUser:
    """A customer who follows a script. One of them serves one simulation.

    Args:
        script: What the customer knows, wants and says.
        seed: Chooses among the wordings of replies.
    """

    def __init__(self, script: Script, *, seed: int = 0) -> None:
        self._script = script
        self._seed = seed

    async def respond(self, history: Sequence[Message]) -> Message:
        """The customer's next message: a function of what the agent said so far."""
        return self.reply(history)

    def reply(self, history: Sequence[Message]) -> Message:
        """The same at once: it waits for nothing."""
        talk, reply = _Talk(), self._script.turns[0].says
        for text in _answers_to_customer(history):
            reply = self._reply(talk, hear(text), text)
            talk.sent += 1
            if talk.sent >= self._script.patience:
                reply = f"{self._one('giving_up', talk)} {STOP}"
        return Message(role="user", content=reply)

    def _reply(self, talk: _Talk, heard: Heard, text: str) -> str:
        if heard.transfer:
            return TRANSFER
        turn = self._script.turns[talk.turn]
        plain = text.lower().replace(",", "")
        talk.now.answered |= {
            place for place, one in enumerate(turn.requests) if one.answer and one.answer.lower() in plain
        }
        if heard.confirm and (turn.done or not heard.refusal):
            return self._to_proposal(talk, turn, heard, plain)
        asked = bool(heard.asks or heard.request)
        if heard.refusal and not (talk.now.confirmed and not turn.refused):
            if heard.asks & _NEEDED or (asked and turn.done):
                return self._to_question(talk, turn, heard)
            return self._to_refusal(talk, turn, heard)
        if asked:
            return self._to_question(talk, turn, heard)
        told = self._told(talk, turn)
        if heard.ongoing and not heard.everything and not told:
            return self._wait(talk, turn)
        if heard.closing or told:
            return self._to_closing(talk, turn, heard)
        return self._wait(talk, turn)

    def _to_proposal(self, talk: _Talk, turn: Turn, heard: Heard, text: str) -> str:
        """Yes, unless the proposal names a record that nothing the customer asked for is about."""
        details = self._details(turn, heard.asks)
        if heard.ids - {one for request in turn.requests for one in request.about}:
            return self._once_more(talk, turn, "wrong", [turn.says, *details])
        if heard.choice:
            # A bare yes does not say which of the two is meant.
            details = [turn.says, *details]
        # An offer to look something up is no proposal of what was asked for.
        talk.now.confirmed = talk.now.confirmed or not heard.offer
        talk.now.given[text] += 1
        if talk.now.given[text] > SAME_MOST:
            return self._next(talk, self._outcome(talk, turn))
        return self._once_more(talk, turn, "yes", details, often=SAME_MOST * (1 + len(turn.requests)))

    def _to_question(self, talk: _Talk, turn: Turn, heard: Heard) -> str:
        """What is known of it; otherwise the request again, where that is what was asked for."""
        details = self._details(turn, heard.asks)
        if details:
            return self._once_more(talk, turn, "", details)
        if heard.request or heard.asks & _SAID_BEFORE:
            return self._once_more(talk, turn, "", [turn.says])
        return self._once_more(talk, turn, "unknown", [])

    def _to_refusal(self, talk: _Talk, turn: Turn, heard: Heard) -> str:
        """Insist, then take it; where something can be done and is not yet, wait for that."""
        if talk.now.insisted < len(turn.insists):
            talk.now.insisted += 1
            return turn.insists[talk.now.insisted - 1]
        partly = turn.refused and turn.done and not talk.now.confirmed
        if (partly or (heard.ongoing and turn.done)) and talk.now.idle < IDLE_MOST - 1:
            return self._wait(talk, turn)
        return self._next(talk, After.REFUSED)

    def _to_closing(self, talk: _Talk, turn: Turn, heard: Heard) -> str:
        """One thing done may not be all that was asked for: wait, unless the agent says it is, or idles."""
        several = len(turn.requests) > 1
        if several and not heard.everything and talk.now.idle < IDLE_MOST - 1:
            return self._wait(talk, turn)
        return self._next(talk, After.DONE if turn.done or talk.now.confirmed else After.REFUSED)

    def _wait(self, talk: _Talk, turn: Turn) -> str:
        talk.now.idle += 1
        if talk.now.idle >= IDLE_MOST:
            return self._next(talk, self._outcome(talk, turn))
        return self._one("wait", talk)

    def _once_more(
        self, talk: _Talk, turn: Turn, reply: str, details: Sequence[str], often: int = SAME_MOST
    ) -> str:
        """An answer, unless the same was given too often: then the agent does not listen."""
        answer = " ".join([reply, *details])
        talk.now.given[answer] += 1
        if talk.now.given[answer] > often:
            return self._next(talk, self._outcome(talk, turn))
        talk.now.idle = 0
        return " ".join([*([self._one(reply, talk)] if reply else []), *details])

    def _told(self, talk: _Talk, turn: Turn) -> bool:
        """Whether all was a question, and every question has its answer."""
        questions = [place for place, one in enumerate(turn.requests) if one.answer]
        return len(questions) == len(turn.requests) and talk.now.answered.issuperset(questions)

    def _outcome(self, talk: _Talk, turn: Turn) -> After:
        """What came of a turn of which the agent has not said that it is over."""
        return After.DONE if talk.now.confirmed or self._told(talk, turn) else After.REFUSED

    def _next(self, talk: _Talk, outcome: After) -> str:
        """The next turn that fits what came of this one; where there is none, the end."""
        turns = self._script.turns
        for place in range(talk.turn + 1, len(turns)):
            if turns[place].after in (After.ANYTHING, outcome):
                talk.turn, talk.now = place, _Now()
                return turns[place].says
        return f"{self._one('giving_up' if outcome is After.REFUSED else 'bye', talk)} {STOP}"

    def _details(self, turn: Turn, asked: Collection[Slot]) -> list[str]:
        """What the customer can tell of what was asked for, each thing once."""
        told = []
        for slot in sorted(asked):
            told += [self._script.identity[slot]] if slot in self._script.identity else []
            told += [one.details[slot] for one in turn.requests if slot in one.details]
        return list(dict.fromkeys(told))

    def _one(self, reply: str, talk: _Talk) -> str:
        """One of a reply's wordings."""
        wordings: tuple[str, ...] = getattr(self._script.replies, reply)
        # A generator a message: what is said does not depend on how often the trace was read before.
        return random.Random(f"{self._seed}/{talk.sent}/{reply}").choice(wordings)


def _answers_to_customer(history: Sequence[Message]) -> Iterator[str]:
    """What the agent said to the customer since they opened, empty messages among it."""
    opened = False
    for message in history:
        opened = opened or message.role == "user"
        if opened and message.role == "assistant" and not message.tool_calls:
            yield message.content or ""
