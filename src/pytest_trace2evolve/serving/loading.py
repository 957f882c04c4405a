"""Loads causal models and their adapters from folders with transformers, and runs forward passes over rows.

Each row of a pass may have a different adapter.
"""

import logging
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
import transformers
from transformers.cache_utils import Cache, DynamicCache

from pytest_trace2evolve.agents.probe import MAX_TOKENS, pool_states
from pytest_trace2evolve.errors import ConfigError, ModelFolderError
from pytest_trace2evolve.records.adapter import WEIGHTS_NAME
from pytest_trace2evolve.serving.attention import ATTENTION_NAME
from pytest_trace2evolve.serving.folder import (
    AdapterFolder,
    ModelFolder,
    check_adapter_coverage,
    tensor_shapes,
)
from pytest_trace2evolve.serving.kv_cache import KeysValues

BASE_ADAPTER_NAME = "__base__"
"""peft's name for a row without an adapter."""

BATCHABLE_LAYERS = {"full_attention", "sliding_attention"}
"""Kinds of layers that support decoding rows together; other models are decoded row by row."""

BATCHABLE_SAVED_MODULES = (torch.nn.Linear, torch.nn.Embedding)
"""Kinds of modules that an adapter may save whole, because peft can serve them in one batch with the base."""

UNLIMITED_LENGTH = 1 << 20
"""A tokenizer's length limit of at least this size means that it has no limit."""


class Decoder:
    """A causal model as the engine runs it.

    Attributes:
        end_tokens: Tokens that end an answer.
        device: The device that the model runs on.
        can_batch: Whether rows can be decoded together.
        layers: Number of layers that keep keys and values.
        vocabulary: Number of tokens that the model knows, which are 0 to `vocabulary` - 1.
    """

    def __init__(self, model: Any, end_tokens: frozenset[int]) -> None:
        self._model = model.eval().requires_grad_(False)
        self.end_tokens = end_tokens
        self.device: torch.device = model.device
        config = self._config = model.config.get_text_config(decoder=True)
        layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
        shares_layers = getattr(config, "kv_sharing_modes", None) or getattr(
            config, "num_kv_shared_layers", None
        )
        is_stateful = getattr(model, "_is_stateful", False)
        self.can_batch = layer_types <= BATCHABLE_LAYERS and not shares_layers and not is_stateful
        if self.can_batch and self.device.type == "cpu" and config._attn_implementation == "sdpa":
            model.set_attn_implementation(ATTENTION_NAME)
        self.layers = int(config.num_hidden_layers)
        self.vocabulary = int(model.get_input_embeddings().weight.shape[0])
        parameters = signature(model.forward).parameters
        self._takes_positions = "position_ids" in parameters
        self._last_logits = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}

    def make_cache(self, layers: Sequence[KeysValues] | None = None) -> Cache:
        """Return a cache for a prefill; `layers` are its content, (rows, heads, slots, width) each."""
        if not self.can_batch:
            return DynamicCache(config=self._config)
        return DynamicCache(ddp_cache_data=layers)

    def forward(
        self,
        tokens: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        cache: Cache | None,
        adapters: Sequence[str | None],
    ) -> torch.Tensor:
        """Return the logits, (rows, vocabulary), after each row's last token; adds the new tokens to `cache`.

        Args:
            tokens: The new tokens, (rows, new).
            mask: The attention mask, (rows, cached + new), 0 at the empty slots of a row.
            positions: The positions of the new tokens, (rows, new).
            cache: The cache of the earlier tokens.
            adapters: The adapter of each row; None is the base.
        """
        position_arguments = {"position_ids": positions.to(self.device)} if self._takes_positions else {}
        with torch.inference_mode():
            logits: torch.Tensor = self._model(
                input_ids=tokens.to(self.device),
                attention_mask=mask.to(self.device),
                cache=cache,
                use_cache=True,
                **self._last_logits,
                **position_arguments,
            ).logits[:, -1]
        if torch.isnan(logits).any():
            raise RuntimeError("the model returned NaN")
        return logits


