"""The Markdown of a run for GitHub: a job's summary, and a comment on a pull request."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_trace2evolve.records.verdict import (
    CheckResult,
    CheckStatus,
    Decision,
    Goal,
    RunSummary,
    Settling,
    SideFigures,
    SuiteSummary,
    Verdict,
)
from pytest_trace2evolve.report.markdown import LONGEST_TEXT, cell, code, fenced, figure, names, table
from pytest_trace2evolve.report.progress import dollars
from pytest_trace2evolve.report.terminal import OBSTACLES

COMMENT_LIMIT = 65_536
"""Characters that GitHub takes in a comment; bytes are counted, of which there are never fewer."""

SUMMARY_LIMIT = 1 << 20
"""Bytes that GitHub takes in the summary of one step: 1 MiB."""

LEAST_LIMIT = 4_096
"""Bytes that always suffice for the verdict."""

_SIGNS = {Decision.PROMOTE: "✅", Decision.DISCARD: "❌", Decision.INCONCLUSIVE: "⚠️"}
_ANSWERS = {
    CheckStatus.PASS: "✅ pass",
    CheckStatus.FAIL: "❌ fail",
    CheckStatus.UNDECIDED: "⚠️ undecided",
    CheckStatus.NOT_APPLICABLE: "n/a",
}


@dataclass(frozen=True)
class _Claim:
    """The words of a verdict after the candidate's name.

    Attributes:
        shown: What a promotion says.
        open: What an inconclusive verdict leaves open.
    """

    shown: str
    open: str


_CLAIMS = {
    Goal.IMPROVE: _Claim("is better than its baseline", "is better"),
    Goal.HOLD: _Claim("is not worse than its baseline", "is not worse"),
    Goal.NO_REGRESSION: _Claim("shows no regression", "is free of regressions"),
}


@dataclass(frozen=True)
class _Room:
    """How much is told.

    Attributes:
        names: Entries of each list of tasks.
        details: Whether figures of both sides, what would settle a verdict, notes and the command are told.
    """

    names: int
    details: bool = True


_ROOMS = (*(_Room(names) for names in (100, 25, 5, 0)), _Room(0, details=False))


def run_markdown(summary: RunSummary, *, limit: int = SUMMARY_LIMIT, head: str = "", foot: str = "") -> str:
    """A run as Markdown of at most `limit` bytes in UTF-8: the verdict first.

    What does not fit goes in this order: lists of tasks, then details. The verdict and the tables of checks
    stay; only where the tables alone are too long, the worst splits are kept, and the others counted.

    Args:
        summary: What to tell; any text of it is inert.
        limit: Bytes, `LEAST_LIMIT` or more.
        head: Markdown of our own to begin with, on lines of its own.
        foot: Markdown of our own to end with.

    Raises:
        ValueError: head, foot and the verdict do not fit into the limit.
    """
    for room in _ROOMS:
        parts = [text for _, text in _blocks(summary, room)]
        if _fits(text := _joined(summary, parts, head, foot, details=room.details), limit):
            return text
    # The sort is stable: among equals, the order of the run stays.
    worst_first = [text for _, text in sorted(_blocks(summary, _ROOMS[-1]), key=lambda block: block[0])]
    fewest, most = 0, len(worst_first)
    while fewest < most:
        middle = (fewest + most + 1) // 2
        if _fits(_cut(summary, worst_first, middle, head, foot), limit):
            fewest = middle
        else:
            most = middle - 1
    text = _cut(summary, worst_first, fewest, head, foot)
    if not _fits(text, limit):
        raise ValueError(f"{limit} bytes are too few for a verdict")
    return text


def _fits(text: str, limit: int) -> bool:
    return len(text.encode("utf-8")) <= limit


def _cut(summary: RunSummary, blocks: Sequence[str], kept: int, head: str, foot: str) -> str:
    left = len(blocks) - kept
    counted = [f"*and {left} more splits*"] if left else []
    return _joined(summary, [*blocks[:kept], *counted], head, foot, details=False)


def _joined(summary: RunSummary, blocks: Sequence[str], head: str, foot: str, *, details: bool) -> str:
    parts = [head, f"## {_headline(summary)}", _facts(summary), *blocks]
    if details:
        parts += _closing(summary)
    elif summary.command or summary.notes:
        parts.append("*Shortened: figures, notes and the command are in the run's evidence and log.*")
    return "\n\n".join(part for part in [*parts, foot] if part) + "\n"


def _headline(summary: RunSummary) -> str:
    """The verdict in one line that a reader takes in at a glance."""
    candidate = code(summary.candidate)
    if summary.trouble:
        return f"⚠️ No verdict on {candidate}: {code(summary.trouble, LONGEST_TEXT)}"
    verdicts = [verdict for suite in summary.suites for verdict in suite.verdicts]
    claim = _CLAIMS[_goal(verdicts)]
    sign = _SIGNS[summary.decision] + " " if summary.decision else ""
    match summary.decision:
        case Decision.PROMOTE:
            text = f"Promote: {candidate} {claim.shown}"
            suspected = sum(len(verdict.suspected) for verdict in verdicts)
            return sign + text + (f"; suspected regressions: {suspected}" if suspected else "")
        case Decision.DISCARD:
            return f"{sign}Discard: {candidate} fails {_failed(verdicts)}"
        case Decision.INCONCLUSIVE:
            return f"{sign}Inconclusive: {_why_inconclusive(summary, candidate, claim)}"
        case None:
            return f"No verdict on {candidate}"


def _goal(verdicts: Sequence[Verdict]) -> Goal:
    """The goal of the deciding splits. Guards are always judged by `hold`, whatever the run's goal is."""
    return next((verdict.goal for verdict in verdicts if verdict.goal is not Goal.HOLD), Goal.HOLD)


