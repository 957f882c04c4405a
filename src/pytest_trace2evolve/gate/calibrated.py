"""The policy `calibrated`: it tests the claim, watches other metrics for harm, and bounds its error rate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pytest_trace2evolve.gate.alpha_spending import stage_alpha
from pytest_trace2evolve.gate.checks import (
    Finding,
    Outcome,
    Rules,
    adjusted_task_p,
    compute_findings,
    evaluate,
)
from pytest_trace2evolve.gate.columns import (
    ACTION_METRICS,
    AGENT_ERRORS,
    APPLIES_PREFIX,
    CHECK_PREFIX,
    INVARIANT_METRICS,
    INVARIANTS,
    Counts,
    Flags,
    Floats,
)
from pytest_trace2evolve.gate.intervals import (
    Sensitivity,
    detectable_change,
    detectable_task_share,
    detects,
    drop_sensitivity,
    estimate_needed_evidence,
    spread_of,
)
from pytest_trace2evolve.gate.pairs import Comparisons, Pairs, format_means
from pytest_trace2evolve.gate.protocols import (
    FAIL,
    NOT_APPLICABLE,
    PASS,
    STATUSES,
    UNDECIDED,
    Check,
    Judgement,
    Policy,
    Question,
    run_check,
)
from pytest_trace2evolve.gate.tallies import MAX_STEPS, MIN_MEASURED, REGRESSIONS, REWARD, Tally
from pytest_trace2evolve.gate.usage import increase_result
from pytest_trace2evolve.records.verdict import (
    SHARE_UNIT,
    CheckResult,
    CheckStatus,
    Estimand,
    Goal,
    NeededEvidence,
)

REWARD_DROP = "reward_drop"
"""Id of the check for a drop of the reward, used for guards and under goal `no-regression`."""

REWARD_DROP_LEVEL_SHARE = 0.7
"""The level for a drop of the reward under goal `no-regression`, as a share of alpha. The other checks can
discard too. At the whole alpha, 6 % of the comparisons of equal agents would be discarded at 114 tasks."""

RECORDED_DROP_LEVEL_SHARE = 0.9
"""The same share on exactly these tasks (estimand `suite`) if no broken task could be confirmed. The other
checks then discard 1 to 2 % of the comparisons of equal agents, about half as many as with fresh trials."""


@dataclass(frozen=True)
class Calibrated(Policy):
    """The default policy, with the settings that a project can change.

    Attributes:
        name: The policy's name.
        alpha: Level of the claim, and the bound on the chance of discarding a candidate that is no worse.
        margins: By metric, the loss within which the metric passes as not worse. The reward always has a
            margin.
        weights: By metric, its level as a share of alpha; 0 leaves the metric out.
        blocks_on_suspected: Whether suspected tasks withhold a promotion.
        has_fixed_tasks: Whether the verdict is about exactly these tasks (estimand `suite`), and not about
            the population from which they were drawn. None leaves it to the suite (`for_suite`).
        futility: The predictive power of all trials below which a run in stages ends early.
        max_fresh_simulations: Maximum number of fresh simulations of a live run, both sides together.
        plugin_checks: Checks of plugins.
        max_increases: The largest ratios of the candidate's cost, tokens, turns or latency to the baseline's.
    """

    name: str = "calibrated"
    alpha: float = 0.05
    margins: Mapping[str, float] = field(default_factory=lambda: {REWARD: 0.10})
    weights: Mapping[str, float] = field(default_factory=dict)
    blocks_on_suspected: bool = False
    has_fixed_tasks: bool | None = None
    futility: float = 0.05
    max_fresh_simulations: int = 640
    plugin_checks: tuple[Check, ...] = ()
    max_increases: Mapping[str, float] = field(default_factory=dict)

    confirms_regressions = True

    def rules(self, question: Question) -> Rules:
        """The rules for one question, at its levels.

        Guards and goal `no-regression` only test for harm. Nothing must be shown, so no margin counts.
        """
        must_improve = question.checked_goal is Goal.IMPROVE
        is_no_regression = question.goal is Goal.NO_REGRESSION and not question.is_guard
        margins = {
            name: margin for name, margin in self.margins.items() if not (must_improve and name == REWARD)
        }
        level = question.stage_alpha or self.alpha
        recorded_share = RECORDED_DROP_LEVEL_SHARE if self.has_fixed_tasks else REWARD_DROP_LEVEL_SHARE
        return Rules(
            must_improve=must_improve,
            margins={} if question.is_guard or is_no_regression else margins,
            weights=self.weights,
            claim_alpha=self._claim_alpha(question),
            harm_alpha=level,
            watch_alpha=0.0 if is_no_regression else self.alpha,
            drop_alpha=REWARD_DROP_LEVEL_SHARE * level if is_no_regression else 0.0,
            recorded_drop_alpha=recorded_share * level if is_no_regression else 0.0,
            is_guard=question.is_guard,
            blocks_on_suspected=self.blocks_on_suspected and not question.is_guard,
            weighs_falls=question.goal is Goal.IMPROVE,
            has_fixed_tasks=bool(self.has_fixed_tasks),
        )

    @property
    def estimand(self) -> Estimand:
        """The tasks that the policy's verdicts are about."""
        return Estimand.SUITE if self.has_fixed_tasks else Estimand.TASKS

    def for_suite(self, estimand: Estimand) -> "Calibrated":
        """Return the policy for a suite with an estimand; unchanged if the policy sets its own estimand."""
        if self.has_fixed_tasks is not None:
            return self
        return replace(self, has_fixed_tasks=estimand is Estimand.SUITE)

    def _claim_alpha(self, question: Question) -> float:
        """The level of the claim.

        With several stages, it is computed from the schedule, because the levels of stages do not scale with
        the share.
        """
        if question.schedule and question.share < 1.0:
            return stage_alpha(self.alpha * question.share, question.schedule)
        return (question.stage_alpha or self.alpha) * question.share

    def judge(self, pairs: Pairs, question: Question) -> Judgement:
        """Evaluate every check."""
        rules, comparisons = self.rules(question), pairs.comparisons
        must_show = not question.is_guard and question.goal is not Goal.NO_REGRESSION
        plugin_results = [
            increase_result(
                pairs,
                metric,
                limit,
                rules.claim_alpha,
                has_fixed_tasks=rules.has_fixed_tasks,
                must_show=must_show,
            )
            for metric, limit in self.max_increases.items()
        ]
        plugin_results += [run_check(check, pairs) for check in self.plugin_checks]
        plugin_p = {result.id: np.array([result.p]) for result in plugin_results if result.p is not None}
        outcome = evaluate(comparisons, rules, plugin_p)
        results = [_check_result(name, pairs, outcome, rules) for name in outcome.findings]
        results += [_plugin_check_result(result, outcome, rules) for result in plugin_results]
        results += ungated_check_results(pairs)
        is_confirmed = _confirmed_tasks(comparisons, outcome, rules)
        is_suspected = comparisons.is_suspected | (adjusted_task_p(comparisons) <= rules.harm_alpha)
        return Judgement(
            results=tuple(results),
            regressions=tuple(pairs.select_names(is_confirmed)),
            suspected=tuple(pairs.select_names(is_suspected[0] & ~is_confirmed)),
            needed_evidence=_needed_reward_evidence(
                results, outcome.findings[REWARD], pairs, rules, question
            ),
            alpha=rules.claim_alpha,
            sensitivity=_reward_sensitivity(comparisons, outcome.findings[REWARD], rules),
        )

    def rules_out(self, comparisons: Comparisons, question: Question, drop: float) -> Flags:
        """Whether each comparison excludes this drop or would have detected it, shape (R,).

        A drop is excluded if it lies below the one-sided bound of the comparison's own change.
        """
        rules = self.rules(question)
        finding = compute_findings(comparisons, rules)[REWARD]
        is_detected = detects(
            drop,
            finding.deviation,
            finding.tasks,
            comparisons.mean_trials,
            rules.drop_level(comparisons),
            has_fixed_tasks=rules.has_fixed_tasks,
        )
        return is_detected | (finding.low > -drop)

    def status_codes(self, comparisons: Comparisons, question: Question) -> Counts:
        """The status code of every check by comparison, shape (checks, R), without checks of plugins."""
        return np.stack(list(evaluate(comparisons, self.rules(question)).status_codes.values()))


