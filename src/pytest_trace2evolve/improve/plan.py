"""The plan of an evolution, and the maximum numbers of rollouts and minutes that it takes."""

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

CALIBRATION_SIZE = (24, 8)
"""The number of scenarios, and of rollouts per scenario, that determine an environment's difficulty."""

_SECONDS_PER_SIMULATION = 0.28
_SECONDS_PER_ROLLOUT = 0.10
_SECONDS_PER_HELDOUT_ROLLOUT = 0.12
"""Seconds that the embedded model takes on two cores, by `docs/training.md`."""


@dataclass(frozen=True)
class EvolutionPlan:
    """The settings of an evolution.

    Attributes:
        candidate: The candidate whose failures count, and whose text the adapters use.
        run: The folder of the run to learn from; None starts a new run.
        base: The base model.
        recipe: The recipe of each training run.
        preset: The preset from which the recipe was made.
        options: Options of each run; the loop sets the candidate, the baseline and the folder.
        suites: The suites of each run.
        judge: Judge of natural-language assertions.
        values: The given values of the options of each run.
        content_digest: Digest of the suites, traces, environments and policy that the evolution works on.
        simulations: Simulations per run.
        max_fresh_simulations: Fresh simulations that a run may use to confirm regressions.
        max_adapters: Maximum number of adapters; the capabilities with the largest Δ are trained.
        heldout_scenarios: Held-out scenarios of the trained environment; all others have half as many.
        heldout_rollouts: Rollouts of each held-out scenario.
        max_parallel: Maximum number of training runs at the same time.
        max_rollouts, max_minutes: Budgets; None sets no limit.
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
    content_digest: str = ""
    simulations: int = 0
    max_fresh_simulations: int = 0
    max_adapters: int = 3
    heldout_scenarios: int = 60
    heldout_rollouts: int = 4
    max_parallel: int = 1
    max_rollouts: int | None = None
    max_minutes: float | None = None

    @property
    def identity(self) -> str:
        """Digest of everything that changes the result."""
        settings = {
            "candidate": self.candidate,
            "content": self.content_digest,
            "base": folder_digest(self.base.path),
            "recipe": self.recipe.model_dump(mode="json"),
            "session": decisive_values(self.values),
            "most": self.max_adapters,
            "heldout": [self.heldout_scenarios, self.heldout_rollouts],
        }
        return digest(settings)

    @property
    def name(self) -> str:
        """The name of the evolution's folder, in which an equal plan resumes."""
        return f"{self.candidate}-{self.identity[:8]}"


@dataclass(frozen=True)
class Budget:
    """The maximum cost of an evolution.

    Attributes:
        rollouts: Numbers of simulations and rollouts, by purpose.
        minutes: Wall-clock minutes; None if the base's pace is unknown.
    """

    rollouts: dict[str, int]
    minutes: float | None

    @property
    def total(self) -> int:
        """The number of all simulations and rollouts."""
        return sum(self.rollouts.values())

    def __str__(self) -> str:
        return ", ".join(f"{purpose} {count:,}" for purpose, count in self.rollouts.items() if count)


def compute_budget(plan: EvolutionPlan, environments: Sequence[str]) -> Budget:
    """Compute the maximum cost of a plan from the names of all environments.

    Every environment is measured for forgetting. A trained environment may be calibrated at every difficulty,
    unless it is a built-in one and the base is the embedded model, whose calibrations are built in.
    """
    recipe, max_adapters = plan.recipe, min(plan.max_adapters, len(environments))
    is_embedded = folder_digest(plan.base.path) == folder_digest(embedded_model())
    uncalibrated_names = [name for name in environments if not (is_embedded and name in BUILT_IN_NAMES)]
    training_rollouts = max_adapters * recipe.steps * recipe.groups * recipe.rollouts * (1 + recipe.redraws)
    heldout_rollouts = (
        plan.heldout_scenarios + (len(environments) - 1) * (plan.heldout_scenarios // 2)
    ) * plan.heldout_rollouts
    rollouts = {
        "the run": 0 if plan.run is not None else plan.simulations,
        "calibration": min(max_adapters, len(uncalibrated_names))
        * math.prod(CALIBRATION_SIZE)
        * (HARDEST - EASIEST + 1),
        "training": training_rollouts,
        "held out": 2 * heldout_rollouts * max_adapters,
        "the gate": plan.simulations * (max_adapters + 1),
        "confirmation": plan.max_fresh_simulations * (max_adapters + 1 + (plan.run is None)),
    }
    if not is_embedded:
        return Budget(rollouts, None)
    simulations = rollouts["the run"] + rollouts["the gate"] + rollouts["confirmation"]
    training_seconds = (
        _SECONDS_PER_HELDOUT_ROLLOUT * rollouts["held out"] + _SECONDS_PER_ROLLOUT * training_rollouts
    )
    seconds = (
        _SECONDS_PER_SIMULATION * simulations
        + _SECONDS_PER_HELDOUT_ROLLOUT * rollouts["calibration"]
        + training_seconds / min(plan.max_parallel, os.cpu_count() or 1, max_adapters)
    )
    return Budget(rollouts, seconds / 60)


def check_budget(plan: EvolutionPlan, budget: Budget) -> None:
    """Check that a plan can end within its budgets.

    Raises:
        ConfigError: the plan may need more than a budget allows.
    """
    if plan.max_rollouts is not None and budget.total > plan.max_rollouts:
        raise ConfigError(
            f"--max-rollouts {plan.max_rollouts}: the plan needs up to {budget.total:,} rollouts ({budget}); "
            "raise the limit, or lower --max-adapters, --steps or --heldout"
        )
    if plan.max_minutes is not None and budget.minutes is not None and budget.minutes > plan.max_minutes:
        raise ConfigError(
            f"--max-minutes {plan.max_minutes:g}: the plan needs about {budget.minutes:.0f} minutes; "
            "raise the limit, or lower --max-adapters, --steps or --heldout"
        )


def budget_text(plan: EvolutionPlan, budget: Budget) -> str:
    """Describe a plan and its maximum cost in one line."""
    minutes_text = "unknown for this base" if budget.minutes is None else f"about {budget.minutes:.0f}"
    limits = [
        f"{name} {value:g}"
        for name, value in (("rollouts", plan.max_rollouts), ("minutes", plan.max_minutes))
        if value is not None
    ]
    limits_text = f"; limits: {', '.join(limits)}" if limits else ""
    adapters = "1 adapter" if plan.max_adapters == 1 else f"{plan.max_adapters} adapters"
    return (
        f"evolving {plan.candidate} on {plan.base.name}: {adapters} at most, up to {budget.total:,} rollouts "
        f"({budget}), minutes on two cores {minutes_text}{limits_text}"
    )
