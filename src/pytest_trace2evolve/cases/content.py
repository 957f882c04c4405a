"""The vocabularies of training and held-out cases, and sources of random choices among their words.

Training lessons need more words than cases. A model that sees only a few hundred names memorizes them, but a
new customer has a new name, a new mailbox and a new product. Each lesson therefore has its own vocabulary,
whose words are drawn from the training vocabulary or invented, and more phrasings, composed from patterns. A
composed sentence may share words with a held-out one, but contains no phrase that identifies held-out cases.
"""

import functools
import random
import re
import string
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import chain
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import Field

from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.task import Content

T = TypeVar("T")


class ChoiceSource(Protocol):
    """A source of choices, such as a seed or Hypothesis, which shrinks towards the lowest number."""

    def draw_number(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""


class SeededChoices:
    """Choices that follow from a seed: the same seed gives the same choices on any machine."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def draw_number(self, low: int, high: int) -> int:
        return self._random.randint(low, high)


def draw_one(choices: ChoiceSource, options: Sequence[T]) -> T:
    return options[choices.draw_number(0, len(options) - 1)]


def draw_some(choices: ChoiceSource, options: Sequence[T], count: int) -> list[T]:
    """Draw `count` options (at most all) without replacement, in the order of drawing."""
    remaining = list(options)
    return [
        remaining.pop(choices.draw_number(0, len(remaining) - 1)) for _ in range(min(count, len(remaining)))
    ]


NonEmptyTexts = Annotated[tuple[str, ...], Field(min_length=1)]


class ProductKind(Record):
    """A kind of product: its name, its price range in dollars, and the possible values of each option."""

    name: str
    prices: tuple[int, int]
    options: dict[str, Annotated[tuple[str, ...], Field(min_length=2)]]


class Vocabulary(Record):
    """The words of cases or of a lesson. A city is a tuple of name, state and the first two zip digits."""

    first_names: NonEmptyTexts
    last_names: NonEmptyTexts
    streets: NonEmptyTexts
    cities: Annotated[tuple[tuple[str, str, str], ...], Field(min_length=1)]
    domains: NonEmptyTexts
    products: Annotated[tuple[ProductKind, ...], Field(min_length=1)]
    phrases: Mapping[str, NonEmptyTexts]

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
    """Read the TOML file with this name in the `content` folder."""
    return tomllib.loads((resources.files(__package__) / "content" / f"{name}.toml").read_text("utf-8"))


def find_foreign_mark(text: str, content: Content) -> str:
    """Return a name, place, product or phrase of `content` that a text contains; empty if there is none."""
    lowercase_text = " ".join(text.lower().split())
    for mark in _marks(content):
        if mark in lowercase_text and _word_pattern(mark).search(lowercase_text):
            return mark
    return ""


@functools.cache
def _marks(content: Content) -> tuple[str, ...]:
    """Lower-case names and phrases that only cases of this content may contain."""
    words = vocabulary(content)
    phrases = [text for texts in words.phrases.values() for text in texts]
    marks = [mark for text in phrases for mark in _phrase_marks(text, content)]
    return tuple(dict.fromkeys((*map(str.lower, words.names), *marks)))


def _phrase_marks(phrase: str, content: Content) -> Sequence[str]:
    """The parts of a phrase, between its slots and in lower case, that identify its content.

    A part with at least three words identifies its content. If a phrase has no such part, its two-word parts
    count, unless they occur in other content. Single words ("Hello.") are too common to count.
    """
    punctuation = f"{string.whitespace}.,:;?!"
    parts = [part.strip(punctuation) for part in re.split(r"\{\w+\}", phrase.lower())]
    if long_parts := [part for part in parts if len(part.split()) > 2]:
        return long_parts
    short_parts = [part for part in parts if len(part.split()) == 2]
    return [part for part in short_parts if not _word_pattern(part).search(_other_phrases_text(content))]


@functools.cache
def _other_phrases_text(content: Content) -> str:
    """All phrases of the other vocabulary, in lower case, one per line."""
    other_phrases = [vocabulary(other).phrases for other in Content if other is not content]
    return "\n".join(
        text.lower() for phrases in other_phrases for texts in phrases.values() for text in texts
    )


@functools.cache
def _word_pattern(mark: str) -> re.Pattern[str]:
    """A pattern for a mark or its plural, not next to a letter; digits and `_` may adjoin, as in ids."""
    return re.compile(rf"(?<![^\W\d_]){re.escape(mark)}s?(?![^\W\d_])")


INVENTED_SHARE = 0.5
"""Share of invented names, places, mail domains, and words of products in a lesson."""

MIXED_SHARE = 0.6
"""Share of products in a lesson that combine two products."""

COMPOSED_COUNT = 10
"""The number of sentences that are composed from one pattern at most."""

PERSON_COUNT, PLACE_COUNT, PRODUCT_COUNT = 6, 8, 16
"""Sizes of a lesson's vocabulary: the number of names, of streets or cities, and of products."""

_CONSONANT_CLUSTERS = ("br", "ch", "cl", "dr", "fl", "gr", "kh", "pr", "sh", "sk", "st", "th", "tr")
_ONSETS = (*"bcdfghjklmnprstvwz", *_CONSONANT_CLUSTERS)
_VOWELS = (*"aaeeiioou", "ai", "ea", "ee", "io", "ou")
_CODAS = ("", "", "", *"nrlstmkdx", "nd", "rt", "sk", "ng", "lin", "ton", "ez", "ov", "ard", "etti", "son")
_MAIL_WORDS = (
    *("mail", "post", "box", "net", "inbox", "web", "letter"),
    *("home", "city", "line", "hub", "desk", "blue"),
)
_UNITS = ("cm", "mm", "W", " in", "V", "l", " dB", " kg", "ml", "")


@functools.cache
def training_words() -> Vocabulary:
    """The words of the training cases, and many more of each kind."""
    case_words = vocabulary(Content.TRAIN)
    extra_words = Vocabulary.model_validate({**read_content("world"), **read_content("phrases")})
    patterns = read_content("patterns")
    names = [name for name in Vocabulary.model_fields if name != "phrases"]
    joined_words = {name: (*getattr(case_words, name), *getattr(extra_words, name)) for name in names}
    phrases = {
        name: (
            *texts,
            *extra_words.phrases[name],
            *chain.from_iterable(map(_compose, patterns.get(name, ()))),
        )
        for name, texts in case_words.phrases.items()
    }
    return Vocabulary.model_validate({**joined_words, "phrases": phrases})


def _compose(pattern: str) -> Sequence[str]:
    """Some sentences of a pattern, in which brackets hold alternatives: "[Yes|Okay], that is right."."""
    rng = random.Random(pattern)
    parts = [part.split("|") for part in re.split(r"\[([^\]]*)\]", pattern)]
    drawn = (" ".join("".join(map(rng.choice, parts)).split()) for _ in range(3 * COMPOSED_COUNT))
    sentences = dict.fromkeys(re.sub(r" (?=[,.])", "", text) for text in drawn)
    return [text for text in sentences if not find_foreign_mark(text, Content.HELDOUT)][:COMPOSED_COUNT]


def lesson_words(rng: random.Random) -> Vocabulary:
    """The words of one lesson: training words, combinations of them, and invented words; none is held out."""
    words = training_words()
    return words.model_copy(
        update={
            "first_names": _draw_names(rng, words.first_names),
            "last_names": _draw_names(rng, words.last_names),
            "streets": tuple(_draw_street(rng, words.streets) for _ in range(PLACE_COUNT)),
            "cities": tuple(_draw_city(rng, words.cities) for _ in range(PLACE_COUNT)),
            "domains": tuple(_draw_domain(rng, words.domains) for _ in range(PERSON_COUNT)),
            "products": _draw_products(rng, words.products),
        }
    )


@functools.cache
def _held_out_words() -> frozenset[str]:
    """All held-out names, and each word of a held-out name, in lower case."""
    words = vocabulary(Content.HELDOUT)
    names = [*words.names, *(domain.partition(".")[0] for domain in words.domains)]
    return frozenset(part for name in names for part in (name.lower(), *name.lower().split()))


def _invent_word(rng: random.Random) -> str:
    """A pronounceable word that is not held out."""
    while True:
        syllables = (rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.choice((1, 2, 2, 3))))
        word: str = "".join(syllables) + rng.choice(_CODAS)
        if len(word) > 2 and word not in _held_out_words():
            return word


