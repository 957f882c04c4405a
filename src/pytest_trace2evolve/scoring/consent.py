"""Whether a customer said yes, and to what: English as customers and agents of support write it.

All questions are answered for the agent where the words leave a doubt, but for one: words of mere courtesy,
such as `okay`, agree to nothing that nobody asked. Searches are bounded by the limits of `sentences`, and a
word's denial is looked for in a window before it.
"""

import re
from collections.abc import Iterable

from pytest_trace2evolve.scoring.sentences import sentences

_WINDOW = 80
"""Letters before a word in which a denial of it may stand."""

_MARKS = " *_\"'“”()[]-–—.,;:!…>#"
"""Signs that may stand before the first word."""

_YES = re.compile(
    r"\b(?:yes(?! or no\b)|yeah|yep|yup|yea|absolutely|definitely|exactly|agreed?"
    r"|confirm|confirmed|confirming|correct|go ahead|proceed|go for it|do it|do that|do so|do this"
    r"|let's (?:do|go|just)|sounds? (?:good|great|perfect|fine|right)|works? for me|will work|that works"
    r"|(?:that's|that is|this is|it's|looks?|everything is|everything's) (?:all )?(?:right|accurate)"
    r"|i accept|make it happen|affirmative|approved?|by all means|no objections?"
    r"|(?:have|with) my (?:approval|permission|consent|blessing|go-ahead))\b"
    r"|^\W*y\W*$"
)
_COURTESY = re.compile(
    r"\b(?:sure|ok(?!\.\w)|okay|alright|all right|of course|certainly|indeed"
    r"|(?:that's|that is|this is|it's|all|looks?|everything is|everything's|is|are)"
    r" (?:all )?(?:fine|good|perfect|great|right|accurate))\b"
    r"|^\W*fine\b|👍"
)
_ORDERED = re.compile(
    r"(?:^|[.!,;] |\b(?:please|just|then|and|so|kindly) )"
    r"(?:do(?! not)|process|submit|cancel|return|exchange|modify|change|update|switch|replace|complete"
    r"|finali[sz]e|initiate|make (?:it|that|this|these|those|the|all|both))\b"
)
_DENIED = re.compile(
    r"(?:\b(?:no(?! longer| problem| worries| objection)|not|never|cannot|before|until|unless|if|when|once"
    r"|without|than|whether|to|will|would)|n't)(?:\W+\w+){0,3}?\W*$"
)
_HELD = re.compile(
    r"(?:no(?! longer| problem| worries| objection)|nope|nah|wait|hold on|stop|hang on"
    r"|actually,? (?:no|wait))\b"
)
_STARTS_YES = re.compile(
    r"(?:(?:um+|uh+|oh|hmm+|well|ah+|great|perfect|thanks?|thank you)\W+)*"
    r"(?:yes(?! or no\b)|yeah|yep|yup)\b(?!\W*\?)"
)
_QUESTION = re.compile(
    r"(?:(?:so|and|but|ok|okay|alright|all right|wait)\W+){0,2}"
    r"(?:(?:is|are|does|did) (?:it|that|this|there|the|you|i|we|they|my|your|these|those)"
    r"|what(?:'s| is| are| do| does| would| will| about| if| happens)"
    r"|why|who|(?:how|when|where) (?:long|much|many|will|would|do|does|can|is|are))\b"
)
_PUT_OFF = re.compile(
    r"(?<!can't )(?<!cannot )(?<!to )(?<!ll )(?<!will )(?<!the )(?<!can )\bwait\b(?! for| time)"
    r"|\b(?:(?<!^please )hold on|hang on|no,? stop|stop(?=\W*$)|not yet|think (?:about|it over)"
    r"|second thoughts?|never ?mind"
    r"|let me (?:think|check|see|ask|look|consider)|but (?:first|before|only (?:after|once))"
    r"|(?:other|another|different)\b[^.!?]{0,30}\bnot (?:to |for )?(?:this|that))\b"
)
_LEFT = re.compile(
    r"\b(?:(?:will|'ll|can|could|to) wait|take (?:your|all the) time|no (?:hurry|rush)"
    r"|let it (?:be|rest|go)|leave it|first tell|(?:one|a) (?:second|moment|minute))\b"
)
_DOUBTS = re.compile(
    r"\b(?:actually|instead|think|not sure|maybe|perhaps|changed? my mind|never ?mind|wait|hold on|stop"
    r"|don't|do not|but|rather|cancel that|forget)\b"
)
_ASKS = re.compile(
    r"\?|\b(?:confirm|proceed|go ahead|let me know|reply|respond|please say|type|approve|agree"
    r"|your approval)\b"
)
_ASKS_IN_QUESTION = re.compile(
    r"\b(?:confirm|proceed|go ahead|agree|approve|accept|acceptable|okay|ok|all ?right|correct|right|fine"
    r"|sounds?|looks? good|shall (?:i|we)|should (?:i|we)|like me to|want me to|yes|ready|work for you"
    r"|would you like|do you (?:want|wish)|you'd like|you would like|your (?:approval|permission|consent)"
    r"|(?:may|can|could) i (?!please have|please get|have|get|ask|know|help|assist))\b"
)
_ASKS_IN_STATEMENT = re.compile(
    r"\b(?:(?:please|kindly|you to|just|simply) (?:also )?"
    r"(?:confirm|reply|respond|say|type|approve|agree|answer)"
    r"|let me know|tell me (?:if|whether)|yes ?/ ?no|yes or no"
    r"|(?:if|once|when|whether|unless|until) you(?:'d| would|'re| are)?"
    r" (?:confirm|agree|approve|like|want|wish|okay|ok|happy|ready|fine|sure|say)"
    r"|if (?:that|this|everything|it|all|these)(?:'s| is| are| looks?| sounds?)"
    r"|(?:need|needs|awaiting|require|upon|with|without|wait for|waiting for|ask for|after|give me)"
    r" your (?:explicit |final )?(?:approval|confirmation|consent|permission|agreement|go-ahead|yes))\b"
)
_ASKS_ELSE = re.compile(
    r"\b(?:anything|something|else) (?:else|i can|we can)\b|\bhow (?:can|may|could) i (?:help|assist)\b"
    r"|\bconfirm (?:your|the|both your) (?:full |first |last |user )?(?:name|e-?mail|zip|identity|id)\b"
)


