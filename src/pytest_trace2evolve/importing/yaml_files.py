"""Reads and writes task files (YAML lists and JSON lines), and keeps their comments and layout."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_trace2evolve.errors import LogError
from pytest_trace2evolve.utils.canonical import is_deeper
from pytest_trace2evolve.utils.reading import MAX_RECORD_BYTES, parse_json, read_text
from pytest_trace2evolve.utils.yaml_text import dump_yaml, parse_yaml

MAX_DEPTH = 50

_ALIAS = re.compile(r"(?m)^[^#\n'\"]*(?<=[\s:\-,\[])[*&][A-Za-z0-9_]+\s*(?:#.*)?$")


def read_tasks(path: Path) -> tuple[str, list[dict[str, Any]]]:
    """The text and the tasks of a YAML list or of JSON lines (`.jsonl`).

    Raises:
        LogError: the file cannot be read, or is not a list of objects whose ids are different texts.
    """
    text = read_text(path, LogError, "name a file of tasks", max_bytes=MAX_RECORD_BYTES)
    tasks = parse_tasks(path, text)
    ids = [task.get("id") for task in tasks]
    for number, (task_id, task) in enumerate(zip(ids, tasks, strict=True), 1):
        if not isinstance(task_id, str) or not task_id:
            raise LogError(f"{path}: task {number} has no 'id' that is a text; give it one")
        if ids.index(task_id) != number - 1:
            raise LogError(f"{path}: holds the id {task_id!r} twice; rename one of them")
        if is_deeper(task, MAX_DEPTH):
            raise LogError(f"{path}: task {number} is nested more than {MAX_DEPTH} levels deep; simplify it")
    return text, tasks


def parse_tasks(path: Path, text: str) -> list[dict[str, Any]]:
    """The tasks of a file's text.

    Raises:
        LogError: the text is not a list of objects.
    """
    if path.suffix == ".jsonl":
        tasks: Any = []
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                try:
                    tasks.append(parse_json(line))
                except ValueError as error:
                    raise LogError(f"{path}, line {number}: {error}; fix the line") from None
    else:
        if match := _ALIAS.search(text):  # aliases can make a small file huge
            line_number = text.count("\n", 0, match.start()) + 1
            raise LogError(f"{path}, line {line_number}: has an alias; write the value out")
        tasks = parse_yaml(text, path, LogError)
    if not isinstance(tasks, list | None):
        raise LogError(f"{path}: holds no list of tasks; begin each task with '- id: …'")
    for number, task in enumerate(tasks or (), 1):
        if not isinstance(task, dict):
            raise LogError(f"{path}: task {number} is no object; begin each task with '- id: …'")
    return tasks or []


def pieces(text: str, tasks: Sequence[dict[str, Any]]) -> list[str]:
    """The YAML of each task as a list item, with the comments above it, cut from the file if possible.

    Comments above the first task belong to it only if there is a blank line above them.
    """
    import yaml

    node = yaml.compose(text, Loader=yaml.SafeLoader)
    lines = text.splitlines(keepends=True)
    starts = [item.start_mark.line for item in node.value] if node is not None and not node.flow_style else []
    for position, start in enumerate(starts):
        while starts[position] > 0 and lines[starts[position] - 1].startswith("#"):
            starts[position] -= 1
        if starts[position] == 0:
            starts[position] = start
    ends = [*starts[1:], len(lines)]
    items = ["".join(lines[start:end]).rstrip("\n") + "\n" for start, end in zip(starts, ends, strict=True)]
    if len(items) == len(tasks) and all(map(_is_item, items, tasks)):
        return items
    return [dump_yaml([task]) for task in tasks]


def _is_item(piece: str, task: dict[str, Any]) -> bool:
    """Whether a piece of a file is a list of exactly one task that starts at the left margin."""
    try:
        return bool(re.match(r"(?:#.*\n)*- ", piece)) and parse_tasks(Path("piece.yaml"), piece) == [task]
    except LogError:
        return False


def without_key(piece: str, key: str) -> str:
    """The text of a task without one of its keys."""
    (task,) = parse_tasks(Path("piece.yaml"), piece)
    remaining_fields = {name: value for name, value in task.items() if name != key}
    shortened_piece = re.sub(rf"(?m)^  {key}:.*\n(?:(?:   .*|[ \t]*|  -.*)\n)*", "", piece, count=1)
    return shortened_piece if _is_item(shortened_piece, remaining_fields) else dump_yaml([remaining_fields])
