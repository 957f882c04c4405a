"""What a scripted customer makes of an agent's message: what it asks for, refuses or says is done.

By words, clause by clause: an agent that says the refund went to "your original payment method" asks for
nothing. It needs no model and never raises.
"""

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_trace2evolve.records.task import Slot
from pytest_trace2evolve.users import phrases

HEARD_MOST = 10_000
"""Characters of a message that are listened to, the first and the last half of them."""


@dataclass(frozen=True)
class Heard:
    """What was heard.

    Attributes:
        asks: What the agent wants to know.
        request: Whether it wants to know what the customer wants.
        confirm: Whether it asks for a yes.
        offer: Whether that yes would only let it look something up.
        choice: Whether it names an alternative to the yes.
        refusal: Whether it says that something cannot be done.
        closing: Whether it says that something is done, or asks whether there is more.
        everything: Whether it says so of everything.
        ongoing: Whether it announces that it will do something.
        transfer: Whether it hands the customer over to somebody else.
        ids: Ids of orders, with their '#', and of items that it names.
    """

    asks: frozenset[Slot] = frozenset()
    request: bool = False
    confirm: bool = False
    offer: bool = False
    choice: bool = False
    refusal: bool = False
    closing: bool = False
    everything: bool = False
    ongoing: bool = False
    transfer: bool = False
    ids: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Clause:
    """One clause: `context` is what "those details" in it may point to."""

    text: str
    asking: bool
    context: str = ""


_ORDER_ID = re.compile(r"(?<![\w.-])#?w?(\d{7})(?![\w-])|#w?(\d+)|\bw(\d+)\b")
_ITEM_ID = re.compile(r"\b\d{10}\b")


# A customer goes through all that was said before each of their answers.
@functools.lru_cache(maxsize=256)
def hear(text: str) -> Heard:
    """What a customer hears in an agent's message."""
    plain = _plain(text)
    if len(plain) > HEARD_MOST:
        plain = f"{plain[: HEARD_MOST // 2]}\n{plain[-HEARD_MOST // 2 :]}"
    sentences = [part.strip() for part in phrases.SENTENCE.split(plain) if part and part.strip()]
    told = [part for part in sentences if not _asking(part)]
    clauses = list(_clauses(sentences))
    more = any(_is_courtesy(part) for part in sentences)
    consents = [one for one in clauses if _asks_for_yes(one)]
    asks: set[Slot] = set()
    for one in clauses:
        if one.asking:
            asks |= _slots(one, consent=one in consents)
            if phrases.WHICH_OF_THESE.search(one.text):
                asks.add(Slot.ORDER if len(set(_ORDER_ID.findall(plain))) > 1 else Slot.OPTIONS)
    transfers = any(_transfers(part) for part in sentences)
    transfer_offer = not transfers and any(phrases.TRANSFER_OFFER.search(part) for part in sentences)
    consents = [one for one in consents if not phrases.TRANSFER_OFFER.search(one.text)]
    return Heard(
        asks=frozenset(asks),
        request=any(phrases.REQUEST.search(one.text) for one in clauses if one.asking),
        confirm=bool(consents),
        offer=bool(consents) and all(_is_offer(one) for one in consents),
        choice=any(_is_choice(one.text) for one in consents),
        refusal=transfer_offer or any(_refuses(part) for part in told),
        closing=more or any(_closes(part) for part in told),
        everything=more or any(phrases.EVERYTHING.search(part) for part in told),
        ongoing=any(phrases.ONGOING.search(one) for one in sentences if not one.endswith("?")),
        transfer=transfers,
        ids=frozenset(ids_in(text)),
    )


def ids_in(text: str) -> Iterator[str]:
    """Ids of orders and items in a text, however an order's is written."""
    plain = _plain(text)
    yield from _ITEM_ID.findall(plain)
    for match in _ORDER_ID.finditer(plain):
        yield f"#W{match[1] or match[2] or match[3]}"


