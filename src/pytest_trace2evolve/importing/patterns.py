"""Reads the user's own patterns of personal data from `redact.toml`."""

import re
from pathlib import Path

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.importing.redact import Patterns
from pytest_trace2evolve.project.tool_settings import FILE_NAME, read_tool_settings
from pytest_trace2evolve.utils.reading import read_toml

_KEYS = ("keep", "patterns")


def read_patterns(path: Path) -> Patterns:
    """Read a file with the list `keep` and the table `patterns`.

    Raises:
        ConfigError: the file cannot be read, has an unknown key, or holds an invalid value.
    """
    table = read_toml(path, ConfigError)
    for key in table:
        if key not in _KEYS:
            raise ConfigError(f"{path}: unknown key {key!r}; known are {', '.join(_KEYS)}")
    keep = table.get("keep", [])
    if not isinstance(keep, list) or not all(isinstance(word, str) for word in keep):
        raise ConfigError(f"{path}: 'keep' must be a list of texts, as in keep = [\"Acme\"]")
    pattern_texts = table.get("patterns", {})
    if not isinstance(pattern_texts, dict):
        raise ConfigError(f"{path}: 'patterns' must be a table, as in [patterns] with badge = 'EMP-\\d+'")
    expressions: dict[str, re.Pattern[str]] = {}
    for name, text in pattern_texts.items():
        if not isinstance(text, str):
            raise ConfigError(f"{path}: pattern {name!r} must be a text")
        try:
            expressions[name] = re.compile(text)
        except (re.error, RecursionError, OverflowError) as error:
            raise ConfigError(
                f"{path}: pattern {name!r} is no regular expression ({error}); fix it"
            ) from None
        if expressions[name].search("") is not None:
            raise ConfigError(f"{path}: pattern {name!r} matches the empty text; make it need a character")
    return Patterns(frozenset(word.casefold() for word in keep), expressions)


def patterns_of_project(folder: Path) -> Patterns:
    """Return the patterns in the file that `redact` of the nearest `pyproject.toml` names, or none.

    Raises:
        ConfigError: the settings or the file that they name cannot be read or are invalid.
    """
    for parent in (folder, *folder.parents):
        if (parent / FILE_NAME).is_file():
            file_name = read_tool_settings(parent).redact
            return read_patterns(parent / file_name) if file_name else Patterns()
    return Patterns()
