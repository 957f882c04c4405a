"""From pairs and a policy to a verdict, and from several verdicts to one."""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from pytest_trace2evolve.gate.checks import Check
from pytest_trace2evolve.gate.pairs import Pairs, Trials, told
from pytest_trace2evolve.gate.policy import MIN_MEASURED, Policy
from pytest_trace2evolve.records.score import Status, ToolType
from pytest_trace2evolve.records.verdict import (
    CheckResult,
    CheckStatus,
    Decision,
    Goal,
    Label,
    SideFigures,
    Verdict,
)


def decide(
    pairs: Pairs,
    policy: Policy,
    *,
    goal: Goal,
    label: Label,
    suite: str | None = None,
    split: str | None = None,
    guard: bool = False,
    partial: str = "",
    expected: int | None = None,
) -> Verdict:
    """Judge one split (or two whole sets of evidence).

    Args:
        pairs: Both sides, paired by task.
        policy: The checks to pass.
        goal: `improve`, or `hold` for "nothing worse".
        label: What kind of evidence this is.
        suite, split: What was compared, for the record.
        guard: The split can only discard: measured and without harm there is no decision (None).
        partial: Why the split was not run whole; the verdict is then inconclusive whatever the figures.
        expected: How many tasks should have been compared; below 90 % of them nothing is promoted.

    Returns:
        Discard on any failed check; else promote, unless a check is undecided. A promotion also holds
        with every missing simulation filled in at its worst, and needs 90 % measured on both sides.
    """
    goal = Goal.HOLD if guard else goal
    results = [check.evaluate(pairs) for check in policy.checks(goal)]
    reason = partial
    if not pairs.measured:
        reason = reason or "no task was measured on both sides"
        decision: Decision | None = Decision.INCONCLUSIVE
    elif partial:
        decision = Decision.INCONCLUSIVE
    else:
        results += [*_coverage(pairs, expected), *_missing_data(pairs, policy.checks(goal))]
        decision = _decision(results)
    if guard and (decision is Decision.PROMOTE or not (pairs.tasks or partial)):
        decision = None  # unharmed, or never compared; what was lost or cut short still withholds a promotion
    return Verdict(
        decision=decision,
        policy=policy.name,
        goal=goal,
        label=label,
        suite=suite,
        split=split,
        reason=reason,
        checks=tuple(results),
        fixed=tuple(pairs.fixed()),
        broken=tuple(pairs.broken()),
        tasks=len(pairs.tasks),
        left_out=told(pairs.left_out),
        partial=bool(partial),
        baseline=_figures(pairs, 0),
        candidate=_figures(pairs, 1),
    )


def worst(decisions: Iterable[Decision | None]) -> Decision | None:
    """The verdict over several splits or suites: the worst; None where nothing decided."""
    return min((decision for decision in decisions if decision is not None), key=_rank, default=None)


def _rank(decision: Decision) -> int:
    return decision.rank


def _decision(results: Sequence[CheckResult]) -> Decision:
    statuses = {result.status for result in results}
    if CheckStatus.FAIL in statuses:
        return Decision.DISCARD
    return Decision.INCONCLUSIVE if CheckStatus.UNDECIDED in statuses else Decision.PROMOTE


def _coverage(pairs: Pairs, expected: int | None) -> list[CheckResult]:
    """A check that withholds a promotion where too many tasks were left out, asked only where any was."""
    if not expected or len(pairs.tasks) >= expected:
        return []
    share = len(pairs.tasks) / expected
    return [
        CheckResult(
            id="compared",
            status=CheckStatus.PASS if share >= MIN_MEASURED else CheckStatus.UNDECIDED,
            estimate=share,
            threshold=MIN_MEASURED,
            detail=f"{len(pairs.tasks)} of {expected} tasks",
        )
    ]


def _missing_data(pairs: Pairs, checks: Sequence[Check]) -> list[CheckResult]:
    """Two checks that can withhold a promotion, asked only where simulations have no reward."""
    shares = [_measured_share(pairs, index) for index in (0, 1)]
    if min(shares) == 1.0:
        return []
    enough = min(shares) >= MIN_MEASURED
    results = [
        CheckResult(
            id="measured",
            status=CheckStatus.PASS if enough else CheckStatus.UNDECIDED,
            estimate=min(shares),
            threshold=MIN_MEASURED,
            detail=f"{shares[0]:.1%} and {shares[1]:.1%} of runs",
        )
    ]
    filled = pairs.worst_case()
    lost = [
        check.id
        for check in checks
        if check.evaluate(filled).status not in (CheckStatus.PASS, CheckStatus.NOT_APPLICABLE)
    ]
    results.append(
        CheckResult(
            id="worst_case",
            status=CheckStatus.UNDECIDED if lost else CheckStatus.PASS,
            detail=f"would not pass: {', '.join(lost)}" if lost else "every check still passes",
        )
    )
    return results


def _measured_share(pairs: Pairs, index: int) -> float:
    records = pairs.side(index)
    return sum(record.status is Status.MEASURED for record in records) / len(records) if records else 0.0


def _figures(pairs: Pairs, index: int) -> SideFigures:
    """One side's figures, each over the tasks that have it on both sides, so that sides can be subtracted."""
    records = pairs.side(index)
    measured = sum(record.status is Status.MEASURED for record in records)
    return SideFigures(
        **{name: _figure(pairs, index, read) for name, read in _FIGURES.items()},
        max_steps=sum(record.hit_max_steps for record in records),
        measured=measured,
        missing=len(records) - measured,
    )


def _figure(pairs: Pairs, index: int, read: Callable[[Trials], float | None]) -> float | None:
    values = [(read(old), read(new)) for old, new in pairs.measured.values()]
    both = [pair[index] for pair in values if None not in pair]
    return fmean(value for value in both if value is not None) if both else None


_FIGURES: dict[str, Callable[[Trials], float | None]] = {
    "reward": lambda trials: trials.reward,
    "pass_rate": lambda trials: None if trials.passes is None else float(trials.passes),
    "action_match": lambda trials: trials.action_match(),
    "read_action_match": lambda trials: trials.action_match(ToolType.READ),
    "write_action_match": lambda trials: trials.action_match(ToolType.WRITE),
}
