"""Plans the pytest sessions that gate everything that differs from a commit."""

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pytest_trace2evolve.errors import ConfigError, Trace2EvolveError
from pytest_trace2evolve.evidence.baselines import read_evidence
from pytest_trace2evolve.evidence.identity import agent_code, code_of
from pytest_trace2evolve.project.candidates import Candidates
from pytest_trace2evolve.project.lock import SuiteLock, lock_differences
from pytest_trace2evolve.project.own_scaffold import is_below_pytest_settings
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.pytest_ini import ini_words
from pytest_trace2evolve.project.tool_settings import find_code_folders
from pytest_trace2evolve.records.verdict import Goal
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.git import checked_out, git_text
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


CONFTEST = "conftest.py"

_TASK_PHRASES = ("task ", "the content of task ", "its settings changed")
"""The beginnings of the differences between locks that a copy of the commit's suites undoes."""

MAX_ITEMS = 50
"""Maximum number of tasks of a suite that a command names one by one."""

SavedCandidates = Mapping[str, Mapping[str, str]]
"""The candidates that have a saved baseline, with the times of their measurements, by suite."""


@dataclass(frozen=True)
class GatePlan:
    """The sessions that gate a change.

    Attributes:
        commit: The commit that the change starts from.
        reasons: The files and parts that differ, by the candidate that is gated for them.
        commands: The command of each candidate's session.
        new_tasks: The command that measures each candidate on the new and changed tasks, and decides nothing.
        notes: Notes for the user, a line each.
    """

    commit: str
    reasons: Mapping[str, Sequence[str]]
    commands: Mapping[str, Sequence[str]]
    new_tasks: Mapping[str, Sequence[str]]
    notes: Sequence[str]


def plan_gate(project: Project, base: str, options: Sequence[str]) -> GatePlan:
    """Plan the sessions that gate everything that differs from a commit.

    If suites or tasks differ, the sessions run those of the commit, because only they have a baseline that
    the change did not touch.

    Args:
        base: The commit or branch into which the change is merged. The commit at which the change left it is
            compared with the files as they are now.
        options: Further options of pytest.

    Raises:
        ConfigError: git cannot find the commit, a file of the project is invalid, or the commit's tasks
            cannot be copied.
        CandidateError, SuiteError: a candidate or a suite is invalid.
    """
    commit = (git_text(project.root, "merge-base", "--", base, "HEAD") or "").strip()
    if not commit:
        raise ConfigError(
            f"--against {base!r}: git finds no common commit of it and HEAD in {project.root}; fetch it with "
            "its history (in a workflow: fetch-depth: 0), or name a different one"
        )
    base_root, _ = checked_out(project.root, commit)
    old, new = read_inventory(base_root), read_inventory(project.root)
    for name in project.suite_names:
        project.suite(name)  # read here for its errors, like the candidates below
    old_project = Project(root=base_root, suites_folder=base_root / "suites")
    saved = _saved_candidates(project, old_project)
    shared = changed_names(old, new, SHARED)
    reasons: dict[str, list[str]] = {}
    suites: dict[str, list[str]] = {}
    for name in project.candidates:
        key = f"candidate {name}"
        if names := changed_names(old, new, key) if key in old else ["new"]:
            reasons[name] = names
    for suite, name in _promoted_candidates(saved, project.candidates).items():
        if names := [*shared, *changed_names(old, new, f"suite {suite}")]:
            # A changed candidate or agent is gated on all suites.
            if not shared and (name in suites or name not in reasons):
                suites.setdefault(name, []).append(suite)
            reasons[name] = list(dict.fromkeys([*reasons.get(name, ()), *names]))
    notes = [f"{key} was removed" for key in old if key not in new]
    if not saved:
        notes.append(f"commit {commit[:12]} has no saved baseline, so only changed candidates are gated")
    old_locks, new_locks = old_project.lock.suites, project.lock.suites
    world_notes = list(_world_notes(old_locks, new_locks)) if reasons and saved else []
    new_tasks = _new_tasks(old_locks, new_locks) if saved and not world_notes else []
    has_old_tasks = all(
        name in new_locks and lock.digest == new_locks[name].digest for name, lock in old_locks.items()
    )
    task_options = []
    if reasons and saved and not has_old_tasks and not world_notes:
        task_options = ["-o", f"t2e_suites={_copy_tasks(project, old_project, commit)}"]
    notes += world_notes
    commands, new_task_commands = {}, {}
    rootdir = ["--rootdir", "."] if is_below_pytest_settings(project.root) else []
    for name in reasons:
        suite_options = [f"--t2e-suite={suite}" for suite in suites.get(name, ())]
        start = ["pytest", *rootdir, "--candidate", name]
        goal_options = _goal_options(project, name, saved, commit)
        commands[name] = [*start, *goal_options, *task_options, *suite_options, *options]
        if new_tasks:
            new_task_commands[name] = [*start, "--t2e-gate", "off", *options, *new_tasks]
    return GatePlan(commit, reasons, commands, new_task_commands, notes)


