"""The contrast Δ is the rate of failed traces that lack a capability minus the same rate of passed traces.

With 20 failed and 20 passed traces, thresholds alone would select a capability by mistake in 30 to 70 % of
samples. So Δ's interval must also lie above 0. The intervals of all capabilities hold simultaneously, because
each capability that is not missing adds a chance of a false selection.
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_trace2evolve.errors import LabelError
from pytest_trace2evolve.gate.intervals import Cluster, difference_interval
from pytest_trace2evolve.records.capability import (
    Capability,
    CapabilityAssessment,
    Contrast,
    LabelRun,
    Presence,
    TraceExample,
    TraceOutcome,
)

MAX_EXAMPLES = 8  # failed traces shown for a capability
LOWEST_DELTA = -2.0  # below every possible Δ

_RATED_PRESENCES = (Presence.PRESENT, Presence.LACKING)
"""The labels that count in an error rate."""


@dataclass(frozen=True)
class Thresholds:
    """The minimum figures at which a capability counts as missing.

    Attributes:
        coverage: ρ, the share of failures that lack the capability.
        delta: δ, the contrast.
        runs: The share of runs that must reach both thresholds.
    """

    coverage: float = 0.10
    delta: float = 0.20
    runs: float = 0.8

    def min_runs(self, runs: int) -> int:
        """The number of runs, out of `runs`, that must reach both thresholds."""
        return math.ceil(self.runs * runs - 1e-9)

    def are_reached_by(self, run_contrast: Contrast) -> bool:
        """Whether the contrast of one run reaches both thresholds."""
        if run_contrast.coverage is None or run_contrast.delta is None:
            return False
        return run_contrast.coverage >= self.coverage and run_contrast.delta >= self.delta


TRACE_THRESHOLDS = Thresholds()
"""TRACE's thresholds."""


def assess_capabilities(
    capabilities: Sequence[Capability],
    runs: Sequence[LabelRun],
    outcomes: Sequence[TraceOutcome],
    thresholds: Thresholds = TRACE_THRESHOLDS,
) -> list[CapabilityAssessment]:
    """Compare failures with successes for each capability.

    Selected capabilities come first. Within each group, a larger Δ comes first.

    Raises:
        LabelError: a run does not have exactly one label of every capability for each trace.
    """
    names = [capability.name for capability in capabilities]
    labels_by_run: list[dict[str, dict[str, Presence]]] = []
    for run in runs:
        _check_partition(run, outcomes, names)
        by_capability: dict[str, dict[str, Presence]] = {name: {} for name in names}
        for label in run.labels:
            by_capability[label.capability][label.trace] = label.presence
        labels_by_run.append(by_capability)
    contrasts = {
        name: tuple(compute_contrast(labels[name], outcomes) for labels in labels_by_run) for name in names
    }
    comparison_count = sum(any(run.delta is not None for run in by_run) for by_run in contrasts.values())
    assessments = []
    for capability in capabilities:
        capability_labels = [labels[capability.name] for labels in labels_by_run]
        failed, passed = (
            _clusters(capability_labels, [outcome for outcome in outcomes if outcome.passed is has_passed])
            for has_passed in (False, True)
        )
        interval = difference_interval(failed, passed, comparisons=comparison_count)
        examples = _failure_examples(capability.name, runs, outcomes)
        assessments.append(
            _make_assessment(capability, contrasts[capability.name], interval, thresholds, examples)
        )

    def rank(assessment: CapabilityAssessment) -> tuple[bool, float, str]:
        delta = LOWEST_DELTA if assessment.delta is None else assessment.delta
        return not assessment.selected, -delta, assessment.name

    return sorted(assessments, key=rank)


def _check_partition(
    run: LabelRun, outcomes: Sequence[TraceOutcome], capability_names: Sequence[str]
) -> None:
    """Require exactly one label of every capability for each trace."""
    expected = {(outcome.trace, name) for outcome in outcomes for name in capability_names}
    label_counts = Counter((label.trace, label.capability) for label in run.labels)
    subject = f"run {run.run} of the labeller"
    advice = "a run needs exactly one label per capability and trace, so this run cannot be used"
    for (trace, name), count in label_counts.items():
        if (trace, name) not in expected:
            raise LabelError(f"{subject}: unexpected label {name!r} of trace {trace!r}; {advice}")
        if count > 1:
            raise LabelError(f"{subject}: {count} labels {name!r} of trace {trace!r}; {advice}")
    if missing_pair := next((pair for pair in sorted(expected) if pair not in label_counts), None):
        raise LabelError(f"{subject}: no label {missing_pair[1]!r} of trace {missing_pair[0]!r}; {advice}")


