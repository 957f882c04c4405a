"""Simulated and resampled comparisons: what is drawn, what it decides, and what `power` tells of it."""

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.gate.agents import (
    AGENTS,
    Design,
    Effect,
    fit_agent,
    simulate_comparisons,
    simulate_stages,
)
from pytest_trace2evolve.gate.calibrated import CALIBRATED
from pytest_trace2evolve.gate.calibration import (
    DecisionCounts,
    DrawSettings,
    PolicyToCalibrate,
    Pool,
    calibrate,
    count_decisions,
    pool_of,
    resample,
)
from pytest_trace2evolve.gate.columns import build_columns
from pytest_trace2evolve.gate.policy import STRICT
from pytest_trace2evolve.gate.power import StagedRuns, gain_at_power, simulate_runs
from pytest_trace2evolve.records.verdict import Decision, Goal
from tests.gate_helpers import Side, side, sim


def pool(*tasks: Sequence[float | None]) -> Pool:
    return pool_of(build_columns(side(*tasks)))


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def of_rates(source: np.random.Generator, rates: np.ndarray, trials: int) -> Pool:
    """One recorded run of tasks that succeed with these chances."""
    return pool(*(source.binomial(1, rate, trials).astype(float).tolist() for rate in rates))


def test_a_task_with_trials_enough_is_split_and_each_is_used_once() -> None:
    case = resample(random(), pool([1.0, 0.0] * 4, [1.0] * 3 + [0.0] * 5), DrawSettings(trials=4), 200)
    passed = case.baseline.successes + case.candidate.successes
    assert set(np.unique(passed)) == {3, 4}
    assert case.baseline.successes.std() > 0.5


def test_a_task_with_fewer_trials_is_drawn_with_replacement() -> None:
    case = resample(random(), pool([1.0, 0.0] * 2, [1.0] * 3 + [0.0]), DrawSettings(trials=4), 200)
    assert len(np.unique(case.baseline.successes + case.candidate.successes)) > 4


def test_tasks_are_drawn_with_replacement_unless_these_very_ones_are_meant() -> None:
    surely = pool([1.0] * 4, [0.0] * 4)
    assert set(np.unique(resample(random(), surely, DrawSettings(2), 99).baseline.successes.sum(axis=1))) == {
        0,
        2,
        4,
    }
    fixed = resample(random(), surely, DrawSettings(2, has_fixed_tasks=True), 99)
    assert set(np.unique(fixed.baseline.successes.sum(axis=1))) == {2}


@pytest.mark.parametrize("trials", [2, 4])
@pytest.mark.parametrize("kind", ["reliable", "medium", "noisy"])
def test_trials_drawn_with_replacement_vary_as_much_as_new_trials_would(kind: str, trials: int) -> None:
    """Uncorrected, the variance would be short by half with two trials a task, by a quarter with four."""
    source, agent = random(1), AGENTS[kind]
    found = []
    for _ in range(4):
        rates = source.beta(agent.a, agent.b, 300)
        drawn = resample(source, of_rates(source, rates, trials), DrawSettings(trials=4), 40)
        found.append(drawn.difference("reward").var() / (2 * (rates * (1 - rates)).mean() / 4))
    assert np.mean(found) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("effect", [-0.2, -0.05, 0.05, 0.2])
@pytest.mark.parametrize("trials", [2, 4])
def test_a_planted_effect_moves_the_mean_by_as_much(effect: float, trials: int) -> None:
    source = random(2)
    mixed = of_rates(source, source.beta(0.8, 0.6, 60), 4)
    case = resample(source, mixed, DrawSettings(trials, effect), 800)
    assert np.nanmean(case.difference("reward")) == pytest.approx(effect, abs=0.015)


def test_live_fresh_trials_are_drawn_for_broken_tasks_alone_while_the_budget_lasts() -> None:
    mixed = of_rates(random(3), np.full(40, 0.5), 4)
    case = resample(random(), mixed, DrawSettings(trials=2, is_live=True, max_fresh_simulations=100), 50)
    assert case.fresh_p is not None
    tried = ~np.isnan(case.fresh_p)
    assert not (tried & ~case.is_broken).any()
    assert 0 < tried.sum(axis=1).max() <= 100 // 16
    assert case.is_suspected.any()


