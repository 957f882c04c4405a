"""Capabilities, labels of traces, and the contrast between failed and passed traces."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from pytest_trace2evolve.records.base import Count, Record
from pytest_trace2evolve.records.score import UnitFloat

CapabilityName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]*(_[a-z0-9]+)*$", max_length=80)]
"""The name of a capability, in snake_case."""

Delta = Annotated[float, Field(ge=-1, le=1)]
"""A difference of two shares."""


class Capability(Record):
    """A skill that an agent has or lacks.

    `tasks` holds the ids of tasks in which the skill mattered, and `merged` holds other names under which it
    was proposed.
    """

    name: CapabilityName
    description: str
    tasks: tuple[str, ...] = ()
    merged: tuple[str, ...] = ()


class Presence(StrEnum):
    """Whether a trace shows a capability or lacks it.

    `na` means that the capability was not needed, and `lost` means that the labeller gave no valid label.
    Neither enters a rate.
    """

    PRESENT = "present"
    LACKING = "lacking"
    NA = "na"
    LOST = "lost"


class Label(Record):
    """The label of one trace for one capability, from one run of a labeller.

    `message` is the position of the agent message that supports the label; None for `na` and `lost`.
    """

    trace: str
    capability: str
    presence: Presence
    message: Count | None = None
    why: str = ""


class TraceOutcome(Record):
    """A labelled trace: its simulation, its run and task, and whether it passed."""

    trace: str
    run: str = ""
    task: str
    trial: int = 0
    passed: bool


class Contrast(Record):
    """The figures of one capability from the labels of one run.

    Attributes:
        coverage: Share of all failed traces that lack the capability; None if no trace failed.
        error_rate_failed: ER⁻: of the failed traces that show or lack the capability, the share that lacks
            it; None if there are no such traces.
        error_rate_passed: ER⁺, the same ratio for passed traces.
        delta: ER⁻ − ER⁺; None if either is not measured.
        lost: The number of lost labels of the capability.
    """

    coverage: UnitFloat | None
    error_rate_failed: UnitFloat | None
    error_rate_passed: UnitFloat | None
    delta: Delta | None
    lost: Count = 0


class CapabilityAssessment(Record):
    """The figures of one capability from all runs together.

    Attributes:
        coverage, error_rate_failed, error_rate_passed, delta: Means over the runs that measured them.
        coverage_std, delta_std: Standard deviations over runs; None below two runs.
        delta_low, delta_high: Newcombe's interval of Δ, clustered by task, at a level at which all intervals
            of the report hold simultaneously.
        runs_passed: The number of runs in which coverage and Δ reached their thresholds.
        selected: Whether the capability counts as missing; if not, `reason` says why.
        examples: Failed traces that lack the capability.
        lost: The number of lost labels of the capability in all runs.
    """

    name: CapabilityName
    description: str
    merged: tuple[str, ...] = ()
    coverage: UnitFloat | None
    error_rate_failed: UnitFloat | None
    error_rate_passed: UnitFloat | None
    delta: Delta | None
    coverage_std: float | None = None
    delta_std: float | None = None
    delta_low: Delta | None = None
    delta_high: Delta | None = None
    runs_passed: int
    selected: bool
    reason: str = ""
    examples: tuple["TraceExample", ...] = ()
    lost: int = 0
    by_run: tuple[Contrast, ...] = ()


class TraceExample(Record):
    """A place in a trace that shows a lacking capability, or a kind of failure."""

    trace: str
    run: str
    task: str
    trial: int
    message: int | None
    why: str


class FailureKind(Record):
    """One kind of failure of the taxonomy, and the failed traces of this kind."""

    name: CapabilityName
    description: str
    count: int
    share: UnitFloat | None
    examples: tuple[TraceExample, ...] = ()


class LabelRun(Record):
    """All labels of one run of a labeller."""

    run: int
    labels: tuple[Label, ...]


class CapabilityReport(Record):
    """The result of `trace2evolve capabilities`.

    Attributes:
        labeller: `rules`, or the judge's model.
        runs: The number of runs of the labeller; 1 for the rules, which are deterministic.
        traces, failed: The number of labelled traces, and of the failed ones among them.
        unexplained: Failed traces without a lacking capability (in the first run) and without a kind.
    """

    schema_version: Literal[1] = 1
    labeller: str
    runs: int
    traces: int
    failed: int
    capabilities: tuple[CapabilityAssessment, ...]
    labels: tuple[LabelRun, ...]
    taxonomy: tuple[FailureKind, ...]
    unexplained: tuple[TraceExample, ...] = ()
    notes: tuple[str, ...] = ()


BUILT_IN_CAPABILITIES = (
    Capability(
        name="precondition_verification",
        description=(
            "Before it changes a record the agent reads it, and sees that its state and the policy allow the "
            "change. It makes no change that is not called for."
        ),
    ),
    Capability(
        name="structured_data_reasoning",
        description=(
            "The agent draws the right conclusion from several records: the variant with the wanted options, "
            "the order that is meant, a sum or a count. It chooses from what it has read, not by guessing."
        ),
    ),
    Capability(
        name="multi_step_task_completion",
        description=(
            "The agent does all that the customer asks for: each change, and each answer that it has found. "
            "It does not stop after the first."
        ),
    ),
    Capability(
        name="tool_calling_precision",
        description=(
            "The agent calls the right tool with the right items, payment method and reason; which variant "
            "or address is right is not part of it. No call is refused for its arguments."
        ),
    ),
    Capability(
        name="account_address_inference",
        description=(
            "Where the customer refers to an address instead of telling it, the agent takes it from the "
            "account or the order in which it stands."
        ),
    ),
    Capability(
        name="conditional_detail_retrieval",
        description=(
            "The agent fetches the detail that an answer or a decision depends on, before it answers or "
            "gives up. It does not tell what it has not read."
        ),
    ),
)
"""The capabilities that the rule-based labeller knows: those that TRACE (arXiv 2604.05336) found missing on
τ², and two that Trace2Evolve adds."""
