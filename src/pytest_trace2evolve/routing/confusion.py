"""Routers against oracle labels: which tasks were confused with which, and how often the choice was right."""

from collections import Counter
from collections.abc import Iterable

from pytest_trace2evolve.records.routing import NONE, Confusion


def confusion_of(pairs: Iterable[tuple[str, str]], choices: Iterable[str] = ()) -> Confusion:
    """The table of the oracle's labels and a router's choices, a pair a task.

    Args:
        choices: What the router could choose, whether it did or not.
    """
    counts = Counter(pairs)
    labels = sorted({label for pair in counts for label in pair} | set(choices))
    labels = [*(one for one in labels if one != NONE), NONE]
    return Confusion(
        labels=tuple(labels), counts=tuple(tuple(counts[row, column] for column in labels) for row in labels)
    )


def accuracy(confusion: Confusion, level: float = 0.95) -> tuple[float, float, float] | None:
    """The share of right choices with its interval (Wilson 1927); None where there is no task."""
    if not confusion.total:
        return None
    from scipy.stats import binomtest

    found = binomtest(confusion.right, confusion.total)
    bounds = found.proportion_ci(level, method="wilson")
    return confusion.right / confusion.total, float(bounds.low), float(bounds.high)
