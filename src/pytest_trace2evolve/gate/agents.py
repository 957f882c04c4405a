"""Simulated agents of known ability, and random comparisons of an agent with its candidate.

A task's chance of success follows a Beta distribution over tasks. A candidate is the same agent, or one whose
mean chance differs by a set amount. The difference is spread evenly, or limited to a few tasks that then
always fail or always pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
import scipy

from pytest_trace2evolve.gate.columns import INVARIANT_METRICS, INVARIANTS, MINEFIELD, Counts, Floats
from pytest_trace2evolve.gate.confirm import simulate_fresh_trials
from pytest_trace2evolve.gate.pairs import Comparisons
from pytest_trace2evolve.gate.tallies import Tally
from pytest_trace2evolve.records.rules import Invariant


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


@dataclass(frozen=True)
class Effect:
    """The effect of a candidate's change.

    Attributes:
        size: The difference of mean chances, -1 to 1. With `MIXED`, the size of both the loss and the gain,
            which cancel out.
        change: How the effect spreads over tasks.
        is_exact: Whether the mean over each comparison's own tasks differs by exactly `size`, which must be a
            loss. Otherwise, the mean over all tasks of the population does.
    """

    size: float = 0.0
    change: Change = Change.EVEN
    is_exact: bool = field(default=False, repr=False)  # the seeds of published figures contain the rest


@dataclass(frozen=True)
class Design:
    """The design of a comparison.

    Attributes:
        tasks: The number of tasks.
        trials: The number of trials of each task on the candidate, and on the baseline unless
            `baseline_trials` is given.
        baseline_trials: The number of trials of each task that a saved baseline has.
        is_live: Whether broken tasks get fresh trials.
        max_fresh_simulations: Fresh simulations that a live run may make.
        lost_rate: Chance that infrastructure ends a simulation.
        breach_rate: Mean chance that a simulation breaks an invariant, for each kind; None if nothing is
            checked for invariants.
        breach_rate_increase: Mean increase of the candidate's chance of breaking `RISING_INVARIANT`.
    """

    tasks: int
    trials: int
    is_live: bool = True
    baseline_trials: int | None = field(default=None, kw_only=True)
    max_fresh_simulations: int = 640
    lost_rate: float = 0.0
    breach_rate: float | None = None
    breach_rate_increase: float = 0.0


RISING_INVARIANT = f"{INVARIANTS}.{Invariant.CONSENT}"
"""The kind of invariant that a candidate breaks more often if `breach_rate_increase` is set."""

_MIN_REMAINING_CHANCE = 0.02
"""The minimum mean chance of success that an exact loss leaves."""

_MAX_STEPS_RATE = 0.03
"""Mean share of failures that end at max steps."""


@dataclass(frozen=True)
class _TrueChances:
    """The true chances behind simulated comparisons, by row and task. In pairs, the baseline is first.

    Attributes:
        success: Chances of success of both sides.
        actions: Numbers of gold actions, by kind.
        partial_match: Chance that a failed trial matches a gold action.
        max_steps_rate: Chance that a failed trial ends at max steps.
        breach_chances: Chances of breaking an invariant, by kind, of both sides.
    """

    success: tuple[Floats, Floats]
    actions: Mapping[str, Counts]
    partial_match: Floats
    max_steps_rate: Floats
    breach_chances: tuple[Mapping[str, Floats], Mapping[str, Floats]]


@dataclass(frozen=True)
class SimulatedStages:
    """Simulated comparisons, with the true chances behind them.

    Attributes:
        stages: The comparisons after each stage of a schedule, with all trials so far or with the stage's own
            trials only.
        old, new: Chances of success of the baseline and of the candidate, shape (R, N).
    """

    stages: tuple[Comparisons, ...]
    old: Floats
    new: Floats


def simulate_comparisons(
    random: np.random.Generator, agent: Agent, effect: Effect, design: Design, rows: int
) -> Comparisons:
    """Draw random comparisons of an agent with its candidate, as arrays of shape (rows, tasks)."""
    return simulate_stages(random, agent, effect, design, rows, (design.trials,)).stages[0]


def simulate_stages(
    random: np.random.Generator,
    agent: Agent,
    effect: Effect,
    design: Design,
    rows: int,
    schedule: Sequence[int],
    *,
    cumulative: bool = True,
) -> SimulatedStages:
    """Draw comparisons in stages, as `simulate_comparisons` does; the schedule replaces `design.trials`.

    Each stage adds trials up to its number in the schedule. A task gets its fresh trials at the first stage
    that finds it broken, and keeps their p-value. Unless `cumulative`, each stage measures the same tasks
    anew with its number of trials. A saved baseline has all of its trials at every stage.
    """
    chances = _draw_true_chances(random, agent, effect, design, rows)
    has_actions = {kind: count > 0 for kind, count in chances.actions.items()}
    has_actions["action_match"] = np.any(list(has_actions.values()), axis=0)
    has_actions[INVARIANTS] = np.full((rows, design.tasks), design.breach_rate is not None)
    stages: list[Comparisons] = []
    saved = design.baseline_trials or 0
    parts: dict[int, tuple[Tally, Tally]] = {}
    for trials in schedule:
        if not cumulative:
            parts.clear()
        for number in sorted({*schedule, saved} - {0}) if saved else [trials]:
            if number not in parts:
                part = replace(design, trials=number - max(parts, default=0))
                parts[number] = _draw_side(random, chances, 0, part), _draw_side(random, chances, 1, part)
        comparisons = replace(_combine_parts(parts, saved or trials, trials), has_actions=has_actions)
        if design.is_live:
            fresh = simulate_fresh_trials(
                random, comparisons.is_broken, *chances.success, design.max_fresh_simulations
            )
            if stages and cumulative:
                earlier_p = stages[-1].fresh_p
                assert earlier_p is not None
                fresh = np.where(np.isnan(earlier_p), fresh, earlier_p)
            comparisons = replace(comparisons, fresh_p=fresh)
        stages.append(comparisons)
    return SimulatedStages(tuple(stages), *chances.success)


def _combine_parts(
    parts: Mapping[int, tuple[Tally, Tally]], baseline_trials: int, trials: int
) -> Comparisons:
    """The comparison of so many trials, from the trials of both sides up to each number of trials."""

    def side(index: int, count: int) -> Tally:
        return Tally.combine(sum, [part[index] for number, part in parts.items() if number <= count])

    comparisons, fewer = Comparisons(side(0, baseline_trials), side(1, trials)), min(baseline_trials, trials)
    if baseline_trials == trials:
        return comparisons
    return replace(comparisons, first_trials=(side(0, fewer), side(1, fewer)))


def _draw_true_chances(
    random: np.random.Generator, agent: Agent, effect: Effect, design: Design, rows: int
) -> _TrueChances:
    # Published figures depend on the order of the draws.
    shape = rows, design.tasks
    old = np.clip(random.beta(agent.a, agent.b, shape), 1e-9, 1 - 1e-9)
    if effect.is_exact:
        # Draws other tasks for each comparison in which the agent cannot lose that much.
        while (is_too_low := old.mean(axis=1) < _MIN_REMAINING_CHANCE - effect.size).any():
            new_chances = random.beta(agent.a, agent.b, (int(is_too_low.sum()), design.tasks))
            old[is_too_low] = np.clip(new_chances, 1e-9, 1 - 1e-9)
    read_counts, write_counts = random.binomial(3, 0.5, shape), 1 + random.binomial(1, 0.5, shape)
    max_steps_rate = _draw_rare_chances(random, _MAX_STEPS_RATE, shape)
    return _TrueChances(
        success=(old, _candidate_chances(random, old, agent, effect)),
        actions={"read_action_match": read_counts, "write_action_match": write_counts},
        partial_match=random.beta(2.4, 1.6, shape),
        max_steps_rate=max_steps_rate,
        breach_chances=_draw_breach_chances(random, design, shape),
    )


def _draw_rare_chances(random: np.random.Generator, mean: float, shape: tuple[int, int]) -> Floats:
    """Draw chances with the given mean that are close to 0 on most tasks and large on a few."""
    return random.beta(0.3, 0.3 * (1 - mean) / mean, shape) if mean > 0 else np.zeros(shape)


def _draw_breach_chances(
    random: np.random.Generator, design: Design, shape: tuple[int, int]
) -> tuple[Mapping[str, Floats], Mapping[str, Floats]]:
    """Draw the chances of breaking each kind of invariant on either side."""
    if design.breach_rate is None:
        return {}, {}
    kinds = [name for name in INVARIANT_METRICS if name != MINEFIELD]
    old = {name: _draw_rare_chances(random, design.breach_rate, shape) for name in kinds}
    # The candidate also breaks the invariant in a share of the simulations that would have kept it.
    raised_chances = old[RISING_INVARIANT] + (1 - old[RISING_INVARIANT]) * design.breach_rate_increase / (
        1 - design.breach_rate
    )
    return old, {**old, RISING_INVARIANT: raised_chances}


def _candidate_chances(random: np.random.Generator, chances: Floats, agent: Agent, effect: Effect) -> Floats:
    """The candidate's chances of success, whose mean over all tasks differs by the effect's size."""
    if effect.size == 0:
        return chances
    if effect.is_exact:
        return _lower_exactly(random, chances, effect)
    if effect.change is Change.EVEN:
        shifted: Floats = scipy.special.expit(
            scipy.special.logit(chances) + _log_odds_shift(agent, effect.size)
        )
        return shifted
    uniform = random.random(chances.shape)
    if effect.change is Change.MIXED:
        break_share, fix_share = effect.size / agent.mean, effect.size / (1 - agent.mean)
        return np.where(uniform < break_share, 0.0, np.where(uniform < break_share + fix_share, 1.0, chances))
    share = -effect.size / agent.mean if effect.size < 0 else effect.size / (1 - agent.mean)
    return np.where(uniform < share, 0.0 if effect.size < 0 else 1.0, chances)


def _lower_exactly(random: np.random.Generator, chances: Floats, effect: Effect) -> Floats:
    """Lower the mean chance of each row by exactly the effect's size."""
    if effect.change is Change.EVEN:
        log_odds, target = scipy.special.logit(chances), chances.mean(axis=1) + effect.size
        low, high = np.full(len(chances), -60.0), np.zeros(len(chances))
        for _ in range(50):
            middle = (low + high) / 2
            is_below = scipy.special.expit(log_odds + middle[:, None]).mean(axis=1) < target
            low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
        lowered: Floats = scipy.special.expit(log_odds + high[:, None])
        return lowered
    # Tasks break in random order until the loss is reached, the last one in part.
    order = np.argsort(random.random(chances.shape), axis=1)
    ordered_chances = np.take_along_axis(chances, order, axis=1)
    loss_before = np.cumsum(ordered_chances, axis=1) - ordered_chances
    losses = np.clip(-effect.size * chances.shape[1] - loss_before, 0.0, ordered_chances)
    result = np.empty_like(chances)
    np.put_along_axis(result, order, ordered_chances - losses, axis=1)
    return result