def _new_tasks(old: Mapping[str, SuiteLock], new: Mapping[str, SuiteLock]) -> list[str]:
    """Return the ids of the pytest items of new and changed tasks, or of their suite if they are many."""
    items = []
    for suite, lock in new.items():
        old_tasks = old[suite].tasks if suite in old else {}
        names = [
            f"suites/{suite}.toml::{split}::{task}"
            for split, tasks in lock.splits.items()
            for task, content in tasks.items()
            if old_tasks.get(task) != content
        ]
        items += names if len(names) <= MAX_ITEMS else [f"suites/{suite}.toml"]
    return items


def _world_notes(old: Mapping[str, SuiteLock], new: Mapping[str, SuiteLock]) -> Iterator[str]:
    """Say for each suite whose world differs that its baselines cannot judge the change."""
    for name, lock in old.items():
        differences = lock_differences(lock, new.get(name, lock))
        if parts := [text for text in differences if not text.startswith(_TASK_PHRASES)]:
            yield (
                f"suite {name}: {'; '.join(parts)}, so no baseline of the commit can judge this change: "
                "merge the world with new baselines first, and changes of the agent later"
            )


def _copy_tasks(project: Project, old: Project, commit: str) -> str:
    """Copy the suites of a commit and the files that they name, and return the path of the copied suites.

    The copy holds no code: pytest would import a `conftest.py` of the commit, and then its other modules.

    Raises:
        ConfigError: the folder of suites holds code, or a file cannot be copied.
    """
    if (project.suites_folder / CONFTEST).exists():
        raise ConfigError(
            f"{project.suites_folder / CONFTEST}: is not loaded for the tasks of commit {commit[:12]}, which "
            "differ from the present ones; move its content to conftest.py in the project's root"
        )
    copy = project.tasks_copies / commit[:12]
    files = [*old.suites_folder.glob("*.toml"), old.lock_path]
    for name in old.suite_names:
        suite = old.suite(name)
        files += [old.resolve_path(spec.cases) for spec in suite.case_splits.values()]
        files += [old.resolve_path(spec.tasks) for spec in suite.task_splits.values()]
    try:
        shutil.rmtree(copy, ignore_errors=True)
        for path in dict.fromkeys(files):
            target = copy / path.relative_to(old.root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    except OSError as error:
        raise ConfigError(f"{copy}: the tasks of commit {commit[:12]} cannot be copied: {error}") from None
    return (copy / "suites").relative_to(project.root).as_posix()


def _goal_options(project: Project, name: str, saved: SavedCandidates, commit: str) -> list[str]:
    """Return the options for a candidate's goal. Its claim holds until it has a baseline of its own."""
    has_baseline = any(name in candidates for candidates in saved.values())
    claim = None if has_baseline else project.candidates[name].claim or Goal.NO_REGRESSION
    goal = Goal.NO_REGRESSION if claim is None else claim if isinstance(claim, Goal) else Goal.IMPROVE
    against = ["--t2e-against", commit] if saved else []
    return ["--t2e-goal", goal.value, *against]


def _saved_candidates(project: Project, old: Project) -> dict[str, dict[str, str]]:
    """Return the candidates of the project whose baselines an old state of it holds, by suite."""
    saved: dict[str, dict[str, str]] = {}
    for suite in old.suite_names:
        for path in sorted((old.baselines_folder / suite).glob("*.json")):
            origin = read_evidence(path).provenance
            if origin.candidate is not None and origin.candidate.id in project.candidates:
                saved.setdefault(suite, {})[origin.candidate.id] = origin.created_at or ""
    return saved


def _promoted_candidates(saved: SavedCandidates, candidates: Candidates) -> dict[str, str]:
    """Return the promoted candidate of each suite: the newest one from which no other saved one descends."""
    promoted = {}
    for suite, times in saved.items():
        ancestors = {ancestor.id for name in times for ancestor in candidates.lineage(name)[1:]}
        promoted[suite] = max(times.keys() - ancestors, key=lambda name: (times[name], name))
    return promoted


if __name__ == "__main__":
    try:
        print(json.dumps(_take_inventory(Path(sys.argv[1]))))
    except (Trace2EvolveError, OSError) as error:
        sys.exit(" ".join(str(error).split()))
