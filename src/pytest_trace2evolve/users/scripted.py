"""The scripted customer: says what its script says, in answer to what it hears; no model, no memory.

What it says next follows from the trace alone, so the same seed and the same agent give the same
conversation. However an agent behaves, it comes to an end.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_trace2evolve.records.message import STOP, Message
from pytest_trace2evolve.records.script import After, Script, Slot, Turn
from pytest_trace2evolve.users.hearing import Heard, hear

TRANSFER = "###TRANSFER###"
"""By which a customer who is handed over ends a simulation, as in τ²."""

IDLE_MOST = 3
"""Messages in a row that ask, grant and refuse nothing, after which the customer gives up."""


@dataclass
class _Talk:
    """How far a conversation has come."""

    turn: int = 0
    confirmed: bool = False
    answered: set[int] = field(default_factory=set)
    insisted: int = 0
    idle: int = 0
    sent: int = 1


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
        said = [one.text for one in history if one.role == "assistant" and one.text and not one.tool_calls]
        talk, reply = _Talk(), self._script.turns[0].says
        if not any(message.role == "user" for message in history):
            return Message(role="user", content=reply)
        for text in said[1:]:  # the first is the greeting, which the opening answers
            reply = self._reply(talk, hear(text), text)
            talk.sent += 1
            if talk.sent > self._script.patience:
                reply = f"{self._one('giving_up', talk)} {STOP}"
        return Message(role="user", content=reply)

    def _reply(self, talk: _Talk, heard: Heard, text: str) -> str:
        if heard.transfer:
            return TRANSFER
        turn = self._script.turns[talk.turn]
        plain = text.lower().replace(",", "")
        talk.answered |= {
            place for place, one in enumerate(turn.requests) if one.answer and one.answer.lower() in plain
        }
        if heard.confirm and (turn.done or not heard.refusal):
            return self._to_proposal(talk, turn, heard)
        if heard.refusal and not heard.asks and not (talk.confirmed and not turn.refused):
            return self._to_refusal(talk, turn)
        if heard.asks:
            talk.idle = 0
            return self._answers(talk, turn, heard)
        if heard.closing or talk.confirmed or self._told(talk, turn):
            return self._to_closing(talk, turn, heard)
        talk.idle += 1
        if talk.idle >= IDLE_MOST:
            return f"{self._one('giving_up', talk)} {STOP}"
        return self._one("wait", talk)

    def _to_proposal(self, talk: _Talk, turn: Turn, heard: Heard) -> str:
        """Yes, unless the proposal names a record that nothing the customer asked for is about."""
        known = {one for request in turn.requests for one in request.about}
        if heard.ids - known:
            talk.idle += 1
            if talk.idle >= IDLE_MOST:
                return f"{self._one('giving_up', talk)} {STOP}"
            return f"{self._one('wrong', talk)} {turn.says}"
        talk.idle = 0
        talk.confirmed = True
        asked = [slot for slot in heard.asks if slot in (Slot.REASON, Slot.PAYMENT)]
        answers = self._details(turn, asked)
        return " ".join([self._one("yes", talk), *answers])

    def _to_refusal(self, talk: _Talk, turn: Turn) -> str:
        """Insist, then take it; where a part can be done and is not yet, wait for that."""
        if talk.insisted < len(turn.insists):
            talk.insisted += 1
            return turn.insists[talk.insisted - 1]
        if turn.refused and turn.done and not talk.confirmed and talk.idle < IDLE_MOST - 1:
            talk.idle += 1
            return self._one("wait", talk)
        return self._next(talk, After.REFUSED)

    def _to_closing(self, talk: _Talk, turn: Turn, heard: Heard) -> str:
        """One thing done may not be all that was asked for: wait, unless the agent says it is, or idles."""
        several = len(turn.requests) > 1
        if several and not heard.everything and talk.idle < IDLE_MOST - 1:
            talk.idle += 1
            return self._one("wait", talk)
        return self._next(talk, After.DONE)

    def _told(self, talk: _Talk, turn: Turn) -> bool:
        """Whether all was a question, and every question has its answer."""
        questions = [place for place, one in enumerate(turn.requests) if one.answer]
        return len(questions) == len(turn.requests) and talk.answered.issuperset(questions)

    def _next(self, talk: _Talk, outcome: After) -> str:
        """The next turn that fits what came of this one; where there is none, the end."""
        for place in range(talk.turn + 1, len(self._script.turns)):
            if self._script.turns[place].after in (After.ANYTHING, outcome):
                talk.turn, talk.confirmed, talk.insisted, talk.idle = place, False, 0, 0
                talk.answered = set()
                return self._script.turns[place].says
        return f"{self._one('giving_up' if outcome is After.REFUSED else 'bye', talk)} {STOP}"

    def _answers(self, talk: _Talk, turn: Turn, heard: Heard) -> str:
        answers = self._details(turn, sorted(heard.asks))
        return " ".join(answers) if answers else self._one("unknown", talk)

    def _details(self, turn: Turn, asked: Sequence[Slot]) -> list[str]:
        """What the customer can tell of what was asked for, each thing once."""
        told = []
        for slot in asked:
            told += [self._script.identity[slot]] if slot in self._script.identity else []
            told += [one.details[slot] for one in turn.requests if slot in one.details]
        return list(dict.fromkeys(told))

    def _one(self, reply: str, talk: _Talk) -> str:
        """One of a reply's wordings."""
        wordings: tuple[str, ...] = getattr(self._script.replies, reply)
        # A generator a message: what is said does not depend on how often the trace was read before.
        return random.Random(f"{self._seed}/{talk.sent}/{reply}").choice(wordings)