class LoadedModel(Decoder):
    """A model and its adapters, loaded from their folders.

    Attributes:
        tokenizer: The model's tokenizer.
        context_length: Maximum tokens of a prompt and its answer together; None if unknown.
        parameters: Number of parameters of the model.
        default_limit: Maximum new tokens if a request sets no limit; None means as many as fit.

    Raises:
        ConfigError: torch cannot use the device.
        ModelFolderError: the model cannot be loaded or returns NaN, or an adapter does not fit it.
    """

    def __init__(
        self,
        folder: ModelFolder,
        adapters: Sequence[AdapterFolder] = (),
        *,
        device: str | None = None,
    ) -> None:
        target_device = _select_device(device)
        self.tokenizer = load_tokenizer(folder)
        model = load_model(folder, "float32" if target_device.type == "cpu" else "auto")
        self._row_adapters: list[str] = []
        self._lock = threading.Lock()  # the engine and a router may run passes at once
        self._peft_names = {adapter.name: f"a{number}" for number, adapter in enumerate(adapters)}
        if adapters:
            self._add_adapters(model, adapters)
        settings = model.generation_config
        super().__init__(model.to(target_device), find_end_tokens(settings, self.tokenizer))
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.context_length = _context_length(self._config, self.tokenizer)
        limit = getattr(settings, "max_new_tokens", None)
        self.default_limit = limit if isinstance(limit, int) and limit > 0 else None
        self._probe(str(folder.path), None)
        for adapter in adapters:
            self._probe(f"adapter {adapter.name!r}", adapter.name)

    def forward(
        self,
        tokens: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        cache: Cache | None,
        adapters: Sequence[str | None],
    ) -> torch.Tensor:
        """See `Decoder.forward`."""
        with self._lock:
            self._row_adapters[:] = [
                BASE_ADAPTER_NAME if name is None else self._peft_names[name] for name in adapters
            ]
            return super().forward(tokens, mask, positions, cache, adapters)

    def read_states(self, tokens: Sequence[int]) -> torch.Tensor:
        """Return the features of a text for the router's probe, from the base's hidden states."""
        # Large models put most of their attention on the first token, so it is one of no text.
        ids = torch.tensor([[min(self.end_tokens, default=0), *tokens[-MAX_TOKENS:]]], device=self.device)
        with self._lock, torch.inference_mode():
            self._row_adapters[:] = [BASE_ADAPTER_NAME]
            output = self._model(ids, output_hidden_states=True, use_cache=False, **self._last_logits)
            return pool_states([layer[0, min(1, len(tokens)) :] for layer in output.hidden_states])

    def _add_adapters(self, model: Any, adapters: Sequence[AdapterFolder]) -> None:
        from peft import PeftModel
        from peft.tuners.lora import LoraLayer
        from peft.utils.other import AuxiliaryTrainingWrapper

        peft_model: Any = None
        for adapter in adapters:
            name = self._peft_names[adapter.name]
            shapes = tensor_shapes(adapter.path / WEIGHTS_NAME)
            with silenced_libraries(), convert_failures(f"adapter {adapter.name!r}: {adapter.path}"):
                if peft_model is None:
                    peft_model = PeftModel.from_pretrained(model, adapter.path, adapter_name=name)
                else:
                    peft_model.load_adapter(adapter.path, name)
                check_adapter_coverage(peft_model, name, shapes, adapter)
                for layer, module in model.named_modules():
                    if isinstance(module, AuxiliaryTrainingWrapper) and not isinstance(
                        module.original_module, BATCHABLE_SAVED_MODULES
                    ):
                        raise ModelFolderError(
                            f"adapter {adapter.name!r}: {adapter.path}: saves the module {layer!r} whole, "
                            f"a {type(module.original_module).__name__}, which cannot be served in one batch "
                            "with the base; train it without modules_to_save, or merge it into its base"
                        )
        adapter_types = (LoraLayer, AuxiliaryTrainingWrapper)
        adapter_modules: list[Any] = [
            module for module in model.modules() if isinstance(module, adapter_types)
        ]
        for module in adapter_modules:
            # Registered once, unlike in peft: for small models, a registration costs more than the pass.
            module.register_forward_pre_hook(self._add_adapter_names, with_kwargs=True)

    def _add_adapter_names(
        self, module: Any, args: Any, kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        return args, {**kwargs, "adapter_names": self._row_adapters}

    def _probe(self, label: str, adapter: str | None) -> None:
        """Run two passes over a row to detect at once a model that cannot be served."""
        row, ones = torch.tensor([[min(self.end_tokens, default=0), 0]]), torch.ones((1, 3), dtype=torch.long)
        with silenced_libraries(), convert_failures(label):
            cache = self.make_cache()
            self.forward(row, ones[:, :2], torch.tensor([[0, 1]]), cache, [adapter])
            self.forward(row[:, 1:], ones, torch.tensor([[2]]), cache, [adapter])


def load_model(folder: ModelFolder, dtype: str) -> Any:
    """Load a model with all of its weights; `dtype` is the torch name of their type, or `auto`.

    Raises:
        ModelFolderError: the model cannot be loaded, or lacks weights.
    """
    with silenced_libraries(), convert_failures(str(folder.path)):
        result: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder.path,
            dtype=dtype,
            trust_remote_code=False,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    model, loading_info = result
    missing = sorted(loading_info["missing_keys"])
    if missing:
        more_text = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelFolderError(
            f"{folder.path}: its weights lack {missing[0]!r}{more_text}: they do not match its config.json"
        )
    return model


def load_tokenizer(folder: ModelFolder) -> Any:
    """Load a model's tokenizer.

    Raises:
        ModelFolderError: the tokenizer cannot be loaded, or has no chat template.
    """
    with silenced_libraries(), convert_failures(f"{folder.path}: its tokenizer"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder.path, trust_remote_code=False, local_files_only=True
        )
    if not tokenizer.chat_template:
        raise ModelFolderError(f"{folder.path}: its tokenizer has no chat template")
    return tokenizer


@contextmanager
def convert_failures(label: str) -> Iterator[None]:
    """Convert a failure to load or run a model to a one-line `ModelFolderError` that starts with `label`."""
    try:
        yield
    except ModelFolderError:
        raise
    except Exception as error:
        cause = " ".join(str(error).split())[:300]
        raise ModelFolderError(f"{label}: cannot be loaded: {type(error).__name__}: {cause}") from None


@contextmanager
def silenced_libraries() -> Iterator[None]:
    """Silence the libraries' progress bars and advice."""
    verbosity = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # untyped
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.utils.logging.set_verbosity(verbosity)


def _select_device(requested: str | None) -> torch.device:
    name = requested or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        cause = str(error).strip().partition("\n")[0][:200]
        raise ConfigError(
            f"device {name}: torch cannot use this device ({cause}); choose a different device, or set "
            "CUDA_VISIBLE_DEVICES= to use the CPU"
        ) from None
    return device


def _context_length(config: Any, tokenizer: Any) -> int | None:
    model_limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    limits = [
        limit
        for limit in (model_limit, tokenizer.model_max_length)
        if isinstance(limit, int) and 0 < limit < UNLIMITED_LENGTH
    ]
    return min(limits, default=None)


def find_end_tokens(settings: Any, tokenizer: Any) -> frozenset[int]:
    tokens = getattr(settings, "eos_token_id", None)
    tokens = tokens if isinstance(tokens, list) else [tokens]
    return frozenset(int(token) for token in (*tokens, tokenizer.eos_token_id) if token is not None)
