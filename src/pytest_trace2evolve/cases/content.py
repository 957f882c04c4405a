"""The words that cases are made of: people, places, products and phrasings, split into train and held-out."""

import functools
import importlib.resources
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.script import Content

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
    lowered = text.lower()
    for mark in _marks(content):
        if mark in lowered and re.search(rf"\b{re.escape(mark)}(s?\b|$)", lowered):
            return mark
    return ""


@functools.cache
def _marks(content: Content) -> tuple[str, ...]:
    """What only cases of this content may hold, in lower case."""
    words = vocabulary(content)
    named = [*words.first_names, *words.last_names, *words.streets, *words.domains]
    named += [city for city, _, _ in words.cities] + [kind.name for kind in words.products]
    phrasings = [part for texts in words.phrases.values() for text in texts for part in fixed_parts(text)]
    return tuple(mark.lower() for mark in (*named, *phrasings))


def fixed_parts(phrase: str) -> Sequence[str]:
    """The parts of a phrase between its slots that are long enough to tell whose it is."""
    parts = (part.strip() for part in re.split(r"\{\w+\}", phrase))
    return [part for part in parts if len(part.split()) >= MARK_WORDS]


MARK_WORDS = 3
"""Shorter stretches of words ("my", "the order") are everybody's."""
