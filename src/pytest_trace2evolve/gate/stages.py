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
from pytest_trace2evolve.gate.pairs import REGRESSIONS, REWARD, Comparisons
from pytest_trace2evolve.gate.power import Agent, Design, Effect, simulate_stages
from pytest_trace2evolve.gate.protocols import FAIL, Question
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
        assert compared.fresh_p is not None
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
    assert compared.fresh_p is not None
    known = np.where(paid, compared.fresh_p, np.nan)
    untried = compared.is_broken & ~paid
    outcomes = [_ranks(compared, np.where(untried, p, known), policy, question) for p in (np.nan, 1.0, 0.0)]
    confirmed = compared.with_fresh_p(np.where(untried, 0.0, known))
    codes = evaluate(confirmed, policy.rules(question)).status_codes
    return np.asarray((np.ptp(outcomes, axis=0) > 0) | (codes[REGRESSIONS] == FAIL))


def _fresh_simulations(last: Comparisons, paid: Flags) -> Counts:
    """The fresh simulations of both sides: one step of trials, and one more unless the first was clear."""
    is_clear = (last.fresh_p == 1.0) | (last.fresh_p == float(fresh_p(STEP_TRIALS, 0)))
    return np.asarray(2 * STEP_TRIALS * np.where(paid, np.where(is_clear, 1, 2), 0).sum(axis=1))
