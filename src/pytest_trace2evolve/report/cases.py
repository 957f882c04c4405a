"""Synthetic cases in the terminal: a file's list, one case for reading, and what admission found."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from pytest_trace2evolve.cases.case import FAMILIES, Case
from pytest_trace2evolve.records.script import After, Turn
from pytest_trace2evolve.report.inert import inert_line
from pytest_trace2evolve.report.score import terminal
from pytest_trace2evolve.report.terminal import rendered
from pytest_trace2evolve.workflow.cases.admission import Admission

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
        says = inert_line(case.script.turns[0].says)
        table.add_row(Text(case.id), case.script.content.value, right, Text(says))
    target.print(table)
    return rendered(target)


def case_text(case: Case) -> str:
    """One case to be read by people: the customer, the store and the gold actions."""
    target = terminal()
    for text, style in (*_customer(case), *_store(case), *_right(case)):
        indent = text[: len(text) - len(text.lstrip())]
        target.print(Text(indent + inert_line(text), style=style), soft_wrap=True)
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
    state = case.task.initial_state
    data = state.initialization_data if state else None
    tables: Mapping[str, Any] = (data.agent_data if data else None) or {}
    counts = Counter({name: len(table) for name, table in tables.items()})
    yield "", ""
    parts = (f"{count} {name if count != 1 else name[:-1]}" for name, count in counts.items())
    yield f"The store: {', '.join(parts)}", "bold blue"
    orders = tables.get("orders", {})
    about = {one for turn in case.script.turns for request in turn.requests for one in request.about}
    for user_id, user in tables.get("users", {}).items():
        mark = "*" if user_id in about else " "
        yield f"{mark} {user_id}: {', '.join(user['payment_methods'])}", ""
        for order_id in user["orders"]:
            order = orders[order_id]
            items = "; ".join(f"{item['name']} {item['price']}" for item in order["items"])
            yield f"  {'*' if order_id in about else ' '} {order_id} {order['status']}: {items}", ""


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


def admission_text(path: str, found: Sequence[Admission]) -> str:
    """What admission found of a file's cases: a line a problem, and how many passed."""
    failed = [one for one in found if one.problems]
    lines = [inert_line(f"{path}: {one.case.id}: {problem}") for one in failed for problem in one.problems]
    passed = len(found) - len(failed)
    return "\n".join([*lines, f"{path}: {passed} of {len(found)} cases admitted"])
