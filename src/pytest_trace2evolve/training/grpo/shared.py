"""Log-probabilities of rollouts that begin alike, their common beginnings read once.

All rollouts of a step begin with the same instructions and tools, those of a group with the same
conversation. The first is read once a step, the second once a group, and only what differs once a rollout, on
top of their keys and values. No approximation: attention sees the same keys, so values and gradients are
those of whole rows, but for the order of sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

TOGETHER = 4
"""Rollouts of a group that are read side by side: those of like length, so that little of it is padding."""


@dataclass(frozen=True)
class Rows:
    """Rollouts of one batch, without padding.

    Attributes:
        prompts, answers: Tokens, row by row.
        wanted: (rows, width of the answers): which tokens of the answers are asked about.
    """

    prompts: Sequence[tuple[int, ...]]
    answers: Sequence[tuple[int, ...]]
    wanted: torch.Tensor


def rows_of(ids: torch.Tensor, mask: torch.Tensor, width: int, wanted: torch.Tensor | None = None) -> Rows:
    """Rows of a padded batch.

    Args:
        ids: (rows, prompt and answer), prompts padded on the left, answers on the right.
        mask: The same shape, 0 where it is padded.
        width: Of the answers.
        wanted: (rows, width): 0 where nothing is asked; None asks about all tokens of answers.
    """
    held = mask.bool()
    begin = ids.shape[1] - width

    def part(row: int, columns: slice) -> tuple[int, ...]:
        return tuple(ids[row, columns][held[row, columns]].tolist())

    own = held[:, begin:] if wanted is None else held[:, begin:] & wanted.bool()
    return Rows(
        prompts=[part(row, slice(None, begin)) for row in range(len(ids))],
        answers=[part(row, slice(begin, None)) for row in range(len(ids))],
        wanted=own,
    )


def shared_logps(
    network: Any, rows: Rows, temperature: float, *, entropies: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probabilities of answers' tokens, in nats.

    Args:
        network: A causal model (not wrapped), all of whose layers attend to everything.
        rows: The rollouts.
        temperature: What logits are divided by.
        entropies: Whether each token's distribution's entropy is told too; it carries no gradient.

    Returns:
        (rows, width) both; 0 where nothing was asked.
    """
    logps = torch.zeros(rows.wanted.shape, device=rows.wanted.device)
    spread = torch.zeros_like(logps) if entropies else None
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, prompt in enumerate(rows.prompts):
        if bool(rows.wanted[number].any()):
            groups.setdefault(prompt, []).append(number)
    if not groups:  # still tied to the weights, so that a backward pass finds nothing instead of failing
        return logps + 0.0 * _touch(network), spread
    common = _alike(list(groups))
    beginning = _read(network, next(iter(groups))[:common], None, 1) if common else None
    for prompt, members in groups.items():
        # The prompt's last token is read with the answers: it foresees their first.
        middle = _read(network, prompt[common:-1], beginning, 1) if len(prompt) - 1 > common else beginning
        ordered = sorted(members, key=lambda one: len(rows.answers[one]))
        for first in range(0, len(ordered), TOGETHER):
            numbers = ordered[first : first + TOGETHER]
            answers = [rows.answers[one] for one in numbers]
            hidden = _tails(network, prompt[-1], answers, middle)
            own = rows.wanted[numbers][:, : hidden.shape[1]]
            places = own.nonzero()
            picked = torch.tensor(numbers, device=own.device)[places[:, 0]], places[:, 1]
            table = torch.log_softmax(network.lm_head(hidden[own]).float() / temperature, dim=-1)
            tokens = torch.tensor([answers[row][place] for row, place in places.tolist()], device=own.device)
            logps = logps.index_put(picked, table.gather(-1, tokens.unsqueeze(-1)).squeeze(-1))
            if spread is not None:
                still = table.detach()
                spread[picked] = -(still.exp() * still).sum(-1)
    return logps, spread


def _touch(network: Any) -> torch.Tensor:
    """A number that hangs on every weight that is trained."""
    return torch.stack([one.sum() for one in network.parameters() if one.requires_grad]).sum()


def _alike(prompts: Sequence[tuple[int, ...]]) -> int:
    """Tokens with which all begin; at least one of each is left over."""
    shortest = min(map(len, prompts)) - 1
    first = prompts[0]
    return next(
        (place for place in range(shortest) if any(one[place] != first[place] for one in prompts)), shortest
    )


def _read(network: Any, tokens: Sequence[int], past: Any, rows: int) -> Any:
    """The keys and values of what was read before and of these tokens."""
    cache = _widened(network, past, rows)
    ids = torch.tensor([list(tokens)] * rows, device=network.device)
    network.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
    return cache


def _tails(network: Any, last: int, answers: Sequence[Sequence[int]], past: Any) -> torch.Tensor:
    """(rows, longest answer, width of the model): what foresees each token of the answers."""
    longest = max(map(len, answers))
    ids = torch.full((len(answers), longest), last, device=network.device)
    for row, answer in enumerate(answers):
        # Padding stands behind: nothing before it sees it.
        ids[row, 1 : len(answer)] = torch.tensor(answer[:-1], device=network.device)
    cache = _widened(network, past, len(answers))
    hidden: torch.Tensor = network.base_model(
        input_ids=ids, past_key_values=cache, use_cache=True
    ).last_hidden_state
    return hidden


def _widened(network: Any, past: Any, rows: int) -> Any:
    """A cache of its own that holds what another holds, once for each of some rows."""
    cache = DynamicCache(config=network.config)
    if past is not None:
        for place, layer in enumerate(past.layers):
            cache.update(layer.keys.expand(rows, -1, -1, -1), layer.values.expand(rows, -1, -1, -1), place)
    return cache


def can_share(config: Any) -> bool:
    """Whether all layers of a model attend to everything before, as reading beginnings once takes."""
    text = config.get_text_config(decoder=True)
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    scaled = any(
        getattr(text, name, None) for name in ("final_logit_softcapping", "logit_scale", "logits_scaling")
    )
    return kinds == {"full_attention"} and not getattr(text, "num_kv_shared_layers", None) and not scaled
