"""The power of given numbers of tasks and trials: a policy's decisions on simulated agents of known ability.

A task's chance of success follows a Beta distribution over tasks. A candidate is the same agent, or one whose
mean chance differs by a set amount: evenly, or on a few tasks that break or get fixed altogether.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import pairwise

import numpy as np
import scipy

from pytest_trace2evolve.gate.calibration import DecisionCounts, count_decisions
from pytest_trace2evolve.gate.columns import BREACHES, INVARIANTS, Counts, Flags, Floats
from pytest_trace2evolve.gate.confirm import fresh_trials
from pytest_trace2evolve.gate.intervals import MAX_TASKS, MAX_TRIALS, POWER
from pytest_trace2evolve.gate.pairs import Comparisons, Tally
from pytest_trace2evolve.gate.protocols import Policy
from pytest_trace2evolve.records.rules import Invariant
from pytest_trace2evolve.records.verdict import Decision, Goal, Interval

GAINS = (0.0, 0.02, 0.05, 0.10, 0.15)
LOSSES = (-0.05, -0.10, -0.20)
LARGER_GAINS = (0.20, 0.30, 0.40, 0.60, 0.80)
"""Gains that are tried if no gain in `GAINS` is promoted often enough."""

TARGET_GAIN = 0.05
"""The gain for which the search looks for enough trials or tasks."""

_SEARCH_ROWS = 300
"""Comparisons per step of the search for enough trials or tasks."""


class Change(StrEnum):
    """How a candidate's effect spreads over tasks."""

    EVEN = "even"
    FEW = "few"
    MIXED = "mixed"


@dataclass(frozen=True)
class Agent:
    """An agent whose chances of success over tasks follow Beta(a, b)."""

    a: float
    b: float

    @property
    def mean(self) -> float:
        """The agent's mean chance of success over all tasks."""
        return self.a / (self.a + self.b)


AGENTS: Mapping[str, Agent] = {
    "reliable": Agent(6, 2),
    "medium": Agent(0.8, 0.6),
    "noisy": Agent(0.4, 0.4),
}
"""Kinds of agents seen in tau2's published runs."""

NEAR_DETERMINISTIC = Agent(0.06, 0.03)
"""An agent that does the same in every trial on nearly every task."""


@dataclass(frozen=True)
class Effect:
    """The effect of a candidate's change.

    Attributes:
        size: The difference of mean chances, -1 to 1. With `MIXED`, the size of both the loss and the gain,
            which cancel out.
        change: How the effect spreads over tasks.
    """

    size: float = 0.0
    change: Change = Change.EVEN


@dataclass(frozen=True)
class Design:
    """The design of a comparison.

    Attributes:
        tasks: The number of tasks.
        trials: The number of trials of each task on either side.
        live: Whether flagged tasks get fresh trials.
        confirm: Fresh simulations that a live run may make.
        lost: Chance that infrastructure ends a simulation.
        breaches: Mean chance that a simulation breaks an invariant, for each kind; None if nothing is checked
            for invariants.
        rise: Mean increase of the candidate's chance of breaking `RISEN`.
    """

    tasks: int
    trials: int
    live: bool = True
    confirm: int = 640
    lost: float = 0.0
    breaches: float | None = None
    rise: float = 0.0


RISEN = f"{INVARIANTS}.{Invariant.CONSENT}"
"""The kind of invariant that a candidate breaks more often, if `rise` is set."""

_STUCK = 0.03
"""Mean share of failures that end at max steps."""


@dataclass(frozen=True)
class _Truth:
    """The true chances of a simulated comparison, by row and task; pairs hold the baseline first.

    Attributes:
        success: Chances of success of both sides.
        actions: Numbers of gold actions, by kind.
        partial: Chance that a failed trial matches a gold action.
        stuck: Chance that a failed trial ends at max steps.
        breaks: Chances of breaking an invariant, by kind, of both sides.
    """

    success: tuple[Floats, Floats]
    actions: Mapping[str, Counts]
    partial: Floats
    stuck: Floats
    breaks: tuple[Mapping[str, Floats], Mapping[str, Floats]]


@dataclass(frozen=True)
class Drawn:
    """Simulated comparisons, with the true chances behind them.

    Attributes:
        stages: The comparisons after each stage of a schedule, with all trials so far or with the stage's own
            trials only.
        old, new: Chances of success of the baseline and of the candidate, shape (R, N).
        asks: By kind, whether a task names such actions.
    """

    stages: tuple[Comparisons, ...]
    old: Floats
    new: Floats
    asks: Mapping[str, Flags]


def draw(random: np.random.Generator, agent: Agent, effect: Effect, design: Design, rows: int) -> Comparisons:
    """Draw random comparisons of an agent with its candidate, as arrays of shape (rows, tasks)."""
    return draw_stages(random, agent, effect, design, rows, (design.trials,)).stages[0]


