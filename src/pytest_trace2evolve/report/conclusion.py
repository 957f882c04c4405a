"""A run in three sentences: the decision, its reason, and the next step.

The terminal and Markdown share the first sentence. Each passes its own way to show foreign names.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from pytest_trace2evolve.records.verdict import (
    CheckResult,
    CheckStatus,
    Decision,
    Goal,
    Label,
    Obstacle,
    RunSummary,
    Settling,
    Verdict,
)
from pytest_trace2evolve.report.formatting import NOTHING, counted, dollars, points

_SHARES = {
    "action_match": "actions",
    "read_action_match": "read actions",
    "write_action_match": "write actions",
}
CHECK_NAMES: Mapping[str, str] = {
    "reward_improved": "reward",
    "reward_not_worse": "reward",
    "reward_drop": "reward",
    "pass_rate": "pass rate",
    "pass_rate_not_worse": "pass rate",
    **_SHARES,
    **{f"{share}_not_worse": name for share, name in _SHARES.items()},
    "task_regressions": "regressions",
    "no_task_regressions": "regressions",
    "max_steps": "steps",
    "no_max_steps": "steps",
    "invariants": "rules",
}
"""Names of the built-in checks for readers who do not know their ids."""

COVERAGE = ("compared", "measured", "best_case", "worst_case", "lost_again")
"""Checks of how much was measured, rather than of the results."""

OBSTACLES: Mapping[Obstacle | None, str] = {
    Obstacle.WRONG_DIRECTION: "the change points the wrong way",
    Obstacle.TOO_SMALL: "the effect is too small to detect with these tasks",
    None: "neither more trials nor more tasks would settle it",
}
"""Texts for the reasons why nothing would settle a check. None is for older files, which do not record the
reason."""

_DIRECTIONS: Mapping[Obstacle | None, str] = {
    Obstacle.WRONG_DIRECTION: ", the wrong way",
    Obstacle.TOO_SMALL: ", too small to detect with these tasks",
    None: "",
}

_CLAIMS = {
    Goal.IMPROVE: ("is better than {}", "is not shown to be better than {}"),
    Goal.HOLD: ("is not worse than {}", "is not shown to be no worse than {}"),
    Goal.NO_REGRESSION: ("shows no regression against {}", "is not shown to be free of regressions"),
}
"""Texts for the claim of each goal: one if it is shown, one if it is open."""

Quote = Callable[[str], str]
"""Shows a foreign name."""


def is_guard(verdict: Verdict) -> bool:
    """Whether a verdict is of a split that can only block or discard."""
    return verdict.guard is not None or verdict.label in (Label.TRANSFER, Label.SYNTHETIC)


def deciding(summary: RunSummary) -> list[Verdict]:
    """The verdicts that the run's decision rests on: open claims first, guards last."""
    found = [verdict for suite in summary.suites for verdict in suite.verdicts]
    return sorted(
        (verdict for verdict in found if verdict.decision and verdict.decision is summary.decision),
        key=lambda verdict: (is_guard(verdict), bool(_suspected_harm(verdict))),
    )


def headline(summary: RunSummary, quote: Quote, baseline: str, names: Mapping[str, str] | None = None) -> str:
    """Return the decision as a sentence, without the decision's name.

    Args:
        summary: The run; it has a decision.
        quote: Shows a foreign name.
        baseline: The baseline's name, quoted.
        names: Names to show instead of checks' ids.
    """
    candidate, decisive = quote(summary.candidate), deciding(summary)
    verdicts = [verdict for suite in summary.suites for verdict in suite.verdicts]
    shown, open_ = (claim.format(baseline) for claim in _CLAIMS[_goal(verdicts)])

    def checks(ids: Iterable[str]) -> list[str]:
        return [quote(name) for name in dict.fromkeys((names or {}).get(name, name) for name in ids)]

    if summary.decision is Decision.PROMOTE:
        suspected = sum(len(verdict.suspected) for verdict in verdicts)
        return f"{candidate} {shown}" + (f"; suspected regressions: {suspected}" if suspected else "")
    if summary.decision is Decision.DISCARD:
        failed = checks(sorted({check.id for each in decisive for check in _of(each, CheckStatus.FAIL)}))
        rest = f" and {len(failed) - 3} more checks" if failed[3:] else ""
        return f"{candidate} fails " + (f"on {', '.join(failed[:3])}{rest}" if failed else "the gate")
    if any(verdict.partial for verdict in verdicts):
        return f"{candidate} was not measured whole"
    if decisive and is_guard(decisive[0]):
        first = " · ".join(quote(name) for name in (decisive[0].suite, decisive[0].split) if name)
        more = f" and {len(decisive) - 1} more" if decisive[1:] else ""
        claimed = f"{candidate} {shown}, but " if any(not is_guard(verdict) for verdict in verdicts) else ""
        return f"{claimed}harm on {first}{more} is not ruled out"
    if decisive and (harm := _suspected_harm(decisive[0])):
        return f"{candidate} {shown}, but harm is suspected: {', '.join(checks(harm))}"
    return f"{candidate} {open_}"


