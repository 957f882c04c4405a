"""The state of a search for better candidates, from which an interrupted search resumes."""

from typing import Annotated, Literal

from pydantic import Field

from pytest_trace2evolve.records.base import Count, Record
from pytest_trace2evolve.records.capability import CapabilityName
from pytest_trace2evolve.records.completion import NO_USAGE, Usage
from pytest_trace2evolve.records.verdict import Decision


class MissingCapability(Record):
    """A capability that the failures lack, with its Δ and coverage as in `Contrast`."""

    name: CapabilityName
    delta: float | None
    coverage: float | None


class Proposal(Record):
    """A proposal of a search.

    Attributes:
        problem: Why it was rejected; empty if it was not. A rejected proposal has no file.
    """

    id: str
    parent: str
    hypothesis: str = ""
    problem: str = ""


class SessionUse(Record):
    """What one session of a search used, simulations that an earlier attempt finished included."""

    simulations: Count = 0
    usage: Usage = NO_USAGE


class SearchState(Record):
    """The state of a search for better candidates, from which an interrupted search resumes.

    The search is a function of these answers, so a resumed search repeats them and only asks for more.

    Attributes:
        identity: Digest of the whole request. Only an equal request resumes the search.
        root: The candidate from which the search starts.
        batches: The ids of the proposals of each batch.
        proposals: All proposals, oldest first.
        rewards: By candidate, the mean reward of each discovery task.
        crashes: By candidate, why it cannot be run.
        decisions: By candidate, the gate's decision.
        runs: By candidate, the folders of its runs on discovery tasks.
        evidence: By candidate, the run or the saved baseline with its evidence on the tasks that decide.
        sessions: The use of each session, by the candidate, a colon and the purpose.
        proposer_usage: The usage of the proposer's model.
        minutes: Minutes of all attempts.
    """

    schema_version: Literal[1] = 1
    identity: str
    root: str
    batches: tuple[tuple[str, ...], ...] = ()
    proposals: tuple[Proposal, ...] = ()
    rewards: dict[str, dict[str, float]] = Field(default_factory=dict)
    crashes: dict[str, str] = Field(default_factory=dict)
    decisions: dict[str, Decision] = Field(default_factory=dict)
    runs: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    evidence: dict[str, str] = Field(default_factory=dict)
    sessions: dict[str, SessionUse] = Field(default_factory=dict)
    proposer_usage: Usage = NO_USAGE
    minutes: Annotated[float, Field(ge=0)] = 0.0

    @property
    def usage(self) -> Usage:
        """The usage of all sessions and of the proposer's model."""
        return sum((session.usage for session in self.sessions.values()), self.proposer_usage)

    def simulations_of(self, candidate: str = "") -> int:
        """Return the number of simulations of a candidate, or of all candidates."""
        return sum(
            session.simulations
            for name, session in self.sessions.items()
            if not candidate or name.rpartition(":")[0] == candidate
        )
