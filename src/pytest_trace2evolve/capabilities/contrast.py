"""The contrast of failures and successes: how much more often a capability is lacking where a task failed."""

from collections import Counter
from collections.abc import Mapping, Sequence

from pytest_trace2evolve.capabilities.interval import Cluster
from pytest_trace2evolve.errors import LabelError
from pytest_trace2evolve.records.capability import Contrast, LabelRun, Outcome, Presence

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
