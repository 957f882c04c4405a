"""Records of capability environments: reactions, rewards, admission reports and calibrations."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.message import Message

GRADES = (0.0, 0.2, 0.5, 0.8, 1.0)
"""The possible rewards of an environment. Values between 0 and 1 let the rollouts of a group differ."""

MAX_GRADE = GRADES[-1]
"""The reward of a rollout that exercises the capability completely."""


def _check_grade(value: float) -> float:
    if value not in GRADES:
        raise ValueError(f"expected a reward that is one of {', '.join(map(str, GRADES))}, got {value:g}")
    return value


Grade = Annotated[float, AfterValidator(_check_grade)]
"""A reward of an environment."""


class Reaction(Record):
    """The tools' results or the customer's answer to a message of the agent.

    `done` means that the scenario is over. Further messages then change nothing, and the reward is final.
    """

    messages: tuple[Message, ...] = ()
    done: bool = False


class CheckLine(Record):
    """One check of an admission: its name, whether it passed, and its finding."""

    check: str
    passed: bool
    detail: str


class AdmissionReport(Record):
    """All checks of one environment; `digests` are those of its generators, by difficulty."""

    schema_version: Literal[1] = 1
    capability: str
    digests: dict[int, str]
    seeds: int
    seconds: float
    checks: tuple[CheckLine, ...] = Field(min_length=1)

    @property
    def passed(self) -> bool:
        return all(line.passed for line in self.checks)


class RolloutFigures(Record):
    """Statistics of groups of rollouts. Shares are between 0 and 1.

    Attributes:
        groups: The number of scenarios with two rollouts or more.
        rollouts: The number of measured rollouts.
        lost: The number of rollouts lost to the machine or the network; they count nowhere else.
        mean: Mean reward of all rollouts.
        std: Standard deviation of rewards within a group, averaged over groups.
        all_top: Share of groups in which every rollout got the top reward.
        all_zero: Share of groups in which every rollout got 0.
        informative: Share of groups whose rewards differ.
        pass_at: By k, the chance that at least one of k rollouts gets the top reward; only for k up to the
            size of a group.
    """

    groups: int = Field(ge=0)
    rollouts: int = Field(ge=0)
    lost: int = Field(ge=0)
    mean: float
    std: float
    all_top: float
    all_zero: float
    informative: float
    pass_at: dict[int, float]


class DifficultyResult(Record):
    """One measured difficulty.

    Attributes:
        outside: The figures that missed their targets, one phrase each.
        tokens: Mean tokens of a rollout, prompt and answers; None if the endpoint does not report them.
        calls: Mean number of the model's answers in a rollout.
    """

    difficulty: int
    digest: str
    figures: RolloutFigures
    outside: tuple[str, ...]
    tokens: float | None
    calls: float
    seconds: float


class CalibrationOutcome(StrEnum):
    """The outcome of a calibration: a difficulty fits, or a person must decide."""

    FITS = "fits"
    ASK = "ask"


class Calibration(Record):
    """A calibration of one environment for one model.

    Attributes:
        digest: Digest of the generator at the difficulty that was chosen last.
        weights: Digest of the model's folder; None for an endpoint, which only has a name.
        candidate: The candidate whose instruction the agent was given; may be empty.
        temperature: The sampling temperature; None for the endpoint's default.
        seeds: The number of scenarios, with `group` rollouts each.
        tried: Every measured difficulty, in order; the last one is the result.
        advice: The next step if no difficulty fits.
    """

    schema_version: Literal[1] = 1
    capability: str
    digest: str
    model: str
    weights: str | None
    candidate: str
    content: str
    temperature: float | None
    seeds: int
    group: int
    outcome: CalibrationOutcome
    difficulty: int
    tried: tuple[DifficultyResult, ...] = Field(min_length=1)
    advice: str = ""
