"""Where the files that ship with the package lie: what projects are laid out from, and the embedded model.

A wheel holds them in `template/` beside this file. In git they are once, in the folders of the repository
that `pyproject.toml` maps there; an editable install finds them in its checkout, under the same names.
"""

import importlib.resources
from pathlib import Path

from pytest_trace2evolve.errors import ConfigError

TEMPLATE = "template"
"""The folder of the installed package."""

MODEL = "adapters/pocket"
"""The embedded model's folder, from the template."""

WORKFLOW = "docs/examples/agents.yml"
"""The CI workflow, from the template."""

PARTS = ("suites", "candidates", "synthetic", "baselines/support", "prices.toml", WORKFLOW, MODEL)
"""Everything that ships, as paths of the repository and of the template."""

_AGAIN = "install pytest-trace2evolve again, from its wheel"


def template(package: Path | None = None) -> Path:
    """The folder that holds `PARTS`.

    Args:
        package: The package's folder (default: that of this installation).

    Raises:
        ConfigError: the installation has none.
    """
    if package is None:
        here = importlib.resources.files("pytest_trace2evolve")
        if not isinstance(here, Path):
            raise ConfigError(
                f"{here}: lies in an archive, and its files cannot be used from there; {_AGAIN}"
            )
        package = here
    installed = package / TEMPLATE
    if installed.is_dir():
        return installed
    checkout = package.parent.parent
    if package.parent.name == "src" and (checkout / "suites").is_dir():
        return checkout
    raise ConfigError(f"{installed}: is missing from this installation; {_AGAIN}")


def has_embedded_model() -> bool:
    """Whether this installation carries the embedded model."""
    try:
        return embedded_model().is_dir()
    except ConfigError:
        return False


def embedded_model(package: Path | None = None) -> Path:
    """The folder of the embedded model; it is used from where it lies.

    Args:
        package: The package's folder (default: that of this installation).

    Raises:
        ConfigError: this installation carries no model.
    """
    folder = template(package) / MODEL
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise ConfigError(
                f"{folder}: no embedded model, {name} is missing; {_AGAIN}, or name another model"
            )
    return folder
