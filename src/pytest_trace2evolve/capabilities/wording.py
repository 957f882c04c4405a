"""What words in a trace change about a label: wishes taken back, methods that were chosen, wrong figures.

Words are read only to take a label back, or to find the figure that was told instead of the right one. Each
of these rules was added where a label on a recorded run was read by hand and found wrong.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from pytest_trace2evolve.capabilities.acts import Act, Wanted
from pytest_trace2evolve.capabilities.conduct import Conduct

_SENTENCE = re.compile(r"[^.!?\n]+")
_NOT_ANY_MORE = re.compile(
    r"\b((do not|don't|dont|no need to|won't|rather not|not want to|not) "
    r"(\w+ ){0,2}(change|modify|update|cancel|return|exchange|proceed|touch)"
    r"|never ?mind|skip|forget|changed my mind|by myself|on my own)\b"
)
_AMOUNT = re.compile(r"(?<![\w.#])\$?(\d[\d,]*\.\d{1,2})(?![\d%])")
_COUNT = re.compile(r"(?<![\w.#$-])(\d{1,3})(?![\w.-]|\.\d)")
_WORD = re.compile(r"[a-z][a-z-]{3,}")
_METHODS = {"gift_card": ("gift card",), "paypal": ("paypal",), "credit_card": ("credit card", "card ending")}
"""How a customer names a kind of payment method, by how its id begins."""

METHOD = "payment_method_id"
"""The argument that says who pays."""

ANOTHER = ("other card", "other method", "other payment", "different card", "different payment")


def withdrawn(conduct: Conduct, one: Wanted) -> bool:
    """Whether the customer took a wish back: a sentence of theirs that names the change and says not to."""
    named = _words_of(conduct, one)
    return any(
        _NOT_ANY_MORE.search(sentence) and any(word in sentence for word in named)
        for sentence in _sentences(conduct, "user")
    )


def _words_of(conduct: Conduct, one: Wanted) -> tuple[str, ...]:
    """How words begin that name a change: as the world's rules say, else the parts of the tool's name."""
    writing = conduct.rules.writes.get(one.action.name) if conduct.rules is not None else None
    if writing is not None:
        return writing.named
    return tuple(part for part in one.action.name.split("_")[1:] if len(part) > 3)


def _sentences(conduct: Conduct, role: str) -> Iterator[str]:
    for message in conduct.trace:
        if message.role == role:
            yield from _SENTENCE.findall((message.content or "").lower())


def chose(conduct: Conduct, act: Act, name: str) -> bool:
    """Whether the customer chose an argument of a call themselves, in words before it.

    A payment method by its kind, as another one, or as the original one where the order was paid with it;
    anything else word for word.
    """
    said = " ".join((one.content or "") for one in conduct.trace[: act.message] if one.role == "user").lower()
    value = str(act.call.arguments.get(name))
    if name != METHOD:
        return len(value) > 3 and value.lower() in said
    paid = conduct.was_read(act.record, act.message)
    if "original" in said and paid is not None and f'"{METHOD}": "{value}"' in paid.result:
        return True
    kinds = [words for begin, words in _METHODS.items() if value.startswith(begin)]
    return any(word in said for words in (*kinds, ANOTHER) for word in words)


def wrote(conduct: Conduct, text: str) -> bool:
    """Whether the agent said a text to the customer."""
    return any(
        text.lower() in (one.content or "").lower() for one in conduct.trace if one.role == "assistant"
    )


def offered(conduct: Conduct, act: Act, item: str) -> bool:
    """Whether the agent had told the customer of a variant, by its id or its price, before an act."""
    price = next((one.get("price") for one in _items(conduct) if one.get("item_id") == item), None)
    signs = [item] if price is None else [item, f"{price:.2f}" if isinstance(price, float) else str(price)]
    return any(
        sign in (one.content or "")
        for one in conduct.trace[: act.message]
        if one.role == "assistant"
        for sign in signs
    )


def item_names(conduct: Conduct, items: object) -> set[str]:
    """The names of items, as far as the agent has read of them."""
    wanted = set(map(str, items)) if isinstance(items, list) else set()
    named = (one.get("name") for one in _items(conduct) if str(one.get("item_id")) in wanted)
    return {name for name in named if isinstance(name, str)}


def changed_elsewhere(conduct: Conduct, one: Wanted) -> bool:
    """Whether the items that an act leaves out stand in another change: they were wanted otherwise."""
    if one.act is None:
        return False
    mine, wanted = (_listed(side.arguments.get("item_ids")) for side in (one.act.call, one.action))
    left = wanted - mine
    others = {value for act in conduct.writes if act is not one.act for value in act.values}
    return bool(left) and left <= others


def _listed(value: object) -> set[str]:
    """The entries of a list as texts; an agent may write anything where a list belongs."""
    return set(map(str, value)) if isinstance(value, list) else set()


def _items(conduct: Conduct) -> Iterator[dict[str, Any]]:
    """Everything with an item's id in what the tools answered."""
    for act in conduct.reads:
        try:
            yield from _with_item_id(json.loads(act.result))
        except (ValueError, RecursionError):
            continue


def _with_item_id(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "item_id" in value:
            yield value
        for one in value.values():
            yield from _with_item_id(one)
    elif isinstance(value, list):
        for one in value:
            yield from _with_item_id(one)


def other_figure(conduct: Conduct, wanted: str) -> tuple[int, str] | None:
    """The place and text of a figure that the agent worked out and told instead of the wanted one.

    Of amounts, one that stands in no record and that the customer did not name. Of counts, one in a sentence
    that shares a word with the customer's question for a number. None where there is no such figure.
    """
    if "." in wanted:
        return _other_amount(conduct)
    return _other_count(conduct, wanted) if wanted.isdecimal() else None


def _other_amount(conduct: Conduct) -> tuple[int, str] | None:
    for place, message in enumerate(conduct.trace):
        if message.role != "assistant":
            continue
        for amount in _AMOUNT.findall(message.content or ""):
            plain = amount.replace(",", "")
            spellings = {plain, amount, plain.rstrip("0").rstrip(".")}
            if not any(conduct.told(spelling, place) for spelling in spellings):
                return place, amount
    return None


def _other_count(conduct: Conduct, wanted: str) -> tuple[int, str] | None:
    asked: set[str] = set()
    for sentence in _sentences(conduct, "user"):
        if "how many" in sentence or "number of" in sentence:
            asked |= set(_WORD.findall(sentence)) - {"many", "number", "have", "there"}
    for place, message in enumerate(conduct.trace):
        if message.role != "assistant":
            continue
        for sentence in _SENTENCE.findall((message.content or "").lower()):
            counts = [one for one in _COUNT.findall(sentence) if one != wanted]
            if counts and asked & set(_WORD.findall(sentence)):
                return place, counts[0]
    return None
