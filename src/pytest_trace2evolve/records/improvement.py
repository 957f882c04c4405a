"""The state of an improvement loop: what each stage found, so that an interrupted loop can resume."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from pytest_trace2evolve.records.adapter import AdapterState, Confusion
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.capability import CapabilityName
from pytest_trace2evolve.records.verdict import Decision

Count = Annotated[int, Field(ge=0)]


class Stage(StrEnum):
    """The stages, in order."""

    RUN = "run"
    CAPABILITIES = "capabilities"
    ENVIRONMENTS = "environments"
    ADAPTERS = "adapters"
    GATE = "gate"
    ROUTER = "router"
    ROUTED = "routed"


class Missing(Record):
    """A capability that the failures lack.

    Attributes:
        delta: The share of failed traces that lack it, minus that of passed traces.
        coverage: Share of all failures that lack it.
    """

    name: CapabilityName
    delta: float | None
    coverage: float | None


class Ready(Record):
    """An environment to train in: its difficulty, and the base's mean reward at it."""

    name: CapabilityName
    difficulty: int
    mean: float | None = None
    fits: bool = True


class Judged(Record):
    """The outcome of one candidate.

    Attributes:
        candidate: Such as `v6+precondition_verification`.
        gate: The gate's answer; None without a verdict.
        state: The gate's answer combined with the check of what was forgotten; of a routed candidate the
            gate's.
        run: The run that it rests on.
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
        candidate: The candidate whose failures are trained on.
        identity: Digest of the whole request: only an equal request resumes.
        done: The finished stages.
        folder: The folder of the run whose failures are trained on.
        runs: Ids of the runs whose traces were read.
        splits: The splits that were read, as `suite::split`.
        missing: Capabilities that were selected; None until that is known.
        environments: Where they are trained.
        adapters: The trained adapters, by capability.
        threads: Threads of each training: it resumes with as many as it began with.
        judged: Outcomes, by candidate.
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
    missing: tuple[Missing, ...] | None = None
    environments: dict[str, Ready] = Field(default_factory=dict)
    adapters: dict[str, str] = Field(default_factory=dict)
    threads: Count | None = None
    judged: dict[str, Judged] = Field(default_factory=dict)
    confusion: Confusion | None = None
    rollouts: dict[Stage, Count] = Field(default_factory=dict)
    minutes: dict[Stage, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
