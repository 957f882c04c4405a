"""What admission found of an environment: a line a check."""

from typing import Literal

from pydantic import Field

from pytest_trace2evolve.records.base import Record


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
