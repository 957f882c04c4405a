"""Effects that can be detected, and what would settle an open check."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_trace2evolve.gate.alpha_spending import alpha_share
from pytest_trace2evolve.gate.calibrated import CALIBRATED
from pytest_trace2evolve.gate.checks import compute_findings
from pytest_trace2evolve.gate.claims import AlphaSpending
from pytest_trace2evolve.gate.intervals import (
    GUARDED_DROP,
    Spread,
    detects,
    drop_sensitivity,
    estimate_needed_evidence,
    predictive_power,
)
from pytest_trace2evolve.gate.pairs import pair
from pytest_trace2evolve.gate.protocols import Question
from pytest_trace2evolve.records.verdict import (
    Decision,
    Goal,
    NeededEvidence,
    Obstacle,
)
from pytest_trace2evolve.report.conclusion import needed_evidence_text
from tests.gate.verdicts import judged, of, policy_of
from tests.gate_helpers import side


def test_a_loss_says_that_the_change_points_the_wrong_way() -> None:
    verdict = judged(side(*[1, 1], *[0, 1] * 9), side(*[0, 1] * 10))
    (one,) = verdict.settling
    assert verdict.decision is Decision.INCONCLUSIVE
    assert (one.trials, one.tasks, one.obstacle) == (None, None, Obstacle.WRONG_DIRECTION)
    assert needed_evidence_text(one) == "the change points the wrong way"


def test_a_verdict_from_before_causes_were_recorded_names_none() -> None:
    old = NeededEvidence.model_validate({"check": "reward_improved", "trials": None, "tasks": None})
    assert needed_evidence_text(old) == "neither more trials nor more tasks would settle it"


@given(
    effect=st.floats(-1, 1),
    between=st.floats(0, 0.25),
    within=st.floats(0, 0.25),
    tasks=st.integers(2, 400),
)
def test_a_check_has_an_obstacle_exactly_if_nothing_settles_it(
    effect: float, between: float, within: float, tasks: int
) -> None:
    spread = Spread(between=between, within=(within / 2, within / 2), trials=(2, 2), tasks=tasks)
    plan = estimate_needed_evidence(
        "reward_improved", effect, spread, pair(side(0), side(1)), alpha=0.05, next_alpha=0.05
    )
    assert (plan.obstacle is None) == (plan.trials is not None or plan.tasks is not None)
    assert (plan.obstacle is Obstacle.WRONG_DIRECTION) == (effect < -1e-9)


@pytest.mark.parametrize("effect", [0.03, 0.1, 0.3])
def test_what_settles_is_the_first_number_that_would_do(effect: float) -> None:
    spread = Spread(between=0.02, within=(0.1, 0.1), trials=(2, 2), tasks=40)

    def shown(count: int, tasks: int) -> bool:
        return bool(
            stats.t.ppf([0.95, 0.8], tasks - 1).sum() * spread.standard_error((count, count), tasks) <= effect
        )

    plan = estimate_needed_evidence(
        "reward_improved", effect, spread, pair(side(0), side(1)), alpha=0.05, next_alpha=0.05
    )
    assert plan.trials == next((count for count in range(3, 65) if shown(count, 40)), None)
    assert plan.tasks == next((count for count in range(41, 4_000) if shown(2, count)), None)


def test_more_trials_settle_a_test_at_the_level_of_its_next_analysis() -> None:
    random = np.random.default_rng(4)
    chances = random.random(40)
    old, new = (side(*random.binomial(1, rate[:, None], (40, 4)).astype(float).tolist())
                for rate in (chances, np.clip(chances + 0.08, 0, 1)))  # fmt: skip
    (found,) = judged(old, new, spending=AlphaSpending(1)).settling
    here, further = (
        judged(old, new, policy=policy_of(f"alpha = {0.05 * alpha_share(1, one)}\n")).settling[0]
        for one in (1, 2)
    )
    assert (found.trials, found.tasks) == (further.trials, here.tasks)
    assert found.trials is not None
    assert found.trials > (here.trials or 0) > 4


def test_agreement_of_few_tasks_is_no_power() -> None:
    for tasks, enough in ((5, False), (10, False), (31, False), (32, True), (60, True)):
        found = pair(*of(tasks, 0)).comparisons
        deviation = compute_findings(found, CALIBRATED.rules(Question(Goal.HOLD, is_guard=True)))[
            "reward"
        ].deviation
        assert detects(GUARDED_DROP, deviation, np.array([tasks]), np.array([1]), 0.05)[0] == enough


def test_the_smallest_number_of_tasks_is_the_first_that_detects() -> None:
    spread = drop_sensitivity(0.4, 12, 4, 0.05)
    assert spread.tasks is not None
    within = 0.4**2 - 0.25 / 12
    for number, found in ((spread.tasks - 1, False), (spread.tasks, True)):
        deviation = np.sqrt(within + 0.25 / number)
        assert bool(detects(GUARDED_DROP, deviation, np.array(number), np.array(4), 0.05)) is found


P = st.floats(1e-9, 1 - 1e-9)


@given(P, P, st.floats(0.001, 0.2), st.floats(0.05, 0.95))
def test_predictive_power_falls_with_p_and_nears_the_test_itself(
    first: float, second: float, alpha: float, fraction: float
) -> None:
    low, high = sorted((first, second))
    powers = predictive_power(np.array([low, high]), alpha, fraction)
    assert 0 <= powers[1] <= powers[0] <= 1
    with_all_trials = predictive_power(np.array([alpha / 2, min(2 * alpha, 0.9)]), alpha, 1 - 1e-9)
    np.testing.assert_allclose(with_all_trials, [1, 0], atol=1e-6)


def test_predictive_power_is_the_share_of_runs_whose_last_stage_shows_the_gain() -> None:
    """With a flat prior, the gain given z after a share t of the trials is normal around z / sqrt(t)."""
    random, z, fraction, alpha = np.random.default_rng(1), 0.8, 0.25, 0.02
    gains = random.normal(z / np.sqrt(fraction), 1 / np.sqrt(fraction), 400_000)
    sums = z * np.sqrt(fraction) + random.normal(gains * (1 - fraction), np.sqrt(1 - fraction))
    share = float((sums > stats.norm.isf(alpha)).mean())
    assert abs(share - predictive_power(stats.norm.sf(z), alpha, fraction)) < 0.003
