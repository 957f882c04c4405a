"""What the calibrated policy finds, for one comparison or for thousands at once.

Rows are comparisons: the gate has one, calibration and simulation have as many as they draw. All that a
policy decides is decided here, so that what was calibrated is what gates.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import stats

from pytest_trace2evolve.gate.bounds import Bounds, bounds
from pytest_trace2evolve.gate.columns import INVARIANTS, KINDS, Flags, Floats
from pytest_trace2evolve.gate.confirm import fisher
from pytest_trace2evolve.gate.signflip import SignFlip, sign_flip
from pytest_trace2evolve.gate.tally import Tally, mean_of
from pytest_trace2evolve.records.verdict import Decision

REWARD, PASS_RATE, REGRESSIONS, MAX_STEPS = "reward", "pass_rate", "task_regressions", "max_steps"
METRICS = (REWARD, PASS_RATE, *KINDS, REGRESSIONS, MAX_STEPS, INVARIANTS)
"""What the policy looks at, in the order in which it is printed."""

_MOST_COMMON = 5_040
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
            actions, which are adjusted among themselves and have `SHARES_WATCH` of it.
        block_suspected: Whether a suspected task withholds a promotion.
        within: Whether these very tasks are meant, with the noise of their trials alone (estimand `suite`).
    """

    improve: bool
    margins: Mapping[str, float]
    weights: Mapping[str, float] = field(default_factory=dict)
    claim_alpha: float = 0.05
    harm_alpha: float = 0.05
    watch_alpha: float = 0.05
    block_suspected: bool = False
    within: bool = False

    @property
    def shares_weight(self) -> float:
        """The weight of the three shares of actions as one question: the largest of theirs."""
        return max(self.weights.get(name, 1.0) for name in KINDS)


