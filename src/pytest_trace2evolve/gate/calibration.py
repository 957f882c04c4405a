"""Error rates and power of each policy on a suite's own trials, over resampled comparisons.

An agent is compared with itself, without an effect and with a planted effect. Tasks are drawn with
replacement, since a suite's tasks stand for all tasks of their kind. A task with at least twice the planned
trials is split, and each trial is used once. For a task with fewer trials, the outcome is drawn at the task's
rate, and everything else is taken from a recorded trial of the task with that outcome. At the recorded rates,
such trials would vary too little, by a factor (M - 1) / M for M trials, and the tasks would vary too much.
Rates are therefore shrunk towards their mean until both variances match the recorded trials.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import NamedTuple, Protocol

import numpy as np

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.gate.columns import Columns, Counts, Flags, Floats
from pytest_trace2evolve.gate.confirm import fresh_trials
from pytest_trace2evolve.gate.decide import ranks
from pytest_trace2evolve.gate.intervals import clopper_pearson
from pytest_trace2evolve.gate.pairs import Comparisons, Tally, mean_of
from pytest_trace2evolve.gate.protocols import Policy, Question
from pytest_trace2evolve.records.task import natural_order
from pytest_trace2evolve.records.verdict import Decision, Goal, Interval
from pytest_trace2evolve.scoring.metrics import SUCCESS

_CHUNK = 1 << 22
"""The number of trials drawn at a time."""

_BATCH = 1 << 20
"""The number of tasks, summed over comparisons, that are judged at a time."""


class Drawing(Protocol):
    """Draws a number of comparisons."""

    def __call__(self, random: np.random.Generator, *, rows: int) -> Comparisons:
        """Draw comparisons with arrays of shape (rows, N)."""


@dataclass(frozen=True)
class Pool:
    """The trials of each task that can be drawn, measured and synthetic: arrays of shape (T, 2M + 1).

    The first M columns hold the task's measured trials, passing trials first, then unused places. Column M
    holds a success with every action matched, for tasks that never passed. The last M columns hold the
    measured trials again as failures with their actions unchanged, for tasks that never failed.

    Attributes:
        names: The tasks' ids (T of them).
        counts: The number of measured trials of each task, shape (T,).
        passes: The number of successful trials of each task, shape (T,).
        reward: The reward of each trial.
        shares: By kind, the share of gold actions matched; NaN if it is not known.
        max_steps: Whether the step budget ended the trial.
        lost: The number of simulations without a reward, which are left out.
    """

    names: tuple[str, ...]
    counts: Counts
    passes: Counts
    reward: Floats
    shares: Mapping[str, Floats]
    max_steps: Flags
    lost: int = 0

    @property
    def most(self) -> int:
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
    def usual_trials(self) -> int:
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

    def split(self, trials: int) -> Flags:
        """Whether each task has enough trials for two sides with this number of trials each, shape (T,)."""
        return self.counts >= 2 * trials

    @cached_property
    def drawn_rates(self) -> Floats:
        """Rates with the variance over tasks, and the noise of trials, estimated from the recorded trials.

        The noise of a trial is estimated without bias from the tasks with two or more trials. The share of
        the spread of recorded rates that the noise explains is removed: each rate keeps
        sqrt(V / (V + noise / M)) of its distance from the mean, where V is the variance of true rates.
        Source: Louis (1984), Estimating a population of parameter values using Bayes and empirical Bayes
        methods.
        """
        several = self.counts > 1
        rates, counts = self.rates, self.counts
        noise = float(np.mean((rates * (1 - rates) * counts / np.maximum(counts - 1, 1))[several]))
        mean = rates.mean()
        true = max(0.0, float(np.mean((rates - mean) ** 2)) - noise * float(np.mean(1 / counts)))
        total = true + noise / counts
        kept = np.sqrt(np.divide(true, total, out=np.ones_like(total), where=total > 0))
        drawn: Floats = mean + kept * (rates - mean)
        return drawn

    def turning(self, effect: float, trials: int) -> float:
        """The probability with which failing trials (for a loss, passing trials) must turn to give an effect.

        The effect is a change of the mean reward. The value exceeds 1 if the pool has no room for an effect
        of this size.
        """
        rates = np.where(self.split(trials), self.rates, self.drawn_rates)
        good, bad = self._mean_rewards
        room = float(np.mean((1 - rates if effect > 0 else rates) * (good - bad)))
        return abs(effect) / room if room > 0 else float("inf") if effect else 0.0

    @cached_property
    def _mean_rewards(self) -> tuple[Floats, Floats]:
        """The mean reward of each task's successes (1 without any), and of its failures (0 without any)."""
        trials, columns = self.reward[:, : self.most], np.arange(self.most)
        passing = columns < self.passes[:, None]
        failing = (columns < self.counts[:, None]) & ~passing
        good = np.where(passing, trials, 0.0).sum(axis=1), self.passes
        bad = np.where(failing, trials, 0.0).sum(axis=1), self.counts - self.passes
        return np.nan_to_num(mean_of(*good), nan=1.0), np.nan_to_num(mean_of(*bad), nan=0.0)

    def tally(self, tasks: Counts, columns: Counts) -> Tally:
        """Sums over drawn trials: tasks (R, N), columns (R, N, K)."""
        place = tasks[:, :, None] * self.reward.shape[1] + columns
        reward = self.reward.ravel()[place]
        trials = np.full(tasks.shape, columns.shape[2])
        shares = {kind: table.ravel()[place] for kind, table in self.shares.items()}
        return Tally(
            trials=trials,
            measured=trials,
            reward=reward.sum(axis=2),
            squares=(reward**2).sum(axis=2),
            passed=(reward >= SUCCESS).sum(axis=2),
            matched={kind: np.nansum(share, axis=2) for kind, share in shares.items()},
            checked={kind: (~np.isnan(share)).sum(axis=2) for kind, share in shares.items()},
            max_steps=self.max_steps.ravel()[place].sum(axis=2),
        )


