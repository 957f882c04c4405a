"""How often each policy errs on a suite's own trials, and what it finds, over resampled comparisons."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import scipy

from pytest_trace2evolve.gate.columns import Counts
from pytest_trace2evolve.gate.judgement import Question
from pytest_trace2evolve.gate.resample import Draw, Pool, resample
from pytest_trace2evolve.gate.rows import RowPolicy, ranks
from pytest_trace2evolve.gate.tally import Comparisons
from pytest_trace2evolve.records.verdict import Decision, Goal, Interval

CONFIDENCE = 0.95
"""Of the intervals of all rates."""

_BATCH = 1 << 20
"""Tasks of comparisons that are judged at a time."""

Drawing = Callable[[np.random.Generator, int], Comparisons]
"""Draws so many comparisons."""


@dataclass(frozen=True)
class Decisions:
    """How many comparisons came out how."""

    discarded: int
    inconclusive: int
    promoted: int

    @property
    def total(self) -> int:
        """How many there were."""
        return self.discarded + self.inconclusive + self.promoted

    def rate(self, decision: Decision) -> Interval:
        """The share of one decision, with its exact interval (Clopper and Pearson, 1934)."""
        count = (self.discarded, self.inconclusive, self.promoted)[decision.rank]
        found = scipy.stats.binomtest(count, self.total)
        between = found.proportion_ci(CONFIDENCE, method="exact")
        return Interval(estimate=count / self.total, low=float(between.low), high=float(between.high))


@dataclass(frozen=True)
class Asked:
    """A policy under a goal: what comparisons are judged by."""

    policy: RowPolicy
    goal: Goal


@dataclass(frozen=True)
class Calibrating:
    """A policy to calibrate.

    Attributes:
        policy: The policy.
        margin: The loss that it must not promote under `hold`.
        fixed: Whether it means these very tasks, so that they are not drawn but taken.
    """

    policy: RowPolicy
    margin: float
    fixed: bool = False


@dataclass(frozen=True)
class Rate:
    """One figure: how often a policy answers so to a planted effect."""

    meaning: str
    goal: Goal
    effect: float
    decision: Decision


@dataclass(frozen=True)
class Calibration:
    """What calibration found.

    Attributes:
        pool: The trials that were drawn from.
        draw: How; its effect says nothing.
        resamples, seed: How many comparisons of each kind, and the seed.
        margins: By policy, the loss that it must not promote under `hold`.
        effects: The sizes that were planted, gains and losses.
        impossible: Effects (signed) that the pool does not hold: it passes too rarely or too often.
        decisions: By policy, goal and planted effect.
    """

    pool: Pool
    draw: Draw
    resamples: int
    seed: int
    margins: Mapping[str, float]
    effects: tuple[float, ...]
    impossible: tuple[float, ...]
    decisions: Mapping[tuple[str, Goal, float], Decisions]

    def rates(self, policy: str) -> list[Rate]:
        """The figures of a policy in the order in which they are printed."""
        hold, improve, harm, nothing = Goal.HOLD, Goal.IMPROVE, Goal.NO_REGRESSION, 0.0
        rates = [
            Rate("false-promote", improve, nothing, Decision.PROMOTE),
            Rate("false-discard", improve, nothing, Decision.DISCARD),
            Rate("false-promote", hold, -self.margins[policy], Decision.PROMOTE),
            Rate("false-discard", hold, nothing, Decision.DISCARD),
            Rate("A/A promoted", hold, nothing, Decision.PROMOTE),
        ]
        rates += [Rate("power", improve, size, Decision.PROMOTE) for size in self.effects]
        rates += [Rate("power", improve, -size, Decision.DISCARD) for size in self.effects]
        rates.append(Rate("false-discard", harm, nothing, Decision.DISCARD))
        return rates + [Rate("power", harm, -size, Decision.DISCARD) for size in self.effects]


def calibrate(
    pool: Pool,
    policies: Sequence[Calibrating],
    draw: Draw,
    *,
    effects: Sequence[float],
    resamples: int,
    seed: int,
) -> Calibration:
    """Judge resampled comparisons by several policies.

    Args:
        pool: Trials of one agent on a suite's tasks.
        policies: What is calibrated.
        draw: Trials and fresh trials of each comparison.
        effects: Sizes of planted effects, each as a gain and as a loss.
        resamples: Comparisons of each kind.
        seed: Every kind of comparison is drawn from it anew, so that what else is asked changes nothing.
    """
    sizes = sorted({*effects})
    losses = {-judged.margin for judged in policies}
    planted = sorted({0.0, *sizes, *(-size for size in sizes), *losses})
    possible = [effect for effect in planted if pool.turning(effect, draw.trials) <= 1]
    decisions: dict[tuple[str, Goal, float], Decisions] = {}
    for effect, fixed in product(possible, (False, True)):
        asked = [Asked(one.policy, goal) for one in policies if one.fixed is fixed for goal in Goal]
        if not asked:
            continue
        drawing = _from(pool, replace(draw, effect=effect, fixed=fixed))
        counted = count(drawing, asked, rows=resamples, tasks=pool.tasks, seed=seed)
        for question, found in zip(asked, counted, strict=True):
            decisions[question.policy.name, question.goal, effect] = found
    return Calibration(
        pool=pool,
        draw=draw,
        resamples=resamples,
        seed=seed,
        margins={judged.policy.name: judged.margin for judged in policies},
        effects=tuple(sizes),
        impossible=tuple(effect for effect in planted if effect not in possible),
        decisions=decisions,
    )


def _from(pool: Pool, draw: Draw) -> Drawing:
    def drawn(random: np.random.Generator, rows: int) -> Comparisons:
        return resample(random, pool, draw, rows)

    return drawn


def count(drawing: Drawing, asked: Sequence[Asked], *, rows: int, tasks: int, seed: int) -> list[Decisions]:
    """Judge drawn comparisons, by each of several policies and goals the same ones."""
    random = np.random.default_rng(seed)
    found: list[list[Counts]] = [[] for _ in asked]
    batch = max(1, _BATCH // max(tasks, 1))
    for start in range(0, rows, batch):
        compared = drawing(random, min(batch, rows - start))
        for place, one in enumerate(asked):
            found[place].append(ranks(one.policy, compared, Question(one.goal)))
    totals = [np.bincount(np.concatenate(part), minlength=3) for part in found]
    return [Decisions(*(int(number) for number in total)) for total in totals]