def _draw_names(rng: random.Random, options: Sequence[str]) -> tuple[str, ...]:
    names: dict[str, None] = {}
    while len(names) < PERSON_COUNT:
        name = _invent_word(rng).capitalize() if rng.random() < INVENTED_SHARE else rng.choice(options)
        names[name] = None
    return tuple(names)


def _draw_street(rng: random.Random, options: Sequence[str]) -> str:
    first_word, *_, last_word = rng.choice(options).split()
    return f"{_or_invented(rng, first_word)} {_or_invented(rng, last_word)}"


def _or_invented(rng: random.Random, word: str) -> str:
    """The word, or an invented one instead."""
    return _invent_word(rng).capitalize() if rng.random() < INVENTED_SHARE else word


def _draw_city(rng: random.Random, options: Sequence[tuple[str, str, str]]) -> tuple[str, str, str]:
    name, state, prefix = rng.choice(options)
    if rng.random() < INVENTED_SHARE:
        if rng.random() < INVENTED_SHARE:
            state = "".join(rng.choices(string.ascii_uppercase, k=2))
        return _invent_word(rng).capitalize(), state, f"{rng.randrange(100):02}"
    return name, state, prefix


def _draw_domain(rng: random.Random, options: Sequence[str]) -> str:
    if rng.random() >= INVENTED_SHARE:
        return rng.choice(options)
    while True:
        parts = [rng.choice(_MAIL_WORDS) if rng.random() < 0.5 else _invent_word(rng) for _ in range(2)]
        if (name := "".join(parts)) not in _held_out_words():
            return f"{name}.example"