CALIBRATED = Calibrated()
"""The default policy."""


# The figures of one comparison.


def _check_id(metric: str, rules: Rules) -> str:
    if metric != REWARD:
        return metric
    if rules.must_improve:
        return "reward_improved"
    return "reward_not_worse" if REWARD in rules.margins else REWARD_DROP


def _to_optional_float(values: Floats) -> float | None:
    return None if np.isnan(values[0]) else float(values[0])


def _check_result(metric: str, pairs: Pairs, outcome: Outcome, rules: Rules) -> CheckResult:
    """The result of a check, with its figures."""
    finding, code, check_id = (
        outcome.findings[metric],
        outcome.status_codes[metric][0],
        _check_id(metric, rules),
    )
    status = STATUSES[code]
    if code == NOT_APPLICABLE:
        tool_type = "" if metric == "action_match" else f"{metric.partition('_')[0]} "
        reason = (
            f"no gold {tool_type}actions checked"
            if metric in ACTION_METRICS
            else "nothing was measured on both sides"
        )
        return CheckResult(id=check_id, status=status, detail=reason)
    is_claim = metric == REWARD and rules.must_improve
    margin = None if is_claim else rules.margins.get(metric)
    detail = _format_detail(metric, pairs, rules, outcome)
    is_own_check = metric in pairs.comparisons.check_ids
    if is_own_check and (result := own_check_without_figures(pairs, metric, code)):
        return result
    if np.isnan(finding.estimate[0]) and not is_own_check:
        detail = f"{detail}; needs two trials of a task on either side"
    # On identical evidence, one of the project's own checks lacks results if it is undecided.
    if pairs.is_identical and code == UNDECIDED and not is_claim and not is_own_check:
        status = CheckStatus.PASS
    level = rules.claim_alpha if is_claim or margin is not None else rules.harm_alpha
    return CheckResult(
        id=check_id,
        status=status,
        estimate=_to_optional_float(finding.estimate),
        low=_to_optional_float(finding.low),
        high=_to_optional_float(finding.high),
        threshold=0.0 if margin is None else -margin,
        p=_to_optional_float(finding.gain_p if is_claim else finding.harm_p),
        detectable=_detectable_change(check_id, finding, pairs.comparisons, level, rules),
        unit=SHARE_UNIT if is_own_check else None,
        detail=f"identical evidence; {detail}" if pairs.is_identical and metric == REWARD else detail,
    )


