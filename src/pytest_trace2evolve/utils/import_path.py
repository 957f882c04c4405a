"""Imports an object by its path, such as `app.bot:make`."""

import importlib
import sys
from pathlib import Path
from typing import Any


def is_import_path(name: str) -> bool:
    """Whether a name is an import path and not the name of a registered object or a URL."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *attribute.split(".")))


def load_object(path: str, folder: Path) -> Any:
    """Import an object; modules are also looked up in `folder`, before all other places.

    Raises:
        LookupError: the module has no such attribute; the message is one line.
        Exception: the module raises it while it is imported.
    """
    module_name, _, attribute = path.partition(":")
    add_to_path(folder)
    value: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise LookupError(f"module {module_name!r} has no {attribute!r}")
        value = getattr(value, part)
    return value


def add_to_path(folder: Path) -> None:
    """Let Python import from a folder."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
