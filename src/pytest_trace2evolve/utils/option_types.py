"""Parsers of option values, each of which rejects an invalid value with a one-line error."""

import argparse
from collections.abc import Callable
from itertools import pairwise

DEFAULT_STAGES = (2, 4, 8)

MAX_TRIALS = 10_000
"""The largest number of trials of one task."""

MAX_SEED = (1 << 63) - 1 - MAX_TRIALS
"""The largest seed: each trial adds 1 to the seed, and seeds have 64 bits."""


def whole_number_parser(minimum: int, maximum: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from `minimum` to `maximum`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:  # Python also rejects more than 4,300 digits
            value = None
        if value is None or value < minimum:
            requirement = "" if minimum < 0 else f" of {minimum} or more"
            raise _invalid_value_error(text, f" is not a whole number{requirement}")
        if value > maximum:
            raise _invalid_value_error(text, f" is more than {maximum}, the largest possible value")
        return value

    return parse


def positive_number_parser(maximum: float) -> Callable[[str], float]:
    """Return a parser of numbers above 0 and up to `maximum`."""

    def parse(text: str) -> float:
        value = _parse_float(text)
        if not 0.0 < value < float("inf"):
            raise _invalid_value_error(text, " is not a number above 0")
        if value > maximum:
            raise _invalid_value_error(text, f" is more than {maximum:g}, the largest possible value")
        return value

    return parse


def parse_integer(text: str) -> int:
    """Parse a whole number of 64 bits, for options whose command checks the range."""
    return whole_number_parser(-MAX_SEED, MAX_SEED)(text)


def parse_finite(text: str) -> float:
    """Parse a finite number that is small enough that arithmetic cannot overflow."""
    value = _parse_float(text)
    if not abs(value) <= 1e15:
        raise _invalid_value_error(text, " is not a number of at most 15 digits")
    return value


def parse_temperature(text: str) -> float:
    value = _parse_float(text)
    if not 0.0 <= value <= 2.0:
        raise _invalid_value_error(text, " is not a number from 0 to 2")
    return value


def parse_stages(text: str) -> tuple[int, ...]:
    """Parse a schedule: rising numbers of trials, or `default`."""
    if text == "default":
        return DEFAULT_STAGES
    try:
        stages = tuple(int(part) for part in text.split(","))
    except ValueError:
        stages = ()
    if (
        len(stages) < 2
        or stages[0] < 1
        or any(trials >= next_trials for trials, next_trials in pairwise(stages))
    ):
        raise _invalid_value_error(
            text,
            " is not a schedule: expected two or more rising numbers of trials, such as 2,4,8, or default",
        )
    if stages[-1] > MAX_TRIALS:
        raise _invalid_value_error(text, f": at most {MAX_TRIALS} trials of a task are possible")
    return stages


def _parse_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _invalid_value_error(text: str, problem: str) -> argparse.ArgumentTypeError:
    value = repr(text) if len(text) <= 80 else f"{text[:60]!r}… ({len(text)} characters)"
    return argparse.ArgumentTypeError(value + problem)