def draw_stages(
    random: np.random.Generator,
    agent: Agent,
    effect: Effect,
    design: Design,
    rows: int,
    schedule: Sequence[int],
    *,
    cumulative: bool = True,
) -> Drawn:
    """Draw comparisons in stages, as `draw` does; the schedule replaces `design.trials`.

    Each stage adds trials up to its number in the schedule. A task gets its fresh trials at the first stage
    that finds it broken, and keeps their p-value. Unless `cumulative`, each stage measures the same tasks
    anew with its number of trials.
    """
    truth = _truth(random, agent, effect, design, rows)
    stages: list[Comparisons] = []
    for before, now in pairwise((0, *schedule)):
        step = replace(design, trials=now - before if cumulative else now)
        old, new = (_side(random, truth, side, step) for side in (0, 1))
        if stages and cumulative:
            old = Tally.combine(sum, [stages[-1].baseline, old])
            new = Tally.combine(sum, [stages[-1].candidate, new])
        compared = Comparisons(old, new)
        if design.live:
            fresh = fresh_trials(random, compared.broken, *truth.success, design.confirm)
            if stages and cumulative:
                kept = stages[-1].fresh
                assert kept is not None
                fresh = np.where(np.isnan(kept), fresh, kept)
            compared = replace(compared, fresh=fresh)
        stages.append(compared)
    asks = {kind: count > 0 for kind, count in truth.actions.items()}
    asks["action_match"] = np.any(list(asks.values()), axis=0)
    asks[INVARIANTS] = np.full((rows, design.tasks), design.breaches is not None)
    return Drawn(tuple(stages), *truth.success, asks)


def _truth(random: np.random.Generator, agent: Agent, effect: Effect, design: Design, rows: int) -> _Truth:
    # The order of the draws is part of every published figure.
    shape = rows, design.tasks
    old = np.clip(random.beta(agent.a, agent.b, shape), 1e-9, 1 - 1e-9)
    reads, writes = random.binomial(3, 0.5, shape), 1 + random.binomial(1, 0.5, shape)
    stuck = _rare(random, _STUCK, shape)
    return _Truth(
        success=(old, _changed(random, old, agent, effect)),
        actions={"read_action_match": reads, "write_action_match": writes},
        partial=random.beta(2.4, 1.6, shape),
        stuck=stuck,
        breaks=_breaks(random, design, shape),
    )


def _rare(random: np.random.Generator, mean: float, shape: tuple[int, int]) -> Floats:
    """Draw chances with the given mean that are close to 0 on most tasks and large on a few."""
    return random.beta(0.3, 0.3 * (1 - mean) / mean, shape) if mean > 0 else np.zeros(shape)


def _breaks(
    random: np.random.Generator, design: Design, shape: tuple[int, int]
) -> tuple[Mapping[str, Floats], Mapping[str, Floats]]:
    """Draw the chances of breaking each kind of invariant on either side."""
    if design.breaches is None:
        return {}, {}
    old = {name: _rare(random, design.breaches, shape) for name in BREACHES}
    # The candidate also breaks the invariant in a share of the simulations that would have kept it.
    more = old[RISEN] + (1 - old[RISEN]) * design.rise / (1 - design.breaches)
    return old, {**old, RISEN: more}


def _changed(random: np.random.Generator, chances: Floats, agent: Agent, effect: Effect) -> Floats:
    """The candidate's chances of success, whose mean over all tasks differs by the effect's size."""
    if effect.size == 0:
        return chances
    if effect.change is Change.EVEN:
        moved: Floats = scipy.special.expit(scipy.special.logit(chances) + _shift(agent, effect.size))
        return moved
    chance = random.random(chances.shape)
    if effect.change is Change.MIXED:
        breaks, fixes = effect.size / agent.mean, effect.size / (1 - agent.mean)
        return np.where(chance < breaks, 0.0, np.where(chance < breaks + fixes, 1.0, chances))
    share = -effect.size / agent.mean if effect.size < 0 else effect.size / (1 - agent.mean)
    return np.where(chance < share, 0.0 if effect.size < 0 else 1.0, chances)


def _shift(agent: Agent, size: float) -> float:
    """The shift in log-odds of every task that moves the mean chance by `size`."""
    quantiles = scipy.special.betaincinv(agent.a, agent.b, (np.arange(20_001) + 0.5) / 20_001)
    odds = scipy.special.logit(np.clip(quantiles, 1e-9, 1 - 1e-9))
    target = scipy.special.expit(odds).mean() + size
    root = scipy.optimize.brentq(lambda shift: scipy.special.expit(odds + shift).mean() - target, -40.0, 40.0)
    return float(root)