ONE_TRIAL = (
    "every task has only one trial, so the variation between trials is unknown; "
    "give at least two trials of its tasks (--t2e-trials 2)"
)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (side(None, None), "no simulation was measured, so there are no trials to draw from"),
        (side(1.0, 0.0), ONE_TRIAL),
    ],
)
def test_trials_that_show_no_noise_are_refused(records: Side, message: str) -> None:
    with pytest.raises(ResultsError) as error:
        pool_of(build_columns(records))
    assert str(error.value) == message


@settings(deadline=None, max_examples=15)
@given(st.data())
def test_the_order_of_trials_and_files_changes_no_draw(data: st.DataObject) -> None:
    records = [
        sim(task, float((task + trial) % 3 > 0), trial=trial, read=(3, (task * trial) % 4))
        for task in range(3)
        for trial in range(3)
    ]
    other_order = data.draw(st.permutations(records))
    one, other = (
        resample(random(), pool_of(build_columns(each)), DrawSettings(2), 20)
        for each in (records, other_order)
    )
    assert np.array_equal(one.baseline.reward, other.baseline.reward)
    assert np.array_equal(one.candidate.matched["action_match"], other.candidate.matched["action_match"])


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 50))
def test_a_rates_interval_holds_it(discarded: int, inconclusive: int, promoted: int) -> None:
    found = DecisionCounts(discarded, inconclusive, promoted)
    rates = [found.rate(decision) for decision in Decision]
    assert sum(rate.estimate for rate in rates) == pytest.approx(1.0)
    assert all(0 <= rate.low <= rate.estimate <= rate.high <= 1 for rate in rates)


def test_a_calibration_is_the_same_whatever_else_is_asked() -> None:
    mixed = of_rates(random(4), random(4).beta(0.8, 0.6, 30), 3)
    kept = {"resamples": 60, "seed": 7}
    asked = [PolicyToCalibrate(CALIBRATED, 0.1), PolicyToCalibrate(STRICT, 0.1)]
    wide = calibrate(mixed, asked, DrawSettings(3), effects=(0.05, 0.1), **kept)
    narrow = calibrate(mixed, asked[1:], DrawSettings(3), effects=(0.1,), **kept)
    for key, decisions in narrow.decisions.items():
        assert wide.decisions[key] == decisions
    assert all(one.total == 60 for one in wide.decisions.values())


def test_an_effect_that_the_pool_has_no_room_for_is_named() -> None:
    often = pool(*[[1.0, 1.0]] * 9, [1.0, 0.0])
    found = calibrate(
        often, [PolicyToCalibrate(CALIBRATED, 0.1)], DrawSettings(2), effects=(0.1,), resamples=20, seed=0
    )
    assert found.unplantable_effects == (0.1,)
    assert ("calibrated", Goal.IMPROVE, 0.1) not in found.decisions


@pytest.mark.parametrize("kind", ["medium", "noisy"])
def test_the_policy_errs_as_seldom_as_it_says(kind: str) -> None:
    """Bounds are wide: a test statistic that is wrong by a factor of two would break them."""
    asked = [(CALIBRATED, goal) for goal in (Goal.IMPROVE, Goal.HOLD)]

    def decisions(size: float) -> list[DecisionCounts]:
        return count_decisions(
            lambda source, rows: simulate_comparisons(
                source, AGENTS[kind], Effect(size), Design(40, 4), rows
            ),
            asked,
            rows=400,
            tasks=40,
            seed=5,
        )

    improve, hold = decisions(0.0)
    assert 2 <= improve.promoted <= 32
    assert max(improve.discarded, hold.discarded) <= 32
    assert hold.promoted >= 180
    improve, hold = decisions(-0.1)
    assert hold.promoted <= 32
    assert improve.promoted <= 2
    assert decisions(0.2)[0].promoted >= 360


# The power of a design.


NO_AGENT = (
    "expected reliable, medium, noisy or RATE,SPREAD, with the rate between 0 and 1, and the spread between "
    "0 and sqrt(rate × (1 − rate))"
)
SMALL = ["power", "--tasks", "20", "--trials", "2", "-ot2e_resamples=100"]


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_an_agent_has_the_rate_and_spread_it_was_asked_for(rate: float, part: float) -> None:
    spread = part * np.sqrt(rate * (1 - rate))
    agent = fit_agent(rate, spread)
    size = agent.a + agent.b
    assert agent.mean == pytest.approx(rate)
    assert agent.a * agent.b / (size**2 * (size + 1)) == pytest.approx(spread**2)