def _plugin_check_result(result: CheckResult, outcome: Outcome, rules: Rules) -> CheckResult:
    """The result of a plugin's check.

    If the result has a p-value of harm, the policy decides the check at its own levels. Otherwise, the result
    is unchanged.
    """
    if result.p is None or result.status is CheckStatus.NOT_APPLICABLE:
        return result
    if outcome.adjusted_p[result.id][0] <= rules.harm_alpha:
        return result.model_copy(update={"status": CheckStatus.FAIL})
    is_undecided = result.p <= rules.watch_alpha or result.status is CheckStatus.UNDECIDED
    return result.model_copy(update={"status": CheckStatus.UNDECIDED if is_undecided else CheckStatus.PASS})


def _confirmed_tasks(comparisons: Comparisons, outcome: Outcome, rules: Rules) -> Flags:
    """The confirmed tasks of one comparison; none if goal `no-regression` passes them at its own level."""
    is_confirmed = adjusted_task_p(comparisons)[0] <= rules.harm_alpha
    is_passed = rules.drop_alpha > 0 and outcome.status_codes.get(REGRESSIONS, [PASS])[0] != FAIL
    return np.asarray(is_confirmed & (not is_passed))


def _format_detail(metric: str, pairs: Pairs, rules: Rules, outcome: Outcome) -> str:
    comparisons, (old, new) = pairs.comparisons, pairs.sides
    if metric == MAX_STEPS:
        old, new = comparisons.counted_sides
        return f"{int((old.max_steps > 0).sum())} → {int((new.max_steps > 0).sum())} tasks"
    if metric == AGENT_ERRORS:
        return format_agent_errors(pairs)
    if metric == INVARIANTS:
        return _format_breaches(comparisons, outcome.findings[metric])
    if metric in comparisons.check_ids:
        return format_check_counts(pairs, metric)
    if metric == REGRESSIONS:
        detail = f"{int(comparisons.is_broken.sum())} broken, {int(comparisons.is_fixed.sum())} fixed"
        is_confirmed = _confirmed_tasks(comparisons, outcome, rules)
        if confirmed_count := int(is_confirmed.sum()):
            detail += f"; {confirmed_count} confirmed"
            critical = is_confirmed & comparisons.is_critical[0]
            detail += f" (critical: {', '.join(pairs.select_names(critical))})" if critical.any() else ""
        if comparisons.fresh_p is not None:
            detail += f"; {int((~np.isnan(comparisons.fresh_p)).sum())} tried again"
        return detail
    return format_means(old.figure(metric), new.figure(metric))


