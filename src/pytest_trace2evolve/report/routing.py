"""A router against oracle labels: the table of confusion, and how often it was right."""

import io
import json
from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
from rich.table import Table

from pytest_trace2evolve._sanitize import sanitize_line
from pytest_trace2evolve.records.routing import Confusion
from pytest_trace2evolve.routing.confusion import accuracy

WIDTH = 120


class Routed(Protocol):
    """What a router made of openings."""

    @property
    def confusion(self) -> Confusion:
        """Oracle labels against choices."""

    @property
    def silent(self) -> float:
        """In what share of all orders no letter was told."""


def routed_text(routed: Routed, base: str) -> str:
    """For a terminal."""
    confusion = routed.confusion
    table = Table("oracle label", title_justify="left", box=None)
    for place in range(len(confusion.labels)):
        table.add_column(str(place + 1), justify="right")
    table.add_column("right", justify="right")
    for place, (label, row) in enumerate(zip(confusion.labels, confusion.counts, strict=True)):
        right = f"{row[place] / sum(row):.0%}" if sum(row) else "–"
        table.add_row(f"{place + 1} {sanitize_line(label)}", *map(str, row), right)
    text = io.StringIO()
    Console(file=text, width=WIDTH, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + f"\n{_told(routed, base)}\n"


def _told(routed: Routed, base: str) -> str:
    found = accuracy(routed.confusion)
    if found is None:
        return "nothing was routed"
    share, low, high = found
    confusion = routed.confusion
    chance = 1 / len(confusion.labels)
    return (
        f"right: {share:.0%} of {confusion.total} held-out openings ({low:.0%} … {high:.0%}), by chance "
        f"{chance:.0%}; {sanitize_line(base)} told no letter in {routed.silent:.0%} of the questions"
    )


def routed_json(routed: Routed, names: Sequence[str]) -> str:
    """As JSON."""
    found = accuracy(routed.confusion)
    record = {
        "table": list(names),
        "confusion": routed.confusion.model_dump(mode="json"),
        "accuracy": None if found is None else dict(zip(("share", "low", "high"), found, strict=True)),
        "chance": 1 / len(routed.confusion.labels),
        "silent": routed.silent,
    }
    return json.dumps(record, indent=1) + "\n"
