"""Render saved evidence: baselines, runs, promotions, scores and the ledger."""

import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Column

from pytest_trace2evolve.records.ledger import Access, Draw, DrawOrigin, Evaluation
from pytest_trace2evolve.report.figures import checks_line, invariants_line, pass_hat_text
from pytest_trace2evolve.report.formatting import (
    NARROW_PADDING,
    NOT_MEASURED,
    REPORT_COLUMNS,
    Page,
    escape,
    format_count,
    format_number,
    make_terminal_console,
    render_parts,
    table_text,
)

if TYPE_CHECKING:
    from pytest_trace2evolve.session.baselines import BaselineFacts
    from pytest_trace2evolve.session.evidence_sources import ScoredFile, ScoredSimulation
    from pytest_trace2evolve.session.ledger import SplitHistory
    from pytest_trace2evolve.session.promote import NewBaseline, Promotion
    from pytest_trace2evolve.session.runs import RunFacts

DIGEST_DIGITS = 8
"""The number of digits of a digest that reports show."""


def baseline_line(baseline: "BaselineFacts", *, names_suite: bool = False) -> str:
    """Describe a baseline in one line: its age, trials, candidate and lineage."""
    facts = [
        "age not recorded" if baseline.age_days is None else _age_text(baseline),
        _trials_text(baseline.trials),
    ]
    if baseline.candidate is not None:
        parent = f" ← {baseline.parent}" if baseline.parent else ""
        facts.append(f"candidate {baseline.candidate}{parent}")
    if baseline.replaces:
        facts.append(f"replaces {baseline.replaces[:DIGEST_DIGITS]}…")
    suite_text = f" of {baseline.suite}" if names_suite else ""
    return f"baseline {baseline.name}{suite_text}: {', '.join(facts)}"


def _age_text(baseline: "BaselineFacts") -> str:
    """The age of a baseline's oldest trials, and that of the newest if they were made later."""
    assert baseline.age_days is not None
    newest = baseline.newest_age_days
    newest_text = "" if newest is None else f" (newest trials {_days_text(newest)})"
    return f"{_days_text(baseline.age_days)} old{newest_text}"


def baselines_table(baselines: Sequence["BaselineFacts"]) -> str:
    """Render saved baselines as a table, with notes about stale locks."""
    figure_headings = ("age", "tasks", "trials", "runs")
    headings = "suite", "baseline", "age", "candidate", "model", "tasks", "trials", "runs", "lock", "lineage"
    return table_text(
        (
            Column(name, justify="right" if name in figure_headings else "left", overflow="fold")
            for name in headings
        ),
        map(_baseline_row, baselines),
        padding=NARROW_PADDING,
        notes=(
            f"{baseline.path}: lock stale: {'; '.join(baseline.changed)}"
            for baseline in baselines
            if baseline.changed
        ),
    )


def _baseline_row(baseline: "BaselineFacts") -> Sequence[str]:
    if baseline.error:
        return baseline.suite, baseline.name, NOT_MEASURED, "damaged"
    parent_text = f" ← {baseline.parent}" if baseline.parent else ""
    candidate = f"{baseline.candidate}{parent_text}" if baseline.candidate or parent_text else NOT_MEASURED
    return (
        escape(baseline.suite),
        escape(baseline.name),
        NOT_MEASURED if baseline.age_days is None else _days_text(baseline.age_days),
        escape(candidate),
        escape(baseline.model or NOT_MEASURED),
        str(baseline.tasks),
        _range_text(baseline.trials),
        str(baseline.simulations),
        baseline.lock,
        escape(_lineage_text(baseline)),
    )


