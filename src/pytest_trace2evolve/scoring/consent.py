"""Whether a customer said yes, and to what: English as customers and agents of support write it.

Both questions are answered for the agent where the words leave a doubt.
"""

import re
from collections.abc import Iterable

_YES = re.compile(
    r"\b(?:yes|yeah|yep|yup|yea|sure|ok|okay|alright|absolutely|definitely|certainly|exactly|indeed|agreed?"
    r"|confirm|confirmed|confirming|correct|go ahead|proceed|go for it|do it|do that|do so|do this"
    r"|let's (?:do|go|just)|sounds? (?:good|great|perfect|fine|right)|works? for me|will work|that works"
    r"|(?:that's|that is|this is|it's|all|looks?|everything is|everything's|is|are)"
    r" (?:all )?(?:fine|right|good|perfect|great|accurate)"
    r"|i accept|make it happen|y)\b"
)
_ORDERED = re.compile(
    r"(?:^|[.!,;] |\b(?:please|just|then|and|so|kindly) )(?:please |just |kindly |go ahead and )*"
    r"(?:do(?! not)|process|submit|cancel|return|exchange|modify|change|update|switch|replace|complete"
    r"|finali[sz]e|initiate|make (?:it|that|this|these|those|the|all|both))\b"
)
_DENIED = re.compile(
    r"(?:\b(?:no(?! longer| problem| worries)|not|never|cannot|before|until|unless|if|when|once|without"
    r"|than|whether|to|will|would)|n't)(?:\W+\w+){0,3}?\W*$"
)
_HELD = re.compile(
    r"^\W*(?:no(?! longer| problem| worries)|nope|nah|wait|hold on|stop|hang on"
    r"|actually,? (?:no|wait))\b"
)
_STARTS_YES = re.compile(
    r"^\W*(?:(?:um+|uh+|oh|hmm+|well|ah+|great|perfect|thanks?|thank you)\W+)*(?:yes|yeah|yep|yup)\b"
)
_DOUBTS = re.compile(
    r"\b(?:actually|instead|think|not sure|maybe|perhaps|changed? my mind|never ?mind|wait|hold on|stop"
    r"|don't|do not|but|rather|cancel that|forget)\b"
)
_ASKS = re.compile(
    r"\?|\b(?:confirm|proceed|go ahead|let me know|reply|respond|please say|type|approve|agree"
    r"|your approval)\b"
)


def says_yes(text: str) -> bool:
    """Whether a customer's message is an explicit yes: a word of agreement, or the order to do it now.

    A word that is denied, hedged or part of a question is none, and a message that begins with a no needs one
    that is not.
    """
    plain = text.lower().replace("’", "'")
    for sentence in _sentences(plain):
        if _STARTS_YES.match(sentence):
            return True
        if sentence.endswith("?"):
            continue
        found = [*_YES.finditer(sentence)]
        if not _HELD.match(plain):
            found += _ORDERED.finditer(sentence)
        if any(not _DENIED.search(sentence[: one.start()]) for one in found):
            return True
    return False


def leaves_open(text: str) -> bool:
    """Whether a customer's message takes back or puts off what was agreed before it, or may do so."""
    plain = text.lower().replace("’", "'")
    return bool("?" in plain or _HELD.match(plain) or _DOUBTS.search(plain))


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


def _sentences(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?…])[\"'“”)]*\s+|\n+", text.strip()) if part]
