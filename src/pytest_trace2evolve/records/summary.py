"""A run's summary: what a job summary or a comment on a pull request is rendered from.

It travels as JSON from the job that measured to the job that comments. Rendering happens where the text is
posted, by code of that place: what a stranger's run says about itself is data there, and never Markdown.
"""

from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.compared import Compared
from pytest_trace2evolve.records.verdict import Decision, Verdict

SUMMARY_SCHEMA = 1
"""Version of the format; a file with another version is refused."""


class SuiteSummary(Record):
    """One suite: its verdicts, or why there is none.

    `baseline` is the name of what its candidate was compared with, and `compared` says who made both sides;
    `left_out` names what was not compared where no verdict names it.
    """

    name: str
    baseline: str | None = None
    reason: str = ""
    verdicts: tuple[Verdict, ...] = ()
    left_out: tuple[str, ...] = ()
    compared: Compared | None = None


class RunSummary(Record):
    """Everything a run has to tell outside of its terminal.

    `trouble` says why the run decides nothing, `used` what its models used, `command` how it was started,
    and `evidence` where its traces lie. Empty texts say nothing.
    """

    schema_version: int = SUMMARY_SCHEMA
    candidate: str
    decision: Decision | None = None
    trouble: str = ""
    suites: tuple[SuiteSummary, ...] = ()
    notes: tuple[str, ...] = ()
    used: str = ""
    command: tuple[str, ...] = ()
    run_id: str = ""
    evidence: str = ""
