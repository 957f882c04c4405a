"""The tests and intervals that decide: exact where they say so, ordered, and the same for every row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.gate.intervals import mean_bounds
from pytest_trace2evolve.gate.significance import holm, sign_flip

LAW = settings(deadline=None, max_examples=30)


DIFFERENCES = st.lists(st.integers(-6, 6), min_size=1, max_size=10)


@LAW
@given(DIFFERENCES, st.sampled_from([1, 2, 3, 4, 7]))
def test_the_sign_flip_is_the_exact_permutation_test(steps, scale):
    differences = np.array(steps, dtype=float) / scale
    found = sign_flip(differences[None, :])
    signs = 1 - 2 * ((np.arange(1 << len(steps))[:, None] >> np.arange(len(steps))) & 1)
    sums = signs @ np.abs(np.array(steps))
    assert np.isclose(found.low[0], (sums <= sum(steps)).mean())
    assert np.isclose(found.high[0], (sums >= sum(steps)).mean())


@LAW
@given(DIFFERENCES, st.data())
def test_a_better_task_never_makes_harm_more_likely(steps, data):
    place = data.draw(st.integers(0, len(steps) - 1))
    better = list(steps)
    better[place] += data.draw(st.integers(1, 5))
    before, after = (sign_flip(np.array(each, dtype=float)[None, :] / 12) for each in (steps, better))
    assert after.low[0] >= before.low[0] - 1e-9
    assert after.high[0] <= before.high[0] + 1e-9


def test_differences_off_any_lattice_are_resampled_close_to_the_truth():
    random = np.random.default_rng(5)
    differences = random.normal(0.2, 0.5, (1, 12))
    signs = 1 - 2 * ((np.arange(1 << 12)[:, None] >> np.arange(12)) & 1)
    exact = (signs @ np.abs(differences[0]) >= differences.sum()).mean()
    found = sign_flip(differences)
    assert abs(found.high[0] - exact) < 4 * np.sqrt(exact * (1 - exact) / 9_999) + 1e-3
    assert found.high[0] == sign_flip(differences).high[0]


P = st.floats(0.0, 1.0) | st.just(float("nan"))


@LAW
@given(st.lists(P, min_size=1, max_size=7), st.data())
def test_holm_is_between_the_raw_p_and_bonferroni_and_keeps_their_order(raw, data):
    names = [f"check-{place}" for place in range(len(raw))]
    adjusted = holm({name: np.array([p]) for name, p in zip(names, raw, strict=True)}, {})
    known = [(p, float(adjusted[name][0])) for name, p in zip(names, raw, strict=True) if not np.isnan(p)]
    assert all(np.isnan(adjusted[name][0]) for name, p in zip(names, raw, strict=True) if np.isnan(p))
    for p, q in known:
        assert p - 1e-12 <= q <= min(1.0, p * len(known)) + 1e-12
    ordered = [q for _, q in sorted(known)]
    assert ordered == sorted(ordered)


@LAW
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20), st.floats(0.01, 0.2))
def test_bounds_hold_the_mean_between_them_and_mirror(values, alpha):
    found, mirrored = (
        mean_bounds(np.array([each]), alpha) for each in (values, [-value for value in values])
    )
    assert found.low[0] <= found.estimate[0] + 1e-12 <= found.high[0] + 2e-12
    assert np.isclose(found.low[0], -mirrored.high[0])
    assert -1 <= found.low[0] <= found.high[0] <= 1


def test_without_a_discordant_task_the_bound_is_that_of_as_many_equal_outcomes():
    found = mean_bounds(np.zeros((1, 40)), 0.05)
    assert np.isclose(found.low[0], -(1 - 0.05 ** (1 / 40)))
    assert found.deviation[0] > 0


@LAW
@given(
    st.lists(
        st.lists(st.sampled_from([0.0, 0.25, -0.25, 0.5, 1 / 3, -0.2, 0.123]), min_size=6, max_size=6),
        min_size=1,
        max_size=4,
    )
)
def test_a_rows_p_value_does_not_depend_on_the_other_rows(rows: list[list[float]]) -> None:
    differences = np.array(rows)
    together = sign_flip(differences)
    for place, row in enumerate(differences):
        alone = sign_flip(row[None, :])
        assert together.low[place] == pytest.approx(alone.low[0], abs=1e-12)
        assert together.high[place] == pytest.approx(alone.high[0], abs=1e-12)
