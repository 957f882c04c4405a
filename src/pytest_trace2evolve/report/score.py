"""What `trace2evolve score` prints."""

import shutil
import sys
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from pytest_trace2evolve.report.markdown import escape
from pytest_trace2evolve.report.terminal import alarms_line, console, number, pass_hat, rendered
from pytest_trace2evolve.session.replays import ScoredFile
from pytest_trace2evolve.session.sides import Scored

STREAM_WIDTH = 160
"""Columns where the output is no terminal: wide enough that no figure is cut."""


def score_json(files: Sequence[ScoredFile]) -> dict[str, Any]:
    """The documented JSON form."""
    return {
        "files": [
            {
                "path": str(file.path),
                "domain": file.domain,
                "simulations": [
                    {
                        "id": one.record.id,
                        "task_id": one.record.task_id,
                        "trial": one.record.trial,
                        "status": one.record.status.value,
                        "reward": one.record.reward,
                        "recorded_reward": one.record.recorded_reward,
                        "components": {name.value: value for name, value in one.record.components.items()},
                        "note": one.record.note,
                        "invariants": _findings(one),
                    }
                    for one in file.scored
                ],
                "metrics": file.metrics.model_dump(mode="json"),
            }
            for file in files
        ]
    }


def _findings(one: Scored) -> list[dict[str, Any]] | None:
    """Which message broke which invariant; None where the simulation was not held against any.

    Why is left out: it quotes the trace, and only `show` writes down that somebody looked at one.
    """
    if one.record.invariants is None:
        return None
    return [{"invariant": found.invariant.value, "message": found.message} for found in one.found]


def score_tables(files: Sequence[ScoredFile]) -> str:
    """A table with a row a file, and below it what needs saying."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("file", overflow="fold")
    table.add_column("domain")
    for heading in (
        "simulations",
        "recorded",
        "reward",
        "agreement",
        "pass^k",
        "action match",
        "read",
        "write",
    ):
        table.add_column(heading, justify="right")
    table.add_column("terminations")
    for file in files:
        figures = file.metrics
        ends = ", ".join(f"{reason} {count}" for reason, count in figures.terminations.items())
        table.add_row(
            escape(file.path.name),
            escape(file.domain),
            str(figures.simulations),
            number(figures.recorded_reward),
            number(figures.reward),
            "–" if figures.agreement is None else f"{figures.agreement:.1%}",
            pass_hat(figures),
            number(figures.action_match),
            number(figures.read_action_match),
            number(figures.write_action_match),
            escape(ends),
        )
    target = terminal()
    target.print(table)
    for file in files:
        if line := alarms_line(file.metrics):
            target.print(f"{escape(file.path.name)}: {line}", soft_wrap=True)
        for note in file.notes:
            target.print(f"{escape(file.path.name)}: {escape(note)}", soft_wrap=True)
    return rendered(target)


def terminal() -> Any:
    """A console as wide and as colourful as standard output."""
    shown = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if shown else STREAM_WIDTH
    return console(width=width, colour=shown)
