"""Sets up a new project in a user's folder from the files that ship with the package.

`plan_scaffold` reads and decides, `write_scaffold` writes. A file is new, already there with the shipped
content, or left alone because its content differs. The user's pytest settings and `.gitignore` are never
changed; a note says which line to add. Of the existing files, only the lock changes: it gets missing suites.
"""

import configparser
import importlib.util
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pytest_trace2evolve.errors import ConfigError, SuiteError, nearest
from pytest_trace2evolve.project.lock import Lock, SuiteLock, render_lock
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.pytest_ini import pytest_settings
from pytest_trace2evolve.project.suites import SPLITS_NAME
from pytest_trace2evolve.utils import resources
from pytest_trace2evolve.utils.files import write_together
from pytest_trace2evolve.utils.reading import RECORDS, open_regular

EVERY = "all"
WORKFLOW = ".github/workflows/agents.yml"
RUNS = ".trace2evolve/"
"""The folder of runs, which `.gitignore` excludes."""

KEY, FOLDER = "t2e_suites", "suites"
"""The key of pytest's settings that names the folder of suites, and its value."""

EXTRAS = {"inspect_evals": "tau2", "tau2": "tau2"}
"""Third-party packages that provide worlds, and the extra that installs each."""


class State(StrEnum):
    """The scaffold's action on a file."""

    WRITTEN = "written"
    CHANGED = "changed"
    THERE = "there"
    LEFT = "left alone"


@dataclass(frozen=True)
class ScaffoldFile:
    """A file: its path from the root, the action on it, and a detail for the reader."""

    path: str
    state: State
    detail: str = ""

    @property
    def sound(self) -> bool:
        return self.state in (State.WRITTEN, State.THERE)


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

    def add(self, path: str, state: State, detail: str = "", *, text: str | None = None) -> None:
        self.files.append(ScaffoldFile(path, state, detail))
        if text is not None:
            self.contents[self.root / path] = text

    def is_sound(self, *paths: str) -> bool:
        sound = {file.path: file.sound for file in self.files}
        return all(sound.get(path, True) for path in paths)


def plan_scaffold(root: Path, suites: Sequence[str], *, workflow: bool | None = None) -> Scaffold:
    """Plan the files of a folder without writing anything.

    Args:
        root: The folder; it need not exist.
        suites: Names of suites, or `all` for every one that ships.
        workflow: Whether to add the CI workflow; None adds it unless GitHub would not see it there.

    Raises:
        SuiteError: a suite is unknown; the message names the nearest one.
        ConfigError: `root` is a file, or something in it cannot be read or contradicts the scaffold.
    """
    source = resources.template()
    template = Project(root=source, suites_folder=source / "suites")
    scaffold = Scaffold(root, _chosen_suites(suites, template))
    try:
        if root.exists() and not root.is_dir():
            raise ConfigError(f"{root} is a file; name a folder, which is made if it does not exist")
        _add_copies(scaffold, source, {path: path for path in _paths(template, scaffold.suites)})
        _add_baselines(scaffold, template, _add_lock(scaffold, template))
        _add_settings(scaffold)
        _add_ignore(scaffold)
        if _wants_workflow(scaffold, workflow):
            _add_copies(scaffold, source, {WORKFLOW: resources.WORKFLOW})
    except OSError as error:
        raise _failure(root, "read", error) from None
    scaffold.notes += _missing_extras(template, scaffold.suites)
    return scaffold


def write_scaffold(scaffold: Scaffold) -> None:
    """Write a scaffold, all of it or nothing."""
    try:
        write_together(scaffold.contents)
    except OSError as error:
        raise _failure(scaffold.root, "written", error) from None


def _failure(root: Path, verb: str, error: OSError) -> ConfigError:
    place = error.filename if isinstance(error.filename, str) else root
    return ConfigError(
        f"{place}: cannot be {verb} ({error.strerror or error}), and nothing was laid out; correct that or "
        "name another folder"
    )


def _chosen_suites(names: Sequence[str], template: Project) -> tuple[str, ...]:
    known = template.suite_names
    for name in names:
        if name not in (*known, EVERY):
            raise SuiteError(
                f"no suite {name!r} ships with pytest-trace2evolve; {nearest(name, [*known, EVERY])}"
            )
    return tuple(dict.fromkeys(suite for name in names for suite in (known if name == EVERY else [name])))


def _paths(template: Project, suites: Sequence[str]) -> Iterator[str]:
    """Paths of the files that are copied unchanged, except baselines and the workflow."""
    if (template.suites_folder / SPLITS_NAME).exists():
        yield f"suites/{SPLITS_NAME}"
    for name in suites:
        yield from _files_of(template, name)
    yield from (f"candidates/{name}.md" for name in template.candidates)
    yield from ("synthetic/pressure.jsonl", "synthetic/test_pressure.py", "prices.toml")


def _files_of(template: Project, suite: str) -> list[str]:
    """A suite's own files: its definition, and the files of its cases."""
    cases = [spec.cases for spec in template.suite(suite).case_splits.values()]
    return [f"suites/{suite}.toml", *cases]


def _add_copies(scaffold: Scaffold, source: Path, paths: Mapping[str, str]) -> None:
    """Add files that are copied unchanged. `paths` maps paths in the folder to paths in the template."""
    for path, origin in paths.items():
        text = (source / origin).read_bytes().decode("utf-8")
        current = _current(scaffold.root / path)
        if current is None:
            scaffold.add(path, State.WRITTEN, text=text)
        elif current.replace(b"\r\n", b"\n") == text.encode():
            scaffold.add(path, State.THERE)
        else:
            scaffold.add(path, State.LEFT, "yours says something else")


