"""What a scripted customer makes of an agent's message: what it asks for, refuses or says is done.

By words, sentence by sentence: an agent that says the refund went to "your original payment method" asks
for nothing. It needs no model and never raises.
"""

import re
from dataclasses import dataclass

from pytest_trace2evolve.records.script import Slot


@dataclass(frozen=True)
class Heard:
    """What was heard.

    Attributes:
        asks: What the agent wants to know.
        confirm: Whether it asks for a yes.
        refusal: Whether it says that something cannot be done.
        closing: Whether it says that something is done, or asks whether there is more.
        everything: Whether it says so of everything.
        transfer: Whether it hands the customer over to somebody else.
        ids: Ids of orders and items that it names.
    """

    asks: frozenset[Slot]
    confirm: bool
    refusal: bool
    closing: bool
    everything: bool
    transfer: bool
    ids: frozenset[str]


_SENTENCE = re.compile(r"(?<=[.!?:\n])\s+|\n+")
_ASKING = re.compile(
    r"\?|\b(please (provide|share|tell|give|send|specify|state|choose|let)|could you|can you|may i|"
    r"i('ll| will)? need|let me know|tell me|provide me|what is your|which)\b"
)
_MORE = re.compile(r"\b(anything|something|what) else\b|\belse (that )?(i|we) can\b|\bfurther (help|assist)")
_CONFIRM = re.compile(
    r"\(yes|\byes\b|\bconfirm|\bproceed\b|\bgo ahead\b|\b(shall|should|may|can) i\b|"
    r"\bwould you like (me )?to\b|\bdo you want (me )?to\b|\bdo you agree\b|"
    r"\bis (that|this|everything) (correct|right|okay|ok)\b"
)
_REFUSAL = re.compile(
    r"\b(cannot|can't|can not|unable to|not able to|not possible|not eligible|not allowed|not permitted|"
    r"against (our|the) policy|must decline|have to decline|unfortunately|not available|no longer be)\b"
)
_IDENTITY = re.compile(r"\b(verify|confirm|authenticate|locate|find|look up|pull up)\b.*\b(you|your)\b")
_CLOSING = re.compile(
    r"\b(has|have|is|are|was|were) (now |all |already |been |successfully )*"
    r"(cancel|return|exchang|modif|chang|updat|process|complet|submitt|refund|done|set|request)"
    r"|\bi('ve| have) (now |already |successfully )*"
    r"(cancel|return|exchang|modif|chang|updat|process|complet|submitt|set)"
    r"|\b(done|completed|all set|successfully)\b"
)
_EVERYTHING = re.compile(r"\b(everything|all (of )?(your|the) requests?|all set|all done)\b")
_ONGOING = re.compile(
    r"\b(one moment|moment please|let me (check|look|find|pull|see)|i will now|i'll now|next,)\b"
)
_TRANSFER = re.compile(r"being transferred to a human", re.IGNORECASE)
_ID = re.compile(r"#W\d+|\b\d{10}\b")

_SLOTS: tuple[tuple[Slot, "re.Pattern[str]"], ...] = tuple(
    (slot, re.compile(words))
    for slot, words in (
        (Slot.EMAIL, r"\be-?mail\b"),
        (Slot.NAME, r"\b(zip|postal) ?code\b|\b(full|first|last|your) name\b|\bzip\b"),
        (Slot.ORDER, r"\border'?s? (id|number|#)|\bwhich (of .*)?orders?\b|\bwhat order\b"),
        (Slot.REASON, r"\breasons?\b|\bwhy\b"),
        (
            Slot.PAYMENT,
            r"\b(payment|refund) method\b|\bwhich (card|method|account)\b|\bhow .* (pay|refund)",
        ),
        (Slot.OPTIONS, r"\b(options?|variants?|versions?|colou?r|size|replacement|new item|instead)\b"),
        (Slot.ITEMS, r"\b(items?|products?)\b"),
        (Slot.ADDRESS, r"\b(?<!mail )address\b"),
    )
)


def hear(text: str) -> Heard:
    """What a customer hears in an agent's message."""
    lowered = text.lower().replace("’", "'")
    sentences = [part for part in _SENTENCE.split(lowered) if part.strip()]
    asking = [part for part in sentences if _ASKING.search(part)]
    more = any(_MORE.search(part) for part in sentences)
    questions = [part for part in asking if not _MORE.search(part)]
    confirm = any(_asks_for_yes(part) for part in [*questions, *sentences[-1:]])
    asks = {slot for part in questions for slot, words in _SLOTS if words.search(part)}
    ongoing = bool(_ONGOING.search(lowered))
    return Heard(
        asks=frozenset(asks),
        confirm=confirm,
        refusal=any(_REFUSAL.search(part) for part in sentences if part not in questions),
        closing=more or (bool(_CLOSING.search(lowered)) and not ongoing),
        everything=more or bool(_EVERYTHING.search(lowered)),
        transfer=bool(_TRANSFER.search(text)),
        ids=frozenset(_ID.findall(text)),
    )


def _asks_for_yes(sentence: str) -> bool:
    """Whether a sentence wants a yes; one that wants to know who the customer is does not."""
    if not _CONFIRM.search(sentence):
        return False
    about_identity = any(words.search(sentence) for slot, words in _SLOTS if slot in (Slot.EMAIL, Slot.NAME))
    return not about_identity and not _MORE.search(sentence)
