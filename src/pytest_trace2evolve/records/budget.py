"""The budgets of a live run, its usage, and the states of its simulations."""

from dataclasses import dataclass
from enum import StrEnum

from pytest_trace2evolve.records.completion import Usage


@dataclass(frozen=True)
class Budgets:
    """The limits of a whole run, summed over all its processes; None means no limit.

    `cost` is in US dollars, and `minutes` is wall-clock time. `tokens` counts prompt and completion tokens.
    `requests_per_minute` counts retries too.
    """

    cost: float | None = None
    tokens: int | None = None
    minutes: float | None = None
    requests_per_minute: float | None = None

    @property
    def limits_usage(self) -> bool:
        """Whether the cost or the tokens of simulations are limited."""
        return self.cost is not None or self.tokens is not None


NO_BUDGETS = Budgets()


class SimulationState(StrEnum):
    """The state of a simulation."""

    RUNNING = "running"
    MADE = "made"
    KEPT = "kept"
    """Taken from an earlier run."""
    LOST = "lost"


@dataclass(frozen=True)
class RunTotals:
    """The progress of a run: simulations by state, usage, and the number of reserved fresh simulations.

    `waiting_task` is the running task that got its last answer from a model `waiting_seconds` ago, before
    all others.
    """

    states: dict[SimulationState, int]
    usage: Usage
    seconds: float
    fresh: int = 0
    waiting_task: str = ""
    waiting_seconds: float = 0.0