def _current(path: Path) -> bytes | None:
    """Return the content of a file; None if its path is free. A broken link counts as an empty file."""
    try:
        with open_regular(path) as file:
            return file.read(RECORDS)
    except FileNotFoundError:
        return b"" if path.is_symlink() else None


def _add_lock(scaffold: Scaffold, template: Project) -> set[str]:
    """Add missing suites to the lock, and return the suites whose lock is the shipped one."""
    project = Project(root=scaffold.root, suites_folder=scaffold.root / "suites")
    before, exists = project.lock.suites, project.lock_path.exists()
    added: dict[str, SuiteLock] = {}
    others: list[str] = []
    for name in scaffold.suites:
        if name in before:
            if before[name].digest != template.lock.suites[name].digest:
                others.append(name)
        elif scaffold.is_sound(*_files_of(template, name), f"suites/{SPLITS_NAME}"):
            added[name] = template.lock.suites[name]
        else:
            scaffold.notes.append(
                f"{name}: files of yours differ from what is locked: run 'trace2evolve lock {name}'"
            )
    path = "suites/suites.lock"
    if added:
        text = render_lock(Lock(suites={**before, **added}))
        detail = f"{', '.join(added)} added" if exists else ""
        scaffold.add(path, State.CHANGED if exists else State.WRITTEN, detail, text=text)
    elif others:
        scaffold.add(path, State.LEFT, f"locks {', '.join(others)} otherwise")
    elif exists:
        scaffold.add(path, State.THERE)
    return {name for name in scaffold.suites if name in added or (name in before and name not in others)}


def _add_baselines(scaffold: Scaffold, template: Project, locked: set[str]) -> None:
    """Add the baselines of unchanged suites and candidates; they do not apply to changed ones."""
    for suite in scaffold.suites:
        for name in template.baseline_names(suite):
            path = template.baseline_path(suite, name).relative_to(template.root).as_posix()
            is_other = suite not in locked or not scaffold.is_sound(f"candidates/{name}.md")
            if is_other and _current(scaffold.root / path) is None:
                scaffold.notes.append(
                    f"{path} was left out: your {suite} or {name} is another; measure your own with "
                    f"pytest --t2e-save-baseline {name}"
                )
            else:
                _add_copies(scaffold, template.root, {path: path})


def _add_settings(scaffold: Scaffold) -> None:
    """Add `pytest.ini`, or a note with the line to add to the folder's existing settings."""
    try:
        found = pytest_settings(scaffold.root)
    except (ValueError, configparser.Error) as error:
        problem = " ".join(str(error).split())
        scaffold.notes.append(
            f"pytest's settings cannot be read ({problem}): correct them, and run this again"
        )
        return
    path, settings = found or (scaffold.root / "pytest.ini", {})
    value = settings.get(KEY)
    if isinstance(value, str) and posixpath.normpath(value.strip()) == FOLDER:
        scaffold.add(path.name, State.THERE)
        return
    if value is not None:
        raise ConfigError(
            f"{path}: {KEY} is {value!r}, and suites are laid out in {FOLDER!r}; set it to that, or lay out "
            "another folder"
        )
    if found is None:
        scaffold.add(path.name, State.WRITTEN, KEY, text=f"[pytest]\n{KEY} = {FOLDER}\n")
    else:
        line = f'{KEY} = "{FOLDER}"' if path.suffix == ".toml" else f"{KEY} = {FOLDER}"
        scaffold.add(path.name, State.LEFT)
        scaffold.notes.append(f"add to pytest's settings in {path.name}: {line}")
    if "testpaths" not in settings:
        scaffold.notes.append(
            "pytest without options collects suites/ and synthetic/ too: "
            f"to keep it to tests of your own, set testpaths in {path.name}"
        )


def _add_ignore(scaffold: Scaffold) -> None:
    """Add `.gitignore`, or a note with the line to add to the folder's existing file."""
    name = ".gitignore"
    current = _current(scaffold.root / name)
    if current is None:
        scaffold.add(name, State.WRITTEN, text=f"{RUNS}\n")
    elif RUNS.strip("/").encode() in {line.strip().strip(b"/") for line in current.splitlines()}:
        scaffold.add(name, State.THERE)
    else:
        scaffold.add(name, State.LEFT)
        scaffold.notes.append(f"add to {name}: {RUNS}")


def _wants_workflow(scaffold: Scaffold, workflow: bool | None) -> bool:
    if workflow is not None:
        return workflow
    here = scaffold.root.resolve()
    top = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
    if top != here:
        scaffold.notes.append(
            f"no workflow was added: GitHub reads those at the top of a repository, {top}; --workflow adds it"
        )
    return top == here


def _missing_extras(template: Project, suites: Sequence[str]) -> Iterator[str]:
    if (template.root / resources.MODEL).is_dir() and importlib.util.find_spec("torch") is None:
        yield "for the embedded model install: pip install 'pytest-trace2evolve[local]'"
    providers = {name: template.suite(name).provider for name in suites}
    for provider in dict.fromkeys(providers.values()):
        if provider in EXTRAS and importlib.util.find_spec(provider) is None:
            users = ", ".join(name for name in suites if providers[name] == provider)
            yield f"for {users} install: pip install 'pytest-trace2evolve[{EXTRAS[provider]}]'"
