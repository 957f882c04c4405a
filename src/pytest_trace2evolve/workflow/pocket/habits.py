"""Habits of the pocket model's teacher, and the rules of a prompt that change them."""

import functools
import importlib.resources
import random
import tomllib
from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import Field

from pytest_trace2evolve.records.base import Record

Share = Annotated[float, Field(ge=0, le=1)]


class Rule(Record):
    """One rule that a candidate's instruction may hold.

    Attributes:
        sets: By habit, how often it is kept under this rule.
        wordings: How the rule is written in training.
        unseen: How it is written where following it is measured on words never seen.
    """

    sets: dict[str, Share]
    wordings: Annotated[tuple[str, ...], Field(min_length=2)]
    unseen: Annotated[tuple[str, ...], Field(min_length=1)]


class Frames(Record):
    """Words around the rules of a prompt."""

    intros: tuple[str, ...]


class Rulebook(Record):
    """All habits, with how often each is kept where no rule speaks of it, and all rules."""

    habits: dict[str, Share]
    rules: dict[str, Rule]
    frames: Frames


@functools.cache
def rulebook() -> Rulebook:
    """What `training/pocket/rules.toml` holds."""
    folder = importlib.resources.files("pytest_trace2evolve.training") / "pocket"
    return Rulebook.model_validate(tomllib.loads((folder / "rules.toml").read_text(encoding="utf-8")))


Habits = Mapping[str, bool]
"""Which habits a teacher keeps in one dialogue."""


def draw_habits(rules: Iterable[str], random: random.Random) -> Habits:
    """Which habits are kept under the given rules, each drawn at its share; a later rule wins."""
    book = rulebook()
    shares = dict(book.habits)
    for name in rules:
        shares.update(book.rules[name].sets)
    return {habit: random.random() < share for habit, share in shares.items()}


def every_habit() -> Habits:
    """The habits of a teacher without a flaw."""
    return dict.fromkeys(rulebook().habits, True)