def _why_inconclusive(summary: RunSummary, candidate: str, claim: _Claim) -> str:
    """Too little was measured, a guard withholds the promotion, or the claim is open."""
    verdicts = [(suite.name, verdict) for suite in summary.suites for verdict in suite.verdicts]
    if any(verdict.partial for _, verdict in verdicts):
        return f"{candidate} was not measured whole"
    goal = _goal([verdict for _, verdict in verdicts])
    undecided = [(name, verdict) for name, verdict in verdicts if verdict.decision is Decision.INCONCLUSIVE]
    guards = [_place(name, verdict) for name, verdict in undecided if verdict.goal is not goal]
    if guards and len(guards) == len(undecided):
        more = f" and {len(guards) - 1} more" if guards[1:] else ""
        return f"{candidate} {claim.shown}, but harm on {guards[0]}{more} is not ruled out"
    return f"not settled whether {candidate} {claim.open}"


def _place(suite: str, verdict: Verdict) -> str:
    """The suite and split of a verdict."""
    return " · ".join(code(name) for name in (verdict.suite or suite, verdict.split) if name)


def _failed(verdicts: Sequence[Verdict]) -> str:
    """The failed checks of the splits that discard, the first three by name."""
    discarding = [verdict for verdict in verdicts if verdict.decision is Decision.DISCARD]
    failed = sorted({one.id for each in discarding for one in each.checks if one.status is CheckStatus.FAIL})
    shown = ", ".join(code(check) for check in failed[:3]) or "the gate"
    return shown + (f" and {len(failed) - 3} more checks" if len(failed) > 3 else "")


def _facts(summary: RunSummary) -> str:
    facts = []
    if summary.used:
        facts.append(f"used: {code(summary.used, LONGEST_TEXT)}")
    if summary.evidence:
        facts.append(f"evidence: {code(summary.evidence, LONGEST_TEXT)}")
    return " · ".join(facts)