def _log_odds_shift(agent: Agent, size: float) -> float:
    """The shift in log-odds of every task that moves the mean chance by `size`."""
    quantiles = scipy.special.betaincinv(agent.a, agent.b, (np.arange(20_001) + 0.5) / 20_001)
    log_odds = scipy.special.logit(np.clip(quantiles, 1e-9, 1 - 1e-9))
    target = scipy.special.expit(log_odds).mean() + size
    root = scipy.optimize.brentq(
        lambda shift: scipy.special.expit(log_odds + shift).mean() - target, -40.0, 40.0
    )
    return float(root)


def _draw_side(random: np.random.Generator, true_chances: _TrueChances, side: int, design: Design) -> Tally:
    chances, breach_chances = true_chances.success[side], true_chances.breach_chances[side]
    trials = np.full(chances.shape, design.trials)
    measured = random.binomial(trials, 1 - design.lost_rate) if design.lost_rate else trials
    passed = random.binomial(measured, chances)
    failed = measured - passed
    sums = {
        kind: random.binomial(count * passed, 0.95)
        + random.binomial(count * failed, true_chances.partial_match)
        for kind, count in true_chances.actions.items()
    }
    action_counts = {
        "action_match": np.sum(list(true_chances.actions.values()), axis=0),
        **true_chances.actions,
    }
    sums["action_match"] = np.sum(list(sums.values()), axis=0)
    max_steps = random.binomial(failed, true_chances.max_steps_rate)
    kept_counts = {
        name: measured - random.binomial(measured, chance) for name, chance in breach_chances.items()
    }
    if kept_counts:
        # Assumes that no simulation breaks two kinds: overlaps are not drawn, and no check depends on them.
        kept_counts[INVARIANTS] = np.maximum(
            measured - sum(measured - count for count in kept_counts.values()), 0
        )
    return Tally(
        trials=trials,
        measured=measured,
        reward=passed.astype(np.float64),
        squares=passed.astype(np.float64),
        successes=passed,
        matched={
            **{kind: sums[kind] / np.maximum(count, 1) for kind, count in action_counts.items()},
            **{name: count.astype(np.float64) for name, count in kept_counts.items()},
        },
        checked={
            **{kind: np.where(count > 0, measured, 0) for kind, count in action_counts.items()},
            **dict.fromkeys(kept_counts, measured),
        },
        max_steps=max_steps,
    )


def fit_agent(rate: float, spread: float) -> Agent:
    """Return the agent whose chances of success over tasks have a given mean and standard deviation.

    Raises:
        ValueError: no Beta distribution has this mean and standard deviation.
    """
    if not 0 < rate < 1 or not 0 < spread**2 < rate * (1 - rate):
        raise ValueError(f"no Beta distribution has mean {rate} and standard deviation {spread}")
    size = rate * (1 - rate) / spread**2 - 1
    return Agent(rate * size, (1 - rate) * size)
