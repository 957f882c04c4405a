"""Computes log-probabilities of rollouts, with the common beginnings of rollouts computed once.

All rollouts of a step begin with the same instructions and tools. The rollouts of a group also begin with the
same conversation, and many of them stay equal for a while, because equal tool calls have equal results. The
beginning of a step is computed once per step, and that of a group once per group. The answers form a tree on
top of these keys and values. One pass covers all nodes of the tree, and each node attends to those above it.

Nothing is approximated. Attention sees the same keys, so values and gradients are those of whole rows, except
for the order of sums.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

MAX_NODES = 1024
"""Maximum number of nodes in a tree of several rollouts, because attention covers all pairs of nodes."""


@dataclass(frozen=True)
class Tree:
    """Rollouts that are computed in one pass, with each shared beginning included once.

    Attributes:
        tokens: The token of each node.
        depths: The number of nodes above each node.
        visible: (nodes, nodes): true if the second node is the first node or one above it.
        paths: The nodes of each rollout from its beginning to its end, by the rollout's number.
    """

    tokens: Sequence[int]
    depths: Sequence[int]
    visible: torch.Tensor
    paths: Mapping[int, Sequence[int]]


def trees_of(rows: Mapping[int, Sequence[int]], max_nodes: int = MAX_NODES) -> Iterator[Tree]:
    """Yield trees that hold each rollout once; `rows` maps a rollout's number to its tokens."""
    part: list[int] = []
    nodes = 0
    # In sorted order, each row shares its longest beginning with the row before it.
    for number in sorted(rows, key=lambda number: tuple(rows[number])):
        new = len(rows[number]) - (_common_length(rows[part[-1]], rows[number]) if part else 0)
        if part and nodes + new > max_nodes:
            yield _tree(rows, part)
            part, nodes, new = [], 0, len(rows[number])
        part.append(number)
        nodes += new
    if part:
        yield _tree(rows, part)


def _tree(rows: Mapping[int, Sequence[int]], ordered: Sequence[int]) -> Tree:
    tokens: list[int] = []
    depths: list[int] = []
    paths: dict[int, list[int]] = {}
    spans: list[tuple[int, list[int]]] = []  # each row's first own node, and the nodes above it
    before: list[int] = []
    for number in ordered:
        row = rows[number]
        shared = _common_length([tokens[node] for node in before], row)
        first = len(tokens)
        tokens += row[shared:]
        depths += range(shared, len(row))
        spans.append((first, before[:shared]))
        before = paths[number] = before[:shared] + list(range(first, len(tokens)))
    visible = torch.ones((len(tokens), len(tokens)), dtype=torch.bool).tril_()
    ends = [first for first, _ in spans[1:]] + [len(tokens)]
    for (first, above), end in zip(spans, ends, strict=True):
        visible[first:end, :first] = False
        visible[first:end, above] = True
    return Tree(tokens, depths, visible, paths)


def _common_length(first: Sequence[int], second: Sequence[int]) -> int:
    shorter = min(len(first), len(second))
    return next((place for place in range(shorter) if first[place] != second[place]), shorter)


@dataclass(frozen=True)
class Rows:
    """Rollouts of one batch, without padding.

    Attributes:
        prompts, answers: Tokens of each row.
        wanted: (rows, width of the answers): true for answer tokens whose log-probabilities are computed.
    """

    prompts: Sequence[tuple[int, ...]]
    answers: Sequence[tuple[int, ...]]
    wanted: torch.Tensor


def unpadded_rows(
    ids: torch.Tensor, mask: torch.Tensor, width: int, wanted: torch.Tensor | None = None
) -> Rows:
    """Return the rows of a padded batch without padding.

    Args:
        ids: (rows, prompt and answer), with prompts padded on the left and answers on the right.
        mask: The same shape, 0 for padding.
        width: The width of the answers.
        wanted: (rows, width), 0 for tokens that are not wanted; None selects all answer tokens.
    """
    held = mask.bool()
    begin = ids.shape[1] - width

    def part(row: int, columns: slice) -> tuple[int, ...]:
        return tuple(ids[row, columns][held[row, columns]].tolist())

    return Rows(
        prompts=[part(row, slice(None, begin)) for row in range(len(ids))],
        answers=[part(row, slice(begin, None)) for row in range(len(ids))],
        wanted=held[:, begin:] if wanted is None else held[:, begin:] & wanted.bool(),
    )


