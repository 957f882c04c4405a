"""Locates the files that ship with the package: the template of a project, and the embedded model.

A wheel holds these files in `template/` inside the package's folder. In an editable install they are in the
checkout, in the folders that `pyproject.toml` maps to `template/`, under the same names.
"""

import importlib.resources
from pathlib import Path

from pytest_trace2evolve.errors import ConfigError

TEMPLATE = "template"
"""The template's folder in the installed package."""

MODEL = "adapters/pocket"
"""The embedded model's folder in the template."""

WORKFLOW = "docs/examples/agents.yml"
"""The CI workflow in the template."""

PARTS = ("suites", "candidates", "synthetic", "baselines/support", "prices.toml", WORKFLOW, MODEL)
"""Everything that ships, as paths that are the same in the repository and in the template."""

_REINSTALL = "install pytest-trace2evolve again, from its wheel"


def template(package: Path | None = None) -> Path:
    """Return the folder that holds `PARTS`.

    Args:
        package: The package's folder (default: the folder of this installation).
    """
    if package is None:
        here = importlib.resources.files("pytest_trace2evolve")
        if not isinstance(here, Path):
            raise ConfigError(
                f"{here}: lies in an archive, and its files cannot be used from there; {_REINSTALL}"
            )
        package = here
    installed = package / TEMPLATE
    if installed.is_dir():
        return installed
    checkout = package.parent.parent
    if package.parent.name == "src" and (checkout / "suites").is_dir():
        return checkout
    raise ConfigError(f"{installed}: is missing from this installation; {_REINSTALL}")


def has_embedded_model() -> bool:
    try:
        return embedded_model().is_dir()
    except ConfigError:
        return False


def embedded_model(package: Path | None = None) -> Path:
    """The folder of the embedded model.

    Args:
        package: See `template`.
    """
    folder = template(package) / MODEL
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise ConfigError(
                f"{folder}: no embedded model, {name} is missing; {_REINSTALL}, or name another model"
            )
    return folder
