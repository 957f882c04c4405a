"""Error rates and power of each policy on a suite's own trials, over resampled comparisons.

An agent is compared with itself, without an effect and with a planted effect. Tasks are drawn with
replacement, since a suite's tasks stand for all tasks of their kind. A task with at least twice the planned
trials is split, and each trial is used once. For a task with fewer trials, the outcome is drawn at the task's
rate, and everything else is taken from a recorded trial of the task with that outcome. At the recorded rates,
such trials would vary too little, by a factor (M - 1) / M for M trials, and the tasks would vary too much.
Rates are therefore shrunk towards their mean until both variances match the recorded trials.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import NamedTuple

import numpy as np

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.gate.columns import Columns, Counts, Flags, Floats
from pytest_trace2evolve.gate.confirm import simulate_fresh_trials
from pytest_trace2evolve.gate.decide import decision_ranks
from pytest_trace2evolve.gate.intervals import clopper_pearson
from pytest_trace2evolve.gate.pairs import Comparisons
from pytest_trace2evolve.gate.protocols import Policy, Question
from pytest_trace2evolve.gate.tallies import Tally, mean_of
from pytest_trace2evolve.records.task import natural_sort_key
from pytest_trace2evolve.records.verdict import Decision, Goal, Interval
from pytest_trace2evolve.scoring.metrics import SUCCESS

_MAX_CHUNK_TRIALS = 1 << 22
"""The maximum number of trials drawn at a time."""

_MAX_BATCH_TASKS = 1 << 20
"""The maximum number of tasks, summed over comparisons, that are judged at a time."""


DrawComparisons = Callable[..., Comparisons]
"""A function of a random generator and `rows` that draws comparisons with arrays of shape (rows, N)."""


@dataclass(frozen=True)
class Pool:
    """The trials of each task that can be drawn, measured and synthetic: arrays of shape (T, 2M + 1).

    The first M columns hold the task's measured trials, passing trials first, then unused columns. Column M
    holds a success with every action matched, for tasks that never passed. The last M columns hold the
    measured trials again as failures with their actions unchanged, for tasks that never failed.

    Attributes:
        names: The tasks' ids (T of them).
        counts: The number of measured trials of each task, shape (T,).
        passes: The number of successful trials of each task, shape (T,).
        reward: The reward of each trial.
        shares: By kind, the share of gold actions matched; NaN if it is not known.
        max_steps: Whether the step budget ended the trial.
        lost_simulations: The number of simulations without a reward, which are left out.
    """

    names: tuple[str, ...]
    counts: Counts
    passes: Counts
    reward: Floats
    shares: Mapping[str, Floats]
    max_steps: Flags
    lost_simulations: int = 0

    @property
    def max_trials(self) -> int:
        """The largest number of trials of a task (M)."""
        return int(self.reward.shape[1] // 2)

    @property
    def tasks(self) -> int:
        """The number of tasks (T)."""
        return len(self.names)

    @property
    def simulations(self) -> int:
        """The number of measured trials."""
        return int(self.counts.sum())

    @property
    def most_common_trials(self) -> int:
        """The most common number of trials of a task; the smallest if several are equally common."""
        return int(np.bincount(self.counts).argmax())

    @property
    def pass_rate(self) -> float:
        """Mean over tasks of the share of successes."""
        return float(self.rates.mean())

    @property
    def rates(self) -> Floats:
        """Share of successes by task, as recorded."""
        return self.passes / self.counts

    def can_be_split(self, trials: int) -> Flags:
        """Whether each task has enough trials for both sides, with `trials` trials each; shape (T,)."""
        return self.counts >= 2 * trials

    @cached_property
    def shrunken_rates(self) -> Floats:
        """Rates to draw from: the recorded rates, shrunken towards their mean to remove the noise of trials.

        The noise of a trial is estimated without bias from the tasks with two or more trials. The share of
        the spread of recorded rates that the noise explains is removed: each rate keeps
        sqrt(V / (V + noise / M)) of its distance from the mean, where V is the variance of true rates.
        Source: Louis (1984), Estimating a population of parameter values using Bayes and empirical Bayes
        methods.
        """
        has_several = self.counts > 1
        rates, counts = self.rates, self.counts
        noise = float(np.mean((rates * (1 - rates) * counts / np.maximum(counts - 1, 1))[has_several]))
        mean = rates.mean()
        true_variance = max(0.0, float(np.mean((rates - mean) ** 2)) - noise * float(np.mean(1 / counts)))
        total = true_variance + noise / counts
        kept_shares = np.sqrt(np.divide(true_variance, total, out=np.ones_like(total), where=total > 0))
        rates_to_draw: Floats = mean + kept_shares * (rates - mean)
        return rates_to_draw

    def turn_probability(self, effect: float, trials: int) -> float:
        """The probability of turning a failing trial (for a loss, a passing trial) that gives an effect.

        The effect is a change of the mean reward. The value exceeds 1 if the pool has too few
        such trials for an effect of this size.
        """
        rates = np.where(self.can_be_split(trials), self.rates, self.shrunken_rates)
        mean_success, mean_failure = self._mean_rewards
        max_effect = float(np.mean((1 - rates if effect > 0 else rates) * (mean_success - mean_failure)))
        return abs(effect) / max_effect if max_effect > 0 else float("inf") if effect else 0.0

    @cached_property
    def _mean_rewards(self) -> tuple[Floats, Floats]:
        """The mean reward of each task's successes (1 without any), and of its failures (0 without any)."""
        rewards, columns = self.reward[:, : self.max_trials], np.arange(self.max_trials)
        is_success = columns < self.passes[:, None]
        is_failure = (columns < self.counts[:, None]) & ~is_success
        successes = np.where(is_success, rewards, 0.0).sum(axis=1), self.passes
        failures = np.where(is_failure, rewards, 0.0).sum(axis=1), self.counts - self.passes
        return np.nan_to_num(mean_of(*successes), nan=1.0), np.nan_to_num(mean_of(*failures), nan=0.0)

    def tally(self, tasks: Counts, columns: Counts) -> Tally:
        """Sum the drawn trials of each task.

        `tasks` has shape (R, N), and `columns` holds the drawn columns, shape (R, N, K).
        """
        indices = tasks[:, :, None] * self.reward.shape[1] + columns
        reward = self.reward.ravel()[indices]
        trials = np.full(tasks.shape, columns.shape[2])
        shares = {kind: table.ravel()[indices] for kind, table in self.shares.items()}
        return Tally(
            trials=trials,
            measured=trials,
            reward=reward.sum(axis=2),
            squares=(reward**2).sum(axis=2),
            successes=(reward >= SUCCESS).sum(axis=2),
            matched={kind: np.nansum(share, axis=2) for kind, share in shares.items()},
            checked={kind: (~np.isnan(share)).sum(axis=2) for kind, share in shares.items()},
            max_steps=self.max_steps.ravel()[indices].sum(axis=2),
        )


