"""The manifest of an adapter: what it was trained on, on which base, and what the gate said of it.

Rewards on held-out scenarios: what a model got in an environment that no training saw.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.capability import CapabilityName
from pytest_trace2evolve.records.environment import Grade
from pytest_trace2evolve.records.routing import Skill
from pytest_trace2evolve.records.score import Unit
from pytest_trace2evolve.records.verdict import Decision

MANIFEST = "manifest.json"
"""The manifest's file in an adapter's folder, beside its weights."""

ADAPTER_WEIGHTS = "adapter_model.safetensors"
"""The file of an adapter's weights."""


class AdapterState(StrEnum):
    """Where an adapter stands: only a promoted one enters the router's table."""

    TRAINED = "trained"
    PROMOTED = "promoted"
    DISCARDED = "discarded"
    INCONCLUSIVE = "inconclusive"


class AdapterVerdict(Record):
    """What the gate said of an adapter.

    Attributes:
        run: The run whose evidence it rests on.
        candidate: The candidate that talked with it, such as `v6+precondition_verification`.
        baseline: What it was compared with.
        why: What beside the gate decided where the adapter stands: capabilities that it forgot.
        time: When that run began (ISO 8601); empty where it was not noted.
    """

    decision: Decision
    run: str
    candidate: str
    baseline: str = ""
    policy: str = ""
    why: str = ""
    time: str = ""


class Measured(Record):
    """Mean rewards on held-out scenarios, before and after training.

    Attributes:
        low, high: The 95 % interval of the change, by scenario; None where one scenario was played.
    """

    before: Unit
    after: Unit
    rollouts: Annotated[int, Field(ge=0)]
    low: float | None = None
    high: float | None = None

    @property
    def change(self) -> float:
        """After less before."""
        return self.after - self.before


class AdapterManifest(Record):
    """What is written beside an adapter's weights.

    Attributes:
        capability: What it was trained for; of several its own name, and `environments` names them.
        base: The base model's name, and `base_digest` the digest of its folder.
        environments: Digests of the environments that it was trained in, by capability.
        difficulty: Of these environments, by capability.
        seed: Of the training.
        recipe: The hyperparameters.
        steps, rollouts, seconds: What the training took.
        evidence: Ids of the runs whose failures named the capability.
        informed_by: What those runs showed of suites, as `suite::split`.
        candidate: Whose instruction the agent had in training and measuring; empty: none.
        skill: How a router's table describes it; None where it cannot be routed to.
        heldout: Mean reward on held-out scenarios, by capability.
        state: Where it stands, with the verdict that brought it there.
    """

    schema_version: Literal[1] = 1
    capability: CapabilityName
    base: str
    base_digest: str
    environments: dict[str, str]
    difficulty: dict[str, int] = Field(default_factory=dict)
    seed: int
    recipe: dict[str, Any]
    steps: Annotated[int, Field(ge=0)]
    rollouts: Annotated[int, Field(ge=0)]
    seconds: Annotated[float, Field(ge=0)]
    evidence: tuple[str, ...] = ()
    informed_by: tuple[str, ...] = ()
    candidate: str = ""
    skill: Skill | None = None
    heldout: dict[str, Measured] = Field(default_factory=dict)
    state: AdapterState = AdapterState.TRAINED
    verdict: AdapterVerdict | None = None
    created_at: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}")] | None = None


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
