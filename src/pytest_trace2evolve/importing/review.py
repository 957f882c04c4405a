"""The review of drafts: a person accepts a draft into a file of tasks, or rejects it."""

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_trace2evolve.cases.written import DRAFT, parse_written_task, read_raw_tasks
from pytest_trace2evolve.errors import CaseError, LogError, Trace2EvolveError, name_suggestion
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.session.admission import check_written_tasks, world_of_file
from pytest_trace2evolve.utils.files import write_atomic, write_together
from pytest_trace2evolve.utils.reading import MAX_RECORD_BYTES, read_text
from pytest_trace2evolve.utils.yaml_text import dump_yaml


@dataclass(frozen=True)
class DraftsFile:
    """A file of drafts, and the ids of those that were rejected, which are comments at its end."""

    path: Path
    drafts: tuple[dict[str, Any], ...]
    rejected: tuple[str, ...] = ()

    @property
    def ids(self) -> list[str]:
        return [draft["id"] for draft in self.drafts]

    @property
    def text(self) -> str:
        """The content of the file."""
        return (
            _HEAD + dump_yaml(list(self.drafts)) + "".join(f"{_REJECTED}{name}\n" for name in self.rejected)
        )


_HEAD = "# Drafts: a person reviews each one (trace2evolve cases review) before it becomes a task.\n\n"
_REJECTED = "# rejected: "


def read_drafts(path: Path) -> DraftsFile:
    """Read a file of drafts.

    Raises:
        LogError: the file cannot be read, or holds a task that is not a draft.
        CaseError: the file is not a list of tasks.
    """
    text, drafts = _read_tasks(path)
    for draft in drafts:
        if not isinstance(draft.get(DRAFT), dict):
            raise LogError(
                f"{path}: {draft['id']!r} has no key {DRAFT!r}, so it is no draft; move it to a task file"
            )
    return DraftsFile(path, tuple(drafts), tuple(re.findall(rf"(?m)^{_REJECTED}(.+)$", text)))


