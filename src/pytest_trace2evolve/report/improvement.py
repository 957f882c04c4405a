"""What an evolution came to: a row an adapter, and one for the routed agent.

A router against oracle labels: the table of confusion, and how often it was right.
"""

import io
import json
from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_trace2evolve.improve.routing import accuracy
from pytest_trace2evolve.project.adapters import Adapters
from pytest_trace2evolve.records.adapter import AdapterManifest, Confusion
from pytest_trace2evolve.records.improvement import Evolution
from pytest_trace2evolve.report.score import terminal
from pytest_trace2evolve.report.terminal import rendered
from pytest_trace2evolve.utils.sanitize import sanitize_line

_HEADINGS = (
    ("candidate", False),
    ("Δ", True),
    ("held out", True),
    ("change (95 %)", True),
    ("others at worst", False),
    ("gate", False),
    ("verdict", False),
)
"""Headings, and whether what stands below is a figure."""


def evolved_text(state: Evolution, adapters: Adapters) -> str:
    """For a terminal."""
    target = terminal()
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading, figure in _HEADINGS:
        table.add_column(heading, justify="right" if figure else "left")
    deltas = {one.name: one.delta for one in state.missing or ()}
    for capability, name in state.adapters.items():
        judged = state.judged.get(f"{state.candidate}+{name}")
        if judged is None:
            continue
        delta = deltas.get(capability)
        why = f" ({judged.why})" if judged.why else ""
        table.add_row(
            Text(judged.candidate, "bold"),
            "–" if delta is None else f"{delta:+.2f}",
            *(_cells(adapters[name].manifest, capability) if name in set(adapters) else ("gone", "", "")),
            "no verdict" if judged.gate is None else judged.gate.value,
            f"{judged.state.value}{why}",
        )
    routed = state.judged.get(f"{state.candidate}+routed")
    if routed is not None:
        gate = "no verdict" if routed.gate is None else routed.gate.value
        table.add_row(Text(routed.candidate, "bold"), "", "", "", "", gate, routed.state.value)
    target.print(table)
    for line in _lines(state, routed=routed is not None):
        target.print(line, soft_wrap=True, highlight=False)
    return rendered(target)


def _lines(state: Evolution, *, routed: bool) -> list[str]:
    lines = []
    if not routed:
        lines.append(f"{state.candidate}+routed: no adapter was promoted, so there is nothing to route to")
    if state.confusion is not None and (found := accuracy(state.confusion)):
        share, low, high = found
        lines.append(
            f"router: right on {share:.0%} of {state.confusion.total} held-out openings "
            f"({low:.0%} … {high:.0%}; by chance {1 / len(state.confusion.labels):.0%})"
        )
    spent = ", ".join(f"{stage.value} {minutes:.1f}" for stage, minutes in state.minutes.items())
    lines.append(
        f"rollouts: {sum(state.rollouts.values()):,}; minutes: {sum(state.minutes.values()):.1f} ({spent})"
    )
    return lines


def _cells(manifest: AdapterManifest, capability: str) -> tuple[str, str, str]:
    """Held-out reward, its change, and the other capability that lost most."""
    own = manifest.heldout.get(capability)
    if own is None:
        return "not measured", "", ""
    others = [
        (one.change, name) for name, one in manifest.heldout.items() if name not in manifest.environments
    ]
    worst = f"{_points(min(others)[0])} {min(others)[1]}" if others else "–"
    interval = "" if own.low is None or own.high is None else f" ({_points(own.low)} to {_points(own.high)})"
    return f"{own.before:.2f} → {own.after:.2f}", _points(own.change) + interval, worst


def _points(change: float) -> str:
    return f"{100 * change:+.1f}".replace("-", "−")


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
