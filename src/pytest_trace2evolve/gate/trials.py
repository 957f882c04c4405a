"""The trials of one task on one side, as an item judges them."""

from dataclasses import dataclass
from statistics import fmean

from pytest_trace2evolve.gate.columns import SUCCESS
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.score import Status


@dataclass(frozen=True)
class Trials:
    """The trials of one task on one side."""

    records: tuple[SimulationEvidence, ...]

    @property
    def measured(self) -> list[SimulationEvidence]:
        """The trials that have a reward."""
        return [record for record in self.records if record.status is Status.MEASURED]

    @property
    def reward(self) -> float | None:
        """Mean reward over the measured trials."""
        rewards = [record.reward for record in self.measured if record.reward is not None]
        return fmean(rewards) if rewards else None

    @property
    def passed(self) -> int:
        """How many trials succeeded."""
        return sum((record.reward or 0.0) >= SUCCESS for record in self.measured)

    @property
    def passes(self) -> bool | None:
        """Whether more than half of the measured trials succeed."""
        measured = self.measured
        return 2 * self.passed > len(measured) if measured else None
