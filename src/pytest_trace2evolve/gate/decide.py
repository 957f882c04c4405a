"""From pairs and a policy to a verdict, and from several verdicts to one."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from pytest_trace2evolve.gate.alpha_spending import share, uncounted_share
from pytest_trace2evolve.gate.columns import KINDS, Floats
from pytest_trace2evolve.gate.intervals import bounds
from pytest_trace2evolve.gate.judgement import Judgement, Policy, Question
from pytest_trace2evolve.gate.pairs import Pairs, told
from pytest_trace2evolve.gate.planning import DETECTED
from pytest_trace2evolve.gate.tally import Tally, pass_hat
from pytest_trace2evolve.records.verdict import (
    CheckResult,
    CheckStatus,
    Decision,
    Goal,
    GuardAnswer,
    Interval,
    Label,
    SideFigures,
    Verdict,
)

LOST_AGAIN = "lost_again"
"""Id of the check of tasks whose simulations keep being lost."""

SIDES = ("baseline", "candidate")

MIN_MEASURED = 0.9
"""Below this share of measured simulations on a side nothing is promoted."""

_COMPARED, _MEASURED, _BEST_CASE = "compared", "measured", "best_case"


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
    abandoned: int = 0,
    lost: Mapping[str, str] = MappingProxyType({}),
    stage_alpha: float | None = None,
    schedule: tuple[int, ...] = (),
) -> Verdict:
    """Judge one split (or two whole sets of evidence).

    Args:
        pairs: Both sides, paired by task.
        policy: What a comparison must show.
        goal: `improve`, `hold` for "nothing worse", or `no-regression` for "no harm shown", which claims
            nothing: its evidence is never labelled clean.
        label: What kind of evidence this is.
        suite, split: What was compared, for the record.
        guard: The split can block or discard and promotes nothing: without harm there is no decision (None).
            It blocks if any check has p ≤ α, or if it could not have detected a drop of 20 points of the mean
            reward; the latter not under goal `no-regression`.
        partial: Why the split was not run whole; the verdict is then inconclusive whatever the figures.
        expected: How many tasks should have been compared; below 90 % of them nothing is promoted.
        look: The number of the test of this split that the candidate's clean claim is; None claims none.
        analysis: The number of the analysis within that test; None gives it the test's whole level.
        abandoned: How many draws could have been judged instead and were not; of a claim with a test number,
            `analysis` counts them. They lower the level of what is claimed, never that of harm.
        lost: Tasks of which a simulation is lost again and again, with the side: such a loss may depend on
            what the agent does, so nothing is promoted.
        stage_alpha: Level of this stage, where there are several at growing numbers of trials.
        schedule: Trials of all these stages.

    Returns:
        Discard on any failed check; else promote, unless a check is undecided. A promotion also holds
        with every missing simulation filled in at its worst, and needs 90 % measured on both sides. A discard
        also holds with every missing simulation filled in at its best; otherwise it is inconclusive.
    """
    whole = 1.0 if goal is Goal.NO_REGRESSION else uncounted_share(abandoned)
    question = Question(
        goal=Goal.HOLD if guard and goal is not Goal.NO_REGRESSION else goal,
        guard=guard,
        share=whole if look is None else share(look, analysis),
        next_share=whole if look is None else share(look, (analysis or 0) + 1),
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
        results += [*_coverage(pairs, expected), *_missing_data(pairs, policy, question, results)]
        results += _lost_again(pairs, lost)
        decision = _decision(results)
    answer, drop = None, None
    if guard or goal is Goal.NO_REGRESSION:
        drop = judged.sensitivity.drop if judged.sensitivity else None
    if guard and not partial:
        few = "" if pairs.identical or goal is Goal.NO_REGRESSION else _too_few(judged, len(pairs.names))
        answer, found = _guarded(decision, results, judged, few)
        decision = _DECISIONS[answer]
        reason = reason or found
    elif goal is Goal.NO_REGRESSION and decision is Decision.PROMOTE:
        reason = f"no regression detected; {_could_have_detected(judged)}"
    if goal is Goal.NO_REGRESSION and label is Label.CLEAN:
        label = Label.DEVELOPMENT
    told_lost = [check.detail for check in results if check.id == LOST_AGAIN]
    if told_lost:
        reason = "; ".join(filter(None, (reason, f"lost in every attempt: simulations of {told_lost[0]}")))
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
        guard=answer,
        detectable=drop,
        baseline=_figures(pairs, 0, judged),
        candidate=_figures(pairs, 1, judged),
    )


_DECISIONS = {
    GuardAnswer.HARM_SHOWN: Decision.DISCARD,
    GuardAnswer.HARM_SUSPECTED: Decision.INCONCLUSIVE,
    GuardAnswer.NO_HARM_DETECTED: None,
}


def _guarded(
    decision: Decision | None, results: Sequence[CheckResult], judged: Judgement, few: str
) -> tuple[GuardAnswer, str]:
    """The answer of a guard, with its reason in a line.

    Args:
        decision: What its checks come to.
        results: The checks.
        judged: What the policy answered.
        few: Why the split could not have detected enough; empty if it could.
    """
    if decision is Decision.DISCARD:
        failed = [check.id for check in results if check.status is CheckStatus.FAIL]
        return GuardAnswer.HARM_SHOWN, f"{GuardAnswer.HARM_SHOWN.value}: {', '.join(failed)}"
    open_ = [
        check.id if check.p is None else f"{check.id} (p = {check.p:.4f})"
        for check in results
        if check.status is CheckStatus.UNDECIDED
    ]
    if decision is Decision.INCONCLUSIVE or few:
        reasons = [part for part in (", ".join(open_), few) if part]
        suffix = f": {'; '.join(reasons)}" if reasons else ""
        return GuardAnswer.HARM_SUSPECTED, f"{GuardAnswer.HARM_SUSPECTED.value}{suffix}"
    found = GuardAnswer.NO_HARM_DETECTED
    return found, f"{found.value}; {_could_have_detected(judged)}"


def _too_few(judged: Judgement, tasks: int) -> str:
    """Why a guard could not have detected a drop of `DETECTED`; empty if it could have."""
    known = judged.sensitivity
    if known is None or (known.drop is not None and known.drop <= DETECTED + 1e-9):
        return ""
    smallest = "none" if known.drop is None else f"{_points(known.drop)} or more"
    enough = f"; about {known.tasks} tasks would detect it" if known.tasks is not None else ""
    count = f"{tasks} task{'' if tasks == 1 else 's'}"
    return f"{count} cannot detect a drop of {100 * DETECTED:.0f} points (detectable: {smallest}){enough}"


def _could_have_detected(judged: Judgement) -> str:
    known = judged.sensitivity
    if known is None:
        return "the policy compares point estimates and states no detectable change"
    if known.drop is None:
        return "no drop of the mean reward could have been detected"
    return f"could have detected a drop of {_points(known.drop)}"


def _points(drop: float) -> str:
    """A drop of the mean reward in points, rounded up."""
    return f"{math.ceil(100 * drop - 1e-6)} points"


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
    withheld = any(result.id == _BEST_CASE and result.status is CheckStatus.UNDECIDED for result in results)
    if CheckStatus.FAIL in statuses and not withheld:
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


def _missing_data(
    pairs: Pairs, policy: Policy, question: Question, judged: Sequence[CheckResult]
) -> list[CheckResult]:
    """Checks that can withhold a promotion or a discard, asked only if simulations have no reward.

    Args:
        pairs, policy, question: As in `decide`.
        judged: What the policy's checks answer.
    """
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
    if any(result.status is CheckStatus.FAIL for result in judged):
        results.append(_best_case(policy.judge(pairs.best_case(), replace(question, filled=True)), judged))
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


def _best_case(filled: Judgement, judged: Sequence[CheckResult]) -> CheckResult:
    """Withholds a discard if no check fails any more once the missing simulations are at their best."""
    failed = [result.id for result in judged if result.status is CheckStatus.FAIL]
    still = [
        result.id for result in filled.results if result.status is CheckStatus.FAIL and result.id in failed
    ]
    return CheckResult(
        id=_BEST_CASE,
        status=CheckStatus.PASS if still else CheckStatus.UNDECIDED,
        detail=f"still fails: {', '.join(still)}" if still else f"would not fail: {', '.join(failed)}",
    )


def _lost_again(pairs: Pairs, lost: Mapping[str, str]) -> list[CheckResult]:
    """A check that withholds a promotion if a task's simulations keep being lost; absent if none does."""
    found = {name: side for name, side in lost.items() if name in pairs.names}
    for side, name in zip(pairs.sides, SIDES, strict=True):
        for task in pairs.named((side.trials > 1) & (side.measured == 0)):
            found.setdefault(task, name)
    if not found:
        return []
    told = ", ".join(f"{task} ({side})" for task, side in found.items())
    return [CheckResult(id=LOST_AGAIN, status=CheckStatus.UNDECIDED, detail=told)]


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
