"""Drawing one token a row, and the log-probabilities that are told of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

GREEDY = 1e-5
"""Temperatures below this are none."""


@dataclass(frozen=True)
class Draw:
    """How one row's next token is drawn.

    Attributes:
        temperature: 0 takes the likeliest.
        top_p: The likeliest tokens that together have at least this probability are drawn from.
        uniform: The row's own random number, from 0 to 1: the draw depends on it and the logits alone.
    """

    temperature: float
    top_p: float
    uniform: float


@dataclass(frozen=True)
class TokenLogprob:
    """A token, the natural logarithm of its probability, and the likeliest with theirs, likeliest first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def draw(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """One token a row, by inversion of the cumulated distribution.

    Args:
        logits: (rows, vocabulary).
        draws: How, row by row.
    """
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    drawn = [row for row, one in enumerate(draws) if one.temperature >= GREEDY]
    if not drawn:
        return tokens
    chosen = [draws[row] for row in drawn]
    # In double precision: the cumulated sum of a large vocabulary is not exact enough otherwise.
    wanted = logits[drawn].double()
    probabilities = torch.softmax(wanted / _column(wanted, [one.temperature for one in chosen]), dim=-1)
    cut = [place for place, one in enumerate(chosen) if one.top_p < 1.0]
    if cut:
        limits = _column(wanted, [chosen[place].top_p for place in cut])
        probabilities[cut] = _nucleus(probabilities[cut], limits)
    cumulated = probabilities.cumsum(dim=-1)
    goals = _column(wanted, [one.uniform for one in chosen]) * cumulated[:, -1:]
    found = torch.searchsorted(cumulated, goals, right=True).squeeze(-1)
    # Rounding may lead past the last token that can be drawn.
    last = (cumulated < cumulated[:, -1:]).sum(dim=-1)
    for row, token in zip(drawn, torch.minimum(found, last).tolist(), strict=True):
        tokens[row] = token
    return tokens


def logprobs(
    logits: torch.Tensor, tokens: Sequence[int], wanted: Sequence[int | None]
) -> list[TokenLogprob | None]:
    """What the model itself gives each row's token: temperature and `top_p` change nothing in it.

    Args:
        logits: (rows, vocabulary).
        tokens: The tokens that were taken.
        wanted: How many of the likeliest are told of each row; None tells nothing of it.
    """
    told: list[TokenLogprob | None] = [None] * len(tokens)
    rows = [row for row, count in enumerate(wanted) if count is not None]
    if not rows:
        return told
    distribution = torch.log_softmax(logits[rows].float(), dim=-1)
    most = min(max(wanted[row] or 0 for row in rows), logits.shape[-1])
    best = distribution.topk(most, dim=-1)
    names, values = best.indices.tolist(), best.values.tolist()
    for place, row in enumerate(rows):
        count = wanted[row] or 0
        top = tuple(zip(names[place][:count], values[place][:count], strict=True))
        told[row] = TokenLogprob(tokens[row], float(distribution[place, tokens[row]]), top)
    return told


def _column(like: torch.Tensor, values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).unsqueeze(-1)


def _nucleus(probabilities: torch.Tensor, limits: torch.Tensor) -> torch.Tensor:
    """The same with zeros outside the smallest set of likeliest tokens that reaches its limit."""
    ordered, places = probabilities.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    ordered = ordered.masked_fill(before >= limits, 0.0)
    # The likeliest token stays, whatever the limit.
    ordered[:, 0] = probabilities.gather(-1, places[:, :1]).squeeze(-1)
    return torch.zeros_like(probabilities).scatter(-1, places, ordered)
