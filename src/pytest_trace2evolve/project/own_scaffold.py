"""Sets up the evaluation of a user's own agent: `trace2evolve init --for own`.

The template is the example of a library desk: an agent, a world, four tasks, two candidates and a workflow.
The template works immediately, without an API key, so a user can replace its parts one by one.
"""

import configparser
import posixpath
from pathlib import Path

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.project.lock import LOCK_NAME
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.pytest_ini import ini_value, pytest_settings
from pytest_trace2evolve.project.scaffold import (
    SUITES_FOLDER,
    SUITES_KEY,
    FileState,
    Scaffold,
    add_copies,
    add_file,
    add_git_files,
    add_workflow,
    check_folder,
    scaffold_error,
)
from pytest_trace2evolve.project.schemas import schema_files
from pytest_trace2evolve.project.tool_settings import FILE_NAME, TABLE, read_tool_settings
from pytest_trace2evolve.utils import resources
from pytest_trace2evolve.utils.files import real_path

SUITE = "desk"
"""The suite of the template."""

BASELINE = "v0"
"""The candidate of the template that is measured first."""

_LOCKED_PATHS = ("desk/data.json", "desk/world.py", f"suites/{SUITE}.toml", "tasks.yaml")
"""The files that the lock covers."""

_COPIED_PATHS = (
    "desk/__init__.py",
    "desk/agent.py",
    *_LOCKED_PATHS,
    "candidates/v0.md",
    "candidates/v1.md",
    "prompts/v0.md",
    "prompts/v1.md",
)


def plan_own_scaffold(root: Path, *, workflow: bool | None = None) -> Scaffold:
    """Plan the files for an agent of one's own without writing anything; see `plan_scaffold`."""
    source = resources.template_folder() / resources.LIBRARY_PATH
    scaffold = Scaffold(root, (SUITE,))
    try:
        check_folder(root)
        _check_suites_folder(root)
        add_copies(scaffold, source, {path: path for path in _COPIED_PATHS})
        for path, text in schema_files().items():
            add_file(scaffold, path, text)
        _add_project_settings(scaffold, source)
        _add_lock(scaffold)
        add_git_files(scaffold)
        add_workflow(scaffold, workflow)
    except OSError as error:
        raise scaffold_error(root, "read", error) from None
    return scaffold


def lock_own_suite(scaffold: Scaffold) -> None:
    """Write the lock of the template's suite if the plan says so. All other files must already be written."""
    path = f"{SUITES_FOLDER}/{LOCK_NAME}"
    states = {file.path: file.state for file in scaffold.files}
    if states.get(path) in (FileState.WRITTEN, FileState.CHANGED):
        project = _project(scaffold.root)
        project.renew_lock(project.open_worlds(), [SUITE])


def _project(root: Path) -> Project:
    return Project(root=root, suites_folder=root / SUITES_FOLDER)


def _add_lock(scaffold: Scaffold) -> None:
    """Plan the lock of the suite, or add a note instead if a locked file is not the template's.

    The lock is written by `lock_own_suite`.
    """
    path = f"{SUITES_FOLDER}/{LOCK_NAME}"
    project = _project(scaffold.root)
    if SUITE in project.lock.suites:
        scaffold.add(path, FileState.PRESENT)
    elif not scaffold.is_sound(*_LOCKED_PATHS, FILE_NAME):
        scaffold.notes.append(f"when your files are complete, run 'trace2evolve lock {SUITE}'")
    elif project.lock_path.exists():
        scaffold.add(path, FileState.CHANGED, f"{SUITE} added")
    else:
        scaffold.add(path, FileState.WRITTEN)


def _add_project_settings(scaffold: Scaffold, source: Path) -> None:
    """Add `pyproject.toml`, or a note with the lines to add to the folder's existing file.

    pytest's settings are left out if the folder or a folder above has some, so that `pytest` without options
    is unchanged.
    """
    text = (source / FILE_NAME).read_text(encoding="utf-8")
    table = text.partition("[tool.pytest")[0]
    path = scaffold.root / FILE_NAME
    has_settings = _has_settings(scaffold.root) or is_below_pytest_settings(scaffold.root)
    if not path.exists():
        scaffold.add(FILE_NAME, FileState.WRITTEN, text=table if has_settings else text)
        return
    current_settings, template_settings = read_tool_settings(scaffold.root), read_tool_settings(source)
    if (current_settings.agent, current_settings.world) == (template_settings.agent, template_settings.world):
        scaffold.add(FILE_NAME, FileState.PRESENT)
        return
    scaffold.add(FILE_NAME, FileState.LEFT_ALONE)
    if current_settings.agent is None and current_settings.world is None:
        lines = "\n".join(f"    {line}" for line in table.splitlines())
        scaffold.notes.append(f"add to {FILE_NAME}:\n{lines}")
    else:
        scaffold.notes.append(
            f"{FILE_NAME} names an agent or a world of your own in [tool.{TABLE}]; the template's are "
            f"{template_settings.agent} and {template_settings.world}"
        )


def is_below_pytest_settings(root: Path) -> bool:
    """Whether pytest takes a folder above as its rootdir, because only that folder has settings."""
    resolved = real_path(root)
    return not _has_settings(resolved) and any(map(_has_settings, resolved.parents))


def _has_settings(folder: Path) -> bool:
    try:
        return pytest_settings(folder) is not None
    except (ValueError, configparser.Error):
        return True


def _check_suites_folder(root: Path) -> None:
    """Check the folder of suites in pytest's settings. Raises `ConfigError` if it is a different folder."""
    value = ini_value(root, SUITES_KEY)
    if value and posixpath.normpath(value) != SUITES_FOLDER:
        raise ConfigError(
            f"{root}: pytest's settings say that {SUITES_KEY} is {value!r}, but suites are written to "
            f"{SUITES_FOLDER!r}; set it to that, or choose a different folder"
        )