@dataclass(frozen=True)
class DrawSettings:
    """The settings of resampled comparisons.

    Attributes:
        trials: The trials of each task on each side.
        effect: The planted change of the candidate's mean reward.
        is_live: Whether broken tasks get fresh trials, as in a live run.
        max_fresh_simulations: Maximum number of fresh simulations of a live run.
        has_fixed_tasks: Whether every task is taken once (estimand `suite`), not drawn with replacement.
    """

    trials: int
    effect: float = 0.0
    is_live: bool = False
    max_fresh_simulations: int = 640
    has_fixed_tasks: bool = False


def pool_of(side: Columns) -> Pool:
    """Collect the measured trials of one side by task.

    Raises:
        ResultsError: no simulation was measured, or no task has two measured trials.
    """
    if not side.measured.any():
        raise ResultsError("no simulation was measured, so there are no trials to draw from")
    task_of_trial, reward = side.task_index[side.measured], side.reward[side.measured]
    # Tasks and trials are sorted, so that the order of the files does not change the draws.
    task_indices = sorted(
        np.unique(task_of_trial).tolist(), key=lambda position: natural_sort_key(side.tasks[position])
    )
    new_index_of = np.zeros(len(side.tasks), dtype=np.int64)
    new_index_of[task_indices] = np.arange(len(task_indices))
    task_of_trial = new_index_of[task_of_trial]
    counts = np.bincount(task_of_trial)
    if counts.max() < 2:
        raise ResultsError(
            "every task has only one trial, so the variation between trials is unknown; "
            "give at least two trials of its tasks (--t2e-trials 2)"
        )
    shares = {kind: share[side.measured] for kind, share in side.shares.items()}
    max_steps = side.max_steps[side.measured]
    keys = [np.nan_to_num(share, nan=-1.0) for share in shares.values()]
    order = np.lexsort((max_steps, *keys, -reward, task_of_trial))
    cells = (
        task_of_trial[order],
        np.arange(len(task_of_trial)) - np.repeat(np.cumsum(counts) - counts, counts),
    )
    max_trials = int(counts.max())

    def table(values: Floats, empty: float, success: float | Floats, failures: float | None = None) -> Floats:
        rows = np.full((len(counts), 2 * max_trials + 1), empty)
        rows[cells] = values[order]
        rows[:, max_trials] = success
        rows[:, max_trials + 1 :] = rows[:, :max_trials] if failures is None else failures
        return rows

    has_known_share = {
        kind: np.bincount(task_of_trial, weights=~np.isnan(share)) > 0 for kind, share in shares.items()
    }
    return Pool(
        names=tuple(side.tasks[position] for position in task_indices),
        counts=counts,
        passes=np.bincount(task_of_trial, weights=reward >= SUCCESS).astype(np.int64),
        reward=table(reward, 0.0, 1.0, 0.0),
        shares={
            kind: table(share, np.nan, np.where(has_known_share[kind], 1.0, np.nan))
            for kind, share in shares.items()
        },
        max_steps=table(max_steps.astype(np.float64), 0.0, 0.0, 0.0) > 0,
        lost_simulations=int((~side.measured).sum()),
    )


