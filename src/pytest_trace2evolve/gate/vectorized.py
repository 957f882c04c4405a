"""What the calibrated policy finds, for one comparison or for thousands at once.

Rows are comparisons: the gate has one, calibration and simulation have as many as they draw. All that a
policy decides is decided here, so that what was calibrated is what gates.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import scipy

from pytest_trace2evolve.gate.columns import BREACHES, INVARIANTS, KINDS, Counts, Flags, Floats
from pytest_trace2evolve.gate.intervals import Bounds, bounds
from pytest_trace2evolve.gate.multiplicity import holm, mcnemar, task_p
from pytest_trace2evolve.gate.tally import (
    MAX_STEPS,
    METRICS,
    PASS_RATE,
    REGRESSIONS,
    REWARD,
    Comparisons,
    mean_of,
)
from pytest_trace2evolve.records.verdict import Decision

SHARES_WATCH = 0.5
"""How much of the level at which a check is left undecided the shares of actions have: at all of it, nine of
ten agents as good as their baseline would no longer be promoted at 114 tasks of 4 trials."""

NOT_APPLICABLE, PASS, UNDECIDED, FAIL = range(4)
"""A check's answer, as it stands in arrays."""


@dataclass(frozen=True)
class Rules:
    """A policy as numbers.

    Attributes:
        improve: Whether the reward must be shown to be better; else it must be shown to be not worse.
        margins: By metric, how much worse it may be; a metric with a margin must be shown not worse.
        weights: By metric, its level as a share of `harm_alpha`; 1 where none is named, 0 leaves it out.
        claim_alpha: Level of what must be shown.
        harm_alpha: Level at which the whole policy may discard a candidate that is no worse.
        watch_alpha: A p-value up to here leaves a check undecided: unadjusted, but for the three shares of
            actions, which are adjusted among themselves and have `SHARES_WATCH` of it, and for the
            invariants, which are adjusted over their kinds.
        drop_alpha: A p-value of the reward up to here fails it, unadjusted (goal `no-regression`).
        guard: Whether the split is a guard: then every p-value up to `watch_alpha`, of the shares of actions
            too, leaves its check undecided.
        block_suspected: Whether a suspected task withholds a promotion.
        within: Whether these very tasks are meant, with the noise of their trials alone (estimand `suite`).
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

    @property
    def shares_weight(self) -> float:
        """The weight of the three shares of actions as one question: the largest of theirs."""
        return max(self.weights.get(name, 1.0) for name in KINDS)


@dataclass(frozen=True)
class Finding:
    """One metric of each comparison; arrays of shape (R,).

    Attributes:
        estimate, low, high: The difference and its one-sided bounds.
        tasks: How many tasks it rests on.
        deviation: Standard deviation of the differences over tasks; NaN for counts of tasks.
        harm: p of "no decline", unadjusted; NaN where the metric does not apply.
        gain: p of "no rise"; NaN likewise.
        blocked: Whether something beside these p-values leaves it undecided.
        worst: Of `INVARIANTS`, the place in `BREACHES` of the kind that the figures are of.
    """

    estimate: Floats
    low: Floats
    high: Floats
    tasks: Floats
    deviation: Floats
    harm: Floats
    gain: Floats
    blocked: Flags
    worst: Counts | None = None


@dataclass(frozen=True)
class Outcome:
    """What a policy finds in each comparison.

    Attributes:
        findings: By metric.
        adjusted: By metric, the Holm-adjusted p of harm.
        answers: By metric, `PASS`, `UNDECIDED`, `FAIL` or `NOT_APPLICABLE`; shape (R,).
    """

    findings: Mapping[str, Finding]
    adjusted: Mapping[str, Floats]
    answers: Mapping[str, np.ndarray]

    @property
    def decisions(self) -> np.ndarray:
        """`Decision.rank` of each comparison: 0 discard, 1 inconclusive, 2 promote."""
        answers = np.stack(list(self.answers.values()))
        undecided = np.where((answers == UNDECIDED).any(axis=0), 1, 2)
        ranks: np.ndarray = np.where((answers == FAIL).any(axis=0), Decision.DISCARD.rank, undecided)
        return ranks


def evaluate(compared: Comparisons, rules: Rules, further: Mapping[str, Floats] | None = None) -> Outcome:
    """Find what a policy finds.

    Args:
        compared: The comparisons.
        rules: The policy.
        further: By the ids of checks of others, their p-values of harm, shape (R,): they share the error.
    """
    findings = find(compared, rules)
    harm = {name: found.harm for name, found in findings.items() if rules.weights.get(name, 1.0) > 0}
    within, adjusted = _adjusted({**harm, **(further or {})}, rules)
    answers = {}
    for name, found in findings.items():
        applies = ~np.isnan(found.harm)
        weight = SHARES_WATCH * rules.shares_weight if name in KINDS else rules.weights.get(name, 1.0)
        if name == REWARD and rules.improve:
            shown = (found.gain <= rules.claim_alpha) & (found.estimate > 0)
        elif name in rules.margins:
            shown = found.low > -rules.margins[name]
        elif rules.guard:
            shown = found.harm > rules.watch_alpha
        else:
            shown = within[name] > rules.watch_alpha * weight
        shown &= ~found.blocked
        fails = adjusted[name] <= rules.harm_alpha if name in adjusted else np.zeros_like(applies)
        if name == REWARD:
            fails |= found.harm <= rules.drop_alpha
        answer = np.where(fails, FAIL, np.where(shown, PASS, UNDECIDED))
        # One trial a task (estimand `suite`) cannot say how much trials differ: nothing is shown.
        open_ = compared.both.any(axis=1) & (name == REWARD)
        answers[name] = np.where(applies, answer, np.where(open_, UNDECIDED, NOT_APPLICABLE))
    return Outcome(findings, adjusted, answers)


def _adjusted(p: Mapping[str, Floats], rules: Rules) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """p-values adjusted within their family, and over the whole policy.

    The three shares of gold actions are one family, since they ask one question of the same calls; every
    other check is a family of its own. Holm's method goes over the families, and within one at its level.
    """
    shares = holm({name: p[name] for name in KINDS if name in p}, rules.weights)
    within = {**p, **shares}
    families = {name: values for name, values in p.items() if name not in shares}
    if shares:
        everything = np.stack(list(shares.values()))
        none = np.isnan(everything).all(axis=0)
        families["actions"] = np.where(
            none, np.nan, np.where(np.isnan(everything), 2.0, everything).min(axis=0)
        )
    over = holm(families, {**rules.weights, "actions": rules.shares_weight})
    adjusted = {}
    for name, values in within.items():
        family = "actions" if name in shares else name
        with np.errstate(invalid="ignore", divide="ignore"):
            factor = np.where(families[family] > 0, over[family] / families[family], 1.0)
        adjusted[name] = np.minimum(np.maximum(values * factor, over[family]), 1.0)
    return within, adjusted


def find(compared: Comparisons, rules: Rules) -> dict[str, Finding]:
    """The metrics of each comparison, those that a policy does not watch apart."""
    found: dict[str, Finding] = {}
    for metric in METRICS:
        if rules.weights.get(metric, 1.0) <= 0 and metric not in rules.margins and metric != REWARD:
            continue
        if metric == REGRESSIONS:
            found[metric] = _regressions(compared, rules)
        elif metric == MAX_STEPS:
            hit = [side.max_steps > 0 for side in (compared.baseline, compared.candidate)]
            ran = (compared.baseline.trials > 0) & (compared.candidate.trials > 0)
            found[metric] = _more_tasks(hit[1] & ~hit[0] & ran, hit[0] & ~hit[1] & ran, ran, rules)
        elif metric == INVARIANTS:
            if compared.held.any():
                found[metric] = _invariants(compared, rules)
        elif metric == PASS_RATE and np.all(compared.binary):
            continue
        else:
            found[metric] = _of_means(compared, metric, rules)
    return found


def _of_means(compared: Comparisons, metric: str, rules: Rules) -> Finding:
    found = _within(compared, metric, rules) if rules.within else _paired(compared, metric, rules)
    if metric != PASS_RATE:
        return found
    return replace(
        found,
        harm=np.where(compared.binary, np.nan, found.harm),
        gain=np.where(compared.binary, np.nan, found.gain),
    )


def _paired(compared: Comparisons, metric: str, rules: Rules) -> Finding:
    at = bounds(compared.difference(metric), rules.claim_alpha)
    flips = compared.flips(metric)
    return _finding(at, flips.low, flips.high)


def _finding(at: Bounds, low: Floats, high: Floats) -> Finding:
    none = at.tasks == 0
    return Finding(
        estimate=at.mean,
        low=at.low,
        high=at.high,
        tasks=at.tasks,
        deviation=at.deviation,
        harm=np.where(none, np.nan, low),
        gain=np.where(none, np.nan, high),
        blocked=np.zeros(none.shape, dtype=np.bool_),
    )


def _more_tasks(worse: Flags, better: Flags, among: Flags, rules: Rules) -> Finding:
    """Tasks that turned worse less those that turned better, as a share of all; p by McNemar's test."""
    up, down = worse.sum(axis=1).astype(np.float64), better.sum(axis=1).astype(np.float64)
    changes = np.where(among, worse.astype(np.float64) - better, np.nan)
    found = _finding(bounds(changes, rules.claim_alpha), mcnemar(up, down), mcnemar(down, up))
    return replace(found, deviation=np.full(up.shape, np.nan))


