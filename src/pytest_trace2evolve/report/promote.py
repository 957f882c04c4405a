"""What `trace2evolve promote` prints: what changed, and the line that commits it."""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_trace2evolve.report.baselines import trials_text
from pytest_trace2evolve.report.terminal import number
from pytest_trace2evolve.workflow.judging.promote import NewBaseline, Promotion
from pytest_trace2evolve.workflow.project import Project
from pytest_trace2evolve.workflow.recorded.listing import SHORT, trials_of_tasks


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
