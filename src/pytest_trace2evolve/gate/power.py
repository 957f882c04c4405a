"""The power of a plan: decisions on simulated agents, for given tasks and trials, or in stages.

In stages, simulations of the candidate and fresh trials of broken tasks count, and those of a saved
baseline do not. Shares of gold actions are left out there, because their tests take most of the
time and seldom decide.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import scipy

from pytest_trace2evolve.gate.agents import Agent, Design, Effect, simulate_comparisons, simulate_stages
from pytest_trace2evolve.gate.alpha_spending import stage_alpha
from pytest_trace2evolve.gate.calibrated import Calibrated
from pytest_trace2evolve.gate.calibration import DecisionCounts, count_decisions
from pytest_trace2evolve.gate.checks import evaluate
from pytest_trace2evolve.gate.columns import ACTION_METRICS, Counts, Flags
from pytest_trace2evolve.gate.confirm import STEP_TRIALS, fresh_p
from pytest_trace2evolve.gate.decide import decision_ranks
from pytest_trace2evolve.gate.intervals import (
    MAX_TASKS,
    MAX_TRIALS,
    POWER,
    information_share,
    predictive_power,
)
from pytest_trace2evolve.gate.pairs import Comparisons
from pytest_trace2evolve.gate.protocols import FAIL, Policy, Question
from pytest_trace2evolve.gate.tallies import REGRESSIONS, REWARD
from pytest_trace2evolve.records.verdict import Decision, Goal, Interval

GAINS = (0.0, 0.02, 0.05, 0.10, 0.15)
LOSSES = (-0.05, -0.10, -0.20)
LARGER_GAINS = (0.20, 0.30, 0.40, 0.60, 0.80)
"""Gains that are tried if no gain in `GAINS` is promoted often enough."""

TARGET_GAIN = 0.05
"""The gain for which the search looks for enough trials or tasks."""

_SEARCH_ROWS = 300
"""Comparisons per step of the search for enough trials or tasks."""


@dataclass(frozen=True)
class Plan:
    """A planned comparison.

    Attributes:
        agent: The simulated agent, which determines the chances of success on the tasks.
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
    """How often comparisons with a given true difference get a given decision.

    `rate` is None if the agent cannot differ that much.
    """

    goal: Goal
    effect: float
    decision: Decision
    rate: Interval | None


@dataclass(frozen=True)
class Power:
    """The result of a simulation.

    Attributes:
        chances: The chances of decisions, in the order in which they are printed.
        smallest_gain: The smallest gain that is promoted in four of five comparisons; None if no gain is.
        trials: The number of trials that would promote `TARGET_GAIN` that often with the planned tasks; None
            if no number that was tried is enough. It is the planned number if that is already enough.
        tasks: The same for the number of tasks, with the planned trials.
    """

    chances: tuple[Chance, ...]
    smallest_gain: float | None
    trials: int | None
    tasks: int | None


def simulate_power(plan: Plan) -> Power:
    """Simulate the decisions of a plan, and search for the numbers of trials and tasks for `TARGET_GAIN`."""
    chances, design = simulate_chances(plan), plan.design
    trials = _find_sufficient(plan, design.trials, MAX_TRIALS, lambda number: replace(design, trials=number))
    tasks = _find_sufficient(plan, design.tasks, MAX_TASKS, lambda number: replace(design, tasks=number))
    return Power(chances, _smallest_gain(plan, chances), trials, tasks)


def simulate_chances(plan: Plan) -> tuple[Chance, ...]:
    """Simulate how often comparisons with a true difference get each decision."""
    decision_of = {
        **{(Goal.IMPROVE, effect): Decision.PROMOTE for effect in GAINS},
        **{(Goal.HOLD, -margin_share * plan.margin): Decision.PROMOTE for margin_share in (0.0, 0.5, 1.0)},
        **{(Goal.IMPROVE, effect): Decision.DISCARD for effect in LOSSES},
        **{(Goal.NO_REGRESSION, effect): Decision.DISCARD for effect in (0.0, *LOSSES)},
    }
    # All goals use the same comparisons, because drawing and testing them takes most of the time.
    decisions_of_effect = {
        effect: _count_decisions_by_goal(
            plan, effect, [goal for goal in Goal if (goal, effect) in decision_of]
        )
        for effect in {effect for _, effect in decision_of}
        if _is_reachable(plan.agent, effect)
    }
    return tuple(
        Chance(
            goal,
            effect,
            decision,
            decisions_of_effect[effect][goal].rate(decision) if effect in decisions_of_effect else None,
        )
        for (goal, effect), decision in decision_of.items()
    )


def _smallest_gain(plan: Plan, chances: tuple[Chance, ...]) -> float | None:
    gains = {
        chance.effect: chance.rate.estimate for chance in chances[: len(GAINS)] if chance.rate is not None
    }
    for effect in LARGER_GAINS:
        if max(gains.values()) >= POWER or not _is_reachable(plan.agent, effect):
            break
        gains[effect] = _promotion_rate(plan, effect)
    return gain_at_power(gains, plan.rows)


