"""Checks that an adapter's file holds exactly the tensors that its configuration describes.

The LoRA library loads what it finds. A layer without weights stays as the base has it, and a weight of the
base in an adapter's file changes the base for everybody.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_trace2evolve.errors import ModelFolderError
from pytest_trace2evolve.records.adapter import ADAPTER_WEIGHTS

LARGEST_RANK = 65_536

_LORA = re.compile(r"\.lora_(?:A|B|embedding_A|embedding_B|magnitude_vector)(?:\.|$)")


def require_settings(config: Mapping[str, Any], where: str) -> None:
    """Check the numbers of a LoRA configuration, and that it changes nothing but its own layers.

    Args:
        config: `adapter_config.json`.
        where: How messages begin: the adapter and its file.

    Raises:
        ModelFolderError: a value is of another kind, or would change the base.
    """
    targets = config.get("target_modules")
    if not (isinstance(targets, str) and targets) and not (
        isinstance(targets, list) and targets and all(isinstance(one, str) and one for one in targets)
    ):
        raise ModelFolderError(
            f"{where}: target_modules is neither a text nor a list of texts; name the layers"
        )
    if config.get("bias", "none") != "none":
        raise ModelFolderError(
            f"{where}: bias {config['bias']!r} would change the base for everybody; only 'none' is served"
        )
    _require_rank("r", config.get("r", 8), where)
    _require_scale("lora_alpha", config.get("lora_alpha", 8), where)
    for name, check in (("rank_pattern", _require_rank), ("alpha_pattern", _require_scale)):
        pattern = config.get(name) or {}
        if not isinstance(pattern, dict):
            raise ModelFolderError(f"{where}: {name} is not an object; train the adapter again")
        for layer, value in pattern.items():
            check(f"{name}[{layer!r}]", value, where)


def require_known(names: Collection[str], modules_to_save: object, where: str) -> None:
    """Check that a file holds tensors of LoRA layers alone, and of modules that are replaced as a whole.

    The library would take any other for a weight of the base.

    Args:
        names: The names of the tensors.
        modules_to_save: What the configuration says of them.
        where: How messages begin.

    Raises:
        ModelFolderError: it holds another.
    """
    saved = modules_to_save if isinstance(modules_to_save, list) else []
    further = sorted(
        name
        for name in names
        if not _LORA.search(name) and not any(f".{module}." in f".{name}" for module in saved)
    )
    if further:
        raise ModelFolderError(_told_further(where, further))


def _told_further(where: str, names: Sequence[str]) -> str:
    return (
        f"{where}: holds {names[0]!r:.300}{_more(names)}, of which its adapter_config.json says nothing; "
        "copy or train it again"
    )


def _require_rank(name: str, value: object, where: str) -> None:
    if type(value) is not int or not 1 <= value <= LARGEST_RANK:
        raise ModelFolderError(
            f"{where}: {name} is {value!r:.100}, and must be a whole number from 1 to {LARGEST_RANK}"
        )


def _require_scale(name: str, value: object, where: str) -> None:
    if type(value) not in (int, float) or not 0 < value < math.inf:  # type: ignore[operator]  # a number here
        raise ModelFolderError(f"{where}: {name} is {value!r:.100}, and must be a positive number")


def require_covered(
    wrapped: Any, place: str, shapes: Mapping[str, Collection[int]], name: str, path: Path
) -> None:
    """Compare an adapter's file with what its configuration makes of the base.

    Args:
        wrapped: The base with the adapter that was loaded, as peft has it.
        place: The adapter's name there.
        shapes: The shapes of the file's tensors by name.
        name: The adapter's name.
        path: Its folder.

    Raises:
        ModelFolderError: a tensor is missing, of another shape, or too much; or the configuration names a
            layer that the base does not have.
    """
    from peft import get_peft_model_state_dict

    file = f"adapter {name!r}: {path / ADAPTER_WEIGHTS}"
    made = get_peft_model_state_dict(wrapped, adapter_name=place, save_embedding_layers=False)
    wanted = {key: list(one.shape) for key, one in made.items()}
    if missing := sorted(wanted.keys() - shapes.keys()):
        raise ModelFolderError(
            f"{file}: lacks {missing[0]!r}{_more(missing)}, which its adapter_config.json says that it has: "
            "it would be served in part; copy or train it again"
        )
    if further := sorted(shapes.keys() - wanted.keys()):
        raise ModelFolderError(_told_further(file, further))
    for key, shape in wanted.items():
        if list(shapes[key]) != shape:
            raise ModelFolderError(
                f"{file}: {key!r} is {list(shapes[key])}, and {shape} by its adapter_config.json and the base"
            )
    _require_targets(wrapped.peft_config[place], list(wrapped.base_model.targeted_module_names), name, path)


def _require_targets(config: Any, layers: Collection[str], name: str, path: Path) -> None:
    """Check that everything that a configuration names is there: the library takes what matches."""
    places = config.layers_to_transform
    named = {
        "target_modules": [] if isinstance(config.target_modules, str) else sorted(config.target_modules),
        "layers_to_transform": []
        if places is None
        else [places]
        if isinstance(places, int)
        else list(places),
        "rank_pattern": sorted(config.rank_pattern or {}),
        "alpha_pattern": sorted(config.alpha_pattern or {}),
    }
    for setting, values in named.items():
        for value in values:
            if setting == "target_modules":
                found = any(layer == value or layer.endswith(f".{value}") for layer in layers)
            elif setting == "layers_to_transform":
                found = any(f".{value}." in layer for layer in layers)
            else:
                found = any(re.match(rf"(.*\.)?({value})$", layer) for layer in layers)
            if not found:
                raise ModelFolderError(
                    f"adapter {name!r}: {path / 'adapter_config.json'}: {setting} names {value!r}, and "
                    "the base has no such layer"
                )


def _more(names: Collection[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