def says_yes(text: str, asked: bool = True) -> bool:
    """Whether a customer's message is an explicit yes: a word of agreement, or the order to do it now.

    A word that is denied, put off by what follows it or part of a question is none, and a message that begins
    with a no needs one that is not.

    Args:
        text: The customer's words.
        asked: Whether they answer a question for a yes: only then courtesy, such as `okay`, is one.
    """
    held: bool | None = None
    agreed = polite = left = False
    for sentence in sentences(text.lower()):
        start = sentence.lstrip(_MARKS)
        held = bool(_HELD.match(start)) if held is None else held
        left = left or bool(_LEFT.search(sentence))
        off = max((one.end() for one in _PUT_OFF.finditer(sentence)), default=0)
        if off:
            agreed = polite = False
        agreed = agreed or bool(not off and _STARTS_YES.match(start))
        if sentence.endswith("?") or _QUESTION.match(start):
            continue
        agreed = agreed or _meant(_YES, sentence, off) or (not held and _meant(_ORDERED, sentence, off))
        polite = polite or _meant(_COURTESY, sentence, off)
    return agreed or (asked and polite and not left)


def asks_for_yes(text: str) -> bool:
    """Whether an agent's message asks the customer to agree, with a question or words such as `let me know`.

    What asks for something else, as `Is there anything else?` does, is no such question.
    """
    for sentence in sentences(text.lower()):
        if _ASKS_ELSE.search(sentence):
            continue
        if "?" in sentence and _ASKS_IN_QUESTION.search(sentence):
            return True
        if _ASKS_IN_STATEMENT.search(sentence):
            return True
    return False


def leaves_open(text: str) -> bool:
    """Whether a customer's message takes back or puts off what was agreed before it, or may do so."""
    said = list(sentences(text.lower()))
    if any("?" in sentence or _DOUBTS.search(sentence) for sentence in said):
        return True
    return bool(said and _HELD.match(said[0].lstrip(_MARKS)))


def named_by(named: Iterable[str]) -> re.Pattern[str]:
    """A pattern of words that begin so, in lower case."""
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, named))})")


def proposed(named: Iterable[str], latest: str, earlier: str) -> bool:
    """Whether an agent had said what it will do when the customer answered.

    Args:
        named: How words begin that name it.
        latest: What the agent said right before the answer.
        earlier: What it said before that.
    """
    beginnings = named_by(named)
    if beginnings.search(latest.lower()):
        return True
    return bool(_ASKS.search(latest.lower()) and beginnings.search(earlier.lower()))


def _meant(words: re.Pattern[str], sentence: str, start: int) -> bool:
    """Whether a sentence holds such words from a place on, and they are not denied."""
    return any(
        not _DENIED.search(sentence[max(0, one.start() - _WINDOW) : one.start()])
        for one in words.finditer(sentence, start)
    )
