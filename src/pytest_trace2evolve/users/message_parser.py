"""Parses an agent's message for a scripted customer: its questions, refusals and reports of finished work.

The parser matches words clause by clause, so "the refund went to your original payment method" does not count
as a question. It needs no model and never raises.
"""

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_trace2evolve.records.task import Slot

MAX_CHARACTERS = 10_000
"""Maximum number of parsed characters; a longer message is cut to its start and its end, half each."""


@dataclass(frozen=True)
class ParsedMessage:
    """The content of an agent's message.

    Attributes:
        asked_slots: The details that the message asks for.
        asks_for_request: Whether the message asks for the customer's request.
        asks_for_confirmation: Whether the message asks for a confirmation.
        is_lookup_offer: Whether every requested confirmation would only let the agent look something up.
        has_alternative: Whether the message offers an alternative to confirming.
        is_refusal: Whether the message says that something cannot be done.
        is_closing: Whether the message reports finished work, or asks if the customer needs anything else.
        says_all_done: Whether the message says that everything is done.
        announces_work: Whether the message announces further work.
        is_transfer: Whether the message transfers the customer to a human.
        ids: The ids of orders (with '#') and of items in the message.
    """

    asked_slots: frozenset[Slot] = frozenset()
    asks_for_request: bool = False
    asks_for_confirmation: bool = False
    is_lookup_offer: bool = False
    has_alternative: bool = False
    is_refusal: bool = False
    is_closing: bool = False
    says_all_done: bool = False
    announces_work: bool = False
    is_transfer: bool = False
    ids: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Clause:
    """One clause; `context` is the preceding text, to which a phrase like "those details" may refer."""

    text: str
    is_question: bool
    context: str = ""


# Cached because a customer parses the whole conversation again before each answer.
@functools.lru_cache(maxsize=256)
def parse_message(text: str) -> ParsedMessage:
    plain_text = _to_plain(text)
    if len(plain_text) > MAX_CHARACTERS:
        plain_text = f"{plain_text[: MAX_CHARACTERS // 2]}\n{plain_text[-MAX_CHARACTERS // 2 :]}"
    sentences = [part.strip() for part in _SENTENCE.split(plain_text) if part and part.strip()]
    statements = [sentence for sentence in sentences if not _is_question(sentence)]
    clauses = list(_split_clauses(sentences))
    consents = [clause for clause in clauses if _asks_for_yes(clause)]
    asked_slots: set[Slot] = set()
    for clause in clauses:
        if clause.is_question:
            asked_slots |= _asked_slots(clause, is_consent=clause in consents)
            if _WHICH_OF_THESE.search(clause.text):
                asked_slots.add(Slot.ORDER if len(set(_ORDER_ID.findall(plain_text))) > 1 else Slot.OPTIONS)
    is_courtesy = any(_is_courtesy(sentence) for sentence in sentences)
    is_transfer = any(_announces_transfer(sentence) for sentence in sentences)
    offers_transfer = not is_transfer and any(_TRANSFER_OFFER.search(sentence) for sentence in sentences)
    consents = [clause for clause in consents if not _TRANSFER_OFFER.search(clause.text)]
    return ParsedMessage(
        asked_slots=frozenset(asked_slots),
        asks_for_request=any(_REQUEST.search(clause.text) for clause in clauses if clause.is_question),
        asks_for_confirmation=bool(consents),
        is_lookup_offer=bool(consents) and all(_is_offer(clause) for clause in consents),
        has_alternative=any(_matches(_ALTERNATIVE, clause.text, _SAY_YES) for clause in consents),
        is_refusal=offers_transfer or any(_matches(_REFUSAL, text, _NOT_REFUSAL) for text in statements),
        is_closing=is_courtesy or any(_matches(_CLOSING, text, _NOT_CLOSING) for text in statements),
        says_all_done=is_courtesy or any(_ALL_DONE.search(text) for text in statements),
        announces_work=any(_WORK_ANNOUNCEMENT.search(text) for text in sentences if not text.endswith("?")),
        is_transfer=is_transfer,
        ids=frozenset(find_ids(text)),
    )


