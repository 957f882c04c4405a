"""Rollouts of a group as a tree: what several begin with alike stands in it once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

MOST = 1024
"""Nodes of one tree at most, where it holds more than one rollout: attention goes over all pairs of them."""


@dataclass(frozen=True)
class Tree:
    """Rollouts that are read in one pass.

    Attributes:
        tokens: Of each node.
        depths: How many nodes stand above each.
        visible: (nodes, nodes): whether the second is the first or above it.
        paths: The nodes of each rollout from its beginning to its end, by the rollout's number.
    """

    tokens: Sequence[int]
    depths: Sequence[int]
    visible: torch.Tensor
    paths: Mapping[int, Sequence[int]]


def trees_of(rows: Mapping[int, Sequence[int]], most: int = MOST) -> Iterator[Tree]:
    """Trees that hold all rollouts, each in one of them.

    Args:
        rows: The tokens of each rollout, by its number.
        most: Nodes of a tree with more than one rollout.
    """
    part: list[int] = []
    nodes = 0
    # In this order each row begins most like the one before it.
    for number in sorted(rows, key=lambda one: tuple(rows[one])):
        fresh = len(rows[number]) - (_alike(rows[part[-1]], rows[number]) if part else 0)
        if part and nodes + fresh > most:
            yield _tree(rows, part)
            part, nodes, fresh = [], 0, len(rows[number])
        part.append(number)
        nodes += fresh
    if part:
        yield _tree(rows, part)


def _tree(rows: Mapping[int, Sequence[int]], ordered: Sequence[int]) -> Tree:
    tokens: list[int] = []
    depths: list[int] = []
    paths: dict[int, list[int]] = {}
    spans: list[tuple[int, list[int]]] = []
    before: list[int] = []
    for number in ordered:
        row = rows[number]
        shared = _alike([tokens[node] for node in before], row)
        first = len(tokens)
        tokens += row[shared:]
        depths += range(shared, len(row))
        spans.append((first, before[:shared]))
        before = paths[number] = before[:shared] + list(range(first, len(tokens)))
    # A node sees those before it in its own span, and what its span goes on from.
    visible = torch.ones((len(tokens), len(tokens)), dtype=torch.bool).tril_()
    ends = [first for first, _ in spans[1:]] + [len(tokens)]
    for (first, above), end in zip(spans, ends, strict=True):
        visible[first:end, :first] = False
        visible[first:end, above] = True
    return Tree(tokens, depths, visible, paths)


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two rows begin with alike."""
    shorter = min(len(one), len(other))
    return next((place for place in range(shorter) if one[place] != other[place]), shorter)