def compute_contrast(labels: Mapping[str, Presence], outcomes: Sequence[TraceOutcome]) -> Contrast:
    """Compute the contrast of one capability in one run.

    coverage = lacking∧failed / failed; ER⁻ = lacking∧failed / (lacking+present)∧failed; ER⁺ is the same rate
    among passed traces; Δ = ER⁻ − ER⁺ (TRACE, arXiv 2604.05336). A figure with an empty denominator is None.
    `labels` maps the id of each trace to its label.
    """
    failed = Counter(labels[outcome.trace] for outcome in outcomes if not outcome.passed)
    passed = Counter(labels[outcome.trace] for outcome in outcomes if outcome.passed)
    rate_failed, rate_passed = _rate(failed), _rate(passed)
    return Contrast(
        coverage=failed[Presence.LACKING] / failed.total() if failed.total() else None,
        error_rate_failed=rate_failed,
        error_rate_passed=rate_passed,
        delta=None if rate_failed is None or rate_passed is None else rate_failed - rate_passed,
        lost=failed[Presence.LOST] + passed[Presence.LOST],
    )


def _rate(counts: Counter[Presence]) -> float | None:
    rated = sum(counts[presence] for presence in _RATED_PRESENCES)
    return counts[Presence.LACKING] / rated if rated else None


def _clusters(
    labels_by_run: Sequence[Mapping[str, Presence]], outcomes: Sequence[TraceOutcome]
) -> list[Cluster]:
    """One cluster per task: its numbers of lacking and rated traces, averaged over the runs."""
    lacking: Counter[str] = Counter()
    rated: Counter[str] = Counter()
    for outcome in outcomes:
        for labels in labels_by_run:
            rated[outcome.task] += labels[outcome.trace] in _RATED_PRESENCES
            lacking[outcome.task] += labels[outcome.trace] is Presence.LACKING
    return [
        Cluster(lacking[task] / len(labels_by_run), rated[task] / len(labels_by_run))
        for task in sorted(rated)
    ]


def _make_assessment(
    capability: Capability,
    by_run: tuple[Contrast, ...],
    interval: tuple[float, float] | None,
    thresholds: Thresholds,
    examples: tuple[TraceExample, ...],
) -> CapabilityAssessment:
    coverages = [run.coverage for run in by_run if run.coverage is not None]
    deltas = [run.delta for run in by_run if run.delta is not None]
    low, high = interval or (None, None)
    reason = _rejection_reason(by_run, thresholds, low)
    return CapabilityAssessment(
        name=capability.name,
        description=capability.description,
        merged=capability.merged,
        coverage=_mean(coverages),
        error_rate_failed=_mean([run.error_rate_failed for run in by_run]),
        error_rate_passed=_mean([run.error_rate_passed for run in by_run]),
        delta=_mean(deltas),
        coverage_std=statistics.stdev(coverages) if len(coverages) > 1 else None,
        delta_std=statistics.stdev(deltas) if len(deltas) > 1 else None,
        delta_low=low,
        delta_high=high,
        runs_passed=sum(map(thresholds.are_reached_by, by_run)),
        selected=not reason,
        reason=reason,
        examples=examples,
        lost=sum(run.lost for run in by_run),
        by_run=by_run,
    )


def _rejection_reason(by_run: Sequence[Contrast], thresholds: Thresholds, low: float | None) -> str:
    """The reason why a capability is not selected; empty if it is selected."""
    if all(run.coverage is None for run in by_run):
        return "nothing failed"
    if all(run.error_rate_failed is None for run in by_run):
        return "no failed trace requires it"
    if all(run.error_rate_passed is None for run in by_run):
        return "no passed trace requires it, so there is nothing to compare the failures with"
    reached_count, min_runs = sum(map(thresholds.are_reached_by, by_run)), thresholds.min_runs(len(by_run))
    if reached_count < min_runs:
        reasons = []
        coverage, delta = _mean([run.coverage for run in by_run]), _mean([run.delta for run in by_run])
        if coverage is not None and coverage < thresholds.coverage:
            reasons.append(f"coverage is below {thresholds.coverage:.2f}")
        if delta is not None and delta < thresholds.delta:
            reasons.append(f"Δ is below {thresholds.delta:.2f}")
        shortfalls = " and ".join(reasons)
        runs_text = (
            f"reached in {reached_count} of {len(by_run)} runs, but {min_runs} are needed"
            if len(by_run) > 1
            else ""
        )
        return "; ".join(filter(None, (shortfalls, runs_text)))
    if low is None or low <= 0:
        return "Δ's interval includes 0, so the difference may be chance"
    return ""


def _failure_examples(
    name: str, runs: Sequence[LabelRun], outcomes: Sequence[TraceOutcome]
) -> tuple[TraceExample, ...]:
    """Examples of failures that lack a capability; the failures that most runs label so come first."""
    failures = {outcome.trace: outcome for outcome in outcomes if not outcome.passed}
    examples_by_trace: dict[str, list[TraceExample]] = {}
    for run in runs:
        for label in run.labels:
            outcome = failures.get(label.trace)
            if label.capability == name and label.presence is Presence.LACKING and outcome is not None:
                example = TraceExample(
                    **outcome.model_dump(exclude={"passed"}), message=label.message, why=label.why
                )
                examples_by_trace.setdefault(label.trace, []).append(example)
    sorted_examples = sorted(examples_by_trace.values(), key=len, reverse=True)
    return tuple(trace_examples[0] for trace_examples in sorted_examples[:MAX_EXAMPLES])


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return statistics.fmean(numbers) if numbers else None