def find_ids(text: str) -> Iterator[str]:
    """Yield the ids of orders, in any spelling, and of items in a text."""
    plain_text = _to_plain(text)
    yield from _ITEM_ID.findall(plain_text)
    for match in _ORDER_ID.finditer(plain_text):
        yield f"#W{match[1] or match[2] or match[3]}"


def _to_plain(text: str) -> str:
    """Return a text in lower case, without Markdown's asterisks and backticks, with straight apostrophes."""
    return "\n" + re.sub(r"\s*\n\s*", "\n", re.sub(r"[*`]+", "", text.lower().replace("’", "'"))).strip()


def _matches(pattern: re.Pattern[str], text: str, exclusion: re.Pattern[str]) -> bool:
    return bool(pattern.search(text)) and not exclusion.search(text)


def _split_clauses(sentences: Sequence[str]) -> Iterator[_Clause]:
    """Yield the clauses without courtesies; items of a list are questions if the list follows a question."""
    is_question_list = False
    context = ""
    for sentence in sentences:
        part = _OR_ANYTHING_ELSE.sub("", sentence)
        is_list_item = bool(_LIST_ITEM.match(sentence))
        is_question = _is_question(part)
        if is_list_item and is_question_list:
            yield _Clause(part, is_question=True)
        elif not _is_courtesy(part):
            texts = [text for text in _CLAUSE.split(part) if text]
            # A clause that only introduces a question states its purpose and is not a question.
            clauses = [
                _Clause(
                    text,
                    is_question and not (texts[1:] and _matches(_PURPOSE_START, text, _QUESTION)),
                    context,
                )
                for text in texts
            ]
            yield from clauses
            asks_for_details = is_question and not any(_asks_for_yes(clause) for clause in clauses)
            is_question_list = (
                is_question_list if is_list_item else asks_for_details and part.rstrip().endswith(":")
            )
        context = f"{context} {part}" if is_list_item else part


def _is_courtesy(sentence: str) -> bool:
    """Return whether a sentence only asks if the customer needs anything else."""
    return _matches(_ANYTHING_ELSE, sentence, _DETAIL_REQUEST)


def _announces_transfer(sentence: str) -> bool:
    match = _TRANSFER.search(sentence)
    if match is None or sentence.endswith("?"):
        return False
    return not _HYPOTHETICAL.search(sentence[: match.start()])


def _is_question(sentence: str) -> bool:
    return bool(_QUESTION.search(sentence))


def _asked_slots(clause: _Clause, *, is_consent: bool) -> set[Slot]:
    """Return the details that a clause asks for; a clause that asks for a confirmation only names details."""
    if is_consent:
        return {Slot.REASON} if _BOTH_REASONS.search(clause.text) else set()
    text = f"{clause.context} {clause.text}" if _BACK_REFERENCE.search(clause.text) else clause.text
    slots = {slot for slot, pattern in _SLOT_PATTERNS if pattern.search(text)}
    if Slot.ADDRESS in slots and _WHOLE_ADDRESS.search(text) and "name" not in text:
        slots.discard(Slot.NAME)
    if _FUTURE_EMAIL.search(text):
        slots.discard(Slot.EMAIL)
    return slots


def _asks_for_yes(clause: _Clause) -> bool:
    """Return whether a clause asks for a confirmation, and not for an identity or a choice."""
    if _SAY_YES.search(clause.text):
        return True
    text = _TO_PROCEED.sub("", clause.text)
    if not clause.is_question or not _CONSENT.search(text):
        return False
    if _CONFIRM_DETAIL.search(text) or _DETAIL_REQUEST.search(text):
        return False
    question_word = _QUESTION_WORD.search(text)
    if question_word and not re.search(r"\bconfirm|\bproceed\b", text[: question_word.start()]):
        return False
    if _WHOLE_ADDRESS.search(text):
        return True
    return not any(
        pattern.search(text) for slot, pattern in _SLOT_PATTERNS if slot in (Slot.EMAIL, Slot.NAME)
    )


