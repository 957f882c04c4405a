"""Confidence intervals, detectable effects, and the numbers of tasks and trials that would settle a check.

Student's bounds alone let a true loss of five points through far too often when nearly all tasks agree. The
sample may then contain no broken task, so the variance is close to 0. Adding one pseudo-task with an effect
of one half corrects the bounds.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import scipy

from pytest_trace2evolve.gate.columns import Flags, Floats
from pytest_trace2evolve.gate.pairs import Comparisons, Pairs
from pytest_trace2evolve.gate.significance import mcnemar, stratified_fisher
from pytest_trace2evolve.records.verdict import NeededEvidence, Obstacle

CONFIDENCE_LEVEL = 0.95
"""The confidence level of a two-sided interval, or of all intervals of a report simultaneously."""

PSEUDO_TASK = 0.5
"""The effect of the pseudo-task, as a share of the distance from the centre of the range to either end."""

_MIN_STANDARD_ERROR = 1e-12


def student_quantile(probability: Floats | float, degrees_of_freedom: Floats | float) -> Floats:
    """The quantile of Student's t-distribution; NaN without degrees of freedom."""
    return np.asarray(scipy.special.stdtrit(degrees_of_freedom, probability))


@dataclass(frozen=True)
class Bounds:
    """A mean over tasks with its one-sided bounds, one value per comparison.

    Attributes:
        estimate, low, high: The mean and its bounds; NaN if no task had a value.
        tasks: The number of tasks with a value (n).
        deviation: Standard deviation over tasks, including the pseudo-task; never 0.
    """

    estimate: Floats
    low: Floats
    high: Floats
    tasks: Floats
    deviation: Floats


