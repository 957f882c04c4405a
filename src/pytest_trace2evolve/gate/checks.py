"""Computes the findings and statuses of policy `calibrated`, for one comparison or for thousands at once.

The rows of all arrays are comparisons: one for the gate, many for calibration and simulation. The gate,
calibration and simulation all call `evaluate`, so calibration tests exactly the rules that the gate applies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
import scipy

from pytest_trace2evolve.gate.columns import (
    ACTION_METRICS,
    AGENT_ERRORS,
    CHECK_PREFIX,
    INVARIANT_METRICS,
    INVARIANTS,
    Counts,
    Flags,
    Floats,
)
from pytest_trace2evolve.gate.intervals import Bounds, mean_bounds, student_quantile
from pytest_trace2evolve.gate.pairs import Comparisons
from pytest_trace2evolve.gate.protocols import FAIL, NOT_APPLICABLE, PASS, UNDECIDED
from pytest_trace2evolve.gate.significance import fisher, holm, mcnemar, sign_flip, stratified_fisher
from pytest_trace2evolve.gate.tallies import (
    MAX_STEPS,
    METRICS,
    MIN_MEASURED,
    PASS_RATE,
    REGRESSIONS,
    REWARD,
    Tally,
    mean_of,
)

ACTION_WATCH_SHARE = 0.5
"""The share of `watch_alpha` up to which p-values leave the shares of actions undecided. With all of
`watch_alpha`, fewer than nine of ten agents as good as their baseline would be promoted at 114 tasks of 4
trials."""

_ACTION_GROUP = "actions"
"""The name of the group of the three shares of gold actions."""

_CHECK_GROUP = "own checks"
"""The name of the group of the project's own checks. It is not a valid check id."""


@dataclass(frozen=True)
class Rules:
    """The levels, margins and weights of a policy for one question.

    Attributes:
        must_improve: Whether the reward must be shown to be better, rather than not worse.
        margins: By metric, the loss that is allowed. A metric with a margin must be shown not worse.
        weights: By metric, the metric's level as a share of `harm_alpha`; by default 1. Weight 0 omits a
            metric.
        claim_alpha: Significance level of the claims that must be shown.
        harm_alpha: Significance level at which the whole policy may discard a candidate that is no worse.
        watch_alpha: The largest p-value that leaves a check undecided. p-values are adjusted for the shares
            of actions (among themselves, at `ACTION_WATCH_SHARE` of the level), for the invariants (over
            their kinds) and for the project's own checks (among themselves).
        drop_alpha: The largest unadjusted p-value of the reward that fails its check (goal `no-regression`).
            If no broken task had fresh trials, also that of the broken tasks, adjusted over the tasks alone.
        recorded_drop_alpha: The same of the reward if no broken task could be confirmed.
        is_guard: Whether the split is a guard. In a guard, every unadjusted p-value up to `watch_alpha`
            leaves its check undecided. The project's own checks are adjusted among themselves in guards too.
        blocks_on_suspected: Whether a suspected task prevents a promotion.
        has_fixed_tasks: Whether the verdict is about exactly these tasks, so that only their trials add noise
            (estimand `suite`).
        weighs_falls: Whether confirmed falls are harm only if they also outnumber the fixed tasks. A
            confirmed fall of a critical task is always harm.
    """

    must_improve: bool
    margins: Mapping[str, float]
    weights: Mapping[str, float] = field(default_factory=dict)
    claim_alpha: float = 0.05
    harm_alpha: float = 0.05
    watch_alpha: float = 0.05
    drop_alpha: float = 0.0
    recorded_drop_alpha: float = 0.0
    is_guard: bool = False
    blocks_on_suspected: bool = False
    has_fixed_tasks: bool = False
    weighs_falls: bool = False

    def weight(self, metric: str) -> float:
        """Return a metric's level as a share of `harm_alpha`; for the group of actions, the largest level."""
        if metric == _ACTION_GROUP:
            return max(self.weight(name) for name in ACTION_METRICS)
        return self.weights.get(metric, 1.0)

    def failing_drop_alpha(self, comparisons: Comparisons) -> float:
        """Return the largest unadjusted p-value that fails the reward's check; 0 if only adjusted ones do."""
        return self.recorded_drop_alpha if comparisons.fresh_p is None else self.drop_alpha

    def drop_level(self, comparisons: Comparisons) -> float:
        """Return the level at which a drop of the reward blocks or, under goal `no-regression`, discards."""
        return self.failing_drop_alpha(comparisons) or self.watch_alpha


