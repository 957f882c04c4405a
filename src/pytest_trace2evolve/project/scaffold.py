"""Lays what ships with the package out in a user's folder: what is there already stays as it is.

`lay_out` reads and decides, `write` writes. Files are new, already there as they ship, or left alone because
they say something else. Three files of the user's get something added instead: the lock gets the suites that
it lacks, pytest's settings the ini key, and `.gitignore` the folder of runs.
"""

import importlib.util
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pytest_trace2evolve.errors import ConfigError, SuiteError, nearest
from pytest_trace2evolve.project.lock import Lock, SuiteLock, render_lock
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.pytest_ini import pytest_ini
from pytest_trace2evolve.project.suites import SPLITS_NAME
from pytest_trace2evolve.utils import resources as shipped
from pytest_trace2evolve.utils.files import write_together
from pytest_trace2evolve.utils.reading import RECORDS, open_regular

DEFAULT_SUITE = "support"
EVERY = "all"
WORKFLOW = ".github/workflows/agents.yml"
RUNS = ".trace2evolve/"
"""What `.gitignore` gets."""

EXTRAS = {"inspect_evals": "tau2", "tau2": "tau2"}
"""Providers of worlds that are packages of others, and the extra that installs each."""


class State(StrEnum):
    """What becomes of a file."""

    WRITTEN = "written"
    CHANGED = "changed"
    THERE = "there"
    LEFT = "left alone"


@dataclass(frozen=True)
class LaidOut:
    """One file: its path from the root, what becomes of it, and why or what in it."""

    path: str
    state: State
    detail: str = ""

    @property
    def sound(self) -> bool:
        """Whether the file says what ships."""
        return self.state in (State.WRITTEN, State.THERE)


