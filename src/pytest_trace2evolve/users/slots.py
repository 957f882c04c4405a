"""A scripted user for any domain, who answers from a table of facts and agrees to what fits the goal.

The next message depends only on the script and the trace, so the same agent gets the same conversation. The
conversation always ends, whatever the agent does.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pytest_trace2evolve.records.message import STOP_MARK, Message
from pytest_trace2evolve.records.task import SlotScript
from pytest_trace2evolve.users.message_parser import ParsedMessage, parse_message, question_texts

TRANSFER = "###TRANSFER###"
"""The message of a user who was transferred to a human; it ends a simulation, as in τ²."""

MAX_IDLE = 3
"""Consecutive messages without a question, a proposal or a result, after which the user gives up."""

MAX_SAME = 3
"""Number of times that the user gives the same answer before giving up."""

_SYNONYMS: dict[str, tuple[str, ...]] = {
    "email": ("email", "e-mail", "mail address"),
    "mail": ("email", "e-mail", "mail address"),
    "phone": ("phone", "telephone", "mobile", "cell number", "contact number"),
    "name": ("name", "who am i speaking", "who you are"),
    "address": ("address", "where do you live", "street"),
    "zip": ("zip", "postal code", "postcode", "post code"),
    "date": ("date", "what day", "which day", "when"),
    "time": ("time", "when", "what hour"),
    "reason": ("reason", "why"),
    "id": ("id", "number", "code", "reference", "identifier"),
    "number": ("number", "id", "code", "reference"),
    "city": ("city", "town", "where"),
    "birthday": ("birthday", "date of birth", "born"),
    "password": ("password", "pin", "passcode"),
    "amount": ("amount", "how much", "sum"),
    "quantity": ("quantity", "how many"),
    "guests": ("guests", "how many people", "how many persons"),
    "payment": ("payment", "pay", "card"),
}
"""Phrases with which agents ask for a fact, by a word of its name."""

_GENERIC = frozenset({"id", "number", "code", "reference", "date", "time", "name", "address", "details"})
"""Words that are too common to identify a fact whose name has another word."""

_PROCEDURAL = frozenset(
    """
    a about ahead all also an and any anything are as be before can confirm confirmed continue correct
    could do does for go going good have i if in is it just let like may me my now of ok okay on or
    please proceed ready right see shall should so sure that the this to want we will with would yes no
    you your y n
    """.split()  # noqa: SIM905 - a list of this length is unreadable
)
"""Words of a bare question such as "Shall I go ahead?"."""

_STEM = 5
"""Letters that decide whether two words are of one family, such as cancel and cancellation."""

_WORD = re.compile(r"[a-z0-9][a-z0-9'@.#-]*", re.IGNORECASE)


@dataclass
class _State:
    """The state of a conversation: the number of messages sent, and counts of repeats."""

    sent: int = 1
    idle: int = 0
    refusals: int = 0
    agreed: bool = False
    given: Counter[str] = field(default_factory=Counter)


class SlotUser:
    """The user of a written task, in one simulation."""

    def __init__(self, script: SlotScript) -> None:
        self._script = script
        values = [*script.knows.values(), script.goal, script.opening]
        self._known_words = {word.lower().strip(".") for text in values for word in _WORD.findall(text)}
        topic = " ".join(script.agrees_to) if script.agrees_to else f"{script.goal} {script.opening}"
        self._topic = {_stem(word) for word in _content_words(topic)}
        self._id_shapes = {_shape(word) for word in self._known_words if _is_id(word)}

    async def respond(self, history: Sequence[Message]) -> Message:
        """The user's next message."""
        return self.reply(history)

    def reply(self, history: Sequence[Message]) -> Message:
        """The user's next message, which depends only on the agent's messages so far."""
        state, reply = _State(), self._script.opening
        for text in _messages_to_user(history):
            reply = self._answer(state, parse_message(text), text)
            state.sent += 1
            if state.sent >= self._script.patience and STOP_MARK not in reply:
                reply = f"I have to go now. {STOP_MARK}"
        return Message(role="user", content=reply)

    def _answer(self, state: _State, parsed: ParsedMessage, text: str) -> str:
        if parsed.is_transfer:
            return TRANSFER
        questions = " ".join(question_texts(text))
        # A question that names the fact itself, such as "Shall I cancel B17?", does not ask for it.
        facts = {name: value for name, value in self._asked_facts(questions).items() if value not in text}
        if parsed.asks_for_confirmation and not facts:
            return self._to_proposal(state, text)
        if facts:
            told = "; ".join(f"{name.replace('_', ' ')}: {value}" for name, value in facts.items())
            answer = f"Yes. {told}" if parsed.asks_for_confirmation and self._fits(text) else told
            state.agreed = state.agreed or answer is not told
            return self._said(state, answer)
        if parsed.is_refusal and not state.agreed:
            state.refusals += 1
            if state.refusals > 1:
                return f"All right, thank you. {STOP_MARK}"
            return f"Are you sure? {self._script.goal}"
        if parsed.asks_for_request:
            return self._said(state, self._script.goal)
        if parsed.is_closing or parsed.says_all_done:
            return f"No, that is all. Thank you. {STOP_MARK}"
        if parsed.announces_work and not questions:
            return self._waited(state)
        if questions:
            return self._said(state, "I do not know that.")
        return self._waited(state)

    def _to_proposal(self, state: _State, text: str) -> str:
        """Agree to a proposal that fits the goal, and decline any other."""
        if self._fits(text):
            state.agreed = True
            return self._said(state, "Yes, please.")
        return self._said(state, f"No, that is not what I want. {self._script.goal}")

    def _fits(self, text: str) -> bool:
        """Whether a proposal names nothing that contradicts the facts, and something that the goal names."""
        words = {word.lower().strip(".") for word in _WORD.findall(text)}
        if any(
            _is_id(word) and _shape(word) in self._id_shapes and word not in self._known_words
            for word in words
        ):
            return False
        content = {word for word in words if word not in _PROCEDURAL}
        if not content:
            return True  # "Shall I go ahead?" refers to what was said before
        return bool(content & self._known_words - _PROCEDURAL) or bool(
            {_stem(word) for word in content} & self._topic
        )

    def _asked_facts(self, questions: str) -> dict[str, str]:
        """The facts for which a text asks."""
        if not questions:
            return {}
        return {
            name: value for name, value in self._script.knows.items() if _asks_for(questions.lower(), name)
        }

    def _said(self, state: _State, answer: str) -> str:
        """Give an answer; after too many repeats, give up because the agent does not listen."""
        state.given[answer] += 1
        state.idle = 0
        return answer if state.given[answer] <= MAX_SAME else f"This leads nowhere. Goodbye. {STOP_MARK}"

    def _waited(self, state: _State) -> str:
        state.idle += 1
        if state.idle >= MAX_IDLE:
            return f"That is all, thank you. {STOP_MARK}" if state.agreed else f"I give up. {STOP_MARK}"
        return "All right."


