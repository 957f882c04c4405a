"""One step of training the pocket model on groups of dialogues that begin alike.

Whole prompts begin with the same tools and policy. That is read once a group, and what follows it once a
dialogue on top of its keys and values: the gradients are those of whole dialogues, at little more than half
the cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.utils.optional import require

if TYPE_CHECKING:
    import torch
    from transformers import Qwen3ForCausalLM

CONTEXT_WEIGHT = 0.4
"""Weight of a token that is not the agent's, against 1 of one that is: to foresee records teaches to copy."""

SHARED_LEAST = 200
"""Common tokens from which on they are read once: attention over what was read before costs more a token."""

TOGETHER = 4
"""Dialogues of a group that are read side by side: those of like length, so that little of it is padding."""


@dataclass(frozen=True)
class Encoded:
    """One dialogue: its tokens, and the weight of each that the agent wrote; 0 of others."""

    ids: Sequence[int]
    own: Sequence[float]


def common_beginning(group: Sequence[Encoded]) -> int:
    """Tokens with which all dialogues of a group begin; each has at least one more."""
    shortest = min(len(one.ids) for one in group) - 1
    first = group[0].ids
    return next(
        (place for place in range(shortest) if any(one.ids[place] != first[place] for one in group)), shortest
    )


def group_loss(
    network: "Qwen3ForCausalLM", group: Sequence[Encoded], pad: int, context: float
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """The weighted loss of a group.

    Args:
        network: What learns.
        group: The dialogues.
        pad: The token that fills shorter rows.
        context: Share of the tokens that are not the agent's which are learnt from, drawn anew each time.

    Returns:
        The sum of the weighted losses of its tokens after the common beginning, and the sum of the weights.
    """
    torch: Any = require("torch", extra="local")
    common = common_beginning(group)
    # The last common token is read with the rest: it foresees the first that differs.
    start = max(common - 1, 0) if common >= SHARED_LEAST else 0
    beginning = _read(network, group[0].ids[:start]) if start else None
    total, weight = torch.zeros(()), torch.zeros(())
    ordered = sorted(group, key=lambda one: len(one.ids))
    for first in range(0, len(ordered), TOGETHER):
        rows = ordered[first : first + TOGETHER]
        losses, weights = _tails(network, beginning, rows, start, pad, context)
        total, weight = total + losses, weight + weights
    return total, weight


def _read(network: "Qwen3ForCausalLM", ids: Sequence[int]) -> Any:
    """The keys and values of a beginning."""
    torch: Any = require("torch", extra="local")
    transformers: Any = require("transformers", extra="local")
    cache = transformers.DynamicCache(config=network.config)
    network.model(input_ids=torch.tensor([list(ids)]), cache=cache, use_cache=True)
    return cache


def _for_rows(network: "Qwen3ForCausalLM", beginning: Any, rows: int) -> Any:
    """A cache of its own that holds the same beginning for each of some rows."""
    transformers: Any = require("transformers", extra="local")
    cache = transformers.DynamicCache(config=network.config)
    for place, layer in enumerate(beginning.layers):
        cache.update(*(one.expand(rows, -1, -1, -1) for one in (layer.keys, layer.values)), place)
    return cache


def _tails(
    network: "Qwen3ForCausalLM",
    beginning: Any,
    rows: Sequence[Encoded],
    start: int,
    pad: int,
    context: float,
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Weighted losses of what stands from `start` on, and their weights, summed over some dialogues."""
    torch: Any = require("torch", extra="local")
    cache = None if beginning is None else _for_rows(network, beginning, len(rows))
    longest = max(len(one.ids) for one in rows) - start
    ids = torch.full((len(rows), longest), pad)
    weights = torch.zeros((len(rows), longest))
    others = (torch.rand((len(rows), longest)) < context) * CONTEXT_WEIGHT
    for row, one in enumerate(rows):
        tail = one.ids[start:]
        ids[row, : len(tail)] = torch.tensor(tail)
        own = torch.tensor(one.own[start:], dtype=torch.float32)
        weights[row, : len(tail)] = torch.where(own > 0, own, others[row, : len(tail)])
    hidden = network.model(input_ids=ids[:, :-1], cache=cache).last_hidden_state
    weights = weights[:, 1:]
    seen = weights > 0
    logits = network.lm_head(hidden[seen])
    losses = torch.nn.functional.cross_entropy(logits.float(), ids[:, 1:][seen], reduction="none")
    return (losses * weights[seen]).sum(), weights.sum()
