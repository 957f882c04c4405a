"""Rewards on held-out scenarios: what a model got in an environment that no training saw."""

from typing import Annotated

from pydantic import Field

from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.environment import Grade


class HeldOut(Record):
    """The rewards of one model in one environment.

    Attributes:
        digest: Of the environment with held-out content.
        model: Digest of the model, with its adapter's where it has one, of its system prompt and its tools.
        temperature: At which its answers were drawn.
        rewards: By scenario, from seed 0 on; of lost rollouts nothing.
        lost: Rollouts without a reward.
    """

    capability: str
    difficulty: int
    digest: str
    model: str
    temperature: float
    rewards: tuple[tuple[Grade, ...], ...]
    lost: Annotated[int, Field(ge=0)] = 0

    @property
    def count(self) -> int:
        """Rollouts with a reward."""
        return sum(map(len, self.rewards))
