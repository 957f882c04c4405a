"""Folders of models and adapters on disk: what must be in them, what is refused, and their digest.

Nothing heavy is imported and no weights are read: a run checks here what would otherwise be found out by a
server that has just been loading for a while. Pickle is never opened; custom code is never run.

Checks that an adapter's file holds exactly the tensors that its configuration describes.

The LoRA library loads what it finds. A layer without weights stays as the base has it, and a weight of the
base in an adapter's file changes the base for everybody.
"""

import hashlib
import math
import os
import re
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_trace2evolve.errors import ModelFolderError
from pytest_trace2evolve.records.adapter import ADAPTER_WEIGHTS, MANIFEST
from pytest_trace2evolve.utils.canonical import DIGEST_LENGTH, digest
from pytest_trace2evolve.utils.reading import cause_of, open_regular, parse_json, read_json

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


CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
_INDEX = "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_TEMPLATES = ("chat_template.jinja", "chat_template.json")
_COUNTED = (
    "*.safetensors",
    _INDEX,
    CONFIG,
    "generation_config.json",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "spiece.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "additional_chat_templates/*",
    ADAPTER_CONFIG,
)
"""What can change what a model says."""

LONGEST_NAME = 200
"""Characters of the name of a model or an adapter."""

_LARGEST_HEADER = 100_000_000
"""Bytes; what safetensors itself allows."""


@dataclass(frozen=True)
class ModelFolder:
    """A model on disk.

    Attributes:
        name: Its folder's name, by which it is asked for.
        temperature: What its own generation settings say; 0 where they sample nothing or say nothing.
    """

    path: Path
    name: str
    temperature: float = 0.0


@dataclass(frozen=True)
class AdapterFolder:
    """A LoRA adapter on disk, and the name by which it is asked for."""

    path: Path
    name: str


def expanded(path: Path) -> Path:
    """A path with the home folder that a `~` stands for.

    Raises:
        ModelFolderError: it names a user whom this machine does not know.
    """
    try:
        return path.expanduser()
    except RuntimeError:
        raise ModelFolderError(f"{path}: no such folder: nobody here has that home folder") from None


def read_model(path: Path) -> ModelFolder:
    """Look a model's folder over.

    Raises:
        ModelFolderError: it cannot be served; says what is wrong, and the mend.
    """
    path = expanded(path)
    if not path.is_dir():
        raise ModelFolderError(f"{path}: no such folder")
    config = _object(path / CONFIG, "not a model's folder")
    for name in (CONFIG, "tokenizer_config.json"):
        if os.path.lexists(path / name) and "auto_map" in _object(path / name):
            raise ModelFolderError(
                f"{path / name}: names custom code (auto_map), which is never run: "
                "use a model that transformers knows by itself"
            )
    if "model_type" not in config:
        raise ModelFolderError(f"{path / CONFIG}: names no model_type: not a model's folder")
    _require_weights(path)
    if not any((path / name).exists() for name in _TOKENIZERS):
        raise ModelFolderError(f"{path}: holds no tokenizer (tokenizer.json): save the model's own there")
    _require_template(path)
    return ModelFolder(path, path.resolve().name, _temperature(path))


def read_adapter(name: str, path: Path, base: ModelFolder) -> AdapterFolder:
    """Look an adapter's folder over.

    Raises:
        ModelFolderError: it cannot be served beside its base; says what is wrong, and the mend.
    """
    path = expanded(path)
    if not path.is_dir():
        raise ModelFolderError(f"adapter {name!r}: {path}: no such folder")
    require_name("adapter", name)
    if name == base.name:
        raise ModelFolderError(f"adapter {name!r} has the name of the model itself: choose another")
    config = _object(path / ADAPTER_CONFIG, "not an adapter's folder")
    if config.get("peft_type") != "LORA":
        raise ModelFolderError(
            f"adapter {name!r}: {path / ADAPTER_CONFIG}: peft_type {config.get('peft_type')!r} is not "
            "served; only LORA is"
        )
    mapping = config.get("auto_mapping")
    if mapping and (not isinstance(mapping, dict) or mapping.get("custom_code")):
        raise ModelFolderError(f"adapter {name!r}: {path / ADAPTER_CONFIG}: names custom code: never run")
    require_settings(config, f"adapter {name!r}: {path / ADAPTER_CONFIG}")
    if not (path / ADAPTER_WEIGHTS).exists():
        _refuse_pickle(path)
        raise ModelFolderError(f"adapter {name!r}: {path}: holds no {ADAPTER_WEIGHTS}")
    shapes = require_sound(path / ADAPTER_WEIGHTS)
    require_known(shapes, config.get("modules_to_save"), f"adapter {name!r}: {path / ADAPTER_WEIGHTS}")
    _require_fitting(shapes, name, path, base)
    if (path / MANIFEST).exists():
        told = _object(path / MANIFEST).get("base_digest")
        if told is not None and told != folder_digest(base.path):
            raise ModelFolderError(
                f"adapter {name!r}: {path / MANIFEST}: was made for another base than {base.path} "
                f"(base_digest {str(told)[:12]}…)"
            )
    return AdapterFolder(path, name)


def require_name(what: str, name: str) -> None:
    """Check a name under which a model or an adapter is asked for: it stands in addresses, logs and reports.

    Raises:
        ModelFolderError: it is too long, not printable, or looks like a path to elsewhere.
    """
    parts = name.split("/")
    if (
        len(name) > LONGEST_NAME
        or not name.isprintable()
        or name != name.strip()
        or "\\" in name
        or any(part in ("", ".", "..") for part in parts)
    ):
        shown = name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"
        raise ModelFolderError(
            f"{what} {shown!r}: not a name: take at most {LONGEST_NAME} printable characters, without "
            "backslashes, blanks at an end, or the parts '', '.' and '..' between slashes"
        )


def folder_digest(path: Path) -> str:
    """Digest of what can change what a model or an adapter says: weights, tokenizer, settings, template.

    Raises:
        ModelFolderError: a file cannot be read.
    """
    path = expanded(path)
    files = sorted({file for pattern in _COUNTED for file in path.glob(pattern) if file.is_file()})
    try:
        return digest({file.relative_to(path).as_posix(): _file_digest(file) for file in files})
    except OSError as error:
        raise ModelFolderError(f"{path}: cannot be read: {error}") from None


def _file_digest(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGEST_LENGTH]


def require_sound(path: Path) -> dict[str, list[int]]:
    """Hold a safetensors file against its own header: each tensor's bytes must be there, and no others.

    Returns:
        The shapes of its tensors by name.

    Raises:
        ModelFolderError: it is damaged; names the file.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
            if length > min(size - 8, _LARGEST_HEADER):
                raise ValueError("it is cut off, or no safetensors file")
            header = parse_json(file.read(length), unique=True)
        ends = sorted(_spans(header))
        expected = 0
        for begin, end in ends:
            if begin != expected or end < begin:
                raise ValueError("its header contradicts itself")
            expected = end
        if expected != size - 8 - length:
            raise ValueError(f"{expected} bytes of tensors were written and {size - 8 - length} are there")
        return {name: _shape(one["shape"]) for name, one in header.items() if name != "__metadata__"}
    except (OSError, MemoryError) as error:
        raise ModelFolderError(f"{path}: {cause_of(error)}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        told = str(error) if type(error) is ValueError else "its header is no JSON of safetensors"
        raise ModelFolderError(f"{path}: damaged: {told}; copy the file again") from None


def _spans(header: dict[str, Any]) -> Iterator[tuple[int, int]]:
    for name, one in header.items():
        if name != "__metadata__":
            begin, end = _shape(one["data_offsets"])
            yield begin, end


def _shape(value: list[int]) -> list[int]:
    """A list of whole numbers, which a file may hold otherwise."""
    if not isinstance(value, list) or any(type(one) is not int or one < 0 for one in value):
        raise ValueError("its header contradicts itself")
    return value


def _require_fitting(shapes: dict[str, list[int]], name: str, path: Path, base: ModelFolder) -> None:
    """Hold an adapter's shapes against those of its base, as far as their names agree."""
    files = sorted(base.path.glob("*.safetensors"))
    own = {tensor: shape for file in files for tensor, shape in require_sound(file).items()}
    for tensor, shape in sorted(shapes.items()):
        layer, _, part = tensor.removeprefix("base_model.model.").partition(".lora_")
        there = own.get(f"{layer}.weight", [])
        if len(there) != 2 or len(shape) != 2 or part not in ("A.weight", "B.weight"):
            continue
        held, wanted = (shape[1], there[1]) if part == "A.weight" else (shape[0], there[0])
        if held != wanted:
            raise ModelFolderError(
                f"adapter {name!r}: {path} was made for another base than {base.path}: layer {layer!r} is "
                f"{wanted} wide there and {held} in the adapter"
            )


def _require_weights(path: Path) -> None:
    single, index = path / "model.safetensors", path / _INDEX
    if single.exists():
        require_sound(single)
        return
    if not index.exists():
        _refuse_pickle(path)
        raise ModelFolderError(f"{path}: holds no weights (model.safetensors)")
    shards = _object(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ModelFolderError(f"{index}: damaged: names no weights; copy the file again")
    for name in sorted({str(shard) for shard in shards.values()}):
        if Path(name).name != name or not (path / name).exists():
            raise ModelFolderError(f"{index}: names {name!r}, which is not beside it; copy the folder again")
        require_sound(path / name)


def _refuse_pickle(path: Path) -> None:
    pickles = sorted(file.name for file in path.iterdir() if file.suffix in _PICKLES)
    if pickles:
        raise ModelFolderError(
            f"{path / pickles[0]}: pickle weights are never opened: convert them to safetensors"
        )


def _require_template(path: Path) -> None:
    settings = path / "tokenizer_config.json"
    if any((path / name).exists() for name in _TEMPLATES) or (path / "additional_chat_templates").is_dir():
        return
    if not settings.exists() or not _object(settings).get("chat_template"):
        raise ModelFolderError(
            f"{path}: holds no chat template (chat_template.jinja): conversations cannot be written for it"
        )


def _temperature(path: Path) -> float:
    """The temperature of `generation_config.json`, where it samples."""
    file = path / "generation_config.json"
    settings = _object(file) if os.path.lexists(file) else {}
    if not settings.get("do_sample"):
        return 0.0
    told = settings.get("temperature", 1.0)
    if isinstance(told, bool) or not isinstance(told, int | float) or not 0.0 <= told <= 2.0:
        raise ModelFolderError(f"{file}: temperature {told!r} is not a number from 0 to 2")
    return float(told)


def _object(path: Path, otherwise: str = "") -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        ModelFolderError: it is none; `otherwise` says what its absence means.
    """
    if not os.path.lexists(path):
        raise ModelFolderError(f"{path.parent}: holds no {path.name}: {otherwise or 'copy it'}")
    value = read_json(path, ModelFolderError, "copy the file again", unique=True)
    if not isinstance(value, dict):
        raise ModelFolderError(f"{path}: damaged: no JSON object; copy the file again")
    return value
