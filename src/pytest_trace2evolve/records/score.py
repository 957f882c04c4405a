"""The score of one simulation, which has a reward only if it was measured."""

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from pytest_trace2evolve.records.base import Later, Record
from pytest_trace2evolve.records.rules import Finding
from pytest_trace2evolve.records.task import RewardBasis


class Status(StrEnum):
    """Whether a simulation has a reward, and if not, why."""

    MEASURED = "measured"
    NOT_MEASURED = "not_measured"
    INFRASTRUCTURE_ERROR = "infrastructure_error"


class ToolType(StrEnum):
    """The type of a tool, as tau2 classifies it."""

    READ = "read"
    WRITE = "write"
    THINK = "think"
    GENERIC = "generic"


SCORER_VERSION = 1
"""Incremented whenever the same trace could get a different reward; part of every lock."""

NO_JUDGE_NOTE = "the task's reward needs a judge of natural-language assertions, and none was given"
"""The note of a simulation that a judge could have measured."""

RECORDED_VERDICTS = "recorded verdicts of natural-language assertions"
"""The note of a simulation that is scored with verdicts of its file, and the judge if the file names none."""

UNKNOWN_TOOL = "unknown"
"""The type of a gold action whose tool the domain does not have."""

UnitFloat = Annotated[float, Field(ge=0, le=1)]
"""A share or reward between 0 and 1."""


class Check(Record):
    """A requirement of a task, and whether the simulation met it."""

    wanted: Any
    met: bool
    note: str = ""


class ActionCheck(Record):
    """A gold action, and whether a tool call matched it."""

    action: dict[str, Any]
    tool_type: str
    matched: bool


class JudgeUse(Record):
    """The judge's model, its prompt's version, its tokens, and its cost in US dollars (None if not known)."""

    model: str
    prompt_version: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None


class RewardRecord(Record):
    """Base class of records that have a reward if and only if it was measured."""

    status: Status
    reward: UnitFloat | None = None

    @model_validator(mode="after")
    def _check_reward(self) -> Self:
        if (self.reward is not None) != (self.status is Status.MEASURED):
            raise ValueError(f"reward {self.reward!r} does not match status {self.status.value!r}")
        return self


class MilestoneMatch(Record):
    """A milestone or minefield of a task, and how well a simulation matched it.

    Attributes:
        index: Its number in the task.
        similarity: The similarity at the message that matches best.
        message: That message's position in the trace.
        about: The tables that it constrains, and how.
    """

    index: int
    similarity: UnitFloat
    message: int
    about: str


class Score(RewardRecord):
    """The reward of one simulation, and its components; the reward is the product of those in `basis`.

    `components` holds every component that could be computed. Components outside `basis` are diagnostics. A
    component that needed a judge and had none is absent. `forbidden_calls` holds one check for each forbidden
    call of the task; a check is met if the agent did not make the call. `collateral` holds the collateral
    changes; None if the task or the world does not show which records may change. `milestones` and
    `minefields` are None in a world without them.
    """

    basis: tuple[RewardBasis, ...] = ()
    components: dict[RewardBasis, UnitFloat] = Field(default_factory=dict)
    db_match: bool | None = None
    env_assertions: tuple[Check, ...] = ()
    communicate: tuple[Check, ...] = ()
    actions: tuple[ActionCheck, ...] = ()
    forbidden_calls: tuple[Check, ...] = ()
    nl_assertions: tuple[Check, ...] = ()
    judge: JudgeUse | None = None
    collateral: tuple[Finding, ...] | None = None
    milestones: Later[tuple[MilestoneMatch, ...]] = None
    minefields: Later[tuple[MilestoneMatch, ...]] = None
    note: str = ""