def format_agent_errors(pairs: Pairs) -> str:
    """The numbers of simulations that ended in an agent error on both sides."""
    counts = [int(side.agent_errors.sum()) for side in pairs.sides]
    return _format_counts(counts, [int(side.measured.sum()) for side in pairs.sides])


def _format_counts(counts: Sequence[int], totals: Sequence[int]) -> str:
    """Format numbers of simulations of both sides, each with its total."""
    if totals[0] == totals[1]:
        return f"{counts[0]} → {counts[1]} of {totals[0]} simulations"
    parts = [f"{count} of {total}" for count, total in zip(counts, totals, strict=True)]
    return f"{' → '.join(parts)} simulations"


def _format_breaches(comparisons: Comparisons, finding: Finding) -> str:
    """Format the numbers of simulations that broke the worst kind of invariant, and any kind."""
    assert finding.worst_kind is not None
    metric = list(INVARIANT_METRICS)[int(finding.worst_kind[0])]
    sides = (comparisons.baseline, comparisons.candidate)
    checked_counts = [int(side.checked[INVARIANTS][comparisons.is_watched].sum()) for side in sides]

    def count_broken(kept_by_side: Sequence[Floats]) -> list[int]:
        kept_counts = [int(trials[comparisons.is_watched].sum()) for trials in kept_by_side]
        return [
            checked_count - kept_count
            for checked_count, kept_count in zip(checked_counts, kept_counts, strict=True)
        ]

    worst_counts = count_broken([side.kept_counts(metric) for side in sides])
    any_kind_counts = count_broken([side.matched[INVARIANTS] for side in sides])
    kind_prefix = f"{INVARIANT_METRICS[metric].value} " if any(worst_counts) else ""
    any_kind_suffix = (
        "" if any_kind_counts == worst_counts else f"; any kind {any_kind_counts[0]} → {any_kind_counts[1]}"
    )
    return f"{kind_prefix}{_format_counts(worst_counts, checked_counts)}{any_kind_suffix}"


def format_check_counts(pairs: Pairs, check_id: str) -> str:
    """Format the numbers of simulations that broke an own check, and of those without a result."""
    sides = pairs.sides
    if _has_too_few_results(pairs, check_id):
        parts = [
            f"{side.unchecked_counts(check_id).sum()} of {side.measured.sum()} simulations of the {name}"
            for side, name in zip(sides, ("baseline", "candidate"), strict=True)
            if _result_share(side, check_id) < MIN_MEASURED
        ]
        return f"no result in {' and '.join(parts)}"
    checked_counts = [int(side.checked[CHECK_PREFIX + check_id].sum()) for side in sides]
    broken_counts = [int(side.broken_counts(check_id, counts_unchecked=False).sum()) for side in sides]
    unchecked_counts = [int(side.unchecked_counts(check_id).sum()) for side in sides]
    text = _format_counts(broken_counts, checked_counts)
    if any(unchecked_counts):
        text += f"; without a result {unchecked_counts[0]} → {unchecked_counts[1]}"
    return text


