"""Saved evidence in the terminal: baselines, promotions, scores, and the ledger's history of splits."""

import os
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Column

from pytest_trace2evolve.records.ledger import Access, Draw, Evaluation, Origin
from pytest_trace2evolve.report.formatting import (
    BOTH_SIDES,
    NARROW,
    NOTHING,
    escape,
    grid,
    number,
    print_line,
    rendered,
    terminal,
)
from pytest_trace2evolve.report.verdict import invariants_line, pass_hat

if TYPE_CHECKING:
    from pytest_trace2evolve.session.baselines import BaselineFacts
    from pytest_trace2evolve.session.evidence_sources import ScoredFile, ScoredSimulation
    from pytest_trace2evolve.session.ledger import SplitHistory
    from pytest_trace2evolve.session.promote import NewBaseline, Promotion
    from pytest_trace2evolve.session.runs import RunFacts

DIGEST_DIGITS = 8
"""The number of digits of a digest that reports show."""


def baseline_line(baseline: "BaselineFacts", *, name_suite: bool = False) -> str:
    """A baseline in one short line: age, trials, candidate and lineage."""
    facts = [
        "age not recorded" if baseline.age_days is None else f"{_days(baseline.age_days)} old",
        _trials_text(baseline.trials),
    ]
    if baseline.candidate is not None:
        parent = f" ← {baseline.parent}" if baseline.parent else ""
        facts.append(f"candidate {baseline.candidate}{parent}")
    if baseline.replaces:
        facts.append(f"replaces {baseline.replaces[:DIGEST_DIGITS]}…")
    suite = f" of {baseline.suite}" if name_suite else ""
    return f"baseline {baseline.name}{suite}: {', '.join(facts)}"


def age_warnings(baselines: Iterable["BaselineFacts"], max_days: float | None) -> list[str]:
    """A warning for each baseline that is older than `max_days`."""
    return [
        f"warning: baseline {baseline.name} of {baseline.suite} is {_days(baseline.age_days)} old, more than "
        f"t2e_baseline_max_age = {max_days:g}; measure it again "
        f"(--t2e-save-baseline {baseline.name} --t2e-baseline-mode update)"
        for baseline in baselines
        if max_days is not None and baseline.age_days is not None and baseline.age_days > max_days
    ]


def baselines_table(baselines: Sequence["BaselineFacts"]) -> str:
    """The list of saved baselines, one row each."""
    figures = ("age", "tasks", "trials", "runs")
    headings = (
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
    )
    columns = [
        Column(name, justify="right" if name in figures else "left", overflow="fold") for name in headings
    ]
    table = grid(*columns, padding=NARROW)
    for baseline in baselines:
        if baseline.error:
            table.add_row(baseline.suite, baseline.name, NOTHING, "damaged")
            continue
        parent = f" ← {baseline.parent}" if baseline.parent else ""
        candidate = f"{baseline.candidate}{parent}" if baseline.candidate or parent else NOTHING
        table.add_row(
            escape(baseline.suite),
            escape(baseline.name),
            NOTHING if baseline.age_days is None else _days(baseline.age_days),
            escape(candidate),
            escape(baseline.model or NOTHING),
            str(baseline.tasks),
            _range(baseline.trials),
            str(baseline.simulations),
            baseline.lock,
            escape(_lineage(baseline)),
        )
    target = terminal()
    target.print(table)
    for baseline in baselines:
        if baseline.changed:
            changed = escape("; ".join(baseline.changed))
            target.print(f"{escape(baseline.path)}: lock stale: {changed}", soft_wrap=True)
    return rendered(target)


def runs_table(runs: Sequence["RunFacts"]) -> str:
    """The list of runs, one row each."""
    headings = ("run", "candidate", "suites", "started (UTC)", "decision", "evidence")
    table = grid(*(Column(name, overflow="fold") for name in headings), padding=NARROW)
    for run in runs:
        table.add_row(
            escape(run.run),
            escape(run.candidate or NOTHING),
            escape(", ".join(run.suites) or NOTHING),
            escape((run.time or NOTHING)[:16].replace("T", " ")),
            "damaged" if run.error else escape(_decision(run)),
            escape(", ".join(run.labels) or NOTHING),
        )
    target = terminal()
    target.print(table)
    return rendered(target)


def _decision(run: "RunFacts") -> str:
    if run.decision is None:
        return run.reason or NOTHING
    return f"{run.decision} ({run.reason})" if run.reason else run.decision


def _lineage(baseline: "BaselineFacts") -> str:
    parts = []
    if baseline.replaces:
        name = f"{baseline.replaces_name} " if baseline.replaces_name else ""
        parts.append(f"replaces {name}{baseline.replaces[:DIGEST_DIGITS]}…")
    if baseline.promoted_from:
        parts.append(f"promoted from {baseline.promoted_from}")
    return ", ".join(parts) or NOTHING