def _is_offer(clause: _Clause) -> bool:
    text = f"{clause.context} {clause.text}" if _DO_REFERENCE.search(clause.text) else clause.text
    return _matches(_LOOKUP_OFFER, text, _SAY_YES)


# Phrases with which support agents ask, refuse, announce and close. The patterns match one plain clause (see
# `_to_plain`), and `tests/users/test_recorded_messages.py` measures their accuracy.

_ORDER_ID = re.compile(r"(?<![\w.-])#?w?(\d{7})(?![\w-])|#w?(\d+)|\bw(\d+)\b")
_ITEM_ID = re.compile(r"\b\d{10}\b")
_SENTENCE = re.compile(r"(?<=[.!?])(?<!\n\d\.)(?<!\n\d\d\.)[\"')\]”]*\s+|\n+")
"""Matches between two sentences, but not after the number of a list item."""
_LIST_ITEM = re.compile(r"^\s*(?:[-•*+]|\d+[.)])\s*")
_TELL_VERBS = r"provide|specify|tell|let me know|share|confirm|indicate|advise|choose|select|give"
_CLAUSE = re.compile(
    rf"[,;]?\s+(?:and|also|or)\s+(?=(?:please |also |kindly )*(?:{_TELL_VERBS}|which|what|how)\b)"
    r"|,\s+(?=(?:please|which|what|how)\b)|;\s+"
)

_PURPOSE_START = re.compile(r"^\W*(?:to|in order to|since|as|because|once|after|before|now)\b")
"""Matches the start of a clause that only introduces the question after it."""

_QUESTION = re.compile(
    r"\?|\b(?:could|can|would|will) you\b|\b(?:may|can|could) i (?:please )?(?:have|ask|know|get)\b"
    rf"|\b(?:please|kindly|once you|also|could|^)\s*(?:also |first |just )*"
    rf"(?:{_TELL_VERBS}|provid|send|state|enter|supply|reply|respond|verify|type|say|answer|clarify|describe)\b"
    r"|\b(?:i|we)(?:'ll|'d| will| would| do)? (?:just |also |still |first )*(?:need"
    r"|require)\b(?! to (?:authenticate|verify|check|look|locate|find|identify))"
    r"|\blet me know\b|\btell me\b|\bprovide me\b|\b(?:is|are) (?:also )?(?:needed|required)\b|\bplease\W*$"
)
_QUESTION_WORD = re.compile(r"\b(?:which|what|what's|how|where|why|who|whose)\b")
_BACK_REFERENCE = re.compile(
    r"\b(?:these|those|that|this|the (?:following|above))(?: \w+)? (?:details|information|info)\b"
)
_WHICH_OF_THESE = re.compile(r"\bwhich (?:one )?(?:of (?:these|those|them|the)|one)\b")

_ANY_WORDS = r"(?:any|some|another|other|more|further|additional)"
_ANYTHING_ELSE = re.compile(
    r"\b(?:anything|something|what|who|nothing) else\b|\belse (?:that )?(?:i|we|you)\b"
    r"|\banything (?:more|further)\b"
    rf"|(?<!the )(?<!your )\b{_ANY_WORDS} (?:\w+ )?(?:questions?|concerns?|assistance|help|requests?|issues?"
    rf"|inquiries)\b"
    r"|\bfeel free to\b|\b(?:don't|do not) hesitate\b|\bfurther (?:help|assist)"
    r"|\bassist you (?:further|today)\b|\bhelp (?:you )?further\b|\bi'm here to (?:help|assist)\b"
)
_OR_ANYTHING_ELSE = re.compile(
    r",?\s+or (?:is|are|do|would|if|let|please|have|need)\b.*\b(?:else|other|further|more|another)\b.*$"
)

