"""Render synthetic cases and the output of `trace2evolve init`."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Column
from rich.text import Text

from pytest_trace2evolve.cases.case import FAMILIES, Case
from pytest_trace2evolve.project.scaffold import FileState, Scaffold
from pytest_trace2evolve.records.task import RequiredOutcome, Turn
from pytest_trace2evolve.report.formatting import (
    SYMMETRIC_PADDING,
    make_grid,
    make_terminal_console,
    print_line,
    rendered_text,
)
from pytest_trace2evolve.utils.sanitize import sanitize_line

_TURN_LABELS = {
    RequiredOutcome.ANYTHING: "then",
    RequiredOutcome.DONE: "if that was done",
    RequiredOutcome.REFUSED: "if that was refused",
}

MISSING = "missing"
"""Shown for a record or field that is missing from a damaged store or has a wrong type."""


def cases_text(path: str, cases: Sequence[Case]) -> str:
    """Render the cases of a file as a table."""
    console = make_terminal_console()
    table = make_grid(
        Column("case", overflow="fold"),
        Column("content", overflow="fold", no_wrap=True),
        Column("expected", overflow="fold", no_wrap=True),
        Column("the customer says", overflow="fold"),
        padding=SYMMETRIC_PADDING,
        title=f"{path}: {len(cases)} cases",
    )
    for case in cases:
        right_answer = "to refuse" if case.script.refuses_all else "to act"
        opening = sanitize_line(case.script.turns[0].says)
        table.add_row(Text(case.id), case.script.content.value, right_answer, Text(opening))
    console.print(table)
    return rendered_text(console)


def case_text(case: Case) -> str:
    """Render one case: the customer, the store and the gold actions."""
    console = make_terminal_console()
    for text, style in (*_customer_lines(case), *_store_lines(case), *_gold_lines(case)):
        print_line(console, text, style)
    return rendered_text(console)


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
    tables = case.task.tables
    yield "", ""
    yield f"The store: {', '.join(_table_sizes(tables)) or MISSING}", "bold blue"
    orders = _as_mapping(tables.get("orders"))
    requested_ids = {
        record_id for turn in case.script.turns for request in turn.requests for record_id in request.about
    }
    for user_id, user in _as_mapping(tables.get("users")).items():
        marker = "*" if user_id in requested_ids else " "
        yield f"{marker} {user_id}: {_values_text(_field_of(user, 'payment_methods'), 'payment methods')}", ""
        order_ids = _field_of(user, "orders")
        if not isinstance(order_ids, list):
            yield f"    orders: {MISSING}", ""
            continue
        for order_id in map(str, order_ids):
            marker = "*" if order_id in requested_ids else " "
            yield f"  {marker} {order_id} {_order_text(orders.get(order_id))}", ""


def _table_sizes(tables: Mapping[str, Any]) -> Iterator[str]:
    for name, table in tables.items():
        if isinstance(table, dict):
            yield f"{len(table)} {name if len(table) != 1 else name[:-1]}"
        else:
            yield f"{name} {MISSING}"


def _order_text(order: Any) -> str:
    if not isinstance(order, dict):
        return MISSING
    items = _field_of(order, "items")
    if not isinstance(items, list):
        return f"{_field_of(order, 'status')}: items {MISSING}"
    items_text = "; ".join(f"{_field_of(item, 'name')} {_field_of(item, 'price')}" for item in items)
    return f"{_field_of(order, 'status')}: {items_text}"


def _values_text(value: Any, name: str) -> str:
    return ", ".join(map(str, value)) if isinstance(value, dict | list) else f"{name} {MISSING}"


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _field_of(record: Any, name: str) -> Any:
    return _as_mapping(record).get(name, MISSING)


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