def _days(days: float) -> str:
    return f"{int(days)} {'day' if int(days) == 1 else 'days'}"


def _trials_text(counts: tuple[int, int]) -> str:
    return f"{_range(counts)} {'trial' if counts[1] == 1 else 'trials'}"


def _range(counts: tuple[int, int]) -> str:
    return str(counts[0]) if counts[0] == counts[1] else f"{counts[0]} to {counts[1]}"


def promotion_text(promotion: "Promotion", root: Path, here: Path, *, dry_run: bool) -> str:
    """The promotion as plain text. The last line is the command that commits it.

    Args:
        promotion: The promotion.
        root: The project's folder.
        here: The folder that the command's paths start from.
        dry_run: Whether nothing was written.
    """
    record = promotion.record
    if promotion.done:
        files = ", ".join(_relative(baseline.path, here) for baseline in promotion.baselines)
        return f"run {record.run} was promoted before: {files}; nothing changed"
    lines = [
        f"candidate {record.candidate.id}, run {record.run}, policy {record.policy}, goal {record.goal.value}"
    ]
    for baseline in promotion.baselines:
        lines.append(_new_baseline(baseline, here, dry_run=dry_run))
        lines += [f"  {_split_line(verdict)}" for verdict in record.suites[baseline.suite].verdicts]
    lines += [f"{suite}: left as it is ({reason})" for suite, reason in promotion.without]
    if record.others_failed:
        lines.append(
            "note: tests outside the suites failed in that run; they say nothing about the candidate"
        )
    lines.append(f"{'it would be committed' if dry_run else 'to commit it'} with:")
    return "\n".join([*lines, _commit_command(promotion, root, here)])


def _commit_command(promotion: "Promotion", root: Path, here: Path) -> str:
    """The shell command that adds and commits the baselines of a promotion and its candidate."""
    record = promotion.record
    candidate = root / "candidates" / f"{record.candidate.id}.md"
    paths = [*(baseline.path for baseline in promotion.baselines), candidate]
    against = " and ".join(dict.fromkeys(baseline.beaten for baseline in promotion.baselines))
    suites = ", ".join(baseline.suite for baseline in promotion.baselines)
    message = f"Promote {record.candidate.id} on {suites}: takes over from {against} (run {record.run})"
    files = shlex.join(_relative(path, here) for path in paths)
    return f"git add {files} && git commit -m {shlex.quote(message)}"


def _new_baseline(baseline: "NewBaseline", here: Path, *, dry_run: bool) -> str:
    done = "unchanged" if baseline.done else "would be written" if dry_run else "written"
    trials = Counter(record.task_id for record in baseline.evidence.simulations)
    counts = min(trials.values(), default=0), max(trials.values(), default=0)
    before = (baseline.evidence.provenance.replaces or "")[:DIGEST_DIGITS]
    return (
        f"{_relative(baseline.path, here)}: {done}, {len(trials)} tasks, {_trials_text(counts)}, "
        f"takes over from {baseline.beaten} ({before}…)"
    )


def _split_line(verdict: Mapping[str, Any]) -> str:
    old, new = (verdict.get(side, {}).get("reward") for side in ("baseline", "candidate"))
    return (
        f"{verdict.get('split')}: {verdict['verdict'] or 'no harm detected'}, "
        f"{verdict.get('label')} evidence, reward {number(old)} → {number(new)}"
    )


def _relative(path: Path, here: Path) -> str:
    return Path(os.path.relpath(path, here)).as_posix()


def score_json(files: Sequence["ScoredFile"]) -> dict[str, Any]:
    """The documented JSON form of scored files."""
    return {
        "files": [
            {
                "path": str(file.path),
                "domain": file.domain,
                "simulations": [_simulation_json(simulation) for simulation in file.scored],
                "metrics": file.metrics.model_dump(mode="json"),
            }
            for file in files
        ]
    }


def _simulation_json(scored: "ScoredSimulation") -> dict[str, Any]:
    record = scored.record
    # The reason of a finding is left out, because it quotes the trace and only `show` records an access.
    found = [{"invariant": finding.invariant.value, "message": finding.message} for finding in scored.found]
    return {
        "id": record.id,
        "task_id": record.task_id,
        "trial": record.trial,
        "status": record.status.value,
        "reward": record.reward,
        "recorded_reward": record.recorded_reward,
        "components": {name.value: value for name, value in record.components.items()},
        "note": record.note,
        "invariants": None if record.invariants is None else found,
    }


