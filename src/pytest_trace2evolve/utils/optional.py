"""Optional packages: their imports, with one message if one is absent, versions and entry points."""

import importlib
import importlib.metadata
import importlib.util
import warnings
from collections.abc import Collection
from types import ModuleType

from pytest_trace2evolve.errors import MissingExtraError, refuse_taken

MODEL_PACKAGES = ("torch", "transformers", "tokenizers", "trl", "peft", "gepa")
"""The packages that train models and run them: another version may give other answers."""


def require(module: str, *, extra: str) -> ModuleType:
    """Import `module`, which the extra named `extra` installs.

    Raises:
        MissingExtraError: the module is not installed; the message holds the install command.
    """
    try:
        return quiet_import(module)
    except ModuleNotFoundError as error:
        wanted = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != wanted:
            raise  # the package is there and one of its dependencies is not: that message is the better one
        raise _missing(wanted, extra) from None


def require_installed(module: str, *, extra: str) -> None:
    """Check that a top-level module is installed, without importing it.

    Raises:
        MissingExtraError: it is not; the message holds the install command.
    """
    if importlib.util.find_spec(module) is None:
        raise _missing(module, extra)


def _missing(module: str, extra: str) -> MissingExtraError:
    return MissingExtraError(f"{module!r} is not installed; run: pip install 'pytest-trace2evolve[{extra}]'")


def quiet_import(module: str) -> ModuleType:
    """Import a module of somebody else's; its own deprecation warnings are no business of our users."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(module)


def model_package_versions() -> dict[str, str]:
    """The installed versions of `MODEL_PACKAGES`; empty for a package that is not installed."""
    return {name: _version(name) for name in MODEL_PACKAGES}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def entry_points(
    group: str, what: str, built_in: Collection[str] = ()
) -> dict[str, importlib.metadata.EntryPoint]:
    """The entry points of a group, by name.

    Args:
        group: The group.
        what: The kind of their registrations, as `world`, for the message.
        built_in: Names that this package registers itself.

    Raises:
        ConfigError: a name is registered twice; names both.
    """
    found: dict[str, importlib.metadata.EntryPoint] = {}
    for point in importlib.metadata.entry_points(group=group):
        if point.name in built_in:
            refuse_taken(what, point.name, "pytest-trace2evolve", described(point))
        if point.name in found:
            refuse_taken(what, point.name, described(found[point.name]), described(point))
        found[point.name] = point
    return found


def described(point: importlib.metadata.EntryPoint) -> str:
    """The name of an entry point in messages: its value and its distribution."""
    source = "" if point.dist is None else f" of {point.dist.name}"
    return f"entry point {point.value!r}{source}"
