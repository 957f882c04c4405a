"""Render synthetic cases and the output of `trace2evolve init`."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Column
from rich.text import Text

from pytest_trace2evolve.cases.case import FAMILIES, Case
from pytest_trace2evolve.project.scaffold import FileState, Scaffold
from pytest_trace2evolve.records.task import RequiredOutcome, Turn
from pytest_trace2evolve.report.formatting import (
    SYMMETRIC_PADDING,
    FoldColumn,
    render_parts,
    table_text,
)
from pytest_trace2evolve.utils.sanitize import sanitize_line

_TURN_LABELS = {
    RequiredOutcome.ANYTHING: "then",
    RequiredOutcome.DONE: "if that was done",
    RequiredOutcome.REFUSED: "if that was refused",
}


def cases_text(path: str, cases: Sequence[Case]) -> str:
    """Render the cases of a file as a table."""
    case_column, words = (Column(heading, overflow="fold") for heading in ("case", "the customer says"))
    rows = (
        (
            Text(case.id),
            case.script.content.value,
            "to refuse" if case.script.refuses_all else "to act",
            Text(sanitize_line(case.script.turns[0].says)),
        )
        for case in cases
    )
    columns = (case_column, FoldColumn("content"), FoldColumn("expected"), words)
    return table_text(columns, rows, padding=SYMMETRIC_PADDING, title=f"{path}: {len(cases)} cases")


def case_text(case: Case) -> str:
    """Render one case: the customer, the store and the gold actions."""
    return render_parts(*_customer_lines(case), *_store_lines(case), *_gold_lines(case))


def _customer_lines(case: Case) -> Iterator[tuple[str, str]]:
    script = case.script
    family = FAMILIES.get(script.family)
    yield f"{case.id} · {script.content.value} content", "bold"
    if family is not None:
        yield f"{family.name}: {family.purpose}", "dim"
    yield "", ""
    yield "The customer", "bold magenta"
    for position, turn in enumerate(script.turns):
        yield f"{_TURN_LABELS[turn.after] if position else 'says'}: {turn.says}", ""
        yield from _turn_lines(turn)
    for slot, text in script.identity.items():
        yield f"  asked for {slot.value}: {text}", "dim"


def _turn_lines(turn: Turn) -> Iterator[tuple[str, str]]:
    for request in turn.requests:
        for slot, text in request.details.items():
            yield f"  asked for {slot.value}: {text}", "dim"
    for text in turn.insists:
        yield f"  refused: {text}", "dim"


def _store_lines(case: Case) -> Iterator[tuple[str, str]]:
    """Yield the store's records as JSON, with a star before those that the customer asks about."""
    tables = case.task.tables
    requested_ids = {
        record_id for turn in case.script.turns for request in turn.requests for record_id in request.about
    }
    yield "", ""
    yield "The store", "bold blue"
    for name, table in tables.items():
        for key, record in table.items() if isinstance(table, dict) else [(name, table)]:
            text = json.dumps(record, ensure_ascii=False, default=str)
            yield f"{'*' if key in requested_ids else ' '} {key}: {text}", ""


def _gold_lines(case: Case) -> Iterator[tuple[str, str]]:
    yield "", ""
    yield "Expected", "bold green"
    for action in case.task.actions:
        arguments = ", ".join(f"{name}={value!r}" for name, value in action.arguments.items())
        yield f"  {action.name}({arguments})", ""
    for turn in case.script.turns:
        if turn.has_forbidden_request:
            yield f"  {'refuse a part of' if turn.has_allowed_request else 'refuse'}: {turn.says}", ""
    criteria = case.task.evaluation_criteria
    for text in (criteria.communicate_info or []) if criteria else []:
        yield f"  say: {text}", ""


def scaffold_text(scaffold: Scaffold, command: str, *, dry_run: bool) -> str:
    """Render the files of `trace2evolve init`. The last line is the command to run next."""
    return "\n".join(
        [
            *_file_lines(scaffold, dry_run=dry_run),
            *(f"note: {note}" for note in scaffold.notes),
            f"next: {command}",
        ]
    )


def _file_lines(scaffold: Scaffold, *, dry_run: bool) -> list[str]:
    changed_files = [file for file in scaffold.files if file.state is not FileState.PRESENT]
    if not changed_files:
        current_folder, root = Path.cwd(), scaffold.root
        shown_root = (
            root.relative_to(current_folder)
            if root.is_relative_to(current_folder) and root != current_folder
            else root
        )
        return [f"{shown_root}: everything is there already"]
    states = [
        f"would be {file.state}" if dry_run and file.state is not FileState.LEFT_ALONE else str(file.state)
        for file in changed_files
    ]
    width = max(map(len, states))
    lines = [
        f"{state:<{width}} {file.path}{f' ({file.detail})' if file.detail else ''}"
        for state, file in zip(states, changed_files, strict=True)
    ]
    n_unchanged = len(scaffold.files) - len(changed_files)
    return [*lines, *([f"{n_unchanged} more files are there already"] if n_unchanged > 1 else [])]
