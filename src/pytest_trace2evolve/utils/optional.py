"""Imports optional packages, reports missing packages and installed versions, and finds entry points."""

import importlib
import importlib.metadata
import importlib.util
import warnings
from collections.abc import Collection
from types import ModuleType

from pytest_trace2evolve.errors import MissingExtraError, duplicate_name_error

MODEL_PACKAGES = ("torch", "transformers", "tokenizers", "trl", "peft", "gepa")
"""The packages that train and run models; a different version may give different answers."""

CHECK_GROUP = "trace2evolve.checks"
"""Entry-point group of the checks of installed packages: a check's id, and a callable that makes it."""


def require(module: str, *, extra: str) -> ModuleType:
    """Import a module that an extra of this package installs.

    Raises:
        MissingExtraError: the module is not installed; the message contains the install command.
    """
    try:
        return import_quietly(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != package:
            raise  # a dependency of the package is missing, and its own message is better
        raise _missing_extra_error(package, extra) from None


def check_installed(package: str, *, extra: str) -> None:
    """Check that a package is installed, without importing it.

    Raises:
        MissingExtraError: the package is not installed.
    """
    if importlib.util.find_spec(package) is None:
        raise _missing_extra_error(package, extra)


def _missing_extra_error(package: str, extra: str) -> MissingExtraError:
    return MissingExtraError(f"{package!r} is not installed; run: pip install 'pytest-trace2evolve[{extra}]'")


def import_quietly(module: str) -> ModuleType:
    """Import a third-party module without its own deprecation warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(module)


def installed_version(distribution: str) -> str:
    """Return the version of an installed distribution; empty if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def model_package_versions() -> dict[str, str]:
    """Return the installed versions of `MODEL_PACKAGES`; a package that is not installed has version ''."""
    return {name: installed_version(name) for name in MODEL_PACKAGES}


def entry_points(
    group: str, kind: str, built_in: Collection[str] = ()
) -> dict[str, importlib.metadata.EntryPoint]:
    """Return the entry points of a group, by name.

    Args:
        group: The group.
        kind: The kind of object that the entry points register, such as `world`, for error messages.
        built_in: Names that this package registers itself.
    """
    points: dict[str, importlib.metadata.EntryPoint] = {}
    for point in importlib.metadata.entry_points(group=group):
        if point.name in built_in:
            raise duplicate_name_error(kind, point.name, "pytest-trace2evolve", describe_entry_point(point))
        if point.name in points:
            raise duplicate_name_error(
                kind, point.name, describe_entry_point(points[point.name]), describe_entry_point(point)
            )
        points[point.name] = point
    return points


def describe_entry_point(point: importlib.metadata.EntryPoint) -> str:
    """Describe an entry point for messages, by its value and its distribution."""
    source = "" if point.dist is None else f" of {point.dist.name}"
    return f"entry point {point.value!r}{source}"