@dataclass(frozen=True)
class Case:
    """Comparisons: two tallies of arrays (R, N), and p-values of fresh trials.

    Attributes:
        baseline, candidate: What either side did.
        fresh: p that a task is worse, from fresh trials of both sides alone, shape (R, N); NaN where a task
            has none. None: nothing could be confirmed (recorded runs).
        binary: By comparison, whether every reward is 0 or 1: the pass rate then says nothing new.
    """

    baseline: Tally
    candidate: Tally
    fresh: Floats | None = None
    binary: bool | Flags = True
    _flips: dict[str, SignFlip] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def both(self) -> Flags:
        """Tasks with a measured trial on both sides."""
        return (self.baseline.measured > 0) & (self.candidate.measured > 0)

    @property
    def broken(self) -> Flags:
        """Tasks that pass on the baseline and not on the candidate."""
        return self.both & self.baseline.passes & ~self.candidate.passes

    @property
    def fixed(self) -> Flags:
        """Tasks that pass on the candidate and not on the baseline."""
        return self.both & ~self.baseline.passes & self.candidate.passes

    @property
    def suspected(self) -> Flags:
        """Broken tasks that fresh trials neither confirmed nor cleared."""
        return self.broken if self.fresh is None else self.broken & np.isnan(self.fresh)

    @property
    def common_trials(self) -> int:
        """A number that all tasks' measured trials divide; 1 where it would be large."""
        counts = np.unique(np.concatenate([self.baseline.measured.ravel(), self.candidate.measured.ravel()]))
        common = math.lcm(*counts[counts > 0].tolist())
        return common if common <= _MOST_COMMON else 1

    def difference(self, metric: str) -> Floats:
        """Candidate minus baseline by task; NaN where it is not known on both sides."""
        sides = self.candidate, self.baseline
        if metric == REWARD:
            values = [side.mean_reward for side in sides]
        elif metric == PASS_RATE:
            values = [side.pass_rate for side in sides]
        else:
            values = [side.share(metric) for side in sides]
        return np.asarray(values[0] - values[1])

    def flips(self, metric: str) -> SignFlip:
        """The sign-flip test of a metric, worked out once whatever is asked of these comparisons."""
        if metric not in self._flips:
            self._flips[metric] = sign_flip(self.difference(metric), self.common_trials)
        return self._flips[metric]


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
    """

    estimate: Floats
    low: Floats
    high: Floats
    tasks: Floats
    deviation: Floats
    harm: Floats
    gain: Floats
    blocked: Flags


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


def evaluate(case: Case, rules: Rules, further: Mapping[str, Floats] | None = None) -> Outcome:
    """Find what a policy finds.

    Args:
        case: The comparisons.
        rules: The policy.
        further: By the ids of checks of others, their p-values of harm, shape (R,): they share the error.
    """
    findings = find(case, rules)
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
        else:
            shown = within[name] > rules.watch_alpha * weight
        shown &= ~found.blocked
        fails = adjusted[name] <= rules.harm_alpha if name in adjusted else np.zeros_like(applies)
        answer = np.where(fails, FAIL, np.where(shown, PASS, UNDECIDED))
        # One trial a task (estimand `suite`) cannot say how much trials differ: nothing is shown.
        open_ = case.both.any(axis=1) & (name == REWARD)
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


def find(case: Case, rules: Rules) -> dict[str, Finding]:
    """The metrics of each comparison, those that a policy does not watch apart."""
    found: dict[str, Finding] = {}
    for metric in METRICS:
        if rules.weights.get(metric, 1.0) <= 0 and metric not in rules.margins and metric != REWARD:
            continue
        if metric == REGRESSIONS:
            found[metric] = _regressions(case, rules)
        elif metric == MAX_STEPS:
            hit = [side.max_steps > 0 for side in (case.baseline, case.candidate)]
            ran = (case.baseline.trials > 0) & (case.candidate.trials > 0)
            found[metric] = _more_tasks(hit[1] & ~hit[0] & ran, hit[0] & ~hit[1] & ran, ran, rules)
        elif metric == INVARIANTS:
            if (held := case.baseline.watched & case.candidate.watched).any():
                old, new = (side.alarmed for side in (case.baseline, case.candidate))
                found[metric] = _more_tasks(new & ~old & held, old & ~new & held, held, rules)
        elif metric == PASS_RATE and np.all(case.binary):
            continue
        else:
            found[metric] = _of_means(case, metric, rules)
    return found


def _of_means(case: Case, metric: str, rules: Rules) -> Finding:
    found = _within(case, metric, rules) if rules.within else _paired(case, metric, rules)
    if metric != PASS_RATE:
        return found
    return replace(
        found,
        harm=np.where(case.binary, np.nan, found.harm),
        gain=np.where(case.binary, np.nan, found.gain),
    )


def holm(p: Mapping[str, Floats], weights: Mapping[str, float]) -> dict[str, Floats]:
    """Holm's step-down adjustment over the checks of each comparison, weighted where levels differ.

    Source: Holm (1979), A simple sequentially rejective multiple test procedure; the weighted form there too.
    NaN stands for a check that does not apply and does not count.
    """
    names = list(p)
    if not names:
        return {}
    weight = np.array([weights.get(name, 1.0) for name in names])[:, None]
    raw = np.stack([p[name] for name in names])
    scaled = np.where(np.isnan(raw), np.inf, raw / weight)
    order = np.argsort(scaled, axis=0, kind="stable")
    ranked = np.take_along_axis(scaled, order, axis=0)
    weights_ranked = np.take_along_axis(np.where(np.isnan(raw), 0.0, weight), order, axis=0)
    left = np.cumsum(weights_ranked[::-1], axis=0)[::-1]
    stepped = np.maximum.accumulate(np.where(np.isinf(ranked), 0.0, ranked) * left, axis=0)
    adjusted = np.empty_like(stepped)
    np.put_along_axis(adjusted, order, np.minimum(stepped, 1.0), axis=0)
    return {name: np.where(np.isnan(raw[i]), np.nan, adjusted[i]) for i, name in enumerate(names)}


def regressed(case: Case, alpha: float) -> Flags:
    """The broken tasks that are confirmed at a level by Holm over their family, shape (R, N)."""
    p, size = _task_p(case)
    order = np.argsort(p, axis=1, kind="stable")
    ranked = np.take_along_axis(p, order, axis=1)
    left = np.maximum(size[:, None] - np.arange(p.shape[1]), 1)
    stepped = np.maximum.accumulate(ranked * left, axis=1)
    confirmed = np.empty(p.shape, dtype=np.bool_)
    np.put_along_axis(confirmed, order, stepped <= alpha, axis=1)
    return confirmed


def mcnemar(worse: Floats, better: Floats) -> Floats:
    """Exact one-sided p that more tasks turned worse than better, by the binomial distribution."""
    return np.where(worse > 0, stats.binom.sf(worse - 1, np.maximum(worse + better, 1), 0.5), 1.0)


def _paired(case: Case, metric: str, rules: Rules) -> Finding:
    at = bounds(case.difference(metric), rules.claim_alpha)
    flips = case.flips(metric)
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


def _regressions(case: Case, rules: Rules) -> Finding:
    """Broken tasks: each by its own test; those that cannot be confirmed together, against the fixed."""
    found = _more_tasks(case.broken, case.fixed, case.both, rules)
    p, size = _task_p(case)
    smallest = np.minimum(p.min(axis=1, initial=1.0) * np.maximum(size, 1), 1.0)
    suspected, fixed = case.suspected.sum(axis=1), case.fixed.sum(axis=1)
    excess = mcnemar(suspected.astype(np.float64), fixed.astype(np.float64))
    blocked = (excess <= rules.watch_alpha) | (rules.block_suspected & (suspected > 0))
    return replace(found, harm=np.where(np.isnan(found.harm), np.nan, smallest), blocked=blocked)


def _task_p(case: Case) -> tuple[Floats, np.ndarray]:
    """p of each task (1 where nothing speaks against it), and how many tasks share the error.

    With fresh trials the family is the tasks that have some: chosen by the main trials, judged by the fresh
    ones alone. Without, the main trials that flag a task also judge it, so that all tasks are the family.
    """
    if case.fresh is not None:
        return np.where(np.isnan(case.fresh), 1.0, case.fresh), (~np.isnan(case.fresh)).sum(axis=1)
    broken, old, new = case.broken, case.baseline, case.candidate
    p = np.ones(broken.shape)
    counts = [array[broken] for array in (old.passed, old.measured, new.passed, new.measured)]
    kinds, place = np.unique(np.stack(counts), axis=1, return_inverse=True)
    p[broken] = fisher(*kinds)[place.reshape(-1)] if kinds.size else np.empty(0)
    return p, np.full(broken.shape[0], broken.shape[1])


def _within(case: Case, metric: str, rules: Rules) -> Finding:
    """The mean difference on these very tasks: its error comes from their trials alone.

    Welch's variance of each task's difference, summed; one pseudo-task's worth is added, as in `bounds`.
    Source of the degrees of freedom: pooled over tasks and sides, n(K - 1) each.
    """
    old, new = case.baseline, case.candidate
    differences = case.difference(metric)
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
        reach = stats.t.ppf(1.0 - rules.claim_alpha, freedom) * error
        low = stats.t.cdf(mean / error, freedom)
    at = Bounds(n, mean, np.maximum(mean - reach, -1.0), np.minimum(mean + reach, 1.0), error * np.sqrt(n))
    return _finding(at, low, 1.0 - low)