@dataclass(frozen=True)
class Finding(Bounds):
    """The finding on one metric, in arrays of shape (R,). `deviation` is NaN for counts of tasks.

    Attributes:
        harm_p: The unadjusted p-value of "no decline"; NaN if the metric does not apply.
        gain_p: The p-value of "no rise"; NaN if the metric does not apply.
        is_blocked: Whether something other than these p-values leaves the check undecided.
        worst_kind: For `INVARIANTS`, the index in `INVARIANT_METRICS` of the kind that the figures describe.
    """

    harm_p: Floats
    gain_p: Floats
    is_blocked: Flags
    worst_kind: Counts | None = None


@dataclass(frozen=True)
class Outcome:
    """The findings, Holm-adjusted p-values of harm, and status codes of each comparison, by metric."""

    findings: Mapping[str, Finding]
    adjusted_p: Mapping[str, Floats]
    status_codes: Mapping[str, Counts]


def evaluate(comparisons: Comparisons, rules: Rules, plugin_p: Mapping[str, Floats] | None = None) -> Outcome:
    """Compute the findings, adjusted p-values and status codes of all checks.

    `plugin_p` holds the p-values of harm of plugins' checks by id, in shape (R,). These
    checks share the error rate.
    """
    findings = compute_findings(comparisons, rules)
    harm_p = {name: finding.harm_p for name, finding in findings.items() if rules.weight(name) > 0}
    adjusted_in_group, adjusted_p = _adjust_p_values(
        {**harm_p, **(plugin_p or {})}, comparisons.check_ids, rules
    )
    codes, check_ids = {}, comparisons.check_ids
    for name, finding in findings.items():
        is_applicable = ~np.isnan(finding.harm_p)
        if name == REWARD and rules.must_improve:
            is_shown = (finding.gain_p <= rules.claim_alpha) & (finding.estimate > 0)
        elif name in rules.margins:
            is_shown = finding.low > -rules.margins[name]
        elif rules.is_guard and name not in check_ids:
            is_shown = finding.harm_p > rules.watch_alpha
        else:
            weight = (
                ACTION_WATCH_SHARE * rules.weight(_ACTION_GROUP)
                if name in ACTION_METRICS
                else rules.weight(name)
            )
            is_shown = adjusted_in_group[name] > rules.watch_alpha * weight
        is_shown &= ~finding.is_blocked
        has_failed = (
            adjusted_p[name] <= rules.harm_alpha if name in adjusted_p else np.zeros_like(is_applicable)
        )
        if name == REWARD:
            has_failed |= finding.harm_p <= rules.failing_drop_alpha(comparisons)
        if name == REGRESSIONS and comparisons.fresh_p is None:
            has_failed |= finding.harm_p <= rules.drop_alpha
        code = np.where(has_failed, FAIL, np.where(is_shown, PASS, UNDECIDED))
        # With one trial per task (estimand `suite`), the noise of trials is unknown, so nothing is shown.
        is_undecidable = comparisons.measured_on_both.any(axis=1) & (name == REWARD)
        codes[name] = np.where(is_applicable, code, np.where(is_undecidable, UNDECIDED, NOT_APPLICABLE))
    return Outcome(findings, adjusted_p, codes)


