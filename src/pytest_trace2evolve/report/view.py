"""Renders the pages of `show --serve`: a project's verdicts, candidates, ledger and single traces."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pytest_trace2evolve.report.charts import Axis, axis_row, check_row
from pytest_trace2evolve.report.evidence import entry_line
from pytest_trace2evolve.report.figures import interval_estimate_text, interval_text, share_text, usage_figure
from pytest_trace2evolve.report.page import content_policy, render, resource
from pytest_trace2evolve.report.page_traces import trace_view
from pytest_trace2evolve.utils.sanitize import sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.session.ledger import SplitHistory
    from pytest_trace2evolve.session.runs import CandidateColumn, RecordedVerdict, RunFacts
    from pytest_trace2evolve.session.traces import OpenedTrace


def view_page(kind: str, title: str, **content: Any) -> str:
    """Render a page of the view.

    Args:
        kind: The part of the template, such as `board`.
        title: The page's title.
        content: What this part of the template shows.
    """
    script, style = resource("view.js"), resource("page.css")
    return render(
        "view.html",
        kind=kind,
        title=sanitize_line(title, 200),
        script=script,
        style=style,
        policy=content_policy(script, style, "connect-src 'self'; form-action 'self'"),
        line=lambda text: sanitize_line(str(text), 2_000),
        share=share_text,
        quote=lambda text: quote(text, safe="", errors="replace"),
        **content,
    )


def board(verdicts: Sequence["RecordedVerdict"], runs: Sequence["RunFacts"]) -> str:
    """Render the verdicts over time with their intervals, and the runs."""
    groups: dict[tuple[str, str], list[RecordedVerdict]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.suite, verdict.split), []).append(verdict)
    charts = []
    for name, group in groups.items():
        axis = Axis.of([verdict.change for verdict in group if verdict.change])
        rows = [
            {
                "verdict": verdict,
                "plot": check_row(verdict.change, axis) if verdict.change else "",
                "figure": interval_text(verdict.change) if verdict.change else "",
                "pass_rate": interval_estimate_text(verdict.pass_rate) if verdict.pass_rate else "",
            }
            for verdict in group
        ]
        charts.append((" · ".join(filter(None, name)), rows, axis_row(axis)))
    return view_page("board", "runs and verdicts", charts=charts, runs=runs)


def candidates(
    suites: Sequence[str], suite: str, columns: Sequence["CandidateColumn"], tree: Sequence[Any]
) -> str:
    """Render the table of tasks and candidates of a suite, with the candidates' lineage."""
    tasks = list(dict.fromkeys(task for column in columns for task in column.trials))
    figures = [
        (title, [usage_figure(name, column.mean(name)) for column in columns])
        for title, name in (("cost of a simulation", "cost"), ("tokens of a simulation", "tokens"))
    ]
    rows = [(task, [_cell(column, task) for column in columns]) for task in tasks]
    # Tasks whose outcome differs between candidates come first.
    rows.sort(key=lambda row: len({state for _, state in row[1] if state}) < 2)
    return view_page(
        "candidates",
        "candidates",
        suites=suites,
        suite=suite,
        columns=columns,
        rows=rows,
        figures=figures,
        tree=tree,
    )


def _cell(column: "CandidateColumn", task: str) -> tuple[str, str]:
    """Return the counts of a candidate's trials of a task, and the class of the outcome."""
    trials = column.trials.get(task)
    if trials is None or not trials.measured_records:
        return "–", ""
    return f"{trials.pass_count}/{len(trials.measured_records)}", "fixed" if trials.passes else "broken"


def ledger(histories: Sequence["SplitHistory"], problems: Sequence[str]) -> str:
    """Render the ledger's entries in time, the latest first."""
    entries = [
        (entry.at, f"{history.suite} · {history.split}", entry_line(entry, history.lock))
        for history in histories
        for entry in history.entries
    ]
    entries.sort(reverse=True)
    return view_page("ledger", "ledger", entries=entries, problems=problems)


def trace(opened: "OpenedTrace", note: str) -> str:
    """Render one trace."""
    simulation = opened.simulation
    title = f"{opened.run}: task {simulation.task_id}, trial {simulation.trial or 0}"
    content = trace_view(simulation, opened.findings, opened.failure)
    return view_page("trace", title, trace=content, note=note)
