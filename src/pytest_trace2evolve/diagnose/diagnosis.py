"""From traces to a report: which capabilities the failures of a run lack, and what is left unexplained."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pytest_trace2evolve.diagnose.contrast import STANDARD, Thresholds, assess
from pytest_trace2evolve.diagnose.labels import label_by_rules
from pytest_trace2evolve.diagnose.taxonomy import taxonomy
from pytest_trace2evolve.diagnose.traces import TraceSet, gather
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.capability import (
    BUILT_IN_CAPABILITIES,
    Capability,
    CapabilityReport,
    LabelRun,
    Presence,
)
from pytest_trace2evolve.records.improvement import Missing
from pytest_trace2evolve.worlds.registry import WorldName

RULES = "rules"
"""The labeller that needs no model."""


@dataclass(frozen=True)
class LabelSet:
    """The labels of a labeller.

    Attributes:
        labeller: Its name.
        capabilities: The capabilities that it labelled.
        runs: Its runs.
        notes: Remarks for the report.
    """

    labeller: str
    capabilities: Sequence[Capability]
    runs: Sequence[LabelRun]
    notes: tuple[str, ...] = field(default=())


def by_rules(traces: TraceSet, runs: int = 1) -> LabelSet:
    """Labels by rules; however many runs are asked for, they are one."""
    note = f"{runs} runs of the rules are one run: they agree with themselves, which is no stability"
    labels = label_by_rules(traces.behaviors)
    return LabelSet(RULES, BUILT_IN_CAPABILITIES, [labels], (note,) if runs > 1 else ())


def report(traces: TraceSet, labels: LabelSet, thresholds: Thresholds = STANDARD) -> CapabilityReport:
    """Compare failures with successes.

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
        failed=sum(not one.passed for one in outcomes),
        capabilities=tuple(assess(labels.capabilities, labels.runs, outcomes, thresholds)),
        labels=tuple(labels.runs),
        taxonomy=tuple(kinds),
        unexplained=tuple(
            one.shown(
                one.last_agent_message if one.trace else None,
                f"ended by {one.simulation.termination_reason}",
            )
            for one in traces.behaviors
            if not one.passed and one.simulation.id not in explained
        ),
        notes=(*traces.notes, *labels.notes),
    )


@dataclass(frozen=True)
class RunDiagnosis:
    """What the failures of a run lack.

    Attributes:
        missing: The capabilities that were selected, by Δ.
        runs: Ids of the runs.
        splits: The splits that were read, as `suite::split`.
        failed, traces: How many traces failed, of how many.
        environments: Names of the environments that have the tools of the run's world.
    """

    missing: tuple[Missing, ...]
    runs: tuple[str, ...]
    splits: tuple[str, ...]
    failed: int
    traces: int
    environments: tuple[str, ...]

    @property
    def trainable(self) -> tuple[Missing, ...]:
        """The missing capabilities that have an environment with the tools of the run's world.

        Raises:
            ConfigError: none has.
        """
        found = tuple(one for one in self.missing if one.name in self.environments)
        if not found:
            lacking = ", ".join(one.name for one in self.missing)
            raise ConfigError(
                f"run {', '.join(self.runs)} lacks {lacking}, and no environment with the tools of its world "
                "trains that: write one with trace2evolve environment synthesize NAME"
            )
        return found


class ToolChecks(Protocol):
    """What the registry of environments says of worlds: which environments have their tools."""

    def require_tools_of(self, what: str, world: WorldName) -> None:
        """Raise if no environment has the tools of a world."""

    def with_tools_of(self, worlds: Iterable[WorldName]) -> tuple[str, ...]:
        """Names of the environments that have the tools of all these worlds."""


def diagnose_run(project: Project, run: str, here: Path, environments: ToolChecks) -> RunDiagnosis:
    """What the failures of a run lack, by rules, on the tasks that may be learned from.

    Raises:
        ConfigError: the run is unknown or empty, no environment has the tools of its world, nothing failed,
            or nothing that can be named is missing.
        ResultsError: a file cannot be read.
    """
    worlds = project.open_worlds()
    traces = gather([run], worlds, project=project, here=here, check_world=environments.require_tools_of)
    found = report(traces, by_rules(traces))
    if not found.failed:
        raise ConfigError(
            f"run {run}: none of its {found.traces} traces that may be learnt from failed: there is nothing "
            "to learn"
        )
    missing = tuple(
        Missing(name=one.name, delta=one.delta, coverage=one.coverage)
        for one in found.capabilities
        if one.selected
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
