"""Validates the folders of models and adapters, and computes their digests.

This module reads no weights and imports nothing heavy, so a run finds problems at once that a server would
find only after loading for a while. Pickle files are never opened, and custom code is never run.
"""

import hashlib
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from pytest_trace2evolve.errors import ModelFolderError
from pytest_trace2evolve.records.adapter import MANIFEST_NAME, WEIGHTS_NAME
from pytest_trace2evolve.utils.canonical import DIGEST_LENGTH, digest
from pytest_trace2evolve.utils.optional import require
from pytest_trace2evolve.utils.reading import check_regular, first_problem, open_regular, read_json

CONFIG_FILE = "config.json"
ADAPTER_CONFIG_FILE = "adapter_config.json"
MAX_NAME_LENGTH = 200
"""Maximum characters of the name of a model or an adapter."""

_INDEX_FILE = "model.safetensors.index.json"
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
_DIGESTED_FILES = (
    *("*.safetensors", _INDEX_FILE, CONFIG_FILE, "generation_config.json", ADAPTER_CONFIG_FILE),
    *("tokenizer*", "vocab*", "merges.txt", "spiece.model", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template*", "additional_chat_templates/*"),
)
"""Patterns of the files that can change a model's answers."""

_LORA_TENSOR = re.compile(r"\.lora_(?:A|B|embedding_A|embedding_B|magnitude_vector)(?:\.|$)")
_EMBEDDING = re.compile(r"\.(?:embed_tokens|lm_head)\.weight$")
_PEFT_PREFIX = "base_model.model."
_COPY_HINT = "copy the file again"


@dataclass(frozen=True)
class ModelFolder:
    """A model on disk.

    Attributes:
        name: The folder's name, which requests use as the model's name.
        temperature: The temperature of the model's own generation settings; 0 if the settings disable
            sampling.
    """

    path: Path
    name: str
    temperature: float = 0.0


@dataclass(frozen=True)
class AdapterFolder:
    """A LoRA adapter on disk, and the name that requests use for it."""

    path: Path
    name: str


Rank = Annotated[int, Field(ge=1, le=65_536)]
Scale = Annotated[float, Field(gt=0)]


_MAX_PATTERN_LENGTH = 500
_MAX_REPEATS = 4
_REPEATED_GROUP = re.compile(r"\)\s*[*+{]")


def _check_pattern(pattern: str) -> str:
    """Reject a regular expression that could match for ever, because peft applies it to all layer names."""
    repeats = len(re.findall(r"[*+{]", pattern))
    if len(pattern) > _MAX_PATTERN_LENGTH or repeats > _MAX_REPEATS or _REPEATED_GROUP.search(pattern):
        raise ValueError(
            f"a pattern may have at most {_MAX_PATTERN_LENGTH} characters and {_MAX_REPEATS} repetitions, "
            "and must not repeat a group"
        )
    return pattern


Pattern = Annotated[str, AfterValidator(_check_pattern)]
Patterns = Annotated[
    list[Pattern], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]


_BASE_CHANGING = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Beginnings of initializations with which peft changes the base's weights when it loads an adapter."""


def _check_initialization(name: str | bool) -> str | bool:
    if isinstance(name, str) and name.lower().startswith(_BASE_CHANGING):
        raise ValueError(
            f"{name!r} changes the weights of the base when the adapter is loaded, for all adapters; "
            "save the adapter with path_initial_model_for_weight_conversion, which makes it plain LoRA"
        )
    return name


def _check_activation(tokens: object) -> object:
    if tokens is not None:
        raise ValueError("an activated adapter (aLoRA) would be served without any effect; train plain LoRA")
    return tokens


class _AdapterSettings(BaseModel):
    """The parts of `adapter_config.json` that could change the base or make the adapter invalid."""

    model_config = ConfigDict(strict=True)

    target_modules: Annotated[
        list[Annotated[Pattern, Field(min_length=1)]],
        BeforeValidator(lambda names: [names] if isinstance(names, str) else names),
        Field(min_length=1),
    ]
    bias: Literal["none"] = "none"
    r: Rank = 8
    lora_alpha: Scale = 8
    rank_pattern: dict[Pattern, Rank] | None = None
    alpha_pattern: dict[Pattern, Scale] | None = None
    exclude_modules: Patterns | None = None
    layers_pattern: Patterns | None = None
    init_lora_weights: Annotated[bool | str, AfterValidator(_check_initialization)] = True
    alora_invocation_tokens: Annotated[object, AfterValidator(_check_activation)] = None


def expand_home(path: Path) -> Path:
    """Return a path with `~` replaced by the home folder.

    Raises:
        ModelFolderError: the path names a user unknown to this machine.
    """
    try:
        return path.expanduser()
    except RuntimeError:
        raise ModelFolderError(f"{path}: no such folder: this machine does not know that user") from None


def read_model(path: Path) -> ModelFolder:
    """Check a model's folder, and return its description.

    Raises:
        ModelFolderError: the model cannot be served; the message names the cause and the remedy.
    """
    path = expand_home(path)
    if not path.is_dir():
        raise ModelFolderError(f"{path}: no such folder")
    config = _read_object(path / CONFIG_FILE, "not a model's folder")
    for file in (path / CONFIG_FILE, path / "tokenizer_config.json"):
        if os.path.lexists(file) and "auto_map" in _read_object(file):
            raise ModelFolderError(
                f"{file}: requires custom code (auto_map), which is never run; use a model that "
                "transformers supports without it"
            )
    if "model_type" not in config:
        raise ModelFolderError(f"{path / CONFIG_FILE}: has no model_type, so this is not a model's folder")
    for file in _find_weight_files(path):
        tensor_shapes(file)
    if not any((path / name).exists() for name in _TOKENIZER_FILES):
        raise ModelFolderError(f"{path}: has no tokenizer (tokenizer.json); save the model's tokenizer there")
    if not _has_template(path):
        raise ModelFolderError(
            f"{path}: has no chat template (chat_template.jinja), so no prompts can be rendered; save the "
            "model's template there"
        )
    return ModelFolder(path, path.resolve().name, _read_temperature(path))


def read_adapter(name: str, path: Path, base: ModelFolder) -> AdapterFolder:
    """Check an adapter's folder, and return its description.

    Raises:
        ModelFolderError: the base cannot serve the adapter; the message names the cause and the remedy.
    """
    path = expand_home(path)
    label = f"adapter {name!r}: {path}"
    if not path.is_dir():
        raise ModelFolderError(f"{label}: no such folder")
    check_name("adapter", name)
    if name == base.name:
        raise ModelFolderError(f"adapter {name!r} has the same name as the model; choose a different name")
    config = _read_object(path / ADAPTER_CONFIG_FILE, "not an adapter's folder")
    if (peft_type := config.get("peft_type")) != "LORA":
        raise ModelFolderError(
            f"{label}/{ADAPTER_CONFIG_FILE}: peft_type {peft_type!r} is not supported; expected LORA"
        )
    mapping = config.get("auto_mapping")
    if mapping and (not isinstance(mapping, dict) or mapping.get("custom_code")):
        raise ModelFolderError(f"{label}/{ADAPTER_CONFIG_FILE}: requires custom code, which is never run")
    try:
        _AdapterSettings.model_validate(config)
    except ValidationError as error:
        problem = first_problem(error)
        raise ModelFolderError(f"{label}/{ADAPTER_CONFIG_FILE}: {problem}; train the adapter again") from None
    if not (path / WEIGHTS_NAME).exists():
        _reject_pickle(path)
        raise ModelFolderError(f"{label}: has no {WEIGHTS_NAME}")
    shapes = tensor_shapes(path / WEIGHTS_NAME)
    _check_known_tensors(shapes, config.get("modules_to_save"), label)
    _check_widths(shapes, label, base)
    if (path / MANIFEST_NAME).exists():
        base_digest = _read_object(path / MANIFEST_NAME).get("base_digest")
        if base_digest is not None and base_digest != folder_digest(base.path):
            raise ModelFolderError(
                f"{label}/{MANIFEST_NAME}: was made for a different base than {base.path} "
                f"(base_digest {str(base_digest)[:12]}…)"
            )
    return AdapterFolder(path, name)


def check_name(kind: str, name: str) -> None:
    """Check the name of a model or an adapter, which appears in addresses, logs and reports.

    Raises:
        ModelFolderError: the name is too long, is not printable, or could escape its folder as a path.
    """
    has_unsafe_parts = any(part in ("", ".", "..") for part in name.split("/"))
    if (
        len(name) > MAX_NAME_LENGTH
        or not name.isprintable()
        or name != name.strip()
        or "\\" in name
        or has_unsafe_parts
    ):
        short_name = name if len(name) <= MAX_NAME_LENGTH else f"{name[:MAX_NAME_LENGTH]}…"
        raise ModelFolderError(
            f"{kind} {short_name!r}: not a valid name: expected at most {MAX_NAME_LENGTH} printable "
            "characters, without backslashes, leading or trailing blanks, or the parts '', '.' and '..' "
            "between slashes"
        )


def folder_digest(path: Path) -> str:
    """Return the digest of the files that can change the answers of a model or an adapter.

    Raises:
        ModelFolderError: a file cannot be read.
    """
    path = expand_home(path)
    files = sorted({file for pattern in _DIGESTED_FILES for file in path.glob(pattern) if file.is_file()})
    digests = {}
    try:
        for file in files:
            with open_regular(file) as stream:
                file_hash = hashlib.file_digest(stream, "sha256").hexdigest()
            digests[file.relative_to(path).as_posix()] = file_hash[:DIGEST_LENGTH]
    except OSError as error:
        raise ModelFolderError(f"{path}: cannot be read: {error}") from None
    return digest(digests)


def tensor_shapes(path: Path) -> dict[str, list[int]]:
    """Return the shapes of the tensors in a safetensors file; the file's header must agree with its size.

    Raises:
        ModelFolderError: the file is damaged; the message names the file.
    """
    check_regular(path, ModelFolderError)
    safetensors = require("safetensors", extra="local")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - its own
    except (safetensors.SafetensorError, OSError) as error:
        cause = " ".join(str(error).split())[:200]
        raise ModelFolderError(f"{path}: damaged or cut off ({cause}); {_COPY_HINT}") from None


def check_adapter_coverage(
    peft_model: Any, peft_name: str, shapes: Mapping[str, Collection[int]], adapter: AdapterFolder
) -> None:
    """Compare an adapter's tensors with the tensors that its configuration requires on the base.

    peft loads only the tensors that it finds, so layers without weights would stay as they are in the base.
    `peft_model` is the `PeftModel` with the adapter loaded under the name `peft_name`.

    Raises:
        ModelFolderError: a tensor is missing, unknown or of a different shape, or the configuration names a
            layer that the base does not have.
    """
    from peft import get_peft_model_state_dict

    label = f"adapter {adapter.name!r}: {adapter.path / WEIGHTS_NAME}"
    state = get_peft_model_state_dict(peft_model, adapter_name=peft_name, save_embedding_layers=False)
    expected_shapes = {key: list(tensor.shape) for key, tensor in state.items()}
    if missing_names := sorted(expected_shapes.keys() - shapes.keys()):
        raise ModelFolderError(
            f"{label}: lacks {missing_names[0]!r}{_more_text(missing_names)}, which its "
            f"{ADAPTER_CONFIG_FILE} names; copy or train it again"
        )
    if unknown_names := sorted(shapes.keys() - expected_shapes.keys()):
        raise _unknown_tensors_error(label, unknown_names)
    for key, shape in expected_shapes.items():
        if list(shapes[key]) != shape:
            raise ModelFolderError(
                f"{label}: {key!r} has shape {list(shapes[key])}, but {shape} is required by its "
                f"{ADAPTER_CONFIG_FILE} and the base"
            )
    # Layers that `exclude_modules` leaves out are layers of the base too.
    layers = [name for name, _ in peft_model.get_base_model().named_modules()]
    for setting, value, pattern in _layer_patterns(peft_model.peft_config[peft_name]):
        if not any(re.search(pattern, layer) for layer in layers):
            raise ModelFolderError(
                f"adapter {adapter.name!r}: {adapter.path / ADAPTER_CONFIG_FILE}: {setting} names "
                f"{value!r}, but the base has no such layer"
            )


def _layer_patterns(config: Any) -> Iterator[tuple[str, object, str]]:
    """Yield each reference to layers of the base, as setting, value and a pattern that must match a layer."""
    if not isinstance(config.target_modules, str):
        for name in sorted(config.target_modules):
            yield "target_modules", name, rf"(^|\.){re.escape(name)}$"
    indices = config.layers_to_transform
    for index in [] if indices is None else [indices] if isinstance(indices, int) else indices:
        yield "layers_to_transform", index, rf"\.{index}\."
    for setting in ("rank_pattern", "alpha_pattern"):
        for name in sorted(getattr(config, setting) or {}):
            yield setting, name, rf"^(.*\.)?({name})$"


def _check_known_tensors(names: Collection[str], modules_to_save: object, label: str) -> None:
    """Reject tensors outside LoRA layers and saved modules, with which peft would overwrite the base."""
    saved_modules = modules_to_save if isinstance(modules_to_save, list) else []
    unknown_names = sorted(
        key
        for key in names
        # As in peft, a name stands for all modules whose names end with it.
        if not _LORA_TENSOR.search(key) and not any(f"{module}." in key for module in saved_modules)
    )
    if unknown_names:
        raise _unknown_tensors_error(f"{label}/{WEIGHTS_NAME}", unknown_names)


def _unknown_tensors_error(label: str, names: Collection[str]) -> ModelFolderError:
    first_name = next(iter(names))
    if any(".base_layer." in name or _EMBEDDING.search(name) for name in names):
        return ModelFolderError(
            f"{label}: contains {first_name!r:.300}{_more_text(names)}, base weights, which peft stores "
            "with an adapter of embeddings or the output layer, and which would overwrite the base; save the "
            "adapter with save_embedding_layers=False"
        )
    return ModelFolderError(
        f"{label}: contains {first_name!r:.300}{_more_text(names)}, which its {ADAPTER_CONFIG_FILE} does "
        "not name; copy it again, or train an adapter for this base"
    )


def _more_text(names: Collection[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _check_widths(shapes: Mapping[str, list[int]], label: str, base: ModelFolder) -> None:
    """Compare the widths of an adapter's tensors with those of its base's tensors of the same names."""
    base_shapes = {
        tensor: shape
        for file in base.path.glob("*.safetensors")
        for tensor, shape in tensor_shapes(file).items()
    }
    for tensor, shape in sorted(shapes.items()):
        layer, _, part = tensor.removeprefix(_PEFT_PREFIX).partition(".lora_")
        weight_shape = base_shapes.get(f"{layer}.weight", [])
        if len(weight_shape) != 2 or len(shape) != 2 or part not in ("A.weight", "B.weight"):
            continue
        width, base_width = (shape[1], weight_shape[1]) if part == "A.weight" else (shape[0], weight_shape[0])
        if width != base_width:
            raise ModelFolderError(
                f"{label} was made for a different base than {base.path}: layer {layer!r} has width "
                f"{base_width} in the base but {width} in the adapter"
            )


def _find_weight_files(path: Path) -> list[Path]:
    single_file, index_file = path / "model.safetensors", path / _INDEX_FILE
    if single_file.exists():
        return [single_file]
    if not index_file.exists():
        _reject_pickle(path)
        raise ModelFolderError(f"{path}: has no weights (model.safetensors)")
    shards = _read_object(index_file).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ModelFolderError(f"{index_file}: damaged: names no weights; {_COPY_HINT}")
    names = sorted({str(shard) for shard in shards.values()})
    for name in names:
        if Path(name).name != name or not (path / name).exists():
            raise ModelFolderError(
                f"{index_file}: names {name!r}, which is not in the same folder; copy the folder again"
            )
    return [path / name for name in names]


def _reject_pickle(path: Path) -> None:
    pickles = sorted(file.name for file in path.iterdir() if file.suffix in _PICKLE_SUFFIXES)
    if pickles:
        raise ModelFolderError(
            f"{path / pickles[0]}: pickle weights are never opened: convert them to safetensors"
        )


def _has_template(path: Path) -> bool:
    if (
        any((path / name).exists() for name in _TEMPLATE_FILES)
        or (path / "additional_chat_templates").is_dir()
    ):
        return True
    settings = path / "tokenizer_config.json"
    return settings.exists() and bool(_read_object(settings).get("chat_template"))


def _read_temperature(path: Path) -> float:
    file = path / "generation_config.json"
    settings = _read_object(file) if os.path.lexists(file) else {}
    if not settings.get("do_sample"):
        return 0.0
    temperature = settings.get("temperature", 1.0)
    is_number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if not is_number or not 0.0 <= temperature <= 2.0:
        raise ModelFolderError(f"{file}: temperature {temperature!r} is not a number from 0 to 2")
    return float(temperature)


def _read_object(path: Path, absence_hint: str = "") -> dict[str, Any]:
    if not os.path.lexists(path):
        raise ModelFolderError(f"{path.parent}: has no {path.name}: {absence_hint or 'copy it'}")
    value = read_json(path, ModelFolderError, _COPY_HINT, require_unique=True)
    if not isinstance(value, dict):
        raise ModelFolderError(f"{path}: damaged: not a JSON object; {_COPY_HINT}")
    return value
