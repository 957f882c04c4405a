"""Synthetic cases and the files of `trace2evolve init` in the terminal."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Column
from rich.text import Text

from pytest_trace2evolve.cases.case import FAMILIES, Case
from pytest_trace2evolve.project.scaffold import Scaffold, State
from pytest_trace2evolve.records.task import After, Turn
from pytest_trace2evolve.report.formatting import BOTH_SIDES, grid, print_line, rendered, terminal
from pytest_trace2evolve.utils.sanitize import sanitize_line

_AFTER = {After.ANYTHING: "then", After.DONE: "where that was done", After.REFUSED: "where that was refused"}

MISSING = "missing"
"""Stands for a record or a field that a damaged store lacks, or holds with a wrong type."""


def cases_text(path: str, cases: Sequence[Case]) -> str:
    """The cases of a file, one line each."""
    target = terminal()
    table = grid(
        Column("case", overflow="fold"),
        Column("content", overflow="fold", no_wrap=True),
        Column("right is", overflow="fold", no_wrap=True),
        Column("the customer says", overflow="fold"),
        padding=BOTH_SIDES,
        title=f"{path}: {len(cases)} cases",
    )
    for case in cases:
        right = "to refuse" if case.script.refuses_all else "to act"
        says = sanitize_line(case.script.turns[0].says)
        table.add_row(Text(case.id), case.script.content.value, right, Text(says))
    target.print(table)
    return rendered(target)


def case_text(case: Case) -> str:
    """One case for human readers: the customer, the store and the gold actions."""
    target = terminal()
    for text, style in (*_customer_lines(case), *_store_lines(case), *_gold_lines(case)):
        print_line(target, text, style)
    return rendered(target)


def _customer_lines(case: Case) -> Iterator[tuple[str, str]]:
    script = case.script
    family = FAMILIES.get(script.family)
    yield f"{case.id} · {script.content.value} content", "bold"
    if family is not None:
        yield f"{family.name}: {family.purpose}", "dim"
    yield "", ""
    yield "The customer", "bold magenta"
    for position, turn in enumerate(script.turns):
        yield f"{_AFTER[turn.after] if position else 'says'}: {turn.says}", ""
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
    orders = _mapping(tables.get("orders"))
    about = {record for turn in case.script.turns for request in turn.requests for record in request.about}
    for user_id, user in _mapping(tables.get("users")).items():
        mark = "*" if user_id in about else " "
        yield f"{mark} {user_id}: {_listed(_field(user, 'payment_methods'), 'payment methods')}", ""
        owned = _field(user, "orders")
        if not isinstance(owned, list):
            yield f"    orders: {MISSING}", ""
            continue
        for order_id in map(str, owned):
            mark = "*" if order_id in about else " "
            yield f"  {mark} {order_id} {_order(orders.get(order_id))}", ""


def _table_sizes(tables: Mapping[str, Any]) -> Iterator[str]:
    for name, table in tables.items():
        if isinstance(table, dict):
            yield f"{len(table)} {name if len(table) != 1 else name[:-1]}"
        else:
            yield f"{name} {MISSING}"


def _order(order: Any) -> str:
    if not isinstance(order, dict):
        return MISSING
    items = _field(order, "items")
    if not isinstance(items, list):
        return f"{_field(order, 'status')}: items {MISSING}"
    listed = "; ".join(f"{_field(item, 'name')} {_field(item, 'price')}" for item in items)
    return f"{_field(order, 'status')}: {listed}"


def _listed(value: Any, name: str) -> str:
    return ", ".join(map(str, value)) if isinstance(value, dict | list) else f"{name} {MISSING}"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _field(record: Any, name: str) -> Any:
    return _mapping(record).get(name, MISSING)


def _gold_lines(case: Case) -> Iterator[tuple[str, str]]:
    yield "", ""
    yield "What is right", "bold green"
    for action in case.task.actions:
        arguments = ", ".join(f"{name}={value!r}" for name, value in action.arguments.items())
        yield f"  {action.name}({arguments})", ""
    for turn in case.script.turns:
        if turn.refused:
            yield f"  {'refuse a part of' if turn.done else 'refuse'}: {turn.says}", ""
    criteria = case.task.evaluation_criteria
    for text in (criteria.communicate_info or []) if criteria else []:
        yield f"  say: {text}", ""


def layout_text(layout: Scaffold, command: str, *, dry_run: bool) -> str:
    """The files of `trace2evolve init` as plain text. The last line is the command to run next."""
    return "\n".join(
        [
            *_file_lines(layout, dry_run=dry_run),
            *(f"note: {note}" for note in layout.notes),
            f"next: {command}",
        ]
    )


def _file_lines(layout: Scaffold, *, dry_run: bool) -> list[str]:
    new = [file for file in layout.files if file.state is not State.THERE]
    if not new:
        here, root = Path.cwd(), layout.root
        shown = root.relative_to(here) if root.is_relative_to(here) and root != here else root
        return [f"{shown}: everything is there already"]
    states = [
        f"would be {file.state}" if dry_run and file.state is not State.LEFT else str(file.state)
        for file in new
    ]
    width = max(map(len, states))
    lines = [
        f"{state:<{width}} {file.path}{f' ({file.detail})' if file.detail else ''}"
        for state, file in zip(states, new, strict=True)
    ]
    there = len(layout.files) - len(new)
    return [*lines, *([f"{there} more files are there already"] if there > 1 else [])]
