"""Recognizes consent, proposals and claims in the English of support conversations.

If a customer's words are ambiguous, they count as consent, in the agent's favour. There is one exception:
words of mere courtesy, such as `okay`, are consent only if the agent asked for it. A claim counts only if it
says that something is already done. Plans, conditions, denials, questions and quotations are not claims.

Agents and customers are not trusted, so the time of a search must not grow faster than the length of the
text. Every search is bounded by the limits of `sentences`, and a denial is searched for in a window before
the denied word.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_trace2evolve.records.rules import Promise

MAX_TEXT_LENGTH = 10_000
"""The maximum number of characters of a message that are searched, seven times the longest recorded one."""

MAX_SENTENCE_LENGTH = 1_000
"""The maximum number of characters of a sentence that are searched."""

_DENIAL_WINDOW = 80
"""The number of characters before a word that are searched for a denial of the word."""

_OBJECT_WINDOW = 30
"""The number of characters after a claim that are searched for the object of the claim."""

_REPEATED_MARKS = re.compile(r"([^\w\s])\1{3,}")
_SENTENCE_ENDS = re.compile(r"(?<=[.!?…])[*_\"'“”)\]]{0,4} |\n")


@functools.lru_cache(maxsize=512)
def sentences(text: str) -> tuple[str, ...]:
    """Return the non-empty sentences of a message in order.

    A run of white space becomes one space, and a run of the same punctuation mark is cut to three. The
    message is cut to `MAX_TEXT_LENGTH` characters and each sentence to `MAX_SENTENCE_LENGTH` characters.
    """
    lines = (" ".join(line.split()) for line in text[:MAX_TEXT_LENGTH].replace("’", "'").splitlines())
    parts = _SENTENCE_ENDS.split(_REPEATED_MARKS.sub(r"\1\1\1", "\n".join(line for line in lines if line)))
    return tuple(part[:MAX_SENTENCE_LENGTH] for part in parts if part)


_LEADING_MARKS = " *_\"'“”()[]-–—.,;:!…>#"
"""Characters that may precede the first word of a sentence."""

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
_INSTRUCTION = re.compile(
    r"(?:^|[.!,;] |\b(?:please|just|then|and|so|kindly) )"
    r"(?:do(?! not)|process|submit|cancel|return|exchange|modify|change|update|switch|replace|complete"
    r"|finali[sz]e|initiate|make (?:it|that|this|these|those|the|all|both))\b"
)
_DENIAL = re.compile(
    r"(?:\b(?:no(?! longer| problem| worries| objection)|not|never|cannot|before|until|unless|if|when|once"
    r"|without|than|whether|to|will|would)|n't)(?:\W+\w+){0,3}?\W*$"
)
_REFUSAL = re.compile(
    r"(?:no(?! longer| problem| worries| objection)|nope|nah|wait|hold on|stop|hang on"
    r"|actually,? (?:no|wait))\b"
)
_YES_AT_START = re.compile(
    r"(?:(?:um+|uh+|oh|hmm+|well|ah+|great|perfect|thanks?|thank you)\W+)*"
    r"(?:yes(?! or no\b)|yeah|yep|yup)\b(?!\W*\?)"
)
_QUESTION = re.compile(
    r"(?:(?:so|and|but|ok|okay|alright|all right|wait)\W+){0,2}"
    r"(?:(?:is|are|does|did) (?:it|that|this|there|the|you|i|we|they|my|your|these|those)"
    r"|what(?:'s| is| are| do| does| would| will| about| if| happens)"
    r"|why|who|(?:how|when|where) (?:long|much|many|will|would|do|does|can|is|are))\b"
)
_POSTPONEMENT = re.compile(
    r"(?<!can't )(?<!cannot )(?<!to )(?<!ll )(?<!will )(?<!the )(?<!can )\bwait\b(?! for| time)"
    r"|\b(?:(?<!^please )hold on|hang on|no,? stop|stop(?=\W*$)|not yet|think (?:about|it over)"
    r"|second thoughts?|never ?mind"
    r"|let me (?:think|check|see|ask|look|consider)|but (?:first|before|only (?:after|once))"
    r"|(?:other|another|different)\b[^.!?]{0,30}\bnot (?:to |for )?(?:this|that))\b"
)
_LEAVE_AS_IS = re.compile(
    r"\b(?:(?:will|'ll|can|could|to) wait|take (?:your|all the) time|no (?:hurry|rush)"
    r"|let it (?:be|rest|go)|leave it|first tell|(?:one|a) (?:second|moment|minute))\b"
)
_DOUBTS = re.compile(
    r"\b(?:actually|instead|think|not sure|maybe|perhaps|changed? my mind|never ?mind|wait|hold on|stop"
    r"|don't|do not|but|rather|cancel that|forget)\b"
)
_CONSENT_REQUEST = re.compile(
    r"\?|\b(?:confirm|proceed|go ahead|let me know|reply|respond|please say|type|approve|agree"
    r"|your approval)\b"
)
_CONSENT_QUESTION = re.compile(
    r"\b(?:confirm|proceed|go ahead|agree|approve|accept|acceptable|okay|ok|all ?right|correct|right|fine"
    r"|sounds?|looks? good|shall (?:i|we)|should (?:i|we)|like me to|want me to|yes|ready|work for you"
    r"|would you like|do you (?:want|wish)|you'd like|you would like|your (?:approval|permission|consent)"
    r"|(?:may|can|could) i (?!please have|please get|have|get|ask|know|help|assist))\b"
)
_CONSENT_STATEMENT = re.compile(
    r"\b(?:(?:please|kindly|you to|just|simply) (?:also )?"
    r"(?:confirm|reply|respond|say|type|approve|agree|answer)"
    r"|let me know|tell me (?:if|whether)|yes ?/ ?no|yes or no"
    r"|(?:if|once|when|whether|unless|until) you(?:'d| would|'re| are)?"
    r" (?:confirm|agree|approve|like|want|wish|okay|ok|happy|ready|fine|sure|say)"
    r"|if (?:that|this|everything|it|all|these)(?:'s| is| are| looks?| sounds?)"
    r"|(?:need|needs|awaiting|require|upon|with|without|wait for|waiting for|ask for|after|give me)"
    r" your (?:explicit |final )?(?:approval|confirmation|consent|permission|agreement|go-ahead|yes))\b"
)
_OTHER_REQUEST = re.compile(
    r"\b(?:anything|something|else) (?:else|i can|we can)\b|\bhow (?:can|may|could) i (?:help|assist)\b"
    r"|\bconfirm (?:your|the|both your) (?:full |first |last |user )?(?:name|e-?mail|zip|identity|id)\b"
)


def says_yes(text: str, is_asked: bool = True) -> bool:
    """Whether a customer's message is explicit consent: a word of agreement, or an instruction to act now.

    A word does not count if it is denied, withdrawn or postponed by later words, or part of a question. In a
    message that begins with a refusal, an instruction to act does not count.

    Args:
        text: The customer's words.
        is_asked: Whether the agent asked for consent. Only then do words of courtesy, such as `okay`, count.
    """
    is_refusal: bool | None = None
    has_agreed = is_courteous = leaves_as_is = False
    for sentence in sentences(text.lower()):
        start = sentence.lstrip(_LEADING_MARKS)
        is_refusal = bool(_REFUSAL.match(start)) if is_refusal is None else is_refusal
        leaves_as_is = leaves_as_is or bool(_LEAVE_AS_IS.search(sentence))
        postponed_until = max((match.end() for match in _POSTPONEMENT.finditer(sentence)), default=0)
        if postponed_until:
            has_agreed = is_courteous = False
        has_agreed = has_agreed or bool(not postponed_until and _YES_AT_START.match(start))
        if sentence.endswith("?") or _QUESTION.match(start):
            continue
        has_agreed = (
            has_agreed
            or _has_undenied_match(_YES, sentence, postponed_until)
            or (not is_refusal and _has_undenied_match(_INSTRUCTION, sentence, postponed_until))
        )
        is_courteous = is_courteous or _has_undenied_match(_COURTESY, sentence, postponed_until)
    return has_agreed or (is_asked and is_courteous and not leaves_as_is)


def asks_for_yes(text: str) -> bool:
    """Whether an agent's message asks the customer to agree, with a question or words such as `let me know`.

    A question for something else, such as `Is there anything else?`, does not count.
    """
    return any(
        bool("?" in sentence and _CONSENT_QUESTION.search(sentence))
        or bool(_CONSENT_STATEMENT.search(sentence))
        for sentence in sentences(text.lower())
        if not _OTHER_REQUEST.search(sentence)
    )


def leaves_open(text: str) -> bool:
    """Whether a customer's message withdraws or postpones an earlier agreement, or may do so."""
    all_sentences = sentences(text.lower())
    if any("?" in sentence or _DOUBTS.search(sentence) for sentence in all_sentences):
        return True
    return bool(all_sentences and _REFUSAL.match(all_sentences[0].lstrip(_LEADING_MARKS)))


