"""Where choices come from: a seed, or hypothesis, which can shrink them. Builders of cases know only this."""

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

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