def shared_logps(
    network: Any, rows: Rows, temperature: float, *, entropies: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the log-probabilities of answer tokens, in nats, and the entropies of their distributions.

    Both are (rows, width), with 0 for tokens that are not wanted. Entropies have no gradients. `network` is
    an unwrapped causal model whose layers all use full attention. Its logits are divided by the temperature.
    """
    logps = torch.zeros(rows.wanted.shape, device=rows.wanted.device)
    spread = torch.zeros_like(logps) if entropies else None
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, prompt in enumerate(rows.prompts):
        if bool(rows.wanted[number].any()):
            groups.setdefault(prompt, []).append(number)
    if not groups:
        # The zeros still depend on the weights, so a backward pass gets zero gradients instead of failing.
        trained = [weight.sum() for weight in network.parameters() if weight.requires_grad]
        return logps + 0.0 * torch.stack(trained).sum(), spread
    common = min(_common_length(min(groups), max(groups)), min(map(len, groups)) - 1)
    beginning = _extended(network, next(iter(groups))[:common], None) if common else None
    for prompt, members in groups.items():
        # The prompt's last token is computed with the answers, because it predicts their first token.
        rest = prompt[common:-1]
        past = _extended(network, rest, beginning) if rest else beginning
        inputs = {number: (prompt[-1], *rows.answers[number][:-1]) for number in members}
        for tree in trees_of(inputs):
            hidden = _hidden_states(network, tree, past)
            places, nodes, tokens = _wanted(rows, tree)
            # Rollouts that are still equal use the same node, whose probabilities are computed once.
            used, inverse = torch.unique(torch.tensor(nodes, device=network.device), return_inverse=True)
            table = torch.log_softmax(network.lm_head(hidden[used]).float() / temperature, dim=-1)
            logps = logps.index_put(places, table[inverse, torch.tensor(tokens, device=network.device)])
            if spread is not None:
                constant = table.detach()
                spread[places] = -(constant.exp() * constant).sum(-1)[inverse]
    return logps, spread


def _extended(network: Any, tokens: Sequence[int], past: Any) -> Any:
    """Return the keys and values of `past` extended by those of further tokens."""
    cache = _copy(network, past)
    ids = torch.tensor([list(tokens)], device=network.device)
    network.base_model(input_ids=ids, cache=cache, use_cache=True)
    return cache


def _wanted(rows: Rows, tree: Tree) -> tuple[tuple[torch.Tensor, torch.Tensor], list[int], list[int]]:
    """Return the row and column of each wanted token in a tree, the node that predicts it, and the token."""
    places: list[tuple[int, int]] = []
    nodes: list[int] = []
    tokens: list[int] = []
    for row, path in tree.paths.items():
        for column in rows.wanted[row].nonzero().squeeze(-1).tolist():
            places.append((row, column))
            nodes.append(path[column])
            tokens.append(rows.answers[row][column])
    index = torch.tensor(places, device=rows.wanted.device)
    return (index[:, 0], index[:, 1]), nodes, tokens


def _hidden_states(network: Any, tree: Tree, past: Any) -> torch.Tensor:
    """Return the hidden state of each node: (nodes, width of the model)."""
    device = network.device
    cache = _copy(network, past)
    held = cache.get_seq_length()
    # An additive mask, which all attention implementations with a mask understand.
    hidden = torch.zeros(tree.visible.shape, dtype=network.dtype)
    hidden.masked_fill_(~tree.visible, torch.finfo(network.dtype).min)
    mask = torch.nn.functional.pad(hidden, (held, 0)).to(device)
    states: torch.Tensor = network.base_model(
        input_ids=torch.tensor([list(tree.tokens)], device=device),
        position_ids=held + torch.tensor([list(tree.depths)], device=device),
        attention_mask=mask[None, None],
        cache=cache,
        use_cache=True,
    ).last_hidden_state[0]
    return states


def _copy(network: Any, past: Any) -> Any:
    cache = DynamicCache(config=network.config)
    if past is not None:
        for place, layer in enumerate(past.layers):
            cache.update(layer.keys, layer.values, place)
    return cache


def can_share(config: Any) -> bool:
    """Return whether a model has full attention in all layers and unscaled logits, as sharing requires."""
    text = config.get_text_config(decoder=True)
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    unsupported = (
        *("sliding_window", "attention_chunk_size", "num_kv_shared_layers"),
        *("final_logit_softcapping", "logit_scale", "logits_scaling"),
    )
    return kinds == {"full_attention"} and not any(getattr(text, name, None) for name in unsupported)
