"""Renders a run as Markdown for GitHub: a job's summary, or a comment on a pull request."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_trace2evolve.records.verdict import (
    CheckResult,
    CheckStatus,
    Decision,
    Estimand,
    RunSummary,
    SideFigures,
    SuiteSummary,
    UsageRatio,
    Verdict,
)
from pytest_trace2evolve.report.conclusion import (
    FIXED_TASKS_TEXT,
    headline,
    needed_evidence_text,
    ratio_text,
    usage_figure,
)
from pytest_trace2evolve.report.markdown import (
    MAX_TEXT_LENGTH,
    code_span,
    fenced_block,
    format_figure,
    name_list,
    render_table,
    table_cell,
)

MAX_COMMENT_BYTES = 65_536
"""GitHub's limit for a comment, in characters. A text never has fewer bytes than characters."""

MAX_STEP_SUMMARY_BYTES = 1 << 20
"""GitHub's limit for the summary of one step: 1 MiB."""

MIN_VERDICT_BYTES = 4_096
"""The smallest allowed limit in bytes, into which a verdict always fits."""

_DECISION_SIGNS = {Decision.PROMOTE: "✅", Decision.DISCARD: "❌", Decision.INCONCLUSIVE: "⚠️"}
_STATUS_TEXTS = {
    CheckStatus.PASS: "✅ pass",
    CheckStatus.FAIL: "❌ fail",
    CheckStatus.UNDECIDED: "⚠️ undecided",
    CheckStatus.NOT_APPLICABLE: "n/a",
}


@dataclass(frozen=True)
class _DetailLevel:
    """The level of detail of a report.

    Attributes:
        max_names: The maximum number of names shown for each list of tasks.
        has_details: Whether to include the details of checks, the figures of both sides, ways to settle a
            verdict, notes and the command.
    """

    max_names: int
    has_details: bool = True


_DETAIL_LEVELS = (
    *(_DetailLevel(max_names) for max_names in (100, 25, 5, 0)),
    _DetailLevel(0, has_details=False),
)


def run_markdown(
    summary: RunSummary, *, max_bytes: int = MAX_STEP_SUMMARY_BYTES, head: str = "", foot: str = ""
) -> str:
    """Render a run, verdict first, as Markdown of at most `max_bytes` bytes in UTF-8.

    If the text is too long, lists of tasks are cut first, and then details are left out. The verdict and the
    tables of checks remain. If the tables alone are too long, only the worst splits are kept, and the others
    are counted.

    Args:
        summary: The run; its texts are shown as code.
        max_bytes: The maximum number of bytes; `MIN_VERDICT_BYTES` or more.
        head: Trusted Markdown for the beginning, on lines of its own.
        foot: Trusted Markdown for the end.

    Raises:
        ValueError: head, foot and the verdict do not fit into the limit.
    """
    for detail in _DETAIL_LEVELS:
        parts = [text for _, text in _render_splits(summary, detail)]
        text = _join_parts(summary, parts, head, foot, has_details=detail.has_details)
        if _fits(text, max_bytes):
            return text
    # The sort is stable, so equally bad splits keep the order of the run.
    worst_first = [
        text for _, text in sorted(_render_splits(summary, _DETAIL_LEVELS[-1]), key=lambda split: split[0])
    ]
    low, high = 0, len(worst_first)
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(_render_worst_splits(summary, worst_first, middle, head, foot), max_bytes):
            low = middle
        else:
            high = middle - 1
    text = _render_worst_splits(summary, worst_first, low, head, foot)
    if not _fits(text, max_bytes):
        raise ValueError(f"{max_bytes} bytes are too few for a verdict")
    return text


def _fits(text: str, max_bytes: int) -> bool:
    return len(text.encode("utf-8")) <= max_bytes


def _render_worst_splits(summary: RunSummary, splits: Sequence[str], count: int, head: str, foot: str) -> str:
    n_omitted = len(splits) - count
    omission_note = [f"*and {n_omitted} more splits*"] if n_omitted else []
    return _join_parts(summary, [*splits[:count], *omission_note], head, foot, has_details=False)


