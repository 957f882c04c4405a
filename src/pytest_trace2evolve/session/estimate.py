"""Estimates the usage of a live run from its baselines, and checks its budgets."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add

from pytest_trace2evolve.engine.live import LiveSettings
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.models.prices import Price
from pytest_trace2evolve.records.budget import Budgets
from pytest_trace2evolve.records.completion import NOTHING_USED, Usage
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.session.draws import Draws
from pytest_trace2evolve.session.plan import MAX_FRESH, Plan


@dataclass(frozen=True)
class Expected:
    """The expected usage of one simulation, by suite and task: the mean over the baseline's trials."""

    by_suite: Mapping[str, Mapping[str, Usage]] = field(default_factory=dict)

    def of(self, suite: str, task_id: str) -> Usage | None:
        """The expected usage of one simulation of a task.

        The suite's mean if the baseline lacks the task; None if the suite has no figures.
        """
        by_task = self.by_suite.get(suite)
        if not by_task:
            return None
        return by_task.get(task_id) or _mean(by_task.values())

    @property
    def least(self) -> Usage | None:
        """The usage of the smallest simulation by tokens; None if no usage is known."""
        everything = [usage for by_task in self.by_suite.values() for usage in by_task.values()]
        return min(everything, key=lambda usage: usage.tokens, default=None)


@dataclass(frozen=True)
class Estimate:
    """The work that a run has to do.

    Attributes:
        simulations: The number of simulations of the run.
        kept: The number of simulations that an earlier run finished.
        usage: The likely usage of the other simulations; None if the usage of a task is unknown.
        sources: The names of the baselines that the estimate rests on.
        fresh: The largest number of fresh simulations that may confirm regressions.
    """

    simulations: int
    kept: int
    usage: Usage | None
    sources: tuple[str, ...]
    fresh: int = 0


def expected_usage(plan: Plan) -> Expected:
    """The usage of a live run's baselines, at this run's prices."""
    assert plan.live is not None
    found = {
        name: _by_task(planned.baseline.evidence.simulations, plan.live)
        for name, planned in plan.suites.items()
        if planned.baseline is not None
    }
    return Expected({name: by_task for name, by_task in found.items() if by_task})


def estimate(plan: Plan, expected: Expected, draws: Draws) -> Estimate:
    """Estimate the work of a live run from the usage of its baselines."""
    kept, used, known = 0, NOTHING_USED, True
    seen: set[str] = set()  # suites may share tasks, and simulations with equal keys are made once
    for name, planned in plan.suites.items():
        for task_id in planned.lock.tasks:
            usage = expected.of(name, task_id)
            for trial in range(planned.trials):
                store, key = draws.place(name, task_id, trial)
                if key in seen:
                    continue
                seen.add(key)
                if store.holds(key):
                    kept += 1
                elif usage is None:
                    known = False
                else:
                    used += usage
    names = [planned.baseline.name for planned in plan.suites.values() if planned.baseline is not None]
    usage = used if known else None
    return Estimate(len(seen), kept, usage, tuple(dict.fromkeys(names)), most_fresh(plan))


def most_fresh(plan: Plan) -> int:
    """The largest number of fresh simulations: `MAX_FRESH` per task that can regress, within the budget."""
    if not plan.baseline_sides or plan.confirm is None:
        return 0
    passing = 0
    for name in plan.baseline_sides:
        planned = plan.suites[name]
        assert planned.baseline is not None
        trials = [planned.baseline.trials(task_id, digest) for task_id, digest in planned.lock.tasks.items()]
        passing += sum(bool(trial and trial.passes) for trial in trials)
    return min(plan.confirm.budget, passing * MAX_FRESH)


def check_affordable(budgets: Budgets, expected: Expected) -> None:
    """Check that the budgets can pay the smallest simulation.

    Raises:
        ConfigError: a budget is too small.
    """
    least = expected.least
    if least is None:
        return
    if budgets.tokens is not None and budgets.tokens < least.tokens:
        raise ConfigError(
            f"--t2e-max-tokens {budgets.tokens} cannot pay one simulation: in the baseline the smallest took "
            f"{least.tokens} tokens"
        )
    if budgets.cost is not None and least.cost is not None and budgets.cost < least.cost:
        raise ConfigError(
            f"--t2e-max-cost {budgets.cost:g} cannot pay one simulation: at these prices the baseline's "
            f"smallest took ${least.cost:.4f}"
        )


def _by_task(records: Iterable[SimulationEvidence], live: LiveSettings) -> dict[str, Usage]:
    groups: dict[str, list[Usage]] = {}
    for record in records:
        if record.usage:
            sides = [
                _priced(record.usage.get("assistant"), live.agent.price),
                _priced(record.usage.get("user"), live.user.price),
            ]
            groups.setdefault(record.task_id, []).append(reduce(add, sides))
    return {task_id: _mean(group) for task_id, group in groups.items()}


def _priced(usage: Usage | None, price: Price | None) -> Usage:
    if usage is None:
        return NOTHING_USED
    return usage.model_copy(update={"cost": None if price is None else price.cost(usage)})


def _mean(group: Iterable[Usage]) -> Usage:
    everything = list(group)
    total, count = reduce(add, everything), len(everything)
    return Usage(
        calls=round(total.calls / count),
        prompt_tokens=round(total.prompt_tokens / count),
        cached_tokens=round(total.cached_tokens / count),
        completion_tokens=round(total.completion_tokens / count),
        cost=None if total.cost is None else total.cost / count,
    )
