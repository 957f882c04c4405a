"""What an adapter comes to, by the gate and by what it cost elsewhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.records.adapter import AdapterManifest, AdapterState, RewardChange
from pytest_trace2evolve.records.capability import BUILT_IN_CAPABILITIES
from pytest_trace2evolve.records.verdict import Decision
from pytest_trace2evolve.session.promote import MAX_LOSS, adapter_state

PROMOTED, DISCARDED, OPEN = AdapterState.PROMOTED, AdapterState.DISCARDED, AdapterState.INCONCLUSIVE


def manifest(**changes: tuple[float, float, float]) -> AdapterManifest:
    """Trained for `own`; others with their change and its interval, from 0.5 on."""
    heldout = {
        name: RewardChange(before=0.5, after=0.5 + change, rollouts=8, low=low, high=high)
        for name, (change, low, high) in {"own": (0.3, 0.2, 0.4), **changes}.items()
    }
    return AdapterManifest(
        capability="own",
        base="tiny",
        base_digest="b",
        environments={"own": "e"},
        seed=1,
        recipe={},
        steps=1,
        rollouts=8,
        seconds=1.0,
        heldout=heldout,
    )


@pytest.mark.parametrize(
    ("gate", "other", "state", "why"),
    [
        (Decision.PROMOTE, (0.0, -0.1, 0.1), PROMOTED, ""),
        (Decision.PROMOTE, (-0.04, -0.06, -0.02), PROMOTED, ""),
        (Decision.PROMOTE, (-0.16, -0.2, -0.1), DISCARDED, "forgot other (−16.0 points)"),
        (Decision.PROMOTE, (-0.06, -0.2, 0.08), OPEN, "perhaps forgot other (−6.0 points)"),
        (Decision.INCONCLUSIVE, (-0.16, -0.2, -0.1), DISCARDED, "forgot other (−16.0 points)"),
        (Decision.INCONCLUSIVE, (0.0, -0.1, 0.1), OPEN, ""),
        (Decision.DISCARD, (0.2, 0.1, 0.3), DISCARDED, ""),
        (None, (0.2, 0.1, 0.3), OPEN, ""),
    ],
)
def test_what_was_forgotten_decides_beside_the_gate(
    gate: Decision | None, other: tuple[float, float, float], state: AdapterState, why: str
) -> None:
    assert adapter_state(gate, manifest(other=other)) == (state, why)


def test_what_is_shown_is_told_apart_from_what_is_not() -> None:
    found = adapter_state(
        Decision.PROMOTE, manifest(adding=(-0.148, -0.19, -0.1), reading=(-0.097, -0.27, 0.08))
    )
    message = "forgot adding (−14.8 points); perhaps forgot reading (−9.7 points)"
    assert found == (DISCARDED, message)


def test_what_it_was_trained_for_is_not_forgotten() -> None:
    changed = manifest(own=(-0.3, -0.4, -0.2), other=(0.0, -0.1, 0.1))
    assert adapter_state(Decision.PROMOTE, changed) == (PROMOTED, "")


@pytest.mark.parametrize(
    ("gate", "state"), [(Decision.PROMOTE, OPEN), (Decision.DISCARD, DISCARDED), (None, OPEN)]
)
def test_what_was_not_measured_elsewhere_is_not_promoted(gate: Decision | None, state: AdapterState) -> None:
    assert adapter_state(gate, manifest()) == (state, "was measured in no other environment")


def test_where_there_is_no_other_environment_none_is_missed() -> None:
    every = manifest().model_copy(update={"environments": {one.name: "e" for one in BUILT_IN_CAPABILITIES}})
    assert adapter_state(Decision.PROMOTE, every) == (PROMOTED, "")


changes = st.tuples(st.floats(-0.5, 0.5), st.floats(0, 0.3)).map(
    lambda one: (one[0], one[0] - one[1], one[0] + one[1])
)


@given(st.sampled_from([*Decision, None]), st.dictionaries(st.sampled_from("abcde"), changes))
def test_nothing_but_the_gate_promotes_and_no_loss_is_promoted(
    gate: Decision | None, others: dict[str, tuple[float, float, float]]
) -> None:
    state, why = adapter_state(gate, manifest(**others))
    against = not others or any(change < -MAX_LOSS for change, _, _ in others.values())
    assert (state is PROMOTED) == (gate is Decision.PROMOTE and not against)
    assert bool(why) == against
    if gate is Decision.DISCARD:
        assert state is DISCARDED
