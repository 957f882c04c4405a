"""The Markdown of a run for GitHub: a job's summary, and a comment on a pull request."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_trace2evolve.records.verdict import (
    CheckResult,
    CheckStatus,
    Decision,
    RunSummary,
    SideFigures,
    SuiteSummary,
    Verdict,
)
from pytest_trace2evolve.report.conclusion import headline, settling_ways
from pytest_trace2evolve.report.markdown import LONGEST_TEXT, cell, code, fenced, figure, names, table

COMMENT_LIMIT = 65_536
"""The most characters that GitHub accepts in a comment. We count bytes, which are never fewer."""

SUMMARY_LIMIT = 1 << 20
"""The most bytes that GitHub accepts in the summary of one step: 1 MiB."""

LEAST_LIMIT = 4_096
"""The smallest limit in bytes; a verdict always fits into it."""

_SIGNS = {Decision.PROMOTE: "✅", Decision.DISCARD: "❌", Decision.INCONCLUSIVE: "⚠️"}
_ANSWERS = {
    CheckStatus.PASS: "✅ pass",
    CheckStatus.FAIL: "❌ fail",
    CheckStatus.UNDECIDED: "⚠️ undecided",
    CheckStatus.NOT_APPLICABLE: "n/a",
}


@dataclass(frozen=True)
class _Detail:
    """The level of detail of a report.

    Attributes:
        names: The number of names shown of each list of tasks.
        details: Whether to include the details of checks, the figures of both sides, ways to settle a
            verdict, notes and the command.
    """

    names: int
    details: bool = True


_DETAILS = (*(_Detail(names) for names in (100, 25, 5, 0)), _Detail(0, details=False))


def run_markdown(summary: RunSummary, *, limit: int = SUMMARY_LIMIT, head: str = "", foot: str = "") -> str:
    """Render a run, verdict first, as Markdown of at most `limit` bytes in UTF-8.

    If the text is too long, lists of tasks are cut first, and details are left out next. The verdict and the
    tables of checks stay. If the tables alone are too long, only the worst splits are kept, and the others
    are counted.

    Args:
        summary: The run; its texts are shown as code.
        limit: Bytes, `LEAST_LIMIT` or more.
        head: Markdown of our own to begin with, on lines of its own.
        foot: Markdown of our own to end with.

    Raises:
        ValueError: head, foot and the verdict do not fit into the limit.
    """
    for detail in _DETAILS:
        parts = [text for _, text in _splits(summary, detail)]
        text = _joined(summary, parts, head, foot, details=detail.details)
        if _fits(text, limit):
            return text
    # The sort is stable, so equally bad splits keep the order of the run.
    worst_first = [text for _, text in sorted(_splits(summary, _DETAILS[-1]), key=lambda split: split[0])]
    fewest, most = 0, len(worst_first)
    while fewest < most:
        middle = (fewest + most + 1) // 2
        if _fits(_worst_splits(summary, worst_first, middle, head, foot), limit):
            fewest = middle
        else:
            most = middle - 1
    text = _worst_splits(summary, worst_first, fewest, head, foot)
    if not _fits(text, limit):
        raise ValueError(f"{limit} bytes are too few for a verdict")
    return text


def _fits(text: str, limit: int) -> bool:
    return len(text.encode("utf-8")) <= limit


def _worst_splits(summary: RunSummary, splits: Sequence[str], kept: int, head: str, foot: str) -> str:
    left = len(splits) - kept
    rest = [f"*and {left} more splits*"] if left else []
    return _joined(summary, [*splits[:kept], *rest], head, foot, details=False)


def _joined(summary: RunSummary, splits: Sequence[str], head: str, foot: str, *, details: bool) -> str:
    used = f"used: {code(summary.used, LONGEST_TEXT)}" if summary.used else ""
    evidence = f"evidence: {code(summary.evidence, LONGEST_TEXT)}" if summary.evidence else ""
    parts = [head, f"## {_headline(summary)}", " · ".join(filter(None, (used, evidence))), *splits]
    if details:
        parts.append("\n".join(f"- note: {code(note, LONGEST_TEXT)}" for note in summary.notes))
        if summary.command:
            parts.append("To reproduce:\n\n" + fenced(shlex.join(summary.command)))
    elif summary.command or summary.notes:
        parts.append("*Shortened: figures, notes and the command are in the run's evidence and log.*")
    return "\n\n".join(part for part in [*parts, foot] if part) + "\n"


def _headline(summary: RunSummary) -> str:
    """The verdict in one line."""
    if summary.trouble:
        return f"⚠️ No verdict on {code(summary.candidate)}: {code(summary.trouble, LONGEST_TEXT)}"
    if summary.decision is None:
        return f"No verdict on {code(summary.candidate)}"
    decision = f"{_SIGNS[summary.decision]} {summary.decision.value.capitalize()}"
    return f"{decision}: {headline(summary, code, 'its baseline')}"


def _place(suite: str, verdict: Verdict) -> str:
    """The suite and split of a verdict."""
    return " · ".join(code(name) for name in (verdict.suite or suite, verdict.split) if name)


def _splits(summary: RunSummary, detail: _Detail) -> list[tuple[int, str]]:
    """The part of each split with its rank. The worst split has the lowest rank."""
    found: list[tuple[int, str]] = []
    for suite in summary.suites:
        if not suite.verdicts:
            text = f"### {code(suite.name)}: no verdict\n\n{code(suite.reason, LONGEST_TEXT)}"
            if suite.left_out:
                text += "\n\n" + names("Left out", suite.left_out, detail.names, LONGEST_TEXT)
            found.append((len(Decision) + 1, text))
        for verdict in suite.verdicts:
            rank = verdict.decision.rank if verdict.decision else len(Decision)
            found.append((rank, _split(suite, verdict, summary, detail)))
    return found


def _split(suite: SuiteSummary, verdict: Verdict, summary: RunSummary, detail: _Detail) -> str:
    answer = (
        f"{_SIGNS[verdict.decision]} {verdict.decision.value}"
        if verdict.decision
        else "no harm detected (a guard can only block or discard)"
    )
    parts = [f"### {_place(suite.name, verdict)}: {answer}", _circumstances(suite, verdict, summary)]
    if suite.compared is not None:
        parts.append("<br>".join(code(line, LONGEST_TEXT) for line in suite.compared.lines))
    if verdict.reason:
        parts.append(code(verdict.reason, LONGEST_TEXT))
    if verdict.checks:
        parts.append(_checks(verdict.checks, details=detail.details))
    lists = (
        ("Confirmed regressions", verdict.regressions),
        ("Suspected regressions", verdict.suspected),
        ("Broken", verdict.broken),
        ("Fixed", verdict.fixed),
    )
    parts += [names(title, tasks, detail.names) for title, tasks in lists if tasks]
    if verdict.left_out:
        parts.append(names("Left out", verdict.left_out, detail.names, LONGEST_TEXT))
    if detail.details:
        parts.append(_sides(verdict.baseline, verdict.candidate))
        if verdict.settling:
            lines = [f"- {code(settling.check)}: {settling_ways(settling)}" for settling in verdict.settling]
            parts.append("\n".join(["What would settle it, if further figures are like these:", "", *lines]))
    return "\n\n".join(parts)


def _circumstances(suite: SuiteSummary, verdict: Verdict, summary: RunSummary) -> str:
    against = f" against {code(suite.baseline)}" if suite.baseline else ""
    facts = [
        f"{code(summary.candidate)}{against}",
        f"{verdict.label.value} evidence",
        f"policy {code(verdict.policy)}",
        f"goal {verdict.goal.value}",
    ]
    if verdict.alpha is not None:
        facts.append(f"α = {verdict.alpha:.4g}")
    if verdict.look is not None:
        facts.append(f"{verdict.test} of this split")
    facts.append(f"{verdict.tasks} task{'' if verdict.tasks == 1 else 's'} compared")
    if verdict.identical:
        facts.append("identical evidence on both sides")
    return " · ".join(facts)


def _checks(checks: Sequence[CheckResult], *, details: bool) -> str:
    headings = ("check", "answer", "estimate", "interval", "threshold", "p", "detectable", "detail")
    rows = [
        (
            cell(check.id),
            _ANSWERS[check.status],
            figure(check.estimate),
            _interval(check.low, check.high),
            figure(check.threshold),
            "" if check.p is None else "&lt; 0.001" if check.p < 0.001 else figure(check.p),
            figure(check.detectable),
            cell(check.detail, LONGEST_TEXT) if details and check.detail else "",
        )
        for check in checks
    ]
    return table(headings, rows, words=2)


def _interval(low: float | None, high: float | None) -> str:
    """An interval; the open end of a one-sided test is left out."""
    return "" if low is None and high is None else f"{figure(low)} … {figure(high)}".strip()


def _sides(baseline: SideFigures, candidate: SideFigures) -> str:
    trials = sorted(baseline.pass_hat.keys() | candidate.pass_hat.keys())[:8]
    headings = ["", "reward", *(f"pass^{k}" for k in trials), "passed", "actions", "read", "write"]
    headings += ["max steps", "measured", "missing"]
    rows = []
    for title, side in (("baseline", baseline), ("candidate", candidate)):
        chances = [side.pass_hat.get(k) for k in trials]
        rows.append(
            [
                title,
                figure(side.reward),
                *(
                    f"{figure(chance.estimate)} ({_interval(chance.low, chance.high)})" if chance else ""
                    for chance in chances
                ),
                figure(side.pass_rate),
                figure(side.action_match),
                figure(side.read_action_match),
                figure(side.write_action_match),
                *(str(count) for count in (side.max_steps, side.measured, side.missing)),
            ]
        )
    return table(headings, rows)
