"""Models in folders of this machine, as the options name them.

Evidence and keys hold a digest of the folder; the address at which a server answers for it changes with each
run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.serving.folder import (
    CONFIG,
    ModelFolder,
    expanded,
    folder_digest,
    read_adapter,
    read_model,
)

_SIGNS = ("./", "../", "/", "~")
"""How a path begins that no name of a model is taken for."""


@dataclass(frozen=True)
class Address:
    """Where a folder's model is asked, with which token, and the folder's digest."""

    base_url: str
    token: str = field(repr=False)
    weights: str


def names_folder(model: str, here: Path) -> bool:
    """Whether a model is named by its folder: as a path, or by the name of one that is there."""
    return model.startswith(_SIGNS) or model in (".", "..") or (here / model / CONFIG).is_file()


def model_folder(model: str, here: Path, served: Mapping[str, Address]) -> tuple[ModelFolder, str]:
    """A model's folder and its digest.

    Raises:
        ModelFolderError: it cannot be served.
    """
    path = (here / expanded(Path(model))).resolve()
    known = served.get(str(path))
    return read_model(path), folder_digest(path) if known is None else known.weights


def adapted(model: ModelSettings, adapter: str | Path, here: Path) -> ModelSettings:
    """A folder's model that talks with an adapter: named after both, with the digests of both.

    Raises:
        ModelFolderError: it cannot be served with that model.
    """
    assert model.folder is not None
    path = (here / expanded(Path(adapter))).resolve()
    name = f"{model.model}+{path.name}"
    read_adapter(name, path, read_model(model.folder))
    return replace(model, model=name, adapter=path, weights=f"{model.weights}+{folder_digest(path)}")
