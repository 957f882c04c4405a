"""The findings and answers of policy `calibrated`, for one comparison or for thousands at once.

The rows of all arrays are comparisons: one for the gate, and as many as are drawn for calibration and
simulation. All of them call `evaluate`, so calibration tests exactly the rules that the gate applies.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np
import scipy

from pytest_trace2evolve.gate.columns import BREACHES, INVARIANTS, KINDS, Counts, Flags, Floats
from pytest_trace2evolve.gate.intervals import Bounds, bounds, student
from pytest_trace2evolve.gate.pairs import (
    MAX_STEPS,
    METRICS,
    PASS_RATE,
    REGRESSIONS,
    REWARD,
    Comparisons,
    Tally,
)
from pytest_trace2evolve.gate.protocols import FAIL, NOT_APPLICABLE, PASS, UNDECIDED
from pytest_trace2evolve.gate.significance import fisher, holm, mcnemar

SHARES_WATCH = 0.5
"""The share of `watch_alpha` up to which p-values leave the shares of actions undecided. At the whole level,
nine of ten agents as good as their baseline would no longer be promoted at 114 tasks of 4 trials."""

_ACTIONS = "actions"
"""The family of the three shares of gold actions."""


@dataclass(frozen=True)
class Rules:
    """A policy as numbers.

    Attributes:
        improve: Whether the reward must be shown to be better, rather than not worse.
        margins: By metric, the loss that is allowed. A metric with a margin must be shown not worse.
        weights: By metric, its level as a share of `harm_alpha`; by default 1. Weight 0 leaves a metric out.
        claim_alpha: Level of the claims that must be shown.
        harm_alpha: Level at which the whole policy may discard a candidate that is no worse.
        watch_alpha: The largest p-value that leaves a check undecided. p-values are adjusted for the shares
            of actions (among themselves, at `SHARES_WATCH` of the level) and for the invariants (over their
            kinds).
        drop_alpha: The largest unadjusted p-value of the reward that fails its check (goal `no-regression`).
        guard: Whether the split is a guard. In a guard, every unadjusted p-value up to `watch_alpha` leaves
            its check undecided.
        block_suspected: Whether a suspected task withholds a promotion.
        within: Whether the verdict is on exactly these tasks, with the noise of their trials alone (estimand
            `suite`).
    """

    improve: bool
    margins: Mapping[str, float]
    weights: Mapping[str, float] = field(default_factory=dict)
    claim_alpha: float = 0.05
    harm_alpha: float = 0.05
    watch_alpha: float = 0.05
    drop_alpha: float = 0.0
    guard: bool = False
    block_suspected: bool = False
    within: bool = False

    def weight(self, metric: str) -> float:
        """A metric's level as a share of `harm_alpha`. The actions as a family have their largest weight."""
        if metric == _ACTIONS:
            return max(self.weight(name) for name in KINDS)
        return self.weights.get(metric, 1.0)

    @property
    def drop_level(self) -> float:
        """The level at which a drop of the reward blocks or, under goal `no-regression`, discards."""
        return self.drop_alpha or self.watch_alpha


@dataclass(frozen=True)
class Finding(Bounds):
    """The finding on one metric, in arrays of shape (R,). `deviation` is NaN for counts of tasks.

    Attributes:
        harm: p of "no decline", unadjusted; NaN if the metric does not apply.
        gain: p of "no rise"; NaN if the metric does not apply.
        blocked: Whether something other than these p-values leaves the check undecided.
        worst: For `INVARIANTS`, the index in `BREACHES` of the kind that the figures describe.
    """

    harm: Floats
    gain: Floats
    blocked: Flags
    worst: Counts | None = None


@dataclass(frozen=True)
class Outcome:
    """The findings, Holm-adjusted p-values of harm, and answers of each comparison, by metric."""

    findings: Mapping[str, Finding]
    adjusted: Mapping[str, Floats]
    answers: Mapping[str, Counts]


def evaluate(compared: Comparisons, rules: Rules, further: Mapping[str, Floats] | None = None) -> Outcome:
    """Compute all findings, adjusted p-values and answers.

    `further` holds p-values of harm, shape (R,), by the ids of plugins' checks, which share the error.
    """
    findings = find(compared, rules)
    harm = {name: found.harm for name, found in findings.items() if rules.weight(name) > 0}
    within, adjusted = _adjusted({**harm, **(further or {})}, rules)
    answers = {}
    for name, found in findings.items():
        applies = ~np.isnan(found.harm)
        if name == REWARD and rules.improve:
            shown = (found.gain <= rules.claim_alpha) & (found.estimate > 0)
        elif name in rules.margins:
            shown = found.low > -rules.margins[name]
        elif rules.guard:
            shown = found.harm > rules.watch_alpha
        else:
            weight = SHARES_WATCH * rules.weight(_ACTIONS) if name in KINDS else rules.weight(name)
            shown = within[name] > rules.watch_alpha * weight
        shown &= ~found.blocked
        fails = adjusted[name] <= rules.harm_alpha if name in adjusted else np.zeros_like(applies)
        if name == REWARD:
            fails |= found.harm <= rules.drop_alpha
        answer = np.where(fails, FAIL, np.where(shown, PASS, UNDECIDED))
        # With one trial per task (estimand `suite`), the noise of trials is unknown, so nothing is shown.
        open_ = compared.both.any(axis=1) & (name == REWARD)
        answers[name] = np.where(applies, answer, np.where(open_, UNDECIDED, NOT_APPLICABLE))
    return Outcome(findings, adjusted, answers)