def _blocks(summary: RunSummary, room: _Room) -> list[tuple[int, str]]:
    """Each split's part, with its rank: the worst is lowest."""
    found: list[tuple[int, str]] = []
    for suite in summary.suites:
        if not suite.verdicts:
            text = f"### {code(suite.name)}: no verdict\n\n{code(suite.reason, LONGEST_TEXT)}"
            if suite.left_out:
                text += "\n\n" + names("Left out", suite.left_out, room.names, LONGEST_TEXT)
            found.append((len(Decision) + 1, text))
        for verdict in suite.verdicts:
            rank = verdict.decision.rank if verdict.decision else len(Decision)
            found.append((rank, _block(suite, verdict, summary, room)))
    return found


def _block(suite: SuiteSummary, verdict: Verdict, summary: RunSummary, room: _Room) -> str:
    place = _place(suite.name, verdict)
    sign = _SIGNS[verdict.decision] + " " if verdict.decision else ""
    answer = (
        verdict.decision.value if verdict.decision else "no harm detected (a guard can only block or discard)"
    )
    parts = [f"### {place}: {sign}{answer}", _circumstances(suite, verdict, summary)]
    if suite.compared is not None:
        parts.append("<br>".join(code(line, LONGEST_TEXT) for line in suite.compared.lines))
    if verdict.reason:
        parts.append(code(verdict.reason, LONGEST_TEXT))
    if verdict.checks:
        parts.append(_checks(verdict.checks, details=room.details))
    lists = (
        ("Confirmed regressions", verdict.regressions),
        ("Suspected regressions", verdict.suspected),
        ("Broken", verdict.broken),
        ("Fixed", verdict.fixed),
    )
    parts += [names(title, tasks, room.names) for title, tasks in lists if tasks]
    if verdict.left_out:
        parts.append(names("Left out", verdict.left_out, room.names, LONGEST_TEXT))
    if room.details:
        parts.append(_sides(verdict.baseline, verdict.candidate))
        if verdict.settling:
            lines = [f"- {_settling(one)}" for one in verdict.settling]
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
    """An interval; an end that is open, as a one-sided test leaves it, is left away."""
    return "" if low is None and high is None else f"{figure(low)} … {figure(high)}".strip()


def _sides(baseline: SideFigures, candidate: SideFigures) -> str:
    both = (("baseline", baseline), ("candidate", candidate))
    shared = sorted(baseline.pass_hat.keys() | candidate.pass_hat.keys())[:8]
    headings = ["", "reward", *(f"pass^{k}" for k in shared), "passed", "actions", "read", "write"]
    headings += ["max steps", "measured", "missing"]
    return table(headings, [[title, *_side(side, shared)] for title, side in both])


def _side(side: SideFigures, shared: Sequence[int]) -> list[str]:
    return [
        figure(side.reward),
        *(_pass_hat(side, k) for k in shared),
        figure(side.pass_rate),
        figure(side.action_match),
        figure(side.read_action_match),
        figure(side.write_action_match),
        *(str(count) for count in (side.max_steps, side.measured, side.missing)),
    ]


def _pass_hat(side: SideFigures, k: int) -> str:
    found = side.pass_hat.get(k)
    if found is None:
        return ""
    return f"{figure(found.estimate)} ({_interval(found.low, found.high)})"


def _settling(one: Settling) -> str:
    """The trials, with their cost, or the tasks that would settle a check; or why neither would."""
    ways = []
    if one.trials is not None:
        price = [f"{one.simulations:,} further simulations"] if one.simulations is not None else []
        price += [f"{one.tokens:,} tokens"] if one.tokens is not None else []
        price += [dollars(one.cost)] if one.cost is not None else []
        ways.append(f"{one.trials:,} trials a task" + (f" ({', '.join(price)})" if price else ""))
    if one.tasks is not None:
        ways.append(f"{one.tasks:,} tasks at as many trials as now")
    return f"{code(one.check)}: {', or '.join(ways) or OBSTACLES[one.obstacle]}"


def _closing(summary: RunSummary) -> list[str]:
    parts = []
    if summary.notes:
        parts.append("\n".join(f"- note: {code(note, LONGEST_TEXT)}" for note in summary.notes))
    if summary.command:
        parts.append("To reproduce:\n\n" + fenced(shlex.join(summary.command)))
    return parts