@dataclass(frozen=True)
class Draw:
    """The parameters of a draw.

    Attributes:
        trials: The trials of each task on each side.
        effect: The planted change of the candidate's mean reward.
        live: Whether broken tasks get fresh trials.
        confirm: The most fresh simulations that a live run may make.
        fixed: Whether every task is taken once (estimand `suite`) instead of drawn with replacement.
    """

    trials: int
    effect: float = 0.0
    live: bool = False
    confirm: int = 640
    fixed: bool = False


def pool_of(side: Columns) -> Pool:
    """The measured trials of some evidence, by task.

    Raises:
        ResultsError: no simulation was measured, or no task has two measured trials.
    """
    if not side.measured.any():
        raise ResultsError("no simulation was measured: there are no trials to draw from")
    task, reward = side.task[side.measured], side.reward[side.measured]
    # Tasks and trials are sorted, so that the order of the files does not change the draws.
    kept = sorted(np.unique(task).tolist(), key=lambda place: natural_order(side.tasks[place]))
    place_of = np.zeros(len(side.tasks), dtype=np.int64)
    place_of[kept] = np.arange(len(kept))
    task = place_of[task]
    counts = np.bincount(task)
    if counts.max() < 2:
        raise ResultsError(
            "every task has one trial: how much an agent differs from itself cannot be seen; "
            "give at least two trials of its tasks (--t2e-trials 2)"
        )
    shares = {kind: share[side.measured] for kind, share in side.shares.items()}
    max_steps = side.max_steps[side.measured]
    keys = [np.nan_to_num(share, nan=-1.0) for share in shares.values()]
    order = np.lexsort((max_steps, *keys, -reward, task))
    place = task[order], np.arange(len(task)) - np.repeat(np.cumsum(counts) - counts, counts)
    most = int(counts.max())

    def table(values: Floats, empty: float, success: float | Floats, failures: float | None = None) -> Floats:
        filled = np.full((len(counts), 2 * most + 1), empty)
        filled[place] = values[order]
        filled[:, most] = success
        filled[:, most + 1 :] = filled[:, :most] if failures is None else failures
        return filled

    known = {kind: np.bincount(task, weights=~np.isnan(share)) > 0 for kind, share in shares.items()}
    return Pool(
        names=tuple(side.tasks[place] for place in kept),
        counts=counts,
        passes=np.bincount(task, weights=reward >= SUCCESS).astype(np.int64),
        reward=table(reward, 0.0, 1.0, 0.0),
        shares={
            kind: table(share, np.nan, np.where(known[kind], 1.0, np.nan)) for kind, share in shares.items()
        },
        max_steps=table(max_steps.astype(np.float64), 0.0, 0.0, 0.0) > 0,
        lost=int((~side.measured).sum()),
    )


