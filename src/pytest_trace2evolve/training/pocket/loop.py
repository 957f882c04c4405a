"""One step of training the pocket model on groups of dialogues that begin alike.

A prompt is the same in all dialogues of a group. It is read once, and what follows it once a dialogue on
top of its keys and values: the gradients are those of whole dialogues, at little more than half the cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve._optional import require

if TYPE_CHECKING:
    import torch
    from transformers import Qwen3ForCausalLM

CONTEXT_SHARE = 0.35
"""Share of the tokens that are not the agent's which are learnt from, drawn anew each time."""

CONTEXT_WEIGHT = 0.4
"""Weight of such a token, against 1 of one that is the agent's: to foresee records teaches to copy."""


@dataclass(frozen=True)
class Encoded:
    """One dialogue: its tokens, and which of them the agent wrote."""

    ids: Sequence[int]
    own: Sequence[int]


def common_beginning(group: Sequence[Encoded]) -> int:
    """Tokens with which all dialogues of a group begin; each has at least one more."""
    shortest = min(len(one.ids) for one in group) - 1
    first = group[0].ids
    return next(
        (place for place in range(shortest) if any(one.ids[place] != first[place] for one in group)), shortest
    )


def group_loss(
    network: "Qwen3ForCausalLM", group: Sequence[Encoded], pad: int
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """The weighted loss of a group.

    Returns:
        The sum of the weighted losses of its tokens after the common beginning, and the sum of the weights.
    """
    torch: Any = require("torch", extra="local")
    transformers: Any = require("transformers", extra="local")
    start = common_beginning(group)
    cache = transformers.DynamicCache(config=network.config)
    network.model(input_ids=torch.tensor([group[0].ids[: start - 1]]), past_key_values=cache, use_cache=True)
    cache.batch_repeat_interleave(len(group))
    # The last common token is read with the rest: it foresees the first that differs.
    longest = max(len(one.ids) for one in group) - start + 1
    ids = torch.full((len(group), longest), pad)
    weights = torch.zeros((len(group), longest))
    context = (torch.rand((len(group), longest)) < CONTEXT_SHARE) * CONTEXT_WEIGHT
    for row, one in enumerate(group):
        tail = one.ids[start - 1 :]
        ids[row, : len(tail)] = torch.tensor(tail)
        own = torch.tensor(one.own[start - 1 :], dtype=torch.float32)
        weights[row, : len(tail)] = torch.where(own > 0, own, context[row, : len(tail)])
    hidden = network.model(input_ids=ids[:, :-1], past_key_values=cache, use_cache=True).last_hidden_state
    weights = weights[:, 1:]
    seen = weights > 0
    logits = network.lm_head(hidden[seen])
    losses = torch.nn.functional.cross_entropy(logits.float(), ids[:, 1:][seen], reduction="none")
    return (losses * weights[seen]).sum(), weights.sum()
