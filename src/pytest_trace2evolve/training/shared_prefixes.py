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

MAX_NODES = 2048
"""Maximum number of nodes in a tree of several rollouts, because attention covers all pairs of nodes."""


@dataclass(frozen=True)
class Tree:
    """Rollouts that are computed in one pass, with each shared beginning included once.

    Attributes:
        tokens: The token of each node.
        depths: The number of nodes above each node.
        visible: Of shape (nodes, nodes): true if the second node is the first node or one above it.
        paths: The nodes of each rollout from its beginning to its end, by the rollout's number.
    """

    tokens: Sequence[int]
    depths: Sequence[int]
    visible: torch.Tensor
    paths: Mapping[int, Sequence[int]]


def build_trees(rows: Mapping[int, Sequence[int]], max_nodes: int = MAX_NODES) -> Iterator[Tree]:
    """Yield trees that contain each rollout once; `rows` maps a rollout's number to its tokens."""
    numbers: list[int] = []
    node_count = 0
    # In sorted order, each row shares its longest beginning with the row before it.
    for number in sorted(rows, key=lambda number: tuple(rows[number])):
        new_node_count = len(rows[number]) - (
            _common_length(rows[numbers[-1]], rows[number]) if numbers else 0
        )
        if numbers and node_count + new_node_count > max_nodes:
            yield _build_tree(rows, numbers)
            numbers, node_count, new_node_count = [], 0, len(rows[number])
        numbers.append(number)
        node_count += new_node_count
    if numbers:
        yield _build_tree(rows, numbers)


def _build_tree(rows: Mapping[int, Sequence[int]], numbers: Sequence[int]) -> Tree:
    tokens: list[int] = []
    depths: list[int] = []
    paths: dict[int, list[int]] = {}
    spans: list[tuple[int, list[int]]] = []  # each row's first own node, and the nodes above it
    previous_path: list[int] = []
    for number in numbers:
        row = rows[number]
        shared_length = _common_length([tokens[node] for node in previous_path], row)
        start = len(tokens)
        tokens += row[shared_length:]
        depths += range(shared_length, len(row))
        spans.append((start, previous_path[:shared_length]))
        previous_path = paths[number] = previous_path[:shared_length] + list(range(start, len(tokens)))
    visible = torch.ones((len(tokens), len(tokens)), dtype=torch.bool).tril_()
    ends = [start for start, _ in spans[1:]] + [len(tokens)]
    for (start, ancestors), end in zip(spans, ends, strict=True):
        visible[start:end, :start] = False
        visible[start:end, ancestors] = True
    return Tree(tokens, depths, visible, paths)


def _common_length(first: Sequence[int], second: Sequence[int]) -> int:
    min_length = min(len(first), len(second))
    return next((index for index in range(min_length) if first[index] != second[index]), min_length)


@dataclass(frozen=True)
class Rows:
    """Rollouts of one batch, without padding.

    Attributes:
        prompts, answers: Tokens of each row.
        selection: Of shape (rows, width of the answers), true for answer tokens whose log-probabilities are
            computed.
    """

    prompts: Sequence[tuple[int, ...]]
    answers: Sequence[tuple[int, ...]]
    selection: torch.Tensor


def unpadded_rows(
    ids: torch.Tensor, mask: torch.Tensor, width: int, selection: torch.Tensor | None = None
) -> Rows:
    """Return the rows of a padded batch without padding.

    Args:
        ids: Tokens of shape (rows, prompt and answer), with prompts padded on the left and answers on the
            right.
        mask: Of the same shape, 0 for padding.
        width: The width of the answers.
        selection: Of shape (rows, width), 0 for tokens that are not selected; None selects all answer tokens.
    """
    is_token = mask.bool()
    answer_start = ids.shape[1] - width

    def unpad(row: int, columns: slice) -> tuple[int, ...]:
        return tuple(ids[row, columns][is_token[row, columns]].tolist())

    return Rows(
        prompts=[unpad(row, slice(None, answer_start)) for row in range(len(ids))],
        answers=[unpad(row, slice(answer_start, None)) for row in range(len(ids))],
        selection=is_token[:, answer_start:]
        if selection is None
        else is_token[:, answer_start:] & selection.bool(),
    )


