"""What a capability's environment gives back: reactions to an agent's messages, and a graded reward.

What admission found of an environment: a line a check.

What is kept of a calibration: how a model fares in an environment, and where it can learn.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.message import Message

GRADES = (0.0, 0.2, 0.5, 0.8, 1.0)
"""The rewards that an environment gives. Between none and all, so that a group of rollouts can differ."""

TOP = GRADES[-1]
"""The reward of a rollout that exercises the capability to its end."""


def _one_of_the_grades(value: float) -> float:
    if value not in GRADES:
        raise ValueError(f"a reward of {value:g}: an environment gives one of {', '.join(map(str, GRADES))}")
    return value


Grade = Annotated[float, AfterValidator(_one_of_the_grades)]
"""A reward of an environment."""


class Reaction(Record):
    """What came back on a message of the agent.

    Attributes:
        messages: The tools' results, or what the customer said; empty where nobody answers any more.
        done: It is over: nothing that the agent says is heard any more, and the reward stands.
    """

    messages: tuple[Message, ...] = ()
    done: bool = False


class CheckLine(Record):
    """One check: what was looked at, whether it holds, and what was found."""

    check: str
    passed: bool
    detail: str


class AdmissionReport(Record):
    """All checks of one environment.

    Attributes:
        digests: Of its generators, by difficulty.
        seeds: How many scenarios were looked at.
        seconds: How long it took.
    """

    schema_version: Literal[1] = 1
    capability: str
    digests: dict[int, str]
    seeds: int
    seconds: float
    checks: tuple[CheckLine, ...] = Field(min_length=1)

    @property
    def passed(self) -> bool:
        """Whether every check holds."""
        return all(line.passed for line in self.checks)


class Figures(Record):
    """Figures of groups of rollouts; shares are from 0 to 1.

    Attributes:
        groups: Scenarios with two rollouts or more.
        rollouts: Rollouts that were measured.
        lost: Rollouts that were lost to the machine or the network; they count nowhere else.
        mean: Mean reward of all rollouts.
        std: Standard deviation of rewards within a group, averaged over groups.
        all_top: Share of groups in which every rollout got the top.
        all_zero: Share of groups in which every rollout got 0.
        informative: Share of groups whose rewards differ.
        pass_at: By k, the chance that one of k rollouts gets the top; only where groups hold k.
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


class Tried(Record):
    """One difficulty that was measured.

    Attributes:
        outside: What lies outside of the targets, a phrase each.
        tokens: Tokens of a rollout on average, prompt and answers; None where the endpoint does not say.
        calls: Answers of the model in a rollout, on average.
        seconds: How long it took in all.
    """

    difficulty: int
    digest: str
    figures: Figures
    outside: tuple[str, ...]
    tokens: float | None
    calls: float
    seconds: float


class Outcome(StrEnum):
    """What a calibration came to: a difficulty fits, or somebody must decide what to do."""

    FITS = "fits"
    ASK = "ask"


class Calibration(Record):
    """A calibration of one environment for one model.

    Attributes:
        digest: Of the generator at the difficulty that was chosen last.
        weights: Digest of the model's folder; None at an endpoint, which only has a name.
        candidate: Whose instruction the agent was given; empty where none was.
        content: Whose words the scenarios were made of.
        temperature: At which answers were drawn; None where the endpoint's own.
        seeds: How many scenarios.
        group: How many rollouts of each.
        tried: Every difficulty that was measured, in that order; the last is the one that holds.
        advice: What to do, where nothing fits.
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
    outcome: Outcome
    difficulty: int
    tried: tuple[Tried, ...] = Field(min_length=1)
    advice: str = ""


class EnvironmentListing(Record):
    """One environment of a list, with its stored calibrations.

    Attributes:
        pays: What it rewards, in a few words.
        stale: Whether a calibration is of another version of it.
    """

    name: str
    pays: str
    digest: str
    calibrations: tuple[Calibration, ...] = ()
    stale: bool = False

    def to_json(self) -> dict[str, object]:
        """The documented JSON form."""
        return {
            "environment": self.name,
            "capability": self.name,
            "digest": self.digest,
            "pays": self.pays,
            "stale": self.stale,
            "calibrations": [one.model_dump(mode="json") for one in self.calibrations],
        }
