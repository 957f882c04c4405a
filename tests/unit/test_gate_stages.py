"""The nominal level of a stage: what all stages together reject is what was promised."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal, norm

from pytest_trace2evolve.gate.stages import Stage, stage_alpha
from pytest_trace2evolve.utils.option_types import DEFAULT_STAGES

SCHEDULES = st.lists(st.integers(1, 40), min_size=2, max_size=5, unique=True).map(sorted)


@pytest.mark.parametrize(("looks", "bound"), [(2, 1.875), (3, 1.992), (4, 2.067), (5, 2.122)])
def test_equal_steps_give_pococks_bounds(looks: int, bound: float) -> None:
    """His constants for a two-sided .10, which is a one-sided .05 on either side."""
    assert norm.isf(stage_alpha(0.05, range(1, looks + 1))) == pytest.approx(bound, abs=6e-4)


@settings(max_examples=10)
@given(SCHEDULES, st.floats(0.001, 0.2))
def test_the_stages_together_keep_the_level(schedule: list[int], alpha: float) -> None:
    """Against scipy's own integral of the joint normal distribution."""
    nominal = stage_alpha(alpha, schedule)
    assert alpha / len(schedule) <= nominal < alpha
    counts = np.array(schedule, dtype=float)
    ratio = counts[:, None] / counts[None, :]
    joint = multivariate_normal(cov=np.sqrt(np.minimum(ratio, 1 / ratio)))
    bound = norm.isf(nominal)
    assert 1 - joint.cdf(np.full(len(schedule), bound)) == pytest.approx(alpha, abs=2e-4)


def test_the_level_is_the_same_each_time_and_does_not_depend_on_the_unit() -> None:
    assert stage_alpha(0.05, DEFAULT_STAGES) == stage_alpha(0.05, DEFAULT_STAGES)
    assert stage_alpha(0.05, (2, 4, 8)) == pytest.approx(stage_alpha(0.05, (20, 40, 80)), abs=1e-8)
    assert stage_alpha(0.05, (4,)) == 0.05


def test_a_stage_says_where_it_stands() -> None:
    assert str(Stage(2, 3, 4, 0.02)) == "stage 2 of 3: 4 trials"
    assert str(Stage(1, 2, 1, 0.02)) == "stage 1 of 2: 1 trial"
    assert [Stage(one, 2, 1, 0.02).last for one in (1, 2)] == [False, True]
