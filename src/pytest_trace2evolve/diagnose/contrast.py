"""The contrast Δ: the rate of failed traces that lack a capability, minus the rate of passed traces.

With 20 failed and 20 passed traces, thresholds alone would select a capability that is not missing in 30 to
70 % of draws. So Δ's interval must also lie above 0. The intervals of all capabilities hold simultaneously,
because each capability that is not missing adds a chance of a false selection.
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_trace2evolve.errors import LabelError
from pytest_trace2evolve.gate.intervals import Cluster, difference_interval
from pytest_trace2evolve.records.capability import (
    Assessment,
    Capability,
    Contrast,
    Example,
    LabelRun,
    Outcome,
    Presence,
)

MAX_EXAMPLES = 8  # failures shown for a capability
LOWEST_DELTA = -2.0  # below every measured Δ

_RATED = (Presence.PRESENT, Presence.LACKING)
"""The labels that enter a rate."""


@dataclass(frozen=True)
class Thresholds:
    """Minima at which a capability counts as missing.

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

    def reached(self, found: Contrast) -> bool:
        """Whether the contrast of one run reaches both thresholds."""
        if found.coverage is None or found.delta is None:
            return False
        return found.coverage >= self.coverage and found.delta >= self.delta


STANDARD = Thresholds()
"""TRACE's thresholds."""


def assess(
    capabilities: Sequence[Capability],
    runs: Sequence[LabelRun],
    outcomes: Sequence[Outcome],
    thresholds: Thresholds = STANDARD,
) -> list[Assessment]:
    """Compare failures with successes for each capability; sort by selection, then by falling Δ.

    Raises:
        LabelError: a run does not have exactly one label of every capability for each trace.
    """
    names = [capability.name for capability in capabilities]
    labelled: list[dict[str, dict[str, Presence]]] = []
    for run in runs:
        _check_partition(run, outcomes, names)
        by_capability: dict[str, dict[str, Presence]] = {name: {} for name in names}
        for label in run.labels:
            by_capability[label.capability][label.trace] = label.presence
        labelled.append(by_capability)
    contrasts = {name: tuple(contrast(labels[name], outcomes) for labels in labelled) for name in names}
    compared = sum(any(run.delta is not None for run in by_run) for by_run in contrasts.values())
    assessed = []
    for capability in capabilities:
        own = [labels[capability.name] for labels in labelled]
        failed, passed = (
            _clusters(own, [outcome for outcome in outcomes if outcome.passed is side])
            for side in (False, True)
        )
        interval = difference_interval(failed, passed, comparisons=compared)
        examples = _examples(capability.name, runs, outcomes)
        assessed.append(_assessment(capability, contrasts[capability.name], interval, thresholds, examples))

    def rank(assessment: Assessment) -> tuple[bool, float, str]:
        delta = LOWEST_DELTA if assessment.delta is None else assessment.delta
        return not assessment.selected, -delta, assessment.name

    return sorted(assessed, key=rank)


def _check_partition(run: LabelRun, outcomes: Sequence[Outcome], capabilities: Sequence[str]) -> None:
    """Require exactly one label of every capability for each trace."""
    expected = {(outcome.trace, name) for outcome in outcomes for name in capabilities}
    found = Counter((label.trace, label.capability) for label in run.labels)
    where = f"run {run.run} of the labeller"
    advice = "its labels do not partition the traces, and none of them counts"
    for (trace, name), count in found.items():
        if (trace, name) not in expected:
            raise LabelError(f"{where}: labels {name!r} of trace {trace!r}, which nobody asked for; {advice}")
        if count > 1:
            raise LabelError(f"{where}: labels {name!r} of trace {trace!r} {count} times; {advice}")
    if missing := next((pair for pair in sorted(expected) if pair not in found), None):
        raise LabelError(f"{where}: has no label {missing[1]!r} of trace {missing[0]!r}; {advice}")