def test_the_smallest_gain_lies_between_those_around_it() -> None:
    assert gain_at_power({0.0: 0.05, 0.05: 0.5, 0.10: 0.95}, 100) == pytest.approx(0.0756, abs=1e-4)
    assert gain_at_power({0.0: 0.05, 0.05: 0.5}, 100) is None


def test_stages_add_trials_to_the_same_tasks_and_keep_what_fresh_trials_said() -> None:
    random = np.random.default_rng(0)
    drawn = simulate_stages(random, AGENTS["noisy"], Effect(-0.1), Design(20, 8), 50, (2, 4, 8))
    assert [int(case.baseline.trials[0, 0]) for case in drawn.stages] == [2, 4, 8]
    for before, after in zip(drawn.stages[:-1], drawn.stages[1:], strict=True):
        assert (after.candidate.successes >= before.candidate.successes).all()
        assert (after.candidate.successes - before.candidate.successes <= after.candidate.trials // 2).all()
        assert before.fresh_p is not None
        assert after.fresh_p is not None
        tried = ~np.isnan(before.fresh_p)
        assert np.array_equal(before.fresh_p[tried], after.fresh_p[tried])


def test_json_holds_what_was_asked_and_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--agent-profile", "noisy", "--margin", "0.2", "--live", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["tasks"], found["trials"], found["margin"], found["live"]) == (20, 2, 0.2, True)
    assert [(one["goal"], one["effect"]) for one in found["chances"]] == [
        *(("improve", effect) for effect in (0.0, 0.02, 0.05, 0.1, 0.15)),
        *(("hold", effect) for effect in (0.0, -0.1, -0.2)),
        *(("improve", effect) for effect in (-0.05, -0.1, -0.2)),
        *(("no-regression", effect) for effect in (0.0, -0.05, -0.1, -0.2)),
    ]
    assert set(found["enough"]) == {"effect", "trials", "tasks"}


def test_the_table_names_what_would_be_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--agent-profile", "0.9,0.1"]) == 0
    out = capsys.readouterr().out
    assert (
        "20 tasks × 2 trials a side, recorded runs; policy calibrated, verdicts about tasks like these ("
        in out
    )
    assert "designs that reach 80% for +5 points: about " in out
    assert "not possible" in out, "0.9 + 0.15"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tasks", "1"], "--tasks 1: must be 2 or more"),
        (["--trials", "0"], "--trials 0: must be 1 or more"),
        (["--agent-profile", "loud"], f"--agent-profile loud: {NO_AGENT}"),
        (["--agent-profile", "0.5,0.5"], f"--agent-profile 0.5,0.5: {NO_AGENT}"),
    ],
)
def test_what_cannot_be_simulated_is_said_in_a_line(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, *options]) == 2
    assert capsys.readouterr().err == f"trace2evolve: {message}\n"


# Runs in stages against a saved baseline.


def runs(
    effect: float, *, confirms_all: bool = False, futility: float = 0.05, saved: int | None = 8
) -> StagedRuns:
    return simulate_runs(
        np.random.default_rng(5),
        AGENTS["medium"],
        Effect(effect),
        Design(40, 8, baseline_trials=saved),
        replace(CALIBRATED, futility=futility),
        (2, 4, 8),
        rows=150,
        confirms_all=confirms_all,
    )


@pytest.mark.parametrize("effect", [-0.2, 0.0, 0.1])
def test_the_decisions_are_those_of_a_run_that_confirms_everything(effect: float) -> None:
    needed, everything = runs(effect), runs(effect, confirms_all=True)
    assert np.array_equal(needed.rank, everything.rank)
    assert np.array_equal(needed.trials, everything.trials)
    assert (needed.fresh <= everything.fresh).all()
    assert needed.fresh.sum() < everything.fresh.sum()
    assert needed.simulations(40) == pytest.approx((40 * needed.trials + needed.fresh).mean())


def test_futility_ends_runs_early_and_decides_nothing() -> None:
    ended, whole = runs(0.0), runs(0.0, futility=0.0)
    assert ended.trials.mean() < 0.7 * whole.trials.mean()
    stopped = ended.trials < whole.trials
    assert (ended.rank[stopped] == Decision.INCONCLUSIVE.rank).all()
    assert np.array_equal(ended.rank[~stopped], whole.rank[~stopped])


def test_without_a_saved_baseline_each_stage_is_compared_with_as_many_trials() -> None:
    assert runs(0.3, saved=None).share(Decision.PROMOTE) > 0.9
