"""Adapters whose file is not what their configuration says: rejected by name, never served in part."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from pytest_trace2evolve.errors import ModelFolderError
from pytest_trace2evolve.serving.folder import read_adapter, read_model
from pytest_trace2evolve.serving.loading import LoadedModel

Tensors = dict[str, torch.Tensor]
PREFIX = "base_model.model."


@pytest.fixture
def adapter(models: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(models / "one", tmp_path / "one"))


def load(models: Path, *folders: Path) -> LoadedModel:
    base = read_model(models / "base")
    adapters = [read_adapter(f"x{place}", folder, base) for place, folder in enumerate(folders)]
    return LoadedModel(base, adapters, device="cpu")


def message(models: Path, *folders: Path) -> str:
    with pytest.raises(ModelFolderError) as caught:
        load(models, *folders)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 2_000
    return text


def change(folder: Path, edit: Callable[[Tensors], object] = lambda tensors: None, **settings: Any) -> None:
    """Edit an adapter's tensors and its configuration."""
    weights = folder / "adapter_model.safetensors"
    tensors = load_file(weights)
    edit(tensors)
    save_file({name: one.contiguous() for name, one in tensors.items()}, weights)
    config = folder / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **settings}))


def first(tensors: Tensors, part: str) -> str:
    return min(name for name in tensors if part in name)


def without(part: str) -> Callable[[Tensors], object]:
    """Leave out every tensor with this part in its name."""

    def edit(tensors: Tensors) -> None:
        for name in [name for name in tensors if part in name]:
            del tensors[name]

    return edit


def reshape(part: str, axis: int) -> Callable[[Tensors], object]:
    """Cut a tensor along an axis."""

    def edit(tensors: Tensors) -> None:
        name = first(tensors, part)
        tensors[name] = tensors[name].narrow(axis, 0, 2).clone()

    return edit


def add(name: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: torch.ones(2, 2)})


def overwrite_the_base(tensors: Tensors) -> None:
    """A weight of the base itself: the library would change it for everybody."""
    tensors[f"{PREFIX}model.layers.0.self_attn.q_proj.base_layer.weight"] = torch.ones(32, 32)


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (without("layers.0."), "lacks 'base_model.model.model.layers.0."),
        (without("q_proj"), "q_proj.lora_A.weight' and "),
        (without("lora_A"), "lora_A.weight' and "),
        (without("lora_B"), "lora_B.weight' and "),
        (lambda tensors: tensors.pop(first(tensors, "q_proj.lora_B")), "q_proj.lora_B.weight', which its"),
        (lambda tensors: tensors.pop(first(tensors, "q_proj.lora_A")), "q_proj.lora_A.weight', which its"),
        (lambda tensors: tensors.clear(), "lacks 'base_model"),
        (overwrite_the_base, "base_layer.weight', base weights, which peft stores with an adapter of"),
        (add(f"{PREFIX}lm_head.weight"), "contains 'base_model.model.lm_head.weight', base weights"),
        (add("unknown"), "contains 'unknown', which"),
        (reshape("q_proj.lora_A", 0), "size mismatch"),
        (reshape("q_proj.lora_B", 1), "size mismatch"),
        (reshape("q_proj.lora_B", 0), "was made for a different base"),
    ],
)
def test_tensors_that_the_settings_do_not_describe(
    models: Path, adapter: Path, edit: Callable[[Tensors], object], expected: str
) -> None:
    change(adapter, edit)
    text = message(models, adapter)
    assert text.startswith("adapter 'x0'")
    assert expected in text


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"r": 8}, "size mismatch"),
        ({"rank_pattern": {"q_proj": 2}}, "size mismatch"),
        ({"rank_pattern": {"z_proj": 2}}, "rank_pattern names 'z_proj', but the base has no such layer"),
        ({"alpha_pattern": {"z_proj": 2}}, "alpha_pattern names 'z_proj'"),
        ({"target_modules": ["q_proj"]}, "which its adapter_config.json does not name"),
        ({"use_dora": True}, "lora_magnitude_vector' and "),
        ({"modules_to_save": ["lm_head"]}, "base_model.model.lm_head.weight"),
    ],
    ids=str,
)
def test_settings_that_the_tensors_do_not_fit(
    models: Path, adapter: Path, settings: dict[str, Any], expected: str
) -> None:
    change(adapter, **settings)
    assert expected in message(models, adapter)


def test_every_adapter_is_checked_and_complete_ones_are_served(models: Path, adapter: Path) -> None:
    whole = models / "two"
    assert load(models, adapter, whole).can_batch
    change(adapter, without("q_proj.lora_B"))
    assert message(models, whole, adapter).startswith("adapter 'x1'")


def peft_adapter(models: Path, folder: Path, **settings: Any) -> Path:
    """An adapter as peft saves it."""
    torch.manual_seed(1)
    config = LoraConfig(**{"r": 4, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **settings})
    get_peft_model(AutoModelForCausalLM.from_pretrained(models / "base"), config).save_pretrained(folder)
    return folder


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"init_lora_weights": "pissa"},
            "'pissa' changes the weights of the base when",
        ),
        ({"init_lora_weights": "pissa_niter_2"}, "'pissa_niter_2' changes the weights of the base"),
        ({"init_lora_weights": "olora"}, "'olora' changes the weights of the base"),
        ({"alora_invocation_tokens": [5]}, "an activated adapter (aLoRA) would be served without any effect"),
        ({"modules_to_save": ["norm"]}, "which cannot be served in one batch with the base"),
        ({"target_modules": ["q_proj", "lm_head"]}, "save the adapter with save_embedding_layers=False"),
        ({"target_modules": ["q_proj", "embed_tokens"]}, "save the adapter with save_embedding_layers=False"),
    ],
    ids=str,
)
def test_what_peft_saves_but_cannot_be_served_next_to_the_base(
    models: Path, tmp_path: Path, settings: dict[str, Any], expected: str
) -> None:
    text = message(models, peft_adapter(models, tmp_path / "made", **settings))
    assert text.startswith("adapter 'x0'")
    assert expected in text


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "settings",
    [
        {"exclude_modules": ["down_proj"]},
        {"exclude_modules": r".*layers\.0\..*"},
        {"init_lora_weights": "orthogonal"},
        {"init_lora_weights": "gaussian"},
    ],
    ids=str,
)
def test_what_peft_saves_is_served(models: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    """The weights of the base stay as they are."""
    own = AutoModelForCausalLM.from_pretrained(models / "base").state_dict()
    loaded = load(models, peft_adapter(models, tmp_path / "made", **settings))
    served = {name.replace(".base_layer", ""): tensor for name, tensor in loaded._model.state_dict().items()}
    assert all(torch.equal(tensor, served[name]) for name, tensor in own.items())