def _invariants(compared: Comparisons, rules: Rules) -> Finding:
    """The rise of the share of a task's trials that break an invariant, for the kind with the smallest p.

    p of harm is Holm's smallest over the kinds: the smallest p times the number of kinds. Kinds that nobody
    broke count too. So a further breach can only lower p, and never adds a kind to adjust for.
    """
    sides = compared.baseline, compared.candidate
    # A kind without a breach on either side has p = 1: its test can be left out.
    places = [place for place, name in enumerate(BREACHES) if any(name in side.matched for side in sides)]
    places = places or [0]
    names = [list(BREACHES)[place] for place in places]
    kinds = [
        _finding(bounds(-compared.difference(name), rules.claim_alpha), flips.low, flips.high)
        for name, flips in ((name, compared.flips(name)) for name in names)
    ]
    harm = np.stack([kind.harm for kind in kinds])
    # Of equal p-values the larger rise is the worse; NaN stands for no task that was checked.
    order = np.lexsort((np.stack([-kind.estimate for kind in kinds]), harm), axis=0)[0]
    rows = np.arange(harm.shape[1])
    chosen = {
        field: np.stack([getattr(kind, field) for kind in kinds])[order, rows]
        for field in ("estimate", "low", "high", "tasks", "deviation", "harm", "gain")
    }
    chosen["harm"] = np.minimum(chosen["harm"] * len(BREACHES), 1.0)
    return Finding(**chosen, blocked=np.zeros(len(rows), dtype=np.bool_), worst=np.array(places)[order])


