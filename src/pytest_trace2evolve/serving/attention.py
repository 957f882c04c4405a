"""Attention of a decoding step on a processor, which reads each key and value once.

Much of a step's time goes into reading keys and values. Rows of a candidate begin with the same policy and
tools, so the beginning of one row is read for all. Each row then reads only its own rest, and no empty slots.
Both parts are joined by their softmax sums (arXiv 2402.05099), which changes nothing but the rounding.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION_NAME = "trace2evolve"
"""The name under which transformers knows `_attend`."""

_UNSUPPORTED_OPTIONS = ("sliding_window", "softcap", "position_bias")

_flash_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@dataclass(frozen=True)
class Group:
    """Rows whose first `shared` tokens are the same; 0 if nothing is shared."""

    rows: Sequence[int]
    shared: int


@dataclass(frozen=True)
class StepLayout:
    """The rows of a step.

    Attributes:
        lengths: Number of slots of each row, which are the last ones, including the step's own.
        groups: All rows, each in one group.
    """

    lengths: Sequence[int]
    groups: Sequence[Group]


_layout: ContextVar[StepLayout | None] = ContextVar("layout", default=None)


@contextmanager
def step_layout(layout: StepLayout) -> Iterator[None]:
    """Let the steps inside the block read their rows as the layout says."""
    token = _layout.set(layout)
    try:
        yield
    finally:
        _layout.reset(token)


def _attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    """Attend as transformers' `sdpa` does; outside of `step_layout` with the very same code."""
    layout = _layout.get()
    has_own_rules = any(options.get(name) is not None for name in _UNSUPPORTED_OPTIONS)
    if layout is None or has_own_rules or query.device.type != "cpu":
        result: tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, mask, **options)
        return result
    rows, heads, _, width = query.shape
    # The query heads that share a key head become further queries of that head.
    packed = query.reshape(rows, key.shape[1], -1, width)
    attended = torch.empty_like(packed)
    for group in layout.groups:
        _attend_group(group, layout.lengths, packed, key, value, options.get("scaling"), attended)
    return attended.reshape(rows, 1, heads, width), None


def _attend_group(
    group: Group,
    lengths: Sequence[int],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    attended: torch.Tensor,
) -> None:
    """Write the results of a group's rows to `attended`, (rows, heads, queries, width) like `query`."""
    parts = []
    for row in group.rows:
        one, slots = slice(row, row + 1), slice(key.shape[2] - lengths[row] + group.shared, None)
        parts.append(_flash_attention(query[one], key[one, :, slots], value[one, :, slots], scale=scale))
    own = torch.cat([part[0] for part in parts])
    if group.shared:
        first, (_, heads, queries, width) = group.rows[0], query.shape
        start = key.shape[2] - lengths[first]
        slots = slice(start, start + group.shared)
        all_queries = query[list(group.rows)].transpose(0, 1).reshape(1, heads, -1, width)
        shared, shared_sums = _flash_attention(
            all_queries, key[first : first + 1, :, slots], value[first : first + 1, :, slots], scale=scale
        )
        shared = shared.reshape(heads, -1, queries, width).transpose(0, 1)
        shared_sums = shared_sums.reshape(heads, -1, queries).transpose(0, 1)
        share = torch.sigmoid(shared_sums - torch.cat([part[1] for part in parts])).unsqueeze(-1)
        own = torch.lerp(own, shared, share.to(own.dtype))
    attended[list(group.rows)] = own


AttentionInterface.register(ATTENTION_NAME, _attend)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