def contrast(labels: Mapping[str, Presence], outcomes: Sequence[Outcome]) -> Contrast:
    """Compute the contrast of one capability in one run.

    coverage = lacking∧failed / failed; ER⁻ = lacking∧failed / (lacking+present)∧failed; ER⁺ is the same rate
    among passed traces; Δ = ER⁻ − ER⁺ (TRACE, arXiv 2604.05336). A figure with an empty denominator is None.
    `labels` maps traces to labels.
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
    rated = sum(counts[presence] for presence in _RATED)
    return counts[Presence.LACKING] / rated if rated else None


def _clusters(runs: Sequence[Mapping[str, Presence]], outcomes: Sequence[Outcome]) -> list[Cluster]:
    """The counts of lacking and rated traces by task, averaged over runs."""
    lacking: Counter[str] = Counter()
    shown: Counter[str] = Counter()
    for outcome in outcomes:
        for labels in runs:
            shown[outcome.task] += labels[outcome.trace] in _RATED
            lacking[outcome.task] += labels[outcome.trace] is Presence.LACKING
    return [Cluster(lacking[task] / len(runs), shown[task] / len(runs)) for task in sorted(shown)]


def _assessment(
    capability: Capability,
    by_run: tuple[Contrast, ...],
    interval: tuple[float, float] | None,
    thresholds: Thresholds,
    examples: tuple[Example, ...],
) -> Assessment:
    coverage = [run.coverage for run in by_run if run.coverage is not None]
    delta = [run.delta for run in by_run if run.delta is not None]
    low, high = interval or (None, None)
    reason = _reason_against(by_run, thresholds, low)
    return Assessment(
        name=capability.name,
        description=capability.description,
        merged=capability.merged,
        coverage=_mean(coverage),
        error_rate_failed=_mean([run.error_rate_failed for run in by_run]),
        error_rate_passed=_mean([run.error_rate_passed for run in by_run]),
        delta=_mean(delta),
        coverage_std=statistics.stdev(coverage) if len(coverage) > 1 else None,
        delta_std=statistics.stdev(delta) if len(delta) > 1 else None,
        delta_low=low,
        delta_high=high,
        runs_passed=sum(map(thresholds.reached, by_run)),
        selected=not reason,
        reason=reason,
        examples=examples,
        lost=sum(run.lost for run in by_run),
        by_run=by_run,
    )


def _reason_against(by_run: Sequence[Contrast], thresholds: Thresholds, low: float | None) -> str:
    """The reason why a capability is not selected; empty if it is selected."""
    if all(run.coverage is None for run in by_run):
        return "nothing failed"
    if all(run.error_rate_failed is None for run in by_run):
        return "no failed trace calls for it"
    if all(run.error_rate_passed is None for run in by_run):
        return "no passed trace calls for it: there is nothing to compare the failures with"
    passed, least = sum(map(thresholds.reached, by_run)), thresholds.min_runs(len(by_run))
    if passed < least:
        reasons = []
        coverage, delta = _mean([run.coverage for run in by_run]), _mean([run.delta for run in by_run])
        if coverage is not None and coverage < thresholds.coverage:
            reasons.append(f"coverage is below {thresholds.coverage:.2f}")
        if delta is not None and delta < thresholds.delta:
            reasons.append(f"Δ is below {thresholds.delta:.2f}")
        below = " and ".join(reasons)
        runs = f"reached in {passed} of {len(by_run)} runs, {least} are needed" if len(by_run) > 1 else ""
        return "; ".join(filter(None, (below, runs)))
    if low is None or low <= 0:
        return "Δ's interval holds 0: it may be chance"
    return ""


def _examples(name: str, runs: Sequence[LabelRun], outcomes: Sequence[Outcome]) -> tuple[Example, ...]:
    """Examples of failures that lack a capability; labels that most runs agree on come first."""
    failed = {outcome.trace: outcome for outcome in outcomes if not outcome.passed}
    found: dict[str, list[Example]] = {}
    for run in runs:
        for label in run.labels:
            outcome = failed.get(label.trace)
            if label.capability == name and label.presence is Presence.LACKING and outcome is not None:
                shown = Example(
                    **outcome.model_dump(exclude={"passed"}), message=label.message, why=label.why
                )
                found.setdefault(label.trace, []).append(shown)
    agreed = sorted(found.values(), key=len, reverse=True)
    return tuple(shown[0] for shown in agreed[:MAX_EXAMPLES])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