def _read_tasks(path: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return the text and the tasks of a YAML list or of JSON lines, checking that their ids differ."""
    text = read_text(path, LogError, "name a file of tasks", max_bytes=MAX_RECORD_BYTES)
    tasks = _parse_tasks(path, text)
    ids = [task.get("id") for task in tasks]
    for number, task_id in enumerate(ids, 1):
        if not isinstance(task_id, str) or not task_id:
            raise LogError(f"{path}: task {number} has no 'id' that is a text; give it one")
        if ids.index(task_id) != number - 1:
            raise LogError(f"{path}: holds the id {task_id!r} twice; rename one of them")
    return text, tasks


def _parse_tasks(path: Path, text: str) -> list[dict[str, Any]]:
    tasks = [task for _, task in read_raw_tasks(path, text)] if text.strip() else []
    for number, task in enumerate(tasks, 1):
        if not isinstance(task, dict):
            raise LogError(f"{path}: task {number} is no object; begin each task with '- id: …'")
    return tasks


def resolve(file: DraftsFile, names: Sequence[str]) -> list[str]:
    """Return the ids of the drafts that `names` gives by an id or the start of an id.

    Raises:
        LogError: a name matches no draft, or several.
    """
    ids: list[str] = []
    for name in names:
        matching_ids = (
            [name] if name in file.ids else [task_id for task_id in file.ids if task_id.startswith(name)]
        )
        if len(matching_ids) > 1:
            raise LogError(f"{file.path}: {len(matching_ids)} drafts begin with {name!r}; give the whole id")
        if not matching_ids:
            raise LogError(f"{file.path}: no draft {name!r}; {name_suggestion(name, file.ids, max_names=5)}")
        ids += matching_ids
    return list(dict.fromkeys(ids))


def find_world(root: Path | None, path: Path | None = None) -> World | None:
    """Return the world of a project's task file, or the project's own world; None if there is none."""
    if root is None:
        return None
    project = Project(root=root, suites_folder=root / "suites")
    with contextlib.suppress(Trace2EvolveError):  # no world, or one that cannot be opened
        return world_of_file(project, path or root, project.open_worlds())
    return None


def draft_problem(draft: Mapping[str, Any], place: str, world: World | None) -> str:
    """Return why a draft is not admitted, such as expected calls that do not solve it; empty if it is."""
    try:
        task = parse_written_task({key: value for key, value in draft.items() if key != DRAFT}, place)
    except CaseError as error:
        return str(error)
    checks = () if world is None else check_written_tasks([task], world)
    problem = next((problem for _, problems in checks for problem in problems), "")
    return f"{place}: {problem}; correct the draft, or reject it" if problem else ""


def review(
    path: Path,
    into: Path | None,
    accept: Sequence[str] = (),
    reject: Sequence[str] = (),
    world: World | None = None,
) -> tuple[int, int]:
    """Move accepted drafts into a file of tasks, and remove rejected ones.

    Both files change together. If the machine stops between the two, an accepted draft is in both files, and
    the next review removes it from the drafts.

    Args:
        world: The world in which accepted drafts must be solvable; None checks only their form.

    Returns:
        The numbers of drafts accepted and rejected.

    Raises:
        LogError: an id is unknown, is both accepted and rejected, or is another task's in `into`; or a file
            cannot be read or written.
        CaseError: an accepted draft is not a valid task, or has a problem.
    """
    file = read_drafts(path)
    accepted, rejected = resolve(file, accept), resolve(file, reject)
    if conflicting_ids := [task_id for task_id in accepted if task_id in rejected]:
        raise LogError(f"{conflicting_ids[0]!r} is both accepted and rejected; choose one")
    if accepted and into is None:
        raise LogError("--accept needs --into FILE, the file of tasks")
    files: dict[Path, str] = {}
    if accepted and into is not None:
        text = _add_tasks(into, file, accepted, world)
        if text is not None:
            files[into] = text
    if accepted or rejected:
        left = tuple(draft for draft in file.drafts if draft["id"] not in (*accepted, *rejected))
        files[path] = DraftsFile(path, left, tuple(dict.fromkeys((*file.rejected, *rejected)))).text
        try:
            write_together(files)
        except OSError as error:
            cause = error.strerror or error
            raise LogError(f"{path}: cannot be written ({cause}); nothing has changed") from None
    return len(accepted), len(rejected)


def _add_tasks(into: Path, file: DraftsFile, accepted: Sequence[str], world: World | None) -> str | None:
    """The text of the task file with the accepted drafts; None if it holds them all already."""
    text, tasks = _read_tasks(into) if os.path.lexists(into) else ("", [])
    existing_tasks = {task["id"]: task for task in tasks}
    new_tasks: list[dict[str, Any]] = []
    for draft in (draft for draft in file.drafts if draft["id"] in accepted):
        task_id = draft["id"]
        task = {key: value for key, value in draft.items() if key != DRAFT}
        if task_id in existing_tasks:
            if existing_tasks[task_id] == task:
                continue  # an earlier review stopped between the two files
            raise LogError(f"{into}: holds another task {task_id!r}; rename the draft in {file.path}")
        if problem := draft_problem(task, f"{file.path}, task {task_id}", world):
            raise CaseError(problem)
        new_tasks.append(task)
    if not new_tasks:
        return None
    if into.suffix == ".jsonl":
        added = "".join(json.dumps(task, ensure_ascii=False, default=str) + "\n" for task in new_tasks)
    else:
        added = dump_yaml(new_tasks)
    old_text = text if tasks and text.endswith("\n") else f"{text}\n" if tasks else ""
    new_text = old_text + added
    with contextlib.suppress(Trace2EvolveError):
        if _parse_tasks(into, new_text) == [*tasks, *new_tasks]:
            return new_text
    raise LogError(f"{into}: the tasks cannot be added in its layout; write it as a list of '- id: …'")


def write_drafts(path: Path, drafts: Sequence[dict[str, Any]]) -> None:
    """Write a new file of drafts.

    Raises:
        LogError: the file exists, or cannot be written.
    """
    try:
        write_atomic(path, DraftsFile(path, tuple(drafts)).text, exclusive=True)
    except FileExistsError:
        raise LogError(f"--out {path} exists: review it, delete it, or choose another name") from None
    except OSError as error:
        raise LogError(f"--out {path} cannot be written: {error.strerror or error}") from None
