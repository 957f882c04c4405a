"""Decides comparisons by one rule: a single comparison with all its figures, or many at once."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from pytest_trace2evolve.gate.alpha_spending import share, uncounted_share
from pytest_trace2evolve.gate.columns import KINDS, Counts, Flags, Floats
from pytest_trace2evolve.gate.intervals import DETECTED, bounds
from pytest_trace2evolve.gate.pairs import (
    PASS_RATE,
    REWARD,
    Comparisons,
    Pairs,
    Tally,
    left_out_lines,
    mean_of,
)
from pytest_trace2evolve.gate.protocols import (
    FAIL,
    NOT_APPLICABLE,
    PASS,
    STATUSES,
    UNDECIDED,
    Judgement,
    Policy,
    Question,
)
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
"""Id of the check for tasks whose simulations are lost repeatedly."""

MIN_MEASURED = 0.9
"""The smallest share of measured simulations on each side with which a candidate can be promoted."""

_COMPARED, _MEASURED, _BEST_CASE, _WORST_CASE = "compared", "measured", "best_case", "worst_case"


# The rule, on arrays of answers of shape (checks, R).


def _ranks(answers: Counts, withheld: Flags) -> Counts:
    """`Decision.rank` of each comparison: discard on a failed check, else promote if none is undecided.

    `withheld` is whether the discard of each comparison is withheld, see `_discard_withheld`.
    """
    undecided = (answers == UNDECIDED).any(axis=0) | withheld
    ranks = np.where(undecided, Decision.INCONCLUSIVE.rank, Decision.PROMOTE.rank)
    return np.where((answers == FAIL).any(axis=0) & ~withheld, Decision.DISCARD.rank, ranks)


def _discard_withheld(answers: Counts, best_case: Counts) -> Flags:
    """Whether checks failed, and none of them fails with the missing simulations at their best."""
    failed = answers == FAIL
    return np.asarray(failed.any(axis=0) & ~(failed & (best_case == FAIL)).any(axis=0))


def _worst_case(answers: Counts) -> Counts:
    """PASS if every check still passes with the missing simulations at their worst, else UNDECIDED."""
    return np.where(((answers == UNDECIDED) | (answers == FAIL)).any(axis=0), UNDECIDED, PASS)


def _enough_measured(shares: Floats | float) -> Counts:
    return np.where(np.asarray(shares) < MIN_MEASURED, UNDECIDED, PASS)


def _lost_whole(side: Tally) -> Flags:
    """Whether each task has several trials, all of which were lost."""
    return np.asarray((side.trials > 1) & (side.measured == 0))


def ranks(
    policy: Policy, compared: Comparisons, question: Question, asks: Mapping[str, Flags] | None = None
) -> Counts:
    """`Decision.rank` of each of many comparisons: 0 discard, 1 inconclusive, 2 promote.

    For a guard, 2 means that no harm was detected. `asks` is required if simulations were lost: by kind,
    whether a task may name such actions, shape (R, N).
    """
    answers = policy.answers(compared, question)
    old, new = compared.baseline, compared.candidate
    lost = (old.missing > 0).any(axis=1) | (new.missing > 0).any(axis=1)
    withheld, further = np.zeros_like(lost), []
    if lost.any():
        assert asks is not None, "lost simulations can only be filled in if their tasks' actions are known"
        best, worst = (
            policy.answers(compared.filled(asks, in_favour=in_favour), replace(question, filled=True))
            for in_favour in (True, False)
        )
        withheld = lost & _discard_withheld(answers, best)
        shares = [mean_of(side.measured.sum(axis=1), side.trials.sum(axis=1)) for side in (old, new)]
        lost_whole = (_lost_whole(old) | _lost_whole(new)).any(axis=1)
        further = [
            np.where(lost, _worst_case(worst), PASS),
            np.where(lost, _enough_measured(np.nan_to_num(np.minimum(*shares))), PASS),
            np.where(lost_whole, UNDECIDED, PASS),
        ]
    if question.guard and question.goal is not Goal.NO_REGRESSION:
        further.append(np.where(policy.detects(compared, question, DETECTED), PASS, UNDECIDED))
    found = _ranks(np.vstack([answers, *further]), withheld)
    return np.where(compared.both.any(axis=1), found, Decision.INCONCLUSIVE.rank)


# One comparison, with its figures.


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
        policy: The policy that judges the comparison.
        goal: The goal of the candidate. `no-regression` claims nothing, so its evidence is never labelled
            clean.
        label: The label of the evidence.
        suite, split: The names of what was compared, for the record.
        guard: Whether the split is a guard, which can block or discard but never promotes. If no harm is
            detected, the decision is None. A guard blocks if any check has p ≤ α. Except under goal
            `no-regression`, it also blocks if it could not have detected a drop of 20 points of the mean
            reward.
        partial: The reason if the split was not run whole. The verdict is then inconclusive, whatever the
            figures.
        expected: The number of tasks that should have been compared. Below 90 % of them, nothing is promoted.
        look: The test number of the candidate's clean claim on this split; None if there is no such claim.
        analysis: The number of the analysis within that test; None gives it the test's whole level.
        abandoned: The number of draws that could have been judged instead but were not. For a claim with a
            test number, `analysis` counts them already. Abandoned draws lower the level of the claim, never
            the level of harm.
        lost: Tasks with a simulation that is lost repeatedly, with the side. Such a loss may depend on the
            agent's behaviour, so nothing is promoted.
        stage_alpha: Level of this stage, if there are several stages with growing numbers of trials.
        schedule: Trials of all these stages.

    Returns:
        Discard on any failed check; else promote, unless a check is undecided. A promotion must also hold
        with every missing simulation filled in at its worst, and needs 90 % measured on both sides. A discard
        must also hold with every missing simulation filled in at its best; otherwise it is inconclusive.
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
    decision: Decision | None = Decision.INCONCLUSIVE
    blind = guard and goal is not Goal.NO_REGRESSION and not partial and not pairs.identical
    blind = blind and not policy.detects(pairs.compared, question, DETECTED)[0]
    if not pairs.both.any():
        reason = reason or "no task was measured on both sides"
    elif not partial:
        results += [*_coverage(pairs, expected), *_missing_data(pairs, policy, question, results)]
        results += _lost_again(pairs, lost)
        decision = _decision(results, blind=blind)
    answer, drop = None, None
    if guard or goal is Goal.NO_REGRESSION:
        drop = judged.sensitivity.drop if judged.sensitivity else None
    if guard and not partial:
        assert decision is not None
        answer = _GUARD_ANSWERS[decision]
        reason = reason or _guard_reason(answer, results, judged, len(pairs.names) if blind else None)
        decision = None if answer is GuardAnswer.NO_HARM_DETECTED else decision
    elif goal is Goal.NO_REGRESSION and decision is Decision.PROMOTE:
        reason = f"no regression detected; {_could_have_detected(judged)}"
    if goal is Goal.NO_REGRESSION and label is Label.CLEAN:
        label = Label.DEVELOPMENT
    if kept_lost := [check.detail for check in results if check.id == LOST_AGAIN]:
        reason = "; ".join(filter(None, (reason, f"lost in every attempt: simulations of {kept_lost[0]}")))
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
        left_out=left_out_lines(pairs.left_out),
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


def worst(decisions: Iterable[Decision | None]) -> Decision | None:
    """The worst decision over several splits or suites; None if there is no decision."""
    known = [decision for decision in decisions if decision is not None]
    return min(known, key=lambda decision: decision.rank, default=None)


def unmeasured(verdict: Verdict) -> bool:
    """Whether too little was measured for a promotion, whatever the other checks show."""
    too_few = (
        check.id in (_COMPARED, _MEASURED) and check.status is CheckStatus.UNDECIDED
        for check in verdict.checks
    )
    return verdict.candidate.reward is None or any(too_few)


def _answers(results: Iterable[CheckResult], ids: Iterable[str] | None = None) -> Counts:
    """The answers of all checks of one comparison, or of the checks `ids`, shape (checks, 1)."""
    answers = {result.id: STATUSES.index(result.status) for result in results}
    column = [answers.get(name, NOT_APPLICABLE) for name in (answers if ids is None else ids)]
    return np.array(column, dtype=np.int64)[:, None]


def _decision(results: Sequence[CheckResult], *, blind: bool) -> Decision:
    """The decision on one comparison. `blind` marks a guard that could not have detected `DETECTED`."""
    withheld = any(result.id == _BEST_CASE and result.status is CheckStatus.UNDECIDED for result in results)
    answers = np.vstack([_answers(results), [[UNDECIDED if blind else PASS]]])
    return list(Decision)[int(_ranks(answers, np.array([withheld]))[0])]


def _result(name: str, answer: int, detail: str) -> CheckResult:
    return CheckResult(id=name, status=STATUSES[answer], detail=detail)


def _share_result(name: str, measured: float, detail: str) -> CheckResult:
    status = STATUSES[int(_enough_measured(measured))]
    return CheckResult(id=name, status=status, estimate=measured, threshold=MIN_MEASURED, detail=detail)


def _coverage(pairs: Pairs, expected: int | None) -> list[CheckResult]:
    """The check that withholds a promotion if too many tasks were left out; absent if no task was."""
    tasks = len(pairs.names)
    if not expected or tasks >= expected:
        return []
    return [_share_result(_COMPARED, tasks / expected, f"{tasks} of {expected} tasks")]


def _missing_data(
    pairs: Pairs, policy: Policy, question: Question, judged: Sequence[CheckResult]
) -> list[CheckResult]:
    """The checks of missing data, which can withhold a promotion or a discard; none if nothing is missing."""
    totals = [(int(side.measured.sum()), int(side.trials.sum())) for side in pairs.sides]
    shares = [measured / trials if trials else 0.0 for measured, trials in totals]
    lost_fresh = (
        pairs.fresh is not None
        and pairs.fresh_worst is not None
        and not np.array_equal(pairs.fresh, pairs.fresh_worst, equal_nan=True)
    )
    results, least = [], min(shares)
    if least == 1.0 and not lost_fresh:
        return []
    if least < 1.0:
        results.append(_share_result(_MEASURED, least, f"{shares[0]:.1%} and {shares[1]:.1%} of runs"))

    def bound(in_favour: bool) -> tuple[CheckResult, ...]:
        return policy.judge(pairs.filled(in_favour=in_favour), replace(question, filled=True)).results

    if failed := [result.id for result in judged if result.status is CheckStatus.FAIL]:
        best = bound(in_favour=True)
        withheld = _discard_withheld(_answers(judged, failed), _answers(best, failed))[0]
        still = [each.id for each in best if each.status is CheckStatus.FAIL and each.id in failed]
        detail = f"would not fail: {', '.join(failed)}" if withheld else f"still fails: {', '.join(still)}"
        results.append(_result(_BEST_CASE, UNDECIDED if withheld else PASS, detail))
    worst = bound(in_favour=False)
    lost = [each.id for each in worst if each.status in (CheckStatus.FAIL, CheckStatus.UNDECIDED)]
    detail = f"would not pass: {', '.join(lost)}" if lost else "every check still passes"
    results.append(_result(_WORST_CASE, int(_worst_case(_answers(worst))[0]), detail))
    return results


def _lost_again(pairs: Pairs, lost: Mapping[str, str]) -> list[CheckResult]:
    """The check that withholds a promotion if simulations of a task are lost repeatedly; otherwise absent."""
    found = {name: side for name, side in lost.items() if name in pairs.names}
    for side, name in zip(pairs.sides, ("baseline", "candidate"), strict=True):
        for task in pairs.named(_lost_whole(side)):
            found.setdefault(task, name)
    detail = ", ".join(f"{task} ({side})" for task, side in found.items())
    return [_result(LOST_AGAIN, UNDECIDED, detail)] if found else []


# Guards.

_GUARD_ANSWERS = {
    Decision.DISCARD: GuardAnswer.HARM_SHOWN,
    Decision.INCONCLUSIVE: GuardAnswer.HARM_SUSPECTED,
    Decision.PROMOTE: GuardAnswer.NO_HARM_DETECTED,
}


def _guard_reason(
    answer: GuardAnswer, results: Sequence[CheckResult], judged: Judgement, too_few: int | None
) -> str:
    """The reason of a guard's answer. `too_few` is the number of tasks if they cannot detect `DETECTED`."""
    if answer is GuardAnswer.NO_HARM_DETECTED:
        return f"{answer.value}; {_could_have_detected(judged)}"
    if answer is GuardAnswer.HARM_SHOWN:
        reasons = [check.id for check in results if check.status is CheckStatus.FAIL]
        return f"{answer.value}: {', '.join(reasons)}"
    open_ = [
        check.id if check.p is None else f"{check.id} (p = {check.p:.4f})"
        for check in results
        if check.status is CheckStatus.UNDECIDED
    ]
    few = "" if too_few is None else _too_few(judged, too_few)
    reason = "; ".join(filter(None, (", ".join(open_), few)))
    return f"{answer.value}: {reason}" if reason else answer.value


