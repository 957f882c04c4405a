"""Digests of the files on which a project's gated runs depend. No code of the project is run to find them."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from pytest_trace2evolve.errors import ConfigError, Trace2EvolveError
from pytest_trace2evolve.evidence.identity import agent_code, code_of
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.pytest_ini import ini_words
from pytest_trace2evolve.project.tool_settings import find_code_folders
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.import_path import (
    add_to_path,
    is_import_path,
    is_own_agent,
    is_url,
    project_paths,
)

Inventory = Mapping[str, Mapping[str, str]]
"""Digests by file or part: for each candidate (`candidate v0`) and suite (`suite desk`), and for `SHARED`."""

T = TypeVar("T")

SHARED = "shared"
"""What all candidates share: the default agent, its dependencies, hooks, own checks and policies."""

_SHARED_FILES = (
    "policies/*.toml",
    "pyproject.toml",
    "requirements*.txt",
    "constraints*.txt",
    "*.lock",
    "setup.*",
)


def read_inventory(root: Path) -> Inventory:
    """Take the inventory of a folder in a process of its own, because modules are looked up by name.

    Candidates and suites that cannot be read are left out.

    Raises:
        ConfigError: the settings of the project are invalid.
    """
    command = [sys.executable, "-P", "-m", __name__, str(root)]
    process = subprocess.run(command, cwd=root, capture_output=True, text=True, encoding="utf-8")
    if process.returncode:
        raise ConfigError((process.stderr.strip().splitlines() or ["its files cannot be read"])[-1])
    inventory: Inventory = json.loads(process.stdout)
    return inventory


def changed_names(old: Inventory, new: Inventory, key: str) -> list[str]:
    """Return the files and parts of an entry whose digests differ between two inventories."""
    before, after = old.get(key, {}), new.get(key, {})
    return [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]


def _take_inventory(root: Path) -> Inventory:
    project = Project(root=root, suites_folder=root / "suites")
    paths = [*project_paths(root, root), *(root / name for name in ini_words(root, "pythonpath"))]
    for path in reversed(paths):
        add_to_path(path)
    inventory: dict[str, dict[str, str]] = {}
    agents = {project.settings.agent, *ini_words(root, "t2e_agent")}
    for candidate in _readable(project.candidates, project.candidates.__getitem__):
        parts = {"instruction": candidate.instruction, "changes": candidate.changes, **candidate.settings}
        digests = {part: digest(value) for part, value in parts.items() if value}
        own_agent = "" if candidate.ref else candidate.agent
        own_code = _code_digests(root, own_agent, is_agent=True) if own_agent else {}
        inventory[f"candidate {candidate.id}"] = {**digests, **own_code}
    for suite in _readable(project.suite_names, project.suite):
        agents.add(suite.default_agent)
        lock = project.lock.suites.get(suite.name)
        files = [spec.cases for spec in suite.case_splits.values()]
        files += [spec.tasks for spec in suite.task_splits.values()]
        inventory[f"suite {suite.name}"] = {
            f"suites/{suite.name}.toml": digest(suite.definition),
            f"suites/{project.lock_path.name}": "" if lock is None else digest(lock.model_dump(mode="json")),
            **_file_digests(root, files),
            **(_code_digests(root, suite.provider) if is_import_path(suite.provider) else {}),
        }
    modules = ["conftest"] if (root / "conftest.py").is_file() else []
    shared = inventory[SHARED] = {"the name of the agent": digest(sorted(filter(None, agents)))}
    for agent in agents:
        shared |= _code_digests(root, agent, is_agent=True) if agent and is_own_agent(agent) else {}
    for module in filter(None, [*modules, project.settings.checks]):
        shared |= _code_digests(root, module)
    shared |= _file_digests(root, _SHARED_FILES)
    return inventory


def _readable(names: Iterable[str], read: Callable[[str], T]) -> Iterator[T]:
    for name in names:
        with contextlib.suppress(Trace2EvolveError):
            yield read(name)


def _file_digests(root: Path, patterns: Iterable[str]) -> dict[str, str]:
    paths = [path for pattern in patterns for path in root.glob(pattern) if path.is_file()]
    return {path.relative_to(root).as_posix(): digest(path.read_bytes().hex()) for path in paths}


def _code_digests(root: Path, name: str, *, is_agent: bool = False) -> Mapping[str, str]:
    """Digests of the code of an agent or of a module; code that cannot be identified always differs."""
    if is_url(name):
        return {"the code behind the agent's URL": str(root)}
    module = name.partition(":")[0]
    code = agent_code(module, find_code_folders(root)) if is_agent else code_of(module)
    return {f"the code of {name} ({code.unknown})": str(root)} if code.unknown else code.files


if __name__ == "__main__":
    try:
        print(json.dumps(_take_inventory(Path(sys.argv[1]))))
    except (Trace2EvolveError, OSError) as error:
        sys.exit(" ".join(str(error).split()))