def _adjusted(p: Mapping[str, Floats], rules: Rules) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """p-values adjusted within their family, and over the whole policy.

    The three shares of gold actions are one family, since they ask one question about the same calls. Every
    other check is a family of its own. Holm's method is applied over the families, and then within each
    family at its level.
    """
    shares = holm({name: p[name] for name in KINDS if name in p}, rules.weights)
    within = {**p, **shares}
    families = {name: values for name, values in p.items() if name not in shares}
    if shares:
        values = np.stack(list(shares.values()))
        smallest = np.where(np.isnan(values), 2.0, values).min(axis=0)
        families[_ACTIONS] = np.where(np.isnan(values).all(axis=0), np.nan, smallest)
    over = holm(families, {**rules.weights, _ACTIONS: rules.weight(_ACTIONS)})
    adjusted = {}
    for name, values in within.items():
        family = _ACTIONS if name in shares else name
        with np.errstate(invalid="ignore", divide="ignore"):
            factor = np.where(families[family] > 0, over[family] / families[family], 1.0)
        adjusted[name] = np.minimum(np.maximum(values * factor, over[family]), 1.0)
    return within, adjusted


def find(compared: Comparisons, rules: Rules) -> dict[str, Finding]:
    """The findings on every metric that the policy watches."""
    found: dict[str, Finding] = {}
    for metric in METRICS:
        if rules.weight(metric) <= 0 and metric not in rules.margins and metric != REWARD:
            continue
        if metric == REGRESSIONS:
            found[metric] = _regressions(compared, rules)
        elif metric == MAX_STEPS:
            old, new = compared.baseline, compared.candidate
            ran, hit, was_hit = (old.trials > 0) & (new.trials > 0), new.max_steps > 0, old.max_steps > 0
            found[metric] = _more_tasks(hit & ~was_hit & ran, was_hit & ~hit & ran, ran, rules)
        elif metric == INVARIANTS:
            if compared.watched.any():
                found[metric] = _invariants(compared, rules)
        elif metric != PASS_RATE:
            found[metric] = _mean(compared, metric, rules)
        elif not np.all(compared.binary):
            rate = _mean(compared, metric, rules)
            harm, gain = (np.where(compared.binary, np.nan, p) for p in (rate.harm, rate.gain))
            found[metric] = replace(rate, harm=harm, gain=gain)
    return found


def _finding(at: Bounds, harm: Floats, gain: Floats) -> Finding:
    none = at.tasks == 0
    return Finding(
        **vars(at),
        harm=np.where(none, np.nan, harm),
        gain=np.where(none, np.nan, gain),
        blocked=np.zeros(none.shape, dtype=np.bool_),
    )


def _mean(compared: Comparisons, metric: str, rules: Rules) -> Finding:
    if rules.within:
        return _mean_of_these_tasks(compared, metric, rules)
    flips = compared.flips(metric)
    return _finding(bounds(compared.difference(metric), rules.claim_alpha), flips.low, flips.high)


def _more_tasks(worse: Flags, better: Flags, among: Flags, rules: Rules) -> Finding:
    """Tasks that became worse minus tasks that became better, as a share of all; p by McNemar's test."""
    up, down = worse.sum(axis=1).astype(np.float64), better.sum(axis=1).astype(np.float64)
    changes = np.where(among, worse.astype(np.float64) - better, np.nan)
    found = _finding(bounds(changes, rules.claim_alpha), mcnemar(up, down), mcnemar(down, up))
    return replace(found, deviation=np.full(up.shape, np.nan))


