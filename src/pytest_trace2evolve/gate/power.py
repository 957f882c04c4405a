"""What so many tasks and trials would show: a policy's chances, by simulation through the gate's kernel."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from pytest_trace2evolve.gate.calibration import Asked, Decisions, count
from pytest_trace2evolve.gate.intervals import POWER
from pytest_trace2evolve.gate.planning import MOST_TRIALS
from pytest_trace2evolve.gate.rows import RowPolicy
from pytest_trace2evolve.gate.simulate import Agent, Design, Effect, draw
from pytest_trace2evolve.gate.tally import Comparisons
from pytest_trace2evolve.records.verdict import Decision, Goal, Interval

GAINS = (0.0, 0.02, 0.05, 0.10, 0.15)
LOSSES = (-0.05, -0.10, -0.20)
FURTHER = (0.20, 0.30, 0.40, 0.60, 0.80)
"""Gains that are tried where none of `GAINS` is found often enough."""

WANTED = 0.05
"""The gain of which it is told what would find it."""

_PLAN_ROWS = 300
"""Comparisons a step of the search for enough trials or tasks."""

_MOST_TASKS = 2000


@dataclass(frozen=True)
class Plan:
    """What is to be run.

    Attributes:
        agent: Whose chances of success tasks have.
        design: Tasks, trials, and whether broken tasks get fresh trials.
        policy, margin: Who judges, and the loss that `hold` must not promote.
        rows, seed: Simulated comparisons of each kind, and what they are drawn from.
    """

    agent: Agent
    design: Design
    policy: RowPolicy
    margin: float
    rows: int = 2000
    seed: int = 0


@dataclass(frozen=True)
class Chance:
    """How often a true difference gets a decision; None where the agent has no room for the difference."""

    goal: Goal
    effect: float
    decision: Decision
    rate: Interval | None


@dataclass(frozen=True)
class Power:
    """What was found.

    Attributes:
        chances: In the order in which they are printed.
        smallest: The smallest gain that is promoted in four of five comparisons; None: none is.
        trials, tasks: With how many of which alone a gain of `WANTED` would be; None: none that were tried.
            What is planned where that is enough.
    """

    chances: tuple[Chance, ...]
    smallest: float | None
    trials: int | None
    tasks: int | None


def agent_of(rate: float, spread: float) -> Agent:
    """The agent whose tasks' chances of success have this mean and standard deviation.

    Raises:
        ValueError: no Beta distribution has.
    """
    if not 0 < rate < 1 or not 0 < spread**2 < rate * (1 - rate):
        raise ValueError("no such agent")
    size = rate * (1 - rate) / spread**2 - 1
    return Agent(rate * size, (1 - rate) * size)


def power_of(plan: Plan) -> Power:
    """Simulate what a plan would show, and what would show a gain of `WANTED`."""
    chances = chances_of(plan)
    return Power(chances, _smallest(plan, chances), _trials(plan), _tasks(plan))


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
    gains = {one.effect: one.rate.estimate for one in chances[: len(GAINS)] if one.rate is not None}
    for effect in FURTHER:
        if max(gains.values()) >= POWER or not _possible(plan.agent, effect):
            break
        gains[effect] = _promoted(plan, effect)
    return _crossing(gains, plan.rows)


def _possible(agent: Agent, effect: float) -> bool:
    return 0.001 < agent.mean + effect < 0.999


def _decisions(plan: Plan, effect: float, goals: Sequence[Goal]) -> dict[Goal, Decisions]:
    def drawing(random: np.random.Generator, rows: int) -> Comparisons:
        return draw(random, plan.agent, Effect(effect), plan.design, rows)

    asked = [Asked(plan.policy, goal) for goal in goals]
    found = count(drawing, asked, rows=plan.rows, tasks=plan.design.tasks, seed=plan.seed)
    return dict(zip(goals, found, strict=True))


def _promoted(plan: Plan, effect: float) -> float:
    found = _decisions(plan, effect, [Goal.IMPROVE])[Goal.IMPROVE]
    return found.rate(Decision.PROMOTE).estimate


def _crossing(gains: Mapping[float, float], rows: int) -> float | None:
    """Where the chance of a promotion passes `POWER`, between simulated gains on the probit scale."""
    sizes = sorted(gains)
    least = 0.5 / rows
    at = scipy.stats.norm.ppf(np.clip([gains[size] for size in sizes], least, 1 - least))
    wanted = scipy.stats.norm.ppf(POWER)
    for place in range(1, len(sizes)):
        if at[place] >= wanted > at[place - 1]:
            part = (wanted - at[place - 1]) / (at[place] - at[place - 1])
            return float(sizes[place - 1] + part * (sizes[place] - sizes[place - 1]))
    return None


def _trials(plan: Plan) -> int | None:
    return _enough(plan, plan.design.trials, MOST_TRIALS, lambda number: replace(plan.design, trials=number))


def _tasks(plan: Plan) -> int | None:
    return _enough(plan, plan.design.tasks, _MOST_TASKS, lambda number: replace(plan.design, tasks=number))


def _enough(plan: Plan, planned: int, most: int, design: Callable[[int], Design]) -> int | None:
    """The smallest number from what is planned to `most` that finds the gain, by doubling and halving."""
    if not _possible(plan.agent, WANTED):
        return None
    found: dict[int, bool] = {}

    def reaches(number: int) -> bool:
        if number not in found:
            tried = replace(plan, design=design(number), rows=min(plan.rows, _PLAN_ROWS))
            found[number] = _promoted(tried, WANTED) >= POWER
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
