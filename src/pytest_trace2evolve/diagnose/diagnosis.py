"""From traces to a report: label, contrast, select, and name what is left unexplained.

Which capabilities the failures of a run lack: what there is to train.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trace2evolve.diagnose.behavior_features import Conduct
from pytest_trace2evolve.diagnose.capabilities import BUILT_IN
from pytest_trace2evolve.diagnose.contrast import STANDARD, Thresholds, assess
from pytest_trace2evolve.diagnose.labels import label_by_rules
from pytest_trace2evolve.diagnose.taxonomy import taxonomy
from pytest_trace2evolve.diagnose.traces import Gathered, gather
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.capability import (
    Capability,
    CapabilityReport,
    LabelRun,
    Outcome,
    Presence,
    Shown,
)
from pytest_trace2evolve.records.improvement import Missing

if TYPE_CHECKING:
    from pytest_trace2evolve.environments.registry import Environments

RULES = "rules"
"""The labeller that needs no model."""


@dataclass(frozen=True)
class Labelled:
    """What a labeller gave.

    Attributes:
        labeller: Its name.
        capabilities: What it labelled.
        runs: Its runs.
        notes: What needs saying of it.
    """

    labeller: str
    capabilities: Sequence[Capability]
    runs: Sequence[LabelRun]
    notes: tuple[str, ...] = field(default=())


def by_rules(gathered: Gathered, runs: int = 1) -> Labelled:
    """Labels by rules; however many runs are asked for, they are one."""
    notes = (
        (f"{runs} runs of the rules are one run: they agree with themselves, which is no stability",)
        if runs > 1
        else ()
    )
    return Labelled(RULES, BUILT_IN, [label_by_rules(gathered.conducts)], notes)


def report(
    gathered: Gathered,
    labelled: Labelled,
    thresholds: Thresholds = STANDARD,
) -> CapabilityReport:
    """Hold failures against successes.

    Raises:
        LabelError: a run's labels do not partition the traces.
    """
    outcomes = gathered.outcomes
    assessed = assess(labelled.capabilities, labelled.runs, outcomes, thresholds)
    kinds, named = taxonomy(gathered.conducts)
    return CapabilityReport(
        labeller=labelled.labeller,
        runs=len(labelled.runs),
        traces=len(outcomes),
        failed=sum(not one.passed for one in outcomes),
        capabilities=tuple(assessed),
        labels=tuple(labelled.runs),
        taxonomy=tuple(kinds),
        unexplained=tuple(_unexplained(gathered.conducts, labelled.runs, outcomes, named)),
        notes=(*gathered.notes, *labelled.notes),
    )


def _unexplained(
    conducts: Sequence[Conduct], runs: Sequence[LabelRun], outcomes: Sequence[Outcome], named: set[str]
) -> list[Shown]:
    """Failures that lack no capability in the first run, and are of no kind."""
    lacking = {label.trace for run in runs[:1] for label in run.labels if label.presence is Presence.LACKING}
    ends = {one.simulation.id: one for one in conducts}
    return [
        Shown(
            trace=one.trace,
            run=one.run,
            task=one.task,
            trial=one.trial,
            message=ends[one.trace].last_word if ends[one.trace].trace else None,
            why=f"ended by {ends[one.trace].simulation.termination_reason}",
        )
        for one in outcomes
        if not one.passed and one.trace not in lacking | named
    ]


@dataclass(frozen=True)
class Learnt:
    """What a run's failures say.

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


def missing_of(project: Project, run: str, here: Path, environments: "Environments") -> Learnt:
    """What the failures of a run lack, by rules, on the tasks that may be learnt from.

    Raises:
        ConfigError: the run is unknown or empty, no environment has the tools of its world, nothing failed,
            or nothing that can be named is missing.
        ResultsError: a file cannot be read.
    """
    worlds = project.open_worlds()
    gathered = gather([run], worlds, project=project, here=here, check_world=environments.require_tools_of)
    found = report(gathered, by_rules(gathered))
    if not found.failed:
        raise ConfigError(
            f"run {run}: none of its {found.traces} traces that may be learnt from failed: there is nothing "
            "to learn"
        )
    selected = tuple(
        Missing(name=one.name, delta=one.delta, coverage=one.coverage)
        for one in found.capabilities
        if one.selected
    )
    if not selected:
        raise ConfigError(
            f"run {run}: {found.failed} of {found.traces} traces failed, and no capability is missing in "
            "them by contrast; see trace2evolve capabilities, or name one to train (trace2evolve train)"
        )
    runs = tuple(dict.fromkeys(one.run for one in gathered.conducts))
    read = {one.task.id for one in gathered.conducts}
    splits = {
        f"{suite}::{split}" for task, held in gathered.splits.items() if task in read for suite, split in held
    }
    known = environments.with_tools_of(gathered.ran_in)
    return Learnt(selected, runs, tuple(sorted(splits)), found.failed, found.traces, known)
