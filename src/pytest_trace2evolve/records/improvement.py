"""How far an evolution has come: what each stage found, so that what was interrupted goes on."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from pytest_trace2evolve.records.adapter import AdapterState
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.capability import CapabilityName
from pytest_trace2evolve.records.routing import Confusion
from pytest_trace2evolve.records.verdict import Decision

Count = Annotated[int, Field(ge=0)]


class Stage(StrEnum):
    """What is done one after the other."""

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
        delta: How much more of the failed than of the passed traces lack it.
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
    """What came of one candidate.

    Attributes:
        candidate: Such as `v6+precondition_verification`.
        gate: What the gate said; None where it gave no verdict.
        state: What that comes to with the check of what was forgotten; of a routed candidate the gate's.
        run: The run that it rests on.
        why: What beside the gate decided.
    """

    candidate: str
    gate: Decision | None
    state: AdapterState
    run: str
    why: str = ""


class Evolution(Record):
    """How far an evolution has come.

    Attributes:
        candidate: Whose failures are learnt from.
        identity: Digest of all that was asked for: only the same goes on.
        done: Stages that are finished.
        folder: The folder of the run that is learnt from.
        runs: Ids of the runs whose traces were read.
        splits: The splits that were read, as `suite::split`.
        missing: Capabilities that were selected; None until that is known.
        environments: Where they are trained.
        adapters: Adapters that are trained, by capability.
        threads: Of each training: what was begun with so many goes on with as many.
        judged: Verdicts, by candidate.
        confusion: The router's, on held-out content.
        rollouts: What each stage played, simulations included, in attempts that were interrupted too as far
            as what they played is of use.
        minutes: What each stage took, attempts that were interrupted included.
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