_SAY_YES = re.compile(
    r"\byes ?/ ?no\b|\(yes\b|[\"'“”‘(]yes\b|\byes or no\b|\bif (?:yes|so)\b"
    r"|\b(?:reply|respond|answer|say|type|write|send)\b.{0,30}\byes\b|\ba (?:clear |simple |quick )?yes\b"
)
_CONSENT = re.compile(
    r"\bconfirm|\bproceed\b|\bgo ahead\b|\b(?:shall|should|may|can) (?:i|we)\b|\bready (?:to|for)\b"
    r"|\bwould you like (?:me |us )?to\b|\bwould you like that\b|\bdo (?:you|i) (?:want|wish|have your)\b"
    r"|\bdo you (?:agree|approve|consent|accept)\b|\b(?:i|we) have your (?:ok|okay|permission|approval"
    r"|consent)\b|\byour (?:explicit )?(?:approval|consent|permission|go-ahead|ok|okay)\b"
    r"|\bare you (?:sure|ok|okay|happy|fine|good)\b|\bif you(?:'d| would) like (?:me |us )?to\b"
    r"|\b(?:is|are|was|does|do|did) (?:that|this|these|those|it|everything|all)\b.*"
    r"\b(?:correct|right|ok|okay|fine|good|accurate|acceptable|work|sound|look)\b"
    r"|\b(?:sounds?|looks?) (?:good|right|fine|ok|okay|correct)\b|\bokay\?|\bok\?|\bcorrect\?|\bright\?"
    r"|\bif you (?:want|wish) (?:me |us )?to\b"
)
_LOOKUP_VERBS = (
    r"(?:look|check|search|find|list|show|see|pull|retrieve|tell|give|explain|calculate|help|assist"
    r"|verify|review|provide)"
)
_LOOKUP_OFFER = re.compile(
    rf"\b(?:me|us|i|we) (?:to )?(?:please )?{_LOOKUP_VERBS}\b|\bhelp (?:you )?(?:to )?{_LOOKUP_VERBS}\b"
)
_DO_REFERENCE = re.compile(r"\bdo (?:that|so|this)\b")
_ALTERNATIVE = re.compile(r"\bor\b(?! (?:no|not|decline|reject)\b)")
_TO_PROCEED = re.compile(
    r"(?:^|[,;] )\W*(?:now,? |so,? |then,? )?(?:in order )?to (?:\w+ ){0,2}?proceed\b[^,:?]*"
    r"|\b(?:so that|so|before) (?:i|we) (?:can )?proceed\b|\b(?:in order|required|needed|need) to proceed\b"
)
_DETAIL_REQUEST = re.compile(
    r"\bneed (?:to know|(?:your|the) (?!confirm|approv|consent|ok\b|okay|permission|go))|"
    r"\b(?:provide|specify|share|enter|supply|indicate|choose|select|(?:send|give|tell) (?:me|us)"
    r"|let (?:me|us) know)\b"
    r"(?= \S)(?! (?:if|whether|that|when|once|you|by|so|and|how (?:i|we) can|what else|any ?(?:thing"
    r"|other)?)\b)"
)
_CONFIRM_DETAIL = re.compile(
    r"\b(?:confirm|verify)(?:ing)? (?:(?:to|with|for) (?:me|us) )?(?:(?:the|your|a|an|both|all|this)\s+)?"
    r"(?:\w+ ){0,2}?"
    r"(?:reasons?|identity|account|e-?mail|names?|zip|postal|order (?:ids?|numbers?)|user id|item ids?"
    r"|which|what|how|why|where|who|(?:payment|refund) methods?)\b"
    r"|\b(?:confirm|verify) (?:if|whether) (?:the order|you (?:have|know|remember|received)|it)\b"
)
_TO_HUMAN = r"(?:human|agent|representative|specialist|supervisor|colleague|team|someone)"
_TRANSFER = re.compile(
    r"\b(?:being|been) (?:transferred|escalated|handed over)\b"
    rf"|\b(?:have|'ve|am|'m|will|'ll) (?:now |going to |also |successfully )*(?:transfer|escalat|connect"
    rf"|hand)\w*\b.*\b{_TO_HUMAN}\b"
)
_TRANSFER_OFFER = re.compile(rf"\b(?:transfer|escalat|connect)\w*\b.*\b{_TO_HUMAN}\b")
_HYPOTHETICAL = re.compile(
    r"\b(?:if|would|could|can|cannot|can't|may|unable|not|unless|should|shall|after|once)\b|n't\b"
)

