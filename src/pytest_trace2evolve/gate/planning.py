"""What so many tasks and trials can show, and how many more would settle what they did not.

The spread of the differences over tasks has two parts: how much the tasks themselves differ in the effect,
and the noise of their trials, which more trials average away.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy

from pytest_trace2evolve.gate.bounds import POWER
from pytest_trace2evolve.gate.columns import Floats
from pytest_trace2evolve.gate.family import mcnemar
from pytest_trace2evolve.gate.pairs import Pairs
from pytest_trace2evolve.records.verdict import Obstacle, Settling

MOST_TRIALS = 64
"""More trials than this are no plan."""

_ROUNDING = 1e-9
"""An effect below this is none: a mean of differences that cancel out is seldom exactly 0."""


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
        tasks: How many there are; None comes back below two.
        alpha: Level.
    """
    if tasks < 2 or np.isnan(deviation):
        return None
    quantiles = scipy.stats.t.ppf([1 - alpha, POWER], tasks - 1)
    return float(min(quantiles.sum() * deviation / np.sqrt(tasks), 1.0))


def detectable_tasks(better: int, tasks: float, alpha: float) -> float | None:
    """The smallest share of tasks turned worse, less those turned better, that McNemar's test shows."""
    if not tasks:
        return None
    worse = np.arange(int(tasks) + 1, dtype=np.float64)
    enough = worse[mcnemar(worse, np.full(worse.shape, float(better))) <= alpha]
    return float(enough[0] - better) / float(tasks) if enough.size else None


def power_of_not_worse(deviation: Floats, tasks: Floats, margin: float, alpha: float) -> Floats:
    """The chance that a candidate as good as its baseline is shown not worse, by the noncentral t."""
    with np.errstate(invalid="ignore", divide="ignore"):
        shift = margin * np.sqrt(tasks) / deviation
        power = scipy.stats.nct.sf(scipy.stats.t.ppf(1 - alpha, tasks - 1), tasks - 1, shift)
    return np.where(tasks > 1, np.nan_to_num(power), 0.0)


def spread_of(pairs: Pairs, deviation: float) -> Spread:
    """The parts of the spread of the reward's differences.

    With one trial a side the parts cannot be told apart; all of it is then taken for noise of trials, as it
    is where the candidate does not differ.
    """
    old, new = pairs.sides
    both = pairs.both
    trials = max(1, int(np.median(np.minimum(old.measured, new.measured)[both])))
    variances = (old.within + new.within)[both]
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
        pairs: What was compared, and what a simulation of it cost.
        further_alpha: The check's level in an analysis with more trials; None if it stays the same.
    """
    if effect < -_ROUNDING:
        return Settling(check=check, obstacle=Obstacle.WRONG_DIRECTION)
    if effect <= _ROUNDING:
        return Settling(check=check, obstacle=Obstacle.TOO_SMALL)

    def enough(trials: int, tasks: int, level: float) -> bool:
        if tasks < 2:
            return False
        return bool(
            scipy.stats.t.ppf([1 - level, POWER], tasks - 1).sum() * spread.error(trials, tasks) <= effect
        )

    more_trials = range(spread.trials + 1, MOST_TRIALS + 1)
    level = alpha if further_alpha is None else further_alpha
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
    """The first number that is enough, where every later one is too; None where none is."""
    place = bisect_left(numbers, True, key=enough)
    return numbers[place] if place < len(numbers) else None