def resample(random: np.random.Generator, pool: Pool, draw: DrawSettings, rows: int) -> Comparisons:
    """Comparisons drawn from a pool, arrays of shape (rows, T).

    A planted gain turns failing trials of the candidate into successes, and a planted loss turns passing
    trials into failures, each with the probability that moves the mean by the effect. All other fields come
    from a recorded trial of the same task with the new outcome. Fresh trials are drawn at the tasks' rates,
    changed by the same probability.
    """
    turn_probability = pool.turn_probability(draw.effect, draw.trials)
    if turn_probability > 1:
        raise ValueError(
            f"an effect of {draw.effect} cannot be planted: too few trials can change their outcome"
        )
    size = pool.tasks * max(2 * draw.trials, pool.max_trials)
    chunk = max(1, _MAX_CHUNK_TRIALS // size)
    parts = [
        _draw_chunk(random, pool, draw, turn_probability, min(chunk, rows - start))
        for start in range(0, rows, chunk)
    ]
    old = Tally.combine(np.concatenate, [part.baseline for part in parts])
    new = Tally.combine(np.concatenate, [part.candidate for part in parts])
    fresh = [part.fresh_p for part in parts if part.fresh_p is not None]
    return Comparisons(old, new, fresh_p=np.concatenate(fresh) if fresh else None)


def _draw_chunk(
    random: np.random.Generator, pool: Pool, draw: DrawSettings, turn_probability: float, rows: int
) -> Comparisons:
    trials = draw.trials
    tasks = random.integers(0, pool.tasks, (rows, pool.tasks))
    if draw.has_fixed_tasks:
        tasks = np.broadcast_to(np.arange(pool.tasks), tasks.shape)
    shape = (*tasks.shape, 2 * trials)
    success_columns, failure_columns = _donor_columns(random, pool, tasks, shape)
    columns = np.where(
        random.random(shape) < pool.shrunken_rates[tasks][:, :, None], success_columns, failure_columns
    )
    if (can_be_split := pool.can_be_split(trials)).any():
        is_split = can_be_split[tasks]
        columns[is_split] = _draw_distinct_columns(random, pool.counts[tasks[is_split]], 2 * trials)
    old, new = columns[:, :, :trials], columns[:, :, trials:]
    if draw.effect:
        new = _turn_outcomes(
            random, pool, tasks, new, draw.effect > 0, turn_probability, (success_columns, failure_columns)
        )
    comparisons = Comparisons(pool.tally(tasks, old), pool.tally(tasks, new))
    if not draw.is_live:
        return comparisons
    base_rates = pool.shrunken_rates[tasks]
    changed_rates = (
        base_rates + turn_probability * (1 - base_rates)
        if draw.effect > 0
        else base_rates * (1 - turn_probability)
    )
    fresh = simulate_fresh_trials(
        random, comparisons.is_broken, base_rates, changed_rates, draw.max_fresh_simulations
    )
    return Comparisons(comparisons.baseline, comparisons.candidate, fresh_p=fresh)


def _donor_columns(
    random: np.random.Generator, pool: Pool, tasks: Counts, shape: tuple[int, ...]
) -> tuple[Counts, Counts]:
    """The columns of a success and of a failure of the same task, for each trial to be drawn."""
    max_trials = pool.max_trials
    passes, counts = pool.passes[tasks][:, :, None], pool.counts[tasks][:, :, None]
    uniform = random.random(shape)
    success_columns = np.where(passes > 0, np.floor(uniform * passes), max_trials)
    failure_columns = np.where(
        passes < counts,
        passes + np.floor(uniform * (counts - passes)),
        max_trials + 1 + np.floor(uniform * counts),
    )
    return success_columns.astype(np.int64), failure_columns.astype(np.int64)


def _draw_distinct_columns(random: np.random.Generator, counts: Counts, trials: int) -> Counts:
    """Columns of distinct trials in random order, shape (tasks, trials). No task may have fewer trials."""
    keys = random.random((len(counts), int(counts.max())))
    keys[np.arange(keys.shape[1]) >= counts[:, None]] = 2.0
    return np.argsort(keys, axis=1)[:, :trials]


def _turn_outcomes(
    random: np.random.Generator,
    pool: Pool,
    tasks: Counts,
    columns: Counts,
    is_gain: bool,
    turn_probability: float,
    donors: tuple[Counts, Counts],
) -> Counts:
    """The columns of the candidate's trials after turning some failures (for a gain) or successes."""
    trials, max_trials = columns.shape[2], pool.max_trials
    is_success = pool.reward[tasks[:, :, None], columns] >= SUCCESS
    is_turned = (random.random(columns.shape) < turn_probability) & (~is_success if is_gain else is_success)
    donor_columns = donors[0 if is_gain else 1][:, :, :trials]
    if not is_gain:
        # A task that never failed keeps its trial's own actions.
        donor_columns = np.where(
            (donor_columns > max_trials) & (columns < max_trials), max_trials + 1 + columns, donor_columns
        )
    return np.where(is_turned, donor_columns, columns)


class DecisionCounts(NamedTuple):
    """The number of comparisons with each decision."""

    discarded: int
    inconclusive: int
    promoted: int

    @property
    def total(self) -> int:
        """The number of comparisons."""
        return sum(self)

    def rate(self, decision: Decision) -> Interval:
        """The share of comparisons with this decision, with its exact interval."""
        count = self[decision.rank]
        low, high = clopper_pearson(count, self.total)
        return Interval(estimate=count / self.total, low=low, high=high)


@dataclass(frozen=True)
class PolicyToCalibrate:
    """A policy to calibrate.

    Attributes:
        policy: The policy.
        margin: The loss that the policy must not promote under `hold`.
        has_fixed_tasks: Whether the policy judges exactly these tasks, so that each is taken once.
    """

    policy: Policy
    margin: float
    has_fixed_tasks: bool = False


@dataclass(frozen=True)
class Rate:
    """A rate to report: how often a goal leads to a decision at a planted effect."""

    meaning: str
    goal: Goal
    effect: float
    decision: Decision


@dataclass(frozen=True)
class Calibration:
    """The result of a calibration.

    Attributes:
        pool: The trials that were drawn from.
        draw: The parameters of the draws; ignore their effect.
        resamples: The number of comparisons of each kind.
        seed: The seed of the draws.
        margins: By policy, the loss that the policy must not promote under `hold`.
        effects: The sizes of the planted effects, each used as a gain and as a loss.
        unplantable_effects: The signed effects that could not be planted, because the pool passes too rarely
            or too often.
        decisions: The counts of decisions, by policy, goal and planted effect.
    """

    pool: Pool
    draw: DrawSettings
    resamples: int
    seed: int
    margins: Mapping[str, float]
    effects: tuple[float, ...]
    unplantable_effects: tuple[float, ...]
    decisions: Mapping[tuple[str, Goal, float], DecisionCounts]

    def rates(self, policy: str) -> list[Rate]:
        """The figures of a policy, in the order in which they are printed."""
        hold, improve, no_regression, no_effect = Goal.HOLD, Goal.IMPROVE, Goal.NO_REGRESSION, 0.0
        rates = [
            Rate("false-promote", improve, no_effect, Decision.PROMOTE),
            Rate("false-discard", improve, no_effect, Decision.DISCARD),
            Rate("false-promote", hold, -self.margins[policy], Decision.PROMOTE),
            Rate("false-discard", hold, no_effect, Decision.DISCARD),
            Rate("A/A promoted", hold, no_effect, Decision.PROMOTE),
        ]
        rates += [Rate("power", improve, size, Decision.PROMOTE) for size in self.effects]
        rates += [Rate("power", improve, -size, Decision.DISCARD) for size in self.effects]
        rates.append(Rate("false-discard", no_regression, no_effect, Decision.DISCARD))
        return rates + [Rate("power", no_regression, -size, Decision.DISCARD) for size in self.effects]


def calibrate(
    pool: Pool,
    policies: Sequence[PolicyToCalibrate],
    draw: DrawSettings,
    *,
    effects: Sequence[float],
    resamples: int,
    seed: int,
) -> Calibration:
    """Judge resampled comparisons by several policies.

    Args:
        pool: Trials of one agent on a suite's tasks.
        policies: The policies to calibrate.
        draw: Trials and fresh trials of each comparison.
        effects: Sizes of planted effects, each as a gain and as a loss.
        resamples: Comparisons of each kind.
        seed: The seed. Every kind of comparison starts from it, so that other kinds do not change the draws.
    """
    effect_sizes = sorted({*effects})
    losses = {-settings.margin for settings in policies}
    planted_effects = sorted({0.0, *effect_sizes, *(-size for size in effect_sizes), *losses})
    plantable_effects = [
        effect for effect in planted_effects if pool.turn_probability(effect, draw.trials) <= 1
    ]
    decisions: dict[tuple[str, Goal, float], DecisionCounts] = {}
    for effect, has_fixed_tasks in product(plantable_effects, (False, True)):
        fitting = [each.policy for each in policies if each.has_fixed_tasks is has_fixed_tasks]
        questions = [*product(fitting, Goal)]
        if not questions:
            continue
        draw_comparisons = partial(
            resample, pool=pool, draw=replace(draw, effect=effect, has_fixed_tasks=has_fixed_tasks)
        )
        counts_by_question = count_decisions(
            draw_comparisons, questions, rows=resamples, tasks=pool.tasks, seed=seed
        )
        for (policy, goal), counts in zip(questions, counts_by_question, strict=True):
            decisions[policy.name, goal, effect] = counts
    return Calibration(
        pool=pool,
        draw=draw,
        resamples=resamples,
        seed=seed,
        margins={settings.policy.name: settings.margin for settings in policies},
        effects=tuple(effect_sizes),
        unplantable_effects=tuple(effect for effect in planted_effects if effect not in plantable_effects),
        decisions=decisions,
    )


def count_decisions(
    draw_comparisons: DrawComparisons,
    questions: Sequence[tuple[Policy, Goal]],
    *,
    rows: int,
    tasks: int,
    seed: int,
) -> list[DecisionCounts]:
    """Count the decisions on the same drawn comparisons, for each pair of a policy and a goal."""
    random = np.random.default_rng(seed)
    totals = np.zeros((len(questions), len(Decision)), dtype=np.int64)
    batch_rows = max(1, _MAX_BATCH_TASKS // max(tasks, 1))
    for start in range(0, rows, batch_rows):
        comparisons = draw_comparisons(random, rows=min(batch_rows, rows - start))
        for index, (policy, goal) in enumerate(questions):
            totals[index] += np.bincount(
                decision_ranks(policy, comparisons, Question(goal)), minlength=len(Decision)
            )
    return [DecisionCounts(*total) for total in totals.tolist()]
