"""The question that a router asks a model, and what follows from the letters that it would answer.

Labels are single letters, and each label stands once at each place: a model that likes the first letter, or
the letter A, likes all labels equally so. What is averaged are probabilities among the letters, so an order
in which the model would say something else altogether weighs no less and no more than others.
"""

import math
import random
from collections.abc import Mapping, Sequence

from pytest_trace2evolve.records.adapter import NONE, Routing, Skill

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

EQUAL = 1e-9
"""How close two shares must be to count as equal: sums in another order differ by so much."""

Order = tuple[str, ...]
"""Labels in the order in which they are lettered."""


def orders_of(names: Sequence[str], seed: int = 0) -> list[Order]:
    """The rotations of a drawn order: as many as there are labels, each of which stands once at each place.

    Args:
        names: The capabilities; `NONE` is added.
        seed: Of the drawn order.

    Raises:
        ValueError: there are more labels than letters, or two of one name.
    """
    labels = [*names, NONE]
    if len(labels) > len(LETTERS) or len(set(labels)) < len(labels):
        raise ValueError(f"{len(labels)} labels: {len(LETTERS)} different ones at most")
    labels.sort()
    random.Random(seed).shuffle(labels)
    return [tuple(labels[place:] + labels[:place]) for place in range(len(labels))]


def question(skills: Sequence[Skill], order: Order, opening: str) -> list[dict[str, str]]:
    """The messages of one question, for a chat model that is to answer with a letter.

    Args:
        skills: What is chosen from, `NONE` aside.
        order: The labels, lettered from A on.
        opening: How the customer opens.
    """
    known = {one.name: one for one in skills}
    lines = []
    for letter, label in zip(LETTERS, order, strict=False):
        if label == NONE:
            lines.append(f"{letter}) None of the others is needed.")
        else:
            one = known[label]
            lines.append(f"{letter}) {one.description} For instance: {one.example}")
    system = (
        "You sort customer requests. Read the request, and answer with the letter of the skill that it calls "
        "for most, and nothing else.\n\n" + "\n".join(lines)
    )
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": f"Request: {opening}\n\nLetter:"},
    ]


def routing_of(told: Sequence[tuple[Order, Mapping[str, float]]]) -> Routing:
    """What follows from the first tokens that a model would answer in each order.

    Args:
        told: Orders, each with the log-probabilities of the likeliest first tokens, by text.

    Returns:
        The label with the highest mean share; `NONE` where it is not alone there, or nothing was told.

    Raises:
        ValueError: nothing was asked, or orders hold different labels.
    """
    if not told or len({frozenset(order) for order, _ in told}) != 1:
        raise ValueError("one order or more of the same labels is wanted")
    labels = sorted(told[0][0])
    shares = dict.fromkeys(labels, 0.0)
    silent = 0
    for order, tokens in told:
        found = _letters(tokens, len(order))
        silent += found is None
        for place, label in enumerate(order):
            shares[label] += (1 / len(order) if found is None else found[place]) / len(told)
    most = max(shares.values())
    best = [label for label in labels if shares[label] >= most - EQUAL]
    chosen = best[0] if len(best) == 1 else NONE
    return Routing(
        chosen=chosen, shares={label: min(share, 1.0) for label, share in shares.items()}, silent=silent
    )


def _letters(tokens: Mapping[str, float], count: int) -> list[float] | None:
    """The probabilities of the first `count` letters among themselves; None where no letter is told.

    A letter may be told as several tokens, with a space before it or in lower case. One that is not told is
    less likely than all that are: it gets what the least likely of those has.
    """
    found = dict.fromkeys(LETTERS[:count], -math.inf)
    for text, logprob in tokens.items():
        letter = text.strip().strip("().:").upper()
        if letter in found:
            found[letter] = _log_sum(found[letter], logprob)
    if max(found.values()) == -math.inf:
        return None
    floor = min(tokens.values())
    filled = [one if one > -math.inf else floor for one in found.values()]
    top = max(filled)
    weights = [math.exp(one - top) for one in filled]
    return [one / sum(weights) for one in weights]


def _log_sum(one: float, other: float) -> float:
    """log(exp(one) + exp(other))."""
    top = max(one, other)
    if top == -math.inf:
        return top
    return top + math.log(math.exp(one - top) + math.exp(other - top))