def _adjust_p_values(
    p: Mapping[str, Floats], check_ids: Sequence[str], rules: Rules
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Return p-values adjusted within their group, and p-values adjusted over the whole policy.

    The three shares of gold actions are one group, because they ask one question about the same calls. The
    project's own checks are another group. Every other check is a group by itself. Holm's method is
    applied over the groups, and then within each group at its level. This bounds the chance to discard a
    candidate that is no worse. If a member shows harm, it does not bound the errors of the further checks.
    """
    groups = {_ACTION_GROUP: ACTION_METRICS, _CHECK_GROUP: check_ids}
    adjusted_in_group, group_of, group_p = dict(p), {name: name for name in p}, dict(p)
    group_weights = dict(rules.weights)
    for group, members in groups.items():
        member_p = {name: p[name] for name in members if name in p}
        if not member_p:
            continue
        adjusted_members = holm(member_p, rules.weights)
        adjusted_in_group |= adjusted_members
        group_of |= dict.fromkeys(member_p, group)
        # The smallest adjusted p-value: the smallest p-value itself would not count the other members.
        values = np.stack(list(adjusted_members.values()))
        min_p = np.where(np.isnan(values), 2.0, values).min(axis=0)
        group_p = {name: values for name, values in group_p.items() if name not in member_p}
        group_p[group] = np.where(np.isnan(values).all(axis=0), np.nan, min_p)
        group_weights[group] = max(rules.weight(name) for name in member_p)
    adjusted_over_groups = holm(group_p, group_weights)
    adjusted_p = {}
    for name, values in adjusted_in_group.items():
        group = group_of[name]
        with np.errstate(invalid="ignore", divide="ignore"):
            factor = np.where(group_p[group] > 0, adjusted_over_groups[group] / group_p[group], 1.0)
        adjusted_p[name] = np.minimum(np.maximum(values * factor, adjusted_over_groups[group]), 1.0)
    return adjusted_in_group, adjusted_p


def compute_findings(comparisons: Comparisons, rules: Rules) -> dict[str, Finding]:
    """Return the findings on every metric that the policy watches."""
    findings: dict[str, Finding] = {}
    for metric in METRICS:
        if rules.weight(metric) <= 0 and metric not in rules.margins and metric != REWARD:
            continue
        if metric == REGRESSIONS:
            findings[metric] = _regression_finding(comparisons, rules)
        elif metric == MAX_STEPS:
            old, new = comparisons.counted_sides
            has_run, old_hits, new_hits = old.trials > 0, old.max_steps > 0, new.max_steps > 0
            has_run &= new.trials > 0
            findings[metric] = _task_count_finding(
                new_hits & ~old_hits & has_run, old_hits & ~new_hits & has_run, has_run, rules
            )
        elif metric == AGENT_ERRORS:
            if any(side.agent_errors.any() for side in (comparisons.baseline, comparisons.candidate)):
                findings[metric] = _agent_error_finding(comparisons, rules)
        elif metric == INVARIANTS:
            if comparisons.is_watched.any():
                findings[metric] = _invariant_finding(comparisons, rules)
        elif metric != PASS_RATE:
            findings[metric] = _mean_finding(comparisons, metric, rules)
        elif not np.all(comparisons.is_binary):
            pass_rate_finding = _mean_finding(comparisons, metric, rules)
            harm_p, gain_p = (
                np.where(comparisons.is_binary, np.nan, p)
                for p in (pass_rate_finding.harm_p, pass_rate_finding.gain_p)
            )
            findings[metric] = replace(pass_rate_finding, harm_p=harm_p, gain_p=gain_p)
    watched_ids = [name for name in comparisons.check_ids if rules.weight(name) > 0]
    for name in watched_ids:
        findings[name] = _check_finding(comparisons, name, len(watched_ids), rules)
    return findings


def _make_finding(bounds: Bounds, harm_p: Floats, gain_p: Floats) -> Finding:
    is_empty = bounds.tasks == 0
    return Finding(
        **vars(bounds),
        harm_p=np.where(is_empty, np.nan, harm_p),
        gain_p=np.where(is_empty, np.nan, gain_p),
        is_blocked=np.zeros(is_empty.shape, dtype=np.bool_),
    )


def _mean_finding(comparisons: Comparisons, metric: str, rules: Rules) -> Finding:
    if rules.has_fixed_tasks:
        return _fixed_tasks_mean_finding(comparisons, metric, rules)
    flips = comparisons.sign_flip_test(metric)
    min_error = comparisons.trial_error if metric == REWARD else 0.0
    bounds = mean_bounds(comparisons.difference(metric), rules.claim_alpha, min_error=min_error)
    return _make_finding(bounds, flips.low, flips.high)


def _task_count_finding(is_worse: Flags, is_better: Flags, is_counted: Flags, rules: Rules) -> Finding:
    """Compare the shares of tasks that became worse and better, with p-values by McNemar's test."""
    worse_count, better_count = (flags.sum(axis=1).astype(np.float64) for flags in (is_worse, is_better))
    changes = np.where(is_counted, is_worse.astype(np.float64) - is_better, np.nan)
    finding = _make_finding(
        mean_bounds(changes, rules.claim_alpha),
        mcnemar(worse_count, better_count),
        mcnemar(better_count, worse_count),
    )
    return replace(finding, deviation=np.full(worse_count.shape, np.nan))


def _agent_error_finding(comparisons: Comparisons, rules: Rules) -> Finding:
    """The increase of the share of a task's trials that end in an agent error.

    The check does not apply to a comparison without agent errors, so it costs such a comparison no level.
    """
    old, new = comparisons.baseline, comparisons.candidate
    errors = old.agent_errors, new.agent_errors
    if rules.has_fixed_tasks:
        harm_p = stratified_fisher(errors[0], old.measured, errors[1], new.measured)
        gain_p = stratified_fisher(errors[1], new.measured, errors[0], old.measured)
    else:
        flips = comparisons.sign_flip_test(AGENT_ERRORS)
        harm_p, gain_p = flips.low, flips.high
    has_none = (errors[0] + errors[1]).sum(axis=1) == 0
    harm_p, gain_p = (np.where(has_none, np.nan, p) for p in (harm_p, gain_p))
    bounds = mean_bounds(-comparisons.difference(AGENT_ERRORS), rules.claim_alpha)
    return _make_finding(bounds, harm_p, gain_p)


def _invariant_finding(comparisons: Comparisons, rules: Rules) -> Finding:
    """The increase of the share of a task's trials that break an invariant, for the kind with the smallest p.

    The p-value of harm is the smallest Holm-adjusted p over the kinds: the smallest p times their number.
    Kinds without any breach count too, so a further breach can only lower p and never adds a kind to adjust
    for.
    """
    # A kind without a breach on either side has p = 1, so its test can be left out.
    matched = {**comparisons.baseline.matched, **comparisons.candidate.matched}
    kind_indices = [index for index, name in enumerate(INVARIANT_METRICS) if name in matched] or [0]
    findings = []
    for name in [list(INVARIANT_METRICS)[index] for index in kind_indices]:
        sign_flip = comparisons.sign_flip_test(name)
        kind_bounds = mean_bounds(-comparisons.difference(name), rules.claim_alpha)
        findings.append(_make_finding(kind_bounds, sign_flip.low, sign_flip.high))
    harm_p = np.stack([finding.harm_p for finding in findings])
    # Among equal p-values, the larger increase is worse. NaN means that no task was checked.
    worst_rows = np.lexsort((np.stack([-finding.estimate for finding in findings]), harm_p), axis=0)[0]
    rows = np.arange(harm_p.shape[1])
    arrays = {
        item.name: np.stack([getattr(finding, item.name) for finding in findings])[worst_rows, rows]
        for item in fields(Finding)
        if item.name != "worst_kind"
    }
    arrays["harm_p"] = np.minimum(arrays["harm_p"] * len(comparisons.baseline.invariant_kinds), 1.0)
    return Finding(**arrays, worst_kind=np.array(kind_indices)[worst_rows])


def _check_finding(comparisons: Comparisons, check_id: str, group_size: int, rules: Rules) -> Finding:
    """The increase of the share of a task's trials that break one of the project's own checks.

    The p-value of harm counts trials without a result in favour of the candidate. The check is blocked if it
    would not pass with these trials counted against the candidate, or if there are too many of them.
    """
    old, new = comparisons.baseline, comparisons.candidate
    kept_finding = _make_finding(
        mean_bounds(comparisons.difference(CHECK_PREFIX + check_id), rules.claim_alpha), *[np.zeros(1)] * 2
    )
    if rules.has_fixed_tasks:
        fixed_finding = _fixed_tasks_mean_finding(comparisons, CHECK_PREFIX + check_id, rules)
        kept_finding = kept_finding if (fixed_finding.tasks == 0).any() else fixed_finding
    harm_p, gain_p = _check_p_values(comparisons, check_id, rules, is_favourable=True)
    is_blocked = np.zeros_like(harm_p, dtype=np.bool_)
    unchecked_sums = [side.unchecked_counts(check_id).sum(axis=1) for side in (old, new)]
    if (has_unchecked := (unchecked_sums[0] + unchecked_sums[1]) > 0).any():
        worst_p, _ = _check_p_values(comparisons, check_id, rules, is_favourable=False)
        shares = [
            1.0 - mean_of(unchecked, side.measured.sum(axis=1))
            for unchecked, side in zip(unchecked_sums, (old, new), strict=True)
        ]
        is_incomplete = np.minimum(*shares) < MIN_MEASURED
        is_worst_case_harm = worst_p * group_size <= max(rules.watch_alpha, rules.harm_alpha)
        is_blocked = has_unchecked & (is_incomplete | is_worst_case_harm)
    is_known = comparisons.measured_on_both.any(axis=1)
    return Finding(
        estimate=-kept_finding.estimate,
        low=-kept_finding.high,
        high=-kept_finding.low,
        tasks=kept_finding.tasks,
        deviation=kept_finding.deviation,
        harm_p=np.where(is_known, harm_p, np.nan),
        gain_p=np.where(is_known, gain_p, np.nan),
        is_blocked=is_blocked,
    )


def _check_p_values(
    comparisons: Comparisons, check_id: str, rules: Rules, *, is_favourable: bool
) -> tuple[Floats, Floats]:
    """Return the p-values of "no decline" and of "no rise" of a check's share of kept trials.

    `is_favourable` says whether trials without a result favour the candidate. With estimand `suite`, an exact
    test permutes the trials of each task.
    """

    def broken_and_trials(side: Tally) -> tuple[Counts, Counts]:
        counts_unchecked = is_favourable is (side is comparisons.baseline)
        broken = side.broken_counts(check_id, counts_unchecked=counts_unchecked)
        return broken.astype(np.int64), side.measured

    if not rules.has_fixed_tasks:
        differences = comparisons.check_difference(check_id, is_favourable=is_favourable)
        flips = comparisons.with_trial_test(
            sign_flip(differences, comparisons.common_trials),
            lambda side: (side.measured - broken_and_trials(side)[0], side.measured),
        )
        return flips.low, flips.high
    old, new = broken_and_trials(comparisons.baseline), broken_and_trials(comparisons.candidate)
    return stratified_fisher(*old, *new), stratified_fisher(*new, *old)


def _regression_finding(comparisons: Comparisons, rules: Rules) -> Finding:
    """Test broken tasks one by one, and compare the number of suspected tasks with that of fixed tasks.

    If falls are weighed, confirmed tasks count like suspected ones, and both tests must show harm, so the
    larger p-value counts. Critical tasks are tested one by one only. A guard shows no gain of the reward, so
    its confirmed falls leave the check undecided unless the fixed tasks outnumber all broken ones.
    """
    finding = _task_count_finding(
        comparisons.is_broken, comparisons.is_fixed, comparisons.measured_on_both, rules
    )
    task_p, is_fallen = adjusted_task_p(comparisons), comparisons.is_suspected
    harm_p, is_confirmed = task_p.min(axis=1, initial=1.0), task_p <= rules.harm_alpha
    is_blocked = rules.blocks_on_suspected & is_fallen.any(axis=1)
    fallen_count, fixed_count = (
        flags.sum(axis=1).astype(np.float64)
        for flags in (is_fallen | (is_confirmed & rules.weighs_falls), comparisons.is_fixed)
    )
    excess_p = mcnemar(fallen_count, fixed_count)
    if rules.weighs_falls:
        critical_p = np.where(comparisons.is_critical, task_p, 1.0).min(axis=1, initial=1.0)
        harm_p = np.minimum(np.maximum(harm_p, excess_p), critical_p)
        broken_count = comparisons.is_broken.sum(axis=1).astype(np.float64)
        is_outweighed = mcnemar(fixed_count, broken_count) <= rules.watch_alpha
        is_blocked |= rules.is_guard & is_confirmed.any(axis=1) & ~is_outweighed
    is_blocked |= excess_p <= rules.watch_alpha
    return replace(finding, harm_p=np.where(np.isnan(finding.harm_p), np.nan, harm_p), is_blocked=is_blocked)


def adjusted_task_p(comparisons: Comparisons) -> Floats:
    """Return the p-value that each task is worse, by Holm's method over all tested tasks, shape (R, N)."""
    p, group_size = _task_p_values(comparisons)
    order = np.argsort(p, axis=1, kind="stable")
    ranked_p = np.take_along_axis(p, order, axis=1)
    remaining = np.maximum(group_size[:, None] - np.arange(p.shape[1]), 1)
    adjusted_p = np.maximum.accumulate(ranked_p * remaining, axis=1)
    task_p = np.empty(p.shape)
    np.put_along_axis(task_p, order, np.minimum(adjusted_p, 1.0), axis=1)
    return task_p


def _task_p_values(comparisons: Comparisons) -> tuple[Floats, Counts]:
    """The p-value of each task (1 without evidence of harm), and the number of tasks that share the error.

    With fresh trials, these are the tasks that have fresh trials. The main trials select these tasks, and
    the fresh trials alone judge them. Without fresh trials, the main trials both select and judge, so all
    tasks share the error.
    """
    if comparisons.fresh_p is not None:
        is_unknown = np.isnan(comparisons.fresh_p)
        return np.where(is_unknown, 1.0, comparisons.fresh_p), (~is_unknown).sum(axis=1)
    is_broken, old, new = comparisons.is_broken, comparisons.baseline, comparisons.candidate
    p = np.ones(is_broken.shape)
    p[is_broken] = fisher(
        *(counts[is_broken] for counts in (old.successes, old.measured, new.successes, new.measured))
    )
    return p, np.full(is_broken.shape[0], is_broken.shape[1])


def _fixed_tasks_mean_finding(comparisons: Comparisons, metric: str, rules: Rules) -> Finding:
    """Return the mean difference on exactly these tasks, with an error that comes from their trials alone.

    The p-value of a claimed rise is exact, see `_fixed_tasks_gain_p`. For the bounds and for harm, Welch's
    variances of the tasks' differences are summed, and one pseudo-task's variance is added, as in
    `mean_bounds`. Degrees of freedom are pooled over tasks and sides, n(K - 1) for each side, where K is the
    number of trials of the side with fewer if they are unequal.
    """
    old, new = comparisons.baseline, comparisons.candidate
    differences = comparisons.difference(metric)
    is_known = ~np.isnan(differences) & (old.measured > 1) & (new.measured > 1)
    variances = _variance_of_mean(old, metric) + _variance_of_mean(new, metric)
    n = is_known.sum(axis=1).astype(np.float64)
    smaller = np.minimum(old.measured, new.measured)
    is_unequal = comparisons.has_unequal_trials[:, None]
    freedom = np.where(is_unequal, 2 * smaller, old.measured + new.measured) - 2
    degrees_of_freedom = np.where(is_known, freedom, 0).sum(axis=1).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(is_known, differences, 0.0).sum(axis=1) / n
        trials = np.where(is_known, smaller, 0).sum(axis=1) / n
        error = np.sqrt(np.where(is_known, variances, 0.0).sum(axis=1) + 0.25 / trials) / n
        half_width = student_quantile(1.0 - rules.claim_alpha, degrees_of_freedom) * error
        harm_p = scipy.special.stdtr(degrees_of_freedom, mean / error)
    low, high = np.maximum(mean - half_width, -1.0), np.minimum(mean + half_width, 1.0)
    is_claim = metric == REWARD and rules.must_improve
    gain_p = _fixed_tasks_gain_p(comparisons, is_known) if is_claim else 1.0 - harm_p
    return _make_finding(Bounds(mean, low, high, n, error * np.sqrt(n)), harm_p, gain_p)


def _fixed_tasks_gain_p(comparisons: Comparisons, is_known: Flags) -> Floats:
    """Return the exact p-value of "no rise of the reward" on exactly these tasks.

    Under the null hypothesis, each task's trials are exchangeable between the sides. If all rewards are 0 or
    1, the test permutes the trials of each task: it is the stratified Fisher test of the failures. Otherwise
    it is the sign-flip test, which exchanges the sides of whole tasks. Student's t is not used, because it
    is too small if few tasks vary.
    """
    old, new = (
        side.map(lambda counts: np.where(is_known, counts, 0))
        for side in (comparisons.baseline, comparisons.candidate)
    )
    permutation_p = stratified_fisher(
        new.measured - new.successes, new.measured, old.measured - old.successes, old.measured
    )
    if np.all(comparisons.is_binary):
        return permutation_p
    flips = sign_flip(np.where(is_known, comparisons.difference(REWARD), np.nan), comparisons.common_trials)
    return np.where(comparisons.is_binary, permutation_p, flips.high)


def _variance_of_mean(side: Tally, metric: str) -> Floats:
    """Return the variance of a task's mean over its trials."""
    if metric == REWARD:
        return np.asarray(side.variance / np.maximum(side.measured, 1))
    rate = side.figure(metric)
    # A share lies between 0 and 1, so its variance is at most that of a coin with its mean.
    return np.asarray(rate * (1 - rate) / np.maximum(side.measured - 1, 1))
