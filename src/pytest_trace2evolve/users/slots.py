"""A scripted user for any domain, who answers from a table of facts and agrees to proposals that fit a goal.

The next message depends only on the script and the trace, so the same agent gets the same conversation. The
conversation ends for every agent.
"""

import functools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_trace2evolve.records.message import STOP_MARK, TRANSFER_MARK, USER_STOP_MARKS, Message
from pytest_trace2evolve.records.task import SlotScript
from pytest_trace2evolve.users.message_parser import parse_message
from pytest_trace2evolve.users.questions import Ask, Question, asked_facts, find_questions

MAX_IDLE = 3
"""Consecutive messages without a question, a proposal or a result, after which the user gives up."""

MAX_SAME = 3
"""Number of times that the user gives the same answer before giving up."""

_PROCEDURAL = frozenset(
    """
    a about ahead all also an and any anything are as be before can confirm confirmed continue correct
    could do does for go going good have i if in is it just let like may me my now of ok okay on or
    please proceed ready right see shall should so sure that the this to want we will with would yes no
    you your y n
    """.split()  # noqa: SIM905 - a list of this length is unreadable
)
"""Words of a bare question such as "Shall I go ahead?"."""

_VERBS: Mapping[str, "re.Pattern[str]"] = {
    name: re.compile(rf"\b(?:{words})\b")
    for name, words in {
        "cancel": r"cancel\w*|terminat\w*|call(?:ed|ing)? off|revok\w*|delet\w*|clos(?:e|ed|ing)",
        "move": r"mov(?:e|ed|ing)|resched\w*|postpon\w*|rebook\w*|shift(?:ed|ing)?|push(?:ed|ing)? back",
        "change": r"chang(?:e|ed|ing)|modif\w*|updat(?:e|ed|ing)|edit(?:ed|ing)?|adjust\w*|amend\w*",
        "upgrade": r"upgrad(?:e|ed|ing)",
        "downgrade": r"downgrad(?:e|ed|ing)",
        "switch": r"switch\w*|swap\w*|exchang\w*|replac(?:e|ed|ing)",
        "block": r"block(?:ed|ing)?|freez\w*|frozen|lock(?:ed|ing)?|deactivat\w*|disabl\w*|suspend\w*",
        "unblock": r"unblock\w*|unlock\w*|(?:re)?activat(?:e|ed|ing)",
        "return": r"return(?:ed|ing)?|sen[dt](?:ing)? back",
        "refund": r"refund(?:ed|ing)?|reimburs\w*|money back",
        "book": r"book(?:ed)?|reserv(?:e|ed|ing)|schedul(?:e|ed|ing)"
        r"|mak(?:e|ing) (?:a|an|the|this|that|your|my) (?:booking|reservation|appointment)",
        "order": r"order(?:ed|ing)|order (?:a|an|the|some|another|new|one|two|me|you|it)|buy\w*"
        r"|purchas(?:e|ed|ing)",
        "add": r"add(?:ed|ing)?|subscrib\w*|enrol\w*|sign (?:me|you )?up",
        "apply": r"appl(?:y|ied|ying)(?: for)?",
        "transfer": r"transfer(?:red|ring)?|send(?:ing)? money|wire(?:d)?",
        "pay": r"pay|paid|paying|charg(?:e|ed|ing)",
        "remove": r"remov(?:e|ed|ing)",
        "extend": r"extend(?:ing)?|renew(?:ed|ing)?|prolong\w*",
        "open": r"open(?:ed|ing)?|creat(?:e|ed|ing)|regist(?:er|ered|ering)",
        "redeem": r"redeem\w*",
        "reset": r"reset(?:ting)?",
    }.items()
}
"""Patterns of verbs that propose an action, by their meaning."""

_CHANGE_VERBS = frozenset({"move", "change", "upgrade", "downgrade", "switch", "book"})
"""Verbs that may mean the same if the proposal also names a value that the user wants."""

_SYNONYMS = frozenset({"move", "change", "switch"})
"""Verbs that mean the same if the proposal also names the result that the goal names, and nothing else."""

_IDENTITY = re.compile(
    r"name|mail|phone|birth|address|zip|post|pin|password|(?:^|_)(?:id|number|code|reference)$"
)
"""Names of facts that identify the user or a record, and do not say what the user wants."""

