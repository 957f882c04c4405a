"""What an evolution is to do, what it may take, and what it will take at most: said before it starts."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_trace2evolve.environments.generators.scenario import EASIEST, HARDEST
from pytest_trace2evolve.environments.registry import BUILT_IN_NAMES
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.serving.folder import ModelFolder, folder_digest
from pytest_trace2evolve.session.plan import Options
from pytest_trace2evolve.training.recipe import Recipe
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.resources import embedded_model

CALIBRATION = (24, 8)
"""Scenarios, and rollouts of each, by which a difficulty is picked where none was."""

OPENINGS = 20
"""Openings a label by which the router is measured."""


@dataclass(frozen=True)
class Pace:
    """Seconds of the clock by which minutes are foretold.

    Attributes:
        simulation: One simulation of a session.
        rollout: One rollout of training, in one process.
        heldout: One rollout that only measures.
    """

    simulation: float
    rollout: float
    heldout: float


EMBEDDED_PACE = Pace(simulation=0.28, rollout=0.10, heldout=0.12)
"""Of the embedded model on two cores: what figures of `docs/training.md` and `docs/evolving.md` come to."""


@dataclass(frozen=True)
class EvolveOrder:
    """What is asked for.

    Attributes:
        candidate: Whose failures are learnt from, and who talks with the adapters.
        run: The folder of a run that is there already; None makes one.
        base: The base model.
        recipe: Of each adapter.
        preset: Where the recipe comes from.
        content: Digest of what it works on, see `request.content_of`.
        options: The options that all its runs share.
        judge: Judge of natural-language assertions in these runs.
        deciding: The values of those options that change results, by name.
        most: Adapters at most: the capabilities with the largest Δ.
        heldout, rollouts: Held-out scenarios of the trained environment, and rollouts of each; of the others
            half as many.
        parallel: Trainings at once.
        max_rollouts, max_minutes: Budgets; None sets none.
    """

    candidate: str
    run: Path | None
    base: ModelFolder
    recipe: Recipe
    preset: str
    content: str = ""
    options: Options = field(default_factory=Options)
    judge: Judge | None = None
    deciding: Mapping[str, Any] = field(default_factory=dict)
    most: int = 3
    heldout: int = 60
    rollouts: int = 4
    parallel: int = 1
    max_rollouts: int | None = None
    max_minutes: float | None = None

    @property
    def identity(self) -> str:
        """Digest of all that changes what comes of it."""
        told = {
            "candidate": self.candidate,
            "content": self.content,
            "base": folder_digest(self.base.path),
            "recipe": self.recipe.model_dump(mode="json"),
            "session": dict(self.deciding),
            "most": self.most,
            "heldout": [self.heldout, self.rollouts],
        }
        return digest(told)

    @property
    def name(self) -> str:
        """Of its folder: the same order goes on where it was."""
        return f"{self.candidate}-{self.identity[:8]}"


@dataclass(frozen=True)
class Budget:
    """What an evolution takes at most, by stage.

    Attributes:
        rollouts: Simulations and rollouts by what they are for.
        minutes: By the clock; None where the base's speed is not known.
    """

    rollouts: dict[str, int]
    minutes: float | None

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.rollouts.values())


def budget_of(order: EvolveOrder, environments: Sequence[str], simulations: int, fresh: int) -> Budget:
    """What an order takes at most.

    Args:
        environments: All that are known: each is measured for what was forgotten, and one that is trained in
            is calibrated at every difficulty, unless that was done for the embedded model.
        simulations: Of one session.
        fresh: Simulations by which one session may confirm falls; the first is held against a baseline too.
    """
    recipe, most = order.recipe, min(order.most, len(environments))
    embedded = folder_digest(order.base.path) == folder_digest(embedded_model())
    uncalibrated = [name for name in environments if not (embedded and name in BUILT_IN_NAMES)]
    training = most * recipe.steps * recipe.groups * recipe.rollouts * (1 + recipe.redraws)
    held = (order.heldout + (len(environments) - 1) * (order.heldout // 2)) * order.rollouts
    rollouts = {
        "the run": 0 if order.run is not None else simulations,
        "calibration": min(most, len(uncalibrated)) * math.prod(CALIBRATION) * (HARDEST - EASIEST + 1),
        "training": training,
        "held out": 2 * held * most,
        "the gate": simulations * (most + 1),
        "confirmation": fresh * (most + 1 + (order.run is None)),
    }
    if not embedded:
        return Budget(rollouts, None)
    pace = EMBEDDED_PACE
    seconds = (
        pace.simulation * (rollouts["the run"] + rollouts["the gate"] + rollouts["confirmation"])
        + pace.heldout * rollouts["calibration"]
        + (pace.heldout * rollouts["held out"] + pace.rollout * training)
        / min(order.parallel, os.cpu_count() or 1, most)
    )
    return Budget(rollouts, seconds / 60)


def refuse_impossible(order: EvolveOrder, budget: Budget) -> None:
    """Hold an order against its budgets.

    Raises:
        ConfigError: it cannot be carried out within them.
    """
    parts = ", ".join(f"{what} {count:,}" for what, count in budget.rollouts.items())
    if order.max_rollouts is not None and budget.total > order.max_rollouts:
        raise ConfigError(
            f"--max-rollouts {order.max_rollouts}: up to {budget.total:,} are needed ({parts}); "
            "allow more, or lower --most, --steps or --heldout"
        )
    if order.max_minutes is not None and budget.minutes is not None and budget.minutes > order.max_minutes:
        raise ConfigError(
            f"--max-minutes {order.max_minutes:g}: about {budget.minutes:.0f} are needed; "
            "allow more, or lower --most, --steps or --heldout"
        )


def budget_text(order: EvolveOrder, budget: Budget) -> str:
    """What will be done at most, in one line."""
    parts = ", ".join(f"{what} {count:,}" for what, count in budget.rollouts.items() if count)
    minutes = "not known of this base" if budget.minutes is None else f"about {budget.minutes:.0f}"
    limits = [
        f"{name} {value:g}"
        for name, value in (("rollouts", order.max_rollouts), ("minutes", order.max_minutes))
        if value is not None
    ]
    limited = f"; limits: {', '.join(limits)}" if limits else ""
    return (
        f"evolving {order.candidate} on {order.base.name}: {order.most} adapter{'s' * (order.most > 1)} at "
        "most, up to "
        f"{budget.total:,} rollouts ({parts}), minutes on two cores {minutes}{limited}"
    )
