"""The scripted customer: answers the agent from its script, without a model and without memory.

The next message follows from the trace alone, so the same seed and the same agent give the same conversation.
However an agent behaves, the conversation ends.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from pytest_trace2evolve.records.message import STOP, Message
from pytest_trace2evolve.records.task import After, Script, Slot, Turn
from pytest_trace2evolve.users.message_parser import ParsedMessage, parse_message

TRANSFER = "###TRANSFER###"
"""The message of a customer who is handed over; it ends a simulation, as in τ²."""

MAX_IDLE = 3
"""Messages in a row that ask, grant and refuse nothing, after which the customer moves on."""

MAX_SAME = 3
"""How often the customer gives the same answer in one turn; asked once more, they move on."""

_NEEDED = frozenset({Slot.EMAIL, Slot.NAME, Slot.ORDER, Slot.ADDRESS})
"""What an agent may need before it can do anything."""

_SAID_BEFORE = frozenset({Slot.ITEMS, Slot.OPTIONS, Slot.ADDRESS, Slot.ORDER})
"""What a customer without details has said with their request, as far as they know it."""


@dataclass
class _State:
    """The state of one turn.

    Attributes:
        place: The place of the turn in the script.
        sent: How many messages the customer has sent in the conversation.
        confirmed: Whether the customer said yes.
        answered: The requests whose answer the agent has given.
        insisted: How often the customer insisted.
        idle: How many messages in a row led nowhere.
        given: How often the customer gave an answer.
    """

    place: int = 0
    sent: int = 1
    confirmed: bool = False
    answered: set[int] = field(default_factory=set)
    insisted: int = 0
    idle: int = 0
    given: Counter[str] = field(default_factory=Counter)

    def start(self, place: int) -> None:
        """Begin another turn."""
        self.place, self.confirmed, self.insisted, self.idle = place, False, 0, 0
        self.answered, self.given = set(), Counter()


class ScriptedUser:
    """A customer who follows a script, in one simulation; `seed` chooses among the wordings of replies."""

    def __init__(self, script: Script, *, seed: int = 0) -> None:
        self._script = script
        self._seed = seed

    async def respond(self, history: Sequence[Message]) -> Message:
        return self.reply(history)

    def reply(self, history: Sequence[Message]) -> Message:
        """The customer's next message: a function of what the agent has said so far."""
        state, reply = _State(), self._script.turns[0].says
        for text in _said_to_customer(history):
            reply = self._reply(state, parse_message(text), text)
            state.sent += 1
            if state.sent >= self._script.patience:
                reply = f"{self._wording('giving_up', state)} {STOP}"
        return Message(role="user", content=reply)

    def _reply(self, state: _State, heard: ParsedMessage, text: str) -> str:
        if heard.transfer:
            return TRANSFER
        turn = self._script.turns[state.place]
        plain = text.lower().replace(",", "")
        state.answered |= {
            place
            for place, request in enumerate(turn.requests)
            if request.answer and request.answer.lower() in plain
        }
        if heard.confirm and (turn.done or not heard.refusal):
            return self._to_proposal(state, turn, heard, plain)
        asked = bool(heard.asks or heard.request)
        if heard.refusal and not (state.confirmed and not turn.refused):
            if heard.asks & _NEEDED or (asked and turn.done):
                return self._to_question(state, turn, heard)
            return self._to_refusal(state, turn, heard)
        if asked:
            return self._to_question(state, turn, heard)
        answered = self._all_answered(state, turn)
        if heard.ongoing and not heard.everything and not answered:
            return self._wait(state, turn)
        if heard.closing or answered:
            return self._to_closing(state, turn, heard)
        return self._wait(state, turn)

    def _to_proposal(self, state: _State, turn: Turn, heard: ParsedMessage, text: str) -> str:
        """Yes, unless the proposal names a record that no request of the customer is about."""
        details = self._details(turn, heard.asks)
        if heard.ids - {record for request in turn.requests for record in request.about}:
            return self._answer(state, turn, "wrong", [turn.says, *details])
        if heard.choice:
            # A bare yes does not say which of the two.
            details = [turn.says, *details]
        # An offer to look something up does not propose what was asked for.
        state.confirmed = state.confirmed or not heard.offer
        state.given[text] += 1
        if state.given[text] > MAX_SAME:
            return self._next(state, self._outcome(state, turn))
        return self._answer(state, turn, "yes", details, limit=MAX_SAME * (1 + len(turn.requests)))

    def _to_question(self, state: _State, turn: Turn, heard: ParsedMessage) -> str:
        """The details; without any, the request again if the agent asked for it."""
        details = self._details(turn, heard.asks)
        if details:
            return self._answer(state, turn, "", details)
        if heard.request or heard.asks & _SAID_BEFORE:
            return self._answer(state, turn, "", [turn.says])
        return self._answer(state, turn, "unknown", [])

    def _to_refusal(self, state: _State, turn: Turn, heard: ParsedMessage) -> str:
        """Insist, then accept; wait if something can be done and is not yet."""
        if state.insisted < len(turn.insists):
            state.insisted += 1
            return turn.insists[state.insisted - 1]
        partly = turn.refused and turn.done and not state.confirmed
        if (partly or (heard.ongoing and turn.done)) and state.idle < MAX_IDLE - 1:
            return self._wait(state, turn)
        return self._next(state, After.REFUSED)

    def _to_closing(self, state: _State, turn: Turn, heard: ParsedMessage) -> str:
        """Move on; after one of several requests, wait until the agent says that all are done, or idles."""
        several = len(turn.requests) > 1
        if several and not heard.everything and state.idle < MAX_IDLE - 1:
            return self._wait(state, turn)
        return self._next(state, After.DONE if turn.done or state.confirmed else After.REFUSED)

    def _wait(self, state: _State, turn: Turn) -> str:
        state.idle += 1
        if state.idle >= MAX_IDLE:
            return self._next(state, self._outcome(state, turn))
        return self._wording("wait", state)

    def _answer(
        self, state: _State, turn: Turn, reply: str, details: Sequence[str], limit: int = MAX_SAME
    ) -> str:
        """A reply and details; given too often, move on, because the agent does not listen."""
        answer = " ".join([reply, *details])
        state.given[answer] += 1
        if state.given[answer] > limit:
            return self._next(state, self._outcome(state, turn))
        state.idle = 0
        return " ".join([*([self._wording(reply, state)] if reply else []), *details])

    def _all_answered(self, state: _State, turn: Turn) -> bool:
        """Whether all requests of the turn are questions, and all of them are answered."""
        questions = [place for place, request in enumerate(turn.requests) if request.answer]
        return len(questions) == len(turn.requests) and state.answered.issuperset(questions)

    def _outcome(self, state: _State, turn: Turn) -> After:
        """The outcome of a turn that the agent has not closed."""
        return After.DONE if state.confirmed or self._all_answered(state, turn) else After.REFUSED

    def _next(self, state: _State, outcome: After) -> str:
        """The next turn that fits the outcome of this one, or else the end."""
        for place, turn in enumerate(self._script.turns):
            if place > state.place and turn.after in (After.ANYTHING, outcome):
                state.start(place)
                return turn.says
        return f"{self._wording('giving_up' if outcome is After.REFUSED else 'bye', state)} {STOP}"

    def _details(self, turn: Turn, asked: Collection[Slot]) -> list[str]:
        """What the customer knows of what the agent asked for, each thing once."""
        sources = (self._script.identity, *(request.details for request in turn.requests))
        details = [source[slot] for slot in sorted(asked) for source in sources if slot in source]
        return list(dict.fromkeys(details))

    def _wording(self, reply: str, state: _State) -> str:
        wordings: tuple[str, ...] = getattr(self._script.replies, reply)
        # A new generator for each message: the trace is read again before each.
        return random.Random(f"{self._seed}/{state.sent}/{reply}").choice(wordings)


def _said_to_customer(history: Sequence[Message]) -> Iterator[str]:
    """The agent's messages to the customer after the opening, including empty ones."""
    opened = False
    for message in history:
        opened = opened or message.role == "user"
        if opened and message.role == "assistant" and not message.tool_calls:
            yield message.content or ""
