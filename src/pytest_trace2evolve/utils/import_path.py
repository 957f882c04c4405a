"""Imports an object by its path, such as `app.bot:make`."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from pytest_trace2evolve.errors import name_suggestion


def is_import_path(name: str) -> bool:
    """Whether a name is an import path and not the name of a registered object or a URL."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *attribute.split(".")))


def is_url(name: str) -> bool:
    """Whether a name is the URL of an agent."""
    return name.startswith(("http://", "https://"))


def is_own_agent(name: str) -> bool:
    """Whether a name is an import path or a URL, and therefore that of a project's own agent."""
    return is_url(name) or is_import_path(name)


def project_paths(root: Path, folder: Path) -> tuple[Path, ...]:
    """The folders in which the modules of a project are looked up.

    Args:
        root: The project's root. Folders inside it from which this process imports count too, such as those
            that pytest's setting `pythonpath` adds.
        folder: A copy of the project's files; the root itself for the current ones.
    """
    paths = []
    for entry in sys.path:
        path = Path(entry)
        if path.is_absolute() and path.is_relative_to(root) and not _ENVIRONMENT_FOLDER.search(entry):
            paths.append(folder / path.relative_to(root))
    # The order is that of this process, so that a module's code is identified by the file that is imported.
    added_paths = [path for path in (folder, folder / "src") if path not in paths]
    return tuple(path for path in dict.fromkeys([*added_paths, *paths]) if path.is_dir())


_ENVIRONMENT_FOLDER = re.compile(r"site-packages|dist-packages|lib[\\/]python\d|\.trace2evolve")


def load_object(path: str, folder: Path) -> Any:
    """Import an object; modules are also looked up in `folder`, before all other places.

    Raises:
        LookupError: the module has no such attribute; the message is one line.
        Exception: the module raises it while it is imported.
    """
    module_name, _, attribute = path.partition(":")
    add_to_path(folder)
    return find_attribute(importlib.import_module(module_name), module_name, attribute)


def find_attribute(value: Any, module_name: str, attribute: str) -> Any:
    """Return an attribute of a module, such as `make` or `Bot.make`.

    Raises:
        LookupError: the module has no such attribute; the message is one line.
    """
    for part in attribute.split("."):
        if not hasattr(value, part):
            known_names = [name for name in dir(value) if not name.startswith("_")]
            remedy = name_suggestion(part, known_names, max_names=5)
            raise LookupError(f"module {module_name!r} has no {attribute!r} ({remedy})")
        value = getattr(value, part)
    return value


def add_to_path(folder: Path) -> None:
    """Let Python import from a folder."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
