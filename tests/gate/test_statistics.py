"""Tests, intervals, levels and detectable effects: exact if they say so, and the same for every row."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import multivariate_normal, norm

from pytest_trace2evolve.gate.agents import AGENTS, Design, Effect, simulate_stages
from pytest_trace2evolve.gate.alpha_spending import Stage, alpha_share, stage_alpha
from pytest_trace2evolve.gate.calibrated import CALIBRATED
from pytest_trace2evolve.gate.checks import Rules, _adjust_p_values, compute_findings
from pytest_trace2evolve.gate.claims import AlphaSpending
from pytest_trace2evolve.gate.columns import ACTION_METRICS
from pytest_trace2evolve.gate.decide import decision_ranks
from pytest_trace2evolve.gate.intervals import (
    GUARDED_DROP,
    Spread,
    detects,
    drop_sensitivity,
    estimate_needed_evidence,
    information_share,
    mean_bounds,
    predictive_power,
)
from pytest_trace2evolve.gate.pairs import pair
from pytest_trace2evolve.gate.protocols import Question
from pytest_trace2evolve.gate.significance import holm, sign_flip
from pytest_trace2evolve.records.verdict import Decision, Goal, NeededEvidence, Obstacle
from pytest_trace2evolve.report.conclusion import needed_evidence_text
from tests.gate.verdicts import judged, of, policy_of
from tests.gate_helpers import side

LAW = settings(deadline=None, max_examples=30)
DIFFERENCES = st.lists(st.integers(-6, 6), min_size=1, max_size=10)


def signs(count: int) -> np.ndarray:
    """All ways to give signs to so many differences, one a row."""
    return 1 - 2 * ((np.arange(1 << count)[:, None] >> np.arange(count)) & 1)


@LAW
@given(DIFFERENCES, st.sampled_from([1, 2, 3, 4, 7]))
def test_the_sign_flip_is_the_exact_permutation_test(steps: list[int], scale: int) -> None:
    found = sign_flip(np.array([steps], dtype=float) / scale)
    sums = signs(len(steps)) @ np.abs(np.array(steps))
    assert np.isclose(found.low[0], (sums <= sum(steps)).mean())
    assert np.isclose(found.high[0], (sums >= sum(steps)).mean())


@LAW
@given(DIFFERENCES, st.data())
def test_a_better_task_never_makes_harm_more_likely(steps: list[int], data: st.DataObject) -> None:
    better = list(steps)
    better[data.draw(st.integers(0, len(steps) - 1))] += data.draw(st.integers(1, 5))
    before, after = (sign_flip(np.array([each], dtype=float) / 12) for each in (steps, better))
    assert after.low[0] >= before.low[0] - 1e-9
    assert after.high[0] <= before.high[0] + 1e-9


def test_differences_off_any_lattice_are_resampled_close_to_the_truth() -> None:
    differences = np.random.default_rng(5).normal(0.2, 0.5, (1, 12))
    exact = (signs(12) @ np.abs(differences[0]) >= differences.sum()).mean()
    found = sign_flip(differences)
    assert abs(found.high[0] - exact) < 4 * np.sqrt(exact * (1 - exact) / 9_999) + 1e-3
    assert found.high[0] == sign_flip(differences).high[0]


VALUES = st.sampled_from([0.0, 0.25, -0.25, 0.5, 1 / 3, -0.2, 0.123])


@LAW
@given(st.lists(st.lists(VALUES, min_size=6, max_size=6), min_size=1, max_size=4))
def test_a_rows_p_value_does_not_depend_on_the_other_rows(rows: list[list[float]]) -> None:
    together, alone = sign_flip(np.array(rows)), [sign_flip(np.array([row])) for row in rows]
    assert together.low == pytest.approx(np.array([one.low[0] for one in alone]), abs=1e-12)
    assert together.high == pytest.approx(np.array([one.high[0] for one in alone]), abs=1e-12)


@LAW
@given(st.lists(st.floats(0.0, 1.0) | st.just(float("nan")), min_size=1, max_size=7))
def test_holm_is_between_the_raw_p_and_bonferroni_and_keeps_their_order(raw: list[float]) -> None:
    adjusted = holm({str(place): np.array([p]) for place, p in enumerate(raw)}, {})
    known = [(p, adjusted[str(place)][0]) for place, p in enumerate(raw) if not np.isnan(p)]
    assert all(np.isnan(adjusted[str(place)][0]) for place, p in enumerate(raw) if np.isnan(p))
    assert all(p - 1e-12 <= q <= min(1.0, p * len(known)) + 1e-12 for p, q in known)
    ordered = [q for _, q in sorted(known)]
    assert ordered == sorted(ordered)


RULES = Rules(must_improve=False, margins={})
PROBABILITIES = st.floats(1e-6, 1.0)


@given(st.lists(PROBABILITIES, min_size=1, max_size=5), st.lists(PROBABILITIES, max_size=3))
def test_every_member_of_a_group_of_checks_counts(own: list[float], others: list[float]) -> None:
    """The smallest adjusted p-value of a group is at least Bonferroni's bound of the group."""
    p = {f"own_{number}": np.array([value]) for number, value in enumerate(own)}
    check_ids = list(p)
    p |= {f"other_{number}": np.array([value]) for number, value in enumerate(others)}
    in_group, over_policy = _adjust_p_values(p, check_ids, RULES)
    bound = min(1.0, min(own) * len(own)) * (1 - 1e-9)
    assert min(in_group[name][0] for name in check_ids) >= bound
    assert min(over_policy[name][0] for name in check_ids) >= bound
    assert all(over_policy[name][0] >= in_group[name][0] * (1 - 1e-9) for name in p)


