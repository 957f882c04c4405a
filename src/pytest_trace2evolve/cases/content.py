"""The words that cases are made of, split into train and held-out, and the draws that choose among them.

Lessons of training need more: a customer who was never seen before brings a name, a mailbox and a product
that were never seen either. A model that sees only a few hundred names in all its training learns them by
heart. So each lesson has words of its own, drawn from those of training or invented.
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
    """A source of choices: a seed, or hypothesis, which can shrink them.

    The first option and the lowest number are the simplest.
    """

    def number(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""


class SeededDraws:
    """Choices from a seed: the same seed gives the same ones, on any machine."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def number(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return self._random.randint(low, high)


def one_of(draws: Draws, options: Sequence[T]) -> T:
    """One of `options`."""
    return options[draws.number(0, len(options) - 1)]


def some_of(draws: Draws, options: Sequence[T], count: int) -> list[T]:
    """`count` different places of `options`, in the order in which they were drawn."""
    left = list(options)
    return [left.pop(draws.number(0, len(left) - 1)) for _ in range(min(count, len(left)))]


Some = Annotated[tuple[str, ...], Field(min_length=1)]


class Kind(Record):
    """A kind of product: its name, the range of its prices in dollars, its options with their values."""

    name: str
    prices: tuple[int, int]
    options: dict[str, Annotated[tuple[str, ...], Field(min_length=2)]]


class Vocabulary(Record):
    """All words of one content; cities come with their state and the first two digits of their zip codes."""

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
    """The words of one content."""
    return Vocabulary.model_validate(read_content(content.value))


def read_content(name: str) -> dict[str, Any]:
    """A file of the folder `content`."""
    return tomllib.loads((resources.files(__package__) / "content" / f"{name}.toml").read_text("utf-8"))


def find_foreign_mark(text: str, content: Content) -> str:
    """A name, place, product or phrasing of `content` that a text holds; empty if it holds none."""
    lowered = " ".join(text.lower().split())
    for mark in _marks(content):
        if mark in lowered and _as_words(mark).search(lowered):
            return mark
    return ""


@functools.cache
def _marks(content: Content) -> tuple[str, ...]:
    """What only cases of this content may hold, in lower case."""
    words = vocabulary(content)
    phrases = [text for texts in words.phrases.values() for text in texts]
    marks = [mark for text in phrases for mark in _phrase_marks(text, content)]
    return tuple(dict.fromkeys((*map(str.lower, words.names), *marks)))


def _phrase_marks(phrase: str, content: Content) -> Sequence[str]:
    """The parts of a phrase, between its slots and in lower case, by which its content is recognised.

    These are parts of three words or more, or else parts of two words that no phrase of the other content
    has. Fewer words are everybody's ("Hello.").
    """
    around = f"{string.whitespace}.,:;?!"
    parts = [part.strip(around) for part in re.split(r"\{\w+\}", phrase.lower())]
    if long := [part for part in parts if len(part.split()) > 2]:
        return long
    short = [part for part in parts if len(part.split()) == 2]
    return [part for part in short if not _as_words(part).search(_other_phrases(content))]


@functools.cache
def _other_phrases(content: Content) -> str:
    """All phrases of the other contents, a line each, in lower case."""
    others = [vocabulary(other).phrases for other in Content if other is not content]
    return "\n".join(text.lower() for phrases in others for texts in phrases.values() for text in texts)


@functools.cache
def _as_words(mark: str) -> re.Pattern[str]:
    """Finds a mark, or its plural, that no letter touches; signs, digits and underscores (of ids) may."""
    return re.compile(rf"(?<![^\W\d_]){re.escape(mark)}s?(?![^\W\d_])")


INVENTED = 0.5
"""Share of names, places and mail domains of a lesson that are made up."""

MIXED = 0.4
"""Share of products of a lesson that are combined from two others."""

PEOPLE, PLACES, GOODS = 6, 8, 16
"""How many names, streets or cities, and products a lesson's store can draw from."""

_CLUSTERS = ("br", "ch", "cl", "dr", "fl", "gr", "kh", "pr", "sh", "sk", "st", "th", "tr")
_ONSETS = (*"bcdfghjklmnprstvwz", *_CLUSTERS)
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
    known = vocabulary(Content.TRAIN)
    more = Vocabulary.model_validate({**read_content("world"), **read_content("phrases")})
    names = [name for name in Vocabulary.model_fields if name != "phrases"]
    joined = {name: (*getattr(known, name), *getattr(more, name)) for name in names}
    phrases = {name: (*known.phrases[name], *more.phrases[name]) for name in known.phrases}
    return Vocabulary.model_validate({**joined, "phrases": phrases})


def lesson_words(random: random.Random) -> Vocabulary:
    """The words of one lesson: some of those of training, some made of them, none that is held out."""
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
    """Every held-out name, and every word of one, in lower case."""
    words = vocabulary(Content.HELDOUT)
    names = [*words.names, *(domain.partition(".")[0] for domain in words.domains)]
    return frozenset(part for name in names for part in (name.lower(), *name.lower().split()))


def _invented(random: random.Random) -> str:
    """A word that can be pronounced and is not held out."""
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
    """Products of different names."""
    found: dict[str, Kind] = {}
    while len(found) < GOODS:
        kind = random.choice(known)
        if random.random() < MIXED:
            kind = _mixed(random, kind, random.choice(known))
        if kind.name.lower() not in _held_out():
            found.setdefault(kind.name, kind)
    return tuple(found.values())


def _mixed(random: random.Random, kind: Kind, other: Kind) -> Kind:
    """A product with the first word of one name and the last of another, and an option of each kind."""
    options = {
        name: values
        for source in (kind, other)
        for name, values in random.sample(list(source.options.items()), 1)
    }
    if len(options) < 2:
        options = dict(kind.options)
    head = _invented(random).capitalize() if random.random() < INVENTED else kind.name.split()[0]
    return kind.model_copy(update={"name": f"{head} {other.name.split()[-1]}", "options": options})