_KINDS = tuple(
    re.compile(rf"\b(?:{words})\b")
    for words in (
        "monday|tuesday|wednesday|thursday|friday|saturday|sunday",
        "january|february|march|april|june|july|august|september|october|november|december",
        "morning|noon|afternoon|evening|night",
        r"\d{1,2}(?::\d\d)? ?[ap]\.?m\.?",
        r"gift card|store credit|voucher|paypal|bank transfer|credit card|debit card|cash|original payment",
        r"(?:dr|mr|mrs|ms|prof)\. ?\w+",
    )
)
"""Kinds of values. A proposal with values of a kind must name one that the user knows, if there is one."""

_IS_ABOUT_FACT = re.compile(r"(?:so,? |and |just to be sure, )*(?:is|are) (?:your|the|you)\b")
"""The beginning of a question about a fact, such as "Is your name Ann?"."""

_DONE = re.compile(
    r"(?:\b(?:has|have|is|are|was|were|been|got)|'ve|'s)\b(?: now| all| been| already| also| successfully"
    r"| just| being| fully)* (\w+)"
)
_GENERIC_DONE = re.compile(r"(?:done|completed?|set|processed|finished|handled|arranged|sorted|resolved)$")
_NOT_DONE = re.compile(
    r"\b(?:if|once|after|when|before|not|cannot|will|would|can|could|may|to be|until|unless|currently|still"
    r"|verif\w*|need\w*|policy|already|not yet|only|must|should)\b|n't\b"
)
_REFERENCE = re.compile(r"\b(?:that|this|it|these|those|the above|go ahead|proceed|agree|continue)\b")
_OFFER = re.compile(r"\b(?:offer|instead|alternative|alternatively|how about|rather|recommend|suggest)\b")
_CHOICE = re.compile(r"\b(?:which|what|when)\b")
_MONEY = re.compile(
    r"[$€£]\s?\d[\d.,]*|\b\d[\d.,]*\s?(?:eur|euros?|usd|dollars?|gbp|pounds?|percent|%)(?![a-z])", re.I
)

_STEM = 5
"""Number of first letters that related words share, such as "cancel" and "cancellation"."""

_WORD = re.compile(r"[a-z0-9][a-z0-9'@.#-]*", re.IGNORECASE)


@dataclass
class _State:
    """The state of a conversation: the number of messages sent, and counts of repeats."""

    sent: int = 1
    idle: int = 0
    refusals: int = 0
    has_agreed: bool = False
    answer_counts: Counter[str] = field(default_factory=Counter)


