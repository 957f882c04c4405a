"""What a live run may use, what it used, and how far each of its simulations has come."""

from dataclasses import dataclass
from enum import StrEnum

from pytest_trace2evolve.records.completion import Usage


@dataclass(frozen=True)
class Budgets:
    """What a whole run may use, all its processes together; None sets no limit.

    `cost` is in US dollars, `tokens` counts prompt and completion, `minutes` the wall clock, and
    `requests_per_minute` further tries, too.
    """

    cost: float | None = None
    tokens: int | None = None
    minutes: float | None = None
    requests_per_minute: float | None = None

    @property
    def limited(self) -> bool:
        """Whether it matters what a simulation uses."""
        return self.cost is not None or self.tokens is not None


NO_BUDGETS = Budgets()


class State(StrEnum):
    """How far a simulation has come."""

    RUNNING = "running"
    MADE = "made"
    KEPT = "kept"
    """Taken from an earlier run."""
    LOST = "lost"


@dataclass(frozen=True)
class Totals:
    """Where a run stands: simulations by state, what was used, and the fresh ones set aside."""

    states: dict[State, int]
    usage: Usage
    seconds: float
    fresh: int = 0
