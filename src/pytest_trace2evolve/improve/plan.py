"""The plan of an evolution: what it does, and how many rollouts and minutes it takes at most."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from pytest_trace2evolve.environments.environment import EASIEST, HARDEST
from pytest_trace2evolve.environments.registry import BUILT_IN_NAMES
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.improve.arguments import decisive_values, run_values
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.serving.folder import ModelFolder, folder_digest
from pytest_trace2evolve.session.plan import Options
from pytest_trace2evolve.training.recipe import Recipe
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.resources import embedded_model

CALIBRATION = (24, 8)
"""Scenarios, and rollouts of each, that pick the difficulty of an environment."""

_SECONDS_PER_SIMULATION = 0.28
_SECONDS_PER_ROLLOUT = 0.10
_SECONDS_PER_HELDOUT_ROLLOUT = 0.12
"""The embedded model's pace on two cores, from the figures of `docs/training.md` and `docs/evolving.md`."""


@dataclass(frozen=True)
class EvolutionPlan:
    """What an evolution does.

    Attributes:
        candidate: The candidate whose failures count, and whose text the adapters get.
        run: The folder of the run to learn from; None makes one.
        base: The base model.
        recipe: The recipe of each training.
        preset: The preset behind the recipe.
        options: Options of each run; the loop sets the candidate, the baseline and the folder.
        suites: The suites of each run.
        judge: Judge of natural-language assertions.
        values: The values of the options of each run, as they were given.
        content: Digest of the suites, traces, environments and policy that the evolution works on.
        simulations: Simulations of one run.
        fresh: Fresh simulations with which one run may confirm falls.
        max_adapters: Adapters at most: the capabilities with the largest Δ.
        heldout: Held-out scenarios of the trained environment; each other one has half as many.
        rollouts: Rollouts of each held-out scenario.
        parallel: Trainings at once.
        max_rollouts, max_minutes: Budgets; None sets none.
    """

    candidate: str
    run: Path | None
    base: ModelFolder
    recipe: Recipe
    preset: str
    options: Options = field(default_factory=Options)
    suites: tuple[str, ...] = ()
    judge: Judge | None = None
    values: SimpleNamespace = field(default_factory=lambda: run_values(None))
    content: str = ""
    simulations: int = 0
    fresh: int = 0
    max_adapters: int = 3
    heldout: int = 60
    rollouts: int = 4
    parallel: int = 1
    max_rollouts: int | None = None
    max_minutes: float | None = None

    @property
    def identity(self) -> str:
        """Digest of everything that changes the result."""
        record = {
            "candidate": self.candidate,
            "content": self.content,
            "base": folder_digest(self.base.path),
            "recipe": self.recipe.model_dump(mode="json"),
            "session": decisive_values(self.values),
            "most": self.max_adapters,
            "heldout": [self.heldout, self.rollouts],
        }
        return digest(record)

    @property
    def name(self) -> str:
        """The name of the evolution's folder: an equal plan resumes there."""
        return f"{self.candidate}-{self.identity[:8]}"


@dataclass(frozen=True)
class Budget:
    """What an evolution takes at most.

    Attributes:
        rollouts: Simulations and rollouts by their purpose.
        minutes: Minutes of the clock; None if the base's pace is unknown.
    """

    rollouts: dict[str, int]
    minutes: float | None

    @property
    def total(self) -> int:
        """All simulations and rollouts."""
        return sum(self.rollouts.values())

    def __str__(self) -> str:
        return ", ".join(f"{purpose} {count:,}" for purpose, count in self.rollouts.items() if count)


def budget_of(plan: EvolutionPlan, environments: Sequence[str]) -> Budget:
    """What a plan takes at most, with the names of all environments.

    Each is measured for forgetting, and a trained one may be calibrated at every difficulty, unless the
    embedded model comes with its calibration.
    """
    recipe, most = plan.recipe, min(plan.max_adapters, len(environments))
    is_embedded = folder_digest(plan.base.path) == folder_digest(embedded_model())
    uncalibrated = [name for name in environments if not (is_embedded and name in BUILT_IN_NAMES)]
    training = most * recipe.steps * recipe.groups * recipe.rollouts * (1 + recipe.redraws)
    measurement = (plan.heldout + (len(environments) - 1) * (plan.heldout // 2)) * plan.rollouts
    rollouts = {
        "the run": 0 if plan.run is not None else plan.simulations,
        "calibration": min(most, len(uncalibrated)) * math.prod(CALIBRATION) * (HARDEST - EASIEST + 1),
        "training": training,
        "held out": 2 * measurement * most,
        "the gate": plan.simulations * (most + 1),
        "confirmation": plan.fresh * (most + 1 + (plan.run is None)),
    }
    if not is_embedded:
        return Budget(rollouts, None)
    simulations = rollouts["the run"] + rollouts["the gate"] + rollouts["confirmation"]
    trainings = _SECONDS_PER_HELDOUT_ROLLOUT * rollouts["held out"] + _SECONDS_PER_ROLLOUT * training
    seconds = (
        _SECONDS_PER_SIMULATION * simulations
        + _SECONDS_PER_HELDOUT_ROLLOUT * rollouts["calibration"]
        + trainings / min(plan.parallel, os.cpu_count() or 1, most)
    )
    return Budget(rollouts, seconds / 60)


def check_budget(plan: EvolutionPlan, budget: Budget) -> None:
    """Check that a plan can end within its budgets.

    Raises:
        ConfigError: it cannot.
    """
    if plan.max_rollouts is not None and budget.total > plan.max_rollouts:
        raise ConfigError(
            f"--max-rollouts {plan.max_rollouts}: up to {budget.total:,} are needed ({budget}); "
            "allow more, or lower --max-adapters, --steps or --heldout"
        )
    if plan.max_minutes is not None and budget.minutes is not None and budget.minutes > plan.max_minutes:
        raise ConfigError(
            f"--max-minutes {plan.max_minutes:g}: about {budget.minutes:.0f} are needed; "
            "allow more, or lower --max-adapters, --steps or --heldout"
        )


def budget_text(plan: EvolutionPlan, budget: Budget) -> str:
    """What a plan does at most, in one line."""
    minutes = "not known of this base" if budget.minutes is None else f"about {budget.minutes:.0f}"
    limits = [
        f"{name} {value:g}"
        for name, value in (("rollouts", plan.max_rollouts), ("minutes", plan.max_minutes))
        if value is not None
    ]
    limited = f"; limits: {', '.join(limits)}" if limits else ""
    adapters = "1 adapter" if plan.max_adapters == 1 else f"{plan.max_adapters} adapters"
    return (
        f"evolving {plan.candidate} on {plan.base.name}: {adapters} at most, up to {budget.total:,} rollouts "
        f"({budget}), minutes on two cores {minutes}{limited}"
    )
