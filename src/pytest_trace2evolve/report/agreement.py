"""Render the output of `trace2evolve judge agreement`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Column

from pytest_trace2evolve.records.agreement import MIN_KAPPA
from pytest_trace2evolve.records.verdict import Interval
from pytest_trace2evolve.report.formatting import (
    NOT_MEASURED,
    escape,
    make_grid,
    make_terminal_console,
    print_line,
    rendered_text,
)

if TYPE_CHECKING:
    from pytest_trace2evolve.session.agreement import CheckAgreement

MAX_DISAGREEMENTS = 10
"""The maximum number of disagreements that are shown for a check."""


def agreement_text(results: Sequence["CheckAgreement"]) -> str:
    """Render the agreement on each check, with the labels that the judge contradicts."""
    console = make_terminal_console()
    headings = ("labels", "accuracy", "kappa", "false kept", "false broken")
    table = make_grid("check", *(Column(heading, justify="right") for heading in headings), "may decide")
    for result in results:
        agreement = result.agreement
        table.add_row(
            escape(result.check),
            str(agreement.total),
            _interval_text(agreement.accuracy),
            _interval_text(agreement.kappa),
            _interval_text(agreement.false_kept),
            _interval_text(agreement.false_broken),
            "yes" if agreement.is_sufficient else f"no: kappa must be at least {MIN_KAPPA:.2f}",
        )
    console.print(table)
    print_line(
        console,
        "intervals: 95 %; a check may decide if the lower bound of its kappa is high enough",
        "dim",
    )
    for result in results:
        for item in result.disagreements[:MAX_DISAGREEMENTS]:
            answer = "no answer" if item.answer is None else "yes" if item.answer else "no"
            text = f"{result.check}, line {item.line}: label {'yes' if item.label else 'no'}, judge {answer}"
            print_line(console, f"{text}: {item.reason}" if item.reason else text)
        if (n_hidden := len(result.disagreements) - MAX_DISAGREEMENTS) > 0:
            print_line(console, f"{result.check}: {n_hidden} more disagreements")
        print_line(console, f"written: {result.path}")
    return rendered_text(console)


def agreement_json(results: Sequence["CheckAgreement"]) -> dict[str, Any]:
    """The documented JSON form of the output."""
    return {
        "checks": [
            {
                "check": result.check,
                "may_decide": result.agreement.is_sufficient,
                **result.agreement.model_dump(mode="json"),
                "disagreements": [
                    {"line": item.line, "label": item.label, "answer": item.answer, "reason": item.reason}
                    for item in result.disagreements
                ],
            }
            for result in results
        ]
    }


def _interval_text(interval: Interval | None) -> str:
    if interval is None:
        return NOT_MEASURED
    return f"{interval.estimate:.2f} ({interval.low:.2f}…{interval.high:.2f})"
