"""A model and its adapters in memory, and one forward pass over rows that may each have another adapter."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
import transformers
from transformers.cache_utils import Cache, DynamicCache

from pytest_trace2evolve.errors import ConfigError, ModelFolderError
from pytest_trace2evolve.records.adapter import ADAPTER_WEIGHTS
from pytest_trace2evolve.serving.folder import AdapterFolder, ModelFolder, require_covered, require_sound
from pytest_trace2evolve.serving.kv_cache import KeysValues

BASE = "__base__"
"""What peft calls a row without an adapter."""

_BATCHED = {"full_attention", "sliding_attention"}
"""Kinds of layers whose rows can be decoded side by side; models with others are decoded row by row."""

_PLENTY = 1 << 20
"""Tokenizers without a limit say a number beyond this."""


class LoadedModel:
    """A causal model with its adapters, in memory.

    Attributes:
        device: Where it runs.
        context: Tokens that fit it, prompt and answer together; None where nothing says.
        batched: Whether rows can be decoded side by side.
        parameters: How many numbers it has.
        layers: How many layers keep keys and values.
        ends: Tokens that end an answer.
        most: New tokens of an answer that names no limit; None: as many as fit.

    Raises:
        ConfigError: the device is none that torch can use.
        ModelFolderError: it cannot be loaded, an adapter does not fit it, or it gives no numbers.
    """

    def __init__(
        self,
        folder: ModelFolder,
        adapters: Sequence[AdapterFolder] = (),
        *,
        device: str | None = None,
        dtype: str | None = None,
    ) -> None:
        self.device = _device(device)
        self.tokenizer = load_tokenizer(folder)
        self._model = _model(folder, dtype or ("float32" if self.device.type == "cpu" else "auto"))
        self._names: list[str] = []
        self._places = {one.name: f"a{number}" for number, one in enumerate(adapters)}
        if adapters:
            self._add(folder, adapters)
        self._model.eval().requires_grad_(False).to(self.device)
        taken = signature(self._model.forward).parameters
        self._positions = "position_ids" in taken
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in taken else {}
        config = self._model.config.get_text_config(decoder=True)
        self._config = config
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        shared = getattr(config, "kv_sharing_modes", None) or getattr(config, "num_kv_shared_layers", None)
        stateful = getattr(self._model, "_is_stateful", False)
        self.batched = kinds <= _BATCHED and not shared and not stateful
        self.parameters = sum(one.numel() for one in self._model.parameters())
        self.layers = int(config.num_hidden_layers)
        self.vocabulary = int(self._model.get_input_embeddings().weight.shape[0])
        self.context = _context(config, self.tokenizer)
        self.ends = _ends(self._model.generation_config, self.tokenizer)
        told = getattr(self._model.generation_config, "max_new_tokens", None)
        self.most = told if isinstance(told, int) and told > 0 else None
        self._probe(folder, adapters)

    def past(self, layers: Sequence[KeysValues] | None = None) -> Cache:
        """A cache for a prefill: empty, or with what was kept, (rows, heads, slots, width) a layer."""
        if not self.batched:
            return DynamicCache(config=self._config)
        return DynamicCache(ddp_cache_data=layers)

    def forward(
        self,
        tokens: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        past: Cache,
        adapters: Sequence[str | None],
    ) -> torch.Tensor:
        """Logits (rows, vocabulary) after the last token of each row; `past` takes the new tokens in.

        Args:
            tokens: (rows, new).
            mask: (rows, held and new), 0 where a row has nothing.
            positions: (rows, new).
            adapters: Each row's; None is the base.
        """
        further: dict[str, Any] = {"position_ids": positions} if self._positions else {}
        self._names[:] = [BASE if name is None else self._places[name] for name in adapters]
        with torch.inference_mode():
            logits = self._model(
                input_ids=tokens,
                attention_mask=mask,
                cache=past,
                use_cache=True,
                **self._last_only,
                **further,
            ).logits[:, -1]
        if torch.isnan(logits).any():
            raise RuntimeError("the model gave no numbers")
        found: torch.Tensor = logits
        return found

    def _add(self, folder: ModelFolder, adapters: Sequence[AdapterFolder]) -> None:
        """Load all adapters; from now on each row names its own."""
        from peft import PeftModel
        from peft.tuners.lora import LoraLayer
        from peft.utils.other import AuxiliaryTrainingWrapper

        wrapped: Any = None
        for one in adapters:
            place = self._places[one.name]
            _refuse_other_layers(self._model, one, folder)
            with _quiet(), _told(f"adapter {one.name!r}: {one.path}"):
                if wrapped is None:
                    wrapped = PeftModel.from_pretrained(self._model, one.path, adapter_name=place)
                else:
                    wrapped.load_adapter(one.path, place)
                require_covered(wrapped, place, require_sound(one.path / ADAPTER_WEIGHTS), one.name, one.path)
        kinds = (LoraLayer, AuxiliaryTrainingWrapper)
        adapted: list[Any] = [module for module in self._model.modules() if isinstance(module, kinds)]
        for module in adapted:
            # Once, and not at each pass as peft does it: at small sizes that costs more than the pass.
            module.register_forward_pre_hook(self._name_rows, with_kwargs=True)

    def _name_rows(self, module: Any, given: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return given, {**named, "adapter_names": self._names}

    def _probe(self, folder: ModelFolder, adapters: Sequence[AdapterFolder]) -> None:
        """Two passes over a row of each adapter, so that a model that cannot do it is found out at once."""
        names = [None, *(one.name for one in adapters)]
        for name in names:
            row = torch.tensor([[min(self.ends, default=0), 0]], device=self.device)
            ones = torch.ones((1, 3), dtype=torch.long, device=self.device)
            where = f"{folder.path}" if name is None else f"adapter {name!r}"
            with _quiet(), _told(where):
                past = self.past()
                self.forward(row, ones[:, :2], torch.tensor([[0, 1]], device=self.device), past, [name])
                self.forward(row[:, 1:], ones, torch.tensor([[2]], device=self.device), past, [name])


@contextmanager
def _told(where: str) -> Iterator[None]:
    """What goes wrong inside, as one line that says where."""
    try:
        yield
    except ModelFolderError:
        raise
    except Exception as error:
        told = " ".join(str(error).split())[:300]
        raise ModelFolderError(f"{where}: cannot be served: {type(error).__name__}: {told}") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Advice for those who train models is none for those who serve them."""
    before = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # theirs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.utils.logging.set_verbosity(before)


