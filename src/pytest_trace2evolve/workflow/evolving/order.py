"""What an evolution is to do, what it may take, and what it will take at most: said before it starts."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_trace2evolve._canonical import digest
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.serving.folder import ModelFolder, folder_digest
from pytest_trace2evolve.shipped import embedded_model
from pytest_trace2evolve.training.grpo.recipe import Recipe
from pytest_trace2evolve.workflow.project import Project

GIVEN = (
    "--candidate",
    "--t2e-candidate",
    "--t2e-run-folder",
    "--t2e-baseline",
    "--t2e-replay",
    "--t2e-evolve",
)
"""Options of a session that an evolution gives itself, or that leave nothing to evolve."""

CHECKED = 60
"""Scenarios of each environment that are held against held-out content before anything is trained."""

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


EMBEDDED_PACE = Pace(simulation=0.28, rollout=0.10, heldout=0.09)
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
        session: Options that each pytest session gets.
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
    session: tuple[str, ...] = ()
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
            "run": None if self.run is None else self.run.name,
            "base": folder_digest(self.base.path),
            "recipe": self.recipe.model_dump(mode="json"),
            "session": _without_workers(self.session),
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


def budget_of(order: EvolveOrder, simulations: int, environments: int) -> Budget:
    """What an order takes at most.

    Args:
        simulations: Of one session.
        environments: How many are measured for what was forgotten.
    """
    recipe, most = order.recipe, order.most
    training = most * recipe.steps * recipe.groups * recipe.rollouts * (1 + recipe.redraws)
    held = (order.heldout + (environments - 1) * (order.heldout // 2)) * order.rollouts
    rollouts = {
        "the run": 0 if order.run is not None else simulations,
        "calibration": most * math.prod(CALIBRATION),
        "training": training,
        "held out": 2 * held * most,
        "the gate": simulations * (most + 1),
    }
    if order.base.path != embedded_model():
        return Budget(rollouts, None)
    pace = EMBEDDED_PACE
    seconds = (
        pace.simulation * (rollouts["the run"] + rollouts["the gate"])
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
        f"evolving {order.candidate} on {order.base.name}: {order.most} adapters at most, up to "
        f"{budget.total:,} rollouts ({parts}), minutes on two cores {minutes}{limited}"
    )


def simulations_of(project: Project, session: Sequence[str]) -> int:
    """Simulations of one session of these options: of suites whose customers follow a script, if no other
    model plays them.

    Raises:
        SuiteError: a suite is unknown or broken.
    """
    named = _values(session, "--t2e-suite")
    trials = _values(session, "--t2e-trials")
    spoken = bool(_values(session, "--t2e-user-model"))
    total = 0
    for name in named or project.suite_names:
        suite = project.suite(name)
        locked = project.lock.suites.get(name)
        if locked is not None and (named or spoken or suite.scripted):
            total += len(locked.tasks) * (int(trials[-1]) if trials else suite.trials)
    return total


def _without_workers(session: Sequence[str]) -> list[str]:
    """The options without the number of workers, which changes nothing that comes of them."""
    found: list[str] = []
    for place, one in enumerate(session):
        if one.startswith("-n") or (place and session[place - 1] == "-n"):
            continue
        found.append(one)
    return found


def _values(session: Sequence[str], option: str) -> list[str]:
    """What an option is given, as `--option value` or `--option=value`."""
    after = [session[place + 1] for place, one in enumerate(session[:-1]) if one == option]
    return after + [one.partition("=")[2] for one in session if one.startswith(f"{option}=")]


def refuse_given(session: Sequence[str]) -> None:
    """Options of a session that an evolution gives itself.

    Raises:
        ConfigError: there is one.
    """
    for one in session:
        if one.partition("=")[0] in GIVEN:
            raise ConfigError(f"{one}: an evolution gives its sessions this option itself; leave it out")
