"""The answers of the gate, the content of a gated run's `verdict.json`, and the summary of a run.

The job that measures passes a summary as JSON to the job that comments. The commenting job renders it with
its own code, so texts of an untrusted run are treated as data and never as Markdown.
"""

from enum import StrEnum
from typing import Any

from pydantic import Field

from pytest_trace2evolve.records.base import Later, LaterTuple, Record
from pytest_trace2evolve.records.evidence import CandidateRef, ComparedSides

RUN_VERDICT_SCHEMA = 1
"""Version of `verdict.json`; a file of a different version is rejected."""

SUMMARY_SCHEMA = 1
"""Version of the summary; a file of a different version is rejected."""

COVERAGE_CHECKS = (
    *("compared", "measured", "best_case", "worst_case", "lost_again", "baseline_rerun", "all_agent_errors"),
)
"""Ids of checks that concern what was measured, not the results."""


class CheckStatus(StrEnum):
    """A check's answer."""

    PASS = "pass"
    FAIL = "fail"
    UNDECIDED = "undecided"
    NOT_APPLICABLE = "not_applicable"


class Decision(StrEnum):
    """The gate's decision, from worst to best. The worst decision on a suite is that on all suites."""

    DISCARD = "discard"
    INCONCLUSIVE = "inconclusive"
    PROMOTE = "promote"

    @property
    def rank(self) -> int:
        return list(Decision).index(self)


EXIT_STATUS = {Decision.PROMOTE: 0, Decision.DISCARD: 1, Decision.INCONCLUSIVE: 10}
"""The process's exit status for each verdict."""


class Goal(StrEnum):
    """A candidate's claim: to be better, or not to be worse.

    With `no-regression` the candidate claims nothing, and only harm counts.
    """

    IMPROVE = "improve"
    HOLD = "hold"
    NO_REGRESSION = "no-regression"


class Estimand(StrEnum):
    """The tasks that a verdict is about: tasks like the compared ones, or exactly these (`suite`)."""

    TASKS = "tasks"
    SUITE = "suite"


class GuardAnswer(StrEnum):
    """The answers of a guard split; only the last one does not block."""

    HARM_SHOWN = "harm shown"
    HARM_SUSPECTED = "harm suspected"
    NO_HARM_DETECTED = "no harm detected"


class Label(StrEnum):
    """The kind of evidence that a verdict rests on."""

    CLEAN = "clean"
    DEVELOPMENT = "development"
    TRANSFER = "transfer"
    SYNTHETIC = "synthetic"


SHARE_UNIT = "share of simulations"
"""The unit of the project's own checks."""


RATIO_UNIT = "ratio"
"""The unit of the checks of cost, tokens, turns and latency."""


class CheckResult(Record):
    """One check: the estimate, its interval, and the threshold.

    `detectable` is the smallest effect that this number of tasks and trials would have shown in four of five
    comparisons. `detectable`, `low`, `high` and `p` are None if the policy states no uncertainty (`strict`).
    `unit` is set for the project's own checks, and for those of cost, tokens, turns and latency.
    """

    id: str
    status: CheckStatus
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    threshold: float | None = None
    p: float | None = None
    detectable: float | None = None
    detail: str = ""
    unit: Later[str] = None


class Obstacle(StrEnum):
    """The reason why more evidence of the same kind would not settle a check."""

    WRONG_DIRECTION = "wrong_direction"
    TOO_SMALL = "too_small"


class NeededEvidence(Record):
    """The evidence that would decide an inconclusive verdict if the figures stay the same.

    Attributes:
        trials: The number of trials per task and side that suffices; None if no number does with these tasks.
        tasks: The number of tasks that suffices with as many trials as now.
        obstacle: The reason why neither suffices; None if one of them does, and in older files.
        simulations: The number of further simulations, of both sides together, to reach `trials`.
        cost: The cost of these simulations in US dollars; None if it is not known.
        tokens: The tokens of these simulations; None if they are not known.
    """

    check: str
    trials: int | None = None
    tasks: int | None = None
    obstacle: Obstacle | None = None
    simulations: int | None = None
    cost: float | None = None
    tokens: int | None = None


class Interval(Record):
    """An estimate and its two-sided interval."""

    estimate: float
    low: float
    high: float


class UsageRatio(Record):
    """What the candidate's agent used, divided by what the baseline's used.

    Attributes:
        metric: `cost` (US dollars), `tokens`, `turns` (messages of the agent) or `latency` (seconds that its
            model took).
        baseline, candidate: The means of a simulation, over the tasks that have the figure on both sides.
        ratio, low, high: The ratio of these means, and its bounds; None if there is none.
        tasks: The number of these tasks.
        note: Why there is no ratio, or what it lacks; empty if both sides have the figure.
    """

    metric: str
    baseline: float | None = None
    candidate: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    tasks: int = 0
    note: str = ""


class SideFigures(Record):
    """Figures of one side over the compared tasks; None if nothing was measured.

    `pass_hat` maps k to pass^k, for k up to the smallest number of measured trials of any task; empty if the
    policy states no uncertainty.
    """

    reward: float | None = None
    pass_rate: float | None = None
    action_match: float | None = None
    read_action_match: float | None = None
    write_action_match: float | None = None
    max_steps: int = 0
    measured: int = 0
    missing: int = 0
    pass_hat: dict[int, Interval] = Field(default_factory=dict)


