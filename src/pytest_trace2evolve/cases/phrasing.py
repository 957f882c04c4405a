"""The words of lessons: those of training, and ever new ones made of them, so that copying beats remembering.

A customer who was never met gives a name, a mailbox and a product that were never met either. A model that
sees a few hundred names and a dozen mail domains in all its training learns them by heart instead.

What the pocket model's teacher says.
"""

import functools
import importlib.resources
import random
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_trace2evolve.cases.content import Kind, Vocabulary, vocabulary
from pytest_trace2evolve.cases.expert import CANCEL, MODIFY_ADDRESS, MODIFY_PAYMENT, MODIFY_PROFILE, RETURN
from pytest_trace2evolve.cases.scene import address_text, options_text
from pytest_trace2evolve.cases.store import Data
from pytest_trace2evolve.records.task import Content

WHO = ("May I have your email, or your name and zip code?", "What is your email, or your name and zip code?")
WHY = ("Why should it be cancelled: is it no longer needed, or was it ordered by mistake?",)
WHERE_TO = ("Where should the refund go: to the original payment method or to a gift card?",)
MORE = "Is there anything else I can help with?"
CLAIM = "That is all done."
LOST = "I am sorry, then I cannot help with that."

LEARNT_LATER = frozenset(
    {
        "that is no reason for which an order can be cancelled",
        "a refund goes to the original payment method or a gift card",
    }
)
"""Refusals that follow from what the customer answers."""

_DONE = {
    CANCEL: "cancelled",
    RETURN: "returned",
    "exchange_delivered_order_items": "exchanged",
    "modify_pending_order_items": "changed",
    MODIFY_ADDRESS: "sent to the new address",
    MODIFY_PAYMENT: "charged to the other payment method",
}
_WRONG_STATUS = {RETURN: "not delivered", "exchange_delivered_order_items": "not delivered"}


def refused(why: str) -> str:
    """A refusal with its reason."""
    return f"I am sorry, I cannot do that: {why}."


def error(tool: str) -> str:
    """Why a tool that failed did so."""
    return f"the order is {_WRONG_STATUS.get(tool, 'not pending')}"


def done(tool: str, order_id: str) -> str:
    """What a change came to; an empty id is not named."""
    if tool == MODIFY_PROFILE:
        return "The address of your account is changed."
    return f"{f'Order {order_id}' if order_id else 'Your order'} is {_DONE[tool]}."


def answer(order: Data, wanted: str) -> str:
    """The answer to a question about an order; nothing wanted: the condition was not met."""
    if not wanted:
        return "Then everything stays as it is."
    if order["fulfillments"] and wanted == order["fulfillments"][0]["tracking_id"][0]:
        return f"The tracking number is {wanted}."
    for item in order["items"]:
        if str(item["price"]) == wanted:
            return f"You paid {wanted} dollars for the {item['name']}."
    return f"You paid {wanted} dollars in total."