def shared_logps(
    network: Any, rows: Rows, temperature: float, *, entropies: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the log-probabilities of answer tokens, in nats, and the entropies of their distributions.

    Both have the shape (rows, width), with 0 for tokens that are not selected. Entropies have no gradients.
    `network` is an unwrapped causal model whose layers all use full attention. The logits are divided by the
    temperature.
    """
    logps = torch.zeros(rows.selection.shape, device=rows.selection.device)
    entropy_values = torch.zeros_like(logps) if entropies else None
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, prompt in enumerate(rows.prompts):
        if bool(rows.selection[number].any()):
            groups.setdefault(prompt, []).append(number)
    if not groups:
        # The zeros still depend on the weights, so a backward pass gets zero gradients instead of failing.
        weight_sums = [weight.sum() for weight in network.parameters() if weight.requires_grad]
        return logps + 0.0 * torch.stack(weight_sums).sum(), entropy_values
    common_length = min(_common_length(min(groups), max(groups)), min(map(len, groups)) - 1)
    common_cache = _extend_cache(network, next(iter(groups))[:common_length], None) if common_length else None
    for prompt, members in groups.items():
        # The prompt's last token is computed with the answers, because it predicts their first token.
        prompt_rest = prompt[common_length:-1]
        cache = _extend_cache(network, prompt_rest, common_cache) if prompt_rest else common_cache
        inputs = {number: (prompt[-1], *rows.answers[number][:-1]) for number in members}
        for tree in build_trees(inputs):
            hidden_states = _hidden_states(network, tree, cache)
            positions, nodes, tokens = _predicted_tokens(rows, tree)
            # Rollouts that are still equal use the same node, whose probabilities are computed once.
            used_nodes, inverse = torch.unique(
                torch.tensor(nodes, device=network.device), return_inverse=True
            )
            distributions = torch.log_softmax(
                network.lm_head(hidden_states[used_nodes]).float() / temperature, dim=-1
            )
            logps = logps.index_put(
                positions, distributions[inverse, torch.tensor(tokens, device=network.device)]
            )
            if entropy_values is not None:
                detached_logps = distributions.detach()
                entropy_values[positions] = -(detached_logps.exp() * detached_logps).sum(-1)[inverse]
    return logps, entropy_values


def _extend_cache(network: Any, tokens: Sequence[int], base_cache: Any) -> Any:
    """Return the keys and values of `base_cache` extended by those of further tokens."""
    cache = _copy_cache(network, base_cache)
    ids = torch.tensor([list(tokens)], device=network.device)
    network.base_model(input_ids=ids, cache=cache, use_cache=True)
    return cache


def _predicted_tokens(
    rows: Rows, tree: Tree
) -> tuple[tuple[torch.Tensor, torch.Tensor], list[int], list[int]]:
    """Return each selected token of a tree: its row and column, the node that predicts it, and its id."""
    positions: list[tuple[int, int]] = []
    nodes: list[int] = []
    tokens: list[int] = []
    for row, path in tree.paths.items():
        for column in rows.selection[row].nonzero().squeeze(-1).tolist():
            positions.append((row, column))
            nodes.append(path[column])
            tokens.append(rows.answers[row][column])
    position_tensor = torch.tensor(positions, device=rows.selection.device)
    return (position_tensor[:, 0], position_tensor[:, 1]), nodes, tokens


def _hidden_states(network: Any, tree: Tree, base_cache: Any) -> torch.Tensor:
    """Return the hidden state of each node, of shape (nodes, width of the model)."""
    device = network.device
    cache = _copy_cache(network, base_cache)
    cached_length = cache.get_seq_length()
    # An additive mask, which all attention implementations with a mask understand.
    additive_mask = torch.zeros(tree.visible.shape, dtype=network.dtype)
    additive_mask.masked_fill_(~tree.visible, torch.finfo(network.dtype).min)
    mask = torch.nn.functional.pad(additive_mask, (cached_length, 0)).to(device)
    states: torch.Tensor = network.base_model(
        input_ids=torch.tensor([list(tree.tokens)], device=device),
        position_ids=cached_length + torch.tensor([list(tree.depths)], device=device),
        attention_mask=mask[None, None],
        cache=cache,
        use_cache=True,
    ).last_hidden_state[0]
    return states


def _copy_cache(network: Any, base_cache: Any) -> Any:
    cache = DynamicCache(config=network.config)
    if base_cache is not None:
        for index, layer in enumerate(base_cache.layers):
            cache.update(layer.keys, layer.values, index)
    return cache


def can_share(config: Any) -> bool:
    """Return whether a model has full attention in all layers and unscaled logits, as sharing requires."""
    text_config = config.get_text_config(decoder=True)
    layer_types = set(getattr(text_config, "layer_types", None) or ["full_attention"])
    unsupported_settings = (
        *("sliding_window", "attention_chunk_size", "num_kv_shared_layers"),
        *("final_logit_softcapping", "logit_scale", "logits_scaling"),
    )
    return layer_types == {"full_attention"} and not any(
        getattr(text_config, name, None) for name in unsupported_settings
    )
