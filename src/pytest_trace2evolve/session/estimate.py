"""What a live run is likely to use, from what its baselines used, and whether its budgets can pay."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add

from pytest_trace2evolve.engine.live import LiveSettings
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.models.prices import Price
from pytest_trace2evolve.records.budget import Budgets
from pytest_trace2evolve.records.completion import NOTHING_USED, Usage
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.session.confirmation import MOST_FRESH
from pytest_trace2evolve.session.draws import Draws
from pytest_trace2evolve.session.plan import Plan


@dataclass(frozen=True)
class Expected:
    """What one simulation of each task used in a baseline, in the mean of its trials; by suite and task."""

    by_suite: Mapping[str, Mapping[str, Usage]] = field(default_factory=dict)

    def of(self, suite: str, task_id: str) -> Usage | None:
        """One simulation of a task; the mean of its suite where the baseline lacks it, None without one."""
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
        simulations: All of it.
        kept: How many an earlier run finished.
        usage: What the rest is likely to use; None where no baseline of a suite says.
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
    found = {}
    for name, planned in plan.suites.items():
        if planned.baseline is not None:
            by_task = _by_task(planned.baseline.evidence.simulations, plan.live)
            if by_task:
                found[name] = by_task
    return Expected(found)


def estimate(
    plan: Plan,
    expected: Expected,
    draws: Draws,
    made: Collection[str] = (),
) -> Estimate:
    """What a live run has before it, from the baselines' own usage; `made` are keys that it need not make."""
    kept, used, known = 0, NOTHING_USED, True
    seen: set[str] = set()  # two suites may share tasks: what has one key is made once
    for name, planned in plan.suites.items():
        for task_id in planned.lock.tasks:
            one = expected.of(name, task_id)
            for trial in range(planned.trials):
                store, key = draws.place(name, task_id, trial)
                if key in seen:
                    continue
                seen.add(key)
                if key in made or store.holds(key):
                    kept += 1
                elif one is None:
                    known = False
                else:
                    used += one
    sources = tuple(
        f"{planned.baseline.name}" for planned in plan.suites.values() if planned.baseline is not None
    )
    usage = used if known else None
    return Estimate(len(seen), kept, usage, tuple(dict.fromkeys(sources)), most_fresh(plan))


def most_fresh(plan: Plan) -> int:
    """How many fresh simulations a run may make: those of its budget, if all that can fall do."""
    if plan.confirm is None or not plan.confirm.possible:
        return 0
    baselines = [(one, one.baseline) for name, one in plan.suites.items() if name in plan.confirm.sides]
    passing = sum(
        bool((trials := baseline.trials(task_id, digest)) and trials.passes)
        for planned, baseline in baselines
        if baseline is not None
        for task_id, digest in planned.lock.tasks.items()
    )
    return min(plan.confirm.budget, passing * MOST_FRESH)


def refuse_impossible(budgets: Budgets, expected: Expected) -> None:
    """Hold the budgets against the smallest simulation.

    Raises:
        ConfigError: not even that can be paid.
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
