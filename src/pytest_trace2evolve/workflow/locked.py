"""A suite together with its lock: what every later step needs to know of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_trace2evolve.lock import SuiteLock
from pytest_trace2evolve.suites import Suite


@dataclass(frozen=True)
class LockedSuite:
    """One suite as its file says it, and as it was locked."""

    suite: Suite
    path: Path
    lock: SuiteLock

    @property
    def name(self) -> str:
        """The suite's name."""
        return self.suite.name

    @property
    def domain(self) -> str:
        """The suite's domain."""
        return self.suite.domain


def told(suites: Iterable[LockedSuite]) -> str:
    """Suites with their domains and modes, for messages."""
    return ", ".join(f"{one.name} ({one.suite.mode.brief})" for one in suites) or "none"