_REFUSAL = re.compile(
    r"\b(?:cannot|can't|can not|couldn't|could not|won't be|will not be|unable to|not able to|impossible"
    r"|(?:not|isn't|aren't|never) (?:\w+ )?(?:possible|eligible|allowed|permitted|supported"
    r"|authori[sz]ed|available)"
    r"|(?:doesn't|does not|don't|do not|didn't|won't|will not) (?:\w+ )?(?:allow|permit|support|offer"
    r"|qualify|let)"
    r"|against (?:our|the|my)\b.{0,20}polic|(?:must|have to|need to|has to) (?:be )?(?:decline|refuse"
    r"|reject)|(?:be|is|are|was) (?:declined|refused|rejected|prohibited|forbidden)|i (?:decline|refuse)"
    r"|unfortunately|ineligible|unavailable|no longer be|out of stock|sold out|outside (?:of )?(?:our"
    r"|the|my)"
    r"|sorry,? (?:but|no)|(?:i'm|i am|we're|we are) afraid|regret(?:fully| to)|not something (?:i|we)"
    r"|beyond (?:my|our|what)"
    r"|no way (?:to|for)|nothing (?:i|we) can do|(?:isn't|is not) an option|not in a position"
    r"|policy (?:prohibits|forbids|prevents)|prevents? (?:me|us))\b"
)
_NOT_REFUSAL = re.compile(
    r"\b(?:inconvenience|trouble|delay|frustrat|confusion|hear that|hear about|undone|reversed"
    r"|(?:no|any) (?:further|more|other) (?:changes?|modif|items)|modified again|changed again"
    r"|change it again"
    r"|further (?:changes|modif)|(?:without|until|unless|before) (?:you|your|i|we|verif|confirm|that|this)"
    r"|wait|mistake on|misunderstand)"
)

