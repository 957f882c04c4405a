"""Finds an agent's questions in any domain: requests for facts, proposals to agree to, and courtesies.

The rules contain phrases that agents of any company use, and no words of a single domain.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Ask(StrEnum):
    """The kind of a question."""

    FACT = "fact"
    AGREEMENT = "agreement"
    HELP = "help"
    ANYTHING_ELSE = "anything else"


@dataclass(frozen=True)
class Question:
    """A sentence that asks the user for something, in lower case."""

    kind: Ask
    text: str


MAX_CHARACTERS = 4_000
"""Maximum number of characters that are parsed. Of a longer message, the end is parsed."""

_SENTENCE = re.compile(
    r"(?<=[.!?])(?<!\bdr\.)(?<!\bmr\.)(?<!\bms\.)(?<!\bmrs\.)(?<!\bst\.)(?<!\bno\.)\s+|\n+"
)

_ANYTHING_ELSE = re.compile(
    r"\b(?:anything|something|what) else\b|\belse (?:that )?(?:i|we) (?:can|could|may)\b"
    r"|\b(?:further|other|more|additional) (?:help|assistance|questions?|requests?|concerns?)\b"
    r"|\b(?:don't|do not) hesitate\b|\bfeel free to\b"
)
_HELP = re.compile(
    r"\bhow (?:can|may|could|shall|should) (?:i|we) (?:best )?(?:help|assist|be of)\b"
    r"|\bwhat (?:can|may|could) (?:i|we) (?:do|help|assist)\b|\bwhat brings you\b"
    r"|\bwhat (?:would|do) you (?:like|want|need|wish)(?: me| us)? (?:to do|help|done)\b"
    r"|\bwhat (?:do|can) you need\b"
    r"|\bwhat (?:is|seems to be) (?:the|your) (?:problem|issue|request|question)\b"
    r"|\b(?:describe|explain|clarify|rephrase|tell me (?:more )?about|more (?:details?|information) about)\b"
    r"|\b(?:help|assist) (?:me )?understand\b"
)
_SAYS_YES = re.compile(
    r"\byes ?(?:/|or) ?no\b|\b(?:reply|say|type|answer|respond|write)\b.{0,20}\byes\b"
    r"|\(yes\b|\bif (?:yes|so)\b"
)
_TAG = re.compile(
    r"[,:;–-] ?(?:is (?:that|this)(?: all)? )?(?:correct|right|ok|okay|yes|alright|agreed)\?\s*$"
    r"|\b(?:is|does|are) (?:that|this|it|everything|all)\b.{0,40}"
    r"\b(?:correct|right|ok|okay|fine|good|work|acceptable|accurate)\b"
)
_CONFIRMS = re.compile(
    r"\b(?:confirm|double-check)(?:ing)?"
    r"(?: (?:with you|for me|once more|again))?"
    r"\b[ :,]+(?:that|if|whether|you\b(?!r)|i\b|we\b|this|these|it\b|before|to proceed|the (?:above|following"
    r"|cancellation|change|booking of|details above))"
    r"|\bdo you confirm\b|\bplease confirm\W*$|\bconfirm\?"
    r"|\byour (?:approval|consent|confirmation|permission|ok)\b"
)
_GIVES = (
    r"(?:give|provide|tell|share|enter|send|specify|supply|state|type|let (?:me|us) know|verify|confirm"
    r"|indicate|remind|choose|select)"
)
_REQUEST = re.compile(
    r"\b(?:can|could|may|might) (?:i|we) (?:please |kindly |just |also )*"
    r"(?:have|get|ask|know|see|take|note)\b"
    rf"|\b(?:can|could|would|will) you (?:please |kindly |just |also |be able to )*{_GIVES}\b"
    rf"|\bplease (?:also |just |first )*{_GIVES}\b|^{_GIVES}\b|\bgo ahead and {_GIVES}\b"
    r"|\b(?:i|we)(?:'ll| will|'d| would)? (?:just |also |still |first )*(?:need|require)\b (?!to\b|a moment)"
    r"|\bi would like to (?:know|have)\b|\bdo you (?:have|know|remember)\b|\bwould you mind\b"
)
_WAIT = re.compile(
    r"\b(?:give|allow) (?:me|us) (?:a|one|just a|some) (?:second|moment|minute|sec|time)\b|\bbear with\b"
)
_WH = re.compile(
    r"(?:^|[,;:–-] ?|\b(?:and|so|also|okay|ok|then) )(?:which|what|what's|when|where|why|how|who|whose)\b"
)
_YES_NO = re.compile(
    r"(?:^|[,;:–-] ?|\b(?:and|so|or|then|now|okay|ok|great|perfect|thanks?(?: you)?) )"
    r"(?:shall|should|may|can|could|do|does|did|would|will|is|are|am|was|have|has|ready|happy|sure)\b"
    r"|\bif you(?:'d| would) like\b"
)


# Cached because a user reads the whole conversation again before each answer.
@functools.lru_cache(maxsize=256)
def find_questions(text: str) -> tuple[Question, ...]:
    """Return the questions of a message, in their order."""
    plain = re.sub(r"[*_`#>]+(?=\s|\w|$)", "", text[-MAX_CHARACTERS:].replace("’", "'").lower())
    questions = []
    for part in _SENTENCE.split(plain):
        sentence = part.strip(" -•\t")
        if sentence and (kind := _kind_of(sentence)) is not None:
            questions.append(Question(kind, sentence))
    return tuple(questions)


def _kind_of(sentence: str) -> Ask | None:
    """Return the kind of a question; None if the sentence is a statement."""
    is_asked = sentence.rstrip("\"')*").endswith("?")
    if _ANYTHING_ELSE.search(sentence) and (is_asked or not _REQUEST.search(sentence)):
        return Ask.ANYTHING_ELSE
    if _WAIT.search(sentence):
        return None
    if _SAYS_YES.search(sentence) or _CONFIRMS.search(sentence):
        return Ask.AGREEMENT
    if is_asked and _TAG.search(sentence):
        return Ask.AGREEMENT
    if _HELP.search(sentence) and (is_asked or _REQUEST.search(sentence)):
        return Ask.HELP
    if is_asked and _WH.search(sentence):
        return Ask.FACT
    if _REQUEST.search(sentence):
        return Ask.FACT
    if is_asked:
        # Without a verb, such as "And your date of birth?", a question asks for a fact.
        return Ask.AGREEMENT if _YES_NO.search(sentence) else Ask.FACT
    return None


_HEADS: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "number", "reference", "code", "identifier", "no.", "#", "ref"),
    "number": ("number", "id", "reference", "code", "no.", "#", "digits"),
    "code": ("code", "number", "id"),
    "reference": ("reference", "number", "id", "code"),
    "name": ("name",),
    "date": ("date", "day"),
    "time": ("time", "slot", "hour"),
    "email": ("email", "e-mail", "mail address"),
    "mail": ("email", "e-mail", "mail address"),
    "phone": ("phone", "telephone", "mobile", "cell", "contact number"),
    "address": ("address", "where do you live"),
    "zip": ("zip", "postal code", "postcode", "post code"),
    "postcode": ("zip", "postal code", "postcode", "post code"),
    "reason": ("reason", "why", "what happened", "what is wrong", "what's wrong"),
    "pin": ("pin", "passcode", "pass code"),
    "password": ("password", "passcode", "passphrase"),
    "city": ("city", "town"),
    "amount": ("amount", "how much", "sum"),
    "quantity": ("quantity", "how many"),
    "guests": ("guests", "people", "persons", "guest"),
    "method": ("method", "way", "option", "how would you like"),
    "birth": ("birth", "born", "birthday", "dob", "birthdate"),
    "birthday": ("birth", "born", "birthday", "dob", "birthdate"),
    "digits": ("digits", "four", "last 4"),
    "four": ("four", "digits", "last 4"),
    "answer": ("answer",),
    "start": ("start", "begin", "take effect", "effective"),
    "insurance": ("insurance", "insurer", "coverage"),
    "plan": ("plan", "package", "tariff"),
    "payment": ("payment", "pay"),
    "refund": ("refund", "refunded", "money back", "reimburse"),
}
"""Words and phrases that agents use for a word of a fact's name."""