def _regressions(compared: Comparisons, rules: Rules) -> Finding:
    """Broken tasks: each by its own test; those that cannot be confirmed together, against the fixed."""
    found = _more_tasks(compared.broken, compared.fixed, compared.both, rules)
    p, size = task_p(compared)
    smallest = np.minimum(p.min(axis=1, initial=1.0) * np.maximum(size, 1), 1.0)
    suspected, fixed = compared.suspected.sum(axis=1), compared.fixed.sum(axis=1)
    excess = mcnemar(suspected.astype(np.float64), fixed.astype(np.float64))
    blocked = (excess <= rules.watch_alpha) | (rules.block_suspected & (suspected > 0))
    return replace(found, harm=np.where(np.isnan(found.harm), np.nan, smallest), blocked=blocked)


def _within(compared: Comparisons, metric: str, rules: Rules) -> Finding:
    """The mean difference on these very tasks: its error comes from their trials alone.

    Welch's variance of each task's difference, summed; one pseudo-task's worth is added, as in `bounds`.
    Source of the degrees of freedom: pooled over tasks and sides, n(K - 1) each.
    """
    old, new = compared.baseline, compared.candidate
    differences = compared.difference(metric)
    known = ~np.isnan(differences) & (old.measured > 1) & (new.measured > 1)
    if metric == REWARD:
        spread = old.within / np.maximum(old.measured, 1) + new.within / np.maximum(new.measured, 1)
    else:
        rates = [mean_of(side.passed, side.measured) if metric == PASS_RATE else side.share(metric)
                 for side in (old, new)]  # fmt: skip
        # A share lies between 0 and 1, so that its variance is at most that of a coin with its mean.
        noise = [rate * (1 - rate) / np.maximum(side.measured - 1, 1)
                 for rate, side in zip(rates, (old, new), strict=True)]  # fmt: skip
        spread = noise[0] + noise[1]
    n = known.sum(axis=1).astype(np.float64)
    freedom = np.where(known, old.measured + new.measured - 2, 0).sum(axis=1).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(known, differences, 0.0).sum(axis=1) / n
        trials = np.where(known, np.minimum(old.measured, new.measured), 0).sum(axis=1) / n
        error = np.sqrt(np.where(known, spread, 0.0).sum(axis=1) + 0.25 / trials) / n
        reach = scipy.stats.t.ppf(1.0 - rules.claim_alpha, freedom) * error
        low = scipy.stats.t.cdf(mean / error, freedom)
    at = Bounds(n, mean, np.maximum(mean - reach, -1.0), np.minimum(mean + reach, 1.0), error * np.sqrt(n))
    return _finding(at, low, 1.0 - low)