def _join_parts(
    summary: RunSummary, splits: Sequence[str], head: str, foot: str, *, has_details: bool
) -> str:
    used_text = f"used: {code_span(summary.used, MAX_TEXT_LENGTH)}" if summary.used else ""
    evidence = f"evidence: {code_span(summary.evidence, MAX_TEXT_LENGTH)}" if summary.evidence else ""
    page = f"page: {code_span(summary.page, MAX_TEXT_LENGTH)}" if summary.page else ""
    changed_lines = [f"- ⚠️ changed: {code_span(text, MAX_TEXT_LENGTH)}" for text in summary.changes]
    if changed_lines and not has_details:
        changed_lines = [f"⚠️ Changes of tasks, baselines or policies: {len(changed_lines)}"]
    changes = "\n".join(changed_lines)
    parts = [
        head,
        f"## {_headline(summary)}",
        changes,
        " · ".join(filter(None, (used_text, evidence, page))),
        *splits,
    ]
    if has_details:
        parts.append("\n".join(f"- note: {code_span(note, MAX_TEXT_LENGTH)}" for note in summary.notes))
        if summary.command:
            parts.append("To reproduce:\n\n" + fenced_block(shlex.join(summary.command)))
    elif summary.command or summary.notes:
        parts.append("*Shortened: figures, notes and the command are in the run's evidence and log.*")
    return "\n\n".join(part for part in [*parts, foot] if part) + "\n"


def _headline(summary: RunSummary) -> str:
    """Render the verdict in one line."""
    if summary.trouble:
        return (
            f"⚠️ No verdict on {code_span(summary.candidate)}: {code_span(summary.trouble, MAX_TEXT_LENGTH)}"
        )
    if summary.decision is None:
        return f"No verdict on {code_span(summary.candidate)}"
    decision = f"{_DECISION_SIGNS[summary.decision]} {summary.decision.value.capitalize()}"
    return f"{decision}: {headline(summary, code_span, 'its baseline')}"


def _split_name(suite: str, verdict: Verdict) -> str:
    """Return the suite and split of a verdict."""
    return " · ".join(code_span(name) for name in (verdict.suite or suite, verdict.split) if name)


def _render_splits(summary: RunSummary, detail: _DetailLevel) -> list[tuple[int, str]]:
    """Render each split, with its rank. The worst split has the lowest rank."""
    ranked_parts: list[tuple[int, str]] = []
    for suite in summary.suites:
        if not suite.verdicts:
            text = f"### {code_span(suite.name)}: no verdict\n\n{code_span(suite.reason, MAX_TEXT_LENGTH)}"
            if suite.left_out:
                text += "\n\n" + name_list("Left out", suite.left_out, detail.max_names, MAX_TEXT_LENGTH)
            ranked_parts.append((len(Decision) + 1, text))
        for verdict in suite.verdicts:
            rank = verdict.decision.rank if verdict.decision else len(Decision)
            ranked_parts.append((rank, _render_split(suite, verdict, summary, detail)))
    return ranked_parts


def _render_split(suite: SuiteSummary, verdict: Verdict, summary: RunSummary, detail: _DetailLevel) -> str:
    verdict_text = (
        f"{_DECISION_SIGNS[verdict.decision]} {verdict.decision.value}"
        if verdict.decision
        else "no harm detected (a guard can only block or discard)"
    )
    parts = [f"### {_split_name(suite.name, verdict)}: {verdict_text}", _facts_line(suite, verdict, summary)]
    if suite.compared is not None:
        parts.append("<br>".join(code_span(line, MAX_TEXT_LENGTH) for line in suite.compared.lines))
    if verdict.reason:
        parts.append(code_span(verdict.reason, MAX_TEXT_LENGTH))
    if verdict.checks:
        parts.append(_checks_table(verdict.checks, has_details=detail.has_details))
    task_lists = (
        ("Confirmed regressions", verdict.regressions),
        ("Suspected regressions", verdict.suspected),
        ("Broken", verdict.broken),
        ("Fixed", verdict.fixed),
    )
    parts += [name_list(title, tasks, detail.max_names) for title, tasks in task_lists if tasks]
    if verdict.left_out:
        parts.append(name_list("Left out", verdict.left_out, detail.max_names, MAX_TEXT_LENGTH))
    if detail.has_details:
        parts.append(_sides_table(verdict.baseline, verdict.candidate))
        parts += [_usage_table(verdict.usage)] if verdict.usage else []
        if verdict.settling:
            lines = [
                f"- {code_span(needed.check)}: {needed_evidence_text(needed)}" for needed in verdict.settling
            ]
            parts.append(
                "\n".join(["Evidence that would settle it, if further figures are like these:", "", *lines])
            )
    return "\n\n".join(parts)