_DONE_VERBS = (
    r"(?:cancel|return|exchang|modif|chang|updat|process|complet|submitt|refund|done|set|request|initiat"
    r"|placed|applied|credited|charged|switch|swap|replac|redirect|rerout|regist|arrang|finali[sz]|fulfil"
    r"|resolv|recorded|moved|made|handled|taken care|sorted|started|ship)"
)
_ADVERBS = r"(?:now |all |already |been |also |both |successfully |just |being |fully )*"
_CLOSING = re.compile(
    rf"\b(?:has|have|is|are|was|were|i've|we've) {_ADVERBS}{_DONE_VERBS}"
    r"|\b(?:done|completed|all set|successfully|sorted)\b|\btaken care of\b|\byou will receive\b"
    r"|\byou'll receive\b"
    r"|\b(?:you're|you are) (?:very |most )?welcome\b|\bhave a (?:\w+ )?(?:day|evening|weekend|one|time)\b"
    r"|\bglad (?:i|we|to)\b|\bgoodbye\b|\bbye\b|\btake care\b|\bno further action\b"
)
_NOT_CLOSING = re.compile(
    r"\b(?:verif|locat|found|identif|retriev|authenticat|pulled up|looked up|account is|logged|before"
    r"|once|if|after"
    r"|when|not|cannot|to be|currently|still)\b|n't\b|\b(?:verif|locat|identif|retriev|authenticat)\w*"
)
_ALL_DONE = re.compile(
    r"\b(?:everything|all (?:of )?(?:your|the|these|those|three|two) (?:requests?|changes?|orders?"
    r"|things|items)"
    r"|both (?:of )?(?:your |the |these )?(?:requests?|changes?|orders?|things)|all set|all done"
    r"|that's all|that is all|that was all)\b"
)
_WORK_ANNOUNCEMENT = re.compile(
    r"\b(?:one moment|a moment|one second|moment please|hold on|please hold|hang tight|bear with|stand by"
    r"|(?:let me|allow me to|i'll|i will|i'm going to|i am going to|we'll|we will|let's) (?:now |just "
    r"|quickly |then |first |next |go ahead and |proceed to |start |begin )*"
    r"(?:check|look|find|pull|see|verify|review|process|proceed|handle|take care|work|get|do|retrieve"
    r"|search|cancel"
    r"|return|exchange|modify|change|update|initiate|submit|start|begin|go|turn|move|continue|arrange)\w*"
    r"|i(?:'m| am) (?:now |currently )?(?:checking|looking|processing|working|pulling|retrieving"
    r"|verifying|reviewing)|next,|working on)\b"
)
_REQUEST = re.compile(
    r"\b(?:how|what) (?:can|may|could|should|shall|do) (?:i|we|you) (?:\w+ )?(?:help|assist|do|need|want"
    r"|wish|like)\b"
    r"|\bwhat (?:would you like|do you (?:need|want|wish)|you(?:'d| would) like|you (?:need|want)|exactly)\b"
    r"|\bhow (?:would you|you(?:'d| would)) like to\b|\bmore (?:details?|information|about)\b"
    r"|\b(?:clarify|rephrase|repeat|describe|elaborate|explain)\b.*\b(?:request|issue|need|want|that"
    r"|problem|what|you)\b|\b(?:your|the) (?:request|issue|problem|question|concern)\b.*\?"
)

_FUTURE_EMAIL = re.compile(r"\b(?:receive|follow-up|instructions|send you|sent to your|notif)\b")
_WHOLE_ADDRESS = re.compile(
    r"\b(?:city|street|address line|address1|shipping|delivery|new (?:\w+ )?address)\b"
)
_BOTH_REASONS = re.compile(r"no longer needed.*\bor\b.*mistake|mistake.*\bor\b.*no longer needed")

_SLOT_PATTERNS: tuple[tuple[Slot, "re.Pattern[str]"], ...] = tuple(
    (slot, re.compile(words))
    for slot, words in (
        (Slot.EMAIL, r"\be-?mail\b"),
        (
            Slot.NAME,
            r"\b(?:zip|postal)(?: ?code)?s?\b|\b(?:full|first|last|your|and|a) names?\b|^\W*name\b",
        ),
        (
            Slot.ORDER,
            (
                r"\border'?s? (?:ids?|numbers?|no\b|#|confirmation|reference)|\b(?:which"
                r"|what)\b.{0,25}\borders?\b|\bids? (?:of|for) (?:the|your|each) (?:\w+ )?orders?\b"
            ),
        ),
        (Slot.REASON, rf"\breasons?\b|\bwhy\b|{_BOTH_REASONS.pattern}"),
        (
            Slot.PAYMENT,
            (
                r"\b(?:payment|refund) (?:method|option|preference)|\bwhich (?:card|method|account)\b"
                r"|\bmethod of payment\b|\b(?:how|where)\b.*\b(?:pay|paid|refund|money)"
                r"|\b(?:gift card|paypal|credit card|original payment)\b.*\bor\b"
                r"|\bor\b.*\b(?:gift card|paypal|credit card)\b"
            ),
        ),
        (
            Slot.OPTIONS,
            (
                r"\b(?:options?|variants?|versions?|colou?rs?|sizes?|replacements?|new items?"
                r"|specifications?|which one|models?|preferences?|features?)\b|\bwhat\b.*\binstead\b"
            ),
        ),
        (Slot.ITEMS, r"\b(?:items?|products?)\b"),
        (Slot.ADDRESS, r"\b(?<!mail )address(?:es)?\b|\bwhere\b.*\b(?:ship|send|sent|deliver|go)"),
    )
)
