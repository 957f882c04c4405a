"""Types of option values, each of which rejects an invalid value with a short, one-line error."""

import argparse
from collections.abc import Callable
from itertools import pairwise

DEFAULT_STAGES = (2, 4, 8)

MOST_TRIALS = 10_000
"""The largest number of trials of one task."""

MOST_SEED = (1 << 63) - 1 - MOST_TRIALS
"""The largest seed, because each trial adds 1 and seeds have 64 bits."""


def whole(least: int, most: int) -> Callable[[str], int]:
    """The type of whole numbers from `least` to `most`."""

    def value_of(text: str) -> int:
        try:
            value = int(text)
        except ValueError:  # Python also rejects more than 4,300 digits
            value = None
        if value is None or value < least:
            bound = "" if least < 0 else f" of {least} or more"
            raise _invalid(text, f" is not a whole number{bound}")
        if value > most:
            raise _invalid(text, f" is more than {most}, the largest possible value")
        return value

    return value_of


def amount(most: float) -> Callable[[str], float]:
    """The type of numbers above 0 up to `most`."""

    def value_of(text: str) -> float:
        value = _number(text)
        if not 0.0 < value < float("inf"):
            raise _invalid(text, " is not a number above 0")
        if value > most:
            raise _invalid(text, f" is more than {most:g}, the largest possible value")
        return value

    return value_of


def integer(text: str) -> int:
    """A whole number of 64 bits, for options whose command checks the range."""
    return whole(-MOST_SEED, MOST_SEED)(text)


def finite(text: str) -> float:
    """A finite number, small enough that arithmetic cannot overflow."""
    value = _number(text)
    if not abs(value) <= 1e15:
        raise _invalid(text, " is not a number of at most 15 digits")
    return value


def temperature(text: str) -> float:
    value = _number(text)
    if not 0.0 <= value <= 2.0:
        raise _invalid(text, " is not a number from 0 to 2")
    return value


def stages(text: str) -> tuple[int, ...]:
    """A schedule: rising numbers of trials, or `default`."""
    if text == "default":
        return DEFAULT_STAGES
    try:
        stages = tuple(int(part) for part in text.split(","))
    except ValueError:
        stages = ()
    if len(stages) < 2 or stages[0] < 1 or any(trials >= later for trials, later in pairwise(stages)):
        raise _invalid(text, " is no schedule: two or more rising numbers of trials, as in 2,4,8, or default")
    if stages[-1] > MOST_TRIALS:
        raise _invalid(text, f": at most {MOST_TRIALS} trials of a task are possible")
    return stages


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _invalid(text: str, problem: str) -> argparse.ArgumentTypeError:
    value = repr(text) if len(text) <= 80 else f"{text[:60]!r}… ({len(text)} characters)"
    return argparse.ArgumentTypeError(value + problem)
