"""A model's answer as stores keep it, and what a cassette says of itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.completion import Completion
from pytest_trace2evolve.records.evidence import CandidateRef, Settings

Side = Literal["agent", "user"]
"""Whose model answered."""

CASSETTE_FORMAT = "trace2evolve-cassette"
CASSETTE_VERSION = 1
"""Version of the cassette's format, its keys included; a file with another version is refused."""


class Answer(Record):
    """One answer: a completion, or (`context_window`) the refusal of a conversation that no longer fits.

    Nothing of the request is kept, and nothing that would name its sender.
    """

    trial: int
    side: Side
    model: str
    completion: Completion | None = None
    context_window: str | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.completion is None) == (self.context_window is None):
            raise ValueError("an answer is either a completion or the refusal of a too long conversation")
        return self


@dataclass(frozen=True)
class JournalEntry:
    """One answer in the journal of a simulation.

    Attributes:
        request: The side and the digest of the request that it answers.
        answer: The completion, or the refusal of a conversation that is too long; None for first tokens.
        first_tokens: Log-probabilities of first tokens, by text; None for a completion.
    """

    request: str
    answer: Answer | None = None
    first_tokens: Mapping[str, float] | None = None


class CassetteHeader(Record):
    """The first line of a cassette: how it was recorded, and what the lines after it must be.

    `partial` says why it may not hold the whole run; empty where it does. `digest` is that of the lines
    after the first. The agent's and the user's settings are those that the run's evidence records. `scripts`:
    customers of synthetic cases followed their scripts.
    """

    format: str = CASSETTE_FORMAT
    version: int = CASSETTE_VERSION
    answers: int = Field(ge=0)
    digest: str
    partial: str = ""
    candidate: CandidateRef
    suites: dict[str, str]
    agent: Settings
    user: Settings
    scripts: bool = True