def _too_few(judged: Judgement, tasks: int) -> str:
    known = judged.sensitivity
    assert known is not None, "a policy that states no uncertainty detects every drop"
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


# Figures of the sides.


def _figures(pairs: Pairs, index: int, judged: Judgement) -> SideFigures:
    """One side's figures, each over the tasks with the figure on both sides, so sides can be subtracted."""
    side = pairs.sides[index]
    means: dict[str, float | None] = {}
    for name in (REWARD, PASS_RATE, *KINDS):
        # The pass rate counts tasks, by the majority of their trials, rather than trials.
        old, new = (each.majority if name == PASS_RATE else each.figure(name) for each in pairs.sides)
        known = ~np.isnan(old) & ~np.isnan(new)
        means[name] = float((old, new)[index][known].mean()) if known.any() else None
    return SideFigures(
        **means,
        max_steps=int(side.max_steps.sum()),
        measured=int(side.measured.sum()),
        missing=int(side.missing.sum()),
        pass_hat={} if judged.alpha is None else _pass_hat(side, pairs.both, judged.alpha),
    )


def _pass_hat(side: Tally, tasks: Flags, alpha: float) -> dict[int, Interval]:
    """pass^k over some tasks, by k, with its interval; each bound is one-sided at alpha."""
    found = {}
    for k, chances in side.pass_hat(tasks).items():
        at = bounds(chances[None, :], alpha, minimum=0.0, maximum=1.0)
        found[k] = Interval(estimate=float(at.estimate[0]), low=float(at.low[0]), high=float(at.high[0]))
    return found