class SlotUser:
    """The user of a written task, in one simulation.

    Args:
        script: The user's script.
        history: The number of messages that the task places before the simulation.
    """

    def __init__(self, script: SlotScript, *, history: int = 0) -> None:
        self._script = script
        self._history = history
        values = [*script.knows.values(), script.goal, script.opening]
        self._known_text = "\n".join(values).lower()
        self._known_words = {word for text in values for word in _words(text)}
        has_own_words = script.agrees_only is not None
        topic = " ".join(script.agrees_only or ()) if has_own_words else f"{script.goal} {script.opening}"
        self._topic = {_stem(word) for word in _content_words(topic)}
        self._verbs = _verbs_in(topic)
        self._target = _target_words(script.goal)
        self._id_shapes = {_shape(word) for word in self._known_words if _is_id(word)}

    async def respond(self, history: Sequence[Message]) -> Message:
        """The user's next message."""
        return self.reply(history)

    def reply(self, history: Sequence[Message]) -> Message:
        """The user's next message, which depends only on the agent's messages so far."""
        is_continued = any(message.role == "user" for message in history[: self._history])
        state, reply = _State(sent=0 if is_continued else 1), self._script.opening
        for text in _messages_to_user(history, self._history if is_continued else 0):
            reply = self._answer(state, text)
            state.sent += 1
            if state.sent >= self._script.patience and not _is_end(reply):
                reply = f"I have to go now. {STOP_MARK}"
        return Message(role="user", content=reply)

    def _answer(self, state: _State, text: str) -> str:
        parsed = parse_message(text)
        if parsed.is_transfer:
            return TRANSFER_MARK
        questions = find_questions(text)
        kinds = {question.kind for question in questions}
        requests = [question.text for question in questions if question.kind is Ask.FACT]
        facts = {name: request for request in requests for name in asked_facts(request, self._script.knows)}
        # A request that names the fact itself, such as "Please confirm your id B17", asks for a yes, but a
        # choice, such as "Which day suits you? Free are Monday and Friday.", asks for the value.
        facts_to_tell = [
            name
            for name, request in facts.items()
            if _CHOICE.search(request) or not _names_value(text, self._script.knows[name])
        ]
        is_done = self._reports_success(text)
        if Ask.AGREEMENT in kinds and not facts_to_tell:
            return self._answer_proposal(state, text, questions)
        if facts_to_tell:
            answer = "; ".join(
                f"{name.replace('_', ' ')}: {self._script.knows[name]}" for name in facts_to_tell
            )
            if Ask.AGREEMENT in kinds and self._fits(text, questions):
                answer, state.has_agreed = f"Yes. {answer}", True
            return self._give_answer(state, answer)
        if facts:
            return self._answer_proposal(state, text, questions)
        if is_done or (Ask.ANYTHING_ELSE in kinds and not parsed.is_refusal):
            return f"No, that is all. Thank you. {STOP_MARK}"
        if parsed.is_refusal and not state.has_agreed:
            state.refusals += 1
            if state.refusals > 1:
                return f"All right, thank you. {STOP_MARK}"
            return f"Are you sure? {self._script.goal}"
        if Ask.HELP in kinds:
            return self._give_answer(state, self._script.goal)
        if Ask.ANYTHING_ELSE in kinds or parsed.is_closing or parsed.says_all_done:
            return f"No, that is all. Thank you. {STOP_MARK}"
        if requests:
            return self._give_answer(state, "I do not know that.")
        return self._wait(state)

    def _answer_proposal(self, state: _State, text: str, questions: Sequence[Question]) -> str:
        """Agree to a proposal that fits the goal, and decline any other."""
        if self._fits(text, questions):
            state.has_agreed = True
            return self._give_answer(state, "Yes, please.")
        return self._give_answer(state, f"No, that is not what I want. {self._script.goal}")

    def _fits(self, text: str, questions: Sequence[Question]) -> bool:
        """Whether a proposal names nothing that contradicts the facts, and something that the goal names."""
        words = _words(text)
        if any(self._is_other_id(word) for word in words) or self._names_other_value(text.lower()):
            return False
        proposals = [question.text for question in questions if question.kind is Ask.AGREEMENT]
        knows = self._script.knows
        facts_by_proposal = [
            asked_facts(proposal, knows) if _IS_ABOUT_FACT.match(proposal) else () for proposal in proposals
        ]
        if any(not _names_value(text, knows[name]) for names in facts_by_proposal for name in names):
            return False  # "Is your name Bob?"
        asked_text = " ".join(proposals) or text.lower()
        content = {word for word in _words(asked_text) if word not in _PROCEDURAL}
        is_reference = not content or _REFERENCE.search(asked_text)
        if self._script.agrees_only is not None and not all(facts_by_proposal):
            return self._names_topic(asked_text) or bool(is_reference and self._names_topic(text))
        if verbs := _verbs_in(asked_text):
            is_synonym = verbs <= _SYNONYMS and bool(self._verbs & _SYNONYMS)
            if verbs & self._verbs or (is_synonym and self._restates_goal(content)):
                return True
            is_change = verbs <= _CHANGE_VERBS and bool(self._verbs & _CHANGE_VERBS)
            return is_change and self._names_wanted(text)
        if is_reference:
            # "Do you want that one?" is about the sentences before it.
            is_offer = _OFFER.search(text.lower())
            return not is_offer or self._is_known(text)
        return self._is_known(asked_text)

    def _names_wanted(self, text: str) -> bool:
        """Whether a text names a known value that says what the user wants."""
        return any(
            _names_value(text, value)
            for name, value in self._script.knows.items()
            if not _IDENTITY.search(name)
        )

    def _restates_goal(self, content: Collection[str]) -> bool:
        """Whether a proposal names the result that the goal names, and otherwise only known words."""
        unknown_words = [word for word in content if word not in self._known_words and not _verbs_in(word)]
        return bool(self._target) and self._target <= set(content) and not unknown_words

    def _names_topic(self, text: str) -> bool:
        """Whether a text names a word that the user agrees to, or a synonym of its verb."""
        stems = {_stem(word) for word in _words(text) if word not in _PROCEDURAL}
        return bool(stems & self._topic) or bool(_verbs_in(text) & self._verbs)

    def _is_known(self, text: str) -> bool:
        """Whether a text names a known value, or a word of the goal."""
        content = {word for word in _words(text) if word not in _PROCEDURAL}
        return bool(content & self._known_words - _PROCEDURAL) or bool(
            {_stem(word) for word in content} & self._topic
        )

    def _is_other_id(self, word: str) -> bool:
        """Whether a word is an id or an address of the shape of a known one, but not a known one."""
        if word in self._known_words:
            return False
        if "@" in word:
            return any("@" in known for known in self._known_words)
        return _is_id(word) and _shape(word) in self._id_shapes

    def _names_other_value(self, text: str) -> bool:
        """Whether a text names a weekday, a way to pay or another value of a kind, but not the known one."""
        for kind in _KINDS:
            named, known = kind.findall(text), set(kind.findall(self._known_text))
            if named and known and not known & set(named):
                return True
        return False

    def _reports_success(self, text: str) -> bool:
        """Whether a message says that the user's request is done."""
        for sentence in re.split(r"(?<=[.!?])\s+|\n+", text.lower().replace("’", "'")):
            if sentence.endswith("?") or _NOT_DONE.search(sentence):
                continue
            for match in _DONE.finditer(sentence):
                verb = match[1]
                if _GENERIC_DONE.match(verb) or _verbs_in(verb) & self._verbs:
                    return True
        return False

    def _give_answer(self, state: _State, answer: str) -> str:
        """Give an answer; after too many repeats, give up because the agent does not listen."""
        state.answer_counts[answer] += 1
        state.idle = 0
        return (
            answer if state.answer_counts[answer] <= MAX_SAME else f"This leads nowhere. Goodbye. {STOP_MARK}"
        )

    def _wait(self, state: _State) -> str:
        state.idle += 1
        if state.idle >= MAX_IDLE:
            return f"That is all, thank you. {STOP_MARK}" if state.has_agreed else f"I give up. {STOP_MARK}"
        return "All right."


