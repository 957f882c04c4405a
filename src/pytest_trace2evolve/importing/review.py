"""The review of drafts: a person accepts a draft into a file of tasks, or rejects it."""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_trace2evolve.cases.written import DRAFT, parse_written_task
from pytest_trace2evolve.errors import CaseError, LogError, Trace2EvolveError, name_suggestion
from pytest_trace2evolve.importing.yaml_files import parse_tasks, pieces, read_tasks, without_key
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.session.admission import check_written_tasks, world_of_file
from pytest_trace2evolve.utils.files import folder_lock, real_path, write_atomic, write_together
from pytest_trace2evolve.utils.yaml_text import dump_yaml

_REJECTED = "# rejected: "

_HEAD = re.compile(r"(?:(?:#.*|[^\S\n]*)\n)*[^\S\n]*\n|(?:#.*\n)*")
"""The comment at the top of a file of drafts: all up to the last blank line, or all if there is none."""


@dataclass(frozen=True)
class DraftsFile:
    """A file of drafts: the drafts and their texts, its comment at the top, and the ids rejected so far.

    The comment at the top ends with the last blank line above the first draft. Without such a line, all
    comments above the first draft belong to it.
    """

    path: Path
    drafts: tuple[dict[str, Any], ...]
    texts: tuple[str, ...]
    head: str
    rejected: tuple[str, ...]

    @property
    def ids(self) -> list[str]:
        return [draft["id"] for draft in self.drafts]


def read_drafts(path: Path) -> DraftsFile:
    """Read a file of drafts.

    Raises:
        LogError: the file cannot be read, is JSON lines by its name, or holds a task that is not a draft.
    """
    _check_name(path)
    text, tasks = read_tasks(path)
    rejected = re.findall(rf"(?m)^{_REJECTED}(.+)$", text)
    body = re.sub(rf"(?m)^{_REJECTED}.*\n?", "", text)
    for task in tasks:
        if not isinstance(task.get(DRAFT), dict):
            raise LogError(
                f"{path}: {task['id']!r} has no key {DRAFT!r}, so it is no draft; move it to a task file"
            )
    texts = pieces(body, tasks) if tasks else []
    head = _HEAD.match(body)
    return DraftsFile(path, tuple(tasks), tuple(texts), head[0] if head and tasks else "", tuple(rejected))


def _check_name(path: Path) -> None:
    """Raise `LogError` for a file of JSON lines, which has no comments to keep."""
    if path.suffix == ".jsonl":
        raise LogError(f"{path}: drafts are YAML, not JSON lines; name a file that ends with .yaml")


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
            if name in file.rejected:
                raise LogError(
                    f"{file.path}: {name!r} was rejected before; import the log again to draft it anew"
                )
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
    with _lock_folders(path, into):
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
            files[path] = _remove_drafts(file, {*accepted, *rejected}, rejected)
            try:
                write_together(files)
            except OSError as error:
                cause = error.strerror or error
                raise LogError(f"{path}: cannot be written ({cause}); nothing has changed") from None
        return len(accepted), len(rejected)


@contextlib.contextmanager
def _lock_folders(path: Path, into: Path | None) -> Iterator[None]:
    """Hold the locks of both folders, so that two reviews never write the same file."""
    folders = {real_path(path).parent, *([real_path(into).parent] if into is not None else [])}
    with contextlib.ExitStack() as stack:
        for folder in sorted(folders):
            if folder.is_dir():
                stack.enter_context(folder_lock(folder, ignore_unsupported=True))
        yield


def _add_tasks(into: Path, file: DraftsFile, accepted: Sequence[str], world: World | None) -> str | None:
    """The text of the task file with the accepted drafts; None if it holds them all already."""
    text, tasks = read_tasks(into) if os.path.lexists(into) else ("", [])
    existing_tasks = {task["id"]: task for task in tasks}
    new_tasks: list[dict[str, Any]] = []
    texts: list[str] = []
    for task_id in accepted:
        position = file.ids.index(task_id)
        task = {key: value for key, value in file.drafts[position].items() if key != DRAFT}
        if task_id in existing_tasks:
            if existing_tasks[task_id] == task:
                continue  # an earlier review stopped between the two files
            raise LogError(f"{into}: holds another task {task_id!r}; rename the draft in {file.path}")
        if problem := draft_problem(task, f"{file.path}, task {task_id}", world):
            raise CaseError(problem)
        new_tasks.append(task)
        texts.append(without_key(file.texts[position], DRAFT))
    if not new_tasks:
        return None
    if into.suffix == ".jsonl":
        lines = [json.dumps(task, ensure_ascii=False, default=str) + "\n" for task in new_tasks]
        new_text = (text if not text or text.endswith("\n") else f"{text}\n") + "".join(lines)
    else:
        new_text = (text if not text or text.endswith("\n") else f"{text}\n") + "".join(texts)
        if not _holds(into, new_text, [*tasks, *new_tasks]):
            new_text = dump_yaml([*tasks, *new_tasks])  # a list in a different layout is written anew
    if not _holds(into, new_text, [*tasks, *new_tasks]):
        raise LogError(f"{into}: the tasks cannot be added in its layout; write it as a list of '- id: …'")
    return new_text


def _holds(path: Path, text: str, tasks: Sequence[dict[str, Any]]) -> bool:
    try:
        return parse_tasks(path, text) == list(tasks)
    except LogError:
        return False


def _remove_drafts(file: DraftsFile, removed_ids: set[str], rejected: Sequence[str]) -> str:
    """The text of the drafts file without some drafts, and with the rejected ids at its end."""
    remaining_texts = [
        text for text, task_id in zip(file.texts, file.ids, strict=True) if task_id not in removed_ids
    ]
    ids = dict.fromkeys([*file.rejected, *rejected])
    body = "".join(remaining_texts) if remaining_texts else "[]\n"
    # Without a blank line, the comment of the new first draft would belong to the file.
    has_blank_line = re.search(r"(?:^|\n)[^\S\n]*\n\Z", file.head)
    head = file.head if has_blank_line or not body.startswith("#") else f"{file.head}\n"
    return head + body + "".join(f"{_REJECTED}{task_id}\n" for task_id in ids)


def drafts_text(drafts: Sequence[dict[str, Any]]) -> str:
    """Return the content of a new file of drafts."""
    head = "# Drafts: a person reviews each one (trace2evolve cases review) before it becomes a task.\n\n"
    return head + dump_yaml(drafts)


def write_drafts(path: Path, drafts: Sequence[dict[str, Any]]) -> None:
    """Write a new file of drafts.

    Raises:
        LogError: the file exists, is JSON lines by its name, or cannot be written.
    """
    _check_name(path)
    try:
        write_atomic(path, drafts_text(drafts), exclusive=True)
    except FileExistsError:
        raise LogError(f"--out {path} exists: review it, delete it, or choose another name") from None
    except OSError as error:
        raise LogError(f"--out {path} cannot be written: {error.strerror or error}") from None
