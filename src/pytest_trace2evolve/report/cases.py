"""Synthetic cases in the terminal: a file's list, one case for reading, and what admission found."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from pytest_trace2evolve.cases.case import FAMILIES, Case
from pytest_trace2evolve.records.task import After, Turn
from pytest_trace2evolve.report.score import terminal
from pytest_trace2evolve.report.terminal import rendered
from pytest_trace2evolve.utils.sanitize import sanitize_line

_AFTER = {
    After.ANYTHING: "then",
    After.DONE: "where that was done",
    After.REFUSED: "where that was refused",
}


def cases_text(path: str, cases: Sequence[Case]) -> str:
    """A file's cases, a line each."""
    target = terminal()
    table = Table(title=f"{path}: {len(cases)} cases", title_justify="left", box=None, pad_edge=False)
    for heading in ("case", "content", "right is", "the customer says"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("content", "right is"))
    for case in cases:
        right = "to refuse" if case.script.refuses_all else "to act"
        says = sanitize_line(case.script.turns[0].says)
        table.add_row(Text(case.id), case.script.content.value, right, Text(says))
    target.print(table)
    return rendered(target)


def case_text(case: Case) -> str:
    """One case to be read by people: the customer, the store and the gold actions."""
    target = terminal()
    for text, style in (*_customer(case), *_store(case), *_right(case)):
        indent = text[: len(text) - len(text.lstrip())]
        target.print(Text(indent + sanitize_line(text), style=style), soft_wrap=True)
    return rendered(target)


def _customer(case: Case) -> Iterator[tuple[str, str]]:
    script = case.script
    family = FAMILIES.get(script.family)
    yield f"{case.id} · {script.content.value} content", "bold"
    if family is not None:
        yield f"{family.name}: {family.purpose}", "dim"
    yield "", ""
    yield "The customer", "bold magenta"
    for place, turn in enumerate(script.turns):
        yield f"{'says' if not place else _AFTER[turn.after]}: {turn.says}", ""
        yield from _turn(turn)
    for slot, text in script.identity.items():
        yield f"  asked for {slot.value}: {text}", "dim"


def _turn(turn: Turn) -> Iterator[tuple[str, str]]:
    for request in turn.requests:
        for slot, text in request.details.items():
            yield f"  asked for {slot.value}: {text}", "dim"
    for text in turn.insists:
        yield f"  refused: {text}", "dim"


def _store(case: Case) -> Iterator[tuple[str, str]]:
    tables = case.task.tables
    yield "", ""
    yield f"The store: {', '.join(_counts(tables)) or MISSING}", "bold blue"
    orders = _mapping(tables.get("orders"))
    about = {one for turn in case.script.turns for request in turn.requests for one in request.about}
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


MISSING = "missing"
"""What stands for a record or a field that a damaged store lacks, or holds as something else."""


def _counts(tables: Mapping[str, Any]) -> Iterator[str]:
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
    told = "; ".join(f"{_field(item, 'name')} {_field(item, 'price')}" for item in items)
    return f"{_field(order, 'status')}: {told}"


def _listed(value: Any, name: str) -> str:
    return ", ".join(map(str, value)) if isinstance(value, dict | list) else f"{name} {MISSING}"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _field(record: Any, name: str) -> Any:
    return _mapping(record).get(name, MISSING)


def _right(case: Case) -> Iterator[tuple[str, str]]:
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


def problem_line(path: str, case: Case, problem: str) -> str:
    """What admission found against a case of a file."""
    return sanitize_line(f"{path}: {case.id}: {problem}")


def admitted_line(path: str, passed: int, total: int) -> str:
    """How many of a file's cases passed admission."""
    return f"{path}: {passed} of {total} cases admitted"
