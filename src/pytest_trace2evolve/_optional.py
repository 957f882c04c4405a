"""Optional packages, imported in one place so that their absence has one message."""

import importlib
import warnings
from types import ModuleType

from pytest_trace2evolve.errors import MissingExtraError


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
        raise MissingExtraError(
            f"{wanted!r} is not installed; run: pip install 'pytest-trace2evolve[{extra}]'"
        ) from None


def quiet_import(module: str) -> ModuleType:
    """Import a module of somebody else's; its own deprecation warnings are no business of our users."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(module)
