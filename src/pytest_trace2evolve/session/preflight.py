"""What a planned run costs and can show, computed from its baselines before the first request."""

from dataclasses import dataclass, replace

import numpy as np

from pytest_trace2evolve.gate.agents import AGENTS, Agent, Design, fit_agent
from pytest_trace2evolve.gate.alpha_spending import alpha_share, stage_alpha
from pytest_trace2evolve.gate.calibrated import Calibrated
from pytest_trace2evolve.gate.checks import compute_findings
from pytest_trace2evolve.gate.columns import Counts
from pytest_trace2evolve.gate.pairs import Comparisons
from pytest_trace2evolve.gate.power import Preflight, preflight
from pytest_trace2evolve.gate.protocols import Question
from pytest_trace2evolve.gate.tallies import REWARD, Tally
from pytest_trace2evolve.project.suites import Role
from pytest_trace2evolve.records.completion import Usage
from pytest_trace2evolve.records.verdict import Goal
from pytest_trace2evolve.session.estimate import ExpectedUsage, expected_usage
from pytest_trace2evolve.session.plan import Plan, PlannedSuite
from pytest_trace2evolve.session.verdicts import gated_splits


@dataclass(frozen=True)
class SplitPreflight:
    """What a run costs and can show on one deciding split.

    Attributes:
        suite, split: The names of the suite and the split.
        baseline: The name of the baseline; empty without one.
        obstacle: Why the split cannot decide; empty if it can.
        result: The simulated runs; None if the split cannot decide or the goal is not `improve`.
        usage: The expected usage of one simulation; None if it is unknown.
        note: Why nothing was simulated though the split can decide; else empty.
    """

    suite: str
    split: str
    baseline: str = ""
    obstacle: str = ""
    result: Preflight | None = None
    usage: Usage | None = None
    note: str = ""


def preflight_splits(plan: Plan) -> list[SplitPreflight]:
    """Return what the run costs and can show on each split that decides."""
    usage = expected_usage(plan) if plan.live is not None else ExpectedUsage()
    return [
        _preflight_split(plan, suite, split, usage)
        for suite in plan.suites.values()
        for split, is_guard in gated_splits(plan.project, suite.lock.splits)
        if not is_guard
    ]


def _preflight_split(plan: Plan, suite: PlannedSuite, split: str, usage: ExpectedUsage) -> SplitPreflight:
    if suite.baseline is None or plan.policy is None:
        reason = "the gate is off" if plan.policy is None else "no ancestor of the candidate has a baseline"
        return SplitPreflight(suite.name, split, obstacle=reason)
    found = SplitPreflight(suite.name, split, suite.baseline.name)
    tasks = suite.lock.splits[split]
    sides = [side for task, digest in tasks.items() if (side := suite.baseline.trials(task, digest))]
    if len(sides) < 2:
        return replace(found, obstacle=f"the baseline has measured {len(sides)} of its {len(tasks)} tasks")
    policy = plan.policy_of(suite)
    if not isinstance(policy, Calibrated) or plan.goal is not Goal.IMPROVE:
        return replace(
            found, note="only goal improve of policy calibrated is simulated; see trace2evolve power"
        )
    schedule = plan.schedule or (suite.trials,)
    is_sealed = plan.project.splits[split].role is Role.GATE
    share = alpha_share(1, 1) if is_sealed else 1.0
    level = stage_alpha(policy.alpha * share, schedule)
    counts = [(side.pass_count, len(side.measured_records)) for side in sides]
    passes, trials = (np.array(counts) for counts in zip(*counts, strict=True))
    if (p := _best_gain_p(passes, trials, schedule[-1], policy)) > level:
        return replace(
            found,
            obstacle=f"even a candidate that passes every trial has p = {p:.3g}, above the level of "
            f"{level:.3g}; add tasks, or choose tasks that the baseline fails",
        )
    design = Design(
        len(sides),
        schedule[-1],
        is_live=plan.live is not None,
        baseline_trials=round(float(np.median(trials))),
        max_fresh_simulations=policy.max_fresh_simulations,
    )
    result = preflight(_agent_of(passes, trials), design, policy, schedule, share=share)
    return replace(found, result=result, usage=usage.mean_usage(suite.name))


def _agent_of(successes: Counts, trials: Counts) -> Agent:
    """The agent whose chances over tasks fit the recorded successes, by the method of moments.

    With one trial of each task, the spread over tasks is unknown, and that of the agent `medium` is assumed.
    """
    rates = successes / trials
    rate = float(np.clip(rates.mean(), 0.01, 0.99))
    repeated = trials > 1
    shape = AGENTS["medium"]
    share = 1 / (shape.a + shape.b + 1)
    if repeated.any():
        noise = (rates * (1 - rates))[repeated] / (trials[repeated] - 1)
        share = (rates[repeated].var() - noise.mean()) / (rate * (1 - rate))
    return fit_agent(rate, float(np.sqrt(np.clip(share, 0.02, 0.9) * rate * (1 - rate))))


def _best_gain_p(successes: Counts, trials: Counts, further: int, policy: Calibrated) -> float:
    """The p-value of a gain if the candidate passes all of its `further` trials of each task.

    Above the level of the test, nothing can be promoted, whatever the candidate does.
    """
    all_passed = np.full((1, len(trials)), further)
    old, new = Tally.of_successes(successes[None, :], trials), Tally.of_successes(all_passed, further)
    comparisons = Comparisons(old, new)
    return float(compute_findings(comparisons, policy.rules(Question(Goal.IMPROVE)))[REWARD].gain_p[0])
