"""From traces to a report: label, contrast, select, and name what is left unexplained."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_trace2evolve.capabilities.conduct import Conduct
from pytest_trace2evolve.capabilities.dictionary import BUILT_IN
from pytest_trace2evolve.capabilities.rules import label_by_rules
from pytest_trace2evolve.capabilities.select import STANDARD, Thresholds, assess
from pytest_trace2evolve.capabilities.taxonomy import taxonomy
from pytest_trace2evolve.records.capability import (
    Capability,
    CapabilityReport,
    LabelRun,
    Outcome,
    Presence,
    Shown,
)
from pytest_trace2evolve.workflow.capabilities.gather import Gathered

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
