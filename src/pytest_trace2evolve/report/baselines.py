"""How baselines are told: a line in a session's header, a warning about age, the list of all."""

from collections.abc import Sequence
from datetime import datetime

from rich.table import Table

from pytest_trace2evolve.report.markup import escape
from pytest_trace2evolve.report.score import terminal
from pytest_trace2evolve.report.terminal import rendered
from pytest_trace2evolve.workflow.planning.plan import Plan
from pytest_trace2evolve.workflow.recorded.baselines import Baseline
from pytest_trace2evolve.workflow.recorded.listing import SHORT, SavedBaseline, age_days, trials_of_tasks


def baseline_line(baseline: Baseline, now: datetime, suite: str = "") -> str:
    """A baseline in one short line: age, trials, candidate and lineage.

    Args:
        baseline: What a suite is compared with.
        now: The time that its age counts to.
        suite: The suite's name, where there are several.
    """
    origin = baseline.evidence.provenance
    facts = [_age(age_days(origin.created_at, now)), trials_text(trials_of_tasks(baseline.evidence))]
    if origin.candidate is not None:
        parent = f" ← {origin.candidate.parent}" if origin.candidate.parent else ""
        facts.append(f"candidate {origin.candidate.id}{parent}")
    if origin.replaces:
        facts.append(f"replaces {origin.replaces[:SHORT]}…")
    return f"baseline {baseline.name}{f' of {suite}' if suite else ''}: {', '.join(facts)}"


def baseline_lines(plan: Plan) -> list[str]:
    """A line for each baseline of a run, as old as it is at the run's start."""
    now, several = datetime.fromisoformat(plan.started), len(plan.suites) > 1
    return [
        baseline_line(planned.baseline, now, name if several else "")
        for name, planned in plan.suites.items()
        if planned.baseline is not None
    ]


def age_warnings(plan: Plan, limit: float | None) -> list[str]:
    """A warning for each baseline of a run that is older than `limit` days."""
    now, found = datetime.fromisoformat(plan.started), []
    for name, planned in plan.suites.items():
        if planned.baseline is None or limit is None:
            continue
        age = age_days(planned.baseline.evidence.provenance.created_at, now)
        if age is not None and age > limit:
            found.append(
                f"warning: baseline {planned.baseline.name} of {name} is {_days(age)} old, more than "
                f"t2e_baseline_max_age = {limit:g}; measure it again "
                f"(--t2e-save-baseline {planned.baseline.name} --t2e-baseline-mode update)"
            )
    return found


def baselines_table(baselines: Sequence[SavedBaseline]) -> str:
    """The list of saved baselines, a row each."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for heading in (
        "suite",
        "baseline",
        "age",
        "candidate",
        "model",
        "tasks",
        "trials",
        "runs",
        "lock",
        "lineage",
    ):
        right = heading in ("age", "tasks", "trials", "runs")
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for one in baselines:
        if one.error:
            table.add_row(one.suite, one.name, "–", "damaged")
            continue
        candidate = f"{one.candidate} ← {one.parent}" if one.parent else one.candidate or "–"
        table.add_row(
            *(escape(text) for text in (one.suite, one.name)),
            "–" if one.age_days is None else _days(one.age_days),
            *(escape(text) for text in (candidate, one.model or "–")),
            str(one.tasks),
            _range(one.trials),
            str(one.simulations),
            one.lock,
            escape(_lineage(one)),
        )
    target = terminal()
    target.print(table)
    for one in baselines:
        if one.changed:
            target.print(f"{escape(one.path)}: lock stale: {escape('; '.join(one.changed))}", soft_wrap=True)
    return rendered(target)


def _lineage(one: SavedBaseline) -> str:
    parts = []
    if one.replaces:
        name = f"{one.replaces_name} " if one.replaces_name else ""
        parts.append(f"replaces {name}{one.replaces[:SHORT]}…")
    if one.promoted_from:
        parts.append(f"promoted from {one.promoted_from}")
    return ", ".join(parts) or "–"


def _age(days: float | None) -> str:
    return "age not recorded" if days is None else f"{_days(days)} old"


def _days(days: float) -> str:
    return f"{int(days)} {'day' if int(days) == 1 else 'days'}"


def trials_text(counts: tuple[int, int]) -> str:
    """The smallest and the largest number of trials of a task, in words."""
    return f"{_range(counts)} {'trial' if counts[1] == 1 else 'trials'}"


def _range(counts: tuple[int, int]) -> str:
    return str(counts[0]) if counts[0] == counts[1] else f"{counts[0]} to {counts[1]}"