def own_check_without_figures(pairs: Pairs, check_id: str, code: int) -> CheckResult | None:
    """The result of an own check that applies to no simulation or lacks results; None for all others."""
    if code == PASS and not any(side.matched[APPLIES_PREFIX + check_id].sum() > 0 for side in pairs.sides):
        status, detail = CheckStatus.NOT_APPLICABLE, "applies to no simulation"
        return CheckResult(id=check_id, status=status, unit=SHARE_UNIT, detail=detail)
    if code == UNDECIDED and _has_too_few_results(pairs, check_id):
        detail = format_check_counts(pairs, check_id)
        return CheckResult(id=check_id, status=STATUSES[code], threshold=0.0, unit=SHARE_UNIT, detail=detail)
    return None


def _has_too_few_results(pairs: Pairs, check_id: str) -> bool:
    """Whether a side has no result of an own check for too many of its simulations."""
    return any(_result_share(side, check_id) < MIN_MEASURED for side in pairs.sides)


def _result_share(side: Tally, check_id: str) -> float:
    measured = int(side.measured.sum())
    return 1.0 - int(side.unchecked_counts(check_id).sum()) / measured if measured else 1.0


def ungated_check_results(pairs: Pairs) -> list[CheckResult]:
    """The results of the project's own checks that decide nothing, with the reasons."""
    return [
        CheckResult(id=name, status=CheckStatus.NOT_APPLICABLE, unit=SHARE_UNIT, detail=reason)
        for name, reason in pairs.ungated_checks.items()
    ]


def _detectable_change(
    check_id: str, finding: Finding, comparisons: Comparisons, alpha: float, rules: Rules
) -> float | None:
    tasks = float(finding.tasks[0])
    if rules.has_fixed_tasks and rules.must_improve and check_id == _check_id(REWARD, rules):
        return None  # the exact test has no single figure: it depends on where the trials pass
    if check_id == REWARD_DROP:
        return _reward_sensitivity(comparisons, finding, rules).drop
    if check_id == REGRESSIONS:
        return detectable_task_share(int(comparisons.is_fixed.sum()), tasks, alpha)
    if check_id == MAX_STEPS:
        old, new = comparisons.counted_sides
        is_better = (old.max_steps > 0) & ~(new.max_steps > 0)
        return detectable_task_share(int(is_better.sum()), tasks, alpha)
    if check_id == INVARIANTS:
        alpha /= len(comparisons.baseline.invariant_kinds)
    if check_id in comparisons.check_ids:
        alpha /= sum(rules.weight(name) > 0 for name in comparisons.check_ids)
    return detectable_change(float(finding.deviation[0]), tasks, alpha)


def _reward_sensitivity(comparisons: Comparisons, finding: Finding, rules: Rules) -> Sensitivity:
    sensitivity = drop_sensitivity(
        float(finding.deviation[0]),
        float(finding.tasks[0]),
        float(comparisons.mean_trials[0]),
        rules.drop_level(comparisons),
        has_fixed_tasks=rules.has_fixed_tasks,
    )
    return replace(sensitivity, low=float(finding.low[0]))


def _needed_reward_evidence(
    results: Sequence[CheckResult], finding: Finding, pairs: Pairs, rules: Rules, question: Question
) -> tuple[NeededEvidence, ...]:
    """The numbers of trials or tasks that would decide the check of the reward, if it is undecided."""
    reward_result = next(result for result in results if result.id == _check_id(REWARD, rules))
    estimate = float(finding.estimate[0])
    if reward_result.status is not CheckStatus.UNDECIDED or pairs.is_identical or np.isnan(estimate):
        return ()
    if question.is_filled or question.is_guard:
        return ()
    distance = estimate if rules.must_improve else rules.margins[REWARD] + min(estimate, 0.0)
    spread = spread_of(pairs, float(finding.deviation[0]))
    next_alpha = rules.claim_alpha * question.next_share / question.share
    return (
        estimate_needed_evidence(
            reward_result.id,
            distance,
            spread,
            pairs,
            alpha=rules.claim_alpha,
            next_alpha=next_alpha,
            is_exact=rules.must_improve and rules.has_fixed_tasks,
        ),
    )
