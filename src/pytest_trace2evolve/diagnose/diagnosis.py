"""The report on traces: capabilities that failures lack, kinds of failure, and unexplained failures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trace2evolve.diagnose.behavior_features import Behavior, Match, record_of
from pytest_trace2evolve.diagnose.contrast import MAX_EXAMPLES, STANDARD, Thresholds, assess
from pytest_trace2evolve.diagnose.labels import account_address_inference, label_by_rules, status_known
from pytest_trace2evolve.diagnose.traces import TraceSet, gather
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.capability import (
    BUILT_IN_CAPABILITIES,
    Capability,
    CapabilityReport,
    FailureKind,
    LabelRun,
    Presence,
)
from pytest_trace2evolve.records.improvement import MissingCapability
from pytest_trace2evolve.records.trace import TerminationReason

if TYPE_CHECKING:
    from pytest_trace2evolve.environments.registry import Environments

Evidence = tuple[int | None, str] | None
"""The index of the message that shows a kind of failure, and why; None if the trace is not of that kind."""

_BUDGETS = frozenset(
    {TerminationReason.MAX_STEPS, TerminationReason.TOO_MANY_ERRORS, TerminationReason.TIMEOUT}
)


@dataclass(frozen=True)
class LabelSet:
    """The runs of a labeller, the capabilities that it labelled, and notes for the report."""

    labeller: str
    capabilities: Sequence[Capability]
    runs: Sequence[LabelRun]
    notes: tuple[str, ...] = ()


def by_rules(traces: TraceSet, runs: int = 1) -> LabelSet:
    """Label traces by rules in a single run, whatever number of runs is requested."""
    note = f"{runs} runs of the rules are one run: they agree with themselves, which is no stability"
    labels = label_by_rules(traces.behaviors)
    return LabelSet("rules", BUILT_IN_CAPABILITIES, [labels], (note,) if runs > 1 else ())


def report(traces: TraceSet, labels: LabelSet, thresholds: Thresholds = STANDARD) -> CapabilityReport:
    """Build the report that compares failures with successes.

    Raises:
        LabelError: a run's labels do not partition the traces.
    """
    outcomes = traces.outcomes
    kinds, explained = taxonomy(traces.behaviors)
    explained |= {
        label.trace for run in labels.runs[:1] for label in run.labels if label.presence is Presence.LACKING
    }
    return CapabilityReport(
        labeller=labels.labeller,
        runs=len(labels.runs),
        traces=len(outcomes),
        failed=sum(not outcome.passed for outcome in outcomes),
        capabilities=tuple(assess(labels.capabilities, labels.runs, outcomes, thresholds)),
        labels=tuple(labels.runs),
        taxonomy=tuple(kinds),
        unexplained=tuple(
            behavior.shown(
                behavior.last_agent_message if behavior.trace else None,
                f"ended by {behavior.simulation.termination_reason}",
            )
            for behavior in traces.behaviors
            if not behavior.passed and behavior.simulation.id not in explained
        ),
        notes=(*traces.notes, *labels.notes),
    )


@dataclass(frozen=True)
class RunDiagnosis:
    """The capabilities that the failed traces of a run lack.

    Attributes:
        missing: The selected capabilities, ordered by Δ.
        runs: Ids of the runs.
        splits: The splits that were read, as `suite::split`.
        failed: The number of failed traces.
        traces: The number of all traces.
        environments: Names of the environments that have the tools of the run's world.
    """

    missing: tuple[MissingCapability, ...]
    runs: tuple[str, ...]
    splits: tuple[str, ...]
    failed: int
    traces: int
    environments: tuple[str, ...]

    @property
    def trainable(self) -> tuple[MissingCapability, ...]:
        """The missing capabilities that have an environment with the tools of the run's world.

        Raises:
            ConfigError: no missing capability has such an environment.
        """
        found = tuple(missing for missing in self.missing if missing.name in self.environments)
        if not found:
            lacking = ", ".join(missing.name for missing in self.missing)
            raise ConfigError(
                f"run {', '.join(self.runs)} lacks {lacking}, and no environment with the tools of its world "
                "trains that: write one with trace2evolve environment synthesize NAME"
            )
        return found


def diagnose_run(project: Project, run: str, here: Path, environments: "Environments") -> RunDiagnosis:
    """Diagnose by rules the capabilities that a run's failures lack, without tasks of sealed splits.

    Raises:
        ConfigError: the run is unknown or empty, no environment has the tools of its world, nothing failed,
            or no capability is selected as missing.
        ResultsError: a file cannot be read.
    """
    worlds = project.open_worlds()
    traces = gather([run], worlds, project=project, here=here, check_world=environments.require_tools_of)
    found = report(traces, by_rules(traces))
    if not found.failed:
        raise ConfigError(
            f"run {run}: none of its {found.traces} traces outside sealed splits failed: there is nothing "
            "to learn"
        )
    missing = tuple(
        MissingCapability(name=assessed.name, delta=assessed.delta, coverage=assessed.coverage)
        for assessed in found.capabilities
        if assessed.selected
    )
    if not missing:
        raise ConfigError(
            f"run {run}: {found.failed} of {found.traces} traces failed, and no capability is missing in "
            "them by contrast; see trace2evolve capabilities, or name one to train (trace2evolve train)"
        )
    read = {behavior.task.id for behavior in traces.behaviors}
    splits = {
        f"{suite}::{split}"
        for task, places in traces.splits.items()
        if task in read
        for suite, split in places
    }
    return RunDiagnosis(
        missing=missing,
        runs=tuple(dict.fromkeys(behavior.run for behavior in traces.behaviors)),
        splits=tuple(sorted(splits)),
        failed=found.failed,
        traces=found.traces,
        environments=environments.with_tools_of(traces.ran_in),
    )


# Kinds of failure: Trace2Evolve's taxonomy. A failed trace can be of several kinds.


def _under_inspection(behavior: Behavior) -> Evidence:
    for action in behavior.unread:
        record = record_of(action.name, action.arguments, behavior.rules)
        why = f"{action.name} of {record} was never called" if record else action.name
        return behavior.last_agent_message, why
    return None


def _cross_order_ambiguity(behavior: Behavior) -> Evidence:
    for write in behavior.expected_writes:
        if write.match is Match.OTHER_RECORD and write.call is not None:
            why = f"{write.action.name} on {write.call.record}; {write.record} is meant"
            return write.call.message, why
    meant = {
        write.action.name: write.record for write in behavior.expected_writes if write.match is Match.MISSING
    }
    for call in behavior.writes:
        if call.error and meant.get(call.name, call.record) != call.record:
            return call.message, f"{call.name} tried on {call.record}; {meant[call.name]} is meant"
    return None


def _unsafe_write_path(behavior: Behavior) -> Evidence:
    places = {call.message for call in behavior.writes}
    for finding in behavior.findings:
        if finding.message in places:
            return finding.message, f"{finding.invariant.value}: {finding.why}"
    for call in behavior.unexpected_writes:
        return call.message, f"{call.name} on {call.record} was not called for"
    return None


def _max_step_loop(behavior: Behavior) -> Evidence:
    reason = behavior.simulation.termination_reason
    if reason in _BUDGETS:
        return max(len(behavior.trace) - 1, 0), f"ended by {reason}"
    for call in behavior.repeated:
        return call.message, f"{call.name} was called again and again"
    return None


def _partial_success(behavior: Behavior) -> Evidence:
    exact = [write.call for write in behavior.expected_writes if write.match is Match.EXACT]
    told = [answer.message for answer in behavior.answers if answer.message is not None]
    places = [*told[-1:], *(call.message for call in exact[-1:] if call is not None)]
    steps = len(behavior.expected_writes) + len(behavior.answers)
    return (places[-1], f"{len(exact) + len(told)} of {steps} steps are right") if places else None


def _cancelled_order_tracking(behavior: Behavior) -> Evidence:
    for call in behavior.writes:
        if (status := status_known(behavior, call)).startswith("cancel"):
            return call.message, f"{call.name} on {call.record}, which was {status!r}"
    return None


def _account_address_inference(behavior: Behavior) -> Evidence:
    shown = account_address_inference(behavior)
    return (shown.message, shown.why) if shown.presence is Presence.LACKING else None


KINDS: Mapping[str, tuple[Callable[[Behavior], Evidence], str]] = {
    "under_inspection": (_under_inspection, "A record that the expert reads was never read."),
    "cross_order_ambiguity": (
        _cross_order_ambiguity,
        "A change was made, or tried, on another record than the one that is meant.",
    ),
    "unsafe_write_path": (
        _unsafe_write_path,
        (
            "A change broke an invariant (identity, consent, eligibility, read before write), or nobody had "
            "called for it."
        ),
    ),
    "max_step_loop": (
        _max_step_loop,
        "A budget ended the simulation, or one call was made three times or more.",
    ),
    "partial_success": (
        _partial_success,
        "A part of what was asked for was done as it should be, and the rest was not.",
    ),
    "cancelled_order_tracking": (
        _cancelled_order_tracking,
        "The agent worked on an order that it knew, or could have known, to be cancelled.",
    ),
    "account_address_inference": (
        _account_address_inference,
        "An address that stands in the records was not written, or another one was.",
    ),
}
"""For each kind, the function that finds it in a failed trace, and its description."""


def taxonomy(behaviors: Sequence[Behavior]) -> tuple[list[FailureKind], set[str]]:
    """Count the kinds of failure among failed traces.

    Returns:
        The kinds, the most frequent first, and the ids of the traces that a kind explains. `partial_success`
        explains no trace, because it does not show the cause of the failure.
    """
    failed = [behavior for behavior in behaviors if not behavior.passed]
    kinds, explained = [], set()
    for name, (find, description) in KINDS.items():
        shown = [behavior.shown(*evidence) for behavior in failed if (evidence := find(behavior)) is not None]
        if name != "partial_success":
            explained |= {failure.trace for failure in shown}
        kinds.append(
            FailureKind(
                name=name,
                description=description,
                count=len(shown),
                share=len(shown) / len(failed) if failed else None,
                examples=tuple(shown[:MAX_EXAMPLES]),
            )
        )
    return sorted(kinds, key=lambda kind: (-kind.count, kind.name)), explained