def _facts_line(suite: SuiteSummary, verdict: Verdict, summary: RunSummary) -> str:
    baseline_text = f" against {code_span(suite.baseline)}" if suite.baseline else ""
    facts = [
        f"{code_span(summary.candidate)}{baseline_text}",
        f"{verdict.label.value} evidence",
        f"policy {code_span(verdict.policy)}",
        f"goal {verdict.goal.value}",
        *([FIXED_TASKS_TEXT] if verdict.estimand is Estimand.SUITE else []),
    ]
    if verdict.alpha is not None:
        facts.append(f"α = {verdict.alpha:.4g}")
    if verdict.look is not None:
        facts.append(f"{verdict.test_text} of this split")
    facts.append(f"{verdict.tasks} task{'' if verdict.tasks == 1 else 's'} compared")
    if verdict.identical:
        facts.append("identical evidence on both sides")
    return " · ".join(facts)


def _checks_table(checks: Sequence[CheckResult], *, has_details: bool) -> str:
    headings = ("check", "answer", "estimate", "interval", "threshold", "p", "detectable", "detail")
    rows = [
        (
            table_cell(check.id),
            _STATUS_TEXTS[check.status],
            format_figure(check.estimate),
            _interval_text(check.low, check.high),
            format_figure(check.threshold),
            "" if check.p is None else "&lt; 0.001" if check.p < 0.001 else format_figure(check.p),
            format_figure(check.detectable),
            table_cell(check.detail, MAX_TEXT_LENGTH) if has_details and check.detail else "",
        )
        for check in checks
    ]
    return render_table(headings, rows, text_columns=2)


def _usage_table(usage: Sequence[UsageRatio]) -> str:
    """Render what the agents used in a simulation, with the ratios."""
    rows = [
        (
            table_cell(found.metric),
            *(
                table_cell(usage_figure(found.metric, value))  # as code, because two $ enclose a formula
                for value in (found.baseline, found.candidate)
            ),
            ratio_text(found),
            str(found.tasks),
            table_cell(found.note, MAX_TEXT_LENGTH) if found.note else "",
        )
        for found in usage
    ]
    return render_table(("per simulation", "baseline", "candidate", "ratio", "tasks", "note"), rows)


def _interval_text(low: float | None, high: float | None) -> str:
    """Format an interval. The unbounded side of a one-sided interval is left empty."""
    return "" if low is None and high is None else f"{format_figure(low)} … {format_figure(high)}".strip()


def _sides_table(baseline: SideFigures, candidate: SideFigures) -> str:
    trials = sorted(baseline.pass_hat.keys() | candidate.pass_hat.keys())[:8]
    headings = ["", "reward", *(f"pass^{k}" for k in trials), "passed", "actions", "read", "write"]
    headings += ["max steps", "measured", "missing"]
    rows = []
    for title, side in (("baseline", baseline), ("candidate", candidate)):
        chances = [side.pass_hat.get(k) for k in trials]
        rows.append(
            [
                title,
                format_figure(side.reward),
                *(
                    f"{format_figure(chance.estimate)} ({_interval_text(chance.low, chance.high)})"
                    if chance
                    else ""
                    for chance in chances
                ),
                format_figure(side.pass_rate),
                format_figure(side.action_match),
                format_figure(side.read_action_match),
                format_figure(side.write_action_match),
                *(str(count) for count in (side.max_steps, side.measured, side.missing)),
            ]
        )
    return render_table(headings, rows)
