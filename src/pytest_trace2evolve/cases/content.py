"""The vocabulary of cases, split into train and held-out, and the draws that choose from it.

Training lessons need more words. A model that sees only a few hundred names memorizes them, but a new
customer has a new name, a new mailbox and a new product. Each lesson therefore has its own vocabulary, drawn
from the training vocabulary or invented.
"""

import functools
import random
import re
import string
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import Field

from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.task import Content

T = TypeVar("T")


class Draws(Protocol):
    """A source of choices, such as a seed or Hypothesis, which shrinks towards the lowest number."""

    def number(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""


class SeededDraws:
    """Draws from a seed: the same seed gives the same choices on any machine."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def number(self, low: int, high: int) -> int:
        return self._random.randint(low, high)


def one_of(draws: Draws, options: Sequence[T]) -> T:
    return options[draws.number(0, len(options) - 1)]


def some_of(draws: Draws, options: Sequence[T], count: int) -> list[T]:
    """Draw `count` options (at most all) without replacement, in the order of drawing."""
    left = list(options)
    return [left.pop(draws.number(0, len(left) - 1)) for _ in range(min(count, len(left)))]


Some = Annotated[tuple[str, ...], Field(min_length=1)]


class Kind(Record):
    """A kind of product, with a name, a price range in dollars, and the values of each option."""

    name: str
    prices: tuple[int, int]
    options: dict[str, Annotated[tuple[str, ...], Field(min_length=2)]]


class Vocabulary(Record):
    """The words of one content. Each city has a state and the first two digits of a zip code."""

    first_names: Some
    last_names: Some
    streets: Some
    cities: Annotated[tuple[tuple[str, str, str], ...], Field(min_length=1)]
    domains: Some
    products: Annotated[tuple[Kind, ...], Field(min_length=1)]
    phrases: Mapping[str, Some]

    @property
    def names(self) -> list[str]:
        """All names of people, places, mail domains and products."""
        cities = [city for city, _, _ in self.cities]
        products = [kind.name for kind in self.products]
        return [*self.first_names, *self.last_names, *self.streets, *self.domains, *cities, *products]


@functools.cache
def vocabulary(content: Content) -> Vocabulary:
    return Vocabulary.model_validate(read_content(content.value))


def read_content(name: str) -> dict[str, Any]:
    """Read a TOML file of the folder `content`."""
    return tomllib.loads((resources.files(__package__) / "content" / f"{name}.toml").read_text("utf-8"))


def find_foreign_mark(text: str, content: Content) -> str:
    """Return a name, place, product or phrase of `content` found in a text; empty if there is none."""
    lowered = " ".join(text.lower().split())
    for mark in _marks(content):
        if mark in lowered and _as_words(mark).search(lowered):
            return mark
    return ""


@functools.cache
def _marks(content: Content) -> tuple[str, ...]:
    """Texts, in lower case, that only cases of this content may contain."""
    words = vocabulary(content)
    phrases = [text for texts in words.phrases.values() for text in texts]
    marks = [mark for text in phrases for mark in _phrase_marks(text, content)]
    return tuple(dict.fromkeys((*map(str.lower, words.names), *marks)))


def _phrase_marks(phrase: str, content: Content) -> Sequence[str]:
    """The parts of a phrase, between its slots and in lower case, that identify its content.

    A part with at least three words identifies its content. If a phrase has no such part, its two-word parts
    count, unless they occur in other content. Single words ("Hello.") are too common to count.
    """
    around = f"{string.whitespace}.,:;?!"
    parts = [part.strip(around) for part in re.split(r"\{\w+\}", phrase.lower())]
    if long := [part for part in parts if len(part.split()) > 2]:
        return long
    short = [part for part in parts if len(part.split()) == 2]
    return [part for part in short if not _as_words(part).search(_other_phrases(content))]


@functools.cache
def _other_phrases(content: Content) -> str:
    """All phrases of the other contents, in lower case, one per line."""
    others = [vocabulary(other).phrases for other in Content if other is not content]
    return "\n".join(text.lower() for phrases in others for texts in phrases.values() for text in texts)


@functools.cache
def _as_words(mark: str) -> re.Pattern[str]:
    """A pattern for a mark or its plural that no letter adjoins. Ids may add digits and underscores."""
    return re.compile(rf"(?<![^\W\d_]){re.escape(mark)}s?(?![^\W\d_])")


INVENTED = 0.5
"""Share of invented names, places and mail domains in a lesson."""

MIXED = 0.4
"""Share of products in a lesson that combine two products."""

PEOPLE, PLACES, GOODS = 6, 8, 16
"""Sizes of a lesson's vocabulary: the number of names, of streets or cities, and of products."""

_CLUSTERS = ("br", "ch", "cl", "dr", "fl", "gr", "kh", "pr", "sh", "sk", "st", "th", "tr")
_ONSETS = (*"bcdfghjklmnprstvwz", *_CLUSTERS)
_VOWELS = (*"aaeeiioou", "ai", "ea", "ee", "io", "ou")
_CODAS = ("", "", "", *"nrlstmkdx", "nd", "rt", "sk", "ng", "lin", "ton", "ez", "ov", "ard", "etti", "son")
_MAIL = (
    *("mail", "post", "box", "net", "inbox", "web", "letter"),
    *("home", "city", "line", "hub", "desk", "blue"),
)


@functools.cache
def training_words() -> Vocabulary:
    """The words of the training cases, and many more of each kind."""
    known = vocabulary(Content.TRAIN)
    more = Vocabulary.model_validate({**read_content("world"), **read_content("phrases")})
    names = [name for name in Vocabulary.model_fields if name != "phrases"]
    joined = {name: (*getattr(known, name), *getattr(more, name)) for name in names}
    phrases = {name: (*known.phrases[name], *more.phrases[name]) for name in known.phrases}
    return Vocabulary.model_validate({**joined, "phrases": phrases})


def lesson_words(random: random.Random) -> Vocabulary:
    """The words of one lesson: training words, combinations and inventions, without held-out words."""
    words = training_words()
    return words.model_copy(
        update={
            "first_names": _names(random, words.first_names),
            "last_names": _names(random, words.last_names),
            "streets": tuple(_street(random, words.streets) for _ in range(PLACES)),
            "cities": tuple(_city(random, words.cities) for _ in range(PLACES)),
            "domains": tuple(_domain(random, words.domains) for _ in range(PEOPLE)),
            "products": _products(random, words.products),
        }
    )


@functools.cache
def _held_out() -> frozenset[str]:
    """All held-out names and the single words of these names, in lower case."""
    words = vocabulary(Content.HELDOUT)
    names = [*words.names, *(domain.partition(".")[0] for domain in words.domains)]
    return frozenset(part for name in names for part in (name.lower(), *name.lower().split()))


def _invented(random: random.Random) -> str:
    """A pronounceable word that is not held out."""
    while True:
        syllables = (
            random.choice(_ONSETS) + random.choice(_VOWELS) for _ in range(random.choice((1, 2, 2, 3)))
        )
        word: str = "".join(syllables) + random.choice(_CODAS)
        if len(word) > 2 and word not in _held_out():
            return word


def _names(random: random.Random, known: Sequence[str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    while len(found) < PEOPLE:
        name = _invented(random).capitalize() if random.random() < INVENTED else random.choice(known)
        found[name] = None
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
    found: dict[str, Kind] = {}
    while len(found) < GOODS:
        kind = random.choice(known)
        if random.random() < MIXED:
            kind = _mixed(random, kind, random.choice(known))
        if kind.name.lower() not in _held_out():
            found.setdefault(kind.name, kind)
    return tuple(found.values())


def _mixed(random: random.Random, kind: Kind, other: Kind) -> Kind:
    """A product with the first word of one name, the last word of another, and an option of each."""
    options = {
        name: values
        for source in (kind, other)
        for name, values in random.sample(list(source.options.items()), 1)
    }
    if len(options) < 2:
        options = dict(kind.options)
    head = _invented(random).capitalize() if random.random() < INVENTED else kind.name.split()[0]
    return kind.model_copy(update={"name": f"{head} {other.name.split()[-1]}", "options": options})
