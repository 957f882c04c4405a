"""How baselines are told: a line in a session's header, a warning about age, the list of all.

What `trace2evolve promote` prints: what changed, and the line that commits it.
"""

import os
import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.report.markdown import escape
from pytest_trace2evolve.report.score import terminal
from pytest_trace2evolve.report.terminal import number, rendered
from pytest_trace2evolve.session.baselines import SHORT, Baseline, SavedBaseline, age_days, trials_of_tasks
from pytest_trace2evolve.session.plan import Plan
from pytest_trace2evolve.session.promote import NewBaseline, Promotion


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


def promotion_text(promotion: Promotion, project: Project, here: Path, *, dry_run: bool) -> str:
    """The promotion as plain text, its last line the command that commits it.

    Args:
        promotion: What was, or would be, done.
        project: Where it lies.
        here: The folder that the user stands in, from which the command's paths start.
        dry_run: Whether nothing was written.
    """
    record = promotion.record
    if promotion.done:
        files = ", ".join(_shown(one.path, here) for one in promotion.baselines)
        return f"run {record.run} was promoted before: {files}; nothing changed"
    lines = [
        f"candidate {record.candidate.id}, run {record.run}, policy {record.policy}, goal {record.goal.value}"
    ]
    for one in promotion.baselines:
        lines.append(_baseline(one, here, dry_run=dry_run))
        lines += [f"  {text}" for text in _splits(record.suites[one.suite].verdicts)]
    lines += [f"{suite}: left as it is ({reason})" for suite, reason in promotion.without]
    if record.others_failed:
        lines.append(
            "note: tests outside the suites failed in that run; they say nothing about the candidate"
        )
    lines.append(f"{'it would be committed' if dry_run else 'to commit it'} with:")
    return "\n".join([*lines, commit_line(promotion, project, here)])


def commit_line(promotion: Promotion, project: Project, here: Path) -> str:
    """The shell command that adds and commits a promotion, with the candidate that it is about."""
    record = promotion.record
    candidate = project.root / "candidates" / f"{record.candidate.id}.md"
    paths = [_shown(path, here) for path in (*(one.path for one in promotion.baselines), candidate)]
    against = " and ".join(dict.fromkeys(one.beaten for one in promotion.baselines))
    suites = ", ".join(one.suite for one in promotion.baselines)
    message = f"Promote {record.candidate.id} on {suites}: takes over from {against} (run {record.run})"
    return f"git add {shlex.join(paths)} && git commit -m {shlex.quote(message)}"


def _baseline(one: NewBaseline, here: Path, *, dry_run: bool) -> str:
    tasks = len({record.task_id for record in one.evidence.simulations})
    done = "unchanged" if one.done else "would be written" if dry_run else "written"
    before = (one.evidence.provenance.replaces or "")[:SHORT]
    return (
        f"{_shown(one.path, here)}: {done}, {tasks} tasks, {trials_text(trials_of_tasks(one.evidence))}, "
        f"takes over from {one.beaten} ({before}…)"
    )


def _splits(verdicts: tuple[dict[str, Any], ...]) -> Iterator[str]:
    for verdict in verdicts:
        sides = [verdict.get(side, {}).get("reward") for side in ("baseline", "candidate")]
        yield (
            f"{verdict.get('split')}: {verdict['verdict'] or 'no harm detected'}, "
            f"{verdict.get('label')} evidence, reward {number(sides[0])} → {number(sides[1])}"
        )


def _shown(path: Path, here: Path) -> str:
    return Path(os.path.relpath(path, here)).as_posix()
