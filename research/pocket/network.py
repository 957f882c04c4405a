"""The pocket model's network: Qwen3's architecture, a few layers of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.utils.optional import require
from research.pocket.copying import lay_down_copying

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM


@dataclass(frozen=True)
class Size:
    """How large the network is.

    Attributes:
        width: Of the residual stream.
        layers: Blocks of attention and feed-forward.
        heads: Heads of attention, each `width / heads` wide.
        inner: Width within a feed-forward block.
        context: Tokens of a dialogue at most.
    """

    width: int = 128
    layers: int = 3
    heads: int = 4
    inner: int = 384
    context: int = 4096


def build_network(size: Size, tokenizer: "PreTrainedTokenizerFast") -> "Qwen3ForCausalLM":
    """A network that can copy and nothing else, its weights drawn from torch's own seed."""
    transformers: Any = require("transformers", extra="local")
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
    network: Qwen3ForCausalLM = transformers.Qwen3ForCausalLM(config)
    lay_down_copying(network)
    return network
