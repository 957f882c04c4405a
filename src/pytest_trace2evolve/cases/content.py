"""The words that cases are made of: people, places, products and phrasings, split into train and held-out.

Where choices come from: a seed, or hypothesis, which can shrink them. Builders of cases know only this.
"""

import functools
import importlib.resources
import random
import re
import string
import tomllib
from collections.abc import Mapping, Sequence
from typing import Annotated, Protocol, TypeVar

from pydantic import Field

from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.task import Content

T = TypeVar("T")


class Draws(Protocol):
    """A source of choices. The first option and the lowest number are the simplest."""

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


@functools.cache
def vocabulary(content: Content) -> Vocabulary:
    """The words of one content."""
    folder = importlib.resources.files("pytest_trace2evolve.cases") / "content"
    record = tomllib.loads((folder / f"{content.value}.toml").read_text(encoding="utf-8"))
    return Vocabulary.model_validate(record)


def foreign(text: str, content: Content) -> str:
    """A name, place, product or phrasing of `content` that a text holds; empty where it holds none."""
    lowered = " ".join(text.lower().split())
    for mark in _marks(content):
        if mark in lowered and _as_words(mark).search(lowered):
            return mark
    return ""


def marks_of(phrase: str, content: Content) -> Sequence[str]:
    """The parts of a phrase of `content`, between its slots and in lower case, that tell whose it is.

    Parts of three words or more do. A phrase without one is told by parts of two words, unless a phrase of
    the other content has them too. Fewer words are everybody's ("Hello.").
    """
    parts = [part.strip(_AROUND) for part in re.split(r"\{\w+\}", phrase.lower())]
    if long := [part for part in parts if len(part.split()) > 2]:
        return long
    short = [part for part in parts if len(part.split()) == 2]
    return [part for part in short if not _as_words(part).search(_phrases_besides(content))]


@functools.cache
def _marks(content: Content) -> tuple[str, ...]:
    """What only cases of this content may hold, in lower case."""
    words = vocabulary(content)
    named = [*words.first_names, *words.last_names, *words.streets, *words.domains]
    named += [city for city, _, _ in words.cities] + [kind.name for kind in words.products]
    phrases = [text for texts in words.phrases.values() for text in texts]
    parts = [mark for text in phrases for mark in marks_of(text, content)]
    return tuple(dict.fromkeys((*map(str.lower, named), *parts)))


@functools.cache
def _phrases_besides(content: Content) -> str:
    """All phrases of the other contents, a line each, in lower case."""
    others = [vocabulary(one).phrases for one in Content if one is not content]
    return "\n".join(text.lower() for one in others for texts in one.values() for text in texts)


@functools.cache
def _as_words(mark: str) -> re.Pattern[str]:
    """Finds a mark, or its plural, that no letter touches; signs, digits and underscores (of ids) may."""
    return re.compile(rf"(?<![^\W\d_]){re.escape(mark)}s?(?![^\W\d_])")


_AROUND = f"{string.whitespace}.,:;?!"
"""What may stand around a part of a phrase without being of it."""