@given(st.lists(PROBABILITIES, min_size=len(ACTION_METRICS), max_size=len(ACTION_METRICS)))
def test_the_shares_of_actions_are_adjusted_alike(values: list[float]) -> None:
    p = {name: np.array([value]) for name, value in zip(ACTION_METRICS, values, strict=True)}
    renamed = {f"own {name}": value for name, value in p.items()}
    _, as_actions = _adjust_p_values(p, (), RULES)
    _, as_checks = _adjust_p_values(renamed, list(renamed), RULES)
    assert [as_actions[name][0] for name in p] == [as_checks[f"own {name}"][0] for name in p]


@LAW
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20), st.floats(0.01, 0.2))
def test_bounds_hold_the_mean_between_them_and_mirror(values: list[float], alpha: float) -> None:
    found, mirrored = (mean_bounds(np.array([each]), alpha) for each in (values, [-one for one in values]))
    assert found.low[0] <= found.estimate[0] + 1e-12 <= found.high[0] + 2e-12
    assert np.isclose(found.low[0], -mirrored.high[0])
    assert -1 <= found.low[0] <= found.high[0] <= 1


def test_without_a_discordant_task_the_bound_is_that_of_as_many_equal_outcomes() -> None:
    found = mean_bounds(np.zeros((1, 40)), 0.05)
    assert np.isclose(found.low[0], -(1 - 0.05 ** (1 / 40)))
    assert found.deviation[0] > 0


# Levels of tests, analyses and stages.


def test_all_analyses_of_all_tests_together_spend_no_more_than_alpha() -> None:
    assert alpha_share(1) == pytest.approx(6 / np.pi**2)
    assert alpha_share(2) == pytest.approx(alpha_share(1) / 4)
    assert 0.9999 < sum(alpha_share(k) for k in range(1, 20_000)) < 1
    assert [alpha_share(2, j) / alpha_share(2) for j in (1, 2, 3)] == pytest.approx([0.75, 0.1875, 0.046875])
    assert sum(alpha_share(2, j) for j in range(1, 60)) == pytest.approx(alpha_share(2))