def mean_bounds(
    values: Floats,
    alpha: float | Floats,
    *,
    minimum: float = -1.0,
    maximum: float = 1.0,
    min_error: float | Floats = 0.0,
) -> Bounds:
    """The bounds of the mean of each row of values, one-sided at significance level alpha.

    The lower bound is the smaller of Student's with and without a pseudo-task a quarter of the range above
    the minimum (-1/2 for differences between -1 and 1). The upper bound mirrors it. In rows without variance,
    the bounds without the pseudo-task lie 1 - alpha^(1/n) from the mean. If none of n tasks deviates, at most
    that share of all tasks does (the exact bound of Clopper and Pearson, 1934), and each costs 1 at most.

    Args:
        values: Shape (R, N); NaN if a task has no value.
        alpha: The significance level, one for all rows or one per row.
        minimum, maximum: The range of a value.
        min_error: The least standard error of the mean, one for all rows or one per row.
    """
    is_known = ~np.isnan(values)
    n = is_known.sum(axis=1).astype(np.float64)
    values_or_zero = np.where(is_known, values, 0.0)
    half_range = PSEUDO_TASK * (maximum - minimum) / 2.0
    centre = (maximum + minimum) / 2.0
    level = np.broadcast_to(np.asarray(alpha, dtype=np.float64), n.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = values_or_zero.sum(axis=1) / n
        squares = np.where(is_known, (values - mean[:, None]) ** 2, 0.0).sum(axis=1)
        squares = np.maximum(squares, n * (n - 1) * np.square(min_error))
        error = np.sqrt(squares / (n - 1) / n)
        is_flat = ~(error > _MIN_STANDARD_ERROR)
        half_width = np.where(is_flat, 1.0 - level ** (1.0 / n), student_quantile(1.0 - level, n - 1) * error)
        pseudo_low, _ = _bounds_with_task(mean, squares, n, level, centre - half_range)
        _, pseudo_high = _bounds_with_task(mean, squares, n, level, centre + half_range)
        low, high = np.minimum(mean - half_width, pseudo_low), np.maximum(mean + half_width, pseudo_high)
        deviation = np.sqrt((squares + half_range**2) / n)
    is_empty = n == 0
    return Bounds(
        estimate=np.where(is_empty, np.nan, mean),
        low=np.where(is_empty, np.nan, np.maximum(low, minimum)),
        high=np.where(is_empty, np.nan, np.minimum(high, maximum)),
        tasks=n,
        deviation=np.where(is_empty, np.nan, deviation),
    )


def _bounds_with_task(
    mean: Floats, squares: Floats, n: Floats, level: Floats, value: float
) -> tuple[Floats, Floats]:
    """Student's bounds after adding a task with the given value."""
    count = n + 1
    new_mean = (mean * n + value) / count
    new_squares = squares + (value - mean) ** 2 * n / count
    half_width = student_quantile(1.0 - level, count - 1) * np.sqrt(new_squares / (count - 1) / count)
    return new_mean - half_width, new_mean + half_width


def clopper_pearson(count: int, total: int, level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
    """The exact two-sided interval of a share (Clopper and Pearson, 1934)."""
    tail = (1 - level) / 2
    low = scipy.special.betaincinv(count, total - count + 1, tail) if count else 0.0
    high = scipy.special.betaincinv(count + 1, total - count, 1 - tail) if count < total else 1.0
    return float(low), float(high)


def wilson(share: float, count: float, z: float) -> tuple[float, float]:
    """Wilson's score interval (1927) of a share of `count` cases; z is the normal quantile."""
    scale = 1 + z * z / count
    centre = (share + z * z / (2 * count)) / scale
    half_width = z / scale * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(centre - half_width, 0.0), min(centre + half_width, 1.0)


@dataclass(frozen=True)
class Cluster:
    """Counts of one task's traces, averaged over runs of the labeller, so they need not be whole numbers.

    Attributes:
        lacking_count: Traces that lack the capability.
        labelled_count: Traces that show the capability or lack it.
    """

    lacking_count: float
    labelled_count: float


def difference_interval(
    first: Sequence[Cluster],
    second: Sequence[Cluster],
    *,
    comparisons: int = 1,
    level: float = CONFIDENCE_LEVEL,
) -> tuple[float, float] | None:
    """The confidence interval of the first share minus the second; None if a side has no trace.

    Newcombe (1998), "Interval estimation for the difference between independent proportions", method 10:
    two Wilson intervals combined. Trials of one task resemble each other, so each side counts as the number
    of independent traces with the same information: n divided by the design effect (Rao and Scott, 1992, "A
    simple method for the analysis of clustered binary data"). Both sides share one correlation, because a
    side's own correlation would jump when its last differing trace is added or removed. Tasks that are on
    both sides make the two shares alike. The interval ignores this and is therefore wider.

    Args:
        first, second: One cluster per task.
        comparisons: The number of intervals that hold simultaneously (Bonferroni).
        level: The simultaneous confidence level of all the intervals.
    """
    sides = [[cluster for cluster in side if cluster.labelled_count > 0] for side in (first, second)]
    if not all(sides):
        return None
    rho = correlation(sides)
    (p, n), (q, m) = (_share_and_effective_count(side, rho) for side in sides)
    z = NormalDist().inv_cdf(1 - (1 - level) / (2 * max(comparisons, 1)))
    low_p, high_p = wilson(p, n, z)
    low_q, high_q = wilson(q, m, z)
    low = p - q - math.hypot(p - low_p, high_q - q)
    high = p - q + math.hypot(high_p - p, q - low_q)
    return max(low, -1.0), min(high, 1.0)


def correlation(sides: Sequence[Sequence[Cluster]]) -> float:
    """The correlation between trials of one task, from 0 to 1, estimated from both sides together.

    The estimate uses moments: the squares of clusters' residuals lie between those of independent traces and
    those of clusters that agree within themselves. A side whose traces all agree carries no information about
    the correlation, so the other side determines it. If the traces of both sides all agree, each task counts
    as a single trace.
    """
    squares = min_squares = max_squares = 0.0
    for side in sides:
        total = sum(cluster.labelled_count for cluster in side)
        share = min(sum(cluster.lacking_count for cluster in side) / total, 1.0)
        spread, count = share * (1 - share), len(side)
        if count > 1:
            residual_squares = sum(
                (cluster.lacking_count - share * cluster.labelled_count) ** 2 for cluster in side
            )
            squares += count / (count - 1) * residual_squares
            min_squares += spread * total
            max_squares += spread * sum(cluster.labelled_count**2 for cluster in side)
    if not min_squares:
        return 1.0
    return (
        min(max((squares - min_squares) / (max_squares - min_squares), 0.0), 1.0)
        if max_squares > min_squares
        else 0.0
    )


def _share_and_effective_count(side: Sequence[Cluster], rho: float) -> tuple[float, float]:
    """The share of a side, and its effective number of traces.

    The effective number is n / (1 + (m − 1)ρ), where m is the mean size of a trace's cluster.
    """
    total = sum(cluster.labelled_count for cluster in side)
    mean_size = sum(cluster.labelled_count**2 for cluster in side) / total
    share = min(sum(cluster.lacking_count for cluster in side) / total, 1.0)
    return share, total / (1 + max(mean_size - 1, 0.0) * rho)


# Detectable effects.

POWER = 0.8
"""An effect counts as detectable if four of five comparisons would show it."""

GUARDED_DROP = 0.20
"""The drop of the mean reward that a guard must have been able to detect."""

MAX_TRIALS, MAX_TASKS = 64, 2_000
"""The largest numbers of trials and tasks that are suggested."""

_MAX_ROUNDING_ERROR = 1e-9
"""Effects up to this size count as 0, because a mean of differences that cancel out is seldom exactly 0."""

_DROPS = np.linspace(0.001, 1.0, 1_000)


def detectable_change(deviation: float, tasks: float, alpha: float) -> float | None:
    """The smallest mean difference that a one-sided t-test at alpha shows in four of five comparisons.

    `deviation` is the standard deviation of the differences over tasks. The result is None below two tasks.
    """
    if tasks < 2 or np.isnan(deviation):
        return None
    return float(min(_quantile_sum(alpha, tasks) * deviation / np.sqrt(tasks), 1.0))


def _quantile_sum(alpha: float, tasks: float) -> float:
    """The sum of Student's quantiles of the significance level and of the power."""
    return float(student_quantile(np.array([1 - alpha, POWER]), tasks - 1).sum())


def detectable_task_share(better_count: int, tasks: float, alpha: float) -> float | None:
    """The smallest net share of tasks that must turn worse for McNemar's test to show it.

    The net share subtracts the `better_count` tasks that turned better. None if no share is enough.
    """
    if not tasks:
        return None
    worse_counts = np.arange(int(tasks) + 1, dtype=np.float64)
    sufficient_counts = worse_counts[
        mcnemar(worse_counts, np.full(worse_counts.shape, float(better_count))) <= alpha
    ]
    return float(sufficient_counts[0] - better_count) / float(tasks) if sufficient_counts.size else None


def detects(
    drop: Floats | float,
    deviation: Floats,
    tasks: Floats,
    trials: Floats,
    alpha: float,
    *,
    has_fixed_tasks: bool = False,
) -> Flags:
    """Whether comparisons detect a drop of the mean reward in four of five cases.

    The drop is modelled as in `calibrate`: each success of the candidate fails with the same chance. It adds
    the noise of K trials, drop · (1 − drop) / K, to the observed variance of a task's difference, s² (Bhatia
    and Davis, 2000: no outcome between 0 and 1 with that mean varies more). The sign-flip test uses the mean
    square of the differences as their variance, so a drop of size d is detected if

        d · sqrt(n) ≥ t(1 − alpha) · sqrt(s² + d² + d (1 − d) / K) + t(.8) · sqrt(s² + d (1 − d) / K).

    Source: the power of a randomisation test by its normal approximation (Lehmann, Nonparametrics, 1975,
    section 4.2), with Student's quantiles at n − 1 degrees of freedom in place of the normal ones. s²
    includes the pseudo-task of `mean_bounds`, so that a few tasks that all agree do not count as certainty.

    On fixed tasks, the test is Welch's, whose variance does not contain the drop itself. The term d² is then
    left out, and there are 2 n (K − 1) degrees of freedom, as in `checks`.

    Args:
        drop: Sizes between 0 and 1; broadcast with the other arrays.
        deviation: s, as returned by `mean_bounds`.
        tasks: n; nothing is detected below two tasks.
        trials: K, the trials of a task on either side.
        alpha: The significance level of the one-sided test.
        has_fixed_tasks: Whether the comparison is about exactly these tasks (estimand `suite`).
    """
    spread = drop * (1 - drop) / trials
    drop_variance = 0.0 if has_fixed_tasks else drop**2
    degrees_of_freedom = 2 * tasks * (trials - 1) if has_fixed_tasks else tasks - 1
    with np.errstate(invalid="ignore"):
        level_quantile, power_quantile = (
            student_quantile(chance, np.maximum(degrees_of_freedom, 1)) for chance in (1 - alpha, POWER)
        )
        needed = level_quantile * np.sqrt(deviation**2 + drop_variance + spread) + power_quantile * np.sqrt(
            deviation**2 + spread
        )
        return np.asarray((tasks >= 2) & (drop * np.sqrt(tasks) >= needed))


def predictive_power(p: Floats | float, alpha: float, fraction: float) -> Floats:
    """The chance that all trials show a gain, if a one-sided test of some of them has p-value `p`.

    It is Φ((z − z_α · √t) / √(1 − t)), where z belongs to p, and t is the fraction: the conditional power,
    averaged over the gains that the data so far allow (Spiegelhalter, Freedman and Blackburn, Controlled
    Clinical Trials 1986, with a flat prior). Conditional power at the observed gain is lower after few
    trials, and would end one of ten runs whose gain all trials would show.

    Args:
        p: p-values of "no gain" so far, any shape.
        alpha: The level of the test with all trials, between 0 and 1.
        fraction: The share of the trials that were made, above 0 and below 1.
    """
    z = -scipy.special.ndtri(np.clip(p, 1e-12, 1 - 1e-12))
    critical = -scipy.special.ndtri(alpha)
    return np.asarray(scipy.special.ndtr((z - critical * math.sqrt(fraction)) / math.sqrt(1 - fraction)))


def information_share(trials: float, max_trials: float, baseline_trials: float) -> float:
    """The share of the information of `max_trials` that a stage has, if the baseline's trials are fixed.

    Information is the reciprocal of the variance of trials, 1 / `trials` + 1 / `baseline_trials`.
    """
    return (1 / max_trials + 1 / baseline_trials) / (1 / trials + 1 / baseline_trials)


@dataclass(frozen=True)
class Sensitivity:
    """The drop of the mean reward that a comparison could have detected.

    Attributes:
        drop: The smallest drop that four of five comparisons would have detected, 0 to 1; None if no drop is
            detectable.
        tasks: The number of tasks with the same spread and trials that would detect `GUARDED_DROP`; None if
            it is more than `MAX_TASKS`.
        low: The one-sided lower bound of the change of the mean reward, −1 to 1; NaN if it is unknown.
    """

    drop: float | None
    tasks: int | None
    low: float = math.nan


def drop_sensitivity(
    deviation: float, tasks: float, trials: float, alpha: float, *, has_fixed_tasks: bool = False
) -> Sensitivity:
    """The sensitivity of one comparison, in steps of a tenth of a point; `detects` explains the arguments."""
    # Further tasks would vary like the present ones; the pseudo-task's share of the variance shrinks.
    pseudo_variance = PSEUDO_TASK**2 / (trials if has_fixed_tasks else 1)
    task_variance = max(0.0, deviation**2 - pseudo_variance / tasks) if tasks else math.nan

    def is_detected(drop: float, spread: float, number: float) -> bool:
        return bool(
            detects(
                drop,
                np.asarray(spread),
                np.asarray(number),
                np.asarray(trials),
                alpha,
                has_fixed_tasks=has_fixed_tasks,
            )
        )

    smallest_index = _first_sufficient(
        range(len(_DROPS)), lambda index: is_detected(_DROPS[index], deviation, tasks)
    )
    sufficient_tasks = _first_sufficient(
        range(2, MAX_TASKS + 1),
        lambda number: is_detected(GUARDED_DROP, math.sqrt(task_variance + pseudo_variance / number), number),
    )
    return Sensitivity(None if smallest_index is None else float(_DROPS[smallest_index]), sufficient_tasks)


@dataclass(frozen=True)
class Spread:
    """The variance of a task's difference, split into its parts.

    Attributes:
        between: Variance between tasks.
        within: Variance of one trial within a task, on the baseline and on the candidate; further trials
            average this noise out.
        trials: The trials of a task on the baseline and on the candidate.
        tasks: The number of tasks that were compared.
    """

    between: float
    within: tuple[float, float]
    trials: tuple[int, int]
    tasks: int

    def trials_with(self, trials: int) -> tuple[int, int]:
        """The trials of both sides if the candidate has `trials`; the baseline keeps what it has."""
        return max(self.trials[0], trials), trials

    def standard_error(self, trials: tuple[int, int], tasks: int) -> float:
        """The standard error of the mean difference for the given numbers of tasks and trials."""
        noise = sum(within / count for within, count in zip(self.within, trials, strict=True))
        return float(np.sqrt((self.between + noise) / tasks))


def spread_of(pairs: Pairs, deviation: float) -> Spread:
    """Split the spread of the reward's differences into its parts.

    With one trial per side, the parts cannot be separated. The whole spread then counts as noise of trials,
    which is correct for a candidate that does not differ.
    """
    is_measured = pairs.measured_on_both
    old, new = (max(1, int(np.median(side.measured[is_measured]))) for side in pairs.sides)
    variances = [side.variance[is_measured & (side.measured > 1)] for side in pairs.sides]
    means = [float(side.mean()) for side in variances if side.size]
    if means and max(old, new) > 1:
        within = means[0], means[-1]
    else:
        within = (deviation**2 / (1 / old + 1 / new),) * 2
    between = max(0.0, deviation**2 - within[0] / old - within[1] / new)
    return Spread(between, within, (old, new), int(is_measured.sum()))


def estimate_needed_evidence(
    check_id: str,
    effect: float,
    spread: Spread,
    pairs: Pairs,
    *,
    alpha: float,
    next_alpha: float,
    is_exact: bool = False,
) -> NeededEvidence:
    """The numbers of trials and tasks that would show an effect of this size in four of five comparisons.

    Args:
        check_id: The undecided check.
        effect: The distance to the check's threshold, if the estimate is right. Nothing settles an effect of
            0 or less: below 0 the change points the wrong way, and 0 is too small to detect.
        spread: The spread of differences over tasks.
        pairs: The compared pairs, which also hold the cost of a simulation.
        alpha, next_alpha: The check's significance level now, and in an analysis with more trials.
        is_exact: Whether the check is the exact test of a gain on exactly these tasks. Then the trials are
            those that show the gain if each task keeps its pass rates, and more tasks are no answer.
    """
    if effect < -_MAX_ROUNDING_ERROR:
        return NeededEvidence(check=check_id, obstacle=Obstacle.WRONG_DIRECTION)
    if effect <= _MAX_ROUNDING_ERROR:
        return NeededEvidence(check=check_id, obstacle=Obstacle.TOO_SMALL)

    def is_enough(trials: tuple[int, int], tasks: int, level: float) -> bool:
        return tasks >= 2 and bool(
            _quantile_sum(level, tasks) * spread.standard_error(trials, tasks) <= effect
        )

    trial_range = range(spread.trials[1] + 1, MAX_TRIALS + 1)
    if is_exact and np.all(pairs.comparisons.is_binary):
        trials, tasks = _first_exact(trial_range, pairs.comparisons, next_alpha), None
    else:
        trials = _first_sufficient(
            trial_range, lambda count: is_enough(spread.trials_with(count), spread.tasks, next_alpha)
        )
        task_range = range(0) if is_exact else range(spread.tasks + 1, 100 * max(spread.tasks, 2))
        tasks = _first_sufficient(task_range, lambda count: is_enough(spread.trials, count, alpha))
    further = 0 if trials is None else sum(spread.trials_with(trials)) - sum(spread.trials)
    simulations = None if trials is None else spread.tasks * further
    return NeededEvidence(
        check=check_id,
        trials=trials,
        tasks=tasks,
        obstacle=Obstacle.TOO_SMALL if trials is None and tasks is None else None,
        simulations=simulations,
        cost=None if simulations is None or pairs.cost is None else simulations * pairs.cost,
        tokens=None if simulations is None or pairs.tokens is None else round(simulations * pairs.tokens),
    )


def _first_exact(trial_range: range, comparisons: Comparisons, alpha: float) -> int | None:
    """The first number of the candidate's trials that gives p ≤ `alpha` if all pass rates stay the same.

    The baseline keeps its trials if it has more.
    """
    if not trial_range:
        return None
    trials = np.array(trial_range)[:, np.newaxis]
    old, new = comparisons.baseline, comparisons.candidate
    counts = np.maximum(trials, old.measured), np.broadcast_to(trials, (len(trials), new.measured.shape[1]))
    old_failed, new_failed = (
        np.rint((1.0 - side.successes[0] / np.maximum(side.measured[0], 1)) * count).astype(np.int64)
        for side, count in zip((old, new), counts, strict=True)
    )
    enough = np.flatnonzero(stratified_fisher(new_failed, counts[1], old_failed, counts[0]) <= alpha)
    return trial_range[int(enough[0])] if len(enough) else None


def _first_sufficient(numbers: range, is_enough: Callable[[int], bool]) -> int | None:
    """The first number that is enough, assuming that every later number is enough too; None if none is."""
    index = bisect_left(numbers, True, key=is_enough)
    return numbers[index] if index < len(numbers) else None
