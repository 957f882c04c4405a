"""The likely usage of a live run, from the usage of its baselines, and whether its budgets can pay it."""

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
    """What one simulation of each task used in a baseline, in the mean of its trials; by suite and task."""

    by_suite: Mapping[str, Mapping[str, Usage]] = field(default_factory=dict)

    def of(self, suite: str, task_id: str) -> Usage | None:
        """One simulation of a task: the mean of its suite if the baseline lacks it, None without one."""
        by_task = self.by_suite.get(suite)
        if not by_task:
            return None
        return by_task.get(task_id) or _mean(by_task.values())

    @property
    def least(self) -> Usage | None:
        """The simulation that takes the fewest tokens."""
        everything = [usage for by_task in self.by_suite.values() for usage in by_task.values()]
        return min(everything, key=lambda usage: usage.tokens, default=None)


@dataclass(frozen=True)
class Estimate:
    """What a run has before it.

    Attributes:
        simulations: All of its simulations.
        kept: How many an earlier run finished.
        usage: What the rest is likely to use; None if the baseline of a suite does not say.
        sources: The baselines that say it.
        fresh: How many more it may make to confirm that tasks fell.
    """

    simulations: int
    kept: int
    usage: Usage | None
    sources: tuple[str, ...]
    fresh: int = 0


def expected_usage(plan: Plan) -> Expected:
    """What the baselines of a live run used, at this run's prices."""
    assert plan.live is not None
    found = {
        name: _by_task(planned.baseline.evidence.simulations, plan.live)
        for name, planned in plan.suites.items()
        if planned.baseline is not None
    }
    return Expected({name: by_task for name, by_task in found.items() if by_task})


def estimate(plan: Plan, expected: Expected, draws: Draws) -> Estimate:
    """What a live run has before it, from the baselines' own usage."""
    kept, used, known = 0, NOTHING_USED, True
    seen: set[str] = set()  # two suites may share tasks: a simulation with the same key is made once
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
    """How many fresh simulations a run may make: those of its budget, if all that can fall do."""
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
        ConfigError: they cannot.
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