@pytest.mark.parametrize("cumulative", [True, False])
def test_all_analyses_of_a_test_promote_an_equal_agent_no_more_often_than_its_level(cumulative: bool) -> None:
    """At 4, 8 and 16 trials, added or all new: at most alpha's share of test 1, and chance."""
    rows, undecided = 400, Decision.INCONCLUSIVE.rank
    random, design = np.random.default_rng(5), Design(40, 0, is_live=False)
    drawn = simulate_stages(
        random, AGENTS["medium"], Effect(0.0), design, rows, (4, 8, 16), cumulative=cumulative
    )
    rank = np.full(rows, undecided)
    for analysis, compared in enumerate(drawn.stages, start=1):
        assert compared.candidate.trials[0, 0] == 2 * 2**analysis
        now = decision_ranks(CALIBRATED, compared, Question(Goal.IMPROVE, share=alpha_share(1, analysis)))
        rank = np.where(rank == undecided, now, rank)
    promoted = int((rank == Decision.PROMOTE.rank).sum())
    assert 0 < promoted <= stats.binom.ppf(0.999, rows, 0.05 * alpha_share(1))


@pytest.mark.parametrize(("looks", "bound"), [(2, 1.875), (3, 1.992), (4, 2.067), (5, 2.122)])
def test_equal_steps_give_pococks_bounds(looks: int, bound: float) -> None:
    """His constants for a two-sided .10, which is a one-sided .05 on either side."""
    assert norm.isf(stage_alpha(0.05, range(1, looks + 1))) == pytest.approx(bound, abs=6e-4)


@settings(max_examples=5)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=5, unique=True).map(sorted), st.floats(0.001, 0.2))
def test_the_stages_together_keep_the_level(schedule: list[int], alpha: float) -> None:
    """Against scipy's own integral of the joint normal distribution."""
    nominal = stage_alpha(alpha, schedule)
    assert alpha / len(schedule) <= nominal < alpha
    ratio = np.divide.outer(schedule, np.array(schedule, dtype=float))
    joint = multivariate_normal(cov=np.sqrt(np.minimum(ratio, 1 / ratio)))
    assert 1 - joint.cdf(np.full(len(schedule), norm.isf(nominal))) == pytest.approx(alpha, abs=2e-4)


def test_a_stage_says_where_it_stands_and_what_it_has_of_the_information() -> None:
    assert str(Stage(2, 3, 4, 0.02)) == "stage 2 of 3: 4 trials"
    assert str(Stage(1, 2, 1, 0.02)) == "stage 1 of 2: 1 trial"
    assert [Stage(one, 2, 1, 0.02).is_last for one in (1, 2)] == [False, True]
    assert information_share(2, 8, 8) == pytest.approx(0.4), "the baseline's trials are fixed"
    assert information_share(2, 8, 1e9) == pytest.approx(0.25)


P = st.floats(1e-9, 1 - 1e-9)


@given(P, P, st.floats(0.001, 0.2), st.floats(0.05, 0.95))
def test_predictive_power_falls_with_p_and_nears_the_test_itself(
    first: float, second: float, alpha: float, fraction: float
) -> None:
    powers = predictive_power(np.array(sorted((first, second))), alpha, fraction)
    assert 0 <= powers[1] <= powers[0] <= 1
    with_all_trials = predictive_power(np.array([alpha / 2, min(2 * alpha, 0.9)]), alpha, 1 - 1e-9)
    np.testing.assert_allclose(with_all_trials, [1, 0], atol=1e-6)


def test_predictive_power_is_the_share_of_runs_whose_last_stage_shows_the_gain() -> None:
    """With a flat prior, the gain given z after a share t of the trials is normal around z / sqrt(t)."""
    random, z, fraction, alpha = np.random.default_rng(1), 0.8, 0.25, 0.02
    gains = random.normal(z / np.sqrt(fraction), 1 / np.sqrt(fraction), 400_000)
    sums = z * np.sqrt(fraction) + random.normal(gains * (1 - fraction), np.sqrt(1 - fraction))
    share = float((sums > norm.isf(alpha)).mean())
    assert abs(share - predictive_power(norm.sf(z), alpha, fraction)) < 0.003


# What would settle an open check, and what could be detected.


def needed(effect: float, spread: Spread) -> NeededEvidence:
    pairs = pair(side(0), side(1))
    return estimate_needed_evidence("reward_improved", effect, spread, pairs, alpha=0.05, next_alpha=0.05)