def score_tables(files: Sequence["ScoredFile"]) -> str:
    """A table with one row per file, and notes below it."""
    headings = ("simulations", "recorded", "reward", "agreement", "pass^k", "action match", "read", "write")
    table = grid(
        Column("file", overflow="fold"),
        "domain",
        *(Column(heading, justify="right") for heading in headings),
        "terminations",
        padding=BOTH_SIDES,
    )
    for file in files:
        figures = file.metrics
        ends = ", ".join(f"{reason} {count}" for reason, count in figures.terminations.items())
        table.add_row(
            escape(file.path.name),
            escape(file.domain),
            str(figures.simulations),
            number(figures.recorded_reward),
            number(figures.reward),
            NOTHING if figures.agreement is None else f"{figures.agreement:.1%}",
            pass_hat(figures),
            number(figures.action_match),
            number(figures.read_action_match),
            number(figures.write_action_match),
            escape(ends),
        )
    target = terminal()
    target.print(table)
    for file in files:
        if line := invariants_line(file.metrics):
            target.print(f"{escape(file.path.name)}: {line}", soft_wrap=True)
        for note in file.notes:
            target.print(f"{escape(file.path.name)}: {escape(note)}", soft_wrap=True)
    return rendered(target)


SHOWN_ALPHA = 0.05
"""The alpha at which the levels of the next test are shown; the policy's own may differ."""

_DRAW_ORIGINS = {
    Origin.KEPT: "kept for later runs",
    Origin.FRESH: "by --t2e-fresh",
    Origin.PLAYED: "by a cassette",
    Origin.UNSTORED: "by an agent without a store",
}


def ledger_json(
    entries: Sequence[object], problems: Sequence[str], histories: Sequence["SplitHistory"]
) -> dict[str, Any]:
    """The documented JSON form of the ledger."""
    from pytest_trace2evolve.gate.alpha_spending import share

    return {
        "entries": len(entries),
        "problems": list(problems),
        "splits": [
            {
                "suite": history.suite,
                "split": history.split,
                "lock": history.lock,
                "informed": list(history.informed),
                "entries": [{"name": entry.name, **entry.to_json()} for entry in history.entries],
                "next": None
                if history.next_test is None or problems
                else {"look": history.next_test, "share": share(history.next_test, 1)},
            }
            for history in histories
        ],
    }


def ledger_text(problems: Sequence[str], histories: Sequence["SplitHistory"]) -> str:
    """The history of each split, with its entries in chronological order."""
    target = terminal()
    for position, history in enumerate(histories):
        if position:
            target.print()
        print_line(target, f"{history.suite} · {history.split}", "bold")
        for name in history.informed:
            print_line(target, f"  candidate {name} was informed by it, as its front matter says")
        for entry in history.entries:
            print_line(target, f"  {entry.at:%Y-%m-%d %H:%M} UTC  {_entry_line(entry, history.lock)}")
        if not history.informed and not history.entries:
            print_line(target, "  no command of ours opened a trace of it, and nothing was judged on it")
        if history.next_test is not None:
            print_line(target, f"  {_next_test(history.next_test, damaged=bool(problems))}")
    if not histories:
        target.print("no suite is locked, and nothing is written in the ledger")
    return rendered(target)


def _entry_line(entry: Access | Draw | Evaluation, lock: str | None) -> str:
    if isinstance(entry, Access):
        trials = ", ".join(map(str, entry.trials))
        return f"{entry.who} opened task {entry.task}, trial {trials}, of {entry.run}"
    other_lock = ["under another lock"] if entry.lock != lock else []
    if isinstance(entry, Draw):
        facts = [
            _DRAW_ORIGINS[entry.made],
            "whole" if entry.whole else "in part",
            "gated" if entry.gated else "not gated",
            *other_lock,
        ]
        return f"{entry.candidate.id} was drawn · {', '.join(facts)} · run {entry.run}"
    facts = [f"{entry.label.value} evidence"]
    trials = f"{entry.trials} trial{'' if entry.trials == 1 else 's'}"
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
    judged = f"{entry.candidate.id} against {entry.baseline.id}: {entry.decision.value.upper()}"
    return f"{judged} · {', '.join([*facts, *other_lock])} · run {entry.run}"


def _next_test(test: int, *, damaged: bool) -> str:
    from pytest_trace2evolve.gate.alpha_spending import share

    if damaged:
        return "the ledger is damaged: no candidate is promoted until it is restored or repaired"
    level = f"level {SHOWN_ALPHA * share(test, 1):.4f} at alpha {SHOWN_ALPHA:g}"
    all_analyses = f"{SHOWN_ALPHA * share(test):.4f} with all its analyses"
    return f"the next new candidate is test {test}: {level}, {all_analyses}"
