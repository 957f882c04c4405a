"""Samples one token per row, and computes the reported log-probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

MIN_SAMPLING_TEMPERATURE = 1e-5
"""Temperatures below this value select the likeliest token."""


@dataclass(frozen=True)
class SamplingSettings:
    """Settings for sampling one row's next token.

    Attributes:
        temperature: The sampling temperature.
        top_p: Tokens are sampled from the smallest set of likeliest tokens that has at least this
            probability.
        uniform: The row's own random number from 0 to 1, the only source of randomness.
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


def sample_tokens(logits: torch.Tensor, settings: Sequence[SamplingSettings]) -> list[int]:
    """Draw one token per row of `logits` (rows, vocabulary), by inversion of the cumulative distribution."""
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    rows = [
        row
        for row, row_settings in enumerate(settings)
        if row_settings.temperature >= MIN_SAMPLING_TEMPERATURE
    ]
    if not rows:
        return tokens
    sampled_settings = [settings[row] for row in rows]
    # Double precision, because a cumulative sum over a large vocabulary would otherwise be too inexact.
    sampled_logits = logits[rows].double()
    temperatures = _column(sampled_logits, [row_settings.temperature for row_settings in sampled_settings])
    probabilities = torch.softmax(sampled_logits / temperatures, dim=-1)
    nucleus_rows = [index for index, row_settings in enumerate(sampled_settings) if row_settings.top_p < 1.0]
    if nucleus_rows:
        limits = _column(sampled_logits, [sampled_settings[index].top_p for index in nucleus_rows])
        probabilities[nucleus_rows] = _keep_nucleus(probabilities[nucleus_rows], limits)
    cumulative = probabilities.cumsum(dim=-1)
    targets = (
        _column(sampled_logits, [row_settings.uniform for row_settings in sampled_settings])
        * cumulative[:, -1:]
    )
    indices = torch.searchsorted(cumulative, targets, right=True).squeeze(-1)
    # Rounding may select an index past the last token with a positive probability.
    last_indices = (cumulative < cumulative[:, -1:]).sum(dim=-1)
    for row, token in zip(rows, torch.minimum(indices, last_indices).tolist(), strict=True):
        tokens[row] = token
    return tokens


def token_logprobs(
    logits: torch.Tensor, tokens: Sequence[int], top_counts: Sequence[int | None]
) -> list[TokenLogprob | None]:
    """Return the log-probability of each row's token under the model, before temperature and `top_p`.

    Args:
        logits: The logits, of shape (rows, vocabulary).
        tokens: The tokens that were drawn.
        top_counts: Number of likeliest tokens reported for each row; None reports nothing for that row.
    """
    logprobs: list[TokenLogprob | None] = [None] * len(tokens)
    rows = [row for row, count in enumerate(top_counts) if count is not None]
    if not rows:
        return logprobs
    distribution = torch.log_softmax(logits[rows].float(), dim=-1)
    likeliest = distribution.topk(min(max(top_counts[row] or 0 for row in rows), logits.shape[-1]), dim=-1)
    indices, values = likeliest.indices.tolist(), likeliest.values.tolist()
    for index, row in enumerate(rows):
        count = top_counts[row] or 0
        top_tokens = tuple(zip(indices[index][:count], values[index][:count], strict=True))
        logprobs[row] = TokenLogprob(tokens[row], float(distribution[index, tokens[row]]), top_tokens)
    return logprobs


def _column(reference: torch.Tensor, values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=reference.dtype, device=reference.device).unsqueeze(-1)


def _keep_nucleus(probabilities: torch.Tensor, limits: torch.Tensor) -> torch.Tensor:
    """Zero everything outside the smallest set of likeliest tokens that reaches its limit."""
    sorted_probabilities, token_order = probabilities.sort(dim=-1, descending=True, stable=True)
    preceding_sums = sorted_probabilities.cumsum(dim=-1) - sorted_probabilities
    sorted_probabilities = sorted_probabilities.masked_fill(preceding_sums >= limits, 0.0)
    # The likeliest token always stays.
    sorted_probabilities[:, 0] = probabilities.gather(-1, token_order[:, :1]).squeeze(-1)
    return torch.zeros_like(probabilities).scatter(-1, token_order, sorted_probabilities)
