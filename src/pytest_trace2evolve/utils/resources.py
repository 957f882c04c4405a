"""Locates the files that ship with the package: the template of a project, and the embedded model.

A wheel contains these files in `template/` inside the package's folder. In an editable install they are in
the checkout, in the folders that `pyproject.toml` maps to `template/`, under the same names.
"""

import importlib.resources
from pathlib import Path

from pytest_trace2evolve.errors import ConfigError

TEMPLATE_FOLDER = "template"
"""The template's folder in the installed package."""

MODEL_PATH = "adapters/pocket"
"""The embedded model's folder in the template."""

WORKFLOW_PATH = "docs/examples/agents.yml"
"""The CI workflow in the template."""

LIBRARY_PATH = "docs/examples/library"
"""The example of an agent of one's own in the template."""

TEMPLATE_PARTS = (
    "suites",
    "candidates",
    "synthetic",
    "baselines/support",
    "prices.toml",
    WORKFLOW_PATH,
    LIBRARY_PATH,
    MODEL_PATH,
)
"""The files and folders that ship, as paths that are the same in the repository and in the template."""

_REINSTALL_HINT = "reinstall pytest-trace2evolve from its wheel"


def template_folder(package: Path | None = None) -> Path:
    """Return the folder that contains `TEMPLATE_PARTS`.

    Args:
        package: The package's folder (default: the folder of this installation).
    """
    if package is None:
        location = importlib.resources.files("pytest_trace2evolve")
        if not isinstance(location, Path):
            raise ConfigError(f"{location}: is in an archive, so its files cannot be used; {_REINSTALL_HINT}")
        package = location
    installed_template = package / TEMPLATE_FOLDER
    if installed_template.is_dir():
        return installed_template
    checkout = package.parent.parent
    if package.parent.name == "src" and (checkout / "suites").is_dir():
        return checkout
    raise ConfigError(f"{installed_template}: is missing from this installation; {_REINSTALL_HINT}")


def has_embedded_model() -> bool:
    try:
        return embedded_model().is_dir()
    except ConfigError:
        return False


def embedded_model(package: Path | None = None) -> Path:
    """Return the folder of the embedded model.

    Args:
        package: See `template_folder`.
    """
    folder = template_folder(package) / MODEL_PATH
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise ConfigError(
                f"{folder}: not an embedded model, because {name} is missing; {_REINSTALL_HINT}, or name a "
                "different model"
            )
    return folder
