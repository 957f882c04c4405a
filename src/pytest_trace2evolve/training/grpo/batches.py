"""trl's batches in groups, and groups as a batch again: some are drawn anew, and not all are as long."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from trl.trainer.utils import pad

_LEFT = ("prompt_ids", "prompt_mask")
"""What is padded on the left; everything else of a batch on the right."""


def groups_of(batch: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
    """A batch in its groups."""
    rows = len(batch["advantages"])
    return [
        {
            name: value[first : first + size]
            for name, value in batch.items()
            if torch.is_tensor(value) and value.dim()
        }
        for first in range(0, rows, size)
    ]


def joined(parts: Sequence[Mapping[str, Any]], filler: int) -> dict[str, Any]:
    """Groups as one batch, padded to the longest."""
    found: dict[str, Any] = {}
    for name in parts[0]:
        rows = [row for part in parts for row in part[name]]
        if rows[0].dim() == 0:
            found[name] = torch.stack(rows)
            continue
        value = filler if name in ("prompt_ids", "completion_ids") else int(name == "tool_mask")
        found[name] = pad(rows, padding_value=value, padding_side="left" if name in _LEFT else "right")
    return found
