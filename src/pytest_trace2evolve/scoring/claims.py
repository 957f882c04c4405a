"""What an agent's text claims to have been done: English as agents of support write it.

Only what is said to be done already counts: no plans, conditions, denials, questions or quotations. Searches
are bounded by the limits of `sentences`.
"""

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_trace2evolve.records.rules import Promise
from pytest_trace2evolve.scoring.sentences import sentences

_LIGHT = r"(?:(?:now|already|also|just|successfully|fully|all|both|officially|indeed)\s+)*"
_DONE = (
    r"(?:processed|submitted|initiated|completed|requested|made|issued|finali[sz]ed|started"
    r"|set up|applied|credited|carried out|placed)"
)
_NOT_DONE = re.compile(
    r"\b(?:if|once|when|whenever|after|until|till|before|unless|while|as soon as|whether"
    r"|would|will|shall|can|could|cannot|should|may|might|must|to be|going to"
    r"|need|needs|needed|want|wants|no|not|nothing|none|neither|never|without|unable"
    r"|verify|check|ensure|you (?:said|mentioned|stated|indicated|told|say|believe)"
    r"|which|that|who|only orders?|any|wait for)\b|n't\b"
)
_THING = r"\b(?:your|the)\s+(?:\w+\s+)?(?:orders?|address|payment\s+method)(?:\s+#?w\d+)?"
_NEAR = 30
"""Letters behind a claim in which its object may stand."""

_CLAUSES = re.compile(r", (?:but|and|so|however|while) | but |; ?|: | [—–-] | however,? ")
_THEN = r"(?! (?:if|once|when|whenever|unless|until|before|only|as soon as|within|by|upon|after)\b)"
"""What makes the present tense a rule instead of a claim: `your order is cancelled once you confirm`."""


@dataclass(frozen=True)
class Claim:
    """Something that is said to be done.

    Attributes:
        promises: What it may mean: places in the promises that were looked for.
        text: The clause that says it.
        before: Whether it is said to have been so already.
    """

    promises: tuple[int, ...]
    text: str
    before: bool


def claims(text: str, promises: Sequence[Promise]) -> Iterator[Claim]:
    """What a text claims to have been done, a clause at a time."""
    for sentence in sentences(text):
        if sentence.rstrip("*_ ").endswith("?"):
            continue
        for clause in _CLAUSES.split(sentence):
            lower = clause.lower()
            found = []
            for place, promise in enumerate(promises):
                match = _pattern(promise).search(lower)
                if match and not _NOT_DONE.search(lower[: match.start()]) and _about(promise, lower, match):
                    found.append(place)
            if len(found) > 1:
                found = [place for place in found if not promises[place].vague] or found
            if found:
                yield Claim(
                    tuple(found), clause.strip(), bool(re.search(r"\b(?:already|previously)\b", lower))
                )


def _about(promise: Promise, clause: str, match: re.Match[str]) -> bool:
    if any(_word(word).search(clause) for word in promise.unless):
        return False
    near = clause[: match.end() + _NEAR]
    return not promise.about or any(_word(word).search(near) for word in promise.about)


@functools.cache
def _word(word: str) -> re.Pattern[str]:
    return re.compile(rf"\b{re.escape(word)}\b")


@functools.cache
def _pattern(promise: Promise) -> re.Pattern[str]:
    ways = [re.escape(phrase) for phrase in promise.phrases]
    if promise.verbs:
        verbs = f"(?:{'|'.join(map(re.escape, promise.verbs))})"
        ways += [
            rf"\b(?:has|have)\s+{_LIGHT}been\s+{_LIGHT}{verbs}\b",
            rf"\b(?:i|we)(?:'ve|\s+have)\s+{_LIGHT}{verbs}\b",
            rf"\b(?:is|are)\s+now\s+{_LIGHT}{verbs}\b",
            rf"\bsuccessfully\s+{verbs}\b",
            rf"\b(?:i|we)\s+(?:(?:went|have gone)\s+ahead\s+and\s+)?{_LIGHT}{verbs}\b",
            rf"\b(?:i|we)'ve\s+gone\s+ahead\s+and\s+{_LIGHT}{verbs}\b",
            rf"{_THING}\s+(?:is|are|was|were)\s+{_LIGHT}{verbs}\b{_THEN}",
        ]
    if promise.nouns:
        nouns = rf"\b(?:{'|'.join(map(re.escape, promise.nouns))})(?:\s+(?:request|process|transaction)s?)?"
        what = r"(?:\s+(?:for|of|from|to|on|in)\s[^.!?;]{0,160}?)?"
        ways += [
            rf"{nouns}{what}\s+(?:has|have)\s+{_LIGHT}been\s+{_LIGHT}{_DONE}\b",
            rf"{nouns}{what}\s+(?:is|are)\s+now\s+{_LIGHT}{_DONE}\b",
            rf"{nouns}{what}\s+(?:is|are)\s+{_LIGHT}complete\b{_THEN}",
            rf"\b(?:i|we)(?:'ve|\s+have)?\s+{_LIGHT}{_DONE}\s+(?:[\w']+\s+){{0,3}}?{nouns}\b",
            rf"\bsuccessfully\s+{_DONE}\s+(?:[\w']+\s+){{0,3}}?{nouns}\b",
        ]
    # Without words of its own a promise is no claim; an empty pattern would match every clause.
    return re.compile("|".join(f"(?:{way})" for way in ways) or "(?!)")