def _suspected_harm(verdict: Verdict) -> list[str]:
    """The checks that withhold a promotion, if the claim is shown and nothing else is open."""
    claims = [check for check in verdict.checks if check.id.startswith("reward")]
    undecided = [check.id for check in _of(verdict, CheckStatus.UNDECIDED)]
    shown = bool(claims) and all(check.status is CheckStatus.PASS for check in claims)
    return undecided if shown and not any(name in COVERAGE for name in undecided) else []


def _goal(verdicts: Sequence[Verdict]) -> Goal:
    """The goal of the deciding splits. Guards are always judged by `hold`, whatever the run's goal is."""
    return next((verdict.goal for verdict in verdicts if verdict.goal is not Goal.HOLD), Goal.HOLD)


def reasons(summary: RunSummary) -> tuple[str, str]:
    """Return the reason for a run's result, and the next step; each is empty if there is nothing to say."""
    decisive = deciding(summary)
    if summary.trouble:
        return summary.trouble.removeprefix("no verdict: "), ""
    if summary.decision is None or not decisive:
        why = "; ".join(dict.fromkeys(suite.reason for suite in summary.suites if suite.reason))
        cause, _, remedy = why.rpartition("; ")
        return (cause, remedy) if cause and len(summary.suites) == 1 else (why, "")
    why, then = _reasons(decisive[0], summary)
    suites = [suite.name for suite in summary.suites if decisive[0] in suite.verdicts]
    place = " · ".join(filter(None, (suites[0], decisive[0].split)))
    return f"{place}: {why}" if why and len(summary.suites) > 1 else why, then


def _reasons(verdict: Verdict, summary: RunSummary) -> tuple[str, str]:
    if verdict.decision is Decision.PROMOTE:
        why = "; ".join(_finding(check) for check in verdict.checks if check.id.startswith("reward"))
        look = "look at the suspected tasks, then " if verdict.suspected else ""
        return why, f"{look}trace2evolve baseline promote {summary.evidence}" if summary.evidence else ""
    if verdict.decision is Decision.DISCARD:
        failed = _of(verdict, CheckStatus.FAIL)
        why = " · ".join(map(_finding, failed)) if not is_guard(verdict) else verdict.reason
        return why or verdict.reason, f"revise or drop {summary.candidate}"
    # Only a live run uses models.
    live = "rerun the same command: lost simulations run again"
    again = live if summary.used else "record the lost simulations again"
    return _open(verdict, summary.candidate, again)


def _open(verdict: Verdict, candidate: str, again: str) -> tuple[str, str]:
    """Return why a split is undecided, and the next step; `again` is the remedy for lost simulations."""
    split = verdict.split or "the tasks"
    if verdict.partial:
        return verdict.reason, f"run all of {split} on both sides"
    if is_guard(verdict):
        return verdict.reason, f"run more trials or tasks of {split}, or revise {candidate}"
    if verdict.candidate.reward is None:
        return verdict.reason, again
    undecided = _of(verdict, CheckStatus.UNDECIDED)
    claim = next((check for check in undecided if check.id.startswith("reward")), None)
    if claim is not None:
        settling = next((each for each in verdict.settling if each.check == claim.id), None)
        return _why_open(claim, settling), _next(verdict, settling, candidate)
    if few := [check for check in undecided if check.id in COVERAGE]:
        lost = verdict.baseline.missing + verdict.candidate.missing
        parts = [f"{counted(lost, 'simulation')} lost"] if lost else []
        parts += [f"{check.id.replace('_', ' ')} {check.detail}" for check in few]
        return "; ".join(parts), again if lost else "make the tasks of both sides the same"
    why = "; ".join(map(_finding, undecided)) or verdict.reason
    return why, f"run more trials of each task, or revise {candidate}"


