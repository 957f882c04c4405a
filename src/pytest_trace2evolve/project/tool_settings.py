"""The project's settings in the table `[tool.trace2evolve]` of `pyproject.toml`."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.trace_check import CHECK_TIMEOUT
from pytest_trace2evolve.utils.reading import first_problem, read_toml

FILE_NAME = "pyproject.toml"
TABLE = "trace2evolve"

ImportPath = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]
"""The path of an object to import, such as `app.bot:make`."""

AgentName = Annotated[
    str,
    Field(pattern=r"^(https?://[^\s/].*|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)$"),
]
"""The name of a project's own agent: an import path, or a URL such as `http://127.0.0.1:8080/chat`."""


class ToolSettings(Record):
    """The settings of a project, all optional.

    Attributes:
        agent: The agent of suites that name no agent: an import path, a URL, or an agent's name.
        world: The import path of the world of suites that name no world.
        checks: The module with the project's own checks of traces.
        check_timeout: The seconds that a check's function has for one simulation.
        code: Further folders whose files belong to the code of the agent.
        redact: The file with further patterns of personal data that `trace2evolve import` replaces.
    """

    agent: str | None = None
    world: ImportPath | None = None
    checks: str | None = None
    check_timeout: Annotated[float, Field(gt=0)] = CHECK_TIMEOUT
    code: tuple[str, ...] = ()
    redact: str | None = None


def read_tool_settings(root: Path) -> ToolSettings:
    """Read the settings of a project; without a file or a table, all have their defaults.

    Raises:
        ConfigError: the file is not TOML, or a setting is unknown or of the wrong type.
    """
    path = root / FILE_NAME
    if not path.is_file():
        return ToolSettings()
    table = read_toml(path, ConfigError).get("tool", {}).get(TABLE, {})
    try:
        return ToolSettings.model_validate(table)
    except ValidationError as error:
        raise ConfigError(f"{path}: [tool.{TABLE}]: {first_problem(error, 'table')}") from None


def find_code_folders(root: Path) -> dict[str, Path]:
    """Return the folders of the setting `code` by their names.

    Raises:
        ConfigError: a folder does not exist.
    """
    folders = {name.rstrip("/"): root / name for name in read_tool_settings(root).code}
    for name, folder in folders.items():
        if not folder.is_dir():
            raise ConfigError(
                f"{root / FILE_NAME}: [tool.{TABLE}] code: {name!r} is not a folder; correct it"
            )
    return folders