def _draw_products(rng: random.Random, kinds: Sequence[ProductKind]) -> tuple[ProductKind, ...]:
    products: dict[str, ProductKind] = {}
    while len(products) < PRODUCT_COUNT:
        kind = rng.choice(kinds)
        if rng.random() < MIXED_SHARE:
            kind = _mix_products(rng, kind, rng.choice(kinds))
        if kind.name.lower() not in _held_out_words():
            products.setdefault(kind.name, kind)
    return tuple(products.values())


def _mix_products(rng: random.Random, kind: ProductKind, other: ProductKind) -> ProductKind:
    """Combine two products into one with an option of each; its words may be invented.

    The name starts with the first word of `kind` and ends with the last word of `other`. If both options have
    the same name, the product has all options of `kind` instead.
    """
    options = {
        name: values
        for source in (kind, other)
        for name, values in rng.sample(list(source.options.items()), 1)
    }
    if len(options) < 2:
        options = dict(kind.options)
    if rng.random() < INVENTED_SHARE:
        renamed = {
            _invent_word(rng) if rng.random() < INVENTED_SHARE else name: tuple(
                dict.fromkeys(_draw_option_value(rng, value) for value in values)
            )
            for name, values in options.items()
        }
        if len(renamed) == len(options) and all(len(values) > 1 for values in renamed.values()):
            options = renamed
    first_word, last_word = kind.name.split()[0], other.name.split()[-1]
    name = f"{_or_invented(rng, first_word)} {_or_invented(rng, last_word)}"
    return kind.model_copy(update={"name": name, "options": options})


def _draw_option_value(rng: random.Random, value: str) -> str:
    """A value of an option: the given one, a number with a unit, or invented words."""
    form = rng.random()
    if form < 0.55:
        return value
    if form < 0.75:
        number = rng.choice((rng.randrange(1, 10), rng.randrange(10, 100), 10 * rng.randrange(1, 50)))
        return f"{number}{rng.choice(_UNITS)}"
    return " ".join(_invent_word(rng) for _ in range(1 if form < 0.95 else 2))
