"""Reads the user's own patterns of personal data from `redact.toml`."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.project.tool_settings import FILE_NAME, read_tool_settings
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.utils.reading import convert_failures, read_toml


def _check_pattern(pattern: re.Pattern[str]) -> re.Pattern[str]:
    if pattern.search("") is not None:
        raise ValueError("matches the empty text; make it need a character")
    return pattern


class Patterns(Record):
    """The user's own patterns.

    Attributes:
        keep: Words that stay.
        patterns: Regular expressions by the name of the kind that they find.
    """

    keep: tuple[str, ...] = ()
    patterns: dict[str, Annotated[re.Pattern[str], AfterValidator(_check_pattern)]] = Field(
        default_factory=dict
    )


def read_patterns(path: Path) -> Patterns:
    """Read a file with the list `keep` and the table `patterns`.

    Raises:
        ConfigError: the file cannot be read, has an unknown key, or holds an invalid value.
    """
    table = read_toml(path, ConfigError)
    with convert_failures(path, ConfigError, "fix the file"):
        return Patterns.model_validate(table)


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
