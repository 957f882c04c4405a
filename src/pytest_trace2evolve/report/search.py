"""Render a search for better candidates for the terminal."""

import json
from typing import Any

from rich.table import Column
from rich.text import Text

from pytest_trace2evolve.improve.arena import SearchResult
from pytest_trace2evolve.improve.search import Row, Status
from pytest_trace2evolve.improve.search_sessions import SearchPlan
from pytest_trace2evolve.report.formatting import make_grid, make_terminal_console, rendered_text


def plan_text(plan: SearchPlan) -> str:
    """Return one line about a search before it starts."""
    limits = {
        "proposals": plan.budgets.proposals,
        "simulations": plan.budgets.simulations,
        "minutes": plan.budgets.minutes,
        "US dollars": plan.budgets.cost,
    }
    budget = ", ".join(f"{limit:g} {name}" for name, limit in limits.items() if limit is not None)
    return (
        f"improve {plan.root} on {plan.suite}: {len(plan.groups)} discovery tasks screen, "
        f"{len(plan.gated_tasks)} tasks gate, {plan.trials} trial{'' if plan.trials == 1 else 's'} each; "
        f"budget: {budget or 'none'}, or {plan.rules.plateau} proposals without a promotion"
    )


def search_text(plan: SearchPlan, result: SearchResult) -> str:
    """Render the outcome of each proposal, both controls, the usage and the next step."""
    console = make_terminal_console()
    table = make_grid(
        Column("candidate", overflow="fold", no_wrap=True),
        Column("parent", overflow="fold", no_wrap=True),
        Column("gain", overflow="fold", no_wrap=True),
        Column("tasks", overflow="fold", no_wrap=True),
        Column("status", overflow="fold", no_wrap=True),
        Column("verdict", overflow="fold"),
        Column("hypothesis", overflow="fold"),
    )
    hypotheses = {proposal.id: proposal.hypothesis for proposal in result.state.proposals}
    for row in result.rows:
        cells = (row.candidate, row.parent, _gain_text(row), str(row.tasks), row.status.value, row.verdict)
        table.add_row(*(Text(cell) for cell in (*cells, hypotheses.get(row.candidate, ""))))
    console.print(table)
    return "\n".join([rendered_text(console).rstrip("\n"), *_lines(plan, result)])


def _gain_text(row: Row) -> str:
    return "" if row.gain is None or row.error is None else f"{100 * row.gain:+.1f} ± {100 * row.error:.1f}"


def _lines(plan: SearchPlan, result: SearchResult) -> list[str]:
    state, lines = result.state, []
    if (null := result.null_gain) is not None and result.best_of_two is not None:
        lines.append(
            f"null arm ({plan.null_arm}): {100 * null.mean:+.1f} ± {100 * null.error:.1f} points on "
            f"{null.tasks} tasks; the parent under another name, so this difference is noise"
        )
        lines.append(
            f"best of 2 runs of {plan.root}: {max(result.means):.3f} by run, {result.best_of_two:.3f} by "
            f"task; first run {result.means[0]:.3f}"
        )
    count = len(state.proposals)
    lines.append(
        f"{count} proposal{'' if count == 1 else 's'}, {state.simulations_of():,} simulations, "
        f"{state.usage.tokens:,} tokens"
        + ("" if not state.usage.cost else f", ${state.usage.cost:.2f}")
        + f", {state.minutes:.1f} minutes"
    )
    if result.stopped:
        open_text = "" if count == len(result.rows) else f"; undecided proposals: {count - len(result.rows)}"
        lines.append(f"stopped: {result.stopped}{open_text}; rerun with a larger budget to resume")
    kept = [row for row in result.rows if row.status is Status.KEEP]
    if kept:
        lines.append(f"best: {result.best}, after {len(kept)} promotion{'' if len(kept) == 1 else 's'}")
    else:
        lines.append(f"nothing was promoted; the best candidate is still {plan.root}")
    return lines


def search_json(result: SearchResult) -> str:
    """Render the outcome as JSON."""
    null = result.null_gain
    content: dict[str, Any] = {
        "best": result.best,
        "stopped": result.stopped,
        "rows": [vars(row) for row in result.rows],
        "null_arm": None if null is None else vars(null),
        "best_of_two": result.best_of_two,
        "simulations": result.state.simulations_of(),
        "usage": result.state.usage.model_dump(mode="json"),
        "minutes": result.state.minutes,
    }
    return json.dumps(content, indent=1, ensure_ascii=False)
