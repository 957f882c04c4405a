"""What the values of options may be; anything else is told with the value."""

import argparse
from itertools import pairwise

DEFAULT_STAGES = (2, 4, 8)


def positive(text: str) -> int:
    """A whole number of 1 or more."""
    return _whole(text, 1)


def count(text: str) -> int:
    """A whole number of 0 or more."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
    return value


def stages(text: str) -> tuple[int, ...]:
    """A schedule: rising numbers of trials, or `default`."""
    if text == "default":
        return DEFAULT_STAGES
    try:
        stages = tuple(int(part) for part in text.split(","))
    except ValueError:
        stages = ()
    if len(stages) < 2 or stages[0] < 1 or any(one >= next_ for one, next_ in pairwise(stages)):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no schedule: two or more rising numbers of trials, as in 2,4,8, or default"
        )
    return stages


def amount(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def temperature(text: str) -> float:
    """A number from 0 to 2."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 2.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 2")
    return value