@dataclass
class Layout:
    """What is, or would be, laid out in a folder.

    Attributes:
        root: The folder.
        suites: The suites, in the order in which they were named.
        files: Every file, in the order of laying out.
        contents: The whole new text of each file that is written or changed.
        notes: What the user should know besides, a line each.
    """

    root: Path
    suites: tuple[str, ...]
    files: list[LaidOut] = field(default_factory=list)
    contents: dict[Path, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The layout as plain JSON types, without the contents."""
        return {
            "folder": str(self.root),
            "suites": list(self.suites),
            "files": [
                {"path": one.path, "state": one.state.value, "detail": one.detail} for one in self.files
            ],
            "notes": self.notes,
        }


def lay_out(root: Path, suites: Sequence[str], *, workflow: bool | None = None) -> Layout:
    """Decide what a folder gets; nothing is written.

    Args:
        root: The folder; it need not exist.
        suites: Names of suites, or `all` for every one that ships.
        workflow: Whether to add the CI workflow; None adds it unless GitHub would not see it there.

    Raises:
        SuiteError: a suite is unknown; names the nearest.
        ConfigError: `root` is a file, or something in it cannot be read or contradicts the layout.
    """
    source = shipped.template()
    template = Project(root=source, suites_folder=source / "suites")
    names = _chosen(suites, template)
    layout = Layout(root, names)
    try:
        if root.exists() and not root.is_dir():
            raise ConfigError(f"{root} is a file; name a folder, which is made where it does not exist")
        _place(layout, source, _paths(template, names))
        _place_baselines(layout, template, _lock(layout, template))
        _settings(layout)
        _ignore(layout)
        if _wants_workflow(layout, workflow):
            _place(layout, source, {WORKFLOW: shipped.WORKFLOW})
    except OSError as error:
        raise _refusal(root, "read", error) from None
    layout.notes += _missing_extras(template, names)
    return layout


def write(layout: Layout) -> None:
    """Write a layout, all of it or nothing; what was there keeps its mode.

    Raises:
        ConfigError: the folder cannot be written.
    """
    try:
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in layout.contents if path.exists()}
        write_together(layout.contents)
        for path, mode in modes.items():
            path.chmod(mode)
    except OSError as error:
        raise _refusal(layout.root, "written", error) from None


def _refusal(root: Path, verb: str, error: OSError) -> ConfigError:
    place = error.filename if isinstance(error.filename, str) else root
    what = error.strerror or error
    return ConfigError(
        f"{place}: cannot be {verb} ({what}), and nothing was laid out; mend that or name another folder"
    )


def _chosen(wanted: Sequence[str], template: Project) -> tuple[str, ...]:
    known = template.suite_names
    for name in wanted:
        if name not in (*known, EVERY):
            raise SuiteError(
                f"no suite {name!r} ships with pytest-trace2evolve; {nearest(name, [*known, EVERY])}"
            )
    return tuple(dict.fromkeys(one for name in wanted for one in (known if name == EVERY else [name])))


def _paths(template: Project, names: Sequence[str]) -> dict[str, str]:
    """Paths in the folder of what is copied, each with its path in the template; all of them agree."""

    def listed() -> Iterator[str]:
        if (template.suites_folder / SPLITS_NAME).exists():
            yield f"suites/{SPLITS_NAME}"
        for name in names:
            yield from _files_of(template, name)
        yield from (f"candidates/{name}.md" for name in template.candidates)
        yield from ("synthetic/pressure.jsonl", "synthetic/test_pressure.py", "prices.toml")

    return {path: path for path in listed()}


def _files_of(template: Project, name: str) -> list[str]:
    """A suite's own files: the one that defines it, and those that hold its cases."""
    cases = [spec.cases for spec in template.suite(name).case_splits.values()]
    return [f"suites/{name}.toml", *cases]


def _place(layout: Layout, source: Path, paths: Mapping[str, str]) -> None:
    """Enter files that are copied as they ship."""
    for path, origin in paths.items():
        text = (source / origin).read_bytes().decode("utf-8")
        held = _held(layout.root / path)
        if held is None:
            _enter(layout, path, State.WRITTEN, text=text)
        elif held.replace(b"\r\n", b"\n") == text.encode():
            _enter(layout, path, State.THERE)
        else:
            _enter(layout, path, State.LEFT, "yours says something else")


def _held(path: Path) -> bytes | None:
    """What lies there; None where nothing does. A link that leads nowhere is no free place."""
    try:
        with open_regular(path) as file:
            return file.read(RECORDS)
    except FileNotFoundError:
        return b"" if path.is_symlink() else None


def _enter(layout: Layout, path: str, state: State, detail: str = "", *, text: str | None = None) -> None:
    layout.files.append(LaidOut(path, state, detail))
    if text is not None:
        layout.contents[layout.root / path] = text


def _sound(layout: Layout, paths: Sequence[str]) -> bool:
    """Whether all of these files say what ships."""
    found = {one.path: one.sound for one in layout.files}
    return all(found.get(path, True) for path in paths)


def _lock(layout: Layout, template: Project) -> set[str]:
    """Enter the lock: what it holds stays, and the suites that it lacks are added as they ship.

    Returns:
        The suites that are locked as they ship.

    Raises:
        LockError: the folder's own lock is damaged.
    """
    project = Project(root=layout.root, suites_folder=layout.root / "suites")
    before, exists = project.lock.suites, project.lock_path.exists()
    added: dict[str, SuiteLock] = {}
    others: list[str] = []
    for name in layout.suites:
        if name in before:
            if before[name].digest != template.lock.suites[name].digest:
                others.append(name)
        elif _sound(layout, [*_files_of(template, name), f"suites/{SPLITS_NAME}"]):
            added[name] = template.lock.suites[name]
        else:
            layout.notes.append(
                f"{name}: files of yours differ from what is locked: run 'trace2evolve lock {name}'"
            )
    path = "suites/suites.lock"
    if added:
        text = render_lock(Lock(suites={**before, **added}))
        detail = f"{', '.join(added)} added" if exists else ""
        _enter(layout, path, State.CHANGED if exists else State.WRITTEN, detail, text=text)
    elif others:
        _enter(layout, path, State.LEFT, f"locks {', '.join(others)} otherwise")
    elif exists:
        _enter(layout, path, State.THERE)
    return {name for name in layout.suites if name in added or (name in before and name not in others)}


def _place_baselines(layout: Layout, template: Project, locked: set[str]) -> None:
    """Enter the baselines of suites and candidates that are as they ship: of others they say nothing."""
    for suite in layout.suites:
        for name in template.baseline_names(suite):
            path = template.baseline_path(suite, name).relative_to(template.root).as_posix()
            own = suite not in locked or not _sound(layout, [f"candidates/{name}.md"])
            if own and _held(layout.root / path) is None:
                layout.notes.append(
                    f"{path} was left out: your {suite} or {name} is another; measure your own with "
                    f"pytest --t2e-save-baseline {name}"
                )
                continue
            _place(layout, template.root, {path: path})


def _settings(layout: Layout) -> None:
    """Enter pytest's settings."""
    found = pytest_ini(layout.root)
    path = found.path.name
    if found.there:
        _enter(layout, path, State.THERE)
    elif found.text is None:
        _enter(layout, path, State.LEFT)
        layout.notes.append(found.advice)
    else:
        state = State.CHANGED if found.path.exists() else State.WRITTEN
        _enter(layout, path, state, "t2e_suites", text=found.text)
        if not found.has_testpaths:
            layout.notes.append(
                "pytest without options collects suites/ and synthetic/ too: "
                f"to keep it to tests of your own, set testpaths in {path}"
            )


def _ignore(layout: Layout) -> None:
    """Enter `.gitignore`."""
    path, name = layout.root / ".gitignore", ".gitignore"
    held = _held(path)
    if held is None:
        _enter(layout, name, State.WRITTEN, text=f"{RUNS}\n")
        return
    if RUNS.strip("/") in {line.strip().strip("/") for line in held.decode("utf-8", "replace").splitlines()}:
        _enter(layout, name, State.THERE)
        return
    try:
        text = held.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    if text is None or path.is_symlink():
        _enter(layout, name, State.LEFT)
        layout.notes.append(f".gitignore was left alone; add {RUNS} to it")
        return
    end = "\r\n" if "\r\n" in text else "\n"
    gap = "" if not text or text.endswith("\n") else end
    _enter(layout, name, State.CHANGED, f"{RUNS} added", text=f"{text}{gap}{RUNS}{end}")


def _wants_workflow(layout: Layout, wanted: bool | None) -> bool:
    if wanted is not None:
        return wanted
    here = layout.root.resolve()
    top = next((one for one in (here, *here.parents) if (one / ".git").exists()), here)
    if top != here:
        layout.notes.append(
            f"no workflow was added: GitHub reads those at the top of a repository, {top}; --workflow adds it"
        )
    return top == here


def _missing_extras(template: Project, names: Sequence[str]) -> Iterator[str]:
    if (template.root / shipped.MODEL).is_dir() and importlib.util.find_spec("torch") is None:
        yield "for the embedded model install: pip install 'pytest-trace2evolve[local]'"
    for provider in dict.fromkeys(template.suite(name).provider for name in names):
        if provider in EXTRAS and importlib.util.find_spec(provider) is None:
            users = ", ".join(name for name in names if template.suite(name).provider == provider)
            yield f"for {users} install: pip install 'pytest-trace2evolve[{EXTRAS[provider]}]'"