def _device(chosen: str | None) -> torch.device:
    """The device of that name; without a name CUDA's, if there is one."""
    name = chosen or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        told = str(error).strip().partition("\n")[0][:200]
        # Only `trace2evolve serve` takes a device: everything else that loads a model names none.
        if chosen is None:
            raise ConfigError(
                f"device {name}: torch cannot use it here ({told}); set CUDA_VISIBLE_DEVICES= to use the CPU"
            ) from None
        raise ConfigError(
            f"--device {name}: torch cannot use it here ({told}): choose another, such as cpu"
        ) from None
    return device


def load_tokenizer(folder: ModelFolder) -> Any:
    """A model's tokenizer.

    Raises:
        ModelFolderError: it cannot be loaded, or has no chat template.
    """
    with _quiet(), _told(f"{folder.path}: its tokenizer"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder.path, trust_remote_code=False, local_files_only=True
        )
    if not tokenizer.chat_template:
        raise ModelFolderError(f"{folder.path}: its tokenizer has no chat template")
    return tokenizer


def _model(folder: ModelFolder, dtype: str) -> Any:
    with _quiet(), _told(str(folder.path)):
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder.path,
            dtype=dtype,
            trust_remote_code=False,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    model, report = loaded
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelFolderError(
            f"{folder.path}: its weights lack {missing[0]!r}"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + ": they belong to another config.json"
        )
    return model


def _refuse_other_layers(model: Any, adapter: AdapterFolder, folder: ModelFolder) -> None:
    """See that the layers which an adapter changes are there.

    Raises:
        ModelFolderError: one is not.
    """
    from safetensors import safe_open

    names = {name for name, _ in model.named_modules()}
    with safe_open(adapter.path / ADAPTER_WEIGHTS, framework="pt") as file:
        for key in sorted(file.keys()):
            name, kind, _ = key.removeprefix("base_model.model.").partition(".lora_")
            if kind and name not in names:
                raise ModelFolderError(
                    f"adapter {adapter.name!r}: {adapter.path} was made for another base than {folder.path}, "
                    f"which has no layer {name!r}"
                )


def _context(config: Any, tokenizer: Any) -> int | None:
    told = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    limits = [one for one in (told, tokenizer.model_max_length) if isinstance(one, int) and 0 < one < _PLENTY]
    return min(limits, default=None)


def ends_of(folder: ModelFolder, tokenizer: Any) -> frozenset[int]:
    """Tokens that end an answer, without loading the model.

    Raises:
        ModelFolderError: its generation settings cannot be read.
    """
    with _quiet(), _told(str(folder.path)):
        if (folder.path / "generation_config.json").exists():
            told = transformers.GenerationConfig.from_pretrained(folder.path)
        else:
            config = transformers.AutoConfig.from_pretrained(folder.path, trust_remote_code=False)
            told = transformers.GenerationConfig.from_model_config(config)
    return _ends(told, tokenizer)


def _ends(settings: Any, tokenizer: Any) -> frozenset[int]:
    told = getattr(settings, "eos_token_id", None)
    own = told if isinstance(told, list) else [told]
    return frozenset(int(one) for one in (*own, tokenizer.eos_token_id) if one is not None)