def _plain(text: str) -> str:
    """In lower case, without Markdown's stars and ticks, and with one kind of apostrophe."""
    return "\n" + re.sub(r"\s*\n\s*", "\n", re.sub(r"[*`]+", "", text.lower().replace("’", "'"))).strip()


def _clauses(sentences: Sequence[str]) -> Iterator[_Clause]:
    """The clauses that are no courtesy, and whether they ask; a list belongs to what stands before it."""
    asked_list = False
    before = ""
    for sentence in sentences:
        part = phrases.OR_MORE.sub("", sentence)
        listed = bool(phrases.LISTED.match(sentence))
        asking = _asking(part)
        if listed and asked_list:
            yield _Clause(part, asking=True)
        elif not _is_courtesy(part):
            parts = [clause for clause in phrases.CLAUSE.split(part) if clause]
            found = [_Clause(one, asking and not (parts[1:] and _only_leads(one)), before) for one in parts]
            yield from found
            wanted = asking and not any(_asks_for_yes(clause) for clause in found)
            asked_list = asked_list if listed else wanted and part.rstrip().endswith(":")
        before = f"{before} {part}" if listed else part


def _is_courtesy(sentence: str) -> bool:
    """Whether a sentence asks only if there is more."""
    return bool(phrases.MORE.search(sentence)) and not phrases.ASKS_FOR.search(sentence)


def _transfers(sentence: str) -> bool:
    found = phrases.TRANSFERRED.search(sentence)
    if found is None or sentence.endswith("?"):
        return False
    return not phrases.UNREAL.search(sentence[: found.start()])


def _only_leads(clause: str) -> bool:
    """Whether a clause only says what the question after it is good for."""
    return bool(phrases.LEAD.match(clause)) and not _asking(clause)


def _asking(sentence: str) -> bool:
    return bool(phrases.ASKING.search(sentence))


def _slots(clause: _Clause, *, consent: bool) -> set[Slot]:
    """What a clause asks for; one that asks for a yes names things without asking for them."""
    if consent:
        return {Slot.REASON} if phrases.BOTH_REASONS.search(clause.text) else set()
    text = f"{clause.context} {clause.text}" if phrases.THESE.search(clause.text) else clause.text
    found = {slot for slot, words in phrases.SLOTS if words.search(text)}
    if Slot.ADDRESS in found and phrases.WHOLE_ADDRESS.search(text) and "name" not in text:
        found.discard(Slot.NAME)
    if phrases.TO_COME.search(text):
        found.discard(Slot.EMAIL)
    return found


def _asks_for_yes(clause: _Clause) -> bool:
    """Whether a clause wants a yes; one that wants to know who the customer is, or which, does not."""
    if phrases.SAY_YES.search(clause.text):
        return True
    text = phrases.TO_PROCEED.sub("", clause.text)
    if not clause.asking or not phrases.CONSENT.search(text):
        return False
    if phrases.CONFIRM_WHAT.search(text) or phrases.ASKS_FOR.search(text):
        return False
    wants = phrases.WANTS_TO_KNOW.search(text)
    if wants and not re.search(r"\bconfirm|\bproceed\b", text[: wants.start()]):
        return False
    if phrases.WHOLE_ADDRESS.search(text):
        return True
    return not any(words.search(text) for slot, words in phrases.SLOTS if slot in (Slot.EMAIL, Slot.NAME))


def _is_offer(clause: _Clause) -> bool:
    text = f"{clause.context} {clause.text}" if phrases.DO_THAT.search(clause.text) else clause.text
    return bool(phrases.OFFER.search(text)) and not phrases.SAY_YES.search(text)


def _is_choice(text: str) -> bool:
    return bool(phrases.CHOICE.search(text)) and not phrases.SAY_YES.search(text)


def _refuses(sentence: str) -> bool:
    return bool(phrases.REFUSAL.search(sentence)) and not phrases.HARMLESS.search(sentence)


def _closes(sentence: str) -> bool:
    return bool(phrases.CLOSING.search(sentence)) and not phrases.NOT_CLOSING.search(sentence)