class Verdict(Record):
    """The gate's answer on one split of one suite, or on two sets of evidence.

    Attributes:
        decision: The decision; None if the split is a guard on which no harm was detected.
        partial: Whether the split or its baseline was not run completely.
        broken: The tasks that pass on the baseline and fail on the candidate.
        regressions: The broken tasks that were confirmed.
        suspected: The broken tasks that were neither confirmed nor cleared.
        left_out: The tasks that were not compared, each with its reason.
        identical: Whether both sides hold the same simulations.
        alpha: The level of each check; None if the policy states none.
        look: The test number of the candidate's clean claim on this split; None without a clean claim.
        analysis: The number of the analysis within that test; None without a clean claim.
        settling: The evidence that would settle an inconclusive verdict.
        guard: The answer of a guard; None for other splits, and for a guard that was not run completely.
        estimand: The tasks that the verdict is about; None if the policy states no uncertainty, and in older
            files.
        unjudged: The number of tasks with a simulation that only a judge could have measured.
        detectable: The drop of the mean reward that a guard, or a comparison under goal `no-regression`,
            would have detected in four of five comparisons; None if no drop could have been detected, and for
            other goals.
        unclean: The reason why the evidence is not clean; empty if it is, and without a ledger.
        usage: What the agents used, by figure; empty if neither side recorded anything.
        claim: The tags of the tasks on which a gain was tested; empty for all tasks.
    """

    decision: Decision | None
    policy: str
    goal: Goal
    label: Label
    suite: str | None = None
    split: str | None = None
    reason: str = ""
    partial: bool = False
    checks: tuple[CheckResult, ...] = ()
    fixed: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    regressions: tuple[str, ...] = ()
    suspected: tuple[str, ...] = ()
    tasks: int = 0
    left_out: tuple[str, ...] = ()
    identical: bool = False
    alpha: float | None = None
    look: int | None = None
    analysis: int | None = None
    settling: tuple[NeededEvidence, ...] = ()
    guard: GuardAnswer | None = None
    estimand: Estimand | None = None
    unjudged: int = 0
    detectable: float | None = None
    unclean: str = ""
    baseline: SideFigures = Field(default_factory=SideFigures)
    candidate: SideFigures = Field(default_factory=SideFigures)
    usage: LaterTuple[UsageRatio] = ()
    claim: LaterTuple[str] = ()

    @property
    def test_text(self) -> str:
        """The test's number, with the analysis's number from the second analysis on; empty without a test."""
        if self.look is None:
            return ""
        is_repeated = self.analysis is not None and self.analysis > 1
        return f"test {self.look}" + (f", analysis {self.analysis}" if is_repeated else "")

    def to_json(self) -> dict[str, Any]:
        """The documented JSON form of a verdict."""
        fields = self.model_dump(mode="json")
        task_fields = ("fixed", "broken", "regressions", "suspected", "left_out")
        moved_fields = {"decision", "tasks", *task_fields, "partial", "baseline", "candidate"}
        return {
            "verdict": fields["decision"],
            **{name: value for name, value in fields.items() if name not in moved_fields},
            "tasks": {"compared": fields["tasks"], **{name: fields[name] for name in task_fields}},
            "baseline": fields["baseline"],
            "candidate": fields["candidate"],
        }


class BaselineReference(Record):
    """The baseline of a suite with the digest of its evidence, and its path if it is in the project."""

    name: str
    digest: str
    path: str | None = None


class EvidenceReference(Record):
    """The evidence of a suite: a file in the run's folder, and the digest of its content."""

    path: str
    digest: str


class SuiteVerdict(Record):
    """One suite of a run.

    Attributes:
        verdict: The worst verdict of its splits; None if no split decided. `reason` then says why.
        whole: Whether every split that ran was complete.
        verdicts: The verdict on each split, from `Verdict.to_json`.
        compared: The compared sides; None without a baseline, and in older files.
    """

    verdict: Decision | None
    reason: str = ""
    whole: bool
    lock: str
    baseline: BaselineReference | None
    evidence: EvidenceReference
    verdicts: tuple[dict[str, Any], ...] = ()
    compared: ComparedSides | None = None


class RunVerdict(Record):
    """A gated run.

    Attributes:
        time: The time when it started (ISO 8601, UTC).
        verdict: The worst verdict of its suites; None if no suite decided.
        partial: Whether anything that was to be judged was not run completely.
        stopped: The reason why the session ended early; empty if it did not.
        others_failed: Whether a pytest item that is not a task of a suite failed.
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


class SuiteSummary(Record):
    """One suite: its verdicts, or the reason why there is none.

    `baseline` is the name of the baseline that the candidate was compared with. `left_out` names the tasks
    that were not compared, if no verdict names them. `tasks` is the number of the suite's tasks if its
    baseline is saved under the name of its candidate, so that it can be measured again; otherwise 0.
    """

    name: str
    baseline: str | None = None
    reason: str = ""
    verdicts: tuple[Verdict, ...] = ()
    left_out: tuple[str, ...] = ()
    compared: ComparedSides | None = None
    tasks: int = 0


class RunSummary(Record):
    """The summary of a run for reports outside its terminal. `trouble` says why the run decides nothing.

    `reuses` says whether runs reuse simulations of earlier runs.
    `changes` names the differences in the evidence that judges the run, such as a baseline saved again.
    `page` is the path of the report page; empty if there is none.
    """

    schema_version: int = SUMMARY_SCHEMA
    candidate: str
    decision: Decision | None = None
    trouble: str = ""
    suites: tuple[SuiteSummary, ...] = ()
    changes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    used: str = ""
    command: tuple[str, ...] = ()
    reuses: bool = True
    run_id: str = ""
    evidence: str = ""
    page: str = ""
