"""Simulated runs in stages against a saved baseline: what they decide, and how many simulations they make.

Simulations of the candidate and fresh trials of broken tasks count; those of the baseline are made already.
Shares of gold actions are left out, because their tests take most of the time and seldom decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_trace2evolve.gate.alpha_spending import stage_alpha
from pytest_trace2evolve.gate.calibrated import Calibrated
from pytest_trace2evolve.gate.checks import evaluate
from pytest_trace2evolve.gate.columns import ACTION_METRICS, Counts, Flags, Floats
from pytest_trace2evolve.gate.confirm import STEP_TRIALS, fresh_p
from pytest_trace2evolve.gate.decide import decision_ranks
from pytest_trace2evolve.gate.intervals import information_share, predictive_power
from pytest_trace2evolve.gate.pairs import Comparisons
from pytest_trace2evolve.gate.power import (
    TARGET_GAIN,
    Agent,
    Design,
    Effect,
    gain_at_power,
    simulate_stages,
)
from pytest_trace2evolve.gate.protocols import FAIL, Question
from pytest_trace2evolve.gate.tallies import REGRESSIONS, REWARD
from pytest_trace2evolve.records.verdict import Decision, Goal


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
            decided = _ranks(compared, np.where(paid, compared.fresh_p, np.nan), policy, question)
        rank = np.where(is_open, decided, rank)
        is_last = np.full(rows, trials == schedule[-1])
        if trials < schedule[-1]:
            gain_p = evaluate(compared, policy.rules(question)).findings[REWARD].gain_p
            saved = design.baseline_trials
            fraction = information_share(trials, schedule[-1], saved) if saved else trials / schedule[-1]
            is_last = predictive_power(gain_p, policy.rules(question).claim_alpha, fraction) < policy.futility
        ended = np.where(is_open & ((decided != Decision.INCONCLUSIVE.rank) | is_last), trials, ended)
    return StagedRuns(rank, ended, _fresh_simulations(stages[-1], paid))


def _ranks(compared: Comparisons, p: Floats, policy: Calibrated, question: Question) -> Counts:
    return decision_ranks(policy, compared.with_fresh_p(p), question)


def _matters(compared: Comparisons, paid: Flags, policy: Calibrated, question: Question) -> Flags:
    """Whether fresh trials of broken tasks can change each decision, or discard by themselves."""
    known = np.where(paid, np.asarray(compared.fresh_p), np.nan)
    untried = compared.is_broken & ~paid
    outcomes = [_ranks(compared, np.where(untried, p, known), policy, question) for p in (np.nan, 1.0, 0.0)]
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
