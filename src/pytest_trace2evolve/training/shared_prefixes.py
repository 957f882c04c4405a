"""Log-probabilities of rollouts that begin alike, their common beginnings read once.

All rollouts of a step begin with the same instructions and tools, those of a group with the same
conversation; and many rollouts of a group go on alike for a while, since one tool call has one result. The
first is read once a step, the second once a group, and answers as a tree on top of their keys and values: a
pass over all its nodes side by side, each of which attends to those above it. No approximation: attention
sees the same keys, so values and gradients are those of whole rows, but for the order of sums.

Rollouts of a group as a tree: what several begin with alike stands in it once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

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
        fresh = len(rows[number]) - (_alike_tree(rows[part[-1]], rows[number]) if part else 0)
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
        shared = _alike_tree([tokens[node] for node in before], row)
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


def _alike_tree(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two rows begin with alike."""
    shorter = min(len(one), len(other))
    return next((place for place in range(shorter) if one[place] != other[place]), shorter)


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
    beginning = _read(network, next(iter(groups))[:common], None) if common else None
    for prompt, members in groups.items():
        # The prompt's last token is read with the answers: it foresees their first.
        middle = _read(network, prompt[common:-1], beginning) if len(prompt) - 1 > common else beginning
        begun = {one: (prompt[-1], *rows.answers[one][:-1]) for one in members}
        for tree in trees_of(begun):
            hidden = _tails(network, tree, middle)
            picked, nodes, tokens = _asked(rows, tree)
            # Rollouts that are still alike ask the same node, and its probabilities are worked out once.
            own, turned = torch.unique(torch.tensor(nodes, device=network.device), return_inverse=True)
            table = torch.log_softmax(network.lm_head(hidden[own]).float() / temperature, dim=-1)
            logps = logps.index_put(picked, table[turned, torch.tensor(tokens, device=network.device)])
            if spread is not None:
                still = table.detach()
                spread[picked] = -(still.exp() * still).sum(-1)[turned]
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


def _read(network: Any, tokens: Sequence[int], past: Any) -> Any:
    """The keys and values of what was read before and of these tokens."""
    cache = _copied(network, past)
    ids = torch.tensor([list(tokens)], device=network.device)
    network.base_model(input_ids=ids, cache=cache, use_cache=True)
    return cache


def _asked(rows: Rows, tree: Tree) -> tuple[tuple[torch.Tensor, torch.Tensor], list[int], list[int]]:
    """What is asked about a tree's rollouts: row and column, the node that foresees it, and its token."""
    places: list[tuple[int, int]] = []
    nodes: list[int] = []
    tokens: list[int] = []
    for row, path in tree.paths.items():
        for column in rows.wanted[row].nonzero().squeeze(-1).tolist():
            places.append((row, column))
            nodes.append(path[column])
            tokens.append(rows.answers[row][column])
    picked = torch.tensor(places, device=rows.wanted.device)
    return (picked[:, 0], picked[:, 1]), nodes, tokens


def _tails(network: Any, tree: Tree, past: Any) -> torch.Tensor:
    """(nodes, width of the model): what foresees the token behind each node of a tree."""
    device = network.device
    cache = _copied(network, past)
    held = cache.get_seq_length()
    # As numbers that are added, which all attentions with a mask understand.
    hidden = torch.zeros(tree.visible.shape, dtype=network.dtype)
    hidden.masked_fill_(~tree.visible, torch.finfo(network.dtype).min)
    mask = torch.nn.functional.pad(hidden, (held, 0)).to(device)
    found: torch.Tensor = network.base_model(
        input_ids=torch.tensor([list(tree.tokens)], device=device),
        position_ids=held + torch.tensor([list(tree.depths)], device=device),
        attention_mask=mask[None, None],
        cache=cache,
        use_cache=True,
    ).last_hidden_state[0]
    return found


def _copied(network: Any, past: Any) -> Any:
    """A cache of its own that holds what another holds."""
    cache = DynamicCache(config=network.config)
    if past is not None:
        for place, layer in enumerate(past.layers):
            cache.update(layer.keys, layer.values, place)
    return cache


def can_share(config: Any) -> bool:
    """Whether all layers of a model attend to everything before, as reading beginnings once takes."""
    text = config.get_text_config(decoder=True)
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    scaled = any(
        getattr(text, name, None) for name in ("final_logit_softcapping", "logit_scale", "logits_scaling")
    )
    near = any(
        getattr(text, name, None)
        for name in ("sliding_window", "attention_chunk_size", "num_kv_shared_layers")
    )
    return kinds == {"full_attention"} and not near and not scaled
