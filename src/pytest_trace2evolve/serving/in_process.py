"""A model that is being trained, decoded by the server's own engine.

A copy of the base is kept whose weights are the base's plus what the adapter adds: decoding it costs no more
than the base, where peft's layers would cost a small model more than its own. It is brought up to date when
the adapter has changed; the base itself is never touched, so nothing adds up over the steps.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache

from pytest_trace2evolve.serving.kv_cache import KeysValues


class FoldedModel:
    """The base with an adapter's weights folded in; see `engine.Decoder` for its attributes.

    Args:
        base: The base, before an adapter was put on it.
        ends: Tokens that end an answer.
    """

    batched = True

    def __init__(self, base: Any, ends: frozenset[int]) -> None:
        self._model = copy.deepcopy(base).eval().requires_grad_(False)
        self.ends = ends
        self.device = self._model.device
        self.layers = int(self._model.config.get_text_config(decoder=True).num_hidden_layers)
        self.vocabulary = int(self._model.get_input_embeddings().weight.shape[0])

    def fold(self, adapted: Any) -> None:
        """Take an adapter's weights over, as they are now.

        Args:
            adapted: The `PeftModel`.
        """
        from peft.tuners.lora import LoraLayer

        layers: list[tuple[str, Any]] = [
            pair for pair in adapted.get_base_model().named_modules() if isinstance(pair[1], LoraLayer)
        ]
        here = next(adapted.parameters()).device
        if here != self.device:  # a trainer moves its model to where it trains
            self._model, self.device = self._model.to(here), here
        with torch.no_grad():
            for name, layer in layers:
                added = sum(layer.get_delta_weight(one) for one in layer.active_adapters)
                self._model.get_submodule(name).weight.copy_(layer.get_base_layer().weight + added)

    def past(self, layers: Sequence[KeysValues] | None = None) -> Cache:
        """A cache for a prefill: empty, or with what was kept."""
        return DynamicCache(ddp_cache_data=layers)

    def forward(
        self,
        tokens: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        past: Cache,
        adapters: Sequence[str | None],
    ) -> torch.Tensor:
        """Logits (rows, vocabulary) after the last token of each row; all rows are of the model as folded."""
        with torch.inference_mode():
            found: torch.Tensor = self._model(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=positions,
                cache=past,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
        if torch.isnan(found).any():
            raise RuntimeError("the model gave no numbers")
        return found