def proposal(tool: str, arguments: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> str:
    """What is about to be done, with a question for a yes."""
    return f"I will {_change(tool, arguments, tables)}. Do you confirm (yes/no)?"


def _change(tool: str, arguments: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> str:
    order_id = arguments.get("order_id", "")
    if tool == MODIFY_PROFILE:
        return f"change the address of your account to {address_text(arguments)}"
    if tool == CANCEL:
        return f"cancel order {order_id}, reason: {arguments['reason']}"
    if tool == MODIFY_ADDRESS:
        return f"send order {order_id} to {address_text(arguments)}"
    if tool == MODIFY_PAYMENT:
        return f"charge order {order_id} to {arguments['payment_method_id']}"
    items = {item["item_id"]: item for item in tables["orders"][order_id]["items"]}
    named = [items[one] for one in arguments["item_ids"]]
    if tool == RETURN:
        what = " and the ".join(item["name"] for item in named)
        return f"return the {what} of order {order_id}, refund to {arguments['payment_method_id']}"
    swaps = []
    for item, new in zip(named, arguments["new_item_ids"], strict=True):
        options = tables["products"][item["product_id"]]["variants"][new]["options"]
        swaps.append(f"the {item['name']} for {new} ({options_text(options)})")
    what = " and ".join(swaps)
    return f"change {what} in order {order_id}, paid with {arguments['payment_method_id']}"


INVENTED = 0.5
"""Share of names, places and mail domains that are made up."""

MIXED = 0.4
"""Share of products that are put together from two others."""

PEOPLE, PLACES, GOODS = 6, 8, 16
"""How many names, streets or cities, and products a lesson's store can draw from."""

_ONSETS = (
    *"bcdfghjklmnprstvwz",
    "br",
    "ch",
    "cl",
    "dr",
    "fl",
    "gr",
    "kh",
    "pr",
    "sh",
    "sk",
    "st",
    "th",
    "tr",
)
_VOWELS = (*"aaeeiioou", "ai", "ea", "ee", "io", "ou")
_CODAS = ("", "", "", *"nrlstmkdx", "nd", "rt", "sk", "ng", "lin", "ton", "ez", "ov", "ard", "etti", "son")
_MAIL = (
    "mail",
    "post",
    "box",
    "net",
    "inbox",
    "web",
    "letter",
    "home",
    "city",
    "line",
    "hub",
    "desk",
    "blue",
)


@functools.cache
def training_words() -> Vocabulary:
    """The words of the training cases, and far more of each kind."""
    folder = importlib.resources.files("pytest_trace2evolve.cases") / "content"
    known = vocabulary(Content.TRAIN)
    world = tomllib.loads((folder / "world.toml").read_text(encoding="utf-8"))
    phrases = tomllib.loads((folder / "phrases.toml").read_text(encoding="utf-8"))["phrases"]
    more = Vocabulary.model_validate({**world, "phrases": phrases})
    names = [name for name in Vocabulary.model_fields if name != "phrases"]
    joined = {name: (*getattr(known, name), *getattr(more, name)) for name in names}
    said = {name: (*known.phrases[name], *more.phrases[name]) for name in known.phrases}
    return Vocabulary.model_validate({**joined, "phrases": said})


def lesson_words(random: random.Random) -> Vocabulary:
    """The words of one lesson: some of those of training, some made of them, none that is held out."""
    words = training_words()
    return words.model_copy(
        update={
            "first_names": _names(random, words.first_names, PEOPLE),
            "last_names": _names(random, words.last_names, PEOPLE),
            "streets": tuple(_street(random, words.streets) for _ in range(PLACES)),
            "cities": tuple(_city(random, words.cities) for _ in range(PLACES)),
            "domains": tuple(_domain(random, words.domains) for _ in range(PEOPLE)),
            "products": _products(random, words.products),
        }
    )


@functools.cache
def _held_out() -> frozenset[str]:
    """Every word of the held-out names, places and products, in lower case."""
    words = vocabulary(Content.HELDOUT)
    cities = [city for city, _, _ in words.cities]
    products = [kind.name for kind in words.products]
    told = [*words.first_names, *words.last_names, *words.streets, *words.domains, *cities, *products]
    domains = [domain.partition(".")[0] for domain in words.domains]
    return frozenset(part for text in (*told, *domains) for part in (text.lower(), *text.lower().split()))


def _invented(random: random.Random) -> str:
    """A word that can be pronounced and is none that is held out."""
    while True:
        syllables = (
            random.choice(_ONSETS) + random.choice(_VOWELS) for _ in range(random.choice((1, 2, 2, 3)))
        )
        word: str = "".join(syllables) + random.choice(_CODAS)
        if len(word) > 2 and word not in _held_out():
            return word


def _names(random: random.Random, known: Sequence[str], count: int) -> tuple[str, ...]:
    """Names, each another one."""
    found: list[str] = []
    while len(found) < count:
        name = _invented(random).capitalize() if random.random() < INVENTED else random.choice(known)
        if name not in found:
            found.append(name)
    return tuple(found)


def _street(random: random.Random, known: Sequence[str]) -> str:
    street = random.choice(known)
    if random.random() < INVENTED:
        return f"{_invented(random).capitalize()} {street.split()[-1]}"
    return street


def _city(random: random.Random, known: Sequence[tuple[str, str, str]]) -> tuple[str, str, str]:
    name, state, prefix = random.choice(known)
    if random.random() < INVENTED:
        return _invented(random).capitalize(), state, f"{random.randrange(100):02}"
    return name, state, prefix


def _domain(random: random.Random, known: Sequence[str]) -> str:
    if random.random() >= INVENTED:
        return random.choice(known)
    while True:
        parts = [random.choice(_MAIL) if random.random() < 0.5 else _invented(random) for _ in range(2)]
        if (name := "".join(parts)) not in _held_out():
            return f"{name}.example"


def _products(random: random.Random, known: Sequence[Kind]) -> tuple[Kind, ...]:
    """Products, each of another name."""
    found: dict[str, Kind] = {}
    while len(found) < GOODS:
        kind = random.choice(known)
        if random.random() < MIXED:
            kind = _mixed(random, kind, random.choice(known))
        if kind.name.lower() not in _held_out():
            found.setdefault(kind.name, kind)
    return tuple(found.values())


def _mixed(random: random.Random, one: Kind, other: Kind) -> Kind:
    """A product with the first word of one and the last of another, and an option of each."""
    options = {
        name: values for kind in (one, other) for name, values in random.sample(list(kind.options.items()), 1)
    }
    if len(options) < 2:
        options = dict(one.options)
    head = _invented(random).capitalize() if random.random() < INVENTED else one.name.split()[0]
    return one.model_copy(update={"name": f"{head} {other.name.split()[-1]}", "options": options})
