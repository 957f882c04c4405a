"""Simulated runs in stages against a saved baseline."""

from dataclasses import replace

import numpy as np
import pytest

from pytest_trace2evolve.gate.calibrated import CALIBRATED
from pytest_trace2evolve.gate.power import AGENTS, Design, Effect
from pytest_trace2evolve.gate.stages import StagedRuns, simulate_runs
from pytest_trace2evolve.records.verdict import Decision


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
