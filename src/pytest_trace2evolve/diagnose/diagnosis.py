"""Reports the capabilities that failures lack, the kinds of failure, and the unexplained failures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trace2evolve.diagnose.behavior_features import Behavior, Match, target_record_id
from pytest_trace2evolve.diagnose.contrast import (
    MAX_EXAMPLES,
    TRACE_THRESHOLDS,
    Thresholds,
    assess_capabilities,
)
from pytest_trace2evolve.diagnose.labels import account_address_inference, label_by_rules, last_known_status
from pytest_trace2evolve.diagnose.traces import TraceSet, gather_traces
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

FailureEvidence = tuple[int | None, str] | None
"""The index of a message that shows a kind of failure, and the reason; None if the trace does not show it."""

_BUDGET_ENDS = frozenset(
    {TerminationReason.MAX_STEPS, TerminationReason.TOO_MANY_ERRORS, TerminationReason.TIMEOUT}
)


@dataclass(frozen=True)
class LabelSet:
    """The runs of a labeller, the capabilities that it labelled, and notes for the report."""

    labeller: str
    capabilities: Sequence[Capability]
    runs: Sequence[LabelRun]
    notes: tuple[str, ...] = ()


def label_set_by_rules(traces: TraceSet, runs: int = 1) -> LabelSet:
    """Label traces by rules in a single run; if more `runs` are requested, a note says so."""
    note = f"the rules give the same labels in all {runs} runs, so they ran once; this shows no stability"
    labels = label_by_rules(traces.behaviors)
    return LabelSet("rules", BUILT_IN_CAPABILITIES, [labels], (note,) if runs > 1 else ())


def build_report(
    traces: TraceSet, labels: LabelSet, thresholds: Thresholds = TRACE_THRESHOLDS
) -> CapabilityReport:
    """Build the report that compares failures with successes.

    Raises:
        LabelError: a run does not have exactly one label of every capability for each trace.
    """
    outcomes = traces.outcomes
    kinds, explained = count_failure_kinds(traces.behaviors)
    explained |= {
        label.trace for run in labels.runs[:1] for label in run.labels if label.presence is Presence.LACKING
    }
    return CapabilityReport(
        labeller=labels.labeller,
        runs=len(labels.runs),
        traces=len(outcomes),
        failed=sum(not outcome.passed for outcome in outcomes),
        capabilities=tuple(assess_capabilities(labels.capabilities, labels.runs, outcomes, thresholds)),
        labels=tuple(labels.runs),
        taxonomy=tuple(kinds),
        unexplained=tuple(
            behavior.to_example(
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
    def trainable_capabilities(self) -> tuple[MissingCapability, ...]:
        """The missing capabilities that have an environment with the tools of the run's world.

        Raises:
            ConfigError: no missing capability has such an environment.
        """
        capabilities = tuple(missing for missing in self.missing if missing.name in self.environments)
        if not capabilities:
            names = ", ".join(missing.name for missing in self.missing)
            raise ConfigError(
                f"run {', '.join(self.runs)} lacks {names}, but no environment with the tools of its world "
                "trains it: write one with trace2evolve environment synthesize NAME"
            )
        return capabilities


def diagnose_run(project: Project, run: str, base_folder: Path, environments: "Environments") -> RunDiagnosis:
    """Diagnose by rules which capabilities a run's failures lack; tasks of sealed splits are left out.

    Raises:
        ConfigError: the run is unknown or empty, no environment has the tools of its world, nothing failed,
            or no capability is selected as missing.
        ResultsError: a file cannot be read.
    """
    worlds = project.open_worlds()
    traces = gather_traces(
        [run], worlds, project=project, base_folder=base_folder, check_world=environments.require_tools_of
    )
    report = build_report(traces, label_set_by_rules(traces))
    if not report.failed:
        raise ConfigError(
            f"run {run}: none of its {report.traces} traces outside sealed splits failed, so there is "
            "nothing to learn"
        )
    missing = tuple(
        MissingCapability(name=assessment.name, delta=assessment.delta, coverage=assessment.coverage)
        for assessment in report.capabilities
        if assessment.selected
    )
    if not missing:
        raise ConfigError(
            f"run {run}: {report.failed} of {report.traces} traces failed, but the contrast with the passed "
            "traces shows no missing capability; see trace2evolve capabilities, or name one to train "
            "(trace2evolve train)"
        )
    read_tasks = {behavior.task.id for behavior in traces.behaviors}
    splits = {
        f"{suite}::{split}"
        for task, task_splits in traces.splits.items()
        if task in read_tasks
        for suite, split in task_splits
    }
    return RunDiagnosis(
        missing=missing,
        runs=tuple(dict.fromkeys(behavior.run for behavior in traces.behaviors)),
        splits=tuple(sorted(splits)),
        failed=report.failed,
        traces=report.traces,
        environments=environments.names_with_tools_of(traces.worlds),
    )


# Kinds of failure: Trace2Evolve's taxonomy. A failed trace can be of several kinds.


def _find_under_inspection(behavior: Behavior) -> FailureEvidence:
    for action in behavior.unread_actions:
        record = target_record_id(action.name, action.arguments, behavior.rules)
        why = f"{action.name} of {record} was never called" if record else action.name
        return behavior.last_agent_message, why
    return None


def _find_cross_order_ambiguity(behavior: Behavior) -> FailureEvidence:
    for write in behavior.expected_writes:
        if write.match is Match.OTHER_RECORD and write.call is not None:
            why = f"{write.action.name} on {write.call.record}; expected {write.record}"
            return write.call.message, why
    meant_records = {
        write.action.name: write.record for write in behavior.expected_writes if write.match is Match.MISSING
    }
    for call in behavior.writes:
        if call.has_failed and meant_records.get(call.name, call.record) != call.record:
            return call.message, f"{call.name} tried on {call.record}; expected {meant_records[call.name]}"
    return None


def _find_unsafe_write_path(behavior: Behavior) -> FailureEvidence:
    write_messages = {call.message for call in behavior.writes}
    for finding in behavior.findings:
        if finding.message in write_messages:
            return finding.message, f"{finding.invariant.value}: {finding.why}"
    for call in behavior.unexpected_writes:
        return call.message, f"{call.name} on {call.record} was not requested"
    return None


def _find_max_step_loop(behavior: Behavior) -> FailureEvidence:
    reason = behavior.simulation.termination_reason
    if reason in _BUDGET_ENDS:
        return max(len(behavior.trace) - 1, 0), f"ended by {reason}"
    for call in behavior.repeated_calls:
        return call.message, f"{call.name} was called repeatedly"
    return None


def _find_partial_success(behavior: Behavior) -> FailureEvidence:
    exact_calls = [write.call for write in behavior.expected_writes if write.match is Match.EXACT]
    given_answers = [answer.message for answer in behavior.required_answers if answer.message is not None]
    messages = [*given_answers[-1:], *(call.message for call in exact_calls[-1:] if call is not None)]
    step_count = len(behavior.expected_writes) + len(behavior.required_answers)
    return (
        (messages[-1], f"{len(exact_calls) + len(given_answers)} of {step_count} steps are right")
        if messages
        else None
    )


def _find_cancelled_order_tracking(behavior: Behavior) -> FailureEvidence:
    for call in behavior.writes:
        if (status := last_known_status(behavior, call)).startswith("cancel"):
            return call.message, f"{call.name} on {call.record}, which was {status!r}"
    return None


def _find_account_address_inference(behavior: Behavior) -> FailureEvidence:
    observation = account_address_inference(behavior)
    return (observation.message, observation.why) if observation.presence is Presence.LACKING else None


FAILURE_KINDS: Mapping[str, tuple[Callable[[Behavior], FailureEvidence], str]] = {
    "under_inspection": (_find_under_inspection, "A record that the expert reads was never read."),
    "cross_order_ambiguity": (
        _find_cross_order_ambiguity,
        "A change was made or tried on a different record from the intended one.",
    ),
    "unsafe_write_path": (
        _find_unsafe_write_path,
        "A change was unrequested or broke an invariant (identity, consent, eligibility, read before write).",
    ),
    "max_step_loop": (
        _find_max_step_loop,
        "A budget ended the simulation, or the same call was made three times or more.",
    ),
    "partial_success": (
        _find_partial_success,
        "Some of the requested steps were done correctly, but not all.",
    ),
    "cancelled_order_tracking": (
        _find_cancelled_order_tracking,
        "The agent worked on an order that it knew, or could have known, to be cancelled.",
    ),
    "account_address_inference": (
        _find_account_address_inference,
        "An address in the records was not used, or a different one was used.",
    ),
}
"""Kinds of failure by name, each with a description and the function that finds it in a failed trace."""


def count_failure_kinds(behaviors: Sequence[Behavior]) -> tuple[list[FailureKind], set[str]]:
    """Count the kinds of failure among failed traces.

    Returns:
        The kinds, the most frequent first, and the ids of the traces that a kind explains. `partial_success`
        explains no trace, because it does not show the cause of the failure.
    """
    failed = [behavior for behavior in behaviors if not behavior.passed]
    kinds, explained = [], set()
    for name, (find_evidence, description) in FAILURE_KINDS.items():
        examples = [
            behavior.to_example(*evidence)
            for behavior in failed
            if (evidence := find_evidence(behavior)) is not None
        ]
        if name != "partial_success":
            explained |= {example.trace for example in examples}
        kinds.append(
            FailureKind(
                name=name,
                description=description,
                count=len(examples),
                share=len(examples) / len(failed) if failed else None,
                examples=tuple(examples[:MAX_EXAMPLES]),
            )
        )
    return sorted(kinds, key=lambda kind: (-kind.count, kind.name)), explained
