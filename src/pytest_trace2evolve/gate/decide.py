"""From pairs and a policy to a verdict, and from several verdicts to one."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from pytest_trace2evolve.gate.bounds import bounds
from pytest_trace2evolve.gate.columns import KINDS, Floats
from pytest_trace2evolve.gate.judgement import Judgement, Policy, Question
from pytest_trace2evolve.gate.looks import share
from pytest_trace2evolve.gate.pairs import Pairs, told
from pytest_trace2evolve.gate.tally import Tally, pass_hat
from pytest_trace2evolve.records.verdict import (
    CheckResult,
    CheckStatus,
    Decision,
    Goal,
    Interval,
    Label,
    SideFigures,
    Verdict,
)

MIN_MEASURED = 0.9
"""Below this share of measured simulations on a side nothing is promoted."""

_COMPARED, _MEASURED = "compared", "measured"


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
    look: int | None = None,
    analysis: int | None = None,
    stage_alpha: float | None = None,
    schedule: tuple[int, ...] = (),
) -> Verdict:
    """Judge one split (or two whole sets of evidence).

    Args:
        pairs: Both sides, paired by task.
        policy: What a comparison must show.
        goal: `improve`, or `hold` for "nothing worse".
        label: What kind of evidence this is.
        suite, split: What was compared, for the record.
        guard: The split can only discard: measured and without harm there is no decision (None).
        partial: Why the split was not run whole; the verdict is then inconclusive whatever the figures.
        expected: How many tasks should have been compared; below 90 % of them nothing is promoted.
        look: The number of the test of this split that the candidate's clean claim is; None claims none.
        analysis: The number of the analysis within that test; None gives it the test's whole level.
        stage_alpha: Level of this stage, where there are several at growing numbers of trials.
        schedule: Trials of all these stages.

    Returns:
        Discard on any failed check; else promote, unless a check is undecided. A promotion also holds
        with every missing simulation filled in at its worst, and needs 90 % measured on both sides.
    """
    question = Question(
        goal=Goal.HOLD if guard else goal,
        guard=guard,
        share=1.0 if look is None else share(look, analysis),
        next_share=1.0 if look is None else share(look, (analysis or 0) + 1),
        stage_alpha=stage_alpha,
        schedule=schedule,
    )
    judged = policy.judge(pairs, question)
    results, reason = list(judged.results), partial
    if not pairs.both.any():
        reason = reason or "no task was measured on both sides"
        decision: Decision | None = Decision.INCONCLUSIVE
    elif partial:
        decision = Decision.INCONCLUSIVE
    else:
        results += [*_coverage(pairs, expected), *_missing_data(pairs, policy, question)]
        decision = _decision(results)
    if guard and (decision is Decision.PROMOTE or not (pairs.names or partial)):
        decision = None  # unharmed, or never compared; what was lost or cut short still withholds a promotion
    return Verdict(
        decision=decision,
        policy=policy.name,
        goal=question.goal,
        label=label,
        suite=suite,
        split=split,
        reason=reason,
        checks=tuple(results),
        fixed=tuple(pairs.fixed()),
        broken=tuple(pairs.broken()),
        regressions=judged.regressions,
        suspected=judged.suspected,
        tasks=len(pairs.names),
        left_out=told(pairs.left_out),
        partial=bool(partial),
        identical=pairs.identical,
        alpha=judged.alpha,
        look=look,
        analysis=analysis,
        settling=judged.settling if decision is Decision.INCONCLUSIVE and not partial else (),
        baseline=_figures(pairs, 0, judged),
        candidate=_figures(pairs, 1, judged),
    )


def worst(decisions: Iterable[Decision | None]) -> Decision | None:
    """The verdict over several splits or suites: the worst; None where nothing decided."""
    return min((decision for decision in decisions if decision is not None), key=_rank, default=None)


def unmeasured(verdict: Verdict) -> bool:
    """Whether too little was measured for a promotion, whatever the rest had shown."""
    too_few = (
        check.id in (_COMPARED, _MEASURED) and check.status is CheckStatus.UNDECIDED
        for check in verdict.checks
    )
    return verdict.candidate.reward is None or any(too_few)


def _rank(decision: Decision) -> int:
    return decision.rank


def _decision(results: Sequence[CheckResult]) -> Decision:
    statuses = {result.status for result in results}
    if CheckStatus.FAIL in statuses:
        return Decision.DISCARD
    return Decision.INCONCLUSIVE if CheckStatus.UNDECIDED in statuses else Decision.PROMOTE


def _coverage(pairs: Pairs, expected: int | None) -> list[CheckResult]:
    """A check that withholds a promotion where too many tasks were left out, asked only where any was."""
    if not expected or len(pairs.names) >= expected:
        return []
    share = len(pairs.names) / expected
    return [
        CheckResult(
            id=_COMPARED,
            status=CheckStatus.PASS if share >= MIN_MEASURED else CheckStatus.UNDECIDED,
            estimate=share,
            threshold=MIN_MEASURED,
            detail=f"{len(pairs.names)} of {expected} tasks",
        )
    ]


def _missing_data(pairs: Pairs, policy: Policy, question: Question) -> list[CheckResult]:
    """Two checks that can withhold a promotion, asked only where simulations have no reward."""
    shares = [_measured_share(side) for side in pairs.sides]
    fresh, worst_fresh = pairs.fresh, pairs.fresh_worst
    lost_fresh = (
        fresh is not None
        and worst_fresh is not None
        and not np.array_equal(fresh, worst_fresh, equal_nan=True)
    )
    if min(shares) == 1.0 and not lost_fresh:
        return []
    results = []
    if min(shares) < 1.0:
        results.append(
            CheckResult(
                id=_MEASURED,
                status=CheckStatus.PASS if min(shares) >= MIN_MEASURED else CheckStatus.UNDECIDED,
                estimate=min(shares),
                threshold=MIN_MEASURED,
                detail=f"{shares[0]:.1%} and {shares[1]:.1%} of runs",
            )
        )
    filled = policy.judge(pairs.worst_case(), replace(question, filled=True))
    open_ = (CheckStatus.FAIL, CheckStatus.UNDECIDED)
    lost = [result.id for result in filled.results if result.status in open_]
    results.append(
        CheckResult(
            id="worst_case",
            status=CheckStatus.UNDECIDED if lost else CheckStatus.PASS,
            detail=f"would not pass: {', '.join(lost)}" if lost else "every check still passes",
        )
    )
    return results


def _measured_share(side: Tally) -> float:
    total = int(side.trials.sum())
    return int(side.measured.sum()) / total if total else 0.0


def _figures(pairs: Pairs, index: int, judged: Judgement) -> SideFigures:
    """One side's figures, each over the tasks that have it on both sides, so that sides can be subtracted."""
    side = pairs.sides[index]
    values = {name: [_by_task(one, name) for one in pairs.sides] for name in _FIGURES}
    means = {}
    for name, (old, new) in values.items():
        known = ~np.isnan(old) & ~np.isnan(new)
        means[name] = float((old, new)[index][known].mean()) if known.any() else None
    return SideFigures(
        **means,
        max_steps=int(side.max_steps.sum()),
        measured=int(side.measured.sum()),
        missing=int(side.missing.sum()),
        pass_hat={} if judged.alpha is None else _pass_hat(pairs, side, judged.alpha),
    )


def _pass_hat(pairs: Pairs, side: Tally, alpha: float) -> dict[int, Interval]:
    """pass^k over the tasks measured on both sides, with its interval, each bound one-sided at alpha."""
    found = {}
    for k, chances in pass_hat(side.only(pairs.both)).items():
        at = bounds(chances[None, :], alpha, least=0.0, most=1.0)
        found[k] = Interval(estimate=float(at.mean[0]), low=float(at.low[0]), high=float(at.high[0]))
    return found


_FIGURES = ("reward", "pass_rate", *KINDS)


def _by_task(side: Tally, name: str) -> Floats:
    if name == "reward":
        return side.mean_reward
    if name == "pass_rate":
        return np.where(side.measured > 0, side.passes.astype(np.float64), np.nan)
    return side.share(name)
