"""The scripted customer, who answers the agent from a script without a model and without memory.

The next message depends only on the script, the seed and the trace, so the same seed and the same agent give
the same conversation. The conversation always ends, whatever the agent does.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from pytest_trace2evolve.records.message import STOP, Message
from pytest_trace2evolve.records.task import After, Script, Slot, Turn
from pytest_trace2evolve.users.message_parser import ParsedMessage, parse_message

TRANSFER = "###TRANSFER###"
"""The message of a customer who was transferred to a human; it ends a simulation, as in τ²."""

MAX_IDLE = 3
"""Consecutive messages without a question, a grant or a refusal, after which the customer moves on."""

MAX_SAME = 3
"""Number of times that the customer gives the same answer in one turn before moving on."""

_NEEDED = frozenset({Slot.EMAIL, Slot.NAME, Slot.ORDER, Slot.ADDRESS})
"""Details that an agent may need before any action."""

_SAID_BEFORE = frozenset({Slot.ITEMS, Slot.OPTIONS, Slot.ADDRESS, Slot.ORDER})
"""Details that the request states as far as they are known; without more details, the customer repeats it."""


@dataclass
class _State:
    """The state of one turn.

    Attributes:
        place: The place of the turn in the script.
        sent: The number of messages that the customer has sent in the conversation.
        confirmed: Whether the customer said yes.
        answered: The places of the requests that the agent has answered.
        insisted: The number of times that the customer insisted.
        idle: The number of consecutive messages that led nowhere.
        given: The number of times that the customer gave each answer.
    """

    place: int = 0
    sent: int = 1
    confirmed: bool = False
    answered: set[int] = field(default_factory=set)
    insisted: int = 0
    idle: int = 0
    given: Counter[str] = field(default_factory=Counter)

    def start(self, place: int) -> None:
        """Begin the turn at `place`."""
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
        """Return the customer's next message, which depends only on the agent's messages so far."""
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
        """Say yes, unless the proposal names a record that none of the customer's requests concerns."""
        details = self._details(turn, heard.asks)
        if heard.ids - {record for request in turn.requests for record in request.about}:
            return self._answer(state, turn, "wrong", [turn.says, *details])
        if heard.choice:
            # A bare yes would not say which alternative is meant.
            details = [turn.says, *details]
        # An offer to look something up does not propose the requested action.
        state.confirmed = state.confirmed or not heard.offer
        state.given[text] += 1
        if state.given[text] > MAX_SAME:
            return self._next(state, self._outcome(state, turn))
        return self._answer(state, turn, "yes", details, limit=MAX_SAME * (1 + len(turn.requests)))

    def _to_question(self, state: _State, turn: Turn, heard: ParsedMessage) -> str:
        """Give the requested details; without any, repeat the request or say that they are unknown."""
        details = self._details(turn, heard.asks)
        if details:
            return self._answer(state, turn, "", details)
        if heard.request or heard.asks & _SAID_BEFORE:
            return self._answer(state, turn, "", [turn.says])
        return self._answer(state, turn, "unknown", [])

    def _to_refusal(self, state: _State, turn: Turn, heard: ParsedMessage) -> str:
        """Insist, then accept the refusal; wait as long as a part of the request may still be done."""
        if state.insisted < len(turn.insists):
            state.insisted += 1
            return turn.insists[state.insisted - 1]
        partly = turn.refused and turn.done and not state.confirmed
        if (partly or (heard.ongoing and turn.done)) and state.idle < MAX_IDLE - 1:
            return self._wait(state, turn)
        return self._next(state, After.REFUSED)

    def _to_closing(self, state: _State, turn: Turn, heard: ParsedMessage) -> str:
        """Move on; with several requests, first wait until the agent says that all are done, or idles."""
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
        """Give a reply and details; after too many repeats, move on because the agent does not listen."""
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
        """Return the outcome of a turn that the agent has not closed."""
        return After.DONE if state.confirmed or self._all_answered(state, turn) else After.REFUSED

    def _next(self, state: _State, outcome: After) -> str:
        """Start the next turn that fits the outcome of this turn, or end the conversation."""
        for place, turn in enumerate(self._script.turns):
            if place > state.place and turn.after in (After.ANYTHING, outcome):
                state.start(place)
                return turn.says
        return f"{self._wording('giving_up' if outcome is After.REFUSED else 'bye', state)} {STOP}"

    def _details(self, turn: Turn, asked: Collection[Slot]) -> list[str]:
        """Return the details that the agent asked for and the customer knows, without duplicates."""
        sources = (self._script.identity, *(request.details for request in turn.requests))
        details = [source[slot] for slot in sorted(asked) for source in sources if slot in source]
        return list(dict.fromkeys(details))

    def _wording(self, reply: str, state: _State) -> str:
        wordings: tuple[str, ...] = getattr(self._script.replies, reply)
        # A new generator for each message, because the whole trace is read again before each reply.
        return random.Random(f"{self._seed}/{state.sent}/{reply}").choice(wordings)


def _said_to_customer(history: Sequence[Message]) -> Iterator[str]:
    """Yield the agent's messages to the customer after the opening, including empty messages."""
    opened = False
    for message in history:
        opened = opened or message.role == "user"
        if opened and message.role == "assistant" and not message.tool_calls:
            yield message.content or ""