def _asks_for(question: str, name: str) -> bool:
    words = [word for word in re.split(r"[\s_-]+", name.lower()) if word]
    specific = [word for word in words if word not in _GENERIC]
    # A fact such as booking_id is asked for by its specific word, a fact such as name by the word itself.
    return any(
        re.search(rf"(?<![a-z]){re.escape(phrase)}(?:s|es)?(?![a-z])", question)
        for word in specific or words
        for phrase in _SYNONYMS.get(word, (word,))
    )


def _messages_to_user(history: Sequence[Message]) -> Iterator[str]:
    """The agent's messages to the user after the opening, including empty messages."""
    is_open = False
    for message in history:
        is_open = is_open or message.role == "user"
        if is_open and message.role == "assistant" and not message.tool_calls:
            yield message.content or ""


def _content_words(text: str) -> list[str]:
    return [word for word in (found.lower() for found in _WORD.findall(text)) if word not in _PROCEDURAL]


def _stem(word: str) -> str:
    return word.strip(".'")[:_STEM]


def _is_id(word: str) -> bool:
    """Whether a word looks like an id: letters and digits, or at least four digits."""
    digits = sum(char.isdigit() for char in word)
    letters = sum(char.isalpha() for char in word)
    return "@" not in word and digits > 0 and (letters > 0 or digits >= 4)


def _shape(word: str) -> str:
    """The shape of an id: the same for B17 and B18, but not for R1."""
    return re.sub(r"\d+", "0", word)
