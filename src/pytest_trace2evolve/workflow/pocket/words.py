"""The words of lessons: those of training, and ever new ones made of them, so that copying beats remembering.

A customer who was never met gives a name, a mailbox and a product that were never met either. A model that
sees a few hundred names and a dozen mail domains in all its training learns them by heart instead.
"""

import functools
import importlib.resources
import random
import tomllib
from collections.abc import Sequence

from pytest_trace2evolve.cases.content import Kind, Vocabulary, vocabulary
from pytest_trace2evolve.records.script import Content

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
    folder = importlib.resources.files("pytest_trace2evolve.training") / "pocket"
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
