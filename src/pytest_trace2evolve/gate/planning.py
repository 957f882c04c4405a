"""The effects that so many tasks and trials can detect, and how many more would settle an open check.

The spread of the differences over tasks has two parts: how much the tasks themselves differ in the effect,
and the noise of their trials, which more trials average out.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pytest_trace2evolve.gate.columns import Flags, Floats
from pytest_trace2evolve.gate.intervals import PSEUDO_TASK, student
from pytest_trace2evolve.gate.pairs import Pairs
from pytest_trace2evolve.gate.significance import mcnemar
from pytest_trace2evolve.records.verdict import Obstacle, Settling

POWER = 0.8
"""An effect counts as detectable if four of five comparisons would show it."""

DETECTED = 0.20
"""The drop of the mean reward that a guard must have been able to detect."""

MAX_TRIALS = 64
"""More trials than this are no plan."""

MAX_TASKS = 2_000
"""More tasks than this are no plan."""

_ROUNDING = 1e-9
"""An effect below this is none: a mean of differences that cancel out is seldom exactly 0."""

_DROPS = np.linspace(0.001, 1.0, 1_000)


@dataclass(frozen=True)
class Sensitivity:
    """The drop of the mean reward that a comparison could have detected.

    Attributes:
        drop: The smallest that four of five comparisons would have detected, 0 to 1; None: no drop at all.
        tasks: How many tasks of the same spread and trials would detect `DETECTED`; None: more than
            `MAX_TASKS`.
    """

    drop: float | None
    tasks: int | None


@dataclass(frozen=True)
class Spread:
    """Variance of a task's difference: `between` tasks, and `within` a trial of both sides together."""

    between: float
    within: float
    trials: int
    tasks: int

    def error(self, trials: int, tasks: int) -> float:
        """Standard error of the mean difference over so many tasks of so many trials."""
        return float(np.sqrt((self.between + self.within / trials) / tasks))


def detectable(deviation: float, tasks: float, alpha: float) -> float | None:
    """The smallest mean difference that a one-sided t-test at alpha shows in four of five comparisons.

    Args:
        deviation: Standard deviation of the differences over tasks.
        tasks: Their number; below two the result is None.
        alpha: Level.
    """
    if tasks < 2 or np.isnan(deviation):
        return None
    return float(min(_quantiles(alpha, tasks) * deviation / np.sqrt(tasks), 1.0))


def _quantiles(alpha: float, tasks: float) -> float:
    """Student's quantiles of the level and of the power together."""
    return float(student(np.array([1 - alpha, POWER]), tasks - 1).sum())


def detectable_tasks(better: int, tasks: float, alpha: float) -> float | None:
    """The smallest share of tasks turned worse, less those turned better, that McNemar's test shows."""
    if not tasks:
        return None
    worse = np.arange(int(tasks) + 1, dtype=np.float64)
    enough = worse[mcnemar(worse, np.full(worse.shape, float(better))) <= alpha]
    return float(enough[0] - better) / float(tasks) if enough.size else None


def detects(drop: Floats | float, deviation: Floats, tasks: Floats, trials: Floats, alpha: float) -> Flags:
    """Whether comparisons detect a drop of the mean reward in four of five cases.

    The drop is the one that `calibrate` plants: each success of the candidate fails with the same chance. It
    adds to the observed variance of a task's difference, s², the noise drop · (1 − drop) / K of K trials
    (Bhatia and Davis, 2000: no outcome between 0 and 1 with that mean varies more). The sign-flip test takes
    the mean square of the differences for their variance, so a drop of size d is detected if

        d · sqrt(n) ≥ t(1 − alpha) · sqrt(s² + d² + d (1 − d) / K) + t(.8) · sqrt(s² + d (1 − d) / K).

    Source: the power of a randomisation test by its normal approximation (Lehmann, Nonparametrics, 1975,
    section 4.2), with Student's quantiles at n − 1 degrees of freedom for the normal ones. s² contains the
    pseudo-task of `bounds`, so that few tasks that all agree are not taken for certainty.

    Args:
        drop: Sizes between 0 and 1; broadcast with the rest.
        deviation: s, as `bounds` gives it.
        tasks: n; below two nothing is detected.
        trials: K, trials of a task on either side.
        alpha: Level of the one-sided test.
    """
    spread = drop * (1 - drop) / trials
    with np.errstate(invalid="ignore"):
        reject, miss = (student(chance, np.maximum(tasks - 1, 1)) for chance in (1 - alpha, POWER))
        needed = reject * np.sqrt(deviation**2 + drop**2 + spread) + miss * np.sqrt(deviation**2 + spread)
        return np.asarray((tasks >= 2) & (drop * np.sqrt(tasks) >= needed))


