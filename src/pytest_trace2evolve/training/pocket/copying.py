"""Weights to begin with that copy: what followed a token before is foreseen where the token comes again.

A network as small as ours spends most of its training on finding that out: an id is made of three-digit
tokens, and there are a thousand of them to tell apart. Here the two steps of it are laid down at the start
(an induction head: Olsson et al., 2022), and training builds on them.

Layer 0, head 0 looks at the token before and notes a sketch of it in dimensions that embeddings leave free.
Layer 1, heads 0 to 2 look for the place whose note fits the present token, and copy the token that stands
there, a third of its dimensions each.
"""

from typing import Any

from pytest_trace2evolve._optional import require

_COMMON = 0.5
"""What all embeddings share in one dimension: a head that attends by distance alone reads this."""

_SHARP_BEFORE, _SHARP_MATCH = 3.0, 3.0
"""Scales of the norms on queries and keys: how sharply the first two layers attend."""

_FAST = 4
"""Pairs of rotary dimensions, the fastest, that tell one token's distance from two."""

_HUSH = 0.02
"""How quietly all other heads and blocks begin."""

_REACH = 1000
"""Tokens over which something can be found again."""

_GAIN = 6.0
"""How much louder the copied token is than the present one."""


def lay_down_copying(network: Any) -> None:
    """Overwrite a few heads of the first two layers, and the embeddings' free dimensions.

    Args:
        network: Of Qwen3's architecture, with random weights.

    Raises:
        ValueError: the network has fewer than two layers or four heads.
    """
    torch: Any = require("torch", extra="local")
    config = network.config
    wide = config.head_dim
    if config.num_hidden_layers < 2 or config.num_attention_heads < 4 or config.hidden_size < 4 * wide:
        raise ValueError("copying takes two layers and four heads whose widths add up to the network's")
    free, shared = 3 * wide, 3 * wide - 1
    first, second = (network.model.layers[place].self_attn for place in (0, 1))
    slow = _slow(config.rope_parameters["rope_theta"], wide)
    noted = len(slow)
    with torch.no_grad():
        embeddings = network.model.embed_tokens.weight
        loud = embeddings.std()
        for layer in network.model.layers:
            # What other parts write at first is noise, and would drown the notes.
            layer.self_attn.o_proj.weight *= _HUSH
            layer.mlp.down_proj.weight *= _HUSH
        embeddings[:, free:] = 0.0
        embeddings[:, shared] = _COMMON
        sketch = torch.nn.init.orthogonal_(torch.empty(noted, shared))
        _look_before(first, wide, shared)
        first.v_proj.weight[:wide] = 0.0
        first.v_proj.weight[:noted, :shared] = sketch
        first.o_proj.weight[free : free + noted, :wide] = loud * torch.eye(wide)[:noted]
        for attention, sharp in ((first, _SHARP_BEFORE), (second, _SHARP_MATCH)):
            attention.q_norm.weight.fill_(sharp)
            attention.k_norm.weight.fill_(sharp)
        for head in range(3):
            own = slice(head * wide, (head + 1) * wide)
            for projection in (second.q_proj, second.k_proj, second.v_proj):
                projection.weight[own] = 0.0
            rows = [head * wide + place for place in slow]
            second.q_proj.weight[rows, :shared] = sketch
            second.k_proj.weight[rows, free : free + noted] = torch.eye(noted)
            second.v_proj.weight[own, own] = torch.eye(wide)
            second.o_proj.weight[:, own] = 0.0
            second.o_proj.weight[own, own] = _GAIN * loud * torch.eye(wide)


def _slow(base: float, wide: int) -> list[int]:
    """Dimensions of a head that turn by less than a radian over `_REACH` tokens: what fits, fits anywhere."""
    turns = [base ** (-2 * pair / wide) for pair in range(wide // 2)]
    pairs = [pair for pair, turn in enumerate(turns) if turn * _REACH < 1]
    return [*pairs, *(pair + wide // 2 for pair in pairs)]


def _look_before(attention: Any, wide: int, shared: int) -> None:
    """Queries and keys that depend on the distance alone, and fit best at one token's."""
    torch: Any = require("torch", extra="local")
    base = attention.config.rope_parameters["rope_theta"]
    query, key = torch.zeros(wide), torch.zeros(wide)
    for pair in range(_FAST):
        angle = torch.tensor(base ** (-2 * pair / wide))
        query[pair] = 1.0
        # A key turned ahead by one position meets the query where it stands one before it.
        key[pair], key[pair + wide // 2] = torch.cos(angle), torch.sin(angle)
    for projection, direction in ((attention.q_proj, query), (attention.k_proj, key)):
        projection.weight[:wide] *= 0.05
        projection.weight[:wide, shared] = direction