def _is_reachable(agent: Agent, effect: float) -> bool:
    return 0.001 < agent.mean + effect < 0.999


def _count_decisions_by_goal(plan: Plan, effect: float, goals: Sequence[Goal]) -> dict[Goal, DecisionCounts]:
    draw_comparisons = partial(
        simulate_comparisons, agent=plan.agent, effect=Effect(effect), design=plan.design
    )
    questions = [(plan.policy, goal) for goal in goals]
    counts = count_decisions(
        draw_comparisons, questions, rows=plan.rows, tasks=plan.design.tasks, seed=plan.seed
    )
    return dict(zip(goals, counts, strict=True))


def _promotion_rate(plan: Plan, effect: float) -> float:
    counts = _count_decisions_by_goal(plan, effect, [Goal.IMPROVE])[Goal.IMPROVE]
    return counts.rate(Decision.PROMOTE).estimate


def gain_at_power(gains: Mapping[float, float], rows: int) -> float | None:
    """The gain whose chance of promotion reaches `POWER`; None if no gain does.

    Interpolates on the probit scale between `gains`, which holds the simulated chance of promotion of each
    gain, from `rows` comparisons each.
    """
    sizes = sorted(gains)
    min_rate = 0.5 / rows
    probits = scipy.special.ndtri(np.clip([gains[size] for size in sizes], min_rate, 1 - min_rate))
    target = scipy.special.ndtri(POWER)
    for index in range(1, len(sizes)):
        if probits[index] >= target > probits[index - 1]:
            fraction = (target - probits[index - 1]) / (probits[index] - probits[index - 1])
            return float(sizes[index - 1] + fraction * (sizes[index] - sizes[index - 1]))
    return None