def sensitivity(deviation: float, tasks: float, trials: float, alpha: float) -> Sensitivity:
    """The smallest drop of the mean reward that one comparison detects, and the tasks that detect `DETECTED`.

    Arguments are those of `detects`. A tenth of a point is the resolution.
    """
    # Further tasks would vary like those there are; the pseudo-task's share of the variance shrinks.
    own = max(0.0, deviation**2 - PSEUDO_TASK**2 / tasks) if tasks else math.nan

    def finds(drop: float, spread: float, number: float) -> bool:
        return bool(detects(drop, np.asarray(spread), np.asarray(number), np.asarray(trials), alpha))

    smallest = _first(range(len(_DROPS)), lambda place: finds(_DROPS[place], deviation, tasks))
    enough = _first(
        range(2, MAX_TASKS + 1),
        lambda number: finds(DETECTED, math.sqrt(own + PSEUDO_TASK**2 / number), number),
    )
    return Sensitivity(None if smallest is None else float(_DROPS[smallest]), enough)


def spread_of(pairs: Pairs, deviation: float) -> Spread:
    """The parts of the spread of the reward's differences.

    With one trial a side the parts cannot be separated; all of it is then taken for noise of trials, as it is
    if the candidate does not differ.
    """
    old, new = pairs.sides
    both = pairs.both
    trials = max(1, int(np.median(np.minimum(old.measured, new.measured)[both])))
    variances = (old.variance + new.variance)[both]
    known = variances[~np.isnan(variances)]
    within = float(known.mean()) if known.size and trials > 1 else deviation**2 * trials
    between = max(0.0, deviation**2 - within / trials)
    return Spread(between, within, trials, int(both.sum()))


def settling(
    check: str,
    effect: float,
    spread: Spread,
    alpha: float,
    pairs: Pairs,
    *,
    further_alpha: float | None = None,
) -> Settling:
    """What would show an effect of this size in four of five comparisons.

    Args:
        check: The undecided check.
        effect: The distance to its threshold, if the estimate is right. Nothing settles 0 or less: below 0
            the change points the wrong way, and 0 is too small to detect.
        spread: The spread of differences over tasks.
        alpha: The check's level.
        pairs: What was compared, and the cost of a simulation.
        further_alpha: The check's level in an analysis with more trials; None if it stays the same.
    """
    if effect < -_ROUNDING:
        return Settling(check=check, obstacle=Obstacle.WRONG_DIRECTION)
    if effect <= _ROUNDING:
        return Settling(check=check, obstacle=Obstacle.TOO_SMALL)

    def enough(trials: int, tasks: int, level: float) -> bool:
        return tasks >= 2 and bool(_quantiles(level, tasks) * spread.error(trials, tasks) <= effect)

    level = alpha if further_alpha is None else further_alpha
    more_trials = range(spread.trials + 1, MAX_TRIALS + 1)
    trials = _first(more_trials, lambda count: enough(count, spread.tasks, level))
    more_tasks = range(spread.tasks + 1, 100 * max(spread.tasks, 2))
    tasks = _first(more_tasks, lambda count: enough(spread.trials, count, alpha))
    more = None if trials is None else 2 * spread.tasks * (trials - spread.trials)
    return Settling(
        check=check,
        trials=trials,
        tasks=tasks,
        obstacle=Obstacle.TOO_SMALL if trials is None and tasks is None else None,
        simulations=more,
        cost=None if more is None or pairs.cost is None else more * pairs.cost,
        tokens=None if more is None or pairs.tokens is None else round(more * pairs.tokens),
    )


def _first(numbers: range, enough: Callable[[int], bool]) -> int | None:
    """The first number that is enough, given that every later one is too; None if none is."""
    place = bisect_left(numbers, True, key=enough)
    return numbers[place] if place < len(numbers) else None
