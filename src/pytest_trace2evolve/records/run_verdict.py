"""What a gated run leaves behind as `verdict.json`: the documented form that CI and `promote` read."""

from typing import Any

from pydantic import Field

from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.compared import Compared
from pytest_trace2evolve.records.evidence import CandidateRef
from pytest_trace2evolve.records.verdict import Decision, Goal

RUN_VERDICT_SCHEMA = 1
"""Version of the form; a file with another version is refused."""


class BaselineUsed(Record):
    """The baseline of a suite: its name, the digest of its evidence, and its file below the project's folder.

    `path` is None for a file elsewhere.
    """

    name: str
    digest: str
    path: str | None = None


class EvidenceKept(Record):
    """Compact evidence of a suite: a file in the run's folder, and the digest of what it holds."""

    path: str
    digest: str


class SuiteVerdict(Record):
    """One suite of a run.

    Attributes:
        verdict: The worst of its splits; None where none decided, and `reason` says why.
        whole: Whether every split that ran ran completely.
        lock: Digest of its lock.
        verdicts: One a split, as `Verdict.to_json` gives it.
        compared: Who was compared; None without a baseline, and in files from before this field.
    """

    verdict: Decision | None
    reason: str = ""
    whole: bool
    lock: str
    baseline: BaselineUsed | None
    evidence: EvidenceKept
    verdicts: tuple[dict[str, Any], ...] = ()
    compared: Compared | None = None


class RunVerdict(Record):
    """A gated run.

    Attributes:
        run: Its id.
        time: When it started (ISO 8601, UTC).
        verdict: The worst of its suites; None where none decided.
        partial: Whether anything that was to be judged did not run whole.
        stopped: Why the session ended before its time; empty where it did not.
        others_failed: Whether an item that is no task of a suite failed.
    """

    schema_version: int = RUN_VERDICT_SCHEMA
    run: str
    time: str
    verdict: Decision | None
    partial: bool
    stopped: str = ""
    others_failed: bool = False
    policy: str
    goal: Goal
    candidate: CandidateRef
    suites: dict[str, SuiteVerdict] = Field(default_factory=dict)
