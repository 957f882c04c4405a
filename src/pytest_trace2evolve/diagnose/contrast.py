"""The contrast of failures and successes: how much more often a capability is lacking where a task failed.

Which capabilities count as missing.

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

RATED = (Presence.PRESENT, Presence.LACKING)
"""The labels that enter a rate."""


def check_partition(run: LabelRun, outcomes: Sequence[Outcome], capabilities: Sequence[str]) -> None:
    """Every trace must have exactly one label of every capability.

    Raises:
        LabelError: one is missing, occurs twice, or is of something else; names the run and the first.
    """
    wanted = {(one.trace, name) for one in outcomes for name in capabilities}
    found = Counter((label.trace, label.capability) for label in run.labels)
    where = f"run {run.run} of the labeller"
    mend = "its labels do not partition the traces, and none of them counts"
    for (trace, name), count in found.items():
        if (trace, name) not in wanted:
            raise LabelError(f"{where}: labels {name!r} of trace {trace!r}, which nobody asked for; {mend}")
        if count > 1:
            raise LabelError(f"{where}: labels {name!r} of trace {trace!r} {count} times; {mend}")
    if missing := next((pair for pair in sorted(wanted) if pair not in found), None):
        raise LabelError(f"{where}: has no label {missing[1]!r} of trace {missing[0]!r}; {mend}")


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
    rated = sum(counts[one] for one in RATED)
    return counts[Presence.LACKING] / rated if rated else None


def clusters(
    runs: Sequence[Mapping[str, Presence]], outcomes: Sequence[Outcome], *, passed: bool
) -> list[Cluster]:
    """The failed or passed traces by task, averaged over runs."""
    lacking: Counter[str] = Counter()
    shown: Counter[str] = Counter()
    for one in outcomes:
        if one.passed is not passed:
            continue
        for labels in runs:
            shown[one.task] += labels[one.trace] in RATED
            lacking[one.task] += labels[one.trace] is Presence.LACKING
    count = len(runs)
    return [Cluster(lacking[task] / count, shown[task] / count) for task in sorted(shown)]


def by_capability(run: LabelRun) -> dict[str, dict[str, Presence]]:
    """A run's labels by capability and trace."""
    found: dict[str, dict[str, Presence]] = {}
    for label in run.labels:
        found.setdefault(label.capability, {})[label.trace] = label.presence
    return found


EXAMPLES_MOST = 8
"""Failures that are shown of a capability."""


@dataclass(frozen=True)
class Thresholds:
    """When a capability counts as missing.

    Attributes:
        coverage: ρ, the least share of failures that lack it.
        delta: δ, the least contrast.
        runs: The least share of runs in which both are reached.
    """

    coverage: float = 0.10
    delta: float = 0.20
    runs: float = 0.8

    def least_runs(self, runs: int) -> int:
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
    """Hold failures against successes, capability by capability; the selected ones first, then by Δ.

    Args:
        capabilities: What was labelled.
        runs: The labels, one or more runs.
        outcomes: The traces.
        thresholds: When one counts as missing.

    Raises:
        LabelError: a run does not partition the traces.
    """
    names = [one.name for one in capabilities]
    for run in runs:
        check_partition(run, outcomes, names)
    labelled = [by_capability(run) for run in runs]
    contrasts = {
        name: tuple(contrast(labels.get(name, {}), outcomes) for labels in labelled) for name in names
    }
    compared = sum(any(one.delta is not None for one in found) for found in contrasts.values())
    assessed = []
    for capability in capabilities:
        own = [labels.get(capability.name, {}) for labels in labelled]
        interval = difference_interval(
            clusters(own, outcomes, passed=False), clusters(own, outcomes, passed=True), comparisons=compared
        )
        examples = _examples(capability.name, runs, outcomes)
        assessed.append(_assessment(capability, contrasts[capability.name], interval, thresholds, examples))
    return sorted(assessed, key=lambda one: (not one.selected, -_or_least(one.delta), one.name))


def _assessment(
    capability: Capability,
    found: tuple[Contrast, ...],
    interval: tuple[float, float] | None,
    thresholds: Thresholds,
    examples: tuple[Shown, ...],
) -> Assessment:
    coverage = [one.coverage for one in found if one.coverage is not None]
    delta = [one.delta for one in found if one.delta is not None]
    passed = sum(map(thresholds.reached, found))
    low, high = interval or (None, None)
    reason = _why_not(found, passed, thresholds, low)
    return Assessment(
        name=capability.name,
        description=capability.description,
        merged=capability.merged,
        coverage=_mean(coverage),
        error_rate_failed=_mean([one.error_rate_failed for one in found]),
        error_rate_passed=_mean([one.error_rate_passed for one in found]),
        delta=_mean(delta),
        coverage_std=_std(coverage),
        delta_std=_std(delta),
        delta_low=low,
        delta_high=high,
        runs_passed=passed,
        selected=not reason,
        reason=reason,
        examples=examples,
        lost=sum(one.lost for one in found),
        by_run=found,
    )


def _why_not(found: Sequence[Contrast], passed: int, thresholds: Thresholds, low: float | None) -> str:
    """Why a capability is not selected; empty where it is."""
    if all(one.coverage is None for one in found):
        return "nothing failed"
    if all(one.error_rate_failed is None for one in found):
        return "no failed trace calls for it"
    if all(one.error_rate_passed is None for one in found):
        return "no passed trace calls for it: there is nothing to hold the failures against"
    least = thresholds.least_runs(len(found))
    if passed < least:
        short = [
            name
            for name, value, threshold in (
                ("coverage", _mean([one.coverage for one in found]), thresholds.coverage),
                ("Δ", _mean([one.delta for one in found]), thresholds.delta),
            )
            if value is not None and value < threshold
        ]
        runs = f"reached in {passed} of {len(found)} runs, {least} are needed" if len(found) > 1 else ""
        below = " and ".join(
            f"{name} is below {thresholds.coverage if name == 'coverage' else thresholds.delta:.2f}"
            for name in short
        )
        return "; ".join(part for part in (below, runs) if part)
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
                shown = Shown(
                    trace=one.trace,
                    run=one.run,
                    task=one.task,
                    trial=one.trial,
                    message=label.message,
                    why=label.why,
                )
                found.setdefault(label.trace, []).append(shown)
    agreed = sorted(found.values(), key=len, reverse=True)
    return tuple(shown[0] for shown in agreed[:EXAMPLES_MOST])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _std(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def _or_least(delta: float | None) -> float:
    return -2.0 if delta is None else delta