def _side(random: np.random.Generator, truth: _Truth, side: int, design: Design) -> Tally:
    chances, breaks = truth.success[side], truth.breaks[side]
    trials = np.full(chances.shape, design.trials)
    measured = random.binomial(trials, 1 - design.lost) if design.lost else trials
    passed = random.binomial(measured, chances)
    failed = measured - passed
    sums = {
        kind: random.binomial(count * passed, 0.95) + random.binomial(count * failed, truth.partial)
        for kind, count in truth.actions.items()
    }
    counts = {"action_match": np.sum(list(truth.actions.values()), axis=0), **truth.actions}
    sums["action_match"] = np.sum(list(sums.values()), axis=0)
    max_steps = random.binomial(failed, truth.stuck)
    kept = {name: measured - random.binomial(measured, chance) for name, chance in breaks.items()}
    if kept:
        # Assumes that no simulation breaks two kinds: overlaps are not drawn, and no check depends on them.
        kept[INVARIANTS] = np.maximum(measured - sum(measured - count for count in kept.values()), 0)
    return Tally(
        trials=trials,
        measured=measured,
        reward=passed.astype(np.float64),
        squares=passed.astype(np.float64),
        passed=passed,
        matched={
            **{kind: sums[kind] / np.maximum(count, 1) for kind, count in counts.items()},
            **{name: count.astype(np.float64) for name, count in kept.items()},
        },
        checked={
            **{kind: np.where(count > 0, measured, 0) for kind, count in counts.items()},
            **dict.fromkeys(kept, measured),
        },
        max_steps=max_steps,
    )


@dataclass(frozen=True)
class Plan:
    """A planned comparison.

    Attributes:
        agent: The agent whose chances of success the tasks have.
        design: The numbers of tasks and trials, and whether broken tasks get fresh trials.
        policy: The policy that decides.
        margin: The loss that goal `hold` must not promote.
        rows: The number of simulated comparisons of each kind.
        seed: The seed of the simulated comparisons.
    """

    agent: Agent
    design: Design
    policy: Policy
    margin: float
    rows: int = 2000
    seed: int = 0


@dataclass(frozen=True)
class Chance:
    """How often a true difference gets a decision; `rate` is None if the agent cannot differ that much."""

    goal: Goal
    effect: float
    decision: Decision
    rate: Interval | None


@dataclass(frozen=True)
class Power:
    """The result of a simulation.

    Attributes:
        chances: The chances of decisions, in the order in which they are printed.
        smallest: The smallest gain that is promoted in four of five comparisons; None if no gain is.
        trials: The number of trials that would promote `TARGET_GAIN` that often with the planned tasks; None
            if no number that was tried is enough. The planned number if it is already enough.
        tasks: The same for the number of tasks, with the planned trials.
    """

    chances: tuple[Chance, ...]
    smallest: float | None
    trials: int | None
    tasks: int | None


def agent_of(rate: float, spread: float) -> Agent:
    """Return the agent whose chances of success over tasks have a given mean and standard deviation.

    Raises:
        ValueError: no Beta distribution has this mean and standard deviation.
    """
    if not 0 < rate < 1 or not 0 < spread**2 < rate * (1 - rate):
        raise ValueError("no such agent")
    size = rate * (1 - rate) / spread**2 - 1
    return Agent(rate * size, (1 - rate) * size)


def power_of(plan: Plan) -> Power:
    """Simulate the decisions of a plan, and search for the trials and tasks that would show `TARGET_GAIN`."""
    chances, design = chances_of(plan), plan.design
    trials = _enough(plan, design.trials, MAX_TRIALS, lambda number: replace(design, trials=number))
    tasks = _enough(plan, design.tasks, MAX_TASKS, lambda number: replace(design, tasks=number))
    return Power(chances, _smallest(plan, chances), trials, tasks)


def chances_of(plan: Plan) -> tuple[Chance, ...]:
    """Simulate how often true differences get their decisions."""
    asked = {
        **{(Goal.IMPROVE, effect): Decision.PROMOTE for effect in GAINS},
        **{(Goal.HOLD, -part * plan.margin): Decision.PROMOTE for part in (0.0, 0.5, 1.0)},
        **{(Goal.IMPROVE, effect): Decision.DISCARD for effect in LOSSES},
        **{(Goal.NO_REGRESSION, effect): Decision.DISCARD for effect in (0.0, *LOSSES)},
    }
    # All goals use the same comparisons, because drawing and testing them takes most of the time.
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
    drawing = partial(draw, agent=plan.agent, effect=Effect(effect), design=plan.design)
    asked = [(plan.policy, goal) for goal in goals]
    found = count_decisions(drawing, asked, rows=plan.rows, tasks=plan.design.tasks, seed=plan.seed)
    return dict(zip(goals, found, strict=True))


def _promoted(plan: Plan, effect: float) -> float:
    found = _decisions(plan, effect, [Goal.IMPROVE])[Goal.IMPROVE]
    return found.rate(Decision.PROMOTE).estimate


def gain_at_power(gains: Mapping[float, float], rows: int) -> float | None:
    """The gain whose chance of promotion reaches `POWER`; None if no gain does.

    Interpolates on the probit scale between `gains`, which holds the simulated chance of promotion of each
    gain, from `rows` comparisons each.
    """
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
    """The smallest sufficient number for `TARGET_GAIN`, from `planned` to `most`; None if none suffices.

    Doubles the number until it suffices, then bisects to within 5 %.
    """
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
