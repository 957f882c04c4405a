"""The state of an improvement loop: what each stage found, so that an interrupted loop can resume."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from pytest_trace2evolve.records.adapter import AdapterState, Confusion
from pytest_trace2evolve.records.base import Count, Record
from pytest_trace2evolve.records.capability import CapabilityName
from pytest_trace2evolve.records.verdict import Decision


class Stage(StrEnum):
    """The stages, in order."""

    RUN = "run"
    CAPABILITIES = "capabilities"
    ENVIRONMENTS = "environments"
    ADAPTERS = "adapters"
    GATE = "gate"
    ROUTER = "router"
    ROUTED = "routed"


class MissingCapability(Record):
    """A capability that the failures lack, with its Δ and coverage as in `Contrast`."""

    name: CapabilityName
    delta: float | None
    coverage: float | None


class TrainingEnvironment(Record):
    """An environment to train in: its difficulty, and the base's mean reward at it."""

    name: CapabilityName
    difficulty: int
    mean: float | None = None
    fits: bool = True


class CandidateOutcome(Record):
    """The outcome of one candidate.

    Attributes:
        gate: The gate's answer; None without a verdict.
        state: The gate's answer combined with the check of what was forgotten; of a routed candidate the
            gate's.
        why: What besides the gate decided.
    """

    candidate: str
    gate: Decision | None
    state: AdapterState
    run: str
    why: str = ""


class Evolution(Record):
    """The state of an improvement loop.

    Attributes:
        candidate, folder: The candidate and the run whose failures are trained on.
        identity: Digest of the whole request: only an equal request resumes.
        runs: Ids of the runs whose traces were read.
        splits: The splits that were read, as `suite::split`.
        missing: Capabilities that were selected; None until that is known.
        adapters: The trained adapters, by capability.
        threads: Threads of each training: it resumes with as many as it began with.
        confusion: The router's, on held-out content.
        rollouts: Rollouts of each stage, simulations included, as far as those of interrupted attempts are
            used.
        minutes: Time of each stage, interrupted attempts included.
    """

    schema_version: Literal[1] = 1
    candidate: str
    identity: str
    done: tuple[Stage, ...] = ()
    folder: str = ""
    runs: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    missing: tuple[MissingCapability, ...] | None = None
    environments: dict[str, TrainingEnvironment] = Field(default_factory=dict)
    adapters: dict[str, str] = Field(default_factory=dict)
    threads: Count | None = None
    judged: dict[str, CandidateOutcome] = Field(default_factory=dict)
    confusion: Confusion | None = None
    rollouts: dict[Stage, Count] = Field(default_factory=dict)
    minutes: dict[Stage, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
