"""Weights to begin with that copy: what followed two tokens before is foreseen where the two come again.

A network as small as ours spends most of its training on finding that out: an id is made of three-digit
tokens, and there are a thousand of them to tell apart. Here the two steps of it are laid down at the start
(an induction head: Olsson et al., 2022), and training builds on them.

Layer 0, heads 0 and 1 look at the token before and at the one before that, and note a sketch of each in
dimensions that embeddings leave free. Layer 1, heads 0 to 2 look for the place whose two notes fit the
present token and its own first note, and copy the token that stands there, a third of its dimensions each.
One note would do for ids; names are cut into pieces that occur all over a dialogue.
"""

from typing import Any

from pytest_trace2evolve.utils.optional import require

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
    base = config.rope_parameters["rope_theta"]
    slow = _slow(base, wide)
    # Of what a head compares, the better half is about the present token.
    widths = (len(slow) - len(slow) * 4 // 9, len(slow) * 4 // 9)
    with torch.no_grad():
        embeddings = network.model.embed_tokens.weight
        loud = embeddings.std()
        for layer in network.model.layers:
            # What other parts write at first is noise, and would drown the notes.
            layer.self_attn.o_proj.weight *= _HUSH
            layer.mlp.down_proj.weight *= _HUSH
        embeddings[:, free:] = 0.0
        embeddings[:, shared] = _COMMON
        for attention, sharp in ((first, _SHARP_BEFORE), (second, _SHARP_MATCH)):
            attention.q_norm.weight.fill_(sharp)
            attention.k_norm.weight.fill_(sharp)
        sketch = torch.nn.init.orthogonal_(torch.empty(widths[0], shared))
        notes = [slice(free, free + widths[0]), slice(free + widths[0], free + sum(widths))]
        for back, (note, width) in enumerate(zip(notes, widths, strict=True), start=1):
            own = slice((back - 1) * wide, back * wide)
            _look_back(first, own, base, shared, back)
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


def _slow(base: float, wide: int) -> list[int]:
    """Dimensions of a head that turn by less than a radian over `_REACH` tokens: what fits, fits anywhere."""
    turns = [base ** (-2 * pair / wide) for pair in range(wide // 2)]
    pairs = [pair for pair, turn in enumerate(turns) if turn * _REACH < 1]
    return [*pairs, *(pair + wide // 2 for pair in pairs)]


def _look_back(attention: Any, own: slice, base: float, shared: int, back: int) -> None:
    """Queries and keys of a head that depend on the distance alone, and fit best `back` tokens back."""
    torch: Any = require("torch", extra="local")
    wide = own.stop - own.start
    query, key = torch.zeros(wide), torch.zeros(wide)
    for pair in range(_FAST):
        angle = torch.tensor(back * base ** (-2 * pair / wide))
        query[pair] = 1.0
        # A key that is turned ahead meets the query where it stands that far before it.
        key[pair], key[pair + wide // 2] = torch.cos(angle), torch.sin(angle)
    for projection, direction in ((attention.q_proj, query), (attention.k_proj, key)):
        projection.weight[own] *= 0.05
        projection.weight[own, shared] = direction
