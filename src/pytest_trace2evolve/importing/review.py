"""The review of drafts: a person accepts a draft into a file of tasks, or rejects it."""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_trace2evolve.errors import LogError, name_suggestion
from pytest_trace2evolve.importing.yaml_files import dumped, parse_tasks, pieces, read_tasks, without_key
from pytest_trace2evolve.utils.files import folder_lock, write_atomic, write_together

DRAFT = "draft"
"""The key of a task that nobody has accepted yet."""

_REJECTED = "# rejected: "


@dataclass(frozen=True)
class DraftsFile:
    """A file of drafts: the drafts and their texts, its comment at the top, and the ids rejected so far."""

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
        LogError: the file cannot be read, or holds a task that is no draft.
    """
    text, tasks = read_tasks(path)
    rejected = re.findall(rf"(?m)^{_REJECTED}(.+)$", text)
    body = re.sub(rf"(?m)^{_REJECTED}.*\n?", "", text)
    for task in tasks:
        if not isinstance(task.get(DRAFT), dict):
            raise LogError(
                f"{path}: {task['id']!r} has no key {DRAFT!r}, so it is no draft; move it to a task file"
            )
    cut = pieces(path, body, tasks) if tasks else []
    head = re.match(r"(?:#.*\n|\s*\n)*", body)
    return DraftsFile(path, tuple(tasks), tuple(cut), head[0] if head and tasks else "", tuple(rejected))


def resolve(file: DraftsFile, given: Sequence[str]) -> list[str]:
    """The ids of drafts that are named by their ids or the starts of these.

    Raises:
        LogError: a name fits no draft, or several.
    """
    found: list[str] = []
    for name in given:
        fitting = (
            [name] if name in file.ids else [task_id for task_id in file.ids if task_id.startswith(name)]
        )
        if len(fitting) > 1:
            raise LogError(f"{file.path}: {len(fitting)} drafts begin with {name!r}; give the whole id")
        if not fitting:
            if name in file.rejected:
                raise LogError(
                    f"{file.path}: {name!r} was rejected before; import the log again to draft it anew"
                )
            raise LogError(f"{file.path}: no draft {name!r}; {name_suggestion(name, file.ids, max_names=5)}")
        found += fitting
    return list(dict.fromkeys(found))


def review(
    path: Path, into: Path | None, accept: Sequence[str] = (), reject: Sequence[str] = ()
) -> tuple[int, int]:
    """Move accepted drafts into a file of tasks, and remove rejected ones.

    Both files change together. If the machine stops between the two, an accepted draft is in both files, and
    the next review removes it from the drafts.

    Returns:
        The numbers of drafts accepted and rejected.

    Raises:
        LogError: an id is unknown, is both accepted and rejected, or is another task's in `into`; or a file
            cannot be read or written.
    """
    with _alone(path, into):
        file = read_drafts(path)
        accepted, rejected = resolve(file, accept), resolve(file, reject)
        if both := [task_id for task_id in accepted if task_id in rejected]:
            raise LogError(f"{both[0]!r} is both accepted and rejected; choose one")
        if accepted and into is None:
            raise LogError("--accept needs --into FILE, the file of tasks")
        files: dict[Path, str] = {}
        if accepted and into is not None:
            text = _with_tasks(into, file, accepted)
            if text is not None:
                files[into] = text
        if accepted or rejected:
            files[path] = _without(file, {*accepted, *rejected}, rejected)
            try:
                write_together(files)
            except OSError as error:
                cause = error.strerror or error
                raise LogError(f"{path}: cannot be written ({cause}); nothing has changed") from None
        return len(accepted), len(rejected)


@contextlib.contextmanager
def _alone(path: Path, into: Path | None) -> Iterator[None]:
    """Hold the locks of both folders, so that two reviews never write the same file."""
    folders = {path.resolve().parent, *([into.resolve().parent] if into is not None else [])}
    with contextlib.ExitStack() as stack:
        for folder in sorted(folders):
            if folder.is_dir():
                stack.enter_context(folder_lock(folder, ignore_unsupported=True))
        yield


def _with_tasks(into: Path, file: DraftsFile, accepted: Sequence[str]) -> str | None:
    """The text of the task file with the accepted drafts; None if it holds them all already."""
    text, tasks = read_tasks(into) if os.path.lexists(into) else ("", [])
    known = {task["id"]: task for task in tasks}
    added: list[dict[str, Any]] = []
    texts: list[str] = []
    for task_id in accepted:
        place = file.ids.index(task_id)
        task = {key: value for key, value in file.drafts[place].items() if key != DRAFT}
        if task_id in known:
            if known[task_id] == task:
                continue  # an earlier review stopped between the two files
            raise LogError(f"{into}: holds another task {task_id!r}; rename the draft in {file.path}")
        _check_task(file.path, task)
        added.append(task)
        texts.append(without_key(file.texts[place], DRAFT))
    if not added:
        return None
    if into.suffix == ".jsonl":
        lines = [json.dumps(task, ensure_ascii=False, default=str) + "\n" for task in added]
        new = (text if not text or text.endswith("\n") else f"{text}\n") + "".join(lines)
    else:
        new = (text if not text or text.endswith("\n") else f"{text}\n") + "".join(texts)
        if not _holds(into, new, [*tasks, *added]):
            new = dumped([*tasks, *added])  # a list in another layout: it is written anew
    if not _holds(into, new, [*tasks, *added]):
        raise LogError(f"{into}: the tasks cannot be added in its layout; write it as a list of '- id: …'")
    return new


def _check_task(path: Path, task: dict[str, Any]) -> None:
    user = task.get("user")
    goal = user.get("goal") if isinstance(user, dict) else None
    if not isinstance(goal, str) or not goal.strip():
        raise LogError(f"{path}: {task['id']!r} has no user.goal; write what the customer wants")


def _holds(path: Path, text: str, tasks: Sequence[dict[str, Any]]) -> bool:
    try:
        return parse_tasks(path, text) == list(tasks)
    except LogError:
        return False


def _without(file: DraftsFile, gone: set[str], rejected: Sequence[str]) -> str:
    """The text of the drafts file without some drafts, and with the rejected ids at its end."""
    left = [text for text, task_id in zip(file.texts, file.ids, strict=True) if task_id not in gone]
    ids = dict.fromkeys([*file.rejected, *rejected])
    body = "".join(left) if left else "[]\n"
    return file.head + body + "".join(f"{_REJECTED}{task_id}\n" for task_id in ids)


def write_drafts(path: Path, drafts: Sequence[dict[str, Any]]) -> None:
    """Write a new file of drafts.

    Raises:
        LogError: the file exists, or cannot be written.
    """
    head = "# Drafts: a person reviews each one (trace2evolve cases review) before it becomes a task.\n"
    try:
        write_atomic(path, head + dumped(drafts), exclusive=True)
    except FileExistsError:
        raise LogError(f"--out {path} exists: review it, delete it, or choose another name") from None
    except OSError as error:
        raise LogError(f"--out {path} cannot be written: {error.strerror or error}") from None
