"""How often each policy errs on a suite's own trials, and what it finds, over resampled comparisons."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from pytest_trace2evolve.gate.checks import Policy, Question
from pytest_trace2evolve.gate.columns import Counts
from pytest_trace2evolve.gate.decide import ranks
from pytest_trace2evolve.gate.intervals import LEVEL, clopper_pearson
from pytest_trace2evolve.gate.resample import Draw, Pool, resample
from pytest_trace2evolve.gate.tally import Comparisons
from pytest_trace2evolve.records.verdict import Decision, Goal, Interval

CONFIDENCE = LEVEL
"""Of the intervals of all rates."""

_BATCH = 1 << 20
"""Tasks of comparisons that are judged at a time."""

Drawing = Callable[[np.random.Generator, int], Comparisons]
"""Draws so many comparisons."""


@dataclass(frozen=True)
class DecisionCounts:
    """How many comparisons got which decision."""

    discarded: int
    inconclusive: int
    promoted: int

    @property
    def total(self) -> int:
        """The number of comparisons."""
        return self.discarded + self.inconclusive + self.promoted

    def rate(self, decision: Decision) -> Interval:
        """The share of one decision, with its exact interval."""
        count = (self.discarded, self.inconclusive, self.promoted)[decision.rank]
        low, high = clopper_pearson(count, self.total, CONFIDENCE)
        return Interval(estimate=count / self.total, low=low, high=high)


@dataclass(frozen=True)
class PolicyToCalibrate:
    """A policy to calibrate.

    Attributes:
        policy: The policy.
        margin: The loss that it must not promote under `hold`.
        fixed: Whether it means these very tasks, so that each is taken once and not drawn.
    """

    policy: Policy
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
    """The result of a calibration.

    Attributes:
        pool: The trials that were drawn from.
        draw: How; its effect has no meaning.
        resamples, seed: How many comparisons of each kind, and the seed.
        margins: By policy, the loss that it must not promote under `hold`.
        effects: The sizes that were planted, gains and losses.
        impossible: Effects (signed) for which the pool has no room: it passes too rarely or too often.
        decisions: By policy, goal and planted effect.
    """

    pool: Pool
    draw: Draw
    resamples: int
    seed: int
    margins: Mapping[str, float]
    effects: tuple[float, ...]
    impossible: tuple[float, ...]
    decisions: Mapping[tuple[str, Goal, float], DecisionCounts]

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
    policies: Sequence[PolicyToCalibrate],
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
        seed: Every kind of comparison is drawn from it anew, so that no other question changes the draws.
    """
    sizes = sorted({*effects})
    losses = {-each.margin for each in policies}
    planted = sorted({0.0, *sizes, *(-size for size in sizes), *losses})
    possible = [effect for effect in planted if pool.turning(effect, draw.trials) <= 1]
    decisions: dict[tuple[str, Goal, float], DecisionCounts] = {}
    for effect, fixed in product(possible, (False, True)):
        asked = [(each.policy, goal) for each in policies if each.fixed is fixed for goal in Goal]
        if not asked:
            continue
        planned = replace(draw, effect=effect, fixed=fixed)

        def drawing(random: np.random.Generator, rows: int, planned: Draw = planned) -> Comparisons:
            return resample(random, pool, planned, rows)

        counted = count_decisions(drawing, asked, rows=resamples, tasks=pool.tasks, seed=seed)
        for (policy, goal), found in zip(asked, counted, strict=True):
            decisions[policy.name, goal, effect] = found
    return Calibration(
        pool=pool,
        draw=draw,
        resamples=resamples,
        seed=seed,
        margins={each.policy.name: each.margin for each in policies},
        effects=tuple(sizes),
        impossible=tuple(effect for effect in planted if effect not in possible),
        decisions=decisions,
    )


def count_decisions(
    drawing: Drawing, asked: Sequence[tuple[Policy, Goal]], *, rows: int, tasks: int, seed: int
) -> list[DecisionCounts]:
    """Judge the same drawn comparisons by each of several policies and goals."""
    random = np.random.default_rng(seed)
    found: list[list[Counts]] = [[] for _ in asked]
    batch = max(1, _BATCH // max(tasks, 1))
    for start in range(0, rows, batch):
        compared = drawing(random, min(batch, rows - start))
        for part, (policy, goal) in zip(found, asked, strict=True):
            part.append(ranks(policy, compared, Question(goal)))
    totals = [np.bincount(np.concatenate(part), minlength=3) for part in found]
    return [DecisionCounts(*(int(number) for number in total)) for total in totals]
