"""What so many tasks and trials would show: the chances of a policy's decisions, by simulation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from pytest_trace2evolve.gate.calibration import DecisionCounts, count_decisions
from pytest_trace2evolve.gate.checks import Policy
from pytest_trace2evolve.gate.planning import MAX_TASKS, MAX_TRIALS, POWER
from pytest_trace2evolve.gate.simulate import Agent, Design, Effect, draw
from pytest_trace2evolve.gate.tally import Comparisons
from pytest_trace2evolve.records.verdict import Decision, Goal, Interval

GAINS = (0.0, 0.02, 0.05, 0.10, 0.15)
LOSSES = (-0.05, -0.10, -0.20)
LARGER_GAINS = (0.20, 0.30, 0.40, 0.60, 0.80)
"""Gains that are tried if none of `GAINS` is found often enough."""

TARGET_GAIN = 0.05
"""The gain for which enough trials and tasks are searched."""

_SEARCH_ROWS = 300
"""Comparisons a step of the search for enough trials or tasks."""


@dataclass(frozen=True)
class Plan:
    """A comparison that is to be run.

    Attributes:
        agent: Whose chances of success the tasks have.
        design: Tasks, trials, and whether broken tasks get fresh trials.
        policy, margin: The policy, and the loss that `hold` must not promote.
        rows, seed: Simulated comparisons of each kind, and the seed that they are drawn from.
    """

    agent: Agent
    design: Design
    policy: Policy
    margin: float
    rows: int = 2000
    seed: int = 0


@dataclass(frozen=True)
class Chance:
    """How often a true difference gets a decision; None if the agent has no room for the difference."""

    goal: Goal
    effect: float
    decision: Decision
    rate: Interval | None


@dataclass(frozen=True)
class Power:
    """The result of a simulation.

    Attributes:
        chances: In the order in which they are printed.
        smallest: The smallest gain that is promoted in four of five comparisons; None: none is.
        trials, tasks: With how many of which alone `TARGET_GAIN` would be; None: none that were tried. The
            planned number if that is enough.
    """

    chances: tuple[Chance, ...]
    smallest: float | None
    trials: int | None
    tasks: int | None


def agent_of(rate: float, spread: float) -> Agent:
    """The agent whose tasks' chances of success have this mean and standard deviation.

    Raises:
        ValueError: no Beta distribution has them.
    """
    if not 0 < rate < 1 or not 0 < spread**2 < rate * (1 - rate):
        raise ValueError("no such agent")
    size = rate * (1 - rate) / spread**2 - 1
    return Agent(rate * size, (1 - rate) * size)


def power_of(plan: Plan) -> Power:
    """Simulate what a plan would show, and what would show `TARGET_GAIN`."""
    chances, design = chances_of(plan), plan.design
    trials = _enough(plan, design.trials, MAX_TRIALS, lambda number: replace(design, trials=number))
    tasks = _enough(plan, design.tasks, MAX_TASKS, lambda number: replace(design, tasks=number))
    return Power(chances, _smallest(plan, chances), trials, tasks)


def chances_of(plan: Plan) -> tuple[Chance, ...]:
    """How often true differences get their decisions."""
    asked = {
        **{(Goal.IMPROVE, effect): Decision.PROMOTE for effect in GAINS},
        **{(Goal.HOLD, -part * plan.margin): Decision.PROMOTE for part in (0.0, 0.5, 1.0)},
        **{(Goal.IMPROVE, effect): Decision.DISCARD for effect in LOSSES},
        **{(Goal.NO_REGRESSION, effect): Decision.DISCARD for effect in (0.0, *LOSSES)},
    }
    # All goals are asked of the same comparisons: drawing and testing them takes most of the time.
    decided = {
        effect: _decisions(plan, effect, [goal for goal in Goal if (goal, effect) in asked])
        for effect in {effect for _, effect in asked}
        if _possible(plan.agent, effect)
    }
    return tuple(
        Chance(goal, effect, decision, decided[effect][goal].rate(decision) if effect in decided else None)
        for (goal, effect), decision in asked.items()
    )


def _smallest(plan: Plan, chances: tuple[Chance, ...]) -> float | None:
    gains = {
        chance.effect: chance.rate.estimate for chance in chances[: len(GAINS)] if chance.rate is not None
    }
    for effect in LARGER_GAINS:
        if max(gains.values()) >= POWER or not _possible(plan.agent, effect):
            break
        gains[effect] = _promoted(plan, effect)
    return gain_at_power(gains, plan.rows)


def _possible(agent: Agent, effect: float) -> bool:
    return 0.001 < agent.mean + effect < 0.999


def _decisions(plan: Plan, effect: float, goals: Sequence[Goal]) -> dict[Goal, DecisionCounts]:
    def drawing(random: np.random.Generator, rows: int) -> Comparisons:
        return draw(random, plan.agent, Effect(effect), plan.design, rows)

    asked = [(plan.policy, goal) for goal in goals]
    found = count_decisions(drawing, asked, rows=plan.rows, tasks=plan.design.tasks, seed=plan.seed)
    return dict(zip(goals, found, strict=True))


def _promoted(plan: Plan, effect: float) -> float:
    found = _decisions(plan, effect, [Goal.IMPROVE])[Goal.IMPROVE]
    return found.rate(Decision.PROMOTE).estimate


def gain_at_power(gains: Mapping[float, float], rows: int) -> float | None:
    """The gain whose chance of a promotion passes `POWER`, between simulated gains on the probit scale."""
    sizes = sorted(gains)
    least = 0.5 / rows
    at = scipy.special.ndtri(np.clip([gains[size] for size in sizes], least, 1 - least))
    target = scipy.special.ndtri(POWER)
    for place in range(1, len(sizes)):
        if at[place] >= target > at[place - 1]:
            part = (target - at[place - 1]) / (at[place] - at[place - 1])
            return float(sizes[place - 1] + part * (sizes[place] - sizes[place - 1]))
    return None


def _enough(plan: Plan, planned: int, most: int, design: Callable[[int], Design]) -> int | None:
    """The smallest number from the planned one to `most` that finds the gain, by doubling and halving."""
    if not _possible(plan.agent, TARGET_GAIN):
        return None
    found: dict[int, bool] = {}

    def reaches(number: int) -> bool:
        if number not in found:
            tried = replace(plan, design=design(number), rows=min(plan.rows, _SEARCH_ROWS))
            found[number] = _promoted(tried, TARGET_GAIN) >= POWER
        return found[number]

    low = high = planned
    while not reaches(high):
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > max(1, low // 20):
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high
