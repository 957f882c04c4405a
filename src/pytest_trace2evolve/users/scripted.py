"""The scripted customer: says what its script says, in answer to what the agent says; no model, no memory.

What it says next follows from the trace alone, so the same seed and the same agent give the same
conversation. However an agent behaves, the conversation ends.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from pytest_trace2evolve.records.message import STOP, Message
from pytest_trace2evolve.records.task import After, Script, Slot, Turn
from pytest_trace2evolve.users.message_parser import ParsedMessage, parse_message

TRANSFER = "###TRANSFER###"
"""What a customer says who is handed over; it ends a simulation, as in τ²."""

MAX_IDLE = 3
"""Messages of one turn in a row that ask, grant and refuse nothing, after which the customer moves on."""

MAX_SAME = 3
"""How often in one turn the customer gives the same answer; asked once more, they move on."""

_NEEDED = frozenset({Slot.EMAIL, Slot.NAME, Slot.ORDER, Slot.ADDRESS})
"""What an agent may need before it can do anything at all."""

_SAID_BEFORE = frozenset({Slot.ITEMS, Slot.OPTIONS, Slot.ADDRESS, Slot.ORDER})
"""What a customer without details on it has told with their request, as far as they know it."""


@dataclass
class _State:
    """The state of a conversation; `start` resets what belongs to one turn.

    Attributes:
        place: The place of the turn.
        sent: How many messages the customer sent.
        confirmed: Whether the customer said yes in this turn.
        answered: The requests of this turn whose answer the agent has told.
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
        self.place, self.confirmed, self.insisted, self.idle = place, False, 0, 0
        self.answered, self.given = set(), Counter()


class ScriptedUser:
    """A customer who follows a script, in one simulation.

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
        """As `respond`, for callers that are not asynchronous."""
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
        """Yes, unless the proposal names a record that nothing the customer asked for is about."""
        details = self._details(turn, heard.asks)
        if heard.ids - {record for request in turn.requests for record in request.about}:
            return self._answer(state, turn, "wrong", [turn.says, *details])
        if heard.choice:
            # A bare yes does not say which of the two is meant.
            details = [turn.says, *details]
        # An offer to look something up is no proposal of what was asked for.
        state.confirmed = state.confirmed or not heard.offer
        state.given[text] += 1
        if state.given[text] > MAX_SAME:
            return self._next(state, self._outcome(state, turn))
        return self._answer(state, turn, "yes", details, limit=MAX_SAME * (1 + len(turn.requests)))

    def _to_question(self, state: _State, turn: Turn, heard: ParsedMessage) -> str:
        """What is known of it; otherwise the request again, if that is what was asked for."""
        details = self._details(turn, heard.asks)
        if details:
            return self._answer(state, turn, "", details)
        if heard.request or heard.asks & _SAID_BEFORE:
            return self._answer(state, turn, "", [turn.says])
        return self._answer(state, turn, "unknown", [])

    def _to_refusal(self, state: _State, turn: Turn, heard: ParsedMessage) -> str:
        """Insist, then accept it; if something can be done and is not yet, wait for that."""
        if state.insisted < len(turn.insists):
            state.insisted += 1
            return turn.insists[state.insisted - 1]
        partly = turn.refused and turn.done and not state.confirmed
        if (partly or (heard.ongoing and turn.done)) and state.idle < MAX_IDLE - 1:
            return self._wait(state, turn)
        return self._next(state, After.REFUSED)

    def _to_closing(self, state: _State, turn: Turn, heard: ParsedMessage) -> str:
        """One thing done may not be all that was asked for: wait, unless the agent says it is, or idles."""
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
        """A reply and details, unless they were given too often: then the agent does not listen."""
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
        """What came of a turn of which the agent has not said that it is over."""
        return After.DONE if state.confirmed or self._all_answered(state, turn) else After.REFUSED

    def _next(self, state: _State, outcome: After) -> str:
        """The next turn that fits what came of this one, or else the end."""
        for place, turn in enumerate(self._script.turns):
            if place > state.place and turn.after in (After.ANYTHING, outcome):
                state.start(place)
                return turn.says
        return f"{self._wording('giving_up' if outcome is After.REFUSED else 'bye', state)} {STOP}"

    def _details(self, turn: Turn, asked: Collection[Slot]) -> list[str]:
        """What the customer can tell of what was asked for, each thing once."""
        details: dict[str, None] = {}
        for slot in sorted(asked):
            for source in (self._script.identity, *(request.details for request in turn.requests)):
                if slot in source:
                    details[source[slot]] = None
        return list(details)

    def _wording(self, reply: str, state: _State) -> str:
        wordings: tuple[str, ...] = getattr(self._script.replies, reply)
        # A generator for each message: it must not matter how often the trace was read before.
        return random.Random(f"{self._seed}/{state.sent}/{reply}").choice(wordings)


def _said_to_customer(history: Sequence[Message]) -> Iterator[str]:
    """What the agent said to the customer since they opened, empty messages included."""
    opened = False
    for message in history:
        opened = opened or message.role == "user"
        if opened and message.role == "assistant" and not message.tool_calls:
            yield message.content or ""
