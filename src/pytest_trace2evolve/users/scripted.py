"""The scripted customer, who answers the agent from a script without a model and without memory.

The next message depends only on the script, the seed and the trace, so the same seed and the same agent give
the same conversation. The conversation ends for every agent.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from pytest_trace2evolve.records.message import STOP_MARK, TRANSFER_MARK, Message
from pytest_trace2evolve.records.task import RequiredOutcome, Script, Slot, Turn
from pytest_trace2evolve.users.message_parser import ParsedMessage, parse_message

MAX_IDLE_MESSAGES = 3
"""Consecutive messages without a question, a grant or a refusal, after which the customer moves on."""

MAX_REPEATS = 3
"""Number of times that the customer gives the same answer in one turn before moving on."""

_REQUIRED_SLOTS = frozenset({Slot.EMAIL, Slot.NAME, Slot.ORDER, Slot.ADDRESS})
"""Details that an agent may need before any action."""

_STATED_SLOTS = frozenset({Slot.ITEMS, Slot.OPTIONS, Slot.ADDRESS, Slot.ORDER})
"""Details that the request itself states; if asked for an unknown one, the customer repeats the request."""


@dataclass
class _TurnState:
    """The state of one turn.

    Attributes:
        turn_index: The index of the turn in the script.
        sent_count: The number of messages that the customer has sent in the conversation.
        is_confirmed: Whether the customer said yes.
        answered_requests: The indices of the requests that the agent has answered.
        insist_count: The number of times that the customer insisted.
        idle_count: The number of consecutive messages without progress.
        answer_counts: The number of times that the customer gave each answer.
    """

    turn_index: int = 0
    sent_count: int = 1
    is_confirmed: bool = False
    answered_requests: set[int] = field(default_factory=set)
    insist_count: int = 0
    idle_count: int = 0
    answer_counts: Counter[str] = field(default_factory=Counter)

    def start(self, turn_index: int) -> None:
        """Begin the turn at `turn_index`."""
        self.turn_index, self.is_confirmed, self.insist_count, self.idle_count = turn_index, False, 0, 0
        self.answered_requests, self.answer_counts = set(), Counter()


class ScriptedUser:
    """A customer who follows a script, in one simulation; `seed` chooses among the wordings of replies."""

    def __init__(self, script: Script, *, seed: int = 0) -> None:
        self._script = script
        self._seed = seed

    async def respond(self, history: Sequence[Message]) -> Message:
        return self.reply(history)

    def reply(self, history: Sequence[Message]) -> Message:
        """Return the customer's next message, which depends only on the agent's messages so far."""
        state, reply = _TurnState(), self._script.turns[0].says
        for text in _texts_to_customer(history):
            reply = self._reply(state, parse_message(text), text)
            state.sent_count += 1
            if state.sent_count >= self._script.patience:
                reply = f"{self._choose_wording('giving_up', state)} {STOP_MARK}"
        return Message(role="user", content=reply)

    def _reply(self, state: _TurnState, message: ParsedMessage, text: str) -> str:
        if message.is_transfer:
            return TRANSFER_MARK
        turn = self._script.turns[state.turn_index]
        plain_text = text.lower().replace(",", "")
        state.answered_requests |= {
            i
            for i, request in enumerate(turn.requests)
            if request.answer and request.answer.lower() in plain_text
        }
        if message.asks_for_confirmation and (turn.has_allowed_request or not message.is_refusal):
            return self._reply_to_proposal(state, turn, message, plain_text)
        is_question = bool(message.asked_slots or message.asks_for_request)
        if message.is_refusal and not (state.is_confirmed and not turn.has_forbidden_request):
            if message.asked_slots & _REQUIRED_SLOTS or (is_question and turn.has_allowed_request):
                return self._reply_to_question(state, turn, message)
            return self._reply_to_refusal(state, turn, message)
        if is_question:
            return self._reply_to_question(state, turn, message)
        is_answered = self._are_all_answered(state, turn)
        if message.announces_work and not message.says_all_done and not is_answered:
            return self._wait(state, turn)
        if message.is_closing or is_answered:
            return self._reply_to_closing(state, turn, message)
        return self._wait(state, turn)

    def _reply_to_proposal(self, state: _TurnState, turn: Turn, message: ParsedMessage, text: str) -> str:
        """Say yes, unless the proposal names a record that none of the customer's requests concerns."""
        details = self._details(turn, message.asked_slots)
        if message.ids - {record for request in turn.requests for record in request.about}:
            return self._give_answer(state, turn, "wrong", [turn.says, *details])
        if message.has_alternative:
            # A bare yes would not say which alternative is meant.
            details = [turn.says, *details]
        # An offer to look something up does not propose the requested action.
        state.is_confirmed = state.is_confirmed or not message.is_lookup_offer
        state.answer_counts[text] += 1
        if state.answer_counts[text] > MAX_REPEATS:
            return self._start_next_turn(state, self._outcome(state, turn))
        return self._give_answer(
            state, turn, "yes", details, max_repeats=MAX_REPEATS * (1 + len(turn.requests))
        )

    def _reply_to_question(self, state: _TurnState, turn: Turn, message: ParsedMessage) -> str:
        """Give the requested details; if there are none, repeat the request or say that they are unknown."""
        details = self._details(turn, message.asked_slots)
        if details:
            return self._give_answer(state, turn, "", details)
        if message.asks_for_request or message.asked_slots & _STATED_SLOTS:
            return self._give_answer(state, turn, "", [turn.says])
        return self._give_answer(state, turn, "unknown", [])

    def _reply_to_refusal(self, state: _TurnState, turn: Turn, message: ParsedMessage) -> str:
        """Insist, then accept the refusal; wait as long as a part of the request may still be done."""
        if state.insist_count < len(turn.insists):
            state.insist_count += 1
            return turn.insists[state.insist_count - 1]
        is_partial = turn.has_forbidden_request and turn.has_allowed_request and not state.is_confirmed
        if (
            is_partial or (message.announces_work and turn.has_allowed_request)
        ) and state.idle_count < MAX_IDLE_MESSAGES - 1:
            return self._wait(state, turn)
        return self._start_next_turn(state, RequiredOutcome.REFUSED)

    def _reply_to_closing(self, state: _TurnState, turn: Turn, message: ParsedMessage) -> str:
        """Move on; if there are several requests, wait a limited time for the agent to say all are done."""
        has_several_requests = len(turn.requests) > 1
        if has_several_requests and not message.says_all_done and state.idle_count < MAX_IDLE_MESSAGES - 1:
            return self._wait(state, turn)
        return self._start_next_turn(
            state,
            RequiredOutcome.DONE
            if turn.has_allowed_request or state.is_confirmed
            else RequiredOutcome.REFUSED,
        )

    def _wait(self, state: _TurnState, turn: Turn) -> str:
        state.idle_count += 1
        if state.idle_count >= MAX_IDLE_MESSAGES:
            return self._start_next_turn(state, self._outcome(state, turn))
        return self._choose_wording("wait", state)

    def _give_answer(
        self,
        state: _TurnState,
        turn: Turn,
        wording_name: str,
        details: Sequence[str],
        max_repeats: int = MAX_REPEATS,
    ) -> str:
        """Give a reply and details; after too many repeats, move on because the agent does not listen."""
        answer = " ".join([wording_name, *details])
        state.answer_counts[answer] += 1
        if state.answer_counts[answer] > max_repeats:
            return self._start_next_turn(state, self._outcome(state, turn))
        state.idle_count = 0
        return " ".join([*([self._choose_wording(wording_name, state)] if wording_name else []), *details])

    def _are_all_answered(self, state: _TurnState, turn: Turn) -> bool:
        """Whether all requests of the turn are questions, and all of them are answered."""
        questions = [i for i, request in enumerate(turn.requests) if request.answer]
        return len(questions) == len(turn.requests) and state.answered_requests.issuperset(questions)

    def _outcome(self, state: _TurnState, turn: Turn) -> RequiredOutcome:
        """Return the outcome of a turn that the agent has not closed."""
        return (
            RequiredOutcome.DONE
            if state.is_confirmed or self._are_all_answered(state, turn)
            else RequiredOutcome.REFUSED
        )

    def _start_next_turn(self, state: _TurnState, outcome: RequiredOutcome) -> str:
        """Start the next turn that fits the outcome of this turn, or end the conversation."""
        for i, turn in enumerate(self._script.turns):
            if i > state.turn_index and turn.after in (RequiredOutcome.ANYTHING, outcome):
                state.start(i)
                return turn.says
        wording = self._choose_wording("giving_up" if outcome is RequiredOutcome.REFUSED else "bye", state)
        return f"{wording} {STOP_MARK}"

    def _details(self, turn: Turn, slots: Collection[Slot]) -> list[str]:
        """Return the details that the agent asked for and the customer knows, without duplicates."""
        sources = (self._script.identity, *(request.details for request in turn.requests))
        details = [source[slot] for slot in sorted(slots) for source in sources if slot in source]
        return list(dict.fromkeys(details))

    def _choose_wording(self, name: str, state: _TurnState) -> str:
        wordings: tuple[str, ...] = getattr(self._script.replies, name)
        # A new generator for each message, because the whole trace is read again before each reply.
        return random.Random(f"{self._seed}/{state.sent_count}/{name}").choice(wordings)


def _texts_to_customer(history: Sequence[Message]) -> Iterator[str]:
    """Yield the agent's messages to the customer after the opening, including empty messages."""
    has_opened = False
    for message in history:
        has_opened = has_opened or message.role == "user"
        if has_opened and message.role == "assistant" and not message.tool_calls:
            yield message.content or ""