def test_a_loss_says_that_the_change_points_the_wrong_way() -> None:
    verdict = judged(side(*[1, 1], *[0, 1] * 9), side(*[0, 1] * 10))
    (one,) = verdict.settling
    assert verdict.decision is Decision.INCONCLUSIVE
    assert (one.trials, one.tasks, one.obstacle) == (None, None, Obstacle.WRONG_DIRECTION)
    assert needed_evidence_text(one) == "the change points the wrong way"
    older = one.model_copy(update={"obstacle": None})  # causes were not recorded
    assert needed_evidence_text(older) == "neither more trials nor more tasks would settle it"


UNIT = st.floats(0, 0.25)


@given(st.floats(-1, 1), UNIT, UNIT, st.integers(2, 400))
def test_a_check_has_an_obstacle_exactly_if_nothing_settles_it(
    effect: float, between: float, within: float, tasks: int
) -> None:
    plan = needed(effect, Spread(between, (within / 2, within / 2), (2, 2), tasks))
    assert (plan.obstacle is None) == (plan.trials is not None or plan.tasks is not None)
    assert (plan.obstacle is Obstacle.WRONG_DIRECTION) == (effect < -1e-9)


@pytest.mark.parametrize("effect", [0.03, 0.1, 0.3])
def test_what_settles_is_the_first_number_that_would_do(effect: float) -> None:
    spread = Spread(between=0.02, within=(0.1, 0.1), trials=(2, 2), tasks=40)

    def shown(count: int, tasks: int) -> bool:
        quantiles = stats.t.ppf([0.95, 0.8], tasks - 1).sum()
        return bool(quantiles * spread.standard_error((count, count), tasks) <= effect)

    plan = needed(effect, spread)
    assert plan.trials == next((count for count in range(3, 65) if shown(count, 40)), None)
    assert plan.tasks == next((count for count in range(41, 4_000) if shown(2, count)), None)


def test_more_trials_settle_a_test_at_the_level_of_its_next_analysis() -> None:
    random = np.random.default_rng(4)
    chances = random.random(40)
    sides: Sequence[Any] = [
        side(*random.binomial(1, rate[:, None], (40, 4)).astype(float).tolist())
        for rate in (chances, np.clip(chances + 0.08, 0, 1))
    ]
    (found,) = judged(*sides, spending=AlphaSpending(1)).settling
    here, further = (
        judged(*sides, policy=policy_of(f"alpha = {0.05 * alpha_share(1, one)}\n")).settling[0]
        for one in (1, 2)
    )
    assert (found.trials, found.tasks) == (further.trials, here.tasks)
    assert found.trials is not None
    assert found.trials > (here.trials or 0) > 4


def test_agreement_of_few_tasks_is_no_power() -> None:
    for tasks, enough in ((5, False), (10, False), (31, False), (32, True), (60, True)):
        rules = CALIBRATED.rules(Question(Goal.HOLD, is_guard=True))
        deviation = compute_findings(pair(*of(tasks, 0)).comparisons, rules)["reward"].deviation
        assert detects(GUARDED_DROP, deviation, np.array([tasks]), np.array([1]), 0.05)[0] == enough


@pytest.mark.parametrize("has_fixed_tasks", [False, True])
def test_the_smallest_number_of_tasks_is_the_first_that_detects(has_fixed_tasks: bool) -> None:
    pseudo = 0.25 / 4 if has_fixed_tasks else 0.25  # the variance of the pseudo-task
    enough = drop_sensitivity(0.4, 12, 4, 0.05, has_fixed_tasks=has_fixed_tasks).tasks
    assert enough is not None
    for number, found in ((enough - 1, False), (enough, True)):
        deviation = np.sqrt(0.4**2 - pseudo / 12 + pseudo / number)
        sizes = np.asarray(deviation), np.asarray(number), np.asarray(4)
        assert bool(detects(GUARDED_DROP, *sizes, 0.05, has_fixed_tasks=has_fixed_tasks)) is found