def runs_table(runs: Sequence["RunFacts"]) -> str:
    """Render runs as a table."""
    headings = ("run", "candidate", "suites", "started (UTC)", "decision", "evidence")
    rows = (
        (
            escape(run.run),
            escape(run.candidate or NOT_MEASURED),
            escape(", ".join(run.suites) or NOT_MEASURED),
            escape((run.time or NOT_MEASURED)[:16].replace("T", " ")),
            "damaged" if run.error else escape(_decision_text(run)),
            escape(", ".join(run.labels) or NOT_MEASURED),
        )
        for run in runs
    )
    return table_text((Column(name, overflow="fold") for name in headings), rows, padding=NARROW_PADDING)


def _decision_text(run: "RunFacts") -> str:
    if run.decision is None:
        cause, _, remedy = run.reason.rpartition("; ")
        return cause or remedy or NOT_MEASURED
    return f"{run.decision} ({run.reason})" if run.reason else run.decision


def _lineage_text(baseline: "BaselineFacts") -> str:
    parts = []
    if baseline.replaces:
        name = f"{baseline.replaces_name} " if baseline.replaces_name else ""
        parts.append(f"replaces {name}{baseline.replaces[:DIGEST_DIGITS]}…")
    if baseline.promoted_from:
        parts.append(f"promoted from {baseline.promoted_from}")
    return ", ".join(parts) or NOT_MEASURED


def _days_text(days: float) -> str:
    return format_count(int(days), "day")


def _trials_text(counts: tuple[int, int]) -> str:
    return f"{_range_text(counts)} {'trial' if counts[1] == 1 else 'trials'}"


def _range_text(counts: tuple[int, int]) -> str:
    return str(counts[0]) if counts[0] == counts[1] else f"{counts[0]} to {counts[1]}"


def promotion_text(promotion: "Promotion", start: Path, *, dry_run: bool) -> str:
    """Render a promotion as plain text. The last line is the command that commits it.

    Args:
        promotion: The promotion.
        start: The folder to which the command's paths are relative.
        dry_run: Whether nothing was written.
    """
    run_verdict = promotion.record
    if promotion.is_done:
        files = ", ".join(_relative_path(baseline.path, start) for baseline in promotion.baselines)
        return f"run {run_verdict.run} is already promoted: {files}; nothing was changed"
    names = f"candidate {run_verdict.candidate.id}, run {run_verdict.run}"
    lines = [f"{names}, policy {run_verdict.policy}, goal {run_verdict.goal.value}"]
    for baseline in promotion.baselines:
        lines.append(_new_baseline_text(baseline, start, dry_run=dry_run))
        lines += [f"  {_split_line(verdict)}" for verdict in run_verdict.suites[baseline.suite].verdicts]
    lines += [f"{suite}: unchanged ({reason})" for suite, reason in promotion.skipped_suites]
    if run_verdict.others_failed:
        lines.append("note: tests outside the suites failed in that run; they do not concern the candidate")
    if not promotion.paths:
        return "\n".join([*lines, "note: git ignores all of its files, so there is nothing to commit"])
    lines.append(f"{'it would be committed' if dry_run else 'to commit it'} with:")
    return "\n".join([*lines, _commit_command(promotion, start)])


def _commit_command(promotion: "Promotion", start: Path) -> str:
    """Return the shell command that commits a promotion's baselines, candidate and ledger entries."""
    run_verdict = promotion.record
    beaten_names = " and ".join(dict.fromkeys(baseline.beaten_name for baseline in promotion.baselines))
    suites = ", ".join(baseline.suite for baseline in promotion.baselines)
    candidate_id, run = run_verdict.candidate.id, run_verdict.run
    message = f"Promote {candidate_id} on {suites}: takes over from {beaten_names} (run {run})"
    files = shlex.join(_relative_path(path, start) for path in promotion.paths)
    return f"git add {files} && git commit -m {shlex.quote(message)}"


def _new_baseline_text(baseline: "NewBaseline", start: Path, *, dry_run: bool) -> str:
    state = "unchanged" if baseline.is_saved else "would be written" if dry_run else "written"
    trials = Counter(record.task_id for record in baseline.evidence.simulations)
    counts = min(trials.values(), default=0), max(trials.values(), default=0)
    replaced_digest = (baseline.evidence.provenance.replaces or "")[:DIGEST_DIGITS]
    return (
        f"{_relative_path(baseline.path, start)}: {state}, {len(trials)} tasks, {_trials_text(counts)}, "
        f"takes over from {baseline.beaten_name} ({replaced_digest}…)"
    )