def _invariants(compared: Comparisons, rules: Rules) -> Finding:
    """The increase of the share of a task's trials that break an invariant, for the kind with the smallest p.

    p of harm is the smallest Holm-adjusted p over the kinds: the smallest p times the number of kinds. Kinds
    without any breach count too, so a further breach can only lower p and never adds a kind to adjust for.
    """
    # A kind without a breach on either side has p = 1, so its test can be left out.
    broken = {**compared.baseline.matched, **compared.candidate.matched}
    places = [place for place, name in enumerate(BREACHES) if name in broken] or [0]
    kinds = []
    for name in [list(BREACHES)[place] for place in places]:
        flips = compared.flips(name)
        at = bounds(-compared.difference(name), rules.claim_alpha)
        kinds.append(_finding(at, flips.low, flips.high))
    harm = np.stack([kind.harm for kind in kinds])
    # Among equal p-values, the larger increase is worse. NaN means that no task was checked.
    order = np.lexsort((np.stack([-kind.estimate for kind in kinds]), harm), axis=0)[0]
    rows = np.arange(harm.shape[1])
    chosen = {
        each.name: np.stack([getattr(kind, each.name) for kind in kinds])[order, rows]
        for each in fields(Finding)
        if each.name != "worst"
    }
    chosen["harm"] = np.minimum(chosen["harm"] * len(BREACHES), 1.0)
    return Finding(**chosen, worst=np.array(places)[order])


def _regressions(compared: Comparisons, rules: Rules) -> Finding:
    """Test broken tasks one by one, and compare the number of suspected tasks with that of fixed tasks."""
    found = _more_tasks(compared.broken, compared.fixed, compared.both, rules)
    p, size = _task_p(compared)
    smallest = np.minimum(p.min(axis=1, initial=1.0) * np.maximum(size, 1), 1.0)
    suspected, fixed = compared.suspected.sum(axis=1), compared.fixed.sum(axis=1)
    excess = mcnemar(suspected.astype(np.float64), fixed.astype(np.float64))
    blocked = (excess <= rules.watch_alpha) | (rules.block_suspected & (suspected > 0))
    return replace(found, harm=np.where(np.isnan(found.harm), np.nan, smallest), blocked=blocked)


def confirmed_regressions(compared: Comparisons, alpha: float) -> Flags:
    """The broken tasks confirmed at level `alpha` by Holm's method over their family, shape (R, N)."""
    p, size = _task_p(compared)
    order = np.argsort(p, axis=1, kind="stable")
    ranked = np.take_along_axis(p, order, axis=1)
    left = np.maximum(size[:, None] - np.arange(p.shape[1]), 1)
    stepped = np.maximum.accumulate(ranked * left, axis=1)
    confirmed = np.empty(p.shape, dtype=np.bool_)
    np.put_along_axis(confirmed, order, stepped <= alpha, axis=1)
    return confirmed


def _task_p(compared: Comparisons) -> tuple[Floats, Counts]:
    """The p-value of each task (1 without evidence of harm), and the number of tasks that share the error.

    With fresh trials, the family is the tasks that have fresh trials. The main trials select these tasks, and
    the fresh trials alone judge them. Without fresh trials, the main trials both select and judge, so the
    family is all tasks.
    """
    if compared.fresh is not None:
        unknown = np.isnan(compared.fresh)
        return np.where(unknown, 1.0, compared.fresh), (~unknown).sum(axis=1)
    broken, old, new = compared.broken, compared.baseline, compared.candidate
    p = np.ones(broken.shape)
    p[broken] = fisher(*(counts[broken] for counts in (old.passed, old.measured, new.passed, new.measured)))
    return p, np.full(broken.shape[0], broken.shape[1])


def _mean_of_these_tasks(compared: Comparisons, metric: str, rules: Rules) -> Finding:
    """The mean difference on exactly these tasks, whose error comes from their trials alone.

    Welch's variances of the tasks' differences are summed, and one pseudo-task's variance is added, as in
    `bounds`. Degrees of freedom are pooled over tasks and sides, n(K - 1) for each side.
    """
    old, new = compared.baseline, compared.candidate
    differences = compared.difference(metric)
    known = ~np.isnan(differences) & (old.measured > 1) & (new.measured > 1)
    spread = _variance_of_mean(old, metric) + _variance_of_mean(new, metric)
    n = known.sum(axis=1).astype(np.float64)
    freedom = np.where(known, old.measured + new.measured - 2, 0).sum(axis=1).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(known, differences, 0.0).sum(axis=1) / n
        trials = np.where(known, np.minimum(old.measured, new.measured), 0).sum(axis=1) / n
        error = np.sqrt(np.where(known, spread, 0.0).sum(axis=1) + 0.25 / trials) / n
        reach = student(1.0 - rules.claim_alpha, freedom) * error
        harm = scipy.special.stdtr(freedom, mean / error)
    low, high = np.maximum(mean - reach, -1.0), np.minimum(mean + reach, 1.0)
    return _finding(Bounds(mean, low, high, n, error * np.sqrt(n)), harm, 1.0 - harm)


def _variance_of_mean(side: Tally, metric: str) -> Floats:
    """The variance of a task's mean over its trials."""
    if metric == REWARD:
        return np.asarray(side.variance / np.maximum(side.measured, 1))
    rate = side.figure(metric)
    # A share lies between 0 and 1, so its variance is at most that of a coin with its mean.
    return np.asarray(rate * (1 - rate) / np.maximum(side.measured - 1, 1))
