"""The explanation of a failed trial: how its databases differ, which checks failed, and its last messages."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from pytest_trace2evolve.records.message import Message


class Absence(Enum):
    """The value of a place in a database that does not exist."""

    ABSENT = "absent"


ABSENT = Absence.ABSENT

DatabasePath = tuple[str | int, ...]
"""The keys and list positions that lead from a database to a value."""


@dataclass(frozen=True)
class Difference:
    """A value that differs between the expected and the actual database.

    Attributes:
        path: The place of the value.
        expected, actual: The values; `ABSENT` if the place does not exist.
        side: The side that owns the database, such as `user`; empty if there is only one database.
    """

    path: DatabasePath
    expected: Any
    actual: Any
    side: str = ""


@dataclass(frozen=True)
class FailedCheck:
    """A requirement that a trial did not meet.

    Attributes:
        text: The requirement, such as a missing call.
        detail: A fact that helps to find the cause, such as the most similar call; may be empty.
    """

    text: str
    detail: str = ""


@dataclass(frozen=True)
class Divergence:
    """The first call, or text, of the agent that differs between two trials of a task."""

    baseline: str
    candidate: str


@dataclass(frozen=True)
class Failure:
    """The explanation of a failed trial.

    Attributes:
        trial: The number of the trial.
        reason: How the simulation ended, if it ended before it could be checked; else empty.
        differences: The first differences of the databases.
        difference_count: The number of all differences.
        failed_checks: The requirements that were not met.
        check_errors: The project's own checks without a result on a trial of the task, each with the reason.
        last_messages: The last messages of the trace.
        problem: Why the explanation is incomplete; empty if it is complete.
        divergence: The first difference from a passed trial of the baseline; None if it is not known.
    """

    trial: int
    reason: str = ""
    differences: tuple[Difference, ...] = ()
    difference_count: int = 0
    failed_checks: tuple[FailedCheck, ...] = ()
    check_errors: tuple[str, ...] = ()
    last_messages: tuple[Message, ...] = ()
    problem: str = ""
    divergence: Divergence | None = None