def _find_sufficient(
    plan: Plan, planned: int, max_number: int, design_of: Callable[[int], Design]
) -> int | None:
    """The smallest number that shows `TARGET_GAIN`, from `planned` to `max_number`; None if none does.

    Doubles the number until it suffices, then bisects to within 5 %.
    """
    if not _is_reachable(plan.agent, TARGET_GAIN):
        return None
    is_sufficient: dict[int, bool] = {}

    def is_enough(number: int) -> bool:
        if number not in is_sufficient:
            changed_plan = replace(plan, design=design_of(number), rows=min(plan.rows, _SEARCH_ROWS))
            is_sufficient[number] = _promotion_rate(changed_plan, TARGET_GAIN) >= POWER
        return is_sufficient[number]

    low = high = planned
    while not is_enough(high):
        if high >= max_number:
            return None
        low, high = high, min(2 * high, max_number)
    while high - low > max(1, low // 20):
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


# Runs in stages.


@dataclass(frozen=True)
class StagedRuns:
    """Simulated runs, with one value per run in each array.

    Attributes:
        rank: `Decision.rank` of the run.
        trials: The candidate's trials of each task when the run ended.
        fresh: Fresh simulations of both sides.
    """

    rank: Counts
    trials: Counts
    fresh: Counts

    def share(self, decision: Decision) -> float:
        """The share of runs with this decision."""
        return float((self.rank == decision.rank).mean())

    def simulations(self, tasks: int) -> float:
        """The mean number of simulations of a run of so many tasks."""
        return float((tasks * self.trials + self.fresh).mean())


def simulate_runs(
    random: np.random.Generator,
    agent: Agent,
    effect: Effect,
    design: Design,
    policy: Calibrated,
    schedule: Sequence[int],
    *,
    rows: int,
    share: float = 1.0,
    confirms_all: bool = False,
) -> StagedRuns:
    """Simulate runs under goal `improve`, as sessions make them.

    After each stage, broken tasks get fresh trials if they can change the decision. The run ends with a
    decision, after the last stage, or if all trials would show a gain with a lower chance than the policy's
    `futility`.

    Args:
        share: The share of its level that the claim may use.
        confirms_all: Whether all broken tasks get fresh trials, as before version 0.1.
    """
    policy = replace(policy, weights={**policy.weights, **dict.fromkeys(ACTION_METRICS, 0.0)})
    alpha = stage_alpha(policy.alpha, schedule)
    question = Question(Goal.IMPROVE, share=share, stage_alpha=alpha, schedule=tuple(schedule))
    stages = simulate_stages(random, agent, effect, design, rows, schedule).stages
    rank, ended = np.ones(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)
    paid = np.zeros((rows, design.tasks), dtype=np.bool_)
    for compared, trials in zip(stages, schedule, strict=True):
        is_open = ended == 0
        if compared.fresh_p is None:
            decided = decision_ranks(policy, compared, question)
        else:
            tried = compared.is_broken & is_open[:, None] & ~np.isnan(compared.fresh_p)
            if not confirms_all:
                tried &= _matters(compared, paid, policy, question)[:, None]
            paid |= tried
            decided = decision_ranks(
                policy, compared.with_fresh_p(np.where(paid, compared.fresh_p, np.nan)), question
            )
        rank = np.where(is_open, decided, rank)
        is_last = np.full(rows, trials == schedule[-1])
        if trials < schedule[-1]:
            gain_p = evaluate(compared, policy.rules(question)).findings[REWARD].gain_p
            saved = design.baseline_trials
            fraction = information_share(trials, schedule[-1], saved) if saved else trials / schedule[-1]
            is_last = predictive_power(gain_p, policy.rules(question).claim_alpha, fraction) < policy.futility
        ended = np.where(is_open & ((decided != Decision.INCONCLUSIVE.rank) | is_last), trials, ended)
    return StagedRuns(rank, ended, _fresh_simulations(stages[-1], paid))


def _matters(compared: Comparisons, paid: Flags, policy: Calibrated, question: Question) -> Flags:
    """Whether fresh trials of broken tasks can change each decision, or discard by themselves."""
    known = np.where(paid, np.asarray(compared.fresh_p), np.nan)
    untried = compared.is_broken & ~paid
    outcomes = [
        decision_ranks(policy, compared.with_fresh_p(np.where(untried, p, known)), question)
        for p in (np.nan, 1.0, 0.0)
    ]
    confirmed = compared.with_fresh_p(np.where(untried, 0.0, known))
    codes = evaluate(confirmed, policy.rules(question)).status_codes
    return np.asarray((np.ptp(outcomes, axis=0) > 0) | (codes[REGRESSIONS] == FAIL))


def _fresh_simulations(last: Comparisons, paid: Flags) -> Counts:
    """The fresh simulations of both sides: one step of trials, and one more unless the first was clear."""
    is_clear = np.isin(np.asarray(last.fresh_p), (1.0, float(fresh_p(STEP_TRIALS, 0))))
    return np.asarray(2 * STEP_TRIALS * np.where(paid, np.where(is_clear, 1, 2), 0).sum(axis=1))


# What a run costs and shows, before it starts.

EFFECTS = (0.0, 0.05, 0.10)
"""The true gains whose costs are forecast."""

_FURTHER_GAINS = (0.02, 0.15, 0.25, 0.40)
"""Further gains, from which the smallest gain with 80 % power is interpolated."""


@dataclass(frozen=True)
class Forecast:
    """Simulated runs at one true gain.

    `simulations` is the mean of a run, fresh ones included; `ended` the share of runs that end at each stage.
    """

    effect: float
    promoted: float
    simulations: float
    ended: tuple[float, ...]


@dataclass(frozen=True)
class Preflight:
    """What a planned run costs and can show.

    Attributes:
        forecasts: One for each of `EFFECTS` that the agent can reach.
        smallest_gain: The smallest gain that four of five runs promote; None if no gain is.
        alternatives: Other designs with about as many simulations of the candidate, each with the share of
            runs that promote a gain of `TARGET_GAIN`.
    """

    design: Design
    schedule: tuple[int, ...]
    forecasts: tuple[Forecast, ...]
    smallest_gain: float | None
    alternatives: tuple[tuple[Design, float], ...]


def preflight(
    agent: Agent,
    design: Design,
    policy: Calibrated,
    schedule: Sequence[int],
    *,
    share: float = 1.0,
    rows: int = 300,
) -> Preflight:
    """Simulate what a run with goal `improve` costs and shows.

    `design` has the trials of the saved baseline, `share` is the share of its level that the claim may use,
    and `rows` the number of simulated runs for each figure.
    """

    def forecast(effect: float, other: Design = design, trials: Sequence[int] = schedule) -> Forecast:
        random = np.random.default_rng([rows, round(1000 + 1000 * effect)])
        runs = simulate_runs(random, agent, Effect(effect), other, policy, trials, rows=rows, share=share)
        ended = tuple(float((runs.trials == stage).mean()) for stage in trials)
        return Forecast(effect, runs.share(Decision.PROMOTE), runs.simulations(other.tasks), ended)

    reachable = [effect for effect in (*EFFECTS, *_FURTHER_GAINS) if agent.mean + effect < 0.999]
    forecasts = {effect: forecast(effect) for effect in reachable}
    smallest = gain_at_power({effect: found.promoted for effect, found in forecasts.items()}, rows)
    alternatives = []
    if TARGET_GAIN in forecasts:
        others = [replace(design, baseline_trials=2 * (design.baseline_trials or schedule[-1]))]
        if schedule[-1] > 1:
            others.append(replace(design, tasks=2 * design.tasks, trials=schedule[-1] // 2))
        for other in others:
            trials = schedule if other.tasks == design.tasks else sorted({max(1, n // 2) for n in schedule})
            alternatives.append((other, forecast(TARGET_GAIN, other, trials).promoted))
    wanted = tuple(found for effect, found in forecasts.items() if effect in EFFECTS)
    return Preflight(design, tuple(schedule), wanted, smallest, tuple(alternatives))