def _split_line(verdict: Mapping[str, Any]) -> str:
    old, new = (verdict.get(side, {}).get("reward") for side in ("baseline", "candidate"))
    return (
        f"{verdict.get('split')}: {verdict['verdict'] or 'no harm detected'}, "
        f"{verdict.get('label')} evidence, reward {format_number(old)} → {format_number(new)}"
    )


def _relative_path(path: Path, start: Path) -> str:
    return Path(os.path.relpath(path, start)).as_posix()


def score_json(files: Sequence["ScoredFile"]) -> dict[str, Any]:
    """Return scored files in their documented JSON form."""
    return {
        "files": [
            {
                "path": str(file.path),
                "domain": file.domain,
                "simulations": [_simulation_json(simulation) for simulation in file.simulations],
                "metrics": file.metrics.model_dump(mode="json"),
            }
            for file in files
        ]
    }


def _simulation_json(simulation: "ScoredSimulation") -> dict[str, Any]:
    record = simulation.record
    # The reason of a finding quotes the trace, so it is left out: only `show` records an access.
    findings = [
        {"invariant": finding.invariant.value, "message": finding.message} for finding in simulation.findings
    ]
    return {
        "id": record.id,
        "task_id": record.task_id,
        "trial": record.trial,
        "status": record.status.value,
        "reward": record.reward,
        "recorded_reward": record.recorded_reward,
        "components": {name.value: value for name, value in record.components.items()},
        "note": record.note,
        "invariants": None if record.invariants is None else findings,
        **({"checks": record.checks} if record.checks else {}),
    }


def score_tables(files: Sequence["ScoredFile"]) -> str:
    """Render scored files as a table, with notes below it."""
    headings = ("file", "runs", "recorded", "reward", "agreement", "actions", "read", "write")
    rows: list[tuple[Sequence[str], str]] = [(headings, "bold")]
    details = [""]
    for file in files:
        metrics = file.metrics
        rewards = map(format_number, (metrics.recorded_reward, metrics.reward))
        agreement = NOT_MEASURED if metrics.agreement is None else f"{metrics.agreement:.1%}"
        shares = metrics.action_match, metrics.read_action_match, metrics.write_action_match
        cells = (file.path.name, str(metrics.simulations), *rewards, agreement, *map(format_number, shares))
        terminations = ", ".join(f"{reason} {count}" for reason, count in metrics.terminations.items())
        rows.append((cells, ""))
        details.append(f"{file.domain}; pass^k {pass_hat_text(metrics)}; {terminations}")
    console = make_terminal_console(stream_width=REPORT_COLUMNS)
    page = Page(width=console.width, has_colour=console.is_terminal)
    page.print_table(rows, details)
    for file in files:
        for line in (invariants_line(file.metrics), checks_line(file.metrics), *file.notes):
            if line:
                page.print_line(f"{file.path.name}: {line}")
    return page.text


EXAMPLE_ALPHA = 0.05
"""The alpha for which the ledger shows the level of the next test; a policy may use a different alpha."""

_DRAW_ORIGIN_TEXTS = {
    DrawOrigin.KEPT: "stored for later runs",
    DrawOrigin.FRESH: "by --t2e-fresh",
    DrawOrigin.CACHED: "by --t2e-fresh, with cached answers",
    DrawOrigin.RESUMABLE: "by the project's own agent",
    DrawOrigin.PLAYED: "by a cassette",
    DrawOrigin.UNSTORED: "by an agent without a store",
}


