"""Records of adapters: the manifest next to the weights, and a router's choices."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from pytest_trace2evolve.records.base import Count, LaterTuple, Record
from pytest_trace2evolve.records.capability import CapabilityName
from pytest_trace2evolve.records.environment import Grade
from pytest_trace2evolve.records.score import UnitFloat
from pytest_trace2evolve.records.verdict import Decision

MANIFEST_NAME = "manifest.json"
"""The name of the manifest file in an adapter's folder."""

WEIGHTS_NAME = "adapter_model.safetensors"
"""The name of the weights file in an adapter's folder."""

WHOLE_TASKS = "whole_tasks"
"""The environment of whole tasks, which exercises no single capability."""

NO_CAPABILITY = "none"
"""The label of a task that needs no capability. The base model gets such a task."""


class Routing(Record):
    """A router's decision at one message of the customer.

    Attributes:
        chosen: The name of an adapter, or `NO_CAPABILITY`.
        shares: The probability of each adapter, `NO_CAPABILITY` included.
    """

    chosen: str
    shares: dict[str, UnitFloat]


class ConfusionMatrix(Record):
    """Counts of tasks by the oracle's label and the router's choice.

    Attributes:
        labels: The capabilities, `NO_CAPABILITY` last; the order of rows and columns.
        counts: Numbers of tasks, shape (labels, labels). Rows are the oracle's labels, columns the router's
            choices.
    """

    labels: tuple[str, ...]
    counts: tuple[tuple[Count, ...], ...]

    @property
    def total(self) -> int:
        return sum(map(sum, self.counts))

    @property
    def correct(self) -> int:
        """The number of tasks on which the router agreed with the oracle."""
        return sum(self.counts[index][index] for index in range(len(self.labels)))


class AdapterState(StrEnum):
    """The state of an adapter. Only a promoted adapter can be routed to."""

    TRAINED = "trained"
    PROMOTED = "promoted"
    DISCARDED = "discarded"
    INCONCLUSIVE = "inconclusive"


class AdapterVerdict(Record):
    """The gate's verdict on an adapter.

    Attributes:
        candidate: The candidate that used the adapter, such as `v6+precondition_verification`.
        why: The reason apart from the gate's answer: the capabilities that the adapter forgot.
        time: The start of the run (ISO 8601); empty if it was not recorded.
    """

    decision: Decision
    run: str
    candidate: str
    baseline: str = ""
    policy: str = ""
    why: str = ""
    time: str = ""


class RewardChange(Record):
    """Mean rewards on held-out scenarios, before and after training.

    Attributes:
        low, high: The 95 % interval of the change, by scenario; None with a single scenario.
    """

    before: UnitFloat
    after: UnitFloat
    rollouts: Count
    low: float | None = None
    high: float | None = None

    @property
    def change(self) -> float:
        return self.after - self.before


class AdapterManifest(Record):
    """The manifest next to an adapter's weights.

    Attributes:
        capability: The capability that the adapter was trained for. An adapter for several capabilities has
            a name of its own here, and `environments` names the capabilities.
        base_digest: Digest of the base model's folder.
        environments: Digests of the environments, by capability.
        difficulty: Difficulties of the environments, by capability.
        recipe: The hyperparameters.
        evidence: Ids of the runs whose failures showed that the capability is missing.
        informed_by: The splits that were read in those runs, as `suite::split`.
        candidate: The candidate whose instruction the agent had in training; may be empty.
        skill: Ignored; earlier versions wrote it.
        heldout: Mean reward on held-out scenarios, by capability.
        parts: The adapters whose mean it is; empty if it was trained itself.
    """

    schema_version: Literal[1] = 1
    capability: CapabilityName
    base: str
    base_digest: str
    environments: dict[str, str]
    difficulty: dict[str, int] = Field(default_factory=dict)
    seed: int
    recipe: dict[str, Any]
    steps: Count
    rollouts: Count
    seconds: Annotated[float, Field(ge=0)]
    evidence: tuple[str, ...] = ()
    informed_by: tuple[str, ...] = ()
    candidate: str = ""
    skill: Any = Field(default=None, exclude=True)
    heldout: dict[str, RewardChange] = Field(default_factory=dict)
    state: AdapterState = AdapterState.TRAINED
    verdict: AdapterVerdict | None = None
    created_at: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}")] | None = None
    parts: LaterTuple[str] = ()


class HeldOutRewards(Record):
    """The rewards of one model in one environment with held-out content, which is never trained on.

    Attributes:
        digest: Digest of the environment with held-out content.
        model: Digest of the model with its adapter, its system prompt and its tools.
        rewards: The rewards of each scenario, from seed 0 on, without lost rollouts.
        lost: Rollouts without a reward.
    """

    capability: str
    difficulty: int
    digest: str
    model: str
    temperature: float
    rewards: tuple[tuple[Grade, ...], ...]
    lost: Count = 0

    @property
    def rollout_count(self) -> int:
        return sum(map(len, self.rewards))