_WHOLE: Mapping[str, tuple[str, ...]] = {
    "date of birth": ("date of birth", "dob", "d.o.b", "born", "birthday", "birth date", "birthdate"),
    "birthday": ("date of birth", "dob", "born", "birthday", "birth date", "birthdate"),
    "email": ("email", "e-mail", "mail address"),
    "zip code": ("zip", "postal code", "postcode", "post code"),
    "phone number": ("phone", "telephone", "mobile", "cell"),
    "phone": ("phone", "telephone", "mobile", "cell", "contact number"),
}
"""Phrases that ask for the fact of a name, even without the words of the name."""

_TIMES = ("when", "what day", "which day", "what time", "which time", "what date", "which date")
_WHEN = re.compile(r"^(?:and |so |ok(?:ay)?,? )?when\b")

_TIME_NAMES = frozenset({"date", "time", "day", "start", "when", "slot"})
"""Last words of the names of facts that agents ask for with "when"."""

_GENERIC = frozenset(
    {"id", "number", "code", "reference", "name", "date", "time", "details", "day", "method"}
)
"""Last words of names that are shared by many facts, such as "id" in `booking_id`."""

_NEUTRAL = frozenset(
    """
    a all and as asked associated best complete correct current customer customer's email exact file first for
    full give given have i is last legal me my of on or our own patient's please preferred provide registered
    right s share tell that the their these this to us valid verify what what's whole with you your which
    """.split()  # noqa: SIM905 - a list of this length is unreadable
)
"""Words that do not change the meaning of the next word, unlike "maiden" in "maiden name"."""