def _is_end(reply: str) -> bool:
    return any(mark in reply for mark in USER_STOP_MARKS)


def _messages_to_user(history: Sequence[Message], start: int) -> Iterator[str]:
    """The agent's messages to the user after the opening, including empty messages.

    Of the `start` messages that the task places before the simulation, only the last one counts.
    """
    is_open = start > 0
    for message in history[max(0, start - 1) :]:
        is_open = is_open or message.role == "user"
        if is_open and message.role == "assistant" and not message.tool_calls:
            yield message.content or ""


def _names_value(text: str, value: str) -> bool:
    """Whether a text contains a value as a whole, so that "12 June" does not name 2."""
    return bool(re.search(rf"(?<!\w){re.escape(value.lower())}(?!\w)", text.lower()))


def _words(text: str) -> list[str]:
    """The words of a text in lower case; sums of money are left out, because they look like ids."""
    return [word.lower().strip(".'") for word in _WORD.findall(_MONEY.sub(" ", text))]


@functools.lru_cache(maxsize=256)
def _verbs_in(text: str) -> frozenset[str]:
    """The meanings of the verbs in a text."""
    return frozenset(name for name, pattern in _VERBS.items() if pattern.search(text.lower()))


def _content_words(text: str) -> list[str]:
    return [word for word in (token.lower() for token in _WORD.findall(text)) if word not in _PROCEDURAL]


def _target_words(goal: str) -> set[str]:
    """The words of the result that a goal names, such as Monday in "Move B4 to Monday."."""
    parts = re.findall(r"\bto ((?:(?!\bto\b)[^.,;:!?])+)", goal.lower())
    phrase = re.split(r"\b(?:from|for|on|because|and|with|instead|please)\b", parts[-1])[0] if parts else ""
    return {word for word in _words(phrase) if word not in _PROCEDURAL}


def _stem(word: str) -> str:
    return word.strip(".'")[:_STEM]


def _is_id(word: str) -> bool:
    """Whether a word looks like an id: letters and digits, or at least four digits."""
    digits = sum(character.isdigit() for character in word)
    letters = sum(character.isalpha() for character in word)
    return "@" not in word and digits > 0 and (letters > 0 or digits >= 4)


def _shape(word: str) -> str:
    """The shape of an id: the same for B17 and B18, but not for R1."""
    return re.sub(r"\d+", "0", word)
