"""p-values of a group of checks: Holm's method within the group, and over the groups."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.gate.checks import Rules, _adjust_p_values
from pytest_trace2evolve.gate.columns import ACTION_METRICS

RULES = Rules(must_improve=False, margins={})

PROBABILITIES = st.floats(1e-6, 1.0)


@given(st.lists(PROBABILITIES, min_size=1, max_size=5), st.lists(PROBABILITIES, max_size=3))
def test_every_member_of_a_group_counts(own: list[float], others: list[float]) -> None:
    """The smallest adjusted p-value of a group is at least Bonferroni's bound of the group."""
    p = {f"own_{number}": np.array([value]) for number, value in enumerate(own)}
    check_ids = list(p)
    p |= {f"other_{number}": np.array([value]) for number, value in enumerate(others)}
    adjusted_in_group, adjusted_p = _adjust_p_values(p, check_ids, RULES)
    smallest = min(own) * len(own)
    assert min(adjusted_in_group[name][0] for name in check_ids) >= min(1.0, smallest) * (1 - 1e-9)
    assert min(adjusted_p[name][0] for name in check_ids) >= min(1.0, smallest) * (1 - 1e-9)
    for name in p:
        assert adjusted_p[name][0] >= adjusted_in_group[name][0] * (1 - 1e-9)


@given(st.lists(PROBABILITIES, min_size=len(ACTION_METRICS), max_size=len(ACTION_METRICS)))
def test_the_shares_of_actions_are_adjusted_alike(values: list[float]) -> None:
    p = {name: np.array([value]) for name, value in zip(ACTION_METRICS, values, strict=True)}
    _, as_actions = _adjust_p_values(p, (), RULES)
    renamed = {f"own {name}": value for name, value in p.items()}
    _, as_checks = _adjust_p_values(renamed, list(renamed), RULES)
    assert [as_actions[name][0] for name in p] == [as_checks[f"own {name}"][0] for name in p]
