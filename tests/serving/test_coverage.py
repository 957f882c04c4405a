"""Adapters whose file is not what their configuration says: refused by name, never served in part."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pytest_trace2evolve.errors import ModelFolderError, TrainingError
from pytest_trace2evolve.serving.folder import read_adapter, read_model
from pytest_trace2evolve.serving.loading import LoadedModel
from pytest_trace2evolve.training.checkpoints import Kept, require_whole

Tensors = dict[str, torch.Tensor]
PREFIX = "base_model.model."


@pytest.fixture
def adapter(models: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(models / "one", tmp_path / "one"))


def load(models: Path, *folders: Path) -> LoadedModel:
    base = read_model(models / "base")
    adapters = [read_adapter(f"x{place}", folder, base) for place, folder in enumerate(folders)]
    return LoadedModel(base, adapters, device="cpu")


def reason(models: Path, *folders: Path) -> str:
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
    ("edit", "told"),
    [
        (without("layers.0."), "lacks 'base_model.model.model.layers.0."),
        (without("q_proj"), "q_proj.lora_A.weight' and "),
        (without("lora_A"), "lora_A.weight' and "),
        (without("lora_B"), "lora_B.weight' and "),
        (lambda tensors: tensors.pop(first(tensors, "q_proj.lora_B")), "q_proj.lora_B.weight', which its"),
        (lambda tensors: tensors.pop(first(tensors, "q_proj.lora_A")), "q_proj.lora_A.weight', which its"),
        (lambda tensors: tensors.clear(), "lacks 'base_model"),
        (overwrite_the_base, "base_layer.weight', of which its adapter_config.json says nothing"),
        (add(f"{PREFIX}lm_head.weight"), "holds 'base_model.model.lm_head.weight', of which"),
        (add("unknown"), "holds 'unknown', of which"),
        (reshape("q_proj.lora_A", 0), "size mismatch"),
        (reshape("q_proj.lora_B", 1), "size mismatch"),
        (reshape("q_proj.lora_B", 0), "was made for another base"),
    ],
)
def test_tensors(models: Path, adapter: Path, edit: Callable[[Tensors], object], told: str) -> None:
    change(adapter, edit)
    text = reason(models, adapter)
    assert text.startswith("adapter 'x0'")
    assert told in text


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"r": 8}, "size mismatch"),
        ({"rank_pattern": {"q_proj": 2}}, "size mismatch"),
        ({"rank_pattern": {"z_proj": 2}}, "rank_pattern names 'z_proj', and the base has no such layer"),
        ({"alpha_pattern": {"z_proj": 2}}, "alpha_pattern names 'z_proj'"),
        ({"target_modules": ["q_proj"]}, "of which its adapter_config.json says nothing"),
        ({"use_dora": True}, "lora_magnitude_vector' and "),
        ({"modules_to_save": ["lm_head"]}, "base_model.model.lm_head.weight"),
        ({"r": 0}, "r is 0, and must be a whole number from 1 to 65536"),
        ({"r": "4"}, "r is '4'"),
        ({"r": True}, "r is True"),
        ({"r": 10**9}, "r is 1000000000"),
        ({"lora_alpha": 0}, "lora_alpha is 0, and must be a positive number"),
        ({"lora_alpha": -1}, "lora_alpha is -1"),
        ({"lora_alpha": math.nan}, "not valid JSON with finite numbers"),
        ({"lora_alpha": math.inf}, "not valid JSON with finite numbers"),
        ({"lora_alpha": None}, "lora_alpha is None"),
        ({"rank_pattern": {"q_proj": 0}}, "rank_pattern['q_proj'] is 0"),
        ({"rank_pattern": [1]}, "rank_pattern is not an object"),
        ({"alpha_pattern": {"q_proj": "x"}}, "alpha_pattern['q_proj'] is 'x'"),
        ({"bias": "all"}, "bias 'all' would change the base for everybody"),
        ({"target_modules": None}, "target_modules is neither a text nor a list of texts"),
        ({"target_modules": []}, "target_modules is neither"),
        ({"target_modules": ["q_proj", 5]}, "target_modules is neither"),
    ],
    ids=str,
)
def test_settings(models: Path, adapter: Path, settings: dict[str, Any], told: str) -> None:
    change(adapter, **settings)
    assert told in reason(models, adapter)


def test_a_target_that_the_base_lacks(models: Path, adapter: Path) -> None:
    config = json.loads((adapter / "adapter_config.json").read_text())
    change(adapter, target_modules=[*config["target_modules"], "z_proj"])
    assert "target_modules names 'z_proj', and the base has no such layer" in reason(models, adapter)


def test_a_layer_that_the_base_lacks(models: Path, adapter: Path) -> None:
    change(adapter, layers_to_transform=[*range(read_layers(models)), 99])
    assert "layers_to_transform names 99" in reason(models, adapter)


def read_layers(models: Path) -> int:
    return int(json.loads((models / "base" / "config.json").read_text())["num_hidden_layers"])


def test_the_second_adapter_is_looked_at_too_and_whole_ones_are_served(models: Path, adapter: Path) -> None:
    whole = models / "two"
    assert load(models, adapter, whole).batched
    change(adapter, without("q_proj.lora_B"))
    assert reason(models, whole, adapter).startswith("adapter 'x1'")


def test_a_training_goes_on_with_whole_weights_alone(tmp_path: Path) -> None:
    model = {"a.lora_A": torch.ones(2, 3), "a.lora_B": torch.ones(3, 2)}
    require_whole(tmp_path, Kept(4, [], model, {}), model)
    for weights in (
        {"a.lora_A": torch.ones(2, 3)},
        {**model, "b": torch.ones(1)},
        {**model, "a.lora_B": torch.ones(3, 1)},
    ):
        with pytest.raises(TrainingError, match=r"its weights of step 4 have .* to begin anew"):
            require_whole(tmp_path, Kept(4, [], weights, {}), model)