def beginnings_pattern(beginnings: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds words with these beginnings in lower-case text."""
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, beginnings))})")


def was_proposed(beginnings: Iterable[str], latest_text: str, earlier_text: str) -> bool:
    """Whether an agent had named its action when the customer answered.

    Args:
        beginnings: Beginnings of the words that name the action.
        latest_text: The agent's words right before the answer.
        earlier_text: The agent's words before `latest_text`.
    """
    pattern = beginnings_pattern(beginnings)
    if pattern.search(latest_text.lower()):
        return True
    return bool(_CONSENT_REQUEST.search(latest_text.lower()) and pattern.search(earlier_text.lower()))


def _has_undenied_match(words: re.Pattern[str], sentence: str, start: int) -> bool:
    """Whether a sentence has a match of `words` from `start` on that is not denied."""
    return any(
        not _DENIAL.search(sentence[max(0, match.start() - _DENIAL_WINDOW) : match.start()])
        for match in words.finditer(sentence, start)
    )


_ADVERBS = r"(?:(?:now|already|also|just|successfully|fully|all|both|officially|indeed)\s+)*"
_DONE_VERBS = (
    r"(?:processed|submitted|initiated|completed|requested|made|issued|finali[sz]ed|started"
    r"|set up|applied|credited|carried out|placed)"
)
_NOT_DONE_WORDS = re.compile(
    r"\b(?:if|once|when|whenever|after|until|till|before|unless|while|as soon as|whether"
    r"|would|will|shall|can|could|cannot|should|may|might|must|to be|going to"
    r"|need|needs|needed|want|wants|no|not|nothing|none|neither|never|without|unable"
    r"|verify|check|ensure|you (?:said|mentioned|stated|indicated|told|say|believe)"
    r"|which|that|who|only orders?|any|wait for)\b|n't\b"
)
_ORDER_OBJECT = r"\b(?:your|the)\s+(?:\w+\s+)?(?:orders?|address|payment\s+method)(?:\s+#?w\d+)?"
_CLAUSE_ENDS = re.compile(r", (?:but|and|so|however|while) | but |; ?|: | [—–-] | however,? ")
_NOT_CONDITIONAL = (
    r"(?! (?:if|once|when|whenever|unless|until|before|only|as soon as|within|by|upon|after)\b)"
)
"""Excludes rules in the present tense, such as `your order is cancelled once you confirm`."""


@dataclass(frozen=True)
class Claim:
    """A statement that something is done.

    Attributes:
        promises: Indices, in the `promises` given to `find_claims`, of those that the claim matches.
        text: The clause with the claim.
        is_about_past: Whether the claim may be about an earlier time, as in `already` or `previously`.
    """

    promises: tuple[int, ...]
    text: str
    is_about_past: bool


def find_claims(text: str, promises: Sequence[Promise]) -> Iterator[Claim]:
    """Yield the claims in a text that something has been done, at most one per clause."""
    words = [{*promise.phrases, *promise.verbs, *promise.nouns} for promise in promises]
    all_words = set().union(*words)
    for sentence in sentences(text):
        if sentence.rstrip("*_ ").endswith("?"):
            continue
        lower_sentence = sentence.lower()
        # A promise cannot match without one of its words, and the search is slow.
        sentence_words = [word for word in all_words if word in lower_sentence]
        for clause in _CLAUSE_ENDS.split(sentence) if sentence_words else ():
            lower_clause = clause.lower()
            clause_words = [word for word in sentence_words if word in lower_clause]
            found = []
            for index, promise in enumerate(promises):
                if words[index].isdisjoint(clause_words):
                    continue
                match = _claim_pattern(promise).search(lower_clause)
                if (
                    match
                    and not _NOT_DONE_WORDS.search(lower_clause[: match.start()])
                    and _is_about(promise, lower_clause, match)
                ):
                    found.append(index)
            if len(found) > 1:
                found = [index for index in found if not promises[index].vague] or found
            if found:
                is_about_past = bool(re.search(r"\b(?:already|previously)\b", lower_clause))
                yield Claim(tuple(found), clause.strip(), is_about_past)


def _is_about(promise: Promise, clause: str, match: re.Match[str]) -> bool:
    if any(_word_pattern(word).search(clause) for word in promise.unless):
        return False
    nearby_text = clause[: match.end() + _OBJECT_WINDOW]
    return not promise.about or any(_word_pattern(word).search(nearby_text) for word in promise.about)


@functools.cache
def _word_pattern(word: str) -> re.Pattern[str]:
    return re.compile(rf"\b{re.escape(word)}\b")


@functools.cache
def _claim_pattern(promise: Promise) -> re.Pattern[str]:
    alternatives = [re.escape(phrase) for phrase in promise.phrases]
    if promise.verbs:
        verbs = f"(?:{'|'.join(map(re.escape, promise.verbs))})"
        alternatives += [
            rf"\b(?:has|have)\s+{_ADVERBS}been\s+{_ADVERBS}{verbs}\b",
            rf"\b(?:i|we)(?:'ve|\s+have)\s+{_ADVERBS}{verbs}\b",
            rf"\b(?:is|are)\s+now\s+{_ADVERBS}{verbs}\b",
            rf"\bsuccessfully\s+{verbs}\b",
            rf"\b(?:i|we)\s+(?:(?:went|have gone)\s+ahead\s+and\s+)?{_ADVERBS}{verbs}\b",
            rf"\b(?:i|we)'ve\s+gone\s+ahead\s+and\s+{_ADVERBS}{verbs}\b",
            rf"{_ORDER_OBJECT}\s+(?:is|are|was|were)\s+{_ADVERBS}{verbs}\b{_NOT_CONDITIONAL}",
        ]
    if promise.nouns:
        nouns = rf"\b(?:{'|'.join(map(re.escape, promise.nouns))})(?:\s+(?:request|process|transaction)s?)?"
        complement = r"(?:\s+(?:for|of|from|to|on|in)\s[^.!?;]{0,160}?)?"
        alternatives += [
            rf"{nouns}{complement}\s+(?:has|have)\s+{_ADVERBS}been\s+{_ADVERBS}{_DONE_VERBS}\b",
            rf"{nouns}{complement}\s+(?:is|are)\s+now\s+{_ADVERBS}{_DONE_VERBS}\b",
            rf"{nouns}{complement}\s+(?:is|are)\s+{_ADVERBS}complete\b{_NOT_CONDITIONAL}",
            rf"\b(?:i|we)(?:'ve|\s+have)?\s+{_ADVERBS}{_DONE_VERBS}\s+(?:[\w']+\s+){{0,3}}?{nouns}\b",
            rf"\bsuccessfully\s+{_DONE_VERBS}\s+(?:[\w']+\s+){{0,3}}?{nouns}\b",
        ]
    # Nothing claims a promise without words; an empty pattern would match every clause.
    return re.compile("|".join(f"(?:{alternative})" for alternative in alternatives) or "(?!)")
