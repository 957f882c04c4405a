"""Reads the pytest settings of a folder without pytest."""

import configparser
import importlib.metadata
import os
import re
import shlex
from pathlib import Path
from typing import Any

from pytest_trace2evolve.utils.reading import load_text, parse_toml

_DEDICATED_FILES = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini")
"""Files that pytest uses even without settings in them. The first existing one counts."""

_SHARED_FILES = ("pyproject.toml", "tox.ini", "setup.cfg")
"""Files that pytest tries next, and uses only if they hold a table or section for pytest."""

_REQUIREMENT = re.compile(r"^Requires-Dist: pytest[-_.]trace2evolve\b", re.MULTILINE | re.IGNORECASE)


def pytest_settings(root: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the file that holds a folder's pytest settings, and the settings; None without such a file.

    Raises:
        OSError, ValueError, configparser.Error: a file that pytest would read cannot be read.
    """
    for name in (*_DEDICATED_FILES, *_SHARED_FILES):
        path = root / name
        if path.is_file():
            settings = _toml_settings(path) if path.suffix == ".toml" else _ini_settings(path)
            if settings is not None or name in _DEDICATED_FILES:
                return path, settings or {}
    return None


def _toml_settings(path: Path) -> dict[str, Any] | None:
    table: Any = parse_toml(load_text(path))
    if path.name == "pyproject.toml":
        table = table.get("tool", {})
    settings = table.get("pytest") if isinstance(table, dict) else None
    if not isinstance(settings, dict) or path.name != "pyproject.toml":
        return settings if isinstance(settings, dict) else None
    if settings.keys() - {"ini_options"}:
        return settings
    options = settings.get("ini_options")
    return options if isinstance(options, dict) else None


def _ini_settings(path: Path) -> dict[str, Any] | None:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(load_text(path))
    section = "tool:pytest" if path.name == "setup.cfg" else "pytest"
    return dict(parser[section]) if section in parser else None


def ini_value(root: Path, key: str) -> str | None:
    """Return the text of a key in a folder's pytest settings; None without a readable text."""
    value = _read_setting(root, key)
    return value.strip() if isinstance(value, str) else None


def ini_words(root: Path, key: str) -> list[str]:
    """Return the words of a key in a folder's pytest settings, split as pytest does.

    The list is empty if the settings or the words cannot be read.
    """
    value = _read_setting(root, key)
    try:
        return shlex.split(value) if isinstance(value, str) else [str(word) for word in value or ()]
    except ValueError:  # an unclosed quotation, which pytest rejects
        return []


def _read_setting(root: Path, key: str) -> Any:
    try:
        settings = pytest_settings(root)
    except (OSError, ValueError, configparser.Error):
        return None
    return settings[1].get(key) if settings else None


def may_have_hooks(root: Path, suites_folder: Path) -> bool:
    """Whether a file or plugin that pytest would load for a project may implement a hook.

    Such files and plugins are a `conftest.py` in the root or in the folder of suites, a plugin named by `-p`
    or `PYTEST_PLUGINS`, and an installed plugin whose distribution requires this one. This function does not
    import pytest.
    """
    if any((folder / "conftest.py").is_file() for folder in (root, suites_folder)):
        return True
    words = (*ini_words(root, "addopts"), *os.environ.get("PYTEST_ADDOPTS", "").split())
    if os.environ.get("PYTEST_PLUGINS") or any(word.startswith("-p") for word in words):
        return True
    # The metadata is searched as text, because parsing it for each plugin would take longer than all else.
    return any(
        re.search(_REQUIREMENT, point.dist.read_text("METADATA") or "")
        for point in importlib.metadata.entry_points(group="pytest11")
        if point.dist is not None and point.name != "trace2evolve"
    )
