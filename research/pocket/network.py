"""The pocket model's network: a few layers of Qwen3's architecture, whose initial weights copy.

What followed two tokens before is predicted if the two come again. A network as small as ours spends most of
its training on discovering that: an id is made of three-digit tokens, and there are a thousand of them. Here
both steps of it are set up at the start (an induction head: Olsson et al., 2022), and training builds on
them.

Layer 0, heads 0 and 1 attend to the previous token and to the one before that, and write a sketch of each
into dimensions that embeddings leave free. Layer 1, heads 0 to 2 look for the place whose two sketches fit
the present token and its own first sketch, and copy the token there, a third of its dimensions each. One
sketch would do for ids; names are cut into pieces that occur all over a dialogue."""

from collections.abc import Sequence
from typing import Any

import torch
import transformers

from research.pocket.recipe import Size

_COMMON = 0.5
"""The value of one dimension in all embeddings: heads that attend by distance alone read it."""

_SHARPNESS = 3.0
"""Scale of the norms on queries and keys of the first two layers."""

_FAST_PAIRS = 4
"""Pairs of rotary dimensions, the fastest, that tell one token's distance from two."""

_QUIET = 0.02
"""Scale of what all other heads and blocks write at first; it would drown the sketches."""

_REACH = 1000
"""Tokens over which something can be found again."""

_GAIN = 6.0
"""How much louder the copied token is than the present one."""


def _attend(
    module: Any, query: Any, key: Any, value: Any, mask: Any, *, lengths: Sequence[int] = (), **options: Any
) -> tuple[torch.Tensor, None]:
    """Attention of dialogues that are packed in one row without padding.

    Each dialogue attends to itself and to the row's common beginning.

    Args:
        lengths: The length of the beginning, then of each dialogue; empty: the row is one dialogue.
    """
    common, *rest = lengths or (0, query.shape[2])
    attend = torch.nn.functional.scaled_dot_product_attention
    first = [part[:, :, :common] for part in (query, key, value)]
    found = [attend(first[0], first[1], first[2], is_causal=True)] if common else []
    end = common
    for length in rest:
        start, end = end, end + length
        keys, values = (torch.cat([part[:, :, :common], part[:, :, start:end]], 2) for part in (key, value))
        visible = torch.ones(length, common + length, dtype=torch.bool).tril(common) if common else None
        found.append(attend(query[:, :, start:end], keys, values, visible, is_causal=not common))
    return torch.cat(found, 2).transpose(1, 2).contiguous(), None


transformers.AttentionInterface.register("packed", _attend)


def build_network(size: Size, tokenizer: Any) -> Any:
    """A network of at least two layers and four heads that can copy, and nothing else."""
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=size.width,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        head_dim=size.width // size.heads,
        max_position_embeddings=size.context,
        tie_word_embeddings=True,
        initializer_range=0.08,
        # Slow turns: what a head compares is to be found again some hundred tokens later.
        rope_parameters={"rope_type": "default", "rope_theta": 1e7},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    network = transformers.Qwen3ForCausalLM(config)
    network.set_attn_implementation("packed")
    with torch.no_grad():
        _set_up_copying(network)
    return network


def _set_up_copying(network: Any) -> None:
    config = network.config
    wide = config.head_dim
    free, shared = 3 * wide, 3 * wide - 1
    first, second = (network.model.layers[place].self_attn for place in (0, 1))
    base = config.rope_parameters["rope_theta"]
    slow = _slow_dimensions(base, wide)
    # More than half of what a head compares is about the present token.
    widths = (len(slow) - len(slow) * 4 // 9, len(slow) * 4 // 9)
    embeddings = network.model.embed_tokens.weight
    loud = embeddings.std()
    for layer in network.model.layers:
        layer.self_attn.o_proj.weight *= _QUIET
        layer.mlp.down_proj.weight *= _QUIET
    embeddings[:, free:] = 0.0
    embeddings[:, shared] = _COMMON
    for attention in (first, second):
        attention.q_norm.weight.fill_(_SHARPNESS)
        attention.k_norm.weight.fill_(_SHARPNESS)
    sketch = torch.nn.init.orthogonal_(torch.empty(widths[0], shared))
    notes = [slice(free, free + widths[0]), slice(free + widths[0], free + sum(widths))]
    for back, (note, width) in enumerate(zip(notes, widths, strict=True), start=1):
        own = slice((back - 1) * wide, back * wide)
        _attend_back(first, own, base, shared, back)
        first.v_proj.weight[own] = 0.0
        first.v_proj.weight[own, :shared][:width] = sketch[:width]
        first.o_proj.weight[:, own] = 0.0
        first.o_proj.weight[note, own] = loud * torch.eye(wide)[:width]
    for head in range(3):
        own = slice(head * wide, (head + 1) * wide)
        for projection in (second.q_proj, second.k_proj, second.v_proj):
            projection.weight[own] = 0.0
        rows = [head * wide + place for place in slow]
        now, before = rows[: widths[0]], rows[widths[0] :]
        second.q_proj.weight[now, :shared] = sketch
        second.k_proj.weight[now, notes[0]] = torch.eye(widths[0])
        second.q_proj.weight[before, notes[0]] = torch.eye(widths[0])[: widths[1]]
        second.k_proj.weight[before, notes[1]] = torch.eye(widths[1])
        second.v_proj.weight[own, own] = torch.eye(wide)
        second.o_proj.weight[:, own] = 0.0
        second.o_proj.weight[own, own] = _GAIN * loud * torch.eye(wide)


def _slow_dimensions(base: float, wide: int) -> list[int]:
    """Dimensions of a head that turn by less than a radian over `_REACH` tokens."""
    turns = [base ** (-2 * pair / wide) for pair in range(wide // 2)]
    pairs = [pair for pair, turn in enumerate(turns) if turn * _REACH < 1]
    return [*pairs, *(pair + wide // 2 for pair in pairs)]


def _attend_back(attention: Any, own: slice, base: float, shared: int, back: int) -> None:
    """Let a head's queries and keys depend on the distance alone, and fit best `back` tokens back."""
    wide = own.stop - own.start
    query, key = torch.zeros(wide), torch.zeros(wide)
    for pair in range(_FAST_PAIRS):
        angle = torch.tensor(back * base ** (-2 * pair / wide))
        query[pair] = 1.0
        # A key that is turned ahead meets the query at that distance before it.
        key[pair], key[pair + wide // 2] = torch.cos(angle), torch.sin(angle)
    for projection, direction in ((attention.q_proj, query), (attention.k_proj, key)):
        projection.weight[own] *= 0.05
        projection.weight[own, shared] = direction