def _next(verdict: Verdict, settling: Settling | None, candidate: str) -> str:
    if verdict.identical:
        return "give each side simulations of its own: both hold the same ones"
    if settling is None:
        return f"run more trials of each task, or revise {candidate}"
    if settling.trials is not None or settling.tasks is not None:
        return f"run {settling_ways(settling)}"
    return f"revise or drop {candidate}; more trials will not help"


def _why_open(claim: CheckResult, settling: Settling | None) -> str:
    if claim.estimate is None:
        return claim.detail
    is_stuck = settling is not None and settling.trials is None and settling.tasks is None
    direction = _DIRECTIONS[settling.obstacle] if settling is not None and is_stuck else ""
    if claim.threshold:
        return f"change {interval(claim)} points{direction}; {_signed(claim.threshold)} is allowed"
    found = "no change" if claim.detectable is None else f"a gain of {detects(claim)} or more"
    return f"change {change(claim)} points{direction}; this run detects {found}"


def _finding(check: CheckResult) -> str:
    """A check that decides, with its figures."""
    name = CHECK_NAMES.get(check.id, check.id)
    if not name.startswith("reward") or check.estimate is None:
        return f"{name}: {check.detail}" if check.detail else name
    # The p of other checks is about harm.
    shown = check.id == "reward_improved" and check.status is CheckStatus.PASS and check.p is not None
    return f"{name} {interval(check)} points" + (f", p {p_value(check)}" if shown else "")


def _of(verdict: Verdict, status: CheckStatus) -> list[CheckResult]:
    return [check for check in verdict.checks if check.status is status]


def settling_ways(settling: Settling) -> str:
    """Describe the trials (with their cost) or tasks that would settle a check, or why nothing would."""
    ways = []
    if settling.trials is not None:
        price = [] if settling.simulations is None else [counted(settling.simulations, "more simulation")]
        price += [] if settling.cost is None else [f"about {dollars(settling.cost)}"]
        price += [] if settling.tokens is None else [f"{settling.tokens / 1e6:.1f} M tokens"]
        ways.append(f"{settling.trials:,} trials of each task" + (f" ({', '.join(price)})" if price else ""))
    if settling.tasks is not None:
        ways.append(f"{settling.tasks:,} tasks of as many trials as now")
    return " or ".join(ways) or OBSTACLES[settling.obstacle]


# Figures, in percentage points.


def _signed(share: float) -> str:
    return points(share, ".1f") if abs(share) >= 0.0005 else "0.0"


def change(check: CheckResult) -> str:
    """An estimate with its sign."""
    return NOTHING if check.estimate is None else _signed(check.estimate)


def interval(check: CheckResult) -> str:
    """An estimate, with its interval if it has one."""
    if check.low is None or check.high is None:
        return change(check)
    return f"{change(check)} ({_signed(check.low)}…{_signed(check.high)})"


def detects(check: CheckResult) -> str:
    """The smallest change that a run like this one would have shown in four of five cases."""
    return NOTHING if check.detectable is None else f"{100 * check.detectable:.1f}"


def p_value(check: CheckResult) -> str:
    if check.p is None:
        return NOTHING
    return "<.001" if check.p < 0.0005 else share_text(check.p)


def share_text(value: float | None) -> str:
    """A share with three decimals, without the zero before the point."""
    return NOTHING if value is None else f"{value:.3f}".removeprefix("0")


def passing_groups(checks: Iterable[CheckResult]) -> list[str]:
    """Short names of checks that passed. `actions` also stands for read and write actions."""
    names = [CHECK_NAMES[check.id] for check in checks]
    return list(
        dict.fromkeys(name for name in names if not (name.endswith(" actions") and "actions" in names))
    )
