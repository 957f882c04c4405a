"""Laws of the contrast: order does not matter, an interval holds its estimate, more comparisons widen it."""

import random

from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.diagnose.contrast import assess, contrast
from pytest_trace2evolve.gate.intervals import Cluster, difference_interval
from pytest_trace2evolve.records.capability import Capability, Label, LabelRun, Outcome, Presence

ROWS = st.lists(
    st.tuples(st.booleans(), st.sampled_from(list(Presence)), st.integers(0, 5)), min_size=1, max_size=30
)
CLUSTER = st.integers(1, 5).flatmap(lambda n: st.builds(Cluster, st.integers(0, n), st.just(n)))
CLUSTERS = st.lists(CLUSTER, min_size=1, max_size=20)


def of(rows: list[tuple[bool, Presence, int]]) -> tuple[dict[str, Presence], list[Outcome]]:
    labels = {f"t{place}": presence for place, (_, presence, _) in enumerate(rows)}
    outcomes = [
        Outcome(trace=f"t{place}", task=f"task{task}", passed=passed)
        for place, (passed, _, task) in enumerate(rows)
    ]
    return labels, outcomes


@given(ROWS)
def test_shares_are_shares_and_delta_is_their_difference(rows: list[tuple[bool, Presence, int]]) -> None:
    found = contrast(*of(rows))
    for share in (found.coverage, found.error_rate_failed, found.error_rate_passed):
        assert share is None or 0 <= share <= 1
    if found.error_rate_failed is None or found.error_rate_passed is None:
        assert found.delta is None
    else:
        assert found.delta == found.error_rate_failed - found.error_rate_passed


@given(ROWS)
def test_outcomes_exchanged_turn_delta_round(rows: list[tuple[bool, Presence, int]]) -> None:
    labels, outcomes = of(rows)
    turned = [one.model_copy(update={"passed": not one.passed}) for one in outcomes]
    found, other = contrast(labels, outcomes), contrast(labels, turned)
    assert (found.error_rate_failed, found.error_rate_passed) == (
        other.error_rate_passed,
        other.error_rate_failed,
    )
    assert found.delta is None or found.delta == -(other.delta or 0.0)


@given(ROWS, st.integers())
def test_the_order_of_traces_and_labels_does_not_matter(
    rows: list[tuple[bool, Presence, int]], seed: int
) -> None:
    labels, outcomes = of(rows)
    listed = [Label(trace=trace, capability="skill", presence=presence) for trace, presence in labels.items()]
    mixed, shuffled = list(listed), list(outcomes)
    random.Random(seed).shuffle(mixed)
    random.Random(seed + 1).shuffle(shuffled)
    skill = [Capability(name="skill", description="")]
    [one] = assess(skill, [LabelRun(run=1, labels=tuple(listed))], outcomes)
    [other] = assess(skill, [LabelRun(run=1, labels=tuple(mixed))], shuffled)
    assert one.model_dump(exclude={"examples"}) == other.model_dump(exclude={"examples"})


@given(CLUSTERS, CLUSTERS, st.integers(1, 12))
def test_an_interval_holds_its_estimate_and_widens_with_comparisons(
    first: list[Cluster], second: list[Cluster], comparisons: int
) -> None:
    one = difference_interval(first, second)
    more = difference_interval(first, second, comparisons=comparisons)
    assert one is not None
    assert more is not None
    estimate = _share(first) - _share(second)
    assert -1 <= more[0] <= one[0] <= estimate + 1e-12
    assert estimate - 1e-12 <= one[1] <= more[1] <= 1


@given(CLUSTERS, CLUSTERS)
def test_sides_exchanged_turn_the_interval_round(first: list[Cluster], second: list[Cluster]) -> None:
    one, other = difference_interval(first, second), difference_interval(second, first)
    assert one is not None
    assert other is not None
    assert abs(one[0] + other[1]) < 1e-12
    assert abs(one[1] + other[0]) < 1e-12


BOOLEANS = st.lists(st.booleans(), min_size=2, max_size=30)


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
    return sum(one.lacking for one in clusters) / sum(one.shown for one in clusters)