def resample(random: np.random.Generator, pool: Pool, draw: Draw, rows: int) -> Comparisons:
    """Comparisons drawn from a pool, arrays of shape (rows, T).

    A planted gain turns failing trials of the candidate into successes, and a planted loss turns passing
    trials into failures, each with the probability that moves the mean by the effect. All other fields come
    from a recorded trial of the same task with the new outcome. Fresh trials are drawn at the tasks' rates,
    changed by the same probability.
    """
    turn = pool.turning(draw.effect, draw.trials)
    if turn > 1:
        raise ValueError(f"an effect of {draw.effect} cannot be planted")
    size = pool.tasks * max(2 * draw.trials, pool.most)
    chunk = max(1, _CHUNK // size)
    parts = [_drawn(random, pool, draw, turn, min(chunk, rows - start)) for start in range(0, rows, chunk)]
    old = Tally.combine(np.concatenate, [part.baseline for part in parts])
    new = Tally.combine(np.concatenate, [part.candidate for part in parts])
    fresh = [part.fresh for part in parts if part.fresh is not None]
    return Comparisons(
        old, new, fresh=np.concatenate(fresh) if fresh else None, binary=old.binary & new.binary
    )


def _drawn(random: np.random.Generator, pool: Pool, draw: Draw, turn: float, rows: int) -> Comparisons:
    trials = draw.trials
    task = random.integers(0, pool.tasks, (rows, pool.tasks))
    if draw.fixed:
        task = np.broadcast_to(np.arange(pool.tasks), task.shape)
    shape = (*task.shape, 2 * trials)
    passing, failing = _donors(random, pool, task, shape)
    columns = np.where(random.random(shape) < pool.drawn_rates[task][:, :, None], passing, failing)
    if (split := pool.split(trials)).any():
        here = split[task]
        columns[here] = _without_replacement(random, pool.counts[task[here]], 2 * trials)
    old, new = columns[:, :, :trials], columns[:, :, trials:]
    if draw.effect:
        new = _turned(random, pool, task, new, draw.effect > 0, turn, (passing, failing))
    compared = Comparisons(pool.tally(task, old), pool.tally(task, new))
    if not draw.live:
        return compared
    rates = pool.drawn_rates[task]
    moved = rates + turn * (1 - rates) if draw.effect > 0 else rates * (1 - turn)
    fresh = fresh_trials(random, compared.broken, rates, moved, draw.confirm)
    return Comparisons(compared.baseline, compared.candidate, fresh=fresh)


def _donors(
    random: np.random.Generator, pool: Pool, task: Counts, shape: tuple[int, ...]
) -> tuple[Counts, Counts]:
    """The columns of a success and of a failure of the same task, for each trial to be drawn."""
    most = pool.most
    passes, counts = pool.passes[task][:, :, None], pool.counts[task][:, :, None]
    at = random.random(shape)
    passing = np.where(passes > 0, np.floor(at * passes), most)
    failing = np.where(
        passes < counts, passes + np.floor(at * (counts - passes)), most + 1 + np.floor(at * counts)
    )
    return passing.astype(np.int64), failing.astype(np.int64)


def _without_replacement(random: np.random.Generator, counts: Counts, trials: int) -> Counts:
    """Columns of distinct trials in random order, shape (tasks, trials). No task may have fewer trials."""
    keys = random.random((len(counts), int(counts.max())))
    keys[np.arange(keys.shape[1]) >= counts[:, None]] = 2.0
    return np.argsort(keys, axis=1)[:, :trials]


def _turned(
    random: np.random.Generator,
    pool: Pool,
    task: Counts,
    columns: Counts,
    gain: bool,
    turn: float,
    donors: tuple[Counts, Counts],
) -> Counts:
    """The columns of the candidate's trials after turning some failures (for a gain) or successes."""
    trials, most = columns.shape[2], pool.most
    passed = pool.reward[task[:, :, None], columns] >= SUCCESS
    turns = (random.random(columns.shape) < turn) & (~passed if gain else passed)
    donor = donors[0 if gain else 1][:, :, :trials]
    if not gain:
        # A task that never failed keeps its trial's own actions.
        donor = np.where((donor > most) & (columns < most), most + 1 + columns, donor)
    return np.where(turns, donor, columns)


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
        """The share of one decision, with its exact interval."""
        count = self[decision.rank]
        low, high = clopper_pearson(count, self.total)
        return Interval(estimate=count / self.total, low=low, high=high)


@dataclass(frozen=True)
class PolicyToCalibrate:
    """A policy to calibrate.

    Attributes:
        policy: The policy.
        margin: The loss that the policy must not promote under `hold`.
        fixed: Whether the policy judges exactly these tasks, so that each is taken once instead of drawn.
    """

    policy: Policy
    margin: float
    fixed: bool = False


@dataclass(frozen=True)
class Rate:
    """The identity of one figure: the rate of a decision of a policy at a planted effect."""

    meaning: str
    goal: Goal
    effect: float
    decision: Decision


@dataclass(frozen=True)
class Calibration:
    """The result of a calibration.

    Attributes:
        pool: The trials that were drawn from.
        draw: The parameters of the draws; their effect has no meaning here.
        resamples: The number of comparisons of each kind.
        seed: The seed of the draws.
        margins: By policy, the loss that the policy must not promote under `hold`.
        effects: The sizes of the planted effects, each used as a gain and as a loss.
        impossible: The signed effects that could not be planted, since the pool passes too rarely or too
            often.
        decisions: The counts of decisions, by policy, goal and planted effect.
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
        """The figures of a policy, in the order in which they are printed."""
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
        policies: The policies to calibrate.
        draw: Trials and fresh trials of each comparison.
        effects: Sizes of planted effects, each as a gain and as a loss.
        resamples: Comparisons of each kind.
        seed: The seed. Every kind of comparison starts from it, so that other kinds do not change the draws.
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
        drawing = partial(resample, pool=pool, draw=replace(draw, effect=effect, fixed=fixed))
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
    totals = np.zeros((len(asked), len(Decision)), dtype=np.int64)
    batch = max(1, _BATCH // max(tasks, 1))
    for start in range(0, rows, batch):
        compared = drawing(random, rows=min(batch, rows - start))
        for place, (policy, goal) in enumerate(asked):
            totals[place] += np.bincount(ranks(policy, compared, Question(goal)), minlength=len(Decision))
    return [DecisionCounts(*total) for total in totals.tolist()]
