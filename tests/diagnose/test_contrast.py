"""The contrast of failures and successes, held against figures worked out by hand."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.diagnose.contrast import Thresholds, assess_capabilities, compute_contrast
from pytest_trace2evolve.errors import LabelError
from pytest_trace2evolve.gate.intervals import Cluster, difference_interval
from pytest_trace2evolve.records.capability import (
    Capability,
    CapabilityAssessment,
    Label,
    LabelRun,
    Presence,
    TraceOutcome,
)

P, L, N, X = Presence.PRESENT, Presence.LACKING, Presence.NA, Presence.LOST
SKILL = Capability(name="skill", description="What is looked for.")

Row = tuple[bool, Presence]


def outcomes(rows: Sequence[Row], trials: int = 1) -> list[TraceOutcome]:
    return [
        TraceOutcome(trace=f"t{place}", task=f"task{place // trials}", trial=place % trials, passed=passed)
        for place, (passed, _) in enumerate(rows)
    ]


def run(rows: Sequence[Row], number: int = 1) -> LabelRun:
    labels = tuple(
        Label(
            trace=f"t{place}",
            capability="skill",
            presence=presence,
            message=3 if presence in (P, L) else None,
            why="so",
        )
        for place, (_, presence) in enumerate(rows)
    )
    return LabelRun(run=number, labels=labels)


def failed(*counts: tuple[Presence, int]) -> list[Row]:
    return [(False, presence) for presence, count in counts for _ in range(count)]


def passed(*counts: tuple[Presence, int]) -> list[Row]:
    return [(True, presence) for presence, count in counts for _ in range(count)]


def assessed(*runs: Sequence[Row], trials: int = 1) -> CapabilityAssessment:
    [found] = assess_capabilities(
        [SKILL],
        [run(rows, number) for number, rows in enumerate(runs, start=1)],
        outcomes(runs[0], trials),
    )
    return found


def test_the_worked_example() -> None:
    """70 % of failures and 16 % of successes lack it: Δ is .54."""
    found = assessed([*failed((L, 35), (P, 15)), *passed((L, 8), (P, 42))])
    assert (found.coverage, found.error_rate_failed, found.error_rate_passed) == (0.70, 0.70, 0.16)
    assert found.delta == pytest.approx(0.54)
    assert (found.selected, found.reason, found.runs_passed) == (True, "", 1)


def test_below_a_threshold_it_is_not_selected_and_the_reason_names_which() -> None:
    rare = assessed([*failed((L, 4), (N, 46)), *passed((P, 50))])
    assert (rare.selected, rare.reason) == (False, "coverage is below 0.10")
    weak = assessed([*failed((L, 45), (P, 255)), *passed((L, 2), (P, 298))])
    assert (weak.selected, weak.reason) == (False, "Δ is below 0.20")
    assert weak.delta_low is not None
    assert weak.delta_low > 0, "it is there, and small"


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda labels: labels[1:], "no label 'skill' of trace 't0'"),
        (lambda labels: [*labels, labels[0]], "2 labels 'skill' of trace 't0'"),
        (
            lambda labels: [*labels, labels[0].model_copy(update={"trace": "t9"})],
            "unexpected label 'skill' of trace 't9'",
        ),
        (
            lambda labels: [*labels, labels[0].model_copy(update={"capability": "other"})],
            "unexpected label 'other' of trace 't0'",
        ),
    ],
)
def test_labels_that_do_not_partition_the_traces_are_refused_by_name(spoil: object, expected: str) -> None:
    assert callable(spoil)
    rows = [*failed((L, 1), (P, 1)), *passed((P, 2))]
    whole = run(rows, 7)
    broken = whole.model_copy(update={"labels": tuple(spoil(list(whole.labels)))})
    with pytest.raises(LabelError) as caught:
        assess_capabilities([SKILL], [whole.model_copy(update={"run": 6}), broken], outcomes(rows))
    assert str(caught.value) == (
        f"run 7 of the labeller: {expected}; a run needs exactly one label per capability and trace, "
        "so this run cannot be used"
    )


def test_newcombes_own_figures() -> None:
    """Newcombe (1998), table II, method 10: 56/70 against 48/80 gives .0524 to .3339."""
    first = [Cluster(1, 1)] * 56 + [Cluster(0, 1)] * 14
    second = [Cluster(1, 1)] * 48 + [Cluster(0, 1)] * 32
    found = difference_interval(first, second)
    assert found is not None
    # A task a trace: the estimated design effect is n / (n - 1) over n, which changes the fourth digit.
    assert found == pytest.approx((0.0524, 0.3339), abs=0.002)


def test_min_runs() -> None:
    assert [Thresholds().min_runs(n) for n in (1, 3, 5, 10)] == [1, 3, 4, 8]


# Laws.

ROWS = st.lists(
    st.tuples(st.booleans(), st.sampled_from(list(Presence)), st.integers(0, 5)), min_size=1, max_size=30
)
CLUSTER = st.integers(1, 5).flatmap(lambda n: st.builds(Cluster, st.integers(0, n), st.just(n)))
CLUSTERS = st.lists(CLUSTER, min_size=1, max_size=20)


def of(rows: list[tuple[bool, Presence, int]]) -> tuple[dict[str, Presence], list[TraceOutcome]]:
    labels = {f"t{place}": presence for place, (_, presence, _) in enumerate(rows)}
    outcomes = [
        TraceOutcome(trace=f"t{place}", task=f"task{task}", passed=passed)
        for place, (passed, _, task) in enumerate(rows)
    ]
    return labels, outcomes


@settings(max_examples=25)
@given(ROWS, st.integers())
def test_laws_of_the_contrast(rows: list[tuple[bool, Presence, int]], seed: int) -> None:
    labels, outcomes = of(rows)
    found = compute_contrast(labels, outcomes)
    for share in (found.coverage, found.error_rate_failed, found.error_rate_passed):
        assert share is None or 0 <= share <= 1
    if found.error_rate_failed is None or found.error_rate_passed is None:
        assert found.delta is None
    else:
        assert found.delta == found.error_rate_failed - found.error_rate_passed
    # Exchanged outcomes turn Δ round.
    other = compute_contrast(
        labels, [outcome.model_copy(update={"passed": not outcome.passed}) for outcome in outcomes]
    )
    assert found.error_rate_failed == other.error_rate_passed
    assert found.delta is None or found.delta == -(other.delta or 0.0)
    # The order of traces and labels does not matter.
    listed = [Label(trace=trace, capability="skill", presence=presence) for trace, presence in labels.items()]
    mixed, shuffled = list(listed), list(outcomes)
    random.Random(seed).shuffle(mixed)
    random.Random(seed + 1).shuffle(shuffled)
    [first] = assess_capabilities([SKILL], [LabelRun(run=1, labels=tuple(listed))], outcomes)
    [second] = assess_capabilities([SKILL], [LabelRun(run=1, labels=tuple(mixed))], shuffled)
    assert first.model_dump(exclude={"examples"}) == second.model_dump(exclude={"examples"})


@settings(max_examples=25)
@given(CLUSTERS, CLUSTERS, st.integers(1, 12))
def test_laws_of_the_interval(first: list[Cluster], second: list[Cluster], comparisons: int) -> None:
    """It holds its estimate, widens with comparisons, and turns round if the sides are exchanged."""
    interval = difference_interval(first, second)
    wider = difference_interval(first, second, comparisons=comparisons)
    turned = difference_interval(second, first)
    assert interval is not None
    assert wider is not None
    assert turned is not None
    estimate = _share(first) - _share(second)
    assert -1 <= wider[0] <= interval[0] <= estimate + 1e-12
    assert estimate - 1e-12 <= interval[1] <= wider[1] <= 1
    assert interval == pytest.approx((-turned[1], -turned[0]), abs=1e-12)


BOOLEANS = st.lists(st.booleans(), min_size=2, max_size=30)


@settings(max_examples=25)
@given(BOOLEANS, BOOLEANS, st.integers(2, 4))
def test_trials_said_again_tell_nothing_new(first: list[bool], second: list[bool], times: int) -> None:
    """What is repeated word for word lies in its task's cluster: the interval stays."""
    once = [[Cluster(lacks, 1) for lacks in side] for side in (first, second)]
    again = [[Cluster(lacks * times, times) for lacks in side] for side in (first, second)]
    one, more = difference_interval(*once), difference_interval(*again)
    assert one is not None
    assert more is not None
    assert abs(one[0] - more[0]) < 1e-9
    assert abs(one[1] - more[1]) < 1e-9


def _share(clusters: list[Cluster]) -> float:
    return sum(one.lacking_count for one in clusters) / sum(one.labelled_count for one in clusters)
