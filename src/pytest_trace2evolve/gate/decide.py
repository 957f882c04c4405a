"""Decides a single comparison with all its figures, or many comparisons at once, by the same rule."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_trace2evolve.gate.alpha_spending import Stage, alpha_share, unnumbered_claim_share
from pytest_trace2evolve.gate.columns import ACTION_METRICS, Counts, Flags, Floats
from pytest_trace2evolve.gate.intervals import GUARDED_DROP, mean_bounds
from pytest_trace2evolve.gate.pairs import Comparisons, Pairs, left_out_lines
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
from pytest_trace2evolve.gate.tallies import MIN_MEASURED, PASS_RATE, REGRESSIONS, REWARD, Tally, mean_of
from pytest_trace2evolve.gate.usage import usage_ratios
from pytest_trace2evolve.records.verdict import (
    CheckResult,
    CheckStatus,
    Decision,
    Estimand,
    Goal,
    GuardAnswer,
    Interval,
    Label,
    SideFigures,
    Verdict,
)

if TYPE_CHECKING:
    from pytest_trace2evolve.gate.claims import AlphaSpending

LOST_AGAIN = "lost_again"
"""Id of the check for tasks whose simulations are lost repeatedly."""

ALL_AGENT_ERRORS = "all_agent_errors"
"""Id of the check for a candidate whose simulations all ended in an agent error."""

_COMPARED, _MEASURED, _BEST_CASE, _WORST_CASE = "compared", "measured", "best_case", "worst_case"
_BASELINE_RERUN = "baseline_rerun"


# The rule, on arrays of status codes of shape (checks, R).


def _combine_codes(codes: Counts, is_withheld: Flags) -> Counts:
    """`Decision.rank` of each comparison: discard on a failed check, else promote if none is undecided.

    `is_withheld` is whether the discard of each comparison is withheld, see `_is_discard_withheld`.
    """
    is_undecided = (codes == UNDECIDED).any(axis=0) | is_withheld
    ranks = np.where(is_undecided, Decision.INCONCLUSIVE.rank, Decision.PROMOTE.rank)
    return np.where((codes == FAIL).any(axis=0) & ~is_withheld, Decision.DISCARD.rank, ranks)


def _is_discard_withheld(codes: Counts, best_codes: Counts) -> Flags:
    """Whether checks failed, but none of them fails if the missing simulations have their best values."""
    has_failed = codes == FAIL
    return np.asarray(has_failed.any(axis=0) & ~(has_failed & (best_codes == FAIL)).any(axis=0))


def _worst_case_code(codes: Counts) -> Counts:
    """PASS if every check still passes if the missing simulations have their worst values, else UNDECIDED."""
    return np.where(((codes == UNDECIDED) | (codes == FAIL)).any(axis=0), UNDECIDED, PASS)


def _measured_share_code(shares: Floats | float) -> Counts:
    return np.where(np.asarray(shares) < MIN_MEASURED, UNDECIDED, PASS)


def _has_lost_all_trials(side: Tally) -> Flags:
    """Whether each task has several trials, all of which were lost."""
    return np.asarray((side.trials > 1) & (side.measured == 0))


def _has_only_agent_errors(side: Tally) -> Flags:
    """Whether all measured simulations ended in an agent error, and at least one was measured."""
    measured = side.measured.sum(axis=-1)
    return np.asarray((measured > 0) & (side.agent_errors.sum(axis=-1) == measured))


def decision_ranks(
    policy: Policy,
    comparisons: Comparisons,
    question: Question,
) -> Counts:
    """`Decision.rank` of each of many comparisons: 0 discard, 1 inconclusive, 2 promote.

    For a guard, 2 means that no harm was detected.
    """
    codes = policy.status_codes(comparisons, question)
    old, new = comparisons.baseline, comparisons.candidate
    has_losses = (old.missing_counts > 0).any(axis=1) | (new.missing_counts > 0).any(axis=1)
    is_withheld, further_codes = np.zeros_like(has_losses), []
    if has_losses.any():
        best_codes, worst_codes = (
            policy.status_codes(
                comparisons.fill_missing(is_favourable=is_favourable),
                replace(question, is_filled=True),
            )
            for is_favourable in (True, False)
        )
        is_withheld = has_losses & _is_discard_withheld(codes, best_codes)
        shares = [mean_of(side.measured.sum(axis=1), side.trials.sum(axis=1)) for side in (old, new)]
        has_lost_all_trials = (_has_lost_all_trials(old) | _has_lost_all_trials(new)).any(axis=1)
        further_codes = [
            np.where(has_losses, _worst_case_code(worst_codes), PASS),
            np.where(has_losses, _measured_share_code(np.nan_to_num(np.minimum(*shares))), PASS),
            np.where(has_lost_all_trials, UNDECIDED, PASS),
        ]
    if (has_only_errors := _has_only_agent_errors(new)).any():
        further_codes.append(np.where(has_only_errors, UNDECIDED, PASS))
    if question.is_guard and question.goal is not Goal.NO_REGRESSION:
        further_codes.append(np.where(policy.rules_out(comparisons, question, GUARDED_DROP), PASS, UNDECIDED))
    ranks = _combine_codes(np.vstack([codes, *further_codes]), is_withheld)
    return np.where(comparisons.measured_on_both.any(axis=1), ranks, Decision.INCONCLUSIVE.rank)


# One comparison, with its figures.


@dataclass(frozen=True)
class GateInput:
    """What the gate decides by: one split, or two whole sets of evidence.

    Attributes:
        pairs: Both sides, paired by task.
        policy: The policy that judges the comparison.
        goal: The goal of the candidate.
        label: The label of the evidence; goal `no-regression` claims nothing, so it is never labelled clean.
        suite, split: The names of the compared suite and split, which the verdict records.
        is_guard: Whether the split is a guard, which can block or discard but never promotes. If no harm is
            detected, the decision is None. A guard blocks if any check has p ≤ α. Except under goal
            `no-regression`, it also blocks if it could not have detected a drop of 20 points of the mean
            reward, and its own one-sided bound does not exclude such a drop.
        partial_reason: Why the split was not run whole, so that the verdict is inconclusive; else empty.
        expected_tasks: The tasks that should have been compared. Below 90 % of them, nothing is promoted.
        spending: The numbers of the candidate's claim on this split; None if there is no claim. Abandoned
            draws lower the level of the claim, never the level of harm; `analysis` counts them already.
        stage: The stage, if there are several with growing numbers of trials.
        lost_tasks: The side of each task that loses a simulation repeatedly; nothing is promoted with any.
        bounded_pairs: `pairs` with suspicious second tosses marked as lost; None without any.
            A promotion must also hold with these at their worst.
        contradiction: How fresh trials of the baseline contradict its recorded trials; empty if they do not.
    """

    pairs: Pairs
    policy: Policy
    goal: Goal
    label: Label
    suite: str | None = None
    split: str | None = None
    is_guard: bool = False
    partial_reason: str = ""
    expected_tasks: int | None = None
    spending: "AlphaSpending | None" = None
    stage: Stage | None = None
    lost_tasks: Mapping[str, str] = field(default_factory=dict)
    bounded_pairs: Pairs | None = None
    contradiction: str = ""


def _question(given: GateInput) -> Question:
    """Return the question to the policy, with the shares of its level for this analysis and the next."""
    spending, stage = given.spending, given.stage
    abandoned = len(spending.abandoned_draws) if spending else 0
    share = next_share = 1.0 if given.goal is Goal.NO_REGRESSION else unnumbered_claim_share(abandoned)
    if spending is not None and spending.number is not None:
        share = alpha_share(spending.number, spending.analysis)
        next_share = alpha_share(spending.number, (spending.analysis or 0) + 1)
    stage_levels = (stage.alpha, stage.schedule) if stage else ()
    return Question(given.goal, given.is_guard, share, next_share, *stage_levels)


def decide(given: GateInput) -> Verdict:
    """Discard on any failed check, and otherwise promote unless a check is undecided.

    A candidate whose simulations all ended in an agent error is not promoted. A promotion must also hold with
    every missing simulation filled in at its worst, and needs 90 % of the simulations measured on both sides.
    A discard must also hold with every missing simulation filled in at its best.
    """
    pairs, policy, goal, label = given.pairs, given.policy, given.goal, given.label
    if policy.estimand is None:  # a policy on point estimates counts tasks by all of their trials
        pairs = replace(pairs, comparisons=replace(pairs.comparisons, first_trials=None))
    is_guard, partial_reason, spending = given.is_guard, given.partial_reason, given.spending
    question = _question(given)
    judgement = policy.judge(pairs, question)
    results, reason = list(judgement.results), partial_reason
    decision: Decision | None = Decision.INCONCLUSIVE
    is_blind = is_guard and goal is not Goal.NO_REGRESSION and not partial_reason and not pairs.is_identical
    is_blind = is_blind and not policy.rules_out(pairs.comparisons, question, GUARDED_DROP)[0]
    if not pairs.measured_on_both.any():
        reason = reason or "no task was measured on both sides"
    elif not partial_reason:
        results += [
            *_coverage_checks(pairs, given.expected_tasks),
            *_missing_data_checks(pairs, given.bounded_pairs or pairs, policy, question, results),
        ]
        results += _repeated_loss_checks(pairs, given.lost_tasks)
        if given.contradiction:
            results.append(_check_result(_BASELINE_RERUN, UNDECIDED, given.contradiction))
        results += _agent_error_checks(pairs)
        decision = _decision(results, is_blind=is_blind)
    guard_answer, detectable_drop = None, None
    if is_guard or goal is Goal.NO_REGRESSION:
        detectable_drop = judgement.sensitivity.drop if judgement.sensitivity else None
    if is_guard and not partial_reason:
        assert decision is not None
        guard_answer = _GUARD_ANSWERS[decision]
        reason = reason or _guard_reason(
            guard_answer, results, judgement, len(pairs.names) if is_blind else None
        )
        decision = None if guard_answer is GuardAnswer.NO_HARM_DETECTED else decision
    elif goal is Goal.NO_REGRESSION and decision is Decision.PROMOTE:
        reason = f"no regression detected; {_detectable_drop_text(judgement)}"
    if goal is Goal.NO_REGRESSION and label is Label.CLEAN:
        label = Label.DEVELOPMENT
    if lost_details := [check.detail for check in results if check.id == LOST_AGAIN]:
        reason = "; ".join(filter(None, (reason, f"lost in every attempt: simulations of {lost_details[0]}")))
    return Verdict(
        decision=decision,
        policy=policy.name,
        goal=question.checked_goal,
        label=label,
        suite=given.suite,
        split=given.split,
        reason=reason,
        checks=tuple(results),
        fixed=tuple(pairs.fixed_tasks()),
        broken=tuple(pairs.broken_tasks()),
        regressions=judgement.regressions,
        suspected=judgement.suspected,
        tasks=len(pairs.names),
        left_out=left_out_lines(pairs.left_out),
        partial=bool(partial_reason),
        identical=pairs.is_identical,
        alpha=judgement.alpha,
        look=spending and spending.number,
        analysis=spending and spending.analysis,
        settling=judgement.needed_evidence
        if decision is Decision.INCONCLUSIVE and not partial_reason
        else (),
        guard=guard_answer,
        estimand=policy.estimand,
        unjudged=pairs.unjudged,
        detectable=detectable_drop,
        baseline=_side_figures(pairs, 0, judgement),
        candidate=_side_figures(pairs, 1, judgement),
        usage=usage_ratios(
            pairs, judgement.alpha or policy.alpha, has_fixed_tasks=policy.estimand is Estimand.SUITE
        ),
    )


def worst_decision(decisions: Iterable[Decision | None]) -> Decision | None:
    """The worst decision over several splits or suites; None if there is no decision."""
    known_decisions = [decision for decision in decisions if decision is not None]
    return min(known_decisions, key=lambda decision: decision.rank, default=None)


def has_too_few_measured(verdict: Verdict) -> bool:
    """Whether too little was measured for a promotion, regardless of the other checks."""
    undecided_ids = {check.id for check in verdict.checks if check.status is CheckStatus.UNDECIDED}
    return verdict.candidate.reward is None or not undecided_ids.isdisjoint((_COMPARED, _MEASURED))


def awaits_simulations(verdict: Verdict) -> bool:
    """Whether simulations or a valid baseline are missing, so that a run with them may decide otherwise."""
    bounds = (check for check in verdict.checks if check.id in (_BEST_CASE, _WORST_CASE, _BASELINE_RERUN))
    return (
        has_too_few_measured(verdict)
        or verdict.candidate.missing > 0
        or any(check.status is CheckStatus.UNDECIDED for check in bounds)
    )


def _codes_of(results: Iterable[CheckResult], ids: Iterable[str] | None = None) -> Counts:
    """The status codes of all checks of one comparison, or of the checks `ids`, shape (checks, 1)."""
    codes_by_id = {result.id: STATUSES.index(result.status) for result in results}
    codes = [codes_by_id.get(name, NOT_APPLICABLE) for name in (codes_by_id if ids is None else ids)]
    return np.array(codes, dtype=np.int64)[:, None]


def _decision(results: Sequence[CheckResult], *, is_blind: bool) -> Decision:
    """The decision on one comparison.

    `is_blind` marks a guard that cannot rule out `GUARDED_DROP`.
    """
    is_withheld = any(
        result.id == _BEST_CASE and result.status is CheckStatus.UNDECIDED for result in results
    )
    codes = np.vstack([_codes_of(results), [[UNDECIDED if is_blind else PASS]]])
    return list(Decision)[int(_combine_codes(codes, np.array([is_withheld]))[0])]


def _check_result(name: str, code: int, detail: str) -> CheckResult:
    return CheckResult(id=name, status=STATUSES[code], detail=detail)


def _share_result(name: str, measured_share: float, detail: str) -> CheckResult:
    status = STATUSES[int(_measured_share_code(measured_share))]
    return CheckResult(id=name, status=status, estimate=measured_share, threshold=MIN_MEASURED, detail=detail)


def _coverage_checks(pairs: Pairs, expected_tasks: int | None) -> list[CheckResult]:
    """The check that withholds a promotion if too many tasks were left out; absent if no task was."""
    tasks = len(pairs.names)
    if not expected_tasks or tasks >= expected_tasks:
        return []
    return [_share_result(_COMPARED, tasks / expected_tasks, f"{tasks} of {expected_tasks} tasks")]


def _missing_data_checks(
    pairs: Pairs,
    bounded_pairs: Pairs,
    policy: Policy,
    question: Question,
    results_so_far: Sequence[CheckResult],
) -> list[CheckResult]:
    """The checks of missing data, which can withhold a promotion or a discard; none if nothing is missing."""
    totals = [(int(side.measured.sum()), int(side.trials.sum())) for side in pairs.sides]
    shares = [measured / trials if trials else 0.0 for measured, trials in totals]
    p, worst_p = pairs.comparisons.fresh_p, pairs.comparisons.fresh_worst_p
    has_lost_fresh_trials = (
        p is not None and worst_p is not None and not np.array_equal(p, worst_p, equal_nan=True)
    )
    results, min_share = [], min(shares)
    bounded_count = sum(
        int(side.measured.sum() - bounded.measured.sum())
        for side, bounded in zip(pairs.sides, bounded_pairs.sides, strict=True)
    )
    if min_share == 1.0 and not has_lost_fresh_trials and not bounded_count:
        return []
    if min_share < 1.0:
        results.append(_share_result(_MEASURED, min_share, f"{shares[0]:.1%} and {shares[1]:.1%} of runs"))

    def judge_filled(sides: Pairs, is_favourable: bool) -> tuple[CheckResult, ...]:
        return policy.judge(
            sides.fill_missing(is_favourable=is_favourable), replace(question, is_filled=True)
        ).results

    if failed_ids := [result.id for result in results_so_far if result.status is CheckStatus.FAIL]:
        best_results = judge_filled(pairs, is_favourable=True)
        is_withheld = _is_discard_withheld(
            _codes_of(results_so_far, failed_ids), _codes_of(best_results, failed_ids)
        )[0]
        still_failing = [
            result.id
            for result in best_results
            if result.status is CheckStatus.FAIL and result.id in failed_ids
        ]
        detail = f"still fails: {', '.join(still_failing)}"
        detail = f"would not fail: {', '.join(failed_ids)}" if is_withheld else detail
        results.append(_check_result(_BEST_CASE, UNDECIDED if is_withheld else PASS, detail))
    worst_results = judge_filled(bounded_pairs, is_favourable=False)
    undetermined_ids = [
        result.id for result in worst_results if result.status in (CheckStatus.FAIL, CheckStatus.UNDECIDED)
    ]
    detail = (
        f"would not pass: {', '.join(undetermined_ids)}" if undetermined_ids else "every check still passes"
    )
    if bounded_count:
        detail += f"; {bounded_count} measured only after they had been lost count at their worst"
    results.append(_check_result(_WORST_CASE, int(_worst_case_code(_codes_of(worst_results))[0]), detail))
    return results


def _repeated_loss_checks(pairs: Pairs, lost_tasks: Mapping[str, str]) -> list[CheckResult]:
    """The check that withholds a promotion if simulations of a task are lost repeatedly; otherwise absent."""
    side_of_task = {name: side for name, side in lost_tasks.items() if name in pairs.names}
    for side, name in zip(pairs.sides, ("baseline", "candidate"), strict=True):
        for task in pairs.select_names(_has_lost_all_trials(side)):
            side_of_task.setdefault(task, name)
    detail = ", ".join(f"{task} ({side})" for task, side in side_of_task.items())
    return [_check_result(LOST_AGAIN, UNDECIDED, detail)] if side_of_task else []


def _agent_error_checks(pairs: Pairs) -> list[CheckResult]:
    """The check that withholds a promotion from an agent that fails by an error in every simulation."""
    candidate = pairs.sides[1]
    if not _has_only_agent_errors(candidate):
        return []
    errors = int(candidate.agent_errors.sum())
    detail = f"all {errors} simulations of the candidate ended in agent_error"
    return [_check_result(ALL_AGENT_ERRORS, UNDECIDED, detail)]


# Guards.

_GUARD_ANSWERS = {
    Decision.DISCARD: GuardAnswer.HARM_SHOWN,
    Decision.INCONCLUSIVE: GuardAnswer.HARM_SUSPECTED,
    Decision.PROMOTE: GuardAnswer.NO_HARM_DETECTED,
}


def _guard_reason(
    answer: GuardAnswer, results: Sequence[CheckResult], judgement: Judgement, blind_tasks: int | None
) -> str:
    """The reason of a guard's answer.

    `blind_tasks` is the number of tasks if they cannot rule out `GUARDED_DROP`; otherwise None.
    """
    if answer is GuardAnswer.NO_HARM_DETECTED:
        return f"{answer.value}; {_excluded_drop_text(judgement)}"
    if answer is GuardAnswer.HARM_SHOWN:
        reasons = [check.id for check in results if check.status is CheckStatus.FAIL]
        return f"{answer.value}: {', '.join(reasons)}"
    undecided_checks = [
        (check.detail if check.id == _BASELINE_RERUN else check.id)
        if check.p is None
        else f"{check.id} ({check.detail if check.id == REGRESSIONS else f'p = {check.p:.4f}'})"
        for check in results
        if check.status is CheckStatus.UNDECIDED
    ]
    too_few_reason = "" if blind_tasks is None else _too_few_tasks_reason(judgement, blind_tasks)
    reason = "; ".join(filter(None, (", ".join(undecided_checks), too_few_reason)))
    return f"{answer.value}: {reason}" if reason else answer.value


def _too_few_tasks_reason(judgement: Judgement, tasks: int) -> str:
    sensitivity = judgement.sensitivity
    assert sensitivity is not None, "a policy that states no uncertainty detects every drop"
    smallest_text = "none" if sensitivity.drop is None else f"{_format_points(sensitivity.drop)} or more"
    sufficient_text = (
        f"; about {sensitivity.tasks} tasks would detect it" if sensitivity.tasks is not None else ""
    )
    count_text = f"{tasks} task{'' if tasks == 1 else 's'}"
    drop_text = f"{100 * GUARDED_DROP:.0f} points"
    return f"{count_text} cannot detect a drop of {drop_text} (detectable: {smallest_text}){sufficient_text}"


def _excluded_drop_text(judgement: Judgement) -> str:
    sensitivity = judgement.sensitivity
    if (
        sensitivity is None
        or (sensitivity.drop or 1.0) <= GUARDED_DROP
        or not sensitivity.low > -GUARDED_DROP
    ):
        return _detectable_drop_text(judgement)
    return f"a drop of more than {_format_points(max(-sensitivity.low, 0.0))} is excluded"


def _detectable_drop_text(judgement: Judgement) -> str:
    sensitivity = judgement.sensitivity
    if sensitivity is None:
        return "the policy compares point estimates and states no detectable change"
    if sensitivity.drop is None:
        return "no drop of the mean reward could have been detected"
    return f"a drop of {_format_points(sensitivity.drop)} would have been"


def _format_points(drop: float) -> str:
    """A drop of the mean reward in points, rounded up."""
    return f"{math.ceil(100 * drop - 1e-6)} points"


# Figures of the sides.


def _side_figures(pairs: Pairs, index: int, judgement: Judgement) -> SideFigures:
    """One side's figures, each over the tasks with the figure on both sides, so sides can be subtracted."""
    side = pairs.sides[index]
    means: dict[str, float | None] = {}
    for name in (REWARD, PASS_RATE, *ACTION_METRICS):
        # The pass rate counts tasks, by the majority of equal numbers of trials, rather than trials.
        if name == PASS_RATE:
            old, new = (counted.pass_indicator[0] for counted in pairs.comparisons.counted_sides)
        else:
            old, new = (each.figure(name) for each in pairs.sides)
        is_known = ~np.isnan(old) & ~np.isnan(new)
        means[name] = float((old, new)[index][is_known].mean()) if is_known.any() else None
    return SideFigures(
        **means,
        max_steps=int(side.max_steps.sum()),
        measured=int(side.measured.sum()),
        missing=int(side.missing_counts.sum()),
        pass_hat={}
        if judgement.alpha is None
        else _pass_hat_intervals(side, pairs.measured_on_both, judgement.alpha),
    )


def _pass_hat_intervals(side: Tally, tasks: Flags, alpha: float) -> dict[int, Interval]:
    """pass^k over the selected tasks with its interval, by k; each bound is one-sided at alpha."""
    intervals = {}
    for k, chances in side.pass_hat(tasks).items():
        bounds = mean_bounds(chances[None, :], alpha, minimum=0.0, maximum=1.0)
        estimate, low, high = (float(array[0]) for array in (bounds.estimate, bounds.low, bounds.high))
        intervals[k] = Interval(estimate=estimate, low=low, high=high)
    return intervals