def ledger_json(
    entries: Sequence[object], problems: Sequence[str], histories: Sequence["SplitHistory"]
) -> dict[str, Any]:
    """Return the ledger in its documented JSON form."""
    from pytest_trace2evolve.gate.alpha_spending import alpha_share

    return {
        "entries": len(entries),
        "problems": list(problems),
        "splits": [
            {
                "suite": history.suite,
                "split": history.split,
                "lock": history.lock,
                "informed": list(history.informed_candidates),
                "entries": [{"name": entry.name, **entry.to_json()} for entry in history.entries],
                "next": None
                if history.next_test is None or problems
                else {"look": history.next_test, "share": alpha_share(history.next_test, 1)},
            }
            for history in histories
        ],
    }


def ledger_text(problems: Sequence[str], histories: Sequence["SplitHistory"]) -> str:
    """Render the history of each split, with its entries in chronological order."""
    lines: list[tuple[str, str]] = []
    for history in histories:
        lines += [("", "")] if lines else []
        lines.append((f"{history.suite} · {history.split}", "bold"))
        informed = "is informed by this split, according to its front matter"
        texts = [f"candidate {name} {informed}" for name in history.informed_candidates]
        texts += [
            f"{each.at:%Y-%m-%d %H:%M} UTC  {entry_line(each, history.lock)}" for each in history.entries
        ]
        texts = texts or ["no recorded access to its traces, and no verdict on it"]
        if history.next_test is not None:
            texts.append(next_test_text(history.next_test, is_damaged=bool(problems)))
        lines += [(f"  {text}", "") for text in texts]
    if not histories:
        lines.append(("no suite is locked, and the ledger is empty", ""))
    return render_parts(*lines)


def entry_line(entry: Access | Draw | Evaluation, lock: str | None) -> str:
    if isinstance(entry, Access):
        trials = ", ".join(map(str, entry.trials))
        return f"{entry.who} opened task {entry.task}, trial {trials}, of {entry.run}"
    lock_note = ["with a different lock"] if entry.lock != lock else []
    if isinstance(entry, Draw):
        facts = [
            _DRAW_ORIGIN_TEXTS[entry.made],
            "whole" if entry.whole else "in part",
            "gated" if entry.gated else "not gated",
            *lock_note,
        ]
        return f"{entry.candidate.id} was drawn · {', '.join(facts)} · run {entry.run}"
    figures, facts = entry.figures or {}, [f"{entry.label.value} evidence"]
    if "reward" in figures and "baseline_reward" in figures:
        facts.append(f"reward {figures['baseline_reward']:.3f} → {figures['reward']:.3f}")
        facts.append(f"{figures['fixed']:.0f} fixed, {figures['broken']:.0f} broken")
    trials = format_count(entry.trials, "trial")
    if entry.look is None:
        facts.append(trials)
    elif entry.analysis is None:
        facts.append(f"test {entry.look} ({trials})")
    else:
        facts.append(f"test {entry.look}, analysis {entry.analysis} ({trials})")
    if entry.alpha is not None:
        facts.append(f"level {entry.alpha:.4f}")
    facts += [f"policy {entry.policy}", f"goal {entry.goal.value}"]
    if entry.repeats is not None:
        facts.append("repeats a recorded verdict")
    verdict_text = f"{entry.candidate.id} against {entry.baseline.id}: {entry.decision.value.upper()}"
    return f"{verdict_text} · {', '.join([*facts, *lock_note])} · run {entry.run}"


def next_test_text(test: int, *, is_damaged: bool) -> str:
    from pytest_trace2evolve.gate.alpha_spending import alpha_share

    if is_damaged:
        return "the ledger is damaged: no candidate is promoted until it is restored or repaired"
    level_text = f"level {EXAMPLE_ALPHA * alpha_share(test, 1):.4f} at alpha {EXAMPLE_ALPHA:g}"
    all_analyses_text = f"{EXAMPLE_ALPHA * alpha_share(test):.4f} over all its analyses"
    return f"the next new candidate is test {test}: {level_text}, {all_analyses_text}"
