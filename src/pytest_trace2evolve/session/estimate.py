"""Estimates the usage of a live run from its baselines, and checks its budgets."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add

from pytest_trace2evolve.engine.live import LiveSettings
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.models.prices import Price
from pytest_trace2evolve.records.budget import Budgets
from pytest_trace2evolve.records.completion import NO_USAGE, Usage
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.session.draws import Draws
from pytest_trace2evolve.session.plan import MAX_FRESH_SIMULATIONS, Plan


@dataclass(frozen=True)
class ExpectedUsage:
    """The expected usage of one simulation, by suite and task: the mean over the baseline's trials."""

    by_suite: Mapping[str, Mapping[str, Usage]] = field(default_factory=dict)

    def usage_of(self, suite: str, task_id: str) -> Usage | None:
        """Return the expected usage of one simulation of a task.

        A task that the baseline lacks gets the suite's mean. None if the suite has no figures.
        """
        return self.by_suite.get(suite, {}).get(task_id) or self.mean_usage(suite)

    def mean_usage(self, suite: str) -> Usage | None:
        """Return the mean expected usage of a suite's simulations; None without figures."""
        by_task = self.by_suite.get(suite)
        return _mean(by_task.values()) if by_task else None

    @property
    def min_usage(self) -> Usage | None:
        """The usage of the smallest simulation by tokens; None if no usage is known."""
        usages = [usage for by_task in self.by_suite.values() for usage in by_task.values()]
        return min(usages, key=lambda usage: usage.tokens, default=None)


@dataclass(frozen=True)
class Estimate:
    """The estimated work of a run.

    Attributes:
        simulations: The number of simulations of the run.
        stored_simulations: The number of simulations that an earlier run finished.
        usage: The expected usage of the simulations to make; None if the usage of a task is unknown.
        sources: The names of the baselines that the estimate is based on.
        max_fresh: The maximum number of fresh simulations that may confirm regressions.
    """

    simulations: int
    stored_simulations: int
    usage: Usage | None
    sources: tuple[str, ...]
    max_fresh: int = 0


def expected_usage(plan: Plan) -> ExpectedUsage:
    """Return the usage of a live run's baselines, at this run's prices."""
    assert plan.live is not None
    usage_by_suite = {
        name: _usage_by_task(planned.baseline.evidence.simulations, plan.live)
        for name, planned in plan.suites.items()
        if planned.baseline is not None
    }
    return ExpectedUsage({name: by_task for name, by_task in usage_by_suite.items() if by_task})


def estimate(plan: Plan, expected: ExpectedUsage, draws: Draws) -> Estimate:
    """Estimate the work of a live run from the usage of its baselines."""
    stored_simulations, total_usage, is_known = 0, NO_USAGE, True
    seen_keys: set[str] = set()  # suites may share tasks, and simulations with equal keys are made once
    for name, planned in plan.suites.items():
        for task_id in planned.planned_tasks:
            usage = expected.usage_of(name, task_id)
            for trial in planned.trial_numbers(task_id):
                store, key = draws.location_of(name, task_id, trial)
                if key in seen_keys:
                    continue
                seen_keys.add(key)
                if store.has(key):
                    stored_simulations += 1
                elif usage is None:
                    is_known = False
                else:
                    total_usage += usage
    baselines = [suite.baseline for suite in plan.suites.values() if suite.baseline is not None]
    return Estimate(
        len(seen_keys),
        stored_simulations,
        total_usage if is_known else None,
        tuple(dict.fromkeys(baseline.name for baseline in baselines)),
        max_fresh_simulations(plan),
    )


def max_fresh_simulations(plan: Plan) -> int:
    """Return the maximum number of fresh simulations: `MAX_FRESH_SIMULATIONS` per task that can regress.

    The run's budget of fresh simulations limits this number further.
    """
    if not plan.baseline_sides or plan.confirmation is None:
        return 0
    passing_tasks = 0
    for name in plan.baseline_sides:
        planned = plan.suites[name]
        assert planned.baseline is not None
        trials = [planned.baseline.trials(task_id, digest) for task_id, digest in planned.lock.tasks.items()]
        passing_tasks += sum(bool(trial and trial.passes) for trial in trials)
    return min(plan.confirmation.budget, passing_tasks * MAX_FRESH_SIMULATIONS)


def check_affordable(budgets: Budgets, expected: ExpectedUsage) -> None:
    """Check that the budgets can pay for the smallest simulation.

    Raises:
        ConfigError: a budget is too small.
    """
    min_usage = expected.min_usage
    if min_usage is None:
        return
    if budgets.tokens is not None and budgets.tokens < min_usage.tokens:
        raise ConfigError(
            f"--t2e-max-tokens {budgets.tokens} cannot pay for one simulation: the smallest one in the "
            f"baseline used {min_usage.tokens} tokens"
        )
    if budgets.cost is not None and min_usage.cost is not None and budgets.cost < min_usage.cost:
        raise ConfigError(
            f"--t2e-max-cost {budgets.cost:g} cannot pay for one simulation: at these prices the smallest "
            f"one in the baseline costs ${min_usage.cost:.4f}"
        )


def _usage_by_task(simulations: Iterable[SimulationEvidence], live: LiveSettings) -> dict[str, Usage]:
    usages_by_task: dict[str, list[Usage]] = {}
    for simulation in simulations:
        if simulation.usage:
            side_usages = [
                _apply_price(simulation.usage.get("assistant"), live.agent.price),
                _apply_price(simulation.usage.get("user"), live.user.price),
            ]
            usages_by_task.setdefault(simulation.task_id, []).append(reduce(add, side_usages))
    return {task_id: _mean(group) for task_id, group in usages_by_task.items()}


def _apply_price(usage: Usage | None, price: Price | None) -> Usage:
    if usage is None:
        return NO_USAGE
    return usage.model_copy(update={"cost": None if price is None else price.cost(usage)})


def _mean(usages: Iterable[Usage]) -> Usage:
    usage_list = list(usages)
    total, count = reduce(add, usage_list), len(usage_list)
    return Usage(
        calls=round(total.calls / count),
        prompt_tokens=round(total.prompt_tokens / count),
        cached_tokens=round(total.cached_tokens / count),
        completion_tokens=round(total.completion_tokens / count),
        cost=None if total.cost is None else total.cost / count,
    )
