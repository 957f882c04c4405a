"""Figures as the terminal and the page show them: shares in percentage points, ratios, intervals, counts."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pytest_trace2evolve.records.verdict import (
    RATIO_UNIT,
    SHARE_UNIT,
    CheckResult,
    CheckStatus,
    Interval,
    UsageRatio,
    Verdict,
)
from pytest_trace2evolve.report.formatting import NOT_MEASURED, format_number, format_points
from pytest_trace2evolve.utils.sanitize import sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.scoring.metrics import Metrics

_ACTION_SHARES = {
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
    **_ACTION_SHARES,
    **{f"{share}_not_worse": name for share, name in _ACTION_SHARES.items()},
    "task_regressions": "regressions",
    "no_task_regressions": "regressions",
    "max_steps": "steps",
    "no_max_steps": "steps",
    "agent_errors": "agent errors",
    "no_more_agent_errors": "agent errors",
    "invariants": "rules",
}
"""Short names of the built-in checks, by id, for the report."""

CHECK_SIGNS = {
    CheckStatus.PASS: "✓",
    CheckStatus.FAIL: "✗",
    CheckStatus.UNDECIDED: "?",
    CheckStatus.NOT_APPLICABLE: NOT_MEASURED,
}


def _signed_points(share: float) -> str:
    return format_points(share, ".1f") if abs(share) >= 0.0005 else "0.0"


def change_text(check: CheckResult) -> str:
    """Format a check's estimate with its sign."""
    return NOT_MEASURED if check.estimate is None else _signed_points(check.estimate)


def interval_text(check: CheckResult) -> str:
    """Format a check's estimate, with its interval if it has one."""
    if check.low is None or check.high is None:
        return change_text(check)
    return f"{change_text(check)} ({_signed_points(check.low)}…{_signed_points(check.high)})"


def is_in_points(check: CheckResult) -> bool:
    """Whether a check's estimate is a share, and not a ratio or a number of tasks."""
    return check.unit == SHARE_UNIT or (check.id in CHECK_NAMES and not check.id.startswith("no_"))


def check_figure(check: CheckResult) -> str:
    """Format a check's estimate in its unit, with its interval if it has one."""
    if check.unit == RATIO_UNIT:
        return ratio_text(check)
    return interval_text(check) if is_in_points(check) else format_number(check.estimate)


def usage_rows(verdict: Verdict) -> list[tuple[str, str, str, str]]:
    """What the agents used by figure: its name, the means of both sides and their ratio."""
    return [
        (name, usage_figure(name, found.baseline), usage_figure(name, found.candidate), ratio_text(found))
        for found in verdict.usage
        for name in (found.metric,)
    ]


def pass_hat_rows(verdict: Verdict) -> list[tuple[int, str, str]]:
    """pass^k of both sides with its intervals, for each k that both have."""
    old, new = verdict.baseline.pass_hat, verdict.candidate.pass_hat
    return [
        (k, interval_estimate_text(old[k]), interval_estimate_text(new[k])) for k in sorted(old.keys() & new)
    ]


def ratio_text(found: UsageRatio | CheckResult) -> str:
    """Format a ratio with its interval, such as `×1.52 (1.40…1.66)`."""
    ratio = found.ratio if isinstance(found, UsageRatio) else found.estimate
    if ratio is None:
        return NOT_MEASURED
    bounds = (
        f" ({found.low:.2f}…{found.high:.2f})" if found.low is not None and found.high is not None else ""
    )
    return f"×{ratio:.2f}{bounds}"


def usage_figure(metric: str, value: float | None) -> str:
    """Format a mean of cost, tokens, turns or latency with its unit."""
    if value is None:
        return NOT_MEASURED
    return {"cost": f"${value:.4g}", "latency": f"{value:.2f} s", "turns": f"{value:.1f}"}.get(
        metric, f"{value:,.0f}"
    )


def detectable_text(check: CheckResult) -> str:
    """Format the smallest change that the run could have shown with 80 % power."""
    return NOT_MEASURED if check.detectable is None else f"{100 * check.detectable:.1f}"


def p_text(check: CheckResult) -> str:
    if check.p is None:
        return NOT_MEASURED
    return "<.001" if check.p < 0.0005 else share_text(check.p)


def share_text(value: float | None) -> str:
    """Format a share with three decimals and without the leading zero."""
    return NOT_MEASURED if value is None else f"{value:.3f}".removeprefix("0")


def interval_estimate_text(interval: Interval) -> str:
    """Format a share with its interval."""
    return f"{share_text(interval.estimate)} ({share_text(interval.low)} … {share_text(interval.high)})"


def check_group_names(checks: Iterable[CheckResult]) -> list[str]:
    """Return short names of checks. `actions` also stands for read and write actions."""
    names = [CHECK_NAMES.get(check.id, sanitize_line(check.id)) for check in checks]
    return list(
        dict.fromkeys(name for name in names if not (name.endswith(" actions") and "actions" in names))
    )


def invariants_line(metrics: "Metrics") -> str:
    """Count the simulations that broke each invariant; empty if no simulation broke one or was checked."""
    counts = metrics.invariants
    if counts is None or not counts.broke:
        return ""
    by_name = ", ".join(f"{name.value} {count}" for name, count in counts.by_invariant.items())
    return f"invariants: {counts.broke} of {counts.simulations} simulations broke at least one: {by_name}"


def checks_line(metrics: "Metrics") -> str:
    """Count the simulations that broke each check of one's own, among those to which the check applies."""
    parts = []
    for name, counts in (metrics.checks or {}).items():
        failed_text = f" ({counts.failed} without a result)" if counts.failed else ""
        parts.append(f"{sanitize_line(name)} {counts.broken} of {counts.applies}{failed_text}")
    return f"checks broken: {', '.join(parts)}" if parts else ""


def pass_hat_text(metrics: "Metrics") -> str:
    """Format pass^k for k = 1, 2, 4, 8 and 16, as far as there are enough trials."""
    return (
        " ".join(format_number(metrics.pass_hat[k]) for k in (1, 2, 4, 8, 16) if k in metrics.pass_hat)
        or NOT_MEASURED
    )
