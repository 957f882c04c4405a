"""Sampling of one token per row, and the reported log-probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

GREEDY = 1e-5
"""Temperatures below this value select the likeliest token."""


@dataclass(frozen=True)
class Draw:
    """The settings of the draw of one row's next token.

    Attributes:
        temperature: The sampling temperature.
        top_p: The draw is from the likeliest tokens that together have at least this probability.
        uniform: The row's own random number from 0 to 1, the draw's only source of randomness.
    """

    temperature: float
    top_p: float
    uniform: float


@dataclass(frozen=True)
class TokenLogprob:
    """The natural log-probabilities of a token and of the likeliest tokens, likeliest first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def draw(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """Draw one token per row of (rows, vocabulary), by inversion of the cumulative distribution."""
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    rows = [row for row, settings in enumerate(draws) if settings.temperature >= GREEDY]
    if not rows:
        return tokens
    chosen = [draws[row] for row in rows]
    # Double precision, because a cumulative sum over a large vocabulary would otherwise be too inexact.
    scaled = logits[rows].double()
    probabilities = torch.softmax(scaled / _column(scaled, [one.temperature for one in chosen]), dim=-1)
    restricted = [place for place, settings in enumerate(chosen) if settings.top_p < 1.0]
    if restricted:
        limits = _column(scaled, [chosen[place].top_p for place in restricted])
        probabilities[restricted] = _nucleus(probabilities[restricted], limits)
    cumulative = probabilities.cumsum(dim=-1)
    targets = _column(scaled, [settings.uniform for settings in chosen]) * cumulative[:, -1:]
    found = torch.searchsorted(cumulative, targets, right=True).squeeze(-1)
    # Rounding may select an index past the last token with a probability.
    last = (cumulative < cumulative[:, -1:]).sum(dim=-1)
    for row, token in zip(rows, torch.minimum(found, last).tolist(), strict=True):
        tokens[row] = token
    return tokens


def token_logprobs(
    logits: torch.Tensor, tokens: Sequence[int], top: Sequence[int | None]
) -> list[TokenLogprob | None]:
    """The log-probability of each row's token in the model's distribution, before temperature and `top_p`.

    Args:
        logits: (rows, vocabulary).
        tokens: The tokens that were drawn.
        top: Number of likeliest tokens reported for each row; None reports nothing for that row.
    """
    reported: list[TokenLogprob | None] = [None] * len(tokens)
    rows = [row for row, count in enumerate(top) if count is not None]
    if not rows:
        return reported
    distribution = torch.log_softmax(logits[rows].float(), dim=-1)
    best = distribution.topk(min(max(top[row] or 0 for row in rows), logits.shape[-1]), dim=-1)
    indices, values = best.indices.tolist(), best.values.tolist()
    for place, row in enumerate(rows):
        count = top[row] or 0
        likeliest = tuple(zip(indices[place][:count], values[place][:count], strict=True))
        reported[row] = TokenLogprob(tokens[row], float(distribution[place, tokens[row]]), likeliest)
    return reported


def _column(like: torch.Tensor, values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).unsqueeze(-1)


def _nucleus(probabilities: torch.Tensor, limits: torch.Tensor) -> torch.Tensor:
    """Zero everything outside the smallest set of likeliest tokens that reaches its limit."""
    ordered, places = probabilities.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    ordered = ordered.masked_fill(before >= limits, 0.0)
    ordered[:, 0] = probabilities.gather(-1, places[:, :1]).squeeze(-1)  # the likeliest token always stays
    return torch.zeros_like(probabilities).scatter(-1, places, ordered)
