"""The contrast of failures and successes: how much more often a capability is lacking if a task failed.

Thresholds alone would select, from 20 failed and 20 passed traces, a capability that is not missing in 30 to
70 % of draws. So Δ's interval must lie above 0 too, at a level at which the intervals of all capabilities
hold together: of several that are not missing, each is another chance to look missing.
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
    LabelRun,
    Outcome,
    Presence,
    Shown,
)

MAX_EXAMPLES = 8
"""Failures that are shown of a capability."""

_RATED = (Presence.PRESENT, Presence.LACKING)
"""The labels that enter a rate."""


@dataclass(frozen=True)
class Thresholds:
    """When a capability counts as missing.

    Attributes:
        coverage: ρ, the smallest share of failures that lack it.
        delta: δ, the smallest contrast.
        runs: The smallest share of runs in which both are reached.
    """

    coverage: float = 0.10
    delta: float = 0.20
    runs: float = 0.8

    def min_runs(self, runs: int) -> int:
        """K of N runs."""
        return math.ceil(self.runs * runs - 1e-9)

    def reached(self, found: Contrast) -> bool:
        """Whether one run reaches both."""
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
    """Compare failures with successes, one capability at a time; the selected ones first, then by Δ.

    Args:
        capabilities: What was labelled.
        runs: The labels, one or more runs.
        outcomes: The traces.
        thresholds: When a capability counts as missing.

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
    compared = sum(any(one.delta is not None for one in found) for found in contrasts.values())
    assessed = []
    for capability in capabilities:
        own = [labels[capability.name] for labels in labelled]
        failed, passed = (
            _clusters(own, [one for one in outcomes if one.passed is side]) for side in (False, True)
        )
        assessed.append(
            _assessment(
                capability,
                contrasts[capability.name],
                difference_interval(failed, passed, comparisons=compared),
                thresholds,
                _examples(capability.name, runs, outcomes),
            )
        )
    return sorted(assessed, key=lambda one: (not one.selected, -_or_lowest(one.delta), one.name))


def _check_partition(run: LabelRun, outcomes: Sequence[Outcome], capabilities: Sequence[str]) -> None:
    """Require exactly one label of every capability for each trace."""
    expected = {(one.trace, name) for one in outcomes for name in capabilities}
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
    """One capability in one run.

    coverage = lacking∧failed / failed; ER⁻ = lacking∧failed / (lacking+present)∧failed; ER⁺ the same among
    passed traces; Δ = ER⁻ − ER⁺ (TRACE, arXiv 2604.05336). An empty denominator is not measured.

    Args:
        labels: By trace.
        outcomes: All traces of the run.
    """
    failed = Counter(labels[one.trace] for one in outcomes if not one.passed)
    passed = Counter(labels[one.trace] for one in outcomes if one.passed)
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
    """Traces by task, averaged over runs."""
    lacking: Counter[str] = Counter()
    shown: Counter[str] = Counter()
    for one in outcomes:
        for labels in runs:
            shown[one.task] += labels[one.trace] in _RATED
            lacking[one.task] += labels[one.trace] is Presence.LACKING
    return [Cluster(lacking[task] / len(runs), shown[task] / len(runs)) for task in sorted(shown)]


def _assessment(
    capability: Capability,
    found: tuple[Contrast, ...],
    interval: tuple[float, float] | None,
    thresholds: Thresholds,
    examples: tuple[Shown, ...],
) -> Assessment:
    coverage = [one.coverage for one in found if one.coverage is not None]
    delta = [one.delta for one in found if one.delta is not None]
    low, high = interval or (None, None)
    reason = _why_not(found, thresholds, low)
    return Assessment(
        name=capability.name,
        description=capability.description,
        merged=capability.merged,
        coverage=_mean(coverage),
        error_rate_failed=_mean([one.error_rate_failed for one in found]),
        error_rate_passed=_mean([one.error_rate_passed for one in found]),
        delta=_mean(delta),
        coverage_std=statistics.stdev(coverage) if len(coverage) > 1 else None,
        delta_std=statistics.stdev(delta) if len(delta) > 1 else None,
        delta_low=low,
        delta_high=high,
        runs_passed=sum(map(thresholds.reached, found)),
        selected=not reason,
        reason=reason,
        examples=examples,
        lost=sum(one.lost for one in found),
        by_run=found,
    )


def _why_not(found: Sequence[Contrast], thresholds: Thresholds, low: float | None) -> str:
    """Why a capability is not selected; empty if it is."""
    if all(one.coverage is None for one in found):
        return "nothing failed"
    if all(one.error_rate_failed is None for one in found):
        return "no failed trace calls for it"
    if all(one.error_rate_passed is None for one in found):
        return "no passed trace calls for it: there is nothing to compare the failures with"
    passed, least = sum(map(thresholds.reached, found)), thresholds.min_runs(len(found))
    if passed < least:
        means = (
            ("coverage", _mean([one.coverage for one in found]), thresholds.coverage),
            ("Δ", _mean([one.delta for one in found]), thresholds.delta),
        )
        below = " and ".join(
            f"{name} is below {threshold:.2f}"
            for name, value, threshold in means
            if value is not None and value < threshold
        )
        runs = f"reached in {passed} of {len(found)} runs, {least} are needed" if len(found) > 1 else ""
        return "; ".join(filter(None, (below, runs)))
    if low is None or low <= 0:
        return "Δ's interval holds 0: it may be chance"
    return ""


def _examples(name: str, runs: Sequence[LabelRun], outcomes: Sequence[Outcome]) -> tuple[Shown, ...]:
    """Failures that lack it, those first that most runs agree on."""
    failed = {one.trace: one for one in outcomes if not one.passed}
    found: dict[str, list[Shown]] = {}
    for run in runs:
        for label in run.labels:
            one = failed.get(label.trace)
            if label.capability == name and label.presence is Presence.LACKING and one is not None:
                shown = Shown(**one.model_dump(exclude={"passed"}), message=label.message, why=label.why)
                found.setdefault(label.trace, []).append(shown)
    agreed = sorted(found.values(), key=len, reverse=True)
    return tuple(shown[0] for shown in agreed[:MAX_EXAMPLES])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _or_lowest(delta: float | None) -> float:
    return -2.0 if delta is None else delta