def asked_facts(question: str, names: Iterable[str]) -> list[str]:
    """Return the names of the facts for which a question asks, in the order of `names`."""
    names = list(names)
    question = question.replace("e-mail", "email").replace("-", " ")
    if _WHEN.search(question):
        time_names = [name for name in names if re.split(r"[\s_-]+", name.lower())[-1] in _TIME_NAMES]
        names = time_names or names
    scores: dict[str, int] = {}
    spots: dict[str, set[int]] = {}
    for name in names:
        score, matched_spots = _match(question, name)
        if score:
            scores[name], spots[name] = score, matched_spots
    # A word that belongs to a better match does not ask for another fact too, such as "name" in "pet name".
    return [
        name
        for name in names
        if name in scores
        and not any(
            scores[other] > scores[name] and spots[name] <= spots[other] for other in scores if other != name
        )
    ]


def _match(question: str, name: str) -> tuple[int, set[int]]:
    """Return a score for a match of a question and a fact (0 for no match), and the matching places."""
    phrase = " ".join(re.split(r"[\s_-]+", name.lower()))
    words = phrase.split()
    spots = {spot for text in _WHOLE.get(phrase, ()) for spot in _places(question, text)}
    if spots:
        return 4, spots
    phrase_spots = _places(question, phrase) if len(words) > 1 else set()
    if phrase_spots:
        return 4, {spot + step for spot in phrase_spots for step in range(len(phrase))}
    head, modifiers = words[-1], [word for word in words[:-1] if word not in ("of", "the", "in")]
    modifier_spots = {spot for word in modifiers for spot in _word_places(question, word)}
    head_spots = _word_places(question, head)
    if head in _TIME_NAMES:
        head_spots |= {spot for text in _TIMES for spot in _places(question, text)}
    if not modifiers:
        matching_spots = {spot for spot in head_spots if head not in _GENERIC or _is_bare(question, spot)}
        return (3 if matching_spots else 0), matching_spots
    joined_spots = {spot for spot in head_spots if _is_bare(question, spot, modifiers)}
    if modifier_spots and joined_spots:
        return 3, modifier_spots | joined_spots
    if head_spots:
        matching_spots = {spot for spot in head_spots if _is_bare(question, spot)}
        return (2 if matching_spots else 0), matching_spots
    # "Which booking?" asks for booking_id, but "the account" in a question about its PIN does not.
    object_spots = {spot for spot in modifier_spots if _is_object(question, spot)}
    return (1 if object_spots and head in _GENERIC else 0), object_spots


def _word_places(question: str, word: str) -> set[int]:
    return {spot for text in _HEADS.get(word, (word,)) for spot in _places(question, text)}


def _places(question: str, phrase: str) -> set[int]:
    pattern = rf"(?<![a-z]){re.escape(phrase)}(?:s|es|'s)?(?![a-z])"
    return {match.start() for match in re.finditer(pattern, question)}


def _is_bare(question: str, spot: int, modifiers: Iterable[str] = ()) -> bool:
    """Whether a word keeps its meaning after the previous word; `modifiers` belong to the name."""
    before = re.findall(r"[a-z0-9'-]+", question[:spot])
    if not before or before[-1] in _NEUTRAL or before[-1].endswith("'s"):
        return True
    return any(before[-1] in _HEADS.get(word, (word,)) or before[-1] == f"{word}s" for word in modifiers)


def _is_object(question: str, spot: int) -> bool:
    """Whether a question asks for what a word names, as in "which booking" or "your booking"."""
    before = re.findall(r"[a-z0-9'-]+", question[:spot])[-2:]
    after = re.findall(r"^[a-z-]+\s+([a-z0-9'-]+)", question[spot:])
    follows = after[0] if after else ""
    is_named = bool(before) and before[-1] in ("which", "what", "your")
    return is_named and follows in (
        "",
        "is",
        "would",
        "do",
        "should",
        "are",
        "please",
        "details",
        "info",
        "you",
    )
